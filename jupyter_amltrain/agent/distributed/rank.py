"""``amltrain_rank.py FOLDER PROGRAM ARG...``: runs one process of a distributed job, with its own log and record.

A launcher (torchrun, mpirun) starts this file once for each rank; :mod:`.launchers` puts it on the machine. It needs
nothing but the standard library of the job's Python. The record, ``ranks/N.json``, tells how the process ended: a
launcher reports one exit code for all of them.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any, Dict, List

#: Prefix of the variable with the number of restarts that the launcher has made.
_RESTARTS = "TORCHELASTIC_RESTART_COUNT"
#: Variables of the hooks that write figures and displays: one process of the job does.
_PICTURES, _DISPLAYS = "AMLTRAIN_PICTURES", "AMLTRAIN_DISPLAYS"
#: Variable by which the sink tells the processes of a launcher without a rank apart: TensorFlow's.
_RANK = "AMLTRAIN_RANK"
_PR_SET_PDEATHSIG = 1


def main(argv: List[str]) -> int:
    """Run the process and return its exit code; a signal that killed it kills this process, too."""
    from amltrain_identity import identity_of  # type: ignore[import-not-found]

    folder, command = argv[1], argv[2:]
    me = identity_of(os.environ)
    log = os.path.join(folder, "log", "rank-%d.txt" % me.rank)
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    os.environ[_RANK] = str(me.rank)
    if me.rank:
        os.environ["AML_OUTPUT_DIR"] = os.path.join(folder, "outputs", "rank-%d" % me.rank)
        os.makedirs(os.environ["AML_OUTPUT_DIR"], mode=0o700, exist_ok=True)
        os.environ[_PICTURES] = os.environ[_DISPLAYS] = "0"
    record: Dict[str, Any] = {"rank": me.rank, "local": me.local, "world": me.world, "pid": os.getpid()}
    record.update(attempt=int(os.environ.get(_RESTARTS) or 0), started=time.time(), ended_by="")
    os.environ["AMLTRAIN_STACK"] = os.path.join(folder, "ranks", "%d.stack" % me.rank)
    path = os.path.join(folder, "ranks", "%d.json" % me.rank)
    _write(path, record)

    def forward(number: int, frame: Any) -> None:
        record["ended_by"] = record["ended_by"] or signal.Signals(number).name
        if process is not None and process.returncode is None:
            process.send_signal(number)

    process = None
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, forward)
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_end_with_parent)
        code = process.wait()
    except OSError as error:
        print("%s could not be started: %s" % (command[0], error.strerror or error), flush=True)
        code = 127
    record.update(ended=time.time(), exit_code=code if code >= 0 else None, signal=-code if code < 0 else None)
    _write(path, record)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    return code


def _end_with_parent() -> None:
    """Kill the process when this one is killed, as launchers do with processes that do not end (Linux)."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):
        pass


def _write(path: str, record: Dict[str, Any]) -> None:
    part = "%s.%d.part" % (path, os.getpid())
    try:
        with open(part, "w") as file:
            json.dump(record, file)
        os.replace(part, path)
    except OSError as error:  # a full disk: the process runs nevertheless
        print("rank %d: no record (%s)" % (record["rank"], error.strerror), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
