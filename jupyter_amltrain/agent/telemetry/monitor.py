"""A sampler without a run: ``<home>/monitors/<id>/telemetry/`` as in a run folder.

``monitor`` {"id": [A-Za-z0-9][A-Za-z0-9._-]{0,99}, "gpus": [index] | None, "period": seconds}
starts one, or keeps the one of that id alive: it ends :func:`keep` seconds after the
last call and removes its folder. {"id", "stop": true} ends it at once.

A *keeper* of its own session (`keeper`) forks the sampler and starts it again when it dies. Its
starter holds the folder (``mkdir`` is atomic), then ``monitor.json`` says who keeps it.
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
from ..processes import alive, boot_id, node
from ..protocol import MONITORS, SCHEMA, AgentError, not_writable, private_folder, read_json, valid_run_id, write_json
from ..queue import dispatcher_client
from ..queue.dispatcher_client import AgentContext
from ..supervise import env_filter

Json = Dict[str, Any]

#: In a monitor's folder: what was asked for, who keeps it, when somebody asked last, its log.
ASKED, RECORD, KEPT, LOG_FILE = "asked.json", "monitor.json", "kept", "log/agent.txt"
#: Seconds that a monitor gets to come up (a driver may be slow), and to go.
START_TIMEOUT_S, STOP_TIMEOUT_S = 30.0, 8.0
#: Seconds after which the folder of a monitor that was killed and never asked for again is removed.
STALE_AFTER_S = 3600.0
#: Seconds between samples: from ten a second to one an hour.
MIN_PERIOD_S, MAX_PERIOD_S = 0.1, 3600.0


def keep() -> float:
    """Seconds that a monitor lives after the last call: ``$AMLTRAIN_MONITOR_KEEP``, else 30."""
    try:
        return max(0.1, float(os.environ["AMLTRAIN_MONITOR_KEEP"]))
    except (KeyError, ValueError):
        return 30.0


def bad(message: str) -> AgentError:
    """What the caller asked for wrongly."""
    return AgentError("CommandError", message)


def serve(context: AgentContext, payload: Json) -> Json:
    """The call; see the module's docstring."""
    name, gpus, period = payload.get("id"), payload.get("gpus"), payload.get("period", 1.0)
    if not valid_run_id(name):
        raise bad("%r is not a monitor's id (letters, digits, '.', '_' and '-', at most 100)." % (name,))
    folder = os.path.join(context.home, MONITORS, str(name))
    if payload.get("stop"):
        _stop(folder)
        return {"id": name}
    if gpus is not None and not (isinstance(gpus, list) and all(type(index) is int for index in gpus)):
        raise bad("%r is not a list of GPU indices. Try: --gpus 0,1" % (gpus,))
    if type(period) not in (int, float) or not MIN_PERIOD_S <= period <= MAX_PERIOD_S:
        raise bad(
            "A monitor's period is %g to %g seconds, not %r. Try: --rate 1" % (MIN_PERIOD_S, MAX_PERIOD_S, period)
        )
    private_folder(os.path.dirname(folder))
    if not os.path.isdir(folder):
        _sweep(os.path.dirname(folder))
    until = protocol.mono() + START_TIMEOUT_S
    while protocol.mono() < until:
        pid = _kept(folder)
        if pid is None and _claimed(folder):
            pid = _start(context, folder, {"schema": SCHEMA, "gpus": gpus, "period": period, "queue": context.queue})
        if pid is not None:
            return {"id": name, "folder": folder, "pid": pid}
        time.sleep(0.02)
    raise AgentError("StateError", "The monitor in %s does not come up. Try another id." % folder)


def _kept(folder: str) -> Optional[int]:
    """Keep a live monitor alive; its keeper's pid, or ``None`` when there is none."""
    record = _record(folder)
    if not _lives(record):
        return None
    try:
        os.utime(os.path.join(folder, KEPT))
    except OSError:  # it is just leaving
        return None
    return int(record["pid"])


def _record(folder: str) -> Json:
    return read_json(os.path.join(folder, RECORD), "Monitor folder") or {}


def _lives(record: Json) -> bool:
    return record.get("node") == node() and record.get("boot") == boot_id() and alive(record)


def _claimed(folder: str) -> bool:
    """Take the right to start a monitor in `folder`; only one of several callers gets it."""
    try:
        os.mkdir(folder, 0o700)
        return True
    except FileExistsError:
        pass
    except OSError as error:
        raise not_writable(folder, error) from error
    try:
        if _record(folder):
            # Its keeper was killed. Its rows are kept: a reader goes on where it was.
            os.rename(os.path.join(folder, RECORD), os.path.join(folder, "%s.%s" % (RECORD, os.urandom(4).hex())))
            return True
        if time.time() - os.stat(folder).st_mtime > START_TIMEOUT_S:
            remove(folder)  # who made it never came to start anything
    except OSError:  # another caller was faster
        pass
    return False


def _start(context: AgentContext, folder: str, asked: Json) -> int:
    try:
        for name in ("telemetry", "log"):
            os.makedirs(os.path.join(folder, name), mode=0o700, exist_ok=True)
        write_json(os.path.join(folder, ASKED), asked)
        os.close(os.open(os.path.join(folder, KEPT), os.O_CREAT | os.O_WRONLY, 0o600))
        words = [sys.executable, "-I", "-S", context.agent or dispatcher_client.zipapp(context.home), "monitor", folder]
        done = subprocess.run(
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
        answer = json.loads(done.stdout.decode() or "{}")
    except (OSError, ValueError, subprocess.SubprocessError, AgentError) as error:
        remove(folder)
        if isinstance(error, AgentError):
            raise
        raise AgentError("StateError", "Cannot start a monitor in %s: %s" % (folder, error)) from error
    if "pid" in answer:
        return int(answer["pid"])
    remove(folder)
    refused = answer.get("error") or {}
    why = "it ended with code %d" % done.returncode
    raise AgentError(
        str(refused.get("type") or "StateError"), str(refused.get("message") or "The monitor does not run: %s" % why)
    )


def _stop(folder: str) -> None:
    record = _record(folder)
    if _lives(record):
        try:
            os.kill(record["pid"], signal.SIGTERM)
        except OSError:
            pass
        until = protocol.mono() + STOP_TIMEOUT_S
        while _lives(record) and protocol.mono() < until:
            time.sleep(0.01)
    remove(folder)


def _sweep(monitors: str) -> None:
    """Remove what killed keepers and cut-off removals have left."""
    for name in os.listdir(monitors):
        path = os.path.join(monitors, name)
        try:
            asked = os.path.join(path, KEPT)
            # A living one is touched twice a minute, on whatever machine it is.
            if time.time() - os.stat(asked if os.path.exists(asked) else path).st_mtime < STALE_AFTER_S:
                continue
        except OSError:
            continue
        if name.startswith("."):
            shutil.rmtree(path, ignore_errors=True)
        else:
            remove(path)


def remove(folder: str) -> None:
    """Remove a monitor's folder, gone at once for all readers."""
    trash = os.path.join(os.path.dirname(folder), ".gone-%s" % os.urandom(6).hex())
    try:
        os.rename(folder, trash)
    except OSError:
        return
    shutil.rmtree(trash, ignore_errors=True)
