"""Client of the dispatcher; starts a dispatcher if none is running."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, TypeVar

from .. import machine, protocol
from ..json_dir import LOCK, LOG_FILE, Address, NumberedJsonDir, open_queue
from ..processes import find_process, is_alive, resume
from ..protocol import PROTOCOL, QUEUED, AgentError, read_json, run_folder
from ..supervise import env_filter
from . import claims, submission

#: Max size of a request; leaves room for a large environment.
MAX_REQUEST_BYTES = 16 << 20

#: Seconds for a client to send its request.
REQUEST_TIMEOUT_S = 20.0


class Caller:
    """Server side of a connection, with the part of the request received so far."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.data = bytearray()
        self.until = protocol.mono() + REQUEST_TIMEOUT_S

    def answer(self, value: Dict[str, Any]) -> None:
        """Send the reply and close the connection."""
        try:
            self.connection.settimeout(2.0)
            self.connection.sendall(json.dumps(value).encode() + b"\n")
        except OSError:  # the client has gone
            pass
        self.connection.close()


#: Seconds for a dispatcher to start.
DISPATCHER_TIMEOUT_S = 30.0

#: Retries of a call whose dispatcher dies before replying.
MAX_TRIES = 3

#: Seconds to wait for the reply of a dispatcher that is alive.
ANSWER_TIMEOUT_S = 60.0

#: Seconds between checks of a dispatcher that has not replied yet.
SILENCE_INTERVAL_S = 1.0

#: Seconds without a reply, CPU use or an answered ping after which a dispatcher counts as hanging.
HANG_TIMEOUT_S = 6.0

#: Seconds to wait for the reply to a ping.
PING_TIMEOUT_S = 1.5

T = TypeVar("T")


class NoDispatcher(Exception):
    """No dispatcher is running, or it died before it replied."""


class Unanswered(Exception):
    """A live dispatcher has not replied in time. The request may still be served."""


class DispatcherHangs(Unanswered):
    """The dispatcher is alive but makes no progress.

    Attributes
    ----------
    record
        Identity of the dispatcher.
    """

    def __init__(self, record: Mapping[str, Any]) -> None:
        super().__init__("process %s is hanging" % record.get("pid"))
        self.record = record


class SilenceWatch:
    """Checks a dispatcher while it does not reply; continues it if it was stopped.

    Parameters
    ----------
    queue
        The queue folder.
    """

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._spent = -1
        self._idle_since = protocol.mono()

    def __call__(self) -> None:
        """Raise `DispatcherHangs` when the dispatcher makes no progress."""
        try:
            record = read_json(os.path.join(self._queue, LOCK), "Queue folder")
        except OSError:
            return
        if not record or not is_alive(record):
            return
        row, now = find_process(record["pid"]), protocol.mono()
        resume(record)
        # A dispatcher that starves on a busy machine is runnable (R); one that waits for its disk (D) may recover.
        if row is None or row.state in "RD" or row.own_time != self._spent:
            self._spent, self._idle_since = row.own_time if row else -1, now
        elif now - self._idle_since >= HANG_TIMEOUT_S and not _replies(self._queue):
            raise DispatcherHangs(record)


class AgentContext(NamedTuple):
    """Context of a call: state root, queue folder, and the zipapp that serves them."""

    home: str
    queue: str
    agent: Optional[str]

    def send_request(self, op: str, payload: Dict[str, Any]) -> Dict[str, Any]:
        """Send a request to the dispatcher; see the function `send_request`."""
        return send_request(self.queue, self.home, self.agent, op, payload)


def running(queue: str) -> bool:
    """Whether the dispatcher of `queue` is alive; takes no lock."""
    try:
        return is_alive(read_json(os.path.join(queue, LOCK), "Queue folder"))
    except OSError:
        return False


def _replies(queue: str) -> bool:
    try:
        exchange(queue, {"op": "ping"}, timeout_s=PING_TIMEOUT_S)
    except Unanswered:
        return False
    except NoDispatcher:  # reported by the call itself
        pass
    return True


def _request_line(request: Dict[str, Any]) -> bytes:
    line = json.dumps(request).encode() + b"\n"
    if len(line) > MAX_REQUEST_BYTES:
        raise AgentError(
            "SubmitError",
            "Cannot submit the job: the request has %.1f MiB, the limit is %d MiB (parameters, arguments and"
            " environment together). Put large data into a file that the script reads, and send files with the job"
            " by --source." % (len(line) / (1 << 20), MAX_REQUEST_BYTES >> 20),
        )
    return line


def _retry(until: float, limit: float, on_silence: Optional[Callable[[], None]], step: Callable[[], T]) -> T:
    """Repeat one step of an exchange until the dispatcher takes part in it; see :func:`exchange`."""
    while True:
        try:
            return step()
        except BlockingIOError:  # its backlog is full
            time.sleep(0.05)
        except socket.timeout:  # it is busy: try again below
            pass
        if protocol.mono() >= until:
            raise Unanswered("no reply within %g s" % limit)
        if on_silence is not None:
            on_silence()


def exchange(
    queue: str,
    request: Dict[str, Any],
    on_silence: Optional[Callable[[], None]] = None,
    timeout_s: Optional[float] = None,
) -> Dict[str, Any]:
    """Send one request to a live dispatcher and return its reply.

    Parameters
    ----------
    on_silence
        Called about once a second while there is no reply; an exception from it ends the wait.
    timeout_s
        Seconds to wait for the reply; ``None`` means `ANSWER_TIMEOUT_S`.

    Raises
    ------
    NoDispatcher
        No dispatcher is running, or it died before it replied.
    Unanswered
        It did not reply in time.
    AgentError
        ``SubmitError`` for a request over the size limit.
    """
    line = _request_line(request)
    limit = ANSWER_TIMEOUT_S if timeout_s is None else timeout_s
    retry = partial(_retry, protocol.mono() + limit, limit, on_silence)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(min(SILENCE_INTERVAL_S, limit))
        try:
            with Address(queue) as path:
                retry(lambda: connection.connect(path))
            rest = memoryview(line)
            while rest:
                rest = rest[retry(partial(connection.send, rest)) :]
            data = b""
            while not data.endswith(b"\n"):
                piece = retry(lambda: connection.recv(1 << 16))
                if not piece:
                    raise NoDispatcher("it died before it replied")
                data += piece
        except OSError as error:
            raise NoDispatcher(str(error)) from error
    reply = json.loads(data.decode())
    return reply if isinstance(reply, dict) else {}


def send_request(queue: str, home: str, agent: Optional[str], op: str, payload: Dict[str, Any]) -> Dict[str, Any]:
    """Send a request, starting a dispatcher if none is running; safe to repeat.

    Raises
    ------
    AgentError
        ``StateError`` when no dispatcher can be started, ``ProtocolError`` for one of another version.
    """
    request = {"op": op, "payload": payload, "home": home, "protocol": PROTOCOL}
    is_missing = False
    for attempt in range(MAX_TRIES + 1):
        last = attempt == MAX_TRIES
        try:
            if is_missing:
                spawn(queue, home, agent)
            if op in ("submit", "cancel"):
                _same_version(queue)
            return exchange(queue, request, SilenceWatch(queue))
        except NoDispatcher as error:
            if last:
                raise _not_running_error(queue, str(error)) from error
            is_missing = True
        except DispatcherHangs as error:
            if last or not _kill_hanging(queue, error.record, payload.get("submission")):
                raise _no_reply_error(queue, error) from error
        except Unanswered as error:
            raise _no_reply_error(queue, error) from error
    raise AssertionError("the last try returns or raises")


def submit(context: AgentContext, payload: Dict[str, Any]) -> Dict[str, Any]:
    """Submit a job and return the reply, or raise an error that says whether it was accepted.

    Parameters
    ----------
    payload
        See `calls`; its ``submission`` is unique to this call.

    Raises
    ------
    AgentError
        ``SubmitUnsure`` when it is unknown whether the job was accepted; any other type means that it was
        not and never will be.
    """
    name, run = payload["submission"], payload.get("run", "")
    try:
        reply = context.send_request("submit", payload)
    except AgentError as error:
        # The request may still be in the socket of a dispatcher that continues later.
        try:
            open_queue(context.queue)
            decision = claims.decide(context.queue, name, claims.REVOKED)
        except (AgentError, OSError) as claim_error:
            if not running(context.queue):  # then no process has the request
                raise error from None
            reason = (
                claim_error.message
                if isinstance(claim_error, AgentError)
                else "%s" % (claim_error.strerror or claim_error)
            )
            raise AgentError(
                "SubmitUnsure",
                "It is not known whether %s was accepted: %s The submission could not be revoked: %s. Check"
                " %%aml_runs in a minute before you submit it again." % (run, error.message, reason),
            ) from error
        if decision == claims.ACCEPTED:
            submission.publish_folder(context.home, run, name)
        elif not submission.is_accepted(context.home, run, name):  # by an earlier dispatcher, whose claims were removed
            raise
        return {"run": run, "state": QUEUED, "folder": run_folder(context.home, run), "ticket": 0}
    claims.forget(context.queue, name)
    return reply


def _kill_hanging(queue: str, record: Mapping[str, Any], own: Optional[str]) -> bool:
    """Kill a hanging dispatcher if no other job is lost by that; return whether it has ended.

    Parameters
    ----------
    own
        Submission of the current call, which is sent again to the next dispatcher.
    """
    waiting = NumberedJsonDir(os.path.join(queue, "tickets"))
    others = [ticket for ticket in waiting.load().values() if not own or ticket.get("submission") != own]
    if others or waiting.unreadable:  # their environments and secrets exist only in its memory
        return False
    if is_alive(record):
        try:
            os.kill(record["pid"], signal.SIGKILL)
        except OSError:
            return not is_alive(record)
    until = protocol.mono() + PING_TIMEOUT_S
    while is_alive(record):
        if protocol.mono() > until:
            return False
        time.sleep(0.01)
    return True


def _no_reply_error(queue: str, error: Unanswered) -> AgentError:
    record = read_json(os.path.join(queue, LOCK), "Queue folder") or {}
    waiting = len(list(NumberedJsonDir(os.path.join(queue, "tickets")).names()))
    note = ""
    if waiting:
        note = " This loses %d waiting %s, which must be submitted again." % (
            waiting,
            "run" if waiting == 1 else "runs",
        )
    return AgentError(
        "StateError",
        "The agent does not respond: %s. Try again, or end it with: kill -9 %s.%s See %s"
        % (error, record.get("pid", "?"), note, os.path.join(queue, LOG_FILE)),
    )


def _same_version(queue: str) -> None:
    """Retire an older dispatcher; raise an error for a newer one."""
    record = read_json(os.path.join(queue, LOCK), "Queue folder") or {}
    number = record.get("protocol", PROTOCOL)
    if number == PROTOCOL or not is_alive(record):
        return
    if number > PROTOCOL:
        raise AgentError(
            "ProtocolError",
            "The agent of this machine is newer than this package (protocol %s, supported: %d)."
            " Upgrade with: pip install -U jupyter-amltrain" % (number, PROTOCOL),
        )
    reply = exchange(queue, {"op": "retire", "protocol": PROTOCOL}, SilenceWatch(queue))
    if not reply.get("retired"):
        raise AgentError(
            "ProtocolError",
            "An older agent (protocol %s) still has %s waiting jobs. Wait until they have started, or cancel them."
            % (number, reply.get("waiting", "some")),
        )
    until = protocol.mono() + DISPATCHER_TIMEOUT_S
    while is_alive(record) and protocol.mono() < until:
        time.sleep(0.01)
    raise NoDispatcher("the older dispatcher has ended")


def _check_locks(queue: str) -> None:
    """Raise an error for a queue folder on a file system without locks, before a dispatcher fails on it."""
    import fcntl

    handle = os.open(os.path.join(queue, "lock-probe"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
            raise AgentError(
                "StateError",
                "The queue folder %s is on a file system without locks."
                " Set AMLTRAIN_QUEUE to a folder on a local disk." % queue,
            ) from error
    finally:
        os.close(handle)


def command(queue: str, home: str, agent: Optional[str]) -> List[str]:
    """Return the command that starts a dispatcher."""
    return [sys.executable, "-I", "-S", agent or zipapp(home), "dispatch", queue, home]


def zipapp(home: str) -> str:
    """Return the zipapp of this process, else the newest one in the state root."""
    own = os.path.abspath(__file__)
    for _ in __name__.split("."):
        own = os.path.dirname(own)
    if os.path.isfile(own):
        return own
    folder = os.path.join(home, "agent")
    try:
        archives = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".pyz")]
        return max(archives, key=os.path.getmtime)
    except (OSError, ValueError) as error:
        raise AgentError(
            "StateError",
            "Cannot start the agent: its file is missing in %s. Restart the kernel and submit again." % folder,
        ) from error


def spawn(queue: str, home: str, agent: Optional[str]) -> None:
    """Start a detached dispatcher and return when it replies.

    Two concurrent starts are safe: the lock lets one serve, and the other one ends.

    Raises
    ------
    AgentError
        ``StateError`` when no dispatcher can be started.
    Unanswered
        It was started but does not reply.
    """
    open_queue(queue)
    resume(read_json(os.path.join(queue, LOCK), "Queue folder"))  # it may have been stopped before it listened
    _check_locks(queue)
    log = os.open(os.path.join(queue, LOG_FILE), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        started = subprocess.Popen(
            [*machine.scope_prefix(), *command(queue, home, agent)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=env_filter.for_dispatcher(os.environ),
            start_new_session=True,
        )
    except OSError as error:
        raise AgentError("StateError", "Cannot start the agent: %s" % error) from error
    finally:
        os.close(log)
    # The first process returns when its grandchild listens.
    until = protocol.mono() + DISPATCHER_TIMEOUT_S
    try:
        started.wait(DISPATCHER_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise _not_running_error(queue, "it did not start within %g s" % DISPATCHER_TIMEOUT_S) from None
    if started.returncode not in (0, -9):
        raise _not_running_error(queue, "it ended with code %d" % started.returncode)
    pause = 0.001
    while protocol.mono() < until:
        try:
            exchange(queue, {"op": "ping"}, SilenceWatch(queue), max(PING_TIMEOUT_S, until - protocol.mono()))
            return
        except NoDispatcher:
            if not running(queue):
                return  # it died immediately; the caller counts the tries
        time.sleep(pause)
        pause = min(pause * 2, 0.05)


def _not_running_error(queue: str, reason: str) -> AgentError:
    try:
        with open(os.path.join(queue, LOG_FILE), "rb") as file:
            last = file.read()[-400:].decode("utf-8", "replace").strip().splitlines()[-1:]
    except OSError:
        last = []
    return AgentError(
        "StateError",
        "The agent is not running: %s%s. See %s"
        % (reason, " (%s)" % last[0] if last else "", os.path.join(queue, LOG_FILE)),
    )
