"""A line to the dispatcher, which is started when there is none."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import time
from typing import Any, Dict, List, NamedTuple, Optional

from . import clock, inherited, place
from .client import LONGEST_REQUEST
from .processes import alive
from .protocol import PROTOCOL, AgentError, read_json
from .shelf import DIARY, LOCK, Address, open_queue

#: Seconds that a dispatcher gets to come up, and to answer.
PATIENCE = 30.0
#: Tries of a call whose dispatcher dies over it.
TRIES = 3


class NoDispatcher(Exception):
    """Nobody listens, or the listener died before it answered."""


class Here(NamedTuple):
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


def exchange(queue: str, request: Dict[str, Any]) -> Dict[str, Any]:
    """Send one request to a live dispatcher and return its answer.

    Raises
    ------
    NoDispatcher
        There is none, or it died over the request.
    AgentError
        ``SubmitError`` for a request longer than a dispatcher reads.
    """
    line = json.dumps(request).encode() + b"\n"
    if len(line) > LONGEST_REQUEST:
        raise AgentError(
            "SubmitError",
            "Cannot submit the job: the request has %.1f MiB and the agent takes %d MiB (parameters, arguments and"
            " environment together). Put large data into a file that the script reads; files that travel with the"
            " job are named by --source." % (len(line) / (1 << 20), LONGEST_REQUEST >> 20),
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(PATIENCE)
        try:
            with Address(queue) as path:
                connection.connect(path)
            connection.sendall(line)
            data = b""
            while not data.endswith(b"\n"):
                piece = connection.recv(1 << 16)
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
    for _ in range(TRIES):
        try:
            if op == "submit":
                _same_version(queue)
            return exchange(queue, request)
        except NoDispatcher:
            spawn(queue, home, agent)
    try:
        return exchange(queue, request)
    except NoDispatcher as error:
        raise _not_up(queue, str(error)) from error


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
    answer = exchange(queue, {"op": "retire", "protocol": PROTOCOL})
    if not answer.get("retired"):
        raise AgentError(
            "ProtocolError",
            "An older agent (protocol %s) still has %s waiting jobs. Wait until they have started, or cancel them."
            % (number, answer.get("waiting", "some")),
        )
    until = clock.mono() + PATIENCE
    while alive(record) and clock.mono() < until:
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
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
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
    """
    open_queue(queue)
    _check_locks(queue)
    diary = os.open(os.path.join(queue, DIARY), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        started = subprocess.Popen(
            [*place.scope_prefix(), *command(queue, home, agent)],
            stdin=subprocess.DEVNULL,
            stdout=diary,
            stderr=diary,
            cwd="/",
            env=inherited.for_dispatcher(os.environ),
            start_new_session=True,
        )
    except OSError as error:
        raise AgentError("StateError", "Cannot start the agent: %s" % error) from error
    finally:
        os.close(diary)
    # The first process returns when its grandchild listens.
    until = clock.mono() + PATIENCE
    try:
        started.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        raise _not_up(queue, "it did not come up within %g s" % PATIENCE) from None
    if started.returncode not in (0, -9):
        raise _not_up(queue, "it ended with code %d" % started.returncode)
    pause = 0.001
    while clock.mono() < until:
        try:
            exchange(queue, {"op": "ping"})
            return
        except NoDispatcher:
            if not running(queue):
                return  # it died at once; the caller counts its tries
        time.sleep(pause)
        pause = min(pause * 2, 0.05)


def _not_up(queue: str, why: str) -> AgentError:
    try:
        with open(os.path.join(queue, DIARY), "rb") as file:
            last = file.read()[-400:].decode("utf-8", "replace").strip().splitlines()[-1:]
    except OSError:
        last = []
    return AgentError(
        "StateError",
        "The agent does not run: %s%s. See %s" % (why, " (%s)" % last[0] if last else "", os.path.join(queue, DIARY)),
    )
