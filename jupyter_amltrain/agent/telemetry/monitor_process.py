"""Process of a monitor: forks its sampler, and ends some time after the last call."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from typing import Any, Dict, List, Optional, Sequence

from .. import protocol
from ..process_setup import drain, redirect_stdio, wakeup_pipe
from ..processes import boot_id, identity, pid_scope
from ..protocol import SCHEMA, AgentError, read_json, write_json
from ..queue.gpu_probe import KnownGpus
from ..supervise.helpers import Helper, stop_helper
from . import driver_state, nvml, sampler
from .monitor import LAST_CALL, LOG_FILE, RECORD, REQUEST, invalid_request, keep_alive_s, remove

Json = Dict[str, Any]

#: Seconds between checks of the last call.
_CHECK_INTERVAL_S = 0.5


def detach(folder: str) -> int:
    """Body of ``agent.pyz monitor``: print one JSON line, the pid of the monitor process or an error."""
    request = read_json(os.path.join(folder, REQUEST), "Monitor folder") or {}
    probe = _probe()
    lost = _lost(probe, request.get("queue"))
    try:
        _check(request.get("gpus") or (), probe, lost)
    except AgentError as error:
        print(json.dumps(error.to_reply()))
        return 1
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        print((os.read(reader, 4096) or b"{}").decode())
        return 0
    os.close(reader)
    code = 70
    try:
        code = _run(folder, request.get("gpus"), float(request["period"]), writer, lost)
    except BaseException:  # the body of a process: every error goes to its log
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        remove(folder)
        os._exit(code)


def _probe() -> Json:
    """Return the result of an NVML probe in a child, so that this process forks without NVML's threads."""
    pid, reader = nvml.start_probe()
    data, began = b"", protocol.mono()
    until = began + nvml.probe_timeout_s()
    while True:
        if not select.select([reader], [], [], max(0.0, until - protocol.mono()))[0]:
            os.kill(pid, signal.SIGKILL)
            break
        piece = os.read(reader, 1 << 16)
        if not piece:
            break
        data += piece
    os.close(reader)
    os.waitpid(pid, 0)
    return nvml.parse_probe(data, protocol.mono() - began)


def _lost(probe: Json, queue: Any) -> List[Json]:
    """Return GPUs of this boot that the probe did not find usable, from the memory of the queue folder."""
    if probe["driver"] != driver_state.WORKS or not isinstance(queue, str):
        return []
    return KnownGpus(queue).lost([gpu["uuid"] for gpu in probe["present"]], probe["lost"])


def _check(requested: Sequence[int], probe: Json, lost: Sequence[Json]) -> None:
    """Refuse GPUs that this machine does not have."""
    # A split GPU is sampled with its instances; the probe lists these in its place.
    known = {gpu.get("parent", gpu["index"]) for gpu in [*probe["gpus"], *lost]}
    for index in requested:
        if index not in known:
            listed = ", ".join(str(number) for number in sorted(known))
            existing = "Available: %s." % listed if known else "There is none: %s." % probe["note"]
            raise invalid_request("There is no GPU %d on this machine. %s" % (index, existing))


def _run(folder: str, gpus: Optional[List[int]], period: float, ready: int, lost: List[Json]) -> int:
    redirect_stdio(os.path.join(folder, LOG_FILE))
    os.umask(0o077)
    wakeup, _ = wakeup_pipe(signal.SIGCHLD, signal.SIGTERM)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    own_pid = os.getpid()
    me = identity(own_pid) or {}
    write_json(os.path.join(folder, RECORD), dict(me, schema=SCHEMA, node=pid_scope(), boot=boot_id()))
    os.write(ready, json.dumps({"pid": own_pid}).encode())
    os.close(ready)
    helper = Helper("sampler")
    helper.due = protocol.mono()
    last_call, since = _last_call(folder), protocol.mono()
    while True:
        now = protocol.mono()
        if helper.due is not None and now >= helper.due:
            helper.fork(folder, lambda: sampler.watch(folder, gpus, period, lambda: os.getppid() == own_pid, lost))
        pause = _CHECK_INTERVAL_S if helper.due is None else min(_CHECK_INTERVAL_S, helper.due - now)
        if select.select([wakeup], [], [], max(0.0, pause))[0] and signal.SIGTERM in drain(wakeup):
            break
        _reap(helper)
        newest = _last_call(folder)
        if newest != last_call:
            last_call, since = newest, protocol.mono()
        if newest is None or protocol.mono() - since > keep_alive_s():
            break
    stop_helper(helper.pid)
    return 0


def _reap(helper: Any) -> None:
    try:
        while True:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            if pid == helper.pid:
                helper.schedule_restart()
    except ChildProcessError:  # no child is left
        pass


def _last_call(folder: str) -> Optional[int]:
    """Return the time of the last call; ``None`` if the folder was removed."""
    try:
        return os.stat(os.path.join(folder, LAST_CALL)).st_mtime_ns
    except OSError:
        return None
