"""Driver of a sweep: a supervised run that takes no slot, asks the sampler, submits trials and stops bad ones.

It survives the kernel. After its own end the agent starts it again, and it continues from its journal: trials that
run are followed, those whose submit was interrupted are submitted under the same id.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import signal
import sys
import time
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from jupyter_amltrain.agent.protocol import CANCEL, JOB, MARK, OUTPUTS
from jupyter_amltrain.errors import AmlTrainError, CapacityError, SubmitError, TargetError, UnknownRun, UnknownTarget
from jupyter_amltrain.jobs.launch import FINAL_EXIT_CODE
from jupyter_amltrain.jobs.snapshot import TRIAL_FOLDER
from jupyter_amltrain.jobs.sweep import trial_of
from jupyter_amltrain.kernel.controller import Controller
from jupyter_amltrain.kernel.session import close, controller
from jupyter_amltrain.kernel.streams import downsample
from jupyter_amltrain.kernel.target_file import LOCAL
from jupyter_amltrain.schema.child_run import MAX_CURVE_POINTS, ChildRun, ChildRuns
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunHandle, RunState, make_handle, split_handle
from jupyter_amltrain.schema.sweep import trial_count
from jupyter_amltrain.state_dir import write_json
from jupyter_amltrain.sweeps.journal import ASK, END, REPORT, SENT, TELL, Event, SweepJournal, points_fields
from jupyter_amltrain.sweeps.metrics import log_best
from jupyter_amltrain.sweeps.policies import EarlyStopping
from jupyter_amltrain.sweeps.samplers import Proposer, importances
from jupyter_amltrain.sweeps.trials_file import TrialsFile, thinned
from jupyter_amltrain.text import new_run_id

log = logging.getLogger(__name__)

#: Seconds between two looks at the metrics of the trials, and two versions of the file with all trials.
REPORT_INTERVAL_S, WRITE_INTERVAL_S = 0.25, 1.0
#: Time between two versions of that file, as a multiple of the time that one takes, if this is longer.
WRITE_INTERVAL_FACTOR = 10
#: Seconds between two computations of the importance of the parameters.
IMPORTANCE_INTERVAL_S = 5.0
#: A sweep whose first trials all fail stops after this number.
MAX_FIRST_FAILURES = 5
#: Seconds until a submit is tried again whose target does not answer.
SUBMIT_RETRY_S = 5.0
#: Seconds until a cancel is tried again that has not reached its trial.
CANCEL_RETRY_S = 0.5
#: Seconds in which canceled trials can end before the driver does.
CANCEL_TIMEOUT_S = 6.0
#: File with the best trial, besides the values of ``--out``.
BEST = "best-trial.json"
#: Copy of the trials of the sweep that this one continues.
HISTORY = "history.json"
#: Seconds in which MLflow's records of the trials can be written before the driver ends.
RECORD_TIMEOUT_S = 60.0


class TrialCanceled(Exception):
    """A trial was canceled before its target had it."""


class Trial:
    """One trial: what the journal says, and what its run reports.

    Its steps and values are all that it has reported; after its end they are its curve.
    """

    def __init__(self, number: int, params: Mapping[str, Any], handle: RunHandle, created: float) -> None:
        self.number, self.params, self.handle, self.created = number, dict(params), handle, created
        self.sent = False
        self.cancel_requested = False
        self.state, self.reason, self.early = "preparing", "", False
        self.started: float | None = None
        self.ended: float | None = None
        self.value: float | None = None
        self.latest: float | None = None  #: value of the primary metric so far
        self._latest_step = -math.inf
        self.steps, self.values = array("q"), array("d")
        self.task: asyncio.Task[Run] | None = None

    @property
    def run_id(self) -> str:
        """Id of its run."""
        return split_handle(self.handle)[1]

    @property
    def target(self) -> str:
        """Name of its target."""
        return split_handle(self.handle)[0]

    @property
    def is_ended(self) -> bool:
        """Whether its end is in the journal."""
        return self.ended is not None

    def report(self, points: Sequence[tuple[int, float]]) -> None:
        """Add values of the primary metric with their steps."""
        self.steps.extend(step for step, _ in points)
        self.values.extend(value for _, value in points)
        for step, value in points:  # until its metrics are read, which have the times too
            if step >= self._latest_step:
                self._latest_step, self.latest = step, value

    def end(self, event: Event) -> None:
        """Set its end; its curve takes the place of its reports."""
        self.state, self.reason, self.early = event.state, event.reason, event.early
        self.started, self.ended, self.value = event.started, event.ended, event.number
        curve = event.points or self.curve
        self.steps, self.values = array("q"), array("d")
        self.report(curve)

    @property
    def curve(self) -> list[tuple[int, float]]:
        """Steps and values, at most :data:`MAX_CURVE_POINTS`."""
        return [(self.steps[i], self.values[i]) for i in downsample(self.values, MAX_CURVE_POINTS)]


class Best(NamedTuple):
    """The best trial so far, of this sweep or of the one that it continues."""

    number: int
    value: float
    handle: RunHandle
    params: Mapping[str, Any]


class SweepDriver:
    """Drives one sweep. Loop thread only.

    Parameters
    ----------
    folder
        Run folder of the driver.
    environ
        Environment of the trials on this machine; also has the values of their secrets.
    """

    def __init__(self, kernel: Controller, folder: Path, environ: Mapping[str, str]) -> None:
        job = msgspec.json.decode((folder / JOB).read_bytes())
        self.spec = msgspec.convert(job["spec"], JobSpec)
        if self.spec.sweep is None or self.spec.trial is None:
            raise SubmitError(f"{folder} is not the run of a sweep.")
        self.sweep, self.targets = self.spec.sweep, self.spec.trial_target.split(",")
        self.handle = make_handle(LOCAL.name, str(job["run"]))
        self._parent_id = str((job.get("tracking") or {}).get("run_id") or "")
        self._kernel, self._folder, self._environ = kernel, folder, dict(environ)
        self._secrets = {name: self._environ[name] for name in self.spec.secrets if name in self._environ}
        self._journal, self._file = SweepJournal(folder), TrialsFile(folder)
        self._proposer = Proposer(self.sweep)
        self._policy = EarlyStopping(self.sweep.policy, self.sweep.objective.goal)
        self.trials: dict[int, Trial] = {}
        self.history: tuple[ChildRun, ...] = ()
        self._first = 0  #: number of the first trial of this sweep
        self._began = time.time()
        self._exhausted = False
        self._waiting: set[str] = set()  #: targets that do not answer
        self._unread: set[int] = set()  #: trials of an earlier process of this driver whose metrics are not read again
        self._stopping = ""  #: why no more trials are submitted
        self._failure = ""  #: why the sweep fails
        self._canceled = False
        self._message = ""
        self._written_at = self._importance_at = -math.inf
        self._write_interval_s = WRITE_INTERVAL_S
        self._importance: dict[str, float] = {}
        self._importance_of = 0  #: number of trials that it was computed from
        self._computing: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    # ---- the journal

    def _replay(self, events: Sequence[Event]) -> None:
        """Restore the state that the events led to. Blocks on the sampler."""
        for event in events:
            trial = self.trials.get(event.trial)
            if event.op == ASK:
                if not self.trials:
                    self._began = event.time
                proposal = self._proposer.ask()
                if proposal is None or proposal[0] != event.trial:
                    raise SubmitError(f"The journal of {self.handle} does not fit its search space.")
                handle = make_handle(event.target, event.run_id)
                self.trials[event.trial] = Trial(event.trial, event.params, handle, event.time)
            elif trial is None:
                continue
            elif event.op == SENT:
                trial.sent = True
            elif event.op == REPORT:
                trial.report(event.points)
                if reason := self._observe(trial, event.points):
                    trial.early, trial.reason = True, reason
            elif event.op == TELL:
                trial.end(event)
                self._pass_end(trial)
        self._unread = {trial.number for trial in self._living if trial.sent}

    def _observe(self, trial: Trial, points: Sequence[tuple[int, float]]) -> str:
        """Pass reports to the policy; return why the trial is to be stopped."""
        reasons = [self._policy.observe(trial.number, value) for _, value in points]
        return next(filter(None, reasons), "")

    def _pass_end(self, trial: Trial) -> None:
        """Pass an end to the sampler and the policy."""
        value = trial.value if trial.value is not None and math.isfinite(trial.value) else None
        self._proposer.tell(trial.number, value)
        self._policy.finish(trial.number)

    def _append(self, op: str, trial: int = -1, **fields: Any) -> Event:
        event = Event(op=op, trial=trial, time=0.0 if op == REPORT else time.time(), **fields)
        self._journal.append(event)
        return event

    # ---- the sweep

    @property
    def _living(self) -> list[Trial]:
        return [trial for trial in self.trials.values() if not trial.is_ended]

    @property
    def _ended(self) -> list[Trial]:
        return [trial for trial in self.trials.values() if trial.is_ended]

    async def run(self) -> int:
        """Drive the sweep to its end; return the exit code of the process."""
        events = await self._kernel.loop.offload(self._journal.open)
        await self._read_history()
        await self._kernel.loop.offload(self._replay, events)
        if events:
            print(f"The driver was started again: {len(self._ended)} trials have ended, {len(self._living)} run.")
        for trial in self._living:
            self._follow(trial)
            if trial.early:  # whether its cancel was sent is unknown
                self._kernel.loop.start(self._cancel(trial), f"stop trial {trial.number}")
        try:
            while not self._canceled:
                await self._check_limits()
                await self._fill()
                if not self._living and (self._stopping or self._exhausted):
                    break
                await self._wait()
                for trial in self._living:
                    await self._advance(trial)
                await self._write()
            if self._canceled:
                await self._cancel_all("the sweep was canceled")
            return await self._finish()
        finally:
            self._journal.close()

    async def _read_history(self) -> None:
        """Read the ended trials of the sweep that this one continues; a copy stays, as that one may be deleted."""
        if not self.spec.continues:
            return
        path = self._folder / HISTORY
        if not path.exists():
            write_json(path, msgspec.to_builtins(await self._read_continued()))
        earlier = msgspec.convert(json.loads(path.read_bytes()), ChildRuns)
        ended = [trial for trial in earlier.runs if trial.ended is not None]
        self.history = tuple(msgspec.structs.replace(trial, best=False) for trial in ended)
        self._first = max(earlier.first, _next_number(ended))
        known = [(trial.params, trial.value) for trial in self.history if trial.value is not None]
        for params, value in known:
            await self._kernel.loop.offload(self._proposer.learn, params, value)
        print(f"{len(self.history)} trials of {self.spec.continues} are known.", flush=True)

    async def _read_continued(self) -> ChildRuns:
        """Return the trials of the sweep that this one continues; `first` is the first number that it cannot have.

        A sweep that has not ended may submit further trials.
        """
        target, run_id = split_handle(self.spec.continues)
        backend = self._kernel.backend(target)
        while True:
            run = await backend.find(run_id)  # before the trials: those of an ended sweep are complete
            trials = await backend.children.list(run_id)
            first = _next_number(trials.runs)
            if run is None or run.spec.sweep is None or run.status.state.terminal or self._canceled:
                return msgspec.structs.replace(trials, first=first)
            if trials.runs:
                return msgspec.structs.replace(trials, first=max(first, trials.first + trial_count(run.spec.sweep)))
            await asyncio.sleep(SUBMIT_RETRY_S)  # its driver starts

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
        if limits.max_trials is not None and len(self.trials) >= limits.max_trials:
            self._exhausted = True
        if self._stopping:
            return
        ended = self._ended
        failed = [trial for trial in ended if trial.state in ("failed", "lost")]
        if len(failed) >= MAX_FIRST_FAILURES and len(failed) == len(ended):
            self._fail(f"the first {len(failed)} trials failed. Trial {failed[0].number}: {failed[0].reason}")
        silent = [trial for trial in ended if trial.state == "completed" and not trial.values]
        if silent and not self._unread and all(not trial.values for trial in self.trials.values()):
            self._fail(await self._silence(silent[0]))

    def _fail(self, reason: str) -> None:
        self._failure = self._stopping = reason
        self._cancel_living("the sweep failed")

    async def _silence(self, trial: Trial) -> str:
        """Return why a trial without values of the primary metric ends the sweep."""
        logged: list[str] = []
        with contextlib.suppress(AmlTrainError):  # deleted in the meantime
            entry = await self._kernel.refresh_run(await self._kernel.find(trial.handle))
            logged = [*entry.metrics.metrics, *entry.run.outputs]
        names = f"it logged {', '.join(sorted(logged)[:8])}" if logged else "it logged no metric"
        metric = self.sweep.objective.metric
        return (
            f"trial {trial.number} completed without a value of {metric!r}; {names}."
            f" Log it with mlflow.log_metric({metric!r}, value), or name another metric in --goal"
        )

    async def _fill(self) -> None:
        """Propose and submit trials while there is room."""
        while not (self._canceled or self._stopping or self._exhausted):
            limits = self.sweep.limits
            if len(self._living) >= limits.max_concurrent:
                return
            if limits.max_trials is not None and len(self.trials) >= limits.max_trials:
                return
            proposal = await self._kernel.loop.offload(self._proposer.ask)
            if proposal is None:
                self._exhausted, self._message = True, "All combinations were tried."
                return
            number, params = proposal
            run_id = new_run_id(f"{self.spec.name}-{self._first + number}")
            target = self._next_target()
            event = self._append(ASK, number, params=params, run_id=run_id, target=target)
            trial = self.trials[number] = Trial(number, params, make_handle(target, run_id), event.time)
            self._follow(trial)

    def _next_target(self) -> str:
        """Return the target with the fewest trials that have not ended, in proportion to those that it can run."""
        slots = self.spec.trial_slots
        average = sum(slots.values()) / len(slots) if slots else 1.0
        busy = Counter(trial.target for trial in self._living)
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
                if trial.sent or await self._exists(handle, trial):
                    await self._kernel.find(handle)
                elif trial.cancel_requested:
                    raise TrialCanceled
                else:
                    code = str(self._folder / "source" / TRIAL_FOLDER)
                    spec = trial_of(
                        self.spec, self.handle, self._first + trial.number, trial.params, code, self._parent_id
                    )
                    await self._kernel.submit(spec, trial.target, self._environ, self._secrets, trial.run_id)
                    await self._kernel.accepted(handle)
                break
            except CapacityError:  # it never has so many devices
                raise
            except TargetError as error:  # it does not answer now
                self._waiting.add(trial.target)
                self._message = f"Waits for {trial.target}: {error}"
                await asyncio.sleep(SUBMIT_RETRY_S)
                trial.state = "preparing"
        if not trial.sent:
            trial.sent = True
            self._append(SENT, trial.number)
        self._waiting.discard(trial.target)
        self._kernel.change_viewers(handle, 1)  # until its last reports are taken
        return await self._kernel.wait(handle)

    async def _exists(self, handle: RunHandle, trial: Trial) -> bool:
        """Return whether the target has a run whose submit the journal does not confirm."""
        try:
            await self._kernel.find(handle)
        except UnknownRun:
            return False
        entry = self._kernel.store.get(handle)
        return entry is not None and bool(entry.run.folder)

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
            trial.started = _start(entry.run)
            if done and not await self._is_read(trial):
                return
            self._take_reports(trial, done)
            if entry.read:
                self._unread.discard(trial.number)
        if done:
            await self._end(trial)
            self._unread.discard(trial.number)
            if entry is not None and self._kernel.store.get(trial.handle) is entry and entry.viewers > 0:
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
        reason = self._observe(trial, new)
        if reason and not trial.early and not done:
            trial.early, trial.reason = True, reason
            self._kernel.loop.start(self._cancel(trial), f"stop trial {trial.number}")

    async def _cancel(self, trial: Trial) -> None:
        """Cancel a trial; try again while it is being submitted, or its target does not answer."""
        trial.cancel_requested = True
        while trial.task is not None and not trial.task.done():
            if self._kernel.store.get(trial.handle) is not None:
                with contextlib.suppress(AmlTrainError):
                    await self._kernel.cancel(trial.handle)
                    if trial.sent:
                        return
            await asyncio.sleep(CANCEL_RETRY_S)

    async def _end(self, trial: Trial) -> None:
        """Write the end of a trial to the journal."""
        assert trial.task is not None
        state, reason, ended = "failed", "", time.time()
        try:
            run = trial.task.result()
            state, reason = run.status.state.value, run.error or ""
            ended = _end_of(run) or ended
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
            TELL, trial.number, state=state, reason=reason, early=trial.early, value=_finite(trial.latest),
            started=trial.started, ended=ended, **points_fields(trial.curve),
        )  # fmt: skip
        before = self.best
        trial.end(event)
        await self._kernel.loop.offload(self._pass_end, trial)
        self._print(trial, self.best != before)
        if (best := self.best) is not None:
            await self._kernel.loop.offload(
                log_best, self._parent_id, self.sweep.objective.metric, best.value, len(self._ended)
            )

    def _leave(self, target: str, reason: str) -> None:
        """Submit no more trials to a target that can run none."""
        self.targets = [name for name in self.targets if name != target]
        if not self.targets and not self._stopping:
            self._fail(reason)

    def _print(self, trial: Trial, is_best: bool) -> None:
        values = ", ".join(f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
                           for name, value in trial.params.items())  # fmt: skip
        end = "stopped early" if trial.early else trial.state
        value = "" if trial.value is None else f", {self.sweep.objective.metric} {trial.value:.6g}"
        best = " (best so far)" if is_best else ""
        reason = f": {trial.reason}" if trial.reason else ""
        print(f"Trial {self._first + trial.number} {end}{value}{best} with {values}{reason}", flush=True)

    # ---- results

    @property
    def best(self) -> Best | None:
        """The completed trial with the best value, the first one of equal ones."""
        sign = 1.0 if self.sweep.objective.goal == "minimize" else -1.0
        known = [
            Best(trial.number or 0, trial.value, RunHandle(trial.handle), trial.params)
            for trial in self.history
            if trial.state == "completed" and trial.value is not None
        ]
        known += [
            Best(self._first + trial.number, trial.value, trial.handle, trial.params)
            for trial in self._ended
            if trial.state == "completed" and trial.value is not None and math.isfinite(trial.value)
        ]
        return min(known, key=lambda one: (sign * one.value, one.number), default=None)

    def _cancel_living(self, reason: str) -> None:
        for trial in self._living:
            trial.reason = trial.reason or reason
            self._kernel.loop.start(self._cancel(trial), f"cancel trial {trial.number}")

    async def _cancel_all(self, reason: str) -> None:
        """Cancel the trials, and wait a moment for their ends."""
        self._cancel_living(reason)
        deadline = time.monotonic() + CANCEL_TIMEOUT_S
        while self._living and time.monotonic() < deadline:
            await self._wait()
            for trial in self._living:
                await self._advance(trial)

    async def _finish(self) -> int:
        best = self.best
        if self._canceled:
            self._message = "The sweep was canceled."
        elif self._failure:
            self._message = f"{self._failure[:1].upper()}{self._failure[1:].rstrip('.')}."
        elif self._stopping:
            self._message = f"{self._stopping[:1].upper()}{self._stopping[1:]}."
        self._append(END, reason=self._message)
        await self._write(now=True)
        if self._failure:
            print(self._message, flush=True)
            return FINAL_EXIT_CODE
        if best is not None:
            print(f"Best trial: {best.number}, run {best.handle}", flush=True)
            await self._return_outputs(best)
        if not self._canceled:
            await self._wait_recorded()
        return 0

    async def _return_outputs(self, best: Best) -> None:
        """Make the output values of the best trial those of the sweep."""
        target, run_id = split_handle(best.handle)
        for name in self.spec.out:
            try:
                data = await self._kernel.backend(target).files.read(run_id, f"{OUTPUTS}/{name}.json")
            except AmlTrainError as error:  # the sweep is still complete
                print(f"--out {name} of {best.handle} cannot be read: {error}", flush=True)
                continue
            if data:
                (self._folder / OUTPUTS / f"{name}.json").write_bytes(data)
        found = {"run": best.handle, "params": best.params, "metric": self.sweep.objective.metric, "value": best.value}
        write_json(self._folder / OUTPUTS / BEST, found)

    async def _wait_recorded(self) -> None:
        """Wait until MLflow has the records of the trials that this process has followed."""
        deadline = time.monotonic() + RECORD_TIMEOUT_S
        handles = [trial.handle for trial in self._ended if trial.task is not None]
        while time.monotonic() < deadline:
            entries = [entry for handle in handles if (entry := self._kernel.store.get(handle)) is not None]
            if not any(entry.run.tracking == "pending" and entry.run.project for entry in entries):
                return
            await asyncio.sleep(0.1)

    async def _write(self, now: bool = False) -> None:
        """Write the file with all trials, which the kernels read."""
        began = time.monotonic()
        if not now and began - self._written_at < self._write_interval_s:
            return
        if now:
            await self._compute_importance()
        elif time.monotonic() - self._importance_at >= IMPORTANCE_INTERVAL_S and not self._is_computing:
            # The first one imports for a second: trials that end meanwhile must not wait for it.
            self._computing = self._kernel.loop.start(self._compute_importance(), "importance")
        best = self.best
        number = None if best is None else best.number
        self.history = thinned(self.history, self._file.points)
        rows = [msgspec.structs.replace(trial, best=trial.number == number) for trial in self.history]
        rows += [self._row(trial, self._first + trial.number == number) for trial in self.trials.values()]
        children = ChildRuns(runs=tuple(rows), first=self._first, importance=self._importance, message=self._message)
        await self._kernel.loop.offload(self._file.write, children)
        self._written_at = time.monotonic()
        self._write_interval_s = max(WRITE_INTERVAL_S, WRITE_INTERVAL_FACTOR * (self._written_at - began))

    @property
    def _is_computing(self) -> bool:
        return self._computing is not None and not self._computing.done()

    async def _compute_importance(self) -> None:
        known = [(one.params, one.value, one.state) for one in self.history]
        known += [(trial.params, trial.value, trial.state) for trial in self._ended]
        pairs = [(params, value) for params, value, state in known if value is not None and state == "completed"]
        if len(pairs) != self._importance_of:
            self._importance = await self._kernel.loop.offload(importances, self.sweep, pairs)
            self._importance_of = len(pairs)
        self._importance_at = time.monotonic()

    def _row(self, trial: Trial, is_best: bool) -> ChildRun:
        curve = trial.curve
        return ChildRun(
            id=trial.run_id,
            name=f"{self.spec.name}-{self._first + trial.number}",
            kind="trial",
            state=trial.state,
            detail=trial.reason,
            metric=self.sweep.objective.metric,
            value=trial.value if trial.is_ended else _finite(trial.latest),
            best=is_best,
            created=trial.created,
            started=trial.started,
            ended=trial.ended,
            number=self._first + trial.number,
            params=trial.params,
            handle=trial.handle if trial.sent else "",
            early=trial.early,
            steps=tuple(step for step, _ in curve),
            values=tuple(value if math.isfinite(value) else None for _, value in curve),
        )


def _next_number(trials: Sequence[ChildRun]) -> int:
    """Return the number after those of all trials."""
    return 1 + max((trial.number for trial in trials if trial.number is not None), default=-1)


def _finite(value: float | None) -> float | None:
    """Return a value that trials can be compared by: a trial that ends with NaN is not the best one."""
    return value if value is not None and math.isfinite(value) else None


def _start(run: Run) -> float | None:
    return next((phase.start for phase in run.status.phases if phase.name == "running"), None)


def _end_of(run: Run) -> float | None:
    return (run.status.phases[-1].end or run.status.phases[-1].start) if run.status.phases else None


def main() -> None:
    """Drive the sweep of the run that this process is the job of."""
    run_id = os.environ[MARK].rpartition(":")[0]
    folder = Path(os.environ["AML_OUTPUT_DIR"]).parent
    kernel = controller()

    async def create() -> SweepDriver:
        return SweepDriver(kernel, folder, os.environ)

    driver = kernel.loop.call(create())
    if driver.handle != make_handle(LOCAL.name, run_id):
        raise SystemExit(f"{folder} is not the folder of {run_id}.")

    def on_sigterm(*_: object) -> None:
        if (folder / CANCEL).exists():
            kernel.loop.post(_call(driver.stop))
        else:  # the machine goes away, or the agent: the trials go on, and the next attempt follows them
            os._exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, on_sigterm)
    if (folder / CANCEL).exists():  # canceled before this handler was there
        driver.stop()
    code = kernel.loop.call(driver.run(), None)
    close()
    sys.exit(code)


async def _call(function: Any) -> None:
    function()
