"""Start of the dispatcher as a detached process: a single instance, ready before the starter returns."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time

from .. import protocol
from ..protocol import PROTOCOL, SCHEMA

#: Seconds to wait for the lock of a dispatcher that is shutting down.
LOCK_TIMEOUT_S = 20.0
#: Seconds between two signals to a dispatcher that has the lock and no socket.
WAKE_INTERVAL_S = 0.5
_MODULES = (
    "supervise.guardian",
    "supervise.supervisor",
    "supervise.process",
    "supervise.run_state",
    "supervise.outcome",
    "telemetry.sampler",
    "telemetry.host",
    "mlflow.sink_server",
    "trackers.follower",
)


def detach(queue: str, home: str) -> int:
    """Fork the dispatcher as a daemon; return 0 when it or another dispatcher listens."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        # End of file without a byte: the child died, or another dispatcher has the lock.
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

        # The agent's files are private; files of a job get the umask of its user.
        process.USER_UMASK = os.umask(0o077)
        if hasattr(sys.stdout, "reconfigure"):  # a path need not be UTF-8
            sys.stdout.reconfigure(errors="backslashreplace")
        code = _serve(queue, home, writer)
    except BaseException:  # the body of a process: log any error
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _wake(queue: str) -> None:
    """Let a dispatcher without work look after its socket: as it does when a child ends."""
    from ..json_dir import LOCK
    from ..processes import is_alive

    try:
        record = protocol.read_json(os.path.join(queue, LOCK), "Queue folder")
        if record and is_alive(record):
            os.kill(record["pid"], signal.SIGCHLD)
    except (OSError, protocol.AgentError):  # it has ended meanwhile
        pass


def _serve(queue: str, home: str, ready: int) -> int:
    import fcntl

    from ..json_dir import LOCK, open_queue

    queue = open_queue(queue)
    lock = os.open(os.path.join(queue, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until, wake_at = protocol.mono() + LOCK_TIMEOUT_S, protocol.mono() + WAKE_INTERVAL_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            from .dispatcher_client import PING_TIMEOUT_S, NoDispatcher, Unanswered, exchange

            try:
                exchange(queue, {"op": "ping"}, timeout_s=PING_TIMEOUT_S)
                return 0  # another dispatcher serves
            except Unanswered:
                return 0  # another dispatcher runs but does not reply: the call of the starter reports it
            except NoDispatcher:  # a dispatcher is shutting down, was just killed, or has lost its socket's file
                if protocol.mono() > until:
                    return 75
                if protocol.mono() > wake_at:
                    wake_at = protocol.mono() + WAKE_INTERVAL_S
                    _wake(queue)
                time.sleep(0.005)
    # Load all code now: the zipapp may have been removed when a job starts, and forked
    # children need not import these modules again.
    for name in _MODULES:
        importlib.import_module(".." + name, __package__)
    from ..processes import boot_id, identity
    from ..supervise import job_hooks
    from ..trackers import tracker_files
    from .dispatcher import Dispatcher

    job_hooks.files()
    tracker_files.reader_source()
    record = {"schema": SCHEMA, "protocol": PROTOCOL, "boot": boot_id()}
    record.update(identity(os.getpid()) or {})
    os.ftruncate(lock, 0)
    os.pwrite(lock, json.dumps(record).encode(), 0)
    dispatcher = Dispatcher(queue, home)
    os.close(ready)
    dispatcher.log("dispatcher %d serves %s" % (os.getpid(), queue))
    dispatcher.run()
    return 0
