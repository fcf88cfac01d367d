"""Supervisor of one node of a run on several machines: it starts with the others, and ends with them."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
from typing import Any, Dict, List, Optional

from ..distributed import gang, launchers, mpi_daemons
from ..distributed.node_connector import NodeChannel
from ..distributed.ray_cluster import free_ports
from ..json_dir import Address
from ..process_setup import log_line
from ..protocol import CANCELED, COMPLETED, FAILED, LOST, write_json
from .assignment import Assignment
from .outcome import Outcome
from .preparation import enter_preparing
from .process import LaunchFailed
from .queue_host import QueueHost
from .supervisor import Supervisor

Json = Dict[str, Any]

_MAX_DATAGRAM_BYTES = 1 << 17
#: Seconds between looks at what this process waits for.
_LOOK_S = 1.0


class DaemonCommands:
    """Commands by which mpirun on node 0 starts a daemon on each other node; see :mod:`..distributed.mpi_daemons`."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, mpi_daemons.SOCKET)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        with Address(folder, mpi_daemons.SOCKET) as address:
            self._socket.bind(address)
        self.handle = self._socket.fileno()
        self._commands: Json = {}  #: by number of the node, as text

    def close(self) -> None:
        """Remove the socket from the run folder."""
        self._socket.close()
        try:
            os.unlink(self._path)
        except OSError:  # the run was deleted
            pass

    def forget(self) -> None:
        """Drop the commands of an earlier attempt."""
        self.receive()
        self._commands = {}

    def receive(self) -> Json:
        """Return all commands that have arrived so far, by number of the node."""
        while True:
            try:
                message = json.loads(self._socket.recv(_MAX_DATAGRAM_BYTES).decode())
                self._commands[str(message["node"])] = str(message["command"])
            except BlockingIOError:
                return self._commands
            except (ValueError, KeyError, TypeError):  # another program of the job
                continue


class NodeHost(QueueHost):
    """Host of one node; the process that connects the nodes (``distributed/node_connector.py``) has the orders."""

    has_queue = False  # a node that leaves is lost to the others

    def __init__(self, task: Assignment) -> None:
        super().__init__(task)
        self._nodes: Json = task.job["nodes"]
        self._orders: Json = {}
        self._has_told_done = False
        self._attempt = 1
        self._end: Optional[Outcome] = None  #: of the run, on which the nodes have agreed
        self._mpi: Optional[DaemonCommands] = None
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with Address(task.folder) as path:
                connection.connect(path)
            self._connector: Optional[NodeChannel] = NodeChannel(connection)
        except OSError as error:
            log_line(task.folder, "supervisor: no connection to the process that connects the nodes: %s" % error)
            connection.close()
            self._connector = None

    @property
    def _label(self) -> str:
        number = self._nodes["node"]
        return "node %d (%s)" % (number, self._nodes["names"][number])

    def join(self, run: Supervisor) -> None:
        """Report that this node holds its slots, and listen to the orders."""
        run.state["nodes"] = len(self._nodes["names"])
        if self._connector is not None and self._connector.socket is not None:
            self._handle, self._poll = self._connector.socket.fileno(), run.poll
            self._poll.register(self._handle, select.POLLIN)
        self._tell(phase=gang.HOLDING, detail="")

    def _tell(self, **status: Any) -> None:
        if self._connector is not None:
            self._connector.send(dict(status, attempt=self._attempt))
            self._drop_if_closed()

    def _drop_if_closed(self) -> None:
        """Forget the connector if it was killed: the poll would report its closed descriptor again and again."""
        if self._connector is not None and not self._connector.is_open:
            self._connector = None
            self._poll.unregister(self._handle)

    def on_readable(self, handles: List[int]) -> None:
        """Take the newest orders, and commands of mpirun for the other nodes."""
        if self._mpi is not None and self._mpi.handle in handles:
            self._tell(daemons=self._mpi.receive())
        if self._connector is None or self._handle not in handles:
            return
        messages = self._connector.receive()
        if messages:
            self._orders = messages[-1]
        self._drop_if_closed()

    def _lost(self) -> Outcome:
        return Outcome(
            LOST, LOST, "lost on %s: the process that connects the nodes was killed" % self._label, None, None
        )

    # -- start

    def await_nodes(self, run: Supervisor) -> Optional[Outcome]:
        """Wait until all nodes hold their slots and are prepared."""
        ranks = run.task.job.get("ranks") or {}
        node, nodes = self._nodes["node"], len(self._nodes["names"])
        ready: Json = {"processes": launchers.workers_here(ranks, run.task.devices), "servers": 0, "ports": []}
        if ranks["kind"] == launchers.TENSORFLOW:
            ready["servers"] = launchers.servers_here(ranks, node, nodes)
            ready["ports"] = free_ports(ready["processes"] + ready["servers"])
        elif node == 0:
            ready["ports"] = free_ports(1)
        self._tell(phase=gang.READY, detail="", ready=ready)
        self._show_waiting(run, "waits for the other nodes")
        while not self._orders.get("start"):
            if self._connector is None:
                return self._lost()
            if run.should_end():
                return Outcome(CANCELED, CANCELED, "canceled before it started", None, None)
            waiting = self._orders.get("waiting") or "waits for the other nodes"
            if waiting != run.state["detail"]:
                self._show_waiting(run, waiting)
            run.listen(_LOOK_S)
        return None

    def _show_waiting(self, run: Supervisor, detail: str) -> None:
        if self._attempt == 1:
            enter_preparing(run, detail)
            return
        run.state["detail"] = detail  # it is queued until the next attempt starts
        run.save()

    def start(self, run: Supervisor) -> subprocess.Popen[bytes]:
        """Start the processes of this node."""
        config = self._orders["start"]
        node = self._nodes["node"]
        ranks = run.task.job["ranks"]
        ranks["gang"] = dict(config, node=node)
        if ranks["kind"] in (launchers.MPI, launchers.HOROVOD) and node == 0 and self._mpi is None:
            try:
                self._mpi = DaemonCommands(self.task.folder)
            except OSError as error:
                raise LaunchFailed("mpirun cannot start daemons: %s" % (error.strerror or error)) from error
            run.poll.register(self._mpi.handle, select.POLLIN)
        if self._mpi is not None:
            self._mpi.forget()
        return super().start(run)

    def tick(self, run: Supervisor) -> None:
        """Tell the other nodes that the workers of TensorFlow have ended here, and its servers that all have.

        Passes the command of Open MPI's daemon to the process of this node that runs it.
        """
        daemon = os.path.join(self.task.folder, mpi_daemons.COMMAND)
        if self._orders.get("daemon") and not os.path.exists(daemon):
            try:
                write_json(daemon, self._orders["daemon"])
            except OSError as error:  # a full disk: tried again
                log_line(self.task.folder, "supervisor: cannot start the daemon of Open MPI: %s" % error)
        done, end = (os.path.join(self.task.folder, name) for name in (launchers.WORKERS_DONE, launchers.SERVERS_END))
        if not self._has_told_done and os.path.exists(done):
            self._has_told_done = True
            self._tell(workers_done=True)
        if self._has_told_done and self._orders.get("servers_end") and not os.path.exists(end):
            try:
                open(end, "w").close()
            except OSError as error:  # a full disk: tried again
                log_line(self.task.folder, "supervisor: cannot end the parameter servers: %s" % error)

    # -- end

    def cancel_requested(self, run: Supervisor) -> bool:
        """Whether the run is to end here, because of a cancel, of another node, or of a killed connector."""
        return super().cancel_requested(run) or bool(self._orders.get("end")) or self._connector is None

    def request_end(self, run: Supervisor) -> None:
        """End the processes of this node, and tell the others at once."""
        self._tell_ending(run)
        super().request_end(run)

    def _tell_ending(self, run: Supervisor) -> None:
        reason = run.stopped or CANCELED
        if self._orders.get("end"):
            return
        state = CANCELED if reason == CANCELED else FAILED
        self._tell(ending={"state": state, "reason": reason, "detail": "canceled" if state == CANCELED else reason})

    def agree(self, run: Supervisor, outcome: Outcome) -> Outcome:
        """Report the end of this node, and return that of the attempt when all nodes have ended."""
        if self._end is not None:
            return self._end
        report = dict(outcome._asdict())
        failed = launchers.first_failure(self.task.folder) if run.rank is not None else None
        if failed is not None and failed.ended and failed.is_own:
            report.update(failed_rank=failed.rank, failed_at=failed.ended)
            if outcome.state != FAILED:  # its launcher was still ending the others when another node ended the run
                reason = "signal" if failed.signal else "exit"
                report["failure"] = Outcome(FAILED, reason, failed.text, failed.exit_code, failed.signal)._asdict()
        run.state.pop("failed_rank", None)
        self._tell(phase=gang.ENDED, outcome=report)
        if outcome.state == COMPLETED:
            run.state["detail"] = "%s has ended; waits for the other nodes" % self._label
            run.save()
        has_told = bool(run.stopped)
        while not self._orders.get("verdict") and self._orders.get("attempt", 1) <= self._attempt:
            if self._connector is None:
                return self._lost()
            if run.should_end() and not has_told:
                has_told = True
                self._tell_ending(run)
            run.listen(_LOOK_S)
        if self._orders.get("attempt", 1) > self._attempt:
            verdict = self._orders["last"]
            self._enter_next_attempt()
        else:
            verdict = self._orders["verdict"]
            self._end = _outcome_of(verdict)
            self._close_mpi(run)
        if isinstance(verdict.get("failed_rank"), int):
            run.state["failed_rank"] = verdict["failed_rank"]
        return _outcome_of(verdict)

    def _close_mpi(self, run: Supervisor) -> None:
        if self._mpi is not None:
            run.poll.unregister(self._mpi.handle)
            self._mpi.close()
            self._mpi = None

    def _enter_next_attempt(self) -> None:
        """Report that this node keeps its slots for the next attempt, and nothing more of the last one."""
        self._attempt = int(self._orders["attempt"])
        self._has_told_done = False
        nothing = dict.fromkeys(("outcome", "ending", "ready", "workers_done", "daemons"))
        self._tell(phase=gang.HOLDING, detail="", **nothing)


def _outcome_of(verdict: Json) -> Outcome:
    state, reason, detail = (str(verdict.get(name) or "") for name in ("state", "reason", "detail"))
    return Outcome(state, reason, detail, verdict.get("exit_code"), verdict.get("signal"))
