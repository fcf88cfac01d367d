"""Supervisor: starts one job, waits for its end and writes its outcome.

Single-threaded; it sleeps in ``poll`` and is woken by signals (end of a child,
cancel), by the death of the guardian and by deadlines of the monotonic clock.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from typing import Any, Dict, FrozenSet, List, Optional, Protocol

from .. import protocol, testing
from ..asking.pokes import NewPokes
from ..distributed.stall import StallWatch
from ..process_setup import drain, log_line
from ..processes import boot_id, find_process, identity, pid_scope, resume, run_members, signal_processes
from ..protocol import CANCELED, FAILED, FINALIZING, PREEMPTED, QUEUED, RUNNING
from ..sink_notes import SinkNotes
from ..telemetry.gpu_usage import READY_TIMEOUT_S, GpuUsageGuard, ReadyPipe
from ..trackers.metric_sources import FINISH_S
from . import attempts, preparation, run_state
from . import outcome as failure_cause
from .assignment import Assignment
from .container import KILL_TIMEOUT_S, Container, start_failure
from .heartbeat import Heartbeat
from .helpers import Helpers, finish_helper, fork_due, stop_helper
from .measured_slice import slice_of
from .outcome import GPU_UNUSED, SLICE, Outcome, classify, oom_counters, oom_happened, outcome_of_ranks
from .process import LaunchFailed, NoProcess
from .run_state import StateFile

#: Seconds for children to end after their rank has ended because of a cancel.
LEFTOVER_GRACE_S = 1.0

#: Seconds between two looks at the metrics of a job that is only measured.
SLICE_CHECK_S = 0.5

#: Seconds before the end of a slice in which a process at a service may end with it.
SLICE_MARGIN_S = 3.0

#: Why the processes of a run are requested to end, where it is not a time limit or the end of a slice.
STOP_CAUSES = {CANCELED: "canceling", GPU_UNUSED: "its GPUs are not used", PREEMPTED: "pre-empted"}

#: Seconds between tries to start a job while no process can be forked.
FORK_RETRY_S = 1.0


class JobHost(Protocol):
    """Environment of a supervisor: the queue of the agent, or a service that runs the job.

    Attributes
    ----------
    node
        Number of this machine within the run.
    signal_detail
        Detail of a run that was ended by a signal to its supervisor.
    keeps_state
        Whether this process writes the run's state.
    has_queue
        Whether a run that was ended by a signal to its supervisor can go back to a queue.
    """

    helpers: Helpers
    node: int
    signal_detail: str
    keeps_state: bool
    has_queue: bool

    def has_gpus(self) -> bool:
        """Whether GPUs may have to be read before the job starts."""

    def is_sampled(self) -> Optional[bool]:
        """Whether the sampler of another process has read the GPUs; ``None`` if our own sampler reads them."""

    def start(self, run: Supervisor) -> subprocess.Popen[bytes]:
        """Start the process of the job."""

    def request_end(self, run: Supervisor) -> None:
        """Request the processes of the job to end."""

    def cancel_requested(self, run: Supervisor) -> bool:
        """Whether a cancel was requested by other means than a signal to the supervisor."""

    def excluded_pids(self) -> FrozenSet[int]:
        """Return pids that do not belong to the run, with their descendants."""

    def on_signal(self, run: Supervisor, number: int) -> None:
        """Handle a signal to the supervisor."""

    def on_readable(self, handles: List[int]) -> None:
        """Handle readable descriptors."""

    def tick(self, run: Supervisor) -> None:
        """Called in each iteration of the loop."""

    def log_restart(self, text: str) -> None:
        """Write a line into the log of the job, between two attempts."""

    def await_nodes(self, run: Supervisor) -> Optional[Outcome]:
        """Wait until the other machines of the run can start, too; return the end of a run that cannot start."""

    def agree(self, run: Supervisor, outcome: Outcome) -> Outcome:
        """Return the end of an attempt on all machines, of which `outcome` is the end on this one.

        Called again with the end of the run, after the last attempt.
        """

    def on_save_error(self, error: OSError) -> None:
        """Handle a failed write of the state, which is retried."""

    def save_final_state(self, run: Supervisor) -> None:
        """Write the final state."""


class Supervisor:
    """Supervises one run from its start to its final state.

    Parameters
    ----------
    host
        Environment of the supervisor.
    wakeup
        Descriptor that becomes readable when a signal arrives.
    guarded
        Descriptor that reports the death of the guardian; ``None`` without a guardian.
    """

    def __init__(
        self,
        task: Assignment,
        host: JobHost,
        wakeup: int,
        guarded: Optional[int] = None,
        heart: Optional[Heartbeat] = None,
    ) -> None:
        self.task, self.host = task, host
        self.state = task.state
        self.heart = heart or Heartbeat(None)
        self.file = StateFile(task.folder, task.submission)
        self.guardian_pipe = guarded
        self.wakeup = wakeup
        self.poll = select.poll()
        if guarded is not None:
            self.poll.register(guarded, select.POLLIN)
        self.poll.register(self.wakeup, select.POLLIN)
        self.rank: Optional[subprocess.Popen[bytes]] = None
        self.status: Optional[int] = None
        self.helpers = host.helpers
        self.gpu_guard = GpuUsageGuard(task.folder, task.devices, task.job, host.node)
        self.stall = StallWatch(task.folder, task.job)
        self.container = Container(task.mark, task.environ) if task.job.get("container") else None
        self.slice = slice_of(task.folder, task.job)
        self.slice_end = ""
        self.notes = SinkNotes(task.folder)
        self.pokes = NewPokes(task.folder)
        self.began = 0.0
        self.first_start: Optional[float] = None  #: unix seconds
        self.stopped: Optional[str] = None
        self.gpu_verdict: Optional[Dict[str, str]] = None
        self.kill_at: Optional[float] = None
        self.retry_save_at: Optional[float] = None
        self.end_requested = False
        self.preemption_due = float("inf")
        self.outcome: Optional[Outcome] = None

    # -- life ------------------------------------------------------------------

    def run(self) -> None:
        """Run the job from its start to its final state."""
        self.began = protocol.mono()
        state = self.state
        state["devices"], state["cpu_slot"] = self.task.devices, self.task.cpu_slot
        state["boot"], state["node"] = boot_id(), pid_scope()
        state["detail"] = ""
        failed = preparation.prepare(self)
        if failed is not None:
            self._end(failed)
            return
        testing.hit("before_start")
        if self._cancel_requested():
            self._end(Outcome(CANCELED, CANCELED, "canceled before it started", None, None))
            return
        self.helpers.open_sink()
        if self.host.has_gpus():
            _read_gpus_before_start(self)
            if self.should_end():
                self._end(Outcome(CANCELED, CANCELED, "canceled before it started", None, None))
                return
        outcome = self.host.agree(self, self._run_attempt())
        while attempts.may_restart(self.task.job, state, outcome) and self._prepare_restart(outcome):
            if self._wait_for_restart():
                outcome = self.host.await_nodes(self) or self.host.agree(self, self._run_attempt())
            elif self.host.has_queue and not self._cancel_requested():
                self._leave_to_queue()
                return
            else:
                waited = "canceled while it waited for attempt %d" % attempts.number(state)
                outcome = Outcome(CANCELED, CANCELED, waited, None, None)
        self._end(outcome)

    def _run_attempt(self) -> Outcome:
        """Start the job and wait for its end."""
        state = self.state
        self.first_start = self.first_start or time.time()
        try:
            self.rank = self._start_with_retry()
        except LaunchFailed as error:
            return Outcome(FAILED, "launch", "could not be started: %s" % error, None, None)
        if self.rank is None:
            return Outcome(CANCELED, CANCELED, "canceled before it started", None, None)
        before = oom_counters()
        testing.hit("after_rank_start")
        if not attempts.left(self.task.job, state):
            self.task.secrets.clear()
            self.task.environ.clear()
        self.began = protocol.mono()
        self.preemption_due = attempts.preemption_due(self.task.job, state, self.began)
        state["rank"] = identity(self.rank.pid) or {"pid": self.rank.pid, "start": None}
        self.save()
        for helper in self.helpers.initial_helpers(self.poll):
            if not helper.pid and not helper.is_done:
                helper.due = self.began + helper.delay_s
        while self.status is None:
            self._wait()
            self._step()
        oom = oom_happened(before, oom_counters())
        if self.status and not self.stopped and not self.host.has_queue:
            # A service starts each process apart: one may have failed because another one has ended its slice before.
            self.stopped = SLICE if self._slice_has_ended(protocol.mono() + SLICE_MARGIN_S) else None
        outcome = classify(self.status, self.stopped, self.task.job["timeout"], oom, self.gpu_verdict)
        if self.stopped == SLICE:
            outcome = outcome._replace(detail=self.slice_end)
        if self.task.job.get("ranks") and not self.stopped:
            outcome = outcome_of_ranks(self.task, state, outcome)
        refused = start_failure(self.task.folder, self.status) if self.container is not None else None
        if refused and not self.stopped:
            outcome = outcome._replace(reason="launch", detail="its container could not be started: %s" % refused)
        return outcome

    def _prepare_restart(self, outcome: Outcome) -> bool:
        """Remove what is left of an attempt and enter the next one; return whether that is possible."""
        job, state, folder = self.task.job, self.state, self.task.folder
        seconds = protocol.mono() - self.began
        if self._cancel_requested():
            return False
        excluded, apart = self._excluded_pids(), self.host.excluded_pids()
        left = self.container.remove(self.heart.beat) if self.container is not None else ""
        stuck = run_state.kill_all(self.task.mark, os.getpid(), None, excluded, 0.0, apart, tick=self.heart.beat)
        if left or stuck:
            return False
        for helper in self.helpers.all_helpers:  # the removal reaps all ended children
            if helper.pid and not helper.once and find_process(helper.pid) is None:
                helper.schedule_restart()
        attempts.begin_next(job, state, outcome, seconds)
        attempts.clear_records(folder)
        self.host.log_restart("%s, after %s" % (attempts.title(job, state), outcome.detail))
        self.rank = self.status = self.stopped = self.gpu_verdict = self.kill_at = None
        self.stall = StallWatch(folder, job)
        self.began = protocol.mono()
        self.save()
        testing.hit("before_restart")
        return True

    def _wait_for_restart(self) -> bool:
        """Wait until the next attempt may start; return whether it may: not if the run is to end."""
        until = protocol.mono() + attempts.pause_s(self.state)
        while not self.should_end():
            pause = until - protocol.mono()
            if pause <= 0:
                return True
            self.listen(pause)
            self.host.tick(self)
            self.reap()
            if self.retry_save_at is not None and protocol.mono() >= self.retry_save_at:
                self.save()
        return False

    def _leave_to_queue(self) -> None:
        """End this process; the dispatcher puts the run, which is queued, back into the queue."""
        attempts.note_shutdown(self.task.job, self.state)
        finish_helper(self.helpers, self.helpers.provenance, self.file.exists())
        for helper in (self.helpers.sampler, self.helpers.sink):
            stop_helper(helper.pid)
        self.host.save_final_state(self)

    def _start_with_retry(self) -> Optional[subprocess.Popen[bytes]]:
        """Start the job, with retries while no process can be forked; return ``None`` if it was canceled."""
        while True:
            try:
                process = self.host.start(self)
                break
            except NoProcess as error:
                detail = "waits because no process can be started now (%s)" % error
            if self.state["detail"] != detail:
                log_line(self.task.folder, "supervisor: the job %s" % detail)
                self.state["detail"] = detail
                run_state.enter(self.state, QUEUED, protocol.mono() - self.began)
                self.save()
            until = protocol.mono() + FORK_RETRY_S
            while protocol.mono() < until:
                self.listen(until - protocol.mono())
                if self.should_end():
                    return None
        if self.state["state"] == QUEUED:
            self.state["detail"] = ""
            run_state.enter(self.state, RUNNING)
        return process

    def _wait(self) -> None:
        deadlines = [protocol.mono() + (self.gpu_guard.period if self.slice is None else SLICE_CHECK_S)]
        deadlines.append(protocol.mono() + self.stall.period)
        if self.stopped is None:
            deadlines += [moment for moment in (self._time_limit(), self.preemption_due) if moment < float("inf")]
        for moment in (self.kill_at, self.retry_save_at, *(helper.due for helper in self.helpers.all_helpers)):
            if moment is not None:
                deadlines.append(moment)
        self.listen(max(0.0, min(deadlines) - protocol.mono()))

    def listen(self, pause: float) -> List[int]:
        """Sleep until an event, at most `pause` seconds; return the readable descriptors."""
        self.heart.beat()
        readable = [handle for handle, _ in self.poll.poll(pause * 1000 + 1)]
        if self.wakeup in readable:
            for number in drain(self.wakeup):
                self.host.on_signal(self, number)
        self.host.on_readable(readable)
        if self.guardian_pipe is not None and self.guardian_pipe in readable:
            self.poll.unregister(self.guardian_pipe)
            log_line(self.task.folder, "supervisor: the guardian was killed; continuing without it")
        return readable

    def _step(self) -> None:
        self.host.tick(self)
        self.reap()
        now = protocol.mono()
        if self.status is not None:
            return
        resume(self.state["guardian"])
        changed = self.file.changed()
        if changed:
            log_line(self.task.folder, "supervisor: state.json was changed by another process; writing it again")
        if self.stopped is None and self.stall.update():
            self.state["detail"], changed = self.stall.text, True
        changed = self.notes.take(self.state) or changed
        changed = self.pokes.take(self.state) or changed
        if self.gpu_guard.update(self.state) or changed:
            self.save()
        if self.stopped is None:
            if self.should_end():
                preempted = self.host.has_queue and not self._cancel_requested()
                self._stop(PREEMPTED if preempted and attempts.left(self.task.job, self.state) else CANCELED)
            elif now >= self._time_limit():
                self._stop("timeout")
            elif now >= self.preemption_due:
                self._stop(PREEMPTED)
            elif self.slice is not None and self._slice_has_ended(now):
                self._stop(SLICE)
            elif self.gpu_guard.should_stop():
                self.gpu_verdict = self.gpu_guard.verdict
                self._stop(GPU_UNUSED)
        if self.kill_at is not None and now >= self.kill_at:
            if self.container is not None and self.container.kill():
                self.kill_at = now + KILL_TIMEOUT_S
            else:
                signal_processes(self.members(), signal.SIGKILL)
                self.kill_at = now + 0.2
        fork_due(self.helpers, now, self.file.exists)
        if self.retry_save_at is not None and now >= self.retry_save_at:
            self.save()

    def _slice_has_ended(self, now: float) -> bool:
        self.slice_end = self.slice.due(now, self.began) if self.slice is not None else ""
        return bool(self.slice_end)

    def _time_limit(self) -> float:
        """Return the moment at which the time limit of all attempts together is reached."""
        limit = self.task.job["timeout"]
        return float("inf") if limit is None else self.began + limit - attempts.seconds_before(self.state)

    def _stop(self, reason: str) -> None:
        """Request every process of the run to end; set the deadline for SIGKILL."""
        grace = self.task.job["grace"]
        self.stopped = reason
        self.kill_at = protocol.mono() + grace
        self.host.request_end(self)
        cause = self.slice_end if reason == SLICE else STOP_CAUSES.get(reason, "time limit reached")
        self.state["detail"] = "%s: SIGTERM sent, SIGKILL follows after %g s" % (cause, grace)
        self.save()

    # -- processes ---------------------------------------------------------------

    def _report_status(self) -> None:
        """Send the wait status of the rank to the guardian before reaping, in case this process is stopped."""
        if self.rank is not None and self.status is None:
            status = run_state.unreaped_status(self.rank.pid)
            if status is not None:
                self.heart.send_state(dict(self.state, rank_status=status))

    def reap(self) -> None:
        """Reap ended children: the rank and helpers."""
        self._report_status()
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if self.rank is not None and pid == self.rank.pid:
                self.status = status
                self.rank.returncode = 0  # reaped: Popen must not wait for it again
            for helper in self.helpers.all_helpers:
                if pid == helper.pid:
                    helper.on_ended(status, self.task.folder)

    def members(self) -> List[Any]:
        """Return the processes of the run."""
        return run_members(self.task.mark, os.getpid(), self._excluded_pids(), None, self.host.excluded_pids())

    def _excluded_pids(self) -> FrozenSet[int]:
        """Return pids of guardian and helpers, which the end of the run does not kill."""
        guardian = (self.state["guardian"] or {}).get("pid", 0)
        return frozenset({guardian, *(helper.pid for helper in self.helpers.all_helpers)}) - {0}

    # -- the end ------------------------------------------------------------------

    def _end(self, outcome: Outcome) -> None:
        state, apart = self.state, self.host.excluded_pids
        self.outcome = outcome = self.host.agree(self, outcome)
        if state["rank"] is not None or self.rank is not None:
            run_state.enter(state, FINALIZING, protocol.mono() - self.began)
            self.save()
        finalizing = protocol.mono()
        finish_helper(self.helpers, self.helpers.provenance, self.file.exists())
        grace_s = 0.0
        if self.kill_at is not None:
            grace_s = max(0.0, min(LEFTOVER_GRACE_S, self.kill_at - protocol.mono()))
        tick = self.heart.beat
        left = ""
        if self.container is not None and self.rank is not None and (self.status != 0 or self.stopped):
            left = self.container.remove(tick)
        # One scan suffices here: missed processes are our children, and the second call checks for children.
        stuck = run_state.kill_all(self.task.mark, os.getpid(), None, self._excluded_pids(), grace_s, apart(), 1, tick)
        stop_helper(self.helpers.sampler.pid, tick=tick)
        self._stop_sink()
        if not stuck and not run_state.reap_children():
            stuck = run_state.kill_all(
                self.task.mark, os.getpid(), None, self._excluded_pids(), 0.0, apart(), tick=tick
            )
        self.gpu_guard.close(state)
        if self.host.keeps_state:
            from . import left_files  # not needed before

            left_files.note_left(self.task.folder, self.task.job["cwd"], self.first_start, self.task.queue)
        details = [outcome.detail]
        if outcome.state == FAILED and attempts.number(state) > 1:
            details[0] += " (after %d attempts)" % attempts.number(state)
        cause = _cause_of(self, outcome, finalizing)
        if cause is not None:
            state["cause"] = cause
            details.append(cause["text"])
        details.append(left)
        if stuck:
            details.append("left-over processes " + stuck)
        if outcome.reason == CANCELED and self.end_requested and not self._cancel_requested():
            details.append(self.host.signal_detail)
        state["detail"] = "; ".join(text for text in details if text)
        state["reason"], state["exit_code"], state["signal"] = outcome.reason, outcome.exit_code, outcome.signal
        testing.hit("before_final_state")
        ran = state["phases"][-1]["name"]
        run_state.enter(state, outcome.state, protocol.mono() - (finalizing if ran == FINALIZING else self.began))
        self.host.save_final_state(self)
        testing.hit("after_final_state")

    def _stop_sink(self) -> None:
        """End the sink, which records what is left; take its last notes."""
        sink, tick = self.helpers.sink, self.heart.beat
        stop_helper(sink.pid, FINISH_S + 3.0, tick)
        if not sink.pid and self.helpers.sink_endpoint is not None and self.task.job["tracking"].get("lines"):
            sink.once, sink.due = True, protocol.mono()  # the job was over before the sink was due
            finish_helper(self.helpers, sink, self.file.exists())
            tick()
        self.notes.take(self.state)
        self.pokes.take(self.state)

    def _cancel_requested(self) -> bool:
        return self.host.cancel_requested(self)

    def should_end(self) -> bool:
        """Whether the run is to end: it was canceled, or the machine shuts down."""
        return self._cancel_requested() or self.end_requested

    def save(self) -> None:
        """Write the state; on a full disk retry later while the job continues."""
        if not self.host.keeps_state:
            return
        self.heart.send_state(self.state)
        try:
            self.file.save(self.state)
            self.retry_save_at = None
        except OSError as error:
            if self.retry_save_at is None:
                self.host.on_save_error(error)
            self.retry_save_at = protocol.mono() + 1.0


def _read_gpus_before_start(run: Supervisor) -> None:
    """Let a sampler read the GPUs before the job starts; a slow driver does not block a cancel."""
    if run.host.is_sampled() is not None:
        until = protocol.mono() + READY_TIMEOUT_S
        while not run.host.is_sampled() and protocol.mono() < until and not run.end_requested:
            run.listen(0.02)
        return
    ready = ReadyPipe()
    run.helpers.fork(run.helpers.sampler, ready.writer)
    os.close(ready.writer)
    run.poll.register(ready.reader, select.POLLIN)
    is_done = is_ready = False
    while not is_done:
        pause = ready.until - protocol.mono()
        if pause <= 0 or run.should_end():
            break
        if ready.reader in run.listen(min(pause, 0.5)):
            is_done, is_ready = True, ready.received()
    run.poll.unregister(ready.reader)
    ready.close()
    if not is_ready:
        log_line(run.task.folder, "supervisor: the GPUs were not read in time before the start of the run")


def _cause_of(supervisor: Supervisor, outcome: Outcome, ended: float) -> Optional[Dict[str, str]]:
    """Return why a run failed, as far as its machine was the reason: a GPU, or want of room."""
    task, number = supervisor.task, supervisor.gpu_guard.number
    rank = supervisor.state.get("failed_rank") or 0
    life = failure_cause.RunTimes(supervisor.began, ended, supervisor.stopped)
    cause = failure_cause.find_cause(task.folder, outcome, life, task.devices, number, rank)
    if cause is None and outcome.state == FAILED:
        from . import no_room  # most runs do not need it

        cause = no_room.cause_of(task.folder, outcome, task.job["cwd"], number, rank)
    return cause
