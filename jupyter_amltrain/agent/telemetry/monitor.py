"""Monitors: samplers without a run, in ``<home>/monitors/<id>/telemetry/``, with files as in a run folder.

Call ``monitor`` {"id": [A-Za-z0-9][A-Za-z0-9._-]{0,99}, "gpus": [index] | None, "period": seconds}
starts a monitor, or keeps the one with that id alive: a monitor ends :func:`keep` seconds after the
last call and removes its folder. {"id", "stop": true} ends it immediately.

A *monitor process* in a session of its own (`monitor_process`) forks the sampler and restarts it when it dies. The
caller that starts it claims the folder (``mkdir`` is atomic), then ``monitor.json`` names the process.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import Any, Dict, Optional

from .. import protocol
from ..processes import boot_id, is_alive, pid_scope
from ..protocol import MONITORS, SCHEMA, AgentError, not_writable, private_folder, read_json, valid_run_id, write_json
from ..queue import dispatcher_client
from ..queue.dispatcher_client import AgentContext
from ..supervise import env_filter

Json = Dict[str, Any]

#: Files in a monitor's folder: request, process, time of the last call (its mtime), log.
REQUEST, RECORD, LAST_CALL, LOG_FILE = "asked.json", "monitor.json", "kept", "log/agent.txt"
#: Seconds until a monitor must have started (a driver may be slow), and until it must have stopped.
START_TIMEOUT_S, STOP_TIMEOUT_S = 30.0, 8.0
#: Seconds after which the folder of a killed monitor without further calls is removed.
STALE_AFTER_S = 3600.0
#: Seconds between samples: from ten per second to one per hour.
MIN_PERIOD_S, MAX_PERIOD_S = 0.1, 3600.0


def keep_alive_s() -> float:
    """Return the seconds that a monitor lives after the last call: ``$AMLTRAIN_MONITOR_KEEP``, else 30."""
    try:
        return max(0.1, float(os.environ["AMLTRAIN_MONITOR_KEEP"]))
    except (KeyError, ValueError):
        return 30.0


def invalid_request(message: str) -> AgentError:
    """Return the error for an invalid request."""
    return AgentError("CommandError", message)


def serve(context: AgentContext, payload: Json) -> Json:
    """Serve the call ``monitor``; see the module's docstring."""
    name, gpus, period = payload.get("id"), payload.get("gpus"), payload.get("period", 1.0)
    if not valid_run_id(name):
        raise invalid_request("%r is not a monitor id (letters, digits, '.', '_' and '-', at most 100)." % (name,))
    folder = os.path.join(context.home, MONITORS, str(name))
    if payload.get("stop"):
        _stop(folder)
        return {"id": name}
    if gpus is not None and not (isinstance(gpus, list) and all(type(index) is int for index in gpus)):
        raise invalid_request("%r is not a list of GPU indices. Try: --gpus 0,1" % (gpus,))
    if type(period) not in (int, float) or not MIN_PERIOD_S <= period <= MAX_PERIOD_S:
        raise invalid_request(
            "A period must be %g to %g seconds, got %r. Try: --rate 1" % (MIN_PERIOD_S, MAX_PERIOD_S, period)
        )
    private_folder(os.path.dirname(folder))
    if not os.path.isdir(folder):
        _sweep(os.path.dirname(folder))
    until = protocol.mono() + START_TIMEOUT_S
    while protocol.mono() < until:
        pid = _extend(folder)
        if pid is None and _claim(folder):
            pid = _start(context, folder, {"schema": SCHEMA, "gpus": gpus, "period": period, "queue": context.queue})
        if pid is not None:
            return {"id": name, "folder": folder, "pid": pid}
        time.sleep(0.02)
    raise AgentError(
        "StateError", "The monitor in %s did not start within %g s. Try another id." % (folder, START_TIMEOUT_S)
    )


def _extend(folder: str) -> Optional[int]:
    """Keep a live monitor alive; return the pid of its process, or ``None`` if there is none."""
    record = _record(folder)
    if not _is_alive(record):
        return None
    try:
        os.utime(os.path.join(folder, LAST_CALL))
    except OSError:  # the monitor is just ending
        return None
    return int(record["pid"])


def _record(folder: str) -> Json:
    return read_json(os.path.join(folder, RECORD), "Monitor folder") or {}


def _is_alive(record: Json) -> bool:
    return record.get("node") == pid_scope() and record.get("boot") == boot_id() and is_alive(record)


def _claim(folder: str) -> bool:
    """Claim the right to start a monitor in `folder`; return ``True`` to one of several callers."""
    try:
        os.mkdir(folder, 0o700)
        return True
    except FileExistsError:  # another caller has it
        pass
    except OSError as error:
        raise not_writable(folder, error) from error
    try:
        if _record(folder):
            # The monitor process was killed. Its rows are kept: a reader continues in them.
            os.rename(os.path.join(folder, RECORD), os.path.join(folder, "%s.%s" % (RECORD, os.urandom(4).hex())))
            return True
        if time.time() - os.stat(folder).st_mtime > START_TIMEOUT_S:
            remove(folder)  # the caller that created it never started a monitor
    except OSError:  # another caller was faster
        pass
    return False


def _start(context: AgentContext, folder: str, request: Json) -> int:
    try:
        for name in ("telemetry", "log"):
            os.makedirs(os.path.join(folder, name), mode=0o700, exist_ok=True)
        write_json(os.path.join(folder, REQUEST), request)
        os.close(os.open(os.path.join(folder, LAST_CALL), os.O_CREAT | os.O_WRONLY, 0o600))
        words = [sys.executable, "-I", "-S", context.agent or dispatcher_client.zipapp(context.home), "monitor", folder]
        completed = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=env_filter.for_dispatcher(os.environ),
            start_new_session=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )
        answer = json.loads(completed.stdout.decode() or "{}")
    except (OSError, ValueError, subprocess.SubprocessError, AgentError) as error:
        remove(folder)
        if isinstance(error, AgentError):
            raise
        raise AgentError("StateError", "Cannot start a monitor in %s: %s" % (folder, error)) from error
    if "pid" in answer:
        return int(answer["pid"])
    remove(folder)
    error_ = answer.get("error") or {}
    message = "The monitor in %s ended with code %d." % (folder, completed.returncode)
    raise AgentError(str(error_.get("type") or "StateError"), str(error_.get("message") or message))


def _stop(folder: str) -> None:
    record = _record(folder)
    if _is_alive(record):
        try:
            os.kill(record["pid"], signal.SIGTERM)
        except OSError:  # it has ended
            pass
        until = protocol.mono() + STOP_TIMEOUT_S
        while _is_alive(record) and protocol.mono() < until:
            time.sleep(0.01)
    remove(folder)


def _sweep(monitors: str) -> None:
    """Remove the folders of killed monitor processes and unfinished removals."""
    for name in os.listdir(monitors):
        path = os.path.join(monitors, name)
        try:
            last_call = os.path.join(path, LAST_CALL)
            # The file of a live monitor is touched twice a minute, on whatever machine it runs.
            if time.time() - os.stat(last_call if os.path.exists(last_call) else path).st_mtime < STALE_AFTER_S:
                continue
        except OSError:
            continue
        if name.startswith("."):
            shutil.rmtree(path, ignore_errors=True)
        else:
            remove(path)


def remove(folder: str) -> None:
    """Remove a monitor's folder; for readers it disappears in one step."""
    trash = os.path.join(os.path.dirname(folder), ".gone-%s" % os.urandom(6).hex())
    try:
        os.rename(folder, trash)
    except OSError:
        return
    shutil.rmtree(trash, ignore_errors=True)
