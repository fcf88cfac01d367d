"""The process that keeps a monitor: forks its sampler, and goes when nobody asks any more."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from typing import Any, Dict, List, Optional, Sequence

from .. import protocol
from ..process_setup import drain, stdio_to, wake_on
from ..processes import boot_id, identity, node
from ..protocol import SCHEMA, AgentError, read_json, write_json
from ..queue.gpu_probe import KnownGpus
from ..supervise.helpers import Helper, dismiss
from . import driver_state, nvml, sampler
from .monitor import ASKED, KEPT, LOG_FILE, RECORD, bad, keep, remove

Json = Dict[str, Any]

#: Seconds between looks for the last call.
_TURN = 0.5


def detach(folder: str) -> int:
    """Body of ``agent.pyz monitor``: print one JSON line when the keeper keeps, or why not."""
    asked = read_json(os.path.join(folder, ASKED), "Monitor folder") or {}
    found = _probe()
    lost = _lost(found, asked.get("queue"))
    try:
        _check(asked.get("gpus") or (), found, lost)
    except AgentError as error:
        print(json.dumps(error.answer()))
        return 1
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        print((os.read(reader, 4096) or b"{}").decode())
        return 0
    os.close(reader)
    code = 70
    try:
        code = _keep(folder, asked.get("gpus"), float(asked["period"]), writer, lost)
    except BaseException:  # the body of a process: whatever it is goes to its log
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        remove(folder)
        os._exit(code)


def _probe() -> Json:
    """What NVML knows; asked in a child, so that we fork without its threads."""
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


def _lost(found: Json, queue: Any) -> List[Json]:
    """GPUs of this boot that the probe did not find usable, as far as the queue folder remembers them."""
    if found["driver"] != driver_state.WORKS or not isinstance(queue, str):
        return []
    return KnownGpus(queue).lost([gpu["uuid"] for gpu in found["present"]], found["lost"])


def _check(wanted: Sequence[int], found: Json, lost: Sequence[Json]) -> None:
    """Refuse GPUs that are not here."""
    # A split GPU is watched with its instances; the probe lists these in its place.
    known = {gpu.get("parent", gpu["index"]) for gpu in [*found["gpus"], *lost]}
    for index in wanted:
        if index not in known:
            listed = ", ".join(str(number) for number in sorted(known))
            there = "There are: %s." % listed if known else "There is none: %s." % found["note"]
            raise bad("There is no GPU %d on this machine. %s" % (index, there))


def _keep(folder: str, gpus: Optional[List[int]], period: float, ready: int, lost: List[Json]) -> int:
    stdio_to(os.path.join(folder, LOG_FILE))
    os.umask(0o077)
    wakeup, _ = wake_on(signal.SIGCHLD, signal.SIGTERM)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    keeper = os.getpid()
    me = identity(keeper) or {}
    write_json(os.path.join(folder, RECORD), dict(me, schema=SCHEMA, node=node(), boot=boot_id()))
    os.write(ready, json.dumps({"pid": keeper}).encode())
    os.close(ready)
    helper = Helper("sampler")
    helper.due = protocol.mono()
    kept, since = _touched(folder), protocol.mono()
    while True:
        now = protocol.mono()
        if helper.due is not None and now >= helper.due:
            helper.fork(folder, lambda: sampler.watch(folder, gpus, period, lambda: os.getppid() == keeper, lost))
        pause = _TURN if helper.due is None else min(_TURN, helper.due - now)
        if select.select([wakeup], [], [], max(0.0, pause))[0] and signal.SIGTERM in drain(wakeup):
            break
        _reap(helper)
        touched = _touched(folder)
        if touched != kept:
            kept, since = touched, protocol.mono()
        if touched is None or protocol.mono() - since > keep():
            break
    dismiss(helper.pid)
    return 0


def _reap(helper: Any) -> None:
    try:
        while True:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            if pid == helper.pid:
                helper.died()
    except ChildProcessError:
        pass


def _touched(folder: str) -> Optional[int]:
    """When somebody asked last; ``None`` when the folder was taken away."""
    try:
        return os.stat(os.path.join(folder, KEPT)).st_mtime_ns
    except OSError:
        return None
