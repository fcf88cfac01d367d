"""Connection to the dispatcher, which is started when there is none."""

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
from ..processes import alive, look, resume
from ..protocol import PROTOCOL, QUEUED, AgentError, read_json, run_folder
from ..supervise import env_filter
from . import claims, submission

#: A request with a large environment; more is a mistake.
MAX_REQUEST_BYTES = 16 << 20

#: Seconds that a client gets to send its line.
REQUEST_TIMEOUT_S = 20.0


class Client:
    """A connection with its request so far."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.data = bytearray()
        self.until = protocol.mono() + REQUEST_TIMEOUT_S

    def answer(self, value: Dict[str, Any]) -> None:
        """Send the answer and close."""
        try:
            self.connection.settimeout(2.0)
            self.connection.sendall(json.dumps(value).encode() + b"\n")
        except OSError:
            pass
        self.connection.close()


#: Seconds that a dispatcher gets to come up, and to answer.
DISPATCHER_TIMEOUT_S = 30.0

#: Tries of a call whose dispatcher dies over it.
MAX_TRIES = 3

#: Seconds that a dispatcher which shows signs of life gets for an answer.
ANSWER_TIMEOUT_S = 60.0

#: Seconds between looks at a dispatcher that has not answered yet.
SILENCE_INTERVAL_S = 1.0

#: Seconds without an answer, any work and any reply to a ping after which a dispatcher hangs.
HANG_TIMEOUT_S = 6.0

#: Seconds that a ping may take before its silence counts.
PING_TIMEOUT_S = 1.5

T = TypeVar("T")


class NoDispatcher(Exception):
    """Nobody listens, or the listener died before it answered."""


class Unanswered(Exception):
    """A live dispatcher has not answered in time. The request may still be served."""


class DispatcherHangs(Unanswered):
    """The dispatcher does nothing at all.

    Attributes
    ----------
    record
        Its identity.
    """

    def __init__(self, record: Mapping[str, Any]) -> None:
        super().__init__("process %s hangs" % record.get("pid"))
        self.record = record


class SilenceWatch:
    """Looks at a dispatcher while it does not answer; continues one that was stopped.

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
        """Raise `DispatcherHangs` when waiting is of no use."""
        try:
            record = read_json(os.path.join(self._queue, LOCK), "Queue folder")
        except OSError:
            return
        if not record or not alive(record):
            return
        row, now = look(record["pid"]), protocol.mono()
        resume(record)
        # One that starves on a busy machine is runnable; one that waits for its disk can only be waited for.
        if row is None or row.state in "RD" or row.own_time != self._spent:
            self._spent, self._idle_since = row.own_time if row else -1, now
        elif now - self._idle_since >= HANG_TIMEOUT_S and not _answers(self._queue):
            raise DispatcherHangs(record)


class AgentContext(NamedTuple):
    """Whom a call is for: state root, queue folder, and the zipapp that serves them."""

    home: str
    queue: str
    agent: Optional[str]

    def ask(self, op: str, payload: Dict[str, Any]) -> Dict[str, Any]:
        """See `ask`."""
        return ask(self.queue, self.home, self.agent, op, payload)


def running(queue: str) -> bool:
    """Whether the dispatcher of `queue` lives; touches no lock."""
    try:
        return alive(read_json(os.path.join(queue, LOCK), "Queue folder"))
    except OSError:
        return False


def _answers(queue: str) -> bool:
    try:
        exchange(queue, {"op": "ping"}, timeout_s=PING_TIMEOUT_S)
    except Unanswered:
        return False
    except NoDispatcher:  # the call itself notices
        pass
    return True


def exchange(
    queue: str,
    request: Dict[str, Any],
    on_silence: Optional[Callable[[], None]] = None,
    timeout_s: Optional[float] = None,
) -> Dict[str, Any]:
    """Send one request to a live dispatcher and return its answer.

    Parameters
    ----------
    on_silence
        Called about once a second while there is no answer; what it raises ends the wait.
    timeout_s
        Seconds to wait for the answer; ``None`` takes `ANSWER_TIMEOUT_S`.

    Raises
    ------
    NoDispatcher
        There is none, or it died over the request.
    Unanswered
        It did not answer in time.
    AgentError
        ``SubmitError`` for a request longer than a dispatcher reads.
    """
    line = json.dumps(request).encode() + b"\n"
    if len(line) > MAX_REQUEST_BYTES:
        raise AgentError(
            "SubmitError",
            "Cannot submit the job: the request has %.1f MiB and the agent takes %d MiB (parameters, arguments and"
            " environment together). Put large data into a file that the script reads; files that travel with the"
            " job are named by --source." % (len(line) / (1 << 20), MAX_REQUEST_BYTES >> 20),
        )
    limit = ANSWER_TIMEOUT_S if timeout_s is None else timeout_s
    until = protocol.mono() + limit

    def repeat(step: Callable[[], T]) -> T:
        while True:
            try:
                return step()
            except BlockingIOError:  # its backlog is full
                time.sleep(0.05)
            except socket.timeout:
                pass
            if protocol.mono() >= until:
                raise Unanswered("no answer within %g s" % limit)
            if on_silence is not None:
                on_silence()

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(min(SILENCE_INTERVAL_S, limit))
        try:
            with Address(queue) as path:
                repeat(lambda: connection.connect(path))
            rest = memoryview(line)
            while rest:
                rest = rest[repeat(partial(connection.send, rest)) :]
            data = b""
            while not data.endswith(b"\n"):
                piece = repeat(lambda: connection.recv(1 << 16))
                if not piece:
                    raise NoDispatcher("it died over the call")
                data += piece
        except OSError as error:
            raise NoDispatcher(str(error)) from error
    answer = json.loads(data.decode())
    return answer if isinstance(answer, dict) else {}


def ask(queue: str, home: str, agent: Optional[str], op: str, payload: Dict[str, Any]) -> Dict[str, Any]:
    """`exchange`, with a dispatcher started when there is none; safe to repeat.

    Raises
    ------
    AgentError
        ``StateError`` when no dispatcher comes up, ``ProtocolError`` for one of another version.
    """
    request = {"op": op, "payload": payload, "home": home, "protocol": PROTOCOL}
    missing = False
    for attempt in range(MAX_TRIES + 1):
        last = attempt == MAX_TRIES
        try:
            if missing:
                spawn(queue, home, agent)
            if op in ("submit", "cancel"):
                _same_version(queue)
            return exchange(queue, request, SilenceWatch(queue))
        except NoDispatcher as error:
            if last:
                raise _not_up(queue, str(error)) from error
            missing = True
        except DispatcherHangs as error:
            if last or not _end_hanging(queue, error.record, payload.get("submission")):
                raise _silent(queue, error) from error
        except Unanswered as error:
            raise _silent(queue, error) from error
    raise AssertionError("the last try returns or raises")


def submit(context: AgentContext, payload: Dict[str, Any]) -> Dict[str, Any]:
    """Hand in a job: the answer, or an error that says what is known.

    Parameters
    ----------
    payload
        See `calls`; its ``submission`` names this call and no other.

    Raises
    ------
    AgentError
        ``SubmitUnsure`` when it cannot be told whether the job was accepted; with any other type it was
        not, and never will be.
    """
    name, run = payload["submission"], payload.get("run", "")
    try:
        answer = context.ask("submit", payload)
    except AgentError as error:
        # The request may lie in the socket of a dispatcher that goes on later.
        try:
            open_queue(context.queue)
            decision = claims.decide(context.queue, name, claims.REVOKED)
        except (AgentError, OSError) as failed:
            if not running(context.queue):  # then nobody has the request
                raise error from None
            why = failed.message if isinstance(failed, AgentError) else "%s" % (failed.strerror or failed)
            raise AgentError(
                "SubmitUnsure",
                "Whether %s was accepted is not known: %s And it cannot be revoked: %s. See %%aml_runs in a"
                " minute before you submit it again." % (run, error.message, why),
            ) from error
        if decision == claims.ACCEPTED:
            submission.show(context.home, run, name)
        elif not submission.accepted(context.home, run, name):  # by an earlier dispatcher, whose claims are gone
            raise
        return {"run": run, "state": QUEUED, "folder": run_folder(context.home, run), "ticket": 0}
    claims.forget(context.queue, name)
    return answer


def _end_hanging(queue: str, record: Mapping[str, Any], own: Optional[str]) -> bool:
    """Kill a dispatcher that hangs where nobody loses by it; whether it is gone.

    Parameters
    ----------
    own
        Submission of the call that noticed: it is sent again to the next dispatcher.
    """
    waiting = NumberedJsonDir(os.path.join(queue, "tickets"))
    others = [ticket for ticket in waiting.load().values() if not own or ticket.get("submission") != own]
    if others or waiting.unreadable:  # their environments and secrets are in its memory only
        return False
    if alive(record):
        try:
            os.kill(record["pid"], signal.SIGKILL)
        except OSError:
            return not alive(record)
    until = protocol.mono() + PING_TIMEOUT_S
    while alive(record):
        if protocol.mono() > until:
            return False
        time.sleep(0.01)
    return True


def _silent(queue: str, error: Unanswered) -> AgentError:
    record = read_json(os.path.join(queue, LOCK), "Queue folder") or {}
    waiting = len(list(NumberedJsonDir(os.path.join(queue, "tickets")).names()))
    cost = ""
    if waiting:
        cost = " %d waiting %s would have to be submitted again." % (waiting, "run" if waiting == 1 else "runs")
    return AgentError(
        "StateError",
        "The agent does not answer: %s. Try again, or end it with: kill -9 %s.%s See %s"
        % (error, record.get("pid", "?"), cost, os.path.join(queue, LOG_FILE)),
    )


def _same_version(queue: str) -> None:
    """Send an older dispatcher home; refuse to talk to a newer one."""
    record = read_json(os.path.join(queue, LOCK), "Queue folder") or {}
    number = record.get("protocol", PROTOCOL)
    if number == PROTOCOL or not alive(record):
        return
    if number > PROTOCOL:
        raise AgentError(
            "ProtocolError",
            "The agent of this machine is newer (protocol %s, this one speaks %d)."
            " Upgrade with: pip install -U jupyter-amltrain" % (number, PROTOCOL),
        )
    answer = exchange(queue, {"op": "retire", "protocol": PROTOCOL}, SilenceWatch(queue))
    if not answer.get("retired"):
        raise AgentError(
            "ProtocolError",
            "An older agent (protocol %s) still has %s waiting jobs. Wait until they have started, or cancel them."
            % (number, answer.get("waiting", "some")),
        )
    until = protocol.mono() + DISPATCHER_TIMEOUT_S
    while alive(record) and protocol.mono() < until:
        time.sleep(0.01)
    raise NoDispatcher("the older one has left")


def _check_locks(queue: str) -> None:
    """Refuse a queue folder on a file system without locks, before a dispatcher fails on it."""
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
    """The command that starts a dispatcher."""
    return [sys.executable, "-I", "-S", agent or zipapp(home), "dispatch", queue, home]


def zipapp(home: str) -> str:
    """The zipapp that we run from, else the newest in the state root."""
    own = os.path.abspath(__file__)
    for _ in __name__.split("."):
        own = os.path.dirname(own)
    if os.path.isfile(own):
        return own
    folder = os.path.join(home, "agent")
    try:
        packed = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".pyz")]
        return max(packed, key=os.path.getmtime)
    except (OSError, ValueError) as error:
        raise AgentError(
            "StateError", "There is no agent in %s to start. Restart the kernel and submit again." % folder
        ) from error


def spawn(queue: str, home: str, agent: Optional[str]) -> None:
    """Start a dispatcher, detached, and return when it answers.

    Two that start at once are no harm: the lock lets one serve, the other leaves.

    Raises
    ------
    AgentError
        ``StateError`` when none comes up.
    Unanswered
        It came up and does not answer.
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
        raise _not_up(queue, "it did not come up within %g s" % DISPATCHER_TIMEOUT_S) from None
    if started.returncode not in (0, -9):
        raise _not_up(queue, "it ended with code %d" % started.returncode)
    pause = 0.001
    while protocol.mono() < until:
        try:
            exchange(queue, {"op": "ping"}, SilenceWatch(queue), max(PING_TIMEOUT_S, until - protocol.mono()))
            return
        except NoDispatcher:
            if not running(queue):
                return  # it died at once; the caller counts its tries
        time.sleep(pause)
        pause = min(pause * 2, 0.05)


def _not_up(queue: str, why: str) -> AgentError:
    try:
        with open(os.path.join(queue, LOG_FILE), "rb") as file:
            last = file.read()[-400:].decode("utf-8", "replace").strip().splitlines()[-1:]
    except OSError:
        last = []
    return AgentError(
        "StateError",
        "The agent does not run: %s%s. See %s"
        % (why, " (%s)" % last[0] if last else "", os.path.join(queue, LOG_FILE)),
    )
