"""Host of the supervisor on a node of an allocation: Slurm assigns the devices, and may end or requeue the job."""

from __future__ import annotations

import os
import signal
from typing import FrozenSet, List, Optional

from jupyter_amltrain.agent import protocol
from jupyter_amltrain.agent.process_setup import log_line
from jupyter_amltrain.agent.protocol import ARTIFACTS, CANCELED, FAILED, METRICS, PREEMPTED
from jupyter_amltrain.agent.supervise import attempts
from jupyter_amltrain.agent.supervise.assignment import Assignment
from jupyter_amltrain.agent.supervise.helpers import Helper
from jupyter_amltrain.agent.supervise.outcome import Outcome
from jupyter_amltrain.agent.supervise.process import serve_sink
from jupyter_amltrain.agent.supervise.queue_host import QueueHelpers, QueueHost
from jupyter_amltrain.agent.supervise.supervisor import Supervisor
from jupyter_amltrain.agent.supervise.warm_interpreter import WarmInterpreter
from jupyter_amltrain.agent.telemetry import sampler

from . import allocation as allocations
from .allocation import Allocation
from .runs import ALIVE, ALIVE_INTERVAL_S, OWNER

#: Seconds of Slurm's time between SIGTERM and SIGKILL that are left for the end of the run.
_RESERVE_S = 3.0
#: Seconds for Slurm's signal to reach this process after it has ended the job's.
_SIGNAL_TIMEOUT_S = 1.0
#: What a run says that Slurm has ended.
_DETAILS = {
    allocations.CANCELED: "canceled in Slurm (scancel)",
    allocations.UNKNOWN: "Slurm has sent SIGTERM, and does not say why",
    allocations.PREEMPTED: "pre-empted by a job with a higher priority",
}


def owner_of(folder: str) -> int:
    """Return the number of requeues of the supervisor that a run has now."""
    try:
        with open(os.path.join(folder, OWNER)) as file:
            return int(file.read() or 0)
    except (OSError, ValueError):
        return 0


class SlurmHelpers(QueueHelpers):
    """Helpers of the supervisor of one node: every node is sampled; the first one records metrics and provenance."""

    def __init__(self, task: Assignment, warm: WarmInterpreter, allocation: Allocation) -> None:
        super().__init__(task, warm)
        self._node = allocation.node

    def fork(self, helper: Helper, ready: Optional[int] = None) -> None:
        """Fork a helper."""
        task, sink, node = self.task, self.sink_endpoint, self._node
        if not node or helper is self.provenance:
            if node:
                helper.is_done = True
            else:
                super().fork(helper, ready)
            return
        if helper is self.sink and sink is not None:
            journal = METRICS.replace("-0.", "-node-%d." % node)  # no reader takes it for the run's own
            artifacts = "%s-node-%d" % (ARTIFACTS, node)
            serve = lambda: serve_sink(task, sink, journal, artifacts)  # noqa: E731
            helper.fork(task.folder, serve, [sink.socket.fileno()], holds_sigterm=True)
        elif helper is self.sampler:
            share = sampler.Share(node, task.mark, None)
            keep = [] if ready is None else [ready]
            helper.fork(task.folder, lambda: sampler.run(task.folder, os.getppid(), task.devices, ready, share), keep)


class SlurmHost(QueueHost):
    """Host of the supervisor of a job on one node.

    Parameters
    ----------
    kill_wait_s
        Seconds from Slurm's SIGTERM to its SIGKILL.
    notice_s
        Seconds before the time limit at which Slurm sends SIGTERM.
    """

    def __init__(self, task: Assignment, allocation: Allocation, kill_wait_s: float, notice_s: float) -> None:
        super().__init__(task)
        self.allocation, self._kill_wait_s, self._notice_s = allocation, kill_wait_s, notice_s
        self.helpers = SlurmHelpers(task, self.warm, allocation)
        self.node, self.keeps_state = allocation.node, allocation.is_first
        self.has_queue = False
        self._ended_by = ""  #: why Slurm has sent SIGTERM
        self._alive_at = self._owner_read_at = float("-inf")

    def excluded_pids(self) -> FrozenSet[int]:
        """Return no pids: the other processes of the node are no descendants of this one."""
        return frozenset()

    def on_signal(self, run: Supervisor, number: int) -> None:
        """End the run as Slurm means its signal: a time limit, a requeue, or a cancel."""
        if number not in (signal.SIGTERM, signal.SIGINT) or run.end_requested or run.stopped:
            return
        if self.cancel_requested(run):
            run.end_requested = True
            return
        # Slurm looks at time limits twice a minute: its signal may come that much earlier.
        end = allocations.end_of(self.allocation, self._notice_s + 90.0)
        log_line(self.task.folder, "supervisor: signal %d of Slurm on %s: %s" % (number, self.allocation.name, end))
        left_s = self._notice_s if end == allocations.TIME_LIMIT and self._notice_s else self._kill_wait_s
        self.task.job["grace"] = min(self.task.job["grace"], max(1.0, left_s - _RESERVE_S))
        self._ended_by = end
        if end == allocations.TIME_LIMIT and run.rank is not None:
            ran = protocol.mono() - run.began + attempts.seconds_before(run.state)
            self.task.job["timeout"] = int(ran) or ran
            return
        if end in (allocations.REQUEUED, allocations.PREEMPTED):
            self._allow_attempt(run)
            self.has_queue = end == allocations.REQUEUED
        self.signal_detail = _DETAILS.get(end, _DETAILS[allocations.UNKNOWN])
        run.end_requested = True

    def agree(self, run: Supervisor, outcome: Outcome) -> Outcome:
        """Return the end of a job that Slurm has ended: its SIGTERM reaches the job's processes, too."""
        self._leave_if_replaced(run)
        if run.stopped is None and run.rank is not None:
            was_killed = outcome.signal == signal.SIGTERM or outcome.exit_code == 128 + signal.SIGTERM
            run.listen(_SIGNAL_TIMEOUT_S if was_killed and not self._ended_by else 0.0)
            end = self._ended_by
            if end == allocations.TIME_LIMIT:
                text = "time limit of %g s reached" % (self.task.job["timeout"] or 0)
                return Outcome(FAILED, "timeout", text, outcome.exit_code, outcome.signal)
            if end in (allocations.REQUEUED, allocations.PREEMPTED):
                text = "Slurm requeued it" if end == allocations.REQUEUED else "was pre-empted"
                return Outcome(FAILED, PREEMPTED, text, outcome.exit_code, outcome.signal)
            if end or (was_killed and self.cancel_requested(run)):
                return Outcome(CANCELED, CANCELED, "canceled while running", outcome.exit_code, outcome.signal)
        return outcome

    def _allow_attempt(self, run: Supervisor) -> None:
        """Let there be a next attempt, whatever --max-restarts says: Slurm starts the job again."""
        restarts = dict(self.task.job.get("restarts") or {"preempt_after": 0.0})
        restarts["max"] = max(int(restarts.get("max") or 0) + 1, attempts.number(run.state))
        self.task.job["restarts"] = restarts

    def tick(self, run: Supervisor) -> None:
        """Touch the file that shows that this supervisor lives; end without a word if another one has the run."""
        now = protocol.mono()
        if now - self._owner_read_at >= 1.0:
            self._owner_read_at = now
            self._leave_if_replaced(run)
        if self.keeps_state and now - self._alive_at >= ALIVE_INTERVAL_S:
            self._alive_at = now
            try:
                with open(os.path.join(self.task.folder, ALIVE), "w"):
                    pass
                os.utime(os.path.join(self.task.folder, ALIVE))
            except OSError:  # a full disk, or the run was deleted
                pass

    def _leave_if_replaced(self, run: Supervisor) -> None:
        """Write nothing more if another supervisor has the run: Slurm took this node for dead, and it is not."""
        if self.keeps_state and owner_of(self.task.folder) > self.allocation.restarts:
            log_line(self.task.folder, "supervisor: another node has the run; ending here")
            self.keeps_state = self.has_queue = False
            run.end_requested = True

    def save_final_state(self, run: Supervisor) -> None:
        """Write the final state, or that of a run that Slurm starts again."""
        self._leave_if_replaced(run)
        if not self.keeps_state:
            return
        if run.state.get("reason") == "oom" and run.state.get("cause"):
            run.state["cause"] = dict(run.state["cause"], action="Ask for more: --mem, or load less at a time")
        if run.state["state"] == protocol.QUEUED:
            run.state["detail"] = "Slurm has requeued it: %s follows" % attempts.title(self.task.job, run.state)
        run.file.save_with_retry(run.state, run.heart.beat)

    def on_readable(self, handles: List[int]) -> None:
        """Do nothing: there are no further descriptors."""
