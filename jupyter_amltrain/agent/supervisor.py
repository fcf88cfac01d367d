"""The supervisor: starts one job, waits for its end, and writes down what became of it.

Single-threaded; it sleeps in ``poll`` and is woken by signals (a child ended,
somebody cancels), by the guardian's death and by deadlines of the monotonic clock.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from typing import Any, Dict, FrozenSet, List, Optional

from . import clock, failpoints, failure_cause, lifecycle, sampler
from .bystanders import bystanders
from .forked import drain, note
from .gate import Gate, Ready
from .guardian import Assignment
from .heartbeat import Heartbeat
from .helper import Helper, dismiss
from .outcome import GPU_UNUSED, Outcome, classify, oom_counters, oom_happened
from .processes import boot_id, identity, members, node, resume, send
from .protocol import CANCELED, FAILED, FINALIZING, QUEUED, RUNNING
from .rank import LaunchFailed, NoProcess, SinkPlace, serve_sink, start
from .run_state import StateFile

#: Seconds that children get after their rank has ended in a cancel.
LEFTOVER_GRACE = 1.0

#: The sampler and the sink are forked this long after the job (seconds).
HELPERS_AFTER = 0.15

#: Seconds between tries to start a job while no process can be forked.
FORK_RETRY_S = 1.0


class Supervisor:
    """One run. See the module's docstring."""

    #: Said of a run that was ended by a signal to its supervisor.
    TOLD = "its supervisor was told to end by SIGTERM, as at a shutdown"

    def __init__(
        self, task: Assignment, guarded: Optional[int], wakeup: int, heart: Optional[Heartbeat] = None
    ) -> None:
        self.task = task
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
        self.sampler, self.sink = Helper("sampler"), Helper("sink")
        self.helpers = [self.sampler, self.sink]
        self.place: Optional[SinkPlace] = None
        self.gate = Gate(task.folder, task.devices, task.job)
        self.began = 0.0
        self.stopped: Optional[str] = None
        self.unused: Optional[Dict[str, str]] = None
        self.kill_at: Optional[float] = None
        self.unsaved: Optional[float] = None
        self.told_to_end = False

    # -- life ------------------------------------------------------------------

    def run(self) -> None:
        """From the start of the job to its final state."""
        self.began = clock.mono()
        state = self.state
        state["devices"], state["cpu_slot"] = self.task.devices, self.task.cpu_slot
        state["boot"], state["node"] = boot_id(), node()
        state["detail"] = ""
        lifecycle.enter(state, RUNNING, self.task.queued_for, self.task.assigned)
        self._save()
        failpoints.hit("before_start")
        if self._cancel_asked():
            self._end(Outcome(CANCELED, CANCELED, "canceled before it started", None, None))
            return
        self._open_sink()
        if self._owns_gpus():
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
        failpoints.hit("after_rank_start")
        self.task.secrets.clear()
        self.task.environ.clear()
        self.began = clock.mono()
        state["rank"] = identity(self.rank.pid) or {"pid": self.rank.pid, "start": None}
        self._save()
        # The job's first moments are its own: on two cores these forks would double the
        # time to its first line. The sink's socket listens already; who connects waits.
        for helper in self._wanted():
            if not helper.pid:
                helper.due = self.began + HELPERS_AFTER
        while self.status is None:
            self._wait()
            self._act()
        oom = oom_happened(before, oom_counters())
        self._end(classify(self.status, self.stopped, self.task.job["timeout"], oom, self.unused))

    def _start_patiently(self) -> Optional[subprocess.Popen[bytes]]:
        """Start the job; while no process can be forked it waits and says so. ``None`` when it was canceled."""
        while True:
            try:
                process = self._start()
                break
            except NoProcess as error:
                why = "waits for a process: none can be started now (%s)" % error
            if self.state["detail"] != why:
                note(self.task.folder, "supervisor: the job %s" % why)
                self.state["detail"] = why
                lifecycle.enter(self.state, QUEUED, clock.mono() - self.began)
                self._save()
            until = clock.mono() + FORK_RETRY_S
            while clock.mono() < until:
                self._listen(until - clock.mono())
                if self._cancel_asked() or self.told_to_end:
                    return None
        if self.state["state"] == QUEUED:
            self.state["detail"] = ""
            lifecycle.enter(self.state, RUNNING)
        return process

    def _look_before(self) -> None:
        """Let the sampler read what is on our GPUs before us; a slow driver does not hold up a cancel."""
        ready = Ready()
        self._fork(self.sampler, ready.writer)
        os.close(ready.writer)
        self.poll.register(ready.reader, select.POLLIN)
        asked = came = False
        while not asked:
            pause = ready.until - clock.mono()
            if pause <= 0 or self._cancel_asked() or self.told_to_end:
                break
            if ready.reader in self._listen(min(pause, 0.5)):
                asked, came = True, ready.came()
        self.poll.unregister(ready.reader)
        ready.close()
        if not came:
            note(self.task.folder, "supervisor: what was on the GPUs before the run was not read in time")

    def _wait(self) -> None:
        deadlines = [clock.mono() + self.gate.period]
        limit = self.task.job["timeout"]
        if limit is not None and self.stopped is None:
            deadlines.append(self.began + limit)
        for moment in (self.kill_at, self.unsaved, *(helper.due for helper in self.helpers)):
            if moment is not None:
                deadlines.append(moment)
        self._listen(max(0.0, min(deadlines) - clock.mono()))

    def _listen(self, pause: float) -> List[int]:
        """Sleep until something happens, `pause` seconds at most; descriptors with news."""
        self.heart.beat()
        news = [handle for handle, _ in self.poll.poll(pause * 1000 + 1)]
        if self.wakeup in news and signal.SIGTERM in drain(self.wakeup):
            self.told_to_end = True
        if self.guarded is not None and self.guarded in news:
            self.poll.unregister(self.guarded)
            note(self.task.folder, "supervisor: the guardian was killed; going on without it")
        return news

    def _act(self) -> None:
        self._reap()
        now = clock.mono()
        if self.status is not None:
            return
        resume(self.state["guardian"])
        changed = self.file.changed()
        if changed:
            note(self.task.folder, "supervisor: state.json was changed by somebody else; writing it again")
        if self.gate.look(self.state) or changed:
            self._save()
        limit = self.task.job["timeout"]
        if self.stopped is None:
            if self._cancel_asked() or self.told_to_end:
                self._stop(CANCELED)
            elif limit is not None and now >= self.began + limit:
                self._stop("timeout")
            elif self.gate.stops():
                self.unused = self.gate.said
                self._stop(GPU_UNUSED)
        if self.kill_at is not None and now >= self.kill_at:
            send(self._members(), signal.SIGKILL)
            self.kill_at = now + 0.2
        for helper in self.helpers:
            if helper.due is None or now < helper.due:
                continue
            if self.file.exists():
                self._fork(helper)
            else:  # it would make the run folder anew
                helper.died()
        if self.unsaved is not None and now >= self.unsaved:
            self._save()

    def _stop(self, why: str) -> None:
        """Ask every process of the run to end; remember when to stop asking."""
        grace = self.task.job["grace"]
        self.stopped = why
        self.kill_at = clock.mono() + grace
        self._ask()
        what = {CANCELED: "canceling", GPU_UNUSED: "its GPUs are not used"}.get(why, "time limit reached")
        self.state["detail"] = "%s: SIGTERM sent, SIGKILL follows after %g s" % (what, grace)
        self._save()

    def _ask(self) -> None:
        rows = self._members()
        send(rows, signal.SIGTERM)
        send(rows, signal.SIGCONT)  # a stopped process would not hear it

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

    def _reap(self) -> None:
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
            for helper in self.helpers:
                if pid == helper.pid:
                    text = "supervisor: the %s ended (status %d); starting it again" % (helper.name, status)
                    note(self.task.folder, text)
                    helper.died()

    def _members(self) -> List[Any]:
        return members(self.task.mark, os.getpid(), self._ours(), None, self._apart())

    def _ours(self) -> FrozenSet[int]:
        """Pids of ours that a run's end leaves alone."""
        guardian = (self.state["guardian"] or {}).get("pid", 0)
        return frozenset({guardian, *(helper.pid for helper in self.helpers)}) - {0}

    def _owns_gpus(self) -> bool:
        """Whether the sampler has to look before the job starts."""
        return bool(self.task.devices)

    def _start(self) -> subprocess.Popen[bytes]:
        return start(self.task, self.place)

    def _wanted(self) -> List[Helper]:
        """The helpers that a job starts with."""
        return [self.sampler] if self.place is None else [self.sampler, self.sink]

    def _apart(self) -> FrozenSet[int]:
        return bystanders(self.task.queue, self.task.home, self.task.job["run"])

    def _open_sink(self) -> None:
        tracking = self.task.job["tracking"]
        if tracking.get("mode") != "sink" or not tracking.get("run_id"):
            return
        try:
            self.place = SinkPlace()
        except OSError as error:
            note(self.task.folder, "supervisor: no MLflow sink: %s" % error)

    def _fork(self, helper: Helper, ready: Optional[int] = None) -> None:
        """Fork the sampler or the sink."""
        task, place = self.task, self.place
        if helper is self.sink and place is not None:
            helper.fork(task.folder, lambda: serve_sink(task, place), [place.socket.fileno()])
        else:
            keep = [] if ready is None else [ready]
            helper.fork(task.folder, lambda: sampler.run(task.folder, os.getppid(), task.devices, ready), keep)

    # -- the end ------------------------------------------------------------------

    def _end(self, outcome: Outcome) -> None:
        state = self.state
        if state["rank"] is not None or self.rank is not None:
            lifecycle.enter(state, FINALIZING, clock.mono() - self.began)
            self._save()
        finalizing = clock.mono()
        gentle = 0.0
        if self.kill_at is not None:
            gentle = max(0.0, min(LEFTOVER_GRACE, self.kill_at - clock.mono()))
        tick = self.heart.beat
        # One look here: what it misses is our child, and no child may be left when the helpers are gone.
        stuck = lifecycle.kill_all(
            self.task.mark, os.getpid(), None, self._ours(), gentle, self._apart(), self._scans(), tick
        )
        for helper in (self.sampler, self.sink):
            dismiss(helper.pid)
            tick()
        if not stuck and not lifecycle.reap():
            stuck = lifecycle.kill_all(self.task.mark, os.getpid(), None, self._ours(), 0.0, self._apart(), tick=tick)
        self.gate.close(state)
        details = [outcome.detail]
        life = failure_cause.Life(self.began, finalizing, self.stopped)
        cause = failure_cause.find_cause(self.task.folder, outcome, life, self.task.devices, self.gate.number)
        if cause is not None:
            state["cause"] = cause
            details.append(cause["text"])
        if stuck:
            details.append("left-over processes " + stuck)
        if outcome.reason == CANCELED and self.told_to_end and not self._cancel_asked():
            details.append(self.TOLD)
        state["detail"] = "; ".join(text for text in details if text)
        state["reason"], state["exit_code"], state["signal"] = outcome.reason, outcome.exit_code, outcome.signal
        failpoints.hit("before_final_state")
        ran = state["phases"][-1]["name"]
        lifecycle.enter(state, outcome.state, clock.mono() - (finalizing if ran == FINALIZING else self.began))
        self._save_last()
        failpoints.hit("after_final_state")

    def _save_last(self) -> None:
        self.heart.tell(self.state)
        self.file.save_patiently(self.state, self.heart.beat)
        resume(self.state["guardian"])

    def _scans(self) -> int:
        return 1

    def _cancel_asked(self) -> bool:
        return self.file.cancel_requested()

    def _save(self) -> None:
        """Write the state; with a full disk try again later, the job goes on."""
        self.heart.tell(self.state)
        try:
            self.file.save(self.state)
            self.unsaved = None
        except OSError as error:
            if self.unsaved is None:
                note(self.task.folder, "supervisor: cannot write the state: %s" % error)
            self.unsaved = clock.mono() + 1.0
