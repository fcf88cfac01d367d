"""The supervisor: starts one job, waits for its end, and writes down what became of it.

Single-threaded; it sleeps in ``poll`` and is woken by signals (a child ended,
somebody cancels), by the guardian's death and by deadlines of the monotonic clock.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from typing import Any, Dict, FrozenSet, List, Optional, Protocol

from .. import protocol, testing
from ..process_setup import drain, log_line
from ..processes import boot_id, identity, members, node, resume, send
from ..protocol import CANCELED, FAILED, FINALIZING, QUEUED, RUNNING
from ..telemetry import sampler
from ..telemetry.gpu_usage import READY_TIMEOUT_S, GpuUsageGuard, Ready
from . import outcome as failure_cause
from . import run_state
from .heartbeat import Heartbeat
from .helpers import Helper, dismiss, protected_pids
from .outcome import GPU_UNUSED, Outcome, classify, oom_counters, oom_happened
from .process import Assignment, LaunchFailed, NoProcess, SinkPlace, serve_sink, start
from .run_state import StateFile

#: Seconds that children get after their rank has ended in a cancel.
LEFTOVER_GRACE_S = 1.0

#: The sampler and the sink are forked this long after the job (seconds).
HELPERS_DELAY_S = 0.15

#: Seconds between tries to start a job while no process can be forked.
FORK_RETRY_S = 1.0


class Helpers(Protocol):
    """The helper processes of a run: which there are, and how each is forked."""

    sampler: Helper
    sink: Helper
    #: All of them.
    every: List[Helper]
    #: Where the MLflow sink listens; ``None`` without a sink.
    place: Optional[SinkPlace]

    def open_sink(self) -> None:
        """Let the sink listen, if the job has one."""

    def first(self, poll: select.poll) -> List[Helper]:
        """Return those that a job starts with."""

    def fork(self, helper: Helper, ready: Optional[int] = None) -> None:
        """Fork one; the sampler writes a byte to `ready` when it has read the GPUs once."""


class JobHost(Protocol):
    """Who started the supervisor of a job: the agent's queue, or a service that has a place for the job.

    Attributes
    ----------
    node
        Number of this machine within the run.
    told_detail
        Said of a run that was ended by a signal to its supervisor.
    keeps_state
        Whether this process writes the run's state.
    """

    helpers: Helpers
    node: int
    told_detail: str
    keeps_state: bool

    def has_gpus(self) -> bool:
        """Whether GPUs may have to be read before the job starts."""

    def is_sampled(self) -> Optional[bool]:
        """Whether another process's sampler has read the GPUs; ``None``: our own reads them."""

    def start(self) -> subprocess.Popen[bytes]:
        """Start the job's process."""

    def ask(self, run: Supervisor) -> None:
        """Ask the job's processes to end."""

    def cancel_requested(self, run: Supervisor) -> bool:
        """Whether somebody asked for a cancel, by other means than a signal to us."""

    def apart(self) -> FrozenSet[int]:
        """Pids that a look at the process table must not take for the run's."""

    def signaled(self, run: Supervisor, number: int) -> None:
        """A signal came to us."""

    def heard(self, handles: List[int]) -> None:
        """Descriptors that have news."""

    def tick(self, run: Supervisor) -> None:
        """Called at each turn of the loop."""

    def cannot_save(self, error: OSError) -> None:
        """The state could not be written; it is tried again."""

    def save_last(self, run: Supervisor) -> None:
        """Write the final state."""


class QueueHelpers:
    """Sampler and MLflow sink of a job of the queue."""

    def __init__(self, task: Assignment) -> None:
        self.task = task
        self.sampler, self.sink = Helper("sampler"), Helper("sink")
        self.every = [self.sampler, self.sink]
        self.place: Optional[SinkPlace] = None

    def open_sink(self) -> None:
        """Let the sink listen, if the job has one."""
        tracking = self.task.job["tracking"]
        if tracking.get("mode") == "sink" and tracking.get("run_id"):
            self.place = open_sink_place(self.task.folder)

    def first(self, poll: select.poll) -> List[Helper]:
        """Return those that a job starts with."""
        return [self.sampler] if self.place is None else [self.sampler, self.sink]

    def fork(self, helper: Helper, ready: Optional[int] = None) -> None:
        """Fork one."""
        task, place = self.task, self.place
        if helper is self.sink and place is not None:
            helper.fork(task.folder, lambda: serve_sink(task, place), [place.socket.fileno()])
        else:
            keep = [] if ready is None else [ready]
            helper.fork(task.folder, lambda: sampler.run(task.folder, os.getppid(), task.devices, ready), keep)


class QueueHost:
    """A job of the queue: its guardian and files of the run folder reach it."""

    node = 0
    told_detail = "its supervisor was told to end by SIGTERM, as at a shutdown"
    keeps_state = True

    def __init__(self, task: Assignment) -> None:
        self.task = task
        self.helpers: Helpers = QueueHelpers(task)

    def has_gpus(self) -> bool:
        """Whether the job has GPUs."""
        return bool(self.task.devices)

    def is_sampled(self) -> Optional[bool]:
        """Our own sampler reads the GPUs."""
        return None

    def start(self) -> subprocess.Popen[bytes]:
        """Start the job's process."""
        return start(self.task, self.helpers.place)

    def ask(self, run: Supervisor) -> None:
        """Send SIGTERM to every process of the run."""
        rows = run.members()
        send(rows, signal.SIGTERM)
        send(rows, signal.SIGCONT)  # a stopped process would not hear it

    def cancel_requested(self, run: Supervisor) -> bool:
        """Whether the run folder has a request for a cancel."""
        return run.file.cancel_requested()

    def apart(self) -> FrozenSet[int]:
        """Processes of other runs and of the agent."""
        return protected_pids(self.task.queue, self.task.home, self.task.job["run"])

    def signaled(self, run: Supervisor, number: int) -> None:
        """SIGTERM ends the run."""
        run.told_to_end = run.told_to_end or number == signal.SIGTERM

    def heard(self, handles: List[int]) -> None:
        """Nothing else is listened to."""

    def tick(self, run: Supervisor) -> None:
        """Nothing else is to be done."""

    def cannot_save(self, error: OSError) -> None:
        """Log it."""
        log_line(self.task.folder, "supervisor: cannot write the state: %s" % error)

    def save_last(self, run: Supervisor) -> None:
        """Write the final state, whatever time the disk takes; the guardian hears it first."""
        run.heart.tell(run.state)
        run.file.save_patiently(run.state, run.heart.beat)
        resume(run.state["guardian"])


def open_sink_place(folder: str) -> Optional[SinkPlace]:
    """Return where a sink listens; ``None``, and a line in the log, where it cannot."""
    try:
        return SinkPlace()
    except OSError as error:
        log_line(folder, "supervisor: no MLflow sink: %s" % error)
        return None


class Supervisor:
    """One run. See the module's docstring.

    Parameters
    ----------
    host
        Who started us.
    wakeup
        Descriptor that becomes readable when a signal comes.
    guarded
        Descriptor that tells the guardian's death; ``None`` without a guardian.
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
        self.file = StateFile(task.folder, str(task.job.get("submission") or ""))
        self.guarded = guarded
        self.wakeup = wakeup
        self.poll = select.poll()
        if guarded is not None:
            self.poll.register(guarded, select.POLLIN)
        self.poll.register(self.wakeup, select.POLLIN)
        self.rank: Optional[subprocess.Popen[bytes]] = None
        self.status: Optional[int] = None
        self.helpers = host.helpers
        self.gpu_guard = GpuUsageGuard(task.folder, task.devices, task.job, host.node)
        self.began = 0.0
        self.stopped: Optional[str] = None
        self.unused: Optional[Dict[str, str]] = None
        self.kill_at: Optional[float] = None
        self.unsaved: Optional[float] = None
        self.told_to_end = False
        self.outcome: Optional[Outcome] = None

    # -- life ------------------------------------------------------------------

    def run(self) -> None:
        """From the start of the job to its final state."""
        self.began = protocol.mono()
        state = self.state
        state["devices"], state["cpu_slot"] = self.task.devices, self.task.cpu_slot
        state["boot"], state["node"] = boot_id(), node()
        state["detail"] = ""
        run_state.enter(state, RUNNING, self.task.queued_for, self.task.assigned)
        self.save()
        testing.hit("before_start")
        if self._cancel_asked():
            self._end(Outcome(CANCELED, CANCELED, "canceled before it started", None, None))
            return
        self.helpers.open_sink()
        if self.host.has_gpus():
            self._look_before()
            if self._cancel_asked() or self.told_to_end:
                self._end(Outcome(CANCELED, CANCELED, "canceled before it started", None, None))
                return
        try:
            self.rank = self._start_patiently()
        except LaunchFailed as error:
            self._end(Outcome(FAILED, "launch", "could not be started: %s" % error, None, None))
            return
        if self.rank is None:
            self._end(Outcome(CANCELED, CANCELED, "canceled before it started", None, None))
            return
        before = oom_counters()
        testing.hit("after_rank_start")
        self.task.secrets.clear()
        self.task.environ.clear()
        self.began = protocol.mono()
        state["rank"] = identity(self.rank.pid) or {"pid": self.rank.pid, "start": None}
        self.save()
        # The job's first moments are its own: on two cores these forks would double the
        # time to its first line. The sink's socket listens already; who connects waits.
        for helper in self.helpers.first(self.poll):
            if not helper.pid:
                helper.due = self.began + HELPERS_DELAY_S
        while self.status is None:
            self._wait()
            self._act()
        oom = oom_happened(before, oom_counters())
        self._end(classify(self.status, self.stopped, self.task.job["timeout"], oom, self.unused))

    def _start_patiently(self) -> Optional[subprocess.Popen[bytes]]:
        """Start the job; while no process can be forked it waits and says so. ``None`` when it was canceled."""
        while True:
            try:
                process = self.host.start()
                break
            except NoProcess as error:
                why = "waits for a process: none can be started now (%s)" % error
            if self.state["detail"] != why:
                log_line(self.task.folder, "supervisor: the job %s" % why)
                self.state["detail"] = why
                run_state.enter(self.state, QUEUED, protocol.mono() - self.began)
                self.save()
            until = protocol.mono() + FORK_RETRY_S
            while protocol.mono() < until:
                self.listen(until - protocol.mono())
                if self._cancel_asked() or self.told_to_end:
                    return None
        if self.state["state"] == QUEUED:
            self.state["detail"] = ""
            run_state.enter(self.state, RUNNING)
        return process

    def _look_before(self) -> None:
        """Let a sampler read what is on our GPUs before us; a slow driver does not hold up a cancel."""
        if self.host.is_sampled() is not None:
            until = protocol.mono() + READY_TIMEOUT_S
            while not self.host.is_sampled() and protocol.mono() < until and not self.told_to_end:
                self.listen(0.02)
            return
        ready = Ready()
        self.helpers.fork(self.helpers.sampler, ready.writer)
        os.close(ready.writer)
        self.poll.register(ready.reader, select.POLLIN)
        asked = came = False
        while not asked:
            pause = ready.until - protocol.mono()
            if pause <= 0 or self._cancel_asked() or self.told_to_end:
                break
            if ready.reader in self.listen(min(pause, 0.5)):
                asked, came = True, ready.came()
        self.poll.unregister(ready.reader)
        ready.close()
        if not came:
            log_line(self.task.folder, "supervisor: what was on the GPUs before the run was not read in time")

    def _wait(self) -> None:
        deadlines = [protocol.mono() + self.gpu_guard.period]
        limit = self.task.job["timeout"]
        if limit is not None and self.stopped is None:
            deadlines.append(self.began + limit)
        for moment in (self.kill_at, self.unsaved, *(helper.due for helper in self.helpers.every)):
            if moment is not None:
                deadlines.append(moment)
        self.listen(max(0.0, min(deadlines) - protocol.mono()))

    def listen(self, pause: float) -> List[int]:
        """Sleep until something happens, `pause` seconds at most; descriptors with news."""
        self.heart.beat()
        news = [handle for handle, _ in self.poll.poll(pause * 1000 + 1)]
        if self.wakeup in news:
            for number in drain(self.wakeup):
                self.host.signaled(self, number)
        self.host.heard(news)
        if self.guarded is not None and self.guarded in news:
            self.poll.unregister(self.guarded)
            log_line(self.task.folder, "supervisor: the guardian was killed; going on without it")
        return news

    def _act(self) -> None:
        self.host.tick(self)
        self.reap()
        now = protocol.mono()
        if self.status is not None:
            return
        resume(self.state["guardian"])
        changed = self.file.changed()
        if changed:
            log_line(self.task.folder, "supervisor: state.json was changed by somebody else; writing it again")
        if self.gpu_guard.look(self.state) or changed:
            self.save()
        limit = self.task.job["timeout"]
        if self.stopped is None:
            if self._cancel_asked() or self.told_to_end:
                self._stop(CANCELED)
            elif limit is not None and now >= self.began + limit:
                self._stop("timeout")
            elif self.gpu_guard.stops():
                self.unused = self.gpu_guard.said
                self._stop(GPU_UNUSED)
        if self.kill_at is not None and now >= self.kill_at:
            send(self.members(), signal.SIGKILL)
            self.kill_at = now + 0.2
        for helper in self.helpers.every:
            if helper.due is None or now < helper.due:
                continue
            if self.file.exists():
                self.helpers.fork(helper)
            else:  # it would make the run folder anew
                helper.died()
        if self.unsaved is not None and now >= self.unsaved:
            self.save()

    def _stop(self, why: str) -> None:
        """Ask every process of the run to end; remember when to stop asking."""
        grace = self.task.job["grace"]
        self.stopped = why
        self.kill_at = protocol.mono() + grace
        self.host.ask(self)
        what = {CANCELED: "canceling", GPU_UNUSED: "its GPUs are not used"}.get(why, "time limit reached")
        self.state["detail"] = "%s: SIGTERM sent, SIGKILL follows after %g s" % (what, grace)
        self.save()

    # -- processes ---------------------------------------------------------------

    def _tell_status(self) -> None:
        """Tell the guardian how the rank ended before it is reaped: if we are stopped then, nobody else knows it."""
        if self.rank is None or self.status is not None or not hasattr(os, "waitid"):
            return
        try:
            ended = os.waitid(os.P_PID, self.rank.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except OSError:
            return
        if ended is not None:
            status = ended.si_status
            status = status << 8 if ended.si_code == os.CLD_EXITED else status
            status |= 0x80 if ended.si_code == os.CLD_DUMPED else 0
            self.heart.tell(dict(self.state, rank_status=status))

    def reap(self) -> None:
        """Take in which of our children have ended."""
        self._tell_status()
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if self.rank is not None and pid == self.rank.pid:
                self.status = status
                self.rank.returncode = 0  # reaped: Popen must not look for it again
            for helper in self.helpers.every:
                if pid == helper.pid:
                    text = "supervisor: the %s ended (status %d); starting it again" % (helper.name, status)
                    log_line(self.task.folder, text)
                    helper.died()

    def members(self) -> List[Any]:
        """Rows of the process table that are the run's."""
        return members(self.task.mark, os.getpid(), self._ours(), None, self.host.apart())

    def _ours(self) -> FrozenSet[int]:
        """Pids of ours that a run's end leaves alone."""
        guardian = (self.state["guardian"] or {}).get("pid", 0)
        return frozenset({guardian, *(helper.pid for helper in self.helpers.every)}) - {0}

    # -- the end ------------------------------------------------------------------

    def _end(self, outcome: Outcome) -> None:
        state, apart = self.state, self.host.apart
        self.outcome = outcome
        if state["rank"] is not None or self.rank is not None:
            run_state.enter(state, FINALIZING, protocol.mono() - self.began)
            self.save()
        finalizing = protocol.mono()
        gentle = 0.0
        if self.kill_at is not None:
            gentle = max(0.0, min(LEFTOVER_GRACE_S, self.kill_at - protocol.mono()))
        tick = self.heart.beat
        # One look here: what it misses is our child, and no child may be left when the helpers are gone.
        stuck = run_state.kill_all(self.task.mark, os.getpid(), None, self._ours(), gentle, apart(), 1, tick)
        for helper in (self.helpers.sampler, self.helpers.sink):
            dismiss(helper.pid)
            tick()
        if not stuck and not run_state.reap():
            stuck = run_state.kill_all(self.task.mark, os.getpid(), None, self._ours(), 0.0, apart(), tick=tick)
        self.gpu_guard.close(state)
        details = [outcome.detail]
        life = failure_cause.Life(self.began, finalizing, self.stopped)
        cause = failure_cause.find_cause(self.task.folder, outcome, life, self.task.devices, self.gpu_guard.number)
        if cause is not None:
            state["cause"] = cause
            details.append(cause["text"])
        if stuck:
            details.append("left-over processes " + stuck)
        if outcome.reason == CANCELED and self.told_to_end and not self._cancel_asked():
            details.append(self.host.told_detail)
        state["detail"] = "; ".join(text for text in details if text)
        state["reason"], state["exit_code"], state["signal"] = outcome.reason, outcome.exit_code, outcome.signal
        testing.hit("before_final_state")
        ran = state["phases"][-1]["name"]
        run_state.enter(state, outcome.state, protocol.mono() - (finalizing if ran == FINALIZING else self.began))
        self.host.save_last(self)
        testing.hit("after_final_state")

    def _cancel_asked(self) -> bool:
        return self.host.cancel_requested(self)

    def save(self) -> None:
        """Write the state; with a full disk try again later, the job goes on."""
        if not self.host.keeps_state:
            return
        self.heart.tell(self.state)
        try:
            self.file.save(self.state)
            self.unsaved = None
        except OSError as error:
            if self.unsaved is None:
                self.host.cannot_save(error)
            self.unsaved = protocol.mono() + 1.0
