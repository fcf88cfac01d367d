"""Process that connects a node of a run with the run's other nodes, from the submit to the end.

That of node 0 listens; those of the other nodes connect to it, prove that they know the token of the run, and send
their status every two seconds. The supervisor of the node is connected by a socket in the run folder. The token is in
the memory of these processes only.
"""

from __future__ import annotations

import hmac
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
import traceback
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from .. import protocol
from ..json_dir import WAITING, Address, open_queue
from ..process_setup import redirect_stdio
from ..processes import identity, is_alive
from ..protocol import (
    JOB,
    LOST,
    QUEUED,
    TERMINAL,
    AgentError,
    read_json,
    read_state,
    run_folder,
    valid_run_id,
    write_json,
)
from . import gang
from .gang import ENDED, GATE, MAX_NODES, SILENCE_S, Gang

Json = Dict[str, Any]

#: Files with a random name: of a queue, which gives the order in which runs take slots, and of a state root.
_QUEUE_ID, _HOME_ID = "queue-id", "home-id"
_BEAT_S, _CHECK_S = 2.0, 1.0
#: Seconds between tries to connect to node 0, which may get the run later.
_RETRY_S = 0.1
#: Seconds for: a connection, a proof, the submit after the start of this process, the readers of the end.
_CONNECT_TIMEOUT_S, _PROOF_TIMEOUT_S, _SUBMIT_TIMEOUT_S, _FAREWELL_S = 3.0, 10.0, 120.0, 10.0
#: Seconds for a supervisor to connect, and for the guardian to write the end of one that was killed.
_SUPERVISOR_TIMEOUT_S = 20.0
#: Bytes of a message; of one from a program that has proven nothing.
_MAX_BYTES, _MAX_HELLO_BYTES = 1 << 20, 4096
_PROBE = -1


# ---- calls of the kernel


def serve(context: Any, payload: Mapping[str, Any]) -> Json:
    """Answer a call of a kernel.

    ``queue``: names of the queue of this machine and of its state root; before the submit ``open`` (this node),
    ``reach`` (node 0 from here), ``close`` (this node again).
    """
    verb = payload.get("verb")
    if verb == "open" and valid_run_id(payload.get("run")):
        return _open(context, payload)
    if verb == "queue":
        return _names(open_queue(context.queue), context.home)
    if verb == "reach":
        found = []
        for address in payload["addresses"]:
            try:
                connect(address, payload["port"], payload["token"], _PROBE).close()
                found.append({"address": address, "error": ""})
            except OSError as error:
                found.append({"address": address, "error": error.strerror or str(error) or "no answer"})
        return {"addresses": found}
    if verb == "close":
        if is_alive(payload.get("connector")):
            os.kill(payload["connector"]["pid"], signal.SIGTERM)
        return {}
    raise AgentError("ProtocolError", "The agent does not support the call nodes %r." % (verb,))


def _open(context: Any, payload: Mapping[str, Any]) -> Json:
    """Start the process of this node; return its port, the addresses of this machine, and its names."""
    from .. import machine
    from ..queue.dispatcher_client import zipapp
    from ..supervise import env_filter

    queue = open_queue(context.queue)
    command = [sys.executable, "-I", "-S", context.agent or zipapp(context.home), "node", context.home, queue]
    given = {"run": payload["run"], "node": payload["node"], "token": payload["token"]}
    started = subprocess.Popen(
        [*machine.scope_prefix(), *command],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/",
        env=env_filter.for_dispatcher(os.environ), start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = started.communicate(json.dumps(given).encode() + b"\n", timeout=60.0)
        facts: Json = json.loads(output.decode())
    except (subprocess.TimeoutExpired, ValueError):
        started.kill()
        raise AgentError("StateError", "The agent cannot start the process that connects the nodes.") from None
    return dict(facts, addresses=_addresses(), **_names(queue, context.home))


def _names(queue: str, home: str) -> Json:
    protocol.private_folder(home)
    return {"queue": _name_of(queue, _QUEUE_ID), "home": _name_of(home, _HOME_ID)}


def _name_of(folder: str, file_name: str) -> str:
    """Return the random name of a folder, which is created once; other machines may have the same folder."""
    path = os.path.join(folder, file_name)
    part = "%s.%s" % (path, os.urandom(8).hex())
    if not os.path.exists(path):
        protocol.write_text(part, os.urandom(16).hex())
        try:
            os.link(part, path)
        except OSError:  # another process was first
            pass
        os.unlink(part)
    with open(path) as file:
        return file.read()


def _addresses() -> List[str]:
    """Return addresses at which other machines may reach this one, the best first."""
    found = [*os.environ.get("SSH_CONNECTION", "").split()[2:3]]  # at which this login has reached it
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))  # sends nothing: asks for the address of the default route
            found.append(probe.getsockname()[0])
    except OSError:  # no route
        pass
    try:
        found += [str(row[4][0]) for row in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)]
    except OSError:  # its own name is not known
        pass
    own = [address for address in dict.fromkeys(found) if not address.startswith("127.")]
    return [*own, *(address for address in dict.fromkeys(found) if address not in own)]


# ---- messages


class NodeChannel:
    """JSON lines over a socket, without waiting."""

    def __init__(self, connection: socket.socket, max_bytes: int = _MAX_BYTES) -> None:
        connection.setblocking(False)
        self.socket: Optional[socket.socket] = connection
        self.since = protocol.mono()
        self.max_bytes = max_bytes  #: of a received message
        self._partial, self._pending = b"", b""
        self._selector: Optional[selectors.BaseSelector] = None

    def watch(self, selector: selectors.BaseSelector, callback: Callable[[], None]) -> None:
        """Call `callback` when there is something to receive, until the channel is closed: also by an error of it."""
        if self.socket is None:
            return

        def call() -> None:
            try:
                callback()
            except Exception:  # what one peer sends must not end the run
                traceback.print_exc()
                self.close()

        if self._selector is not None:
            selector.modify(self.socket, selectors.EVENT_READ, call)
        else:
            selector.register(self.socket, selectors.EVENT_READ, call)
        self._selector = selector

    @property
    def is_open(self) -> bool:
        """Whether the connection exists."""
        return self.socket is not None

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; a part that does not fit now follows with the next one."""
        self._pending += json.dumps(message).encode() + b"\n"
        try:
            while self.socket is not None and self._pending:
                self._pending = self._pending[self.socket.send(self._pending) :]
        except BlockingIOError:
            if len(self._pending) > _MAX_BYTES:
                self.close()
        except OSError:
            self.close()

    def receive(self) -> List[Json]:
        """Return the messages that have arrived; at the end of the connection the channel is closed."""
        data = b""
        try:
            while self.socket is not None and len(data) <= self.max_bytes:  # the rest follows: others are waiting
                piece = self.socket.recv(1 << 16)
                if not piece:
                    self.close()
                data += piece
        except BlockingIOError:
            pass
        except OSError:
            self.close()
        *lines, self._partial = (self._partial + data).split(b"\n")
        try:
            if any(len(line) > self.max_bytes for line in (*lines, self._partial)):
                raise ValueError
            messages = [json.loads(line.decode()) for line in lines if line]
            return [message for message in messages if isinstance(message, dict)]
        except (ValueError, RecursionError):  # it is no agent
            self.close()
            return []

    def close(self) -> None:
        """Close the connection."""
        if self.socket is not None:
            if self._selector is not None:
                self._selector.unregister(self.socket)
            self.socket.close()
            self.socket = None


def _proof(token: str, nonce: str, who: str) -> str:
    return hmac.new(token.encode(), ("%s:%s" % (who, nonce)).encode(errors="replace"), "sha256").hexdigest()


def _is_proven(message: Json, token: str, nonce: str, who: str) -> bool:
    """Whether the sender of a message, which may be anybody, knows the token."""
    proof = message.get("proof")
    return isinstance(proof, str) and hmac.compare_digest(
        proof.encode(errors="replace"), _proof(token, nonce, who).encode()
    )


def connect(address: str, port: int, token: str, node: int) -> socket.socket:
    """Connect to node 0; both ends prove that they know the token.

    Raises
    ------
    OSError
        There is no connection, or something else listens there.
    """
    connection = socket.create_connection((address, port), _CONNECT_TIMEOUT_S)
    try:
        connection.settimeout(_CONNECT_TIMEOUT_S)
        nonce = os.urandom(16).hex()
        hello = _line(connection)
        proof = _proof(token, str(hello.get("nonce")), "node")
        connection.sendall(json.dumps({"node": node, "proof": proof, "nonce": nonce}).encode() + b"\n")
        if not _is_proven(_line(connection), token, nonce, "hub"):
            raise OSError("another program answers there")
        return connection
    except BaseException:
        connection.close()
        raise


def _line(connection: socket.socket) -> Json:
    data, until = b"", protocol.mono() + _CONNECT_TIMEOUT_S
    while not data.endswith(b"\n") and len(data) < _MAX_HELLO_BYTES:
        piece = connection.recv(1)  # no byte of the next message
        if not piece or protocol.mono() > until:
            raise OSError("the connection was closed" if not piece else "no answer")
        data += piece
    try:
        value = json.loads(data.decode())
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise OSError("another program answers there")
    return value


# ---- the process


class Connector:
    """The process of one node.

    Parameters
    ----------
    listener
        Where the other nodes connect; ``None`` on all nodes but the first.
    """

    def __init__(
        self, home: str, queue: str, run: str, node: int, token: str, listener: Optional[socket.socket]
    ) -> None:
        self.home, self.queue, self.run, self.node = home, queue, run, node
        self._token, self._listener = token, listener
        self.folder = run_folder(home, run)
        self._selector = selectors.DefaultSelector()
        self._status: Json = {}  #: of this node
        self._orders: Json = {}  #: for this node
        self._own_end: Json = {}  #: orders that those of node 0 do not replace: this node has given it up
        self._gate: Json = {}
        self._supervisor: Optional[NodeChannel] = None
        self._supervised_until: Optional[float] = None  #: until when a supervisor has to connect
        self._gang: Optional[Gang] = None
        self._channels: Dict[int, NodeChannel] = {}  #: to the other nodes, on node 0
        self._unproven: List[NodeChannel] = []
        self._sent: Dict[int, Json] = {}  #: last orders of each node
        self._hub: Optional[NodeChannel] = None  #: to node 0, on the others
        self._heard = self._beat_at = self._check_at = self._connect_at = protocol.mono()
        self._over_since: Optional[float] = None
        self._nodes: Json = {}
        self._is_final = False  #: the state of the run is written

    def serve(self) -> None:
        """Connect the node until its part of the run is over."""
        job = self._submitted()
        if job is None:
            return
        self._nodes = job["nodes"]
        now = protocol.mono()
        self._heard = self._connect_at = now
        if self.node == 0:
            self._gang = Gang(
                self._nodes["names"], self._nodes["order"], self._nodes["address"], now, _restarts_of(job)
            )
            assert self._listener is not None
            self._watch(self._listener, self._accept_node)
        self._local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with Address(self.folder) as path:
            self._local.bind(path)
        self._local.listen(4)
        self._watch(self._local, self._accept_supervisor)
        self._status = {"phase": gang.QUEUED}
        self._write_gate()
        while not self._is_done():
            for key, _ in self._selector.select(_CHECK_S / 2 if self._orders else _RETRY_S):
                key.data()
            self._step()
        try:
            os.unlink(Address(self.folder).path)
        except OSError:  # the run was deleted
            pass

    def _submitted(self) -> Optional[Json]:
        """Wait for the run; node 0 lets the others try its address meanwhile."""
        if self._listener is not None:
            self._watch(self._listener, self._accept_node)
        until = protocol.mono() + _SUBMIT_TIMEOUT_S
        try:
            while protocol.mono() < until:
                for key, _ in self._selector.select(0.1):
                    key.data()
                try:
                    job = read_json(os.path.join(self.folder, JOB))
                except (AgentError, OSError):
                    job = None
                if job is not None and job.get("nodes"):
                    return job
        finally:
            if self._listener is not None:
                self._selector.unregister(self._listener)
        return None

    def _watch(self, connection: Any, callback: Callable[[], None]) -> None:
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ, callback)

    # -- connections

    def _accept_node(self) -> None:
        """Ask a program that connects for its proof."""
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        self._unproven = [one for one in self._unproven if one.is_open]
        for one in self._unproven:
            if protocol.mono() - one.since > _PROOF_TIMEOUT_S:
                one.close()
        channel, nonce = NodeChannel(connection, _MAX_HELLO_BYTES), os.urandom(16).hex()
        if len(self._unproven) > MAX_NODES:
            channel.close()
            return
        self._unproven.append(channel)
        channel.watch(self._selector, lambda: self._greet(channel, nonce))
        channel.send({"nonce": nonce})

    def _greet(self, channel: NodeChannel, nonce: str) -> None:
        messages = channel.receive()
        if not messages:
            return
        self._unproven.remove(channel)
        hello = messages[0]
        node = hello.get("node")
        if not _is_proven(hello, self._token, nonce, "node"):
            channel.close()
            return
        channel.max_bytes = _MAX_BYTES
        channel.send({"proof": _proof(self._token, str(hello.get("nonce")), "hub")})
        if self._gang is None or type(node) is not int or not 0 < node < len(self._gang.nodes):
            channel.close()  # a try of the address
            return
        if node in self._channels:
            self._channels[node].close()
        self._channels[node] = channel
        channel.watch(self._selector, lambda: self._hear_node(node, channel))
        self._take(node, messages[1:])
        self._beat_at = 0.0

    def _hear_node(self, node: int, channel: NodeChannel) -> None:
        self._take(node, channel.receive())

    def _take(self, node: int, messages: Sequence[Json]) -> None:
        assert self._gang is not None
        for status in messages:
            self._gang.receive(node, status, protocol.mono(), time.time())

    def _connect(self) -> None:
        """Connect to node 0, again after a loss."""
        now = protocol.mono()
        if (self._hub is not None and self._hub.is_open) or now < self._connect_at:
            return
        self._connect_at = now + (_CHECK_S if self._orders else _RETRY_S)
        try:
            connection = connect(self._nodes["address"], self._nodes["port"], self._token, self.node)
        except OSError:
            return
        if not self._orders:
            self._heard = now  # node 0 may get the run later
        self._status["address"] = connection.getsockname()[0]
        hub = self._hub = NodeChannel(connection)
        hub.watch(self._selector, lambda: self._hear_hub(hub))
        self._beat_at = 0.0

    def _hear_hub(self, hub: NodeChannel) -> None:
        messages = hub.receive()
        if messages:
            self._heard = protocol.mono()
            self._order(messages[-1])

    def _accept_supervisor(self) -> None:
        try:
            connection, _ = self._local.accept()
        except OSError:
            return
        channel = self._supervisor = NodeChannel(connection)
        self._supervised_until = None
        channel.watch(self._selector, lambda: self._hear_supervisor(channel))
        channel.send(self._orders)

    def _hear_supervisor(self, channel: NodeChannel) -> None:
        for message in channel.receive():
            self._report(**message)

    def _find_lost_supervisor(self) -> None:
        """Forget a supervisor whose connection has ended, be it while it was sent to."""
        if self._supervisor is None or self._supervisor.is_open:
            return
        self._supervisor = None
        if self._status.get("phase") != ENDED:
            self._report(ending=_lost("its supervisor was killed"))
            self._supervised_until = protocol.mono() + _SUPERVISOR_TIMEOUT_S

    # -- status and orders

    def _report(self, **changes: Any) -> None:
        """Change the status of this node."""
        attempt = self._orders.get("attempt", 1)
        if self._supervisor is None:
            if self._status.get("phase") == ENDED and self._status.get("attempt", 1) >= attempt:
                return
            changes.setdefault("attempt", attempt)
        self._status.update(changes)
        self._beat_at = 0.0

    def _order(self, orders: Json) -> None:
        """Take the orders for this node."""
        orders = {**orders, **self._own_end}
        if orders == self._orders:
            return
        self._orders = orders
        if self._supervisor is not None:
            self._supervisor.send(orders)
        self._write_gate()

    def _write_gate(self) -> None:
        """Tell the dispatcher whether the run may take slots, or how it has ended."""
        me = identity(os.getpid()) or {}
        gate = {
            **me, "schema": 1, "open": bool(self._orders.get("open")) and not self._orders.get("end"),
            "waiting": self._orders.get("waiting") or "", "end": self._orders.get("verdict"),
        }  # fmt: skip
        if gate == self._gate:
            return
        try:
            write_json(os.path.join(self.folder, GATE), gate)
        except OSError:  # a full disk, or a deleted run: tried again
            return
        is_news = gate["open"] != self._gate.get("open") or gate["end"] != self._gate.get("end")
        self._gate = gate
        if is_news and self._supervisor is None:
            self._wake()

    def _wake(self) -> None:
        from ..queue.dispatcher_client import NoDispatcher, Unanswered, exchange

        try:
            exchange(self.queue, {"op": "wake", "home": self.home}, timeout_s=_CHECK_S)
        except (NoDispatcher, Unanswered):  # it looks every second
            pass

    def _step(self) -> None:
        now = protocol.mono()
        self._find_lost_supervisor()
        if self._supervisor is None and now >= self._check_at:
            self._check_at = now + _CHECK_S
            self._read_state(now)
        if self._gang is not None:
            self._lead(now)
            return
        self._connect()
        if self._hub is not None and self._hub.is_open and now >= self._beat_at:
            self._beat_at = now + _BEAT_S
            self._hub.send(dict(self._status, now=time.time()))
        if now - self._heard > SILENCE_S and not self._orders.get("verdict"):
            first = self._nodes["names"][0]
            lost = _lost("lost on node 0 (%s): no sign of life for %d s" % (first, SILENCE_S))
            self._own_end = {"end": lost["detail"], "verdict": lost}
            self._report(ending=lost)  # for a node 0 that goes on
            self._order(self._orders)

    def _lead(self, now: float) -> None:
        """Decide for all nodes, and send them their orders."""
        gang = self._gang
        assert gang is not None
        gang.receive(0, self._status, now, time.time())
        gang.update(now)
        is_due = now >= self._beat_at
        if is_due:
            self._beat_at = now + _BEAT_S
        self._channels = {node: channel for node, channel in self._channels.items() if channel.is_open}
        before, self._sent = self._sent, {}
        for node, channel in self._channels.items():
            orders = self._sent[node] = gang.orders(node)
            if is_due or orders != before.get(node):
                channel.send(orders)
        self._order(gang.orders(0))

    def _read_state(self, now: float) -> None:
        """Find out the status of a node without a supervisor."""
        try:
            state = read_state(self.folder) or {}
        except (AgentError, OSError):
            state = {}
        name = state.get("state")
        if name in TERMINAL:
            self._is_final = True
            self._report(phase=ENDED, outcome=_outcome(state))
        elif name == QUEUED and self._supervised_until is None:
            if self._orders.get("end"):
                self._report(phase=ENDED, outcome={"state": "canceled", "reason": "canceled", "detail": "not started"})
            else:
                self._show_waiting()
        elif not os.path.isdir(self.folder):
            self._report(phase=ENDED, outcome=_lost("its run folder was removed"))
        elif self._supervised_until is None:
            self._supervised_until = now + _SUPERVISOR_TIMEOUT_S
        elif now > self._supervised_until:
            self._report(phase=ENDED, outcome=_lost("its supervisor was killed"))
        self._write_gate()

    def _show_waiting(self) -> None:
        """Report what the node waits for in its queue."""
        try:
            shown = read_json(os.path.join(self.queue, WAITING), "Queue folder") or {}
        except (AgentError, OSError):
            shown = {}
        detail = shown.get("waiting", {}).get(self.home, {}).get(self.run, "") if self._gate.get("open") else ""
        if self._status.get("detail") != detail:
            self._report(detail=detail)

    def _is_done(self) -> bool:
        """Whether everybody here knows how the run has ended."""
        now = protocol.mono()
        if not self._orders.get("verdict"):
            return False
        if self._over_since is None:
            self._over_since = now
        if now - self._over_since > _FAREWELL_S and self._supervisor is None:
            return True
        return self._supervisor is None and not self._channels and self._is_final


def _restarts_of(job: Json) -> Callable[[Json, int], bool]:
    """Return the function that decides whether the processes of a job start again."""
    from ..supervise import attempts
    from ..supervise.outcome import Outcome

    def may_restart(end: Json, attempt: int) -> bool:
        state, reason, detail = (str(end.get(name) or "") for name in ("state", "reason", "detail"))
        outcome = Outcome(state, reason, detail, end.get("exit_code"), end.get("signal"))
        return attempts.may_restart(job, {"attempt": attempt}, outcome)

    return may_restart


def _lost(detail: str) -> Json:
    return {"state": LOST, "reason": LOST, "detail": detail}


def _outcome(state: Mapping[str, Any]) -> Json:
    return {key: state.get(key) for key in ("state", "reason", "detail", "exit_code", "signal", "failed_rank")}


def detach(home: str, queue: str) -> int:
    """Body of ``agent.pyz node``: print one JSON line with port and process; return when the process serves."""
    given: Json = json.loads(sys.stdin.buffer.readline().decode())
    listener = None
    if given["node"] == 0:
        if socket.has_dualstack_ipv6():
            listener = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            listener = socket.create_server(("", 0))
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        print(os.read(reader, 4096).decode(), flush=True)
        return 0
    os.close(reader)
    code = 70
    try:
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        os.umask(0o077)
        connector = Connector(home, queue, given["run"], given["node"], given["token"], listener)
        facts = {"port": listener.getsockname()[1] if listener else 0, "connector": identity(os.getpid())}
        os.write(writer, json.dumps(facts).encode())
        os.close(writer)
        logs = os.path.join(home, "logs")
        os.makedirs(logs, mode=0o700, exist_ok=True)
        redirect_stdio(os.path.join(logs, "nodes.txt"))
        connector.serve()
        code = 0
    except BaseException:  # the body of a process: every error goes to its log
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(code)
