"""Driver of a sweep: a supervised run that takes no slot, asks the sampler, submits trials and stops bad ones.

It survives the kernel. After its own end the agent starts it again, and it continues from its journal: trials that
run are followed, those whose submit was interrupted are submitted under the same id.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from jupyter_amltrain.errors import (
    AmlTrainError,
    CapacityError,
    SpecError,
    SubmitError,
    TargetError,
    UnknownTarget,
)
from jupyter_amltrain.jobs.launch import FINAL_EXIT_CODE
from jupyter_amltrain.jobs.snapshot import TRIAL_FOLDER
from jupyter_amltrain.jobs.sweep import trial_of
from jupyter_amltrain.kernel.driven_runs import cancel, exists, wait_recorded
from jupyter_amltrain.kernel.driver_process import DriverJob, drive
from jupyter_amltrain.kernel.journal import Journal
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunState, make_handle, split_handle
from jupyter_amltrain.schema.sweep import trial_count
from jupyter_amltrain.sweeps.continued import read_history
from jupyter_amltrain.sweeps.outputs import return_outputs, silence_reason
from jupyter_amltrain.sweeps.results import SweepResults
from jupyter_amltrain.sweeps.search import Search
from jupyter_amltrain.sweeps.sweep_event import (
    ARRAY,
    ASK,
    END,
    FILE,
    REPORT,
    SENT,
    TELL,
    Event,
    points_fields,
)
from jupyter_amltrain.sweeps.trial import Trial, TrialCanceled, finite
from jupyter_amltrain.sweeps.trial_array import TrialArray, arrays_for
from jupyter_amltrain.text import new_run_id

log = logging.getLogger(__name__)

#: Seconds between two looks at the metrics of the trials.
REPORT_INTERVAL_S = 0.25
#: A sweep whose first trials all fail stops after this number.
MAX_FIRST_FAILURES = 5
#: Seconds until a submit is tried again whose target does not answer.
SUBMIT_RETRY_S = 5.0
#: Seconds in which canceled trials can end before the driver does.
CANCEL_TIMEOUT_S = 6.0
#: States of a run that has nothing to read yet.
_WAITING = (RunState.PREPARING, RunState.QUEUED)


class SweepDriver:
    """Drives one sweep. Loop thread only."""

    def __init__(self, job: DriverJob) -> None:
        kernel, folder = job.kernel, job.folder
        self.spec, self.handle = job.spec, job.handle
        if self.spec.sweep is None or self.spec.trial is None:
            raise SubmitError(f"{folder} is not the run of a sweep.")
        self.sweep, self.targets = self.spec.sweep, self.spec.trial_target.split(",")
        self._job, self._kernel, self._folder = job, kernel, folder
        self._journal = Journal(folder / FILE, Event, "sweep", passing=(REPORT, END))
        self.results = SweepResults(kernel.loop, self.spec, self.sweep, folder)
        self._search = Search(self.sweep)
        self._began = time.time()
        self._exhausted = False
        self._array: TrialArray | None = None  #: that has all trials
        self._waiting: set[str] = set()  #: targets that do not answer
        self._unread: set[int] = set()  #: trials of an earlier process of this driver whose metrics are not read again
        self._stopping = ""  #: why no more trials are submitted
        self._failure = ""  #: why the sweep fails
        self._canceled = False
        self._wake = asyncio.Event()

    # ---- the journal

    def _replay(self, events: Sequence[Event]) -> None:
        """Restore the state that the events led to. Blocks on the sampler."""
        for event in events:
            trial = self.results.trials.get(event.trial)
            if event.op == ASK:
                if not self.results.trials:
                    self._began = event.time
                if not self._search.replay(event.trial):
                    raise SubmitError(f"The journal of {self.handle} does not fit its search space.")
                handle = make_handle(event.target, event.run_id)
                self.results.trials[event.trial] = Trial(event.trial, event.params, handle, event.time)
            elif trial is None:
                continue
            elif event.op == SENT:
                trial.sent = True
            elif event.op == REPORT:
                trial.report(event.points)
                if reason := self._search.observe(trial, event.points):
                    trial.early, trial.reason = True, reason
            elif event.op == TELL:
                trial.end(event)
                self._search.end(trial)
        self._unread = {trial.number for trial in self.results.living if trial.sent}

    def _append(self, op: str, trial: int = -1, **fields: Any) -> Event:
        event = Event(op=op, trial=trial, time=0.0 if op == REPORT else time.time(), **fields)
        self._journal.add(event)
        return event

    # ---- the sweep

    async def run(self) -> int:
        """Drive the sweep to its end; return the exit code of the process."""
        events = await self._kernel.loop.offload(self._journal.open)
        await self._learn_history()
        await self._kernel.loop.offload(self._replay, events)
        if events:
            ended, living = len(self.results.ended), len(self.results.living)
            print(f"The driver was started again: {ended} trials have ended, {living} run.")
        if not self.results.trials or any(event.op == ARRAY for event in events):
            await self._open_array()
        for trial in self.results.living:
            self._follow(trial)
            if trial.early:  # whether its cancel was sent is unknown
                self._kernel.loop.start(cancel(self._kernel, trial), f"stop trial {trial.number}")
        try:
            while not self._canceled:
                await self._check_limits()
                await self._fill()
                if not self.results.living and (self._stopping or self._exhausted):
                    break
                await self._wait()
                for trial in self.results.living:
                    await self._advance(trial)
                await self.results.write()
            if self._canceled:
                await self._cancel_all("the sweep was canceled")
            return await self._finish()
        finally:
            self._journal.close()

    async def _learn_history(self) -> None:
        if not self.spec.continues:
            return
        results = self.results
        results.history, results.first = await read_history(
            self._kernel, self.spec.continues, self._folder, lambda: self._canceled
        )
        for trial in results.history:
            if trial.value is not None:
                await self._kernel.loop.offload(self._search.learn, trial.params, trial.value)
        print(f"{len(results.history)} trials of {self.spec.continues} are known.", flush=True)

    def stop(self) -> None:
        """Cancel the trials and end, because the sweep was canceled."""
        self._canceled = True
        self._wake.set()

    async def _check_limits(self) -> None:
        """Decide whether more trials are submitted."""
        limits = self.sweep.limits
        late = limits.max_duration_s is not None and time.time() - self._began > limits.max_duration_s
        if late and not self._stopping:
            self._stopping = "the time limit of the sweep has passed"
            self._cancel_living(self._stopping)
        if limits.max_trials is not None and len(self.results.trials) >= limits.max_trials:
            self._exhausted = True
        if self._stopping:
            return
        ended = self.results.ended
        failed = [trial for trial in ended if trial.state in ("failed", "lost")]
        if len(failed) >= MAX_FIRST_FAILURES and len(failed) == len(ended):
            self._fail(f"the first {len(failed)} trials failed. Trial {failed[0].number}: {failed[0].reason}")
        silent = [trial for trial in ended if trial.state == "completed" and not trial.values]
        if silent and not self._unread and all(not trial.values for trial in self.results.trials.values()):
            self._fail(await silence_reason(self._kernel, silent[0], self.sweep.objective.metric))

    def _fail(self, reason: str) -> None:
        self._failure = self._stopping = reason
        self._cancel_living("the sweep failed")

    async def _fill(self) -> None:
        """Propose and submit trials while there is room."""
        while not (self._canceled or self._stopping or self._exhausted):
            limits = self.sweep.limits
            if len(self.results.living) >= limits.max_concurrent:
                return
            if limits.max_trials is not None and len(self.results.trials) >= limits.max_trials:
                return
            if not await self._kernel.loop.offload(self._search.ask):
                self._exhausted, self.results.message = True, "All combinations were tried."
                return
            number, params = self._search.points.popleft()
            self._follow(self._begin(number, params, self._new_run_id(number), self._next_target()))

    def _new_run_id(self, number: int) -> str:
        return new_run_id(f"{self.spec.name}-{self.results.first + number}")

    def _begin(self, number: int, params: Mapping[str, Any], run_id: str, target: str) -> Trial:
        """Write a trial to the journal, and list it."""
        event = self._append(ASK, number, params=dict(params), run_id=run_id, target=target)
        trial = self.results.trials[number] = Trial(number, params, make_handle(target, run_id), event.time)
        return trial

    # ---- an array of trials

    async def _open_array(self) -> None:
        """Let the target queue all trials together if it does that, and list them; repeated until it answers."""
        while not self._canceled:
            try:
                return await self._try_array()
            except SpecError as error:
                return self._fail(str(error))
            except TargetError as error:  # it does not answer now
                self.results.message = f"Waits for {self.targets[0]}: {error}"
                await self.results.write()
                await asyncio.sleep(SUBMIT_RETRY_S)
            except AmlTrainError as error:  # one by one it may take them
                self._array = None
                print(f"The trials are submitted one by one: {error}", flush=True)
                return

    async def _try_array(self) -> None:
        kernel, target = self._kernel, self.targets[0]
        arrays = await arrays_for(self.sweep, [kernel.backend(name) for name in self.targets])
        if arrays is None:
            return
        known, count = self.results.trials, trial_count(self.sweep)
        points = self._search.points
        await kernel.loop.offload(self._search.ask, count - len(known))
        if not known and not points:  # the sweep that this one continues has tried them all
            return
        ids = {trial.number: trial.run_id for trial in known.values()}
        ids |= {number: self._new_run_id(number) for number, _ in points}
        first = known[0].params if known else points[0][1]
        _, spec = await kernel.jobs.prepare(self._trial_spec(0, first), target)
        array = TrialArray(arrays, split_handle(self.handle)[1])
        numbers, most = sorted(ids), self.sweep.limits.max_concurrent
        await array.open(spec, [ids[number] for number in numbers], most, self._job.environ, self._job.secrets)
        if not known:
            self._append(ARRAY)
        self._array, self._exhausted, self.results.message = array, True, ""
        while points:
            number, params = points.popleft()
            self._begin(number, params, ids[number], target)
        kernel.loop.start(array.release_when(self._is_submitted), "release the trials")

    def _is_submitted(self) -> bool:
        """Whether all trials that have not ended are submitted, or were refused."""
        return all(trial.sent or (trial.task is not None and trial.task.done()) for trial in self.results.living)

    def _next_target(self) -> str:
        """Return the target with the fewest trials that have not ended, in proportion to those that it can run."""
        slots = self.spec.trial_slots
        average = sum(slots.values()) / len(slots) if slots else 1.0
        busy = Counter(trial.target for trial in self.results.living)
        return min(self.targets, key=lambda name: (busy[name] + 1) / slots.get(name, average))

    # ---- one trial

    def _follow(self, trial: Trial) -> None:
        trial.task = self._kernel.loop.start(self._run_trial(trial), f"trial {trial.number}")
        trial.task.add_done_callback(lambda _: self._wake.set())

    async def _run_trial(self, trial: Trial) -> Run:
        """Submit a trial unless its target has it, and wait for its end."""
        handle = trial.handle
        while True:
            try:
                if trial.sent or await exists(self._kernel, handle):
                    await self._kernel.find(handle)
                elif trial.cancel_requested:
                    raise TrialCanceled
                else:
                    async with self._array.submits if self._array else contextlib.nullcontext():
                        await self._submit(trial)
                break
            except CapacityError:  # it never has so many devices
                raise
            except TargetError as error:  # it does not answer now
                self._waiting.add(trial.target)
                self.results.message = f"Waits for {trial.target}: {error}"
                await asyncio.sleep(SUBMIT_RETRY_S)
                trial.state = "preparing"
        if not trial.sent:
            trial.sent = True
            self._append(SENT, trial.number)
        self._waiting.discard(trial.target)
        if self._array is None:  # those of an array may wait for long
            self._view(trial)
        return await self._kernel.wait(handle)

    def _trial_spec(self, number: int, params: Mapping[str, Any]) -> JobSpec:
        code = str(self._folder / "source" / TRIAL_FOLDER)
        return trial_of(self.spec, self.handle, self.results.first + number, params, code, self._job.parent_id)

    async def _submit(self, trial: Trial) -> None:
        if trial.cancel_requested:
            raise TrialCanceled
        spec = self._trial_spec(trial.number, trial.params)
        await self._job.submit(spec, trial.handle)

    def _view(self, trial: Trial) -> None:
        """Let the streams of a trial be read while they grow, until its last reports are taken."""
        trial.is_viewed = True
        self._kernel.change_viewers(trial.handle, 1)

    async def _wait(self) -> None:
        """Wait until a trial has ended, or its metrics should be looked at."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._wake.wait(), REPORT_INTERVAL_S)
        self._wake.clear()

    async def _advance(self, trial: Trial) -> None:
        """Take what a trial has reported, and its end."""
        entry = self._kernel.store.get(trial.handle)
        done = trial.task is not None and trial.task.done()
        if entry is not None:
            status = entry.run.status
            if not status.state.terminal:
                trial.state = status.state.value
            trial.started = entry.run.status.started
            if not trial.is_viewed and trial.sent and status.state not in _WAITING:
                self._view(trial)
            if done and not await self._is_read(trial):
                return
            self._take_reports(trial, done)
            if entry.read:
                self._unread.discard(trial.number)
        if done:
            await self._end(trial)
            self._unread.discard(trial.number)
            if trial.is_viewed and entry is not None and self._kernel.store.get(trial.handle) is entry:
                self._kernel.change_viewers(trial.handle, -1)

    async def _is_read(self, trial: Trial) -> bool:
        """Whether all metrics of an ended trial are read; a target that does not answer now is tried again."""
        entry = self._kernel.entry(trial.handle)
        if not entry.run.folder or trial.values or trial.task is None or trial.task.exception() is not None:
            return True
        try:
            await self._kernel.backend(trial.target).read(trial.run_id, "metrics", entry.offsets["metrics"], 1)
        except TargetError:
            return False
        await self._kernel.refresh_run(trial.handle)
        return True

    def _take_reports(self, trial: Trial, done: bool) -> None:
        entry = self._kernel.entry(trial.handle)
        metric = self.sweep.objective.metric
        points = entry.metrics.metrics.get(metric)
        new: list[tuple[int, float]] = []
        if points is not None:
            start = len(trial.values)
            new = list(zip(points.steps[start:], points.values[start:], strict=True))
        output = entry.run.outputs.get(metric)
        if done and points is None and isinstance(output, int | float) and not trial.values:
            new = [(0, float(output))]  # of --out
        if not new:
            return
        if self.sweep.policy is not None:
            self._append(REPORT, trial.number, **points_fields(new))
        trial.report(new)
        if points is not None:
            trial.latest = points.last
        reason = self._search.observe(trial, new)
        if reason and not trial.early and not done:
            trial.early, trial.reason = True, reason
            self._kernel.loop.start(cancel(self._kernel, trial), f"stop trial {trial.number}")

    async def _end(self, trial: Trial) -> None:
        """Write the end of a trial to the journal."""
        assert trial.task is not None
        state, reason, ended = "failed", "", time.time()
        try:
            run = trial.task.result()
            state, reason = run.status.state.value, run.error or ""
            ended = run.status.ended or ended
        except TrialCanceled:
            state = RunState.CANCELED.value
        except AmlTrainError as error:
            reason = str(error)
            if isinstance(error, CapacityError | UnknownTarget):
                self._leave(trial.target, reason)
        except Exception as error:  # the other trials go on
            log.exception("trial %d", trial.number)
            reason = f"{type(error).__name__}: {error}"
        if state == RunState.CANCELED.value:
            reason = trial.reason or reason
        elif trial.early and state == RunState.COMPLETED.value:
            trial.early = False  # it was faster
        event = self._append(
            TELL, trial.number, state=state, reason=reason, early=trial.early, value=finite(trial.latest),
            started=trial.started, ended=ended, **points_fields(trial.curve),
        )  # fmt: skip
        before = self.results.best
        trial.end(event)
        await self._kernel.loop.offload(self._search.end, trial)
        self.results.print_end(trial, self.results.best != before)
        await self.results.log_best(self._job.parent_id)

    def _leave(self, target: str, reason: str) -> None:
        """Submit no more trials to a target that can run none."""
        self.targets = [name for name in self.targets if name != target]
        if not self.targets and not self._stopping:
            self._fail(reason)

    # ---- results

    def _cancel_living(self, reason: str) -> None:
        if self._array is not None:
            self._kernel.loop.start(self._array.cancel(), "cancel the trials")
        for trial in self.results.living:
            trial.reason = trial.reason or reason
            trial.cancel_requested = True
            if self._array is None or not trial.sent:
                self._kernel.loop.start(cancel(self._kernel, trial), f"cancel trial {trial.number}")

    async def _cancel_all(self, reason: str) -> None:
        """Cancel the trials, and wait a moment for their ends."""
        self._cancel_living(reason)
        deadline = time.monotonic() + CANCEL_TIMEOUT_S
        while self.results.living and time.monotonic() < deadline:
            await self._wait()
            for trial in self.results.living:
                await self._advance(trial)
        if self._array is not None:  # what was not submitted leaves the target
            with contextlib.suppress(AmlTrainError, asyncio.TimeoutError):
                await asyncio.wait_for(self._array.release(), CANCEL_TIMEOUT_S)

    async def _finish(self) -> int:
        best = self.results.best
        if self._canceled:
            self.results.message = "The sweep was canceled."
        elif self._failure:
            self.results.message = f"{self._failure[:1].upper()}{self._failure[1:].rstrip('.')}."
        elif self._stopping:
            self.results.message = f"{self._stopping[:1].upper()}{self._stopping[1:]}."
        self._append(END, reason=self.results.message)
        await self.results.write(now=True)
        if self._failure:
            print(self.results.message, flush=True)
            return FINAL_EXIT_CODE
        if best is not None:
            print(f"Best trial: {best.number}, run {best.handle}", flush=True)
            await return_outputs(self._kernel, self._folder, self.spec.out, best, self.sweep.objective.metric)
        if not self._canceled:
            handles = [trial.handle for trial in self.results.ended if trial.task is not None]
            await wait_recorded(self._kernel, handles)
        return 0


def main() -> None:
    """Drive the sweep of the run that this process is the job of."""
    drive(SweepDriver)
