"""Becoming the dispatcher: detached, alone, and ready before the starter returns."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time

from .. import protocol
from ..protocol import PROTOCOL, SCHEMA

#: Seconds to wait for a leaving dispatcher's lock.
LOCK_TIMEOUT_S = 20.0
_MODULES = (
    "supervise.guardian",
    "supervise.supervisor",
    "supervise.process",
    "supervise.run_state",
    "supervise.outcome",
    "telemetry.sampler",
    "telemetry.host",
    "mlflow.server",
)


def detach(queue: str, home: str) -> int:
    """Fork the dispatcher away; return 0 when it listens or another one does."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        # Its end without a byte: it died, or another one has the lock.
        os.read(reader, 1)
        return 0
    os.close(reader)
    os.setsid()
    if os.fork():
        os._exit(0)
    code = 70
    try:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN if number == signal.SIGPIPE else signal.SIG_DFL)
        from ..supervise import process

        # Ours are private; a job's files are made as its user is used to.
        process.USER_UMASK = os.umask(0o077)
        if hasattr(sys.stdout, "reconfigure"):  # a path need not be UTF-8
            sys.stdout.reconfigure(errors="backslashreplace")
        code = _serve(queue, home, writer)
    except BaseException:  # the body of a process: whatever it is goes to its log
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _serve(queue: str, home: str, ready: int) -> int:
    import fcntl

    from ..json_dir import LOCK, open_queue

    queue = open_queue(queue)
    lock = os.open(os.path.join(queue, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = protocol.mono() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            from .dispatcher_client import PING_TIMEOUT_S, NoDispatcher, Unanswered, exchange

            try:
                exchange(queue, {"op": "ping"}, timeout_s=PING_TIMEOUT_S)
                return 0  # another one serves
            except Unanswered:
                return 0  # and does not answer: the caller's own call says so
            except NoDispatcher:  # one is leaving or was just killed
                if protocol.mono() > until:
                    return 75
                time.sleep(0.005)
    # All code is loaded now: the zipapp may be gone when a job starts, and what is
    # imported here need not be imported by each forked child.
    for name in _MODULES:
        importlib.import_module(".." + name, __package__)
    from ..processes import boot_id, identity
    from .dispatcher import Dispatcher

    record = {"schema": SCHEMA, "protocol": PROTOCOL, "boot": boot_id()}
    record.update(identity(os.getpid()) or {})
    os.ftruncate(lock, 0)
    os.pwrite(lock, json.dumps(record).encode(), 0)
    serving = Dispatcher(queue, home)
    os.close(ready)
    serving.say("dispatcher %d serves %s" % (os.getpid(), queue))
    serving.run()
    return 0
