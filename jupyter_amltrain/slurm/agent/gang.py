"""Host of the supervisor on one of several nodes: they start together and end together, by files of the run's folder.

Slurm has assigned all nodes before any of these processes starts, and ends them together. What is left to agree on is
the address of the first node, and how the attempt has ended: each node writes one file for each step, which nobody
changes, so that a shared folder needs no locks.
"""

from __future__ import annotations

import os
import subprocess
from typing import Any, Dict, List, Optional

from jupyter_amltrain.agent import protocol
from jupyter_amltrain.agent.distributed import launchers
from jupyter_amltrain.agent.distributed.ray_cluster import free_ports
from jupyter_amltrain.agent.process_setup import log_line
from jupyter_amltrain.agent.protocol import CANCELED, COMPLETED, FAILED, LOST, AgentError, read_json, write_json
from jupyter_amltrain.agent.supervise import attempts
from jupyter_amltrain.agent.supervise.assignment import Assignment
from jupyter_amltrain.agent.supervise.outcome import Outcome
from jupyter_amltrain.agent.supervise.preparation import enter_preparing
from jupyter_amltrain.agent.supervise.supervisor import Supervisor

from . import allocation as allocations
from . import mpi
from .allocation import Allocation
from .host import SlurmHost

Json = Dict[str, Any]

#: Folder of a run with the files of its nodes, below it one for each start of the job and each attempt.
FOLDER = "nodes"
#: Seconds between two looks at what this process waits for.
_LOOK_S = 0.25
#: Seconds after the end of the first node that it waits for the ends of the others, beyond the grace period.
_END_TIMEOUT_S = 60.0


class GangHost(SlurmHost):
    """Host of one node; the first one decides when all start, and how the run has ended."""

    def __init__(self, task: Assignment, allocation: Allocation, kill_wait_s: float, notice_s: float) -> None:
        super().__init__(task, allocation, kill_wait_s, notice_s)
        self._attempt = attempts.number(task.state)
        self._looked_at = float("-inf")
        self._others_end = False
        self._start: Json = {}
        self._end: Optional[Outcome] = None

    @property
    def _folder(self) -> str:
        return os.path.join(self.task.folder, FOLDER, "%d-%d" % (self.allocation.restarts, self._attempt))

    @property
    def _label(self) -> str:
        return "node %d (%s)" % (self.allocation.node, self.allocation.name)

    def _write(self, name: str, value: Json) -> None:
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            write_json(os.path.join(self._folder, name + ".json"), value)
        except OSError as error:
            log_line(self.task.folder, "supervisor: %s cannot write %s: %s" % (self._label, name, error))

    def _read(self, name: str) -> Optional[Json]:
        try:
            if name + ".json" not in os.listdir(self._folder):  # a listing asks a file server, a missing name may not
                return None
            return read_json(os.path.join(self._folder, name + ".json"))
        except (OSError, AgentError):
            return None

    def _all(self, name: str) -> List[Optional[Json]]:
        return [self._read("%s-%d" % (name, node)) for node in range(self.allocation.nodes)]

    # -- start

    def await_nodes(self, run: Supervisor) -> Optional[Outcome]:
        """Wait until all nodes are prepared; the first one tells the others where to meet."""
        ranks, node, nodes = run.task.job["ranks"], self.allocation.node, self.allocation.nodes
        ready: Json = {
            "address": allocations.address(self.allocation.name),
            "processes": launchers.workers_here(ranks, run.task.devices),
            "servers": 0,
            "ports": free_ports(1),
        }
        if ranks["kind"] == launchers.TENSORFLOW:
            ready["servers"] = launchers.servers_here(ranks, node, nodes)
            ready["ports"] = free_ports(ready["processes"] + ready["servers"])
        self._write("ready-%d" % node, ready)
        while True:
            if run.should_end():
                return Outcome(CANCELED, CANCELED, "canceled before it started", None, None)
            if self.allocation.is_first:
                found = self._all("ready")
                if None not in found:
                    meeting = _meeting([row for row in found if row is not None])
                    if ranks["kind"] in mpi.KINDS:
                        meeting["launcher"] = mpi.launcher(run.task, meeting["processes"])
                    self._write("start", meeting)
                waiting = ", ".join(str(number) for number, row in enumerate(found) if row is None)
                if waiting and self._attempt == 1:
                    text = "waits for node %s of its job" % waiting
                    if run.state["detail"] != text:
                        enter_preparing(run, text)
            start = self._read("start")
            if start is not None:
                self._start = start
                return None
            run.listen(_LOOK_S)
            self.tick(run)

    def start(self, run: Supervisor) -> subprocess.Popen[bytes]:
        """Start the processes of this node."""
        attempt = "%d.%d" % (self.allocation.restarts, self._attempt)
        run.task.job["ranks"]["gang"] = dict(self._start, node=self.allocation.node, attempt=attempt)
        if run.task.job["ranks"]["kind"] in mpi.KINDS:
            self.task.environ.update(mpi.VARIABLES)
        return super().start(run)

    # -- end

    def cancel_requested(self, run: Supervisor) -> bool:
        """Whether the run is to end here: because of a cancel, or because another node has ended without success."""
        return super().cancel_requested(run) or self._others_end

    def tick(self, run: Supervisor) -> None:
        """Look at the other nodes once a second."""
        super().tick(run)
        now = protocol.mono()
        if now - self._looked_at < 1.0 or self._end is not None:
            return
        self._looked_at = now
        ends = [row for number, row in enumerate(self._all("end")) if row and number != self.allocation.node]
        self._others_end = any(row.get("state") != COMPLETED for row in ends)

    def agree(self, run: Supervisor, outcome: Outcome) -> Outcome:
        """Write the end of this node, and return that of the attempt when all nodes have ended."""
        if self._end is not None:
            return self._end
        outcome = super().agree(run, outcome)
        report: Json = dict(outcome._asdict(), at=protocol.wall(), follows=self._others_end)
        failed = launchers.first_failure(self.task.folder) if run.rank is not None else None
        if failed is not None and failed.ended and failed.is_own:
            report.update(failed_rank=failed.rank)
        self._write("end-%d" % self.allocation.node, report)
        if outcome.state == COMPLETED and self.allocation.is_first:
            run.state["detail"] = "%s has ended; waits for the other nodes" % self._label
            run.save()
        verdict = self._decide(run) if self.allocation.is_first else self._await_verdict(run, outcome)
        if isinstance(verdict.get("failed_rank"), int):
            run.state["failed_rank"] = verdict["failed_rank"]
        state, reason, detail = (str(verdict.get(name) or "") for name in ("state", "reason", "detail"))
        found = Outcome(state, reason, detail, verdict.get("exit_code"), verdict.get("signal"))
        if attempts.may_restart(self.task.job, run.state, found) and not super().cancel_requested(run):
            self._attempt += 1
            self._others_end = False
        else:
            self._end = found
        return found

    def _decide(self, run: Supervisor) -> Json:
        """Return the end of the attempt on all nodes, once they have ended; those that do not answer are lost."""
        until = protocol.mono() + self.task.job["grace"] + _END_TIMEOUT_S
        while True:
            found = self._all("end")
            missing = [number for number, row in enumerate(found) if row is None]
            has_failed = any(row and row.get("state") != COMPLETED for row in found)
            late = has_failed and protocol.mono() > until
            if not missing or late or run.should_end():
                break
            run.listen(_LOOK_S)
            super().tick(run)
        verdict = _verdict([row for row in found if row is not None], missing)
        self._write("verdict", verdict)
        return verdict

    def _await_verdict(self, run: Supervisor, outcome: Outcome) -> Json:
        until: Optional[float] = None
        while True:
            verdict = self._read("verdict")
            if verdict is not None:
                return verdict
            if run.end_requested:  # Slurm ends the whole job
                until = until or protocol.mono() + 5.0
                if protocol.mono() > until:
                    return dict(outcome._asdict())
            run.listen(_LOOK_S)


def _meeting(ready: List[Json]) -> Json:
    """Return where the processes of all nodes meet, as the launchers take it."""
    return {
        "address": ready[0]["address"],
        "port": ready[0]["ports"][0],
        "addresses": [row["address"] for row in ready],
        "processes": [row["processes"] for row in ready],
        "servers": [row["servers"] for row in ready],
        "hosts": [["%s:%d" % (row["address"], port) for port in row["ports"]] for row in ready],
    }


def _verdict(ends: List[Json], missing: List[int]) -> Json:
    """Return the end of an attempt: of the node that has failed first by itself, else of any that has not completed."""
    failed = [row for row in ends if row.get("state") == FAILED and not row.get("follows")]
    others = [row for row in ends if row.get("state") != COMPLETED]
    for rows in (failed, others):
        if rows:
            return min(rows, key=lambda row: float(row.get("at") or 0.0))
    if missing:
        detail = "node %s has ended without a result" % ", ".join(map(str, missing))
        return dict(Outcome(LOST, LOST, detail, None, None)._asdict())
    return ends[0]
