"""Driver of a sweep: a supervised run that takes no slot, asks the sampler, submits trials and stops bad ones.

It survives the kernel. After its own end the agent starts it again, and it continues from its journal: trials that
run are followed, those whose submit was interrupted are submitted under the same id.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from jupyter_amltrain.agent.protocol import CANCEL, JOB, MARK, OUTPUTS
from jupyter_amltrain.errors import AmlTrainError, CapacityError, SubmitError, TargetError, UnknownRun, UnknownTarget
from jupyter_amltrain.jobs.launch import FINAL_EXIT_CODE
from jupyter_amltrain.jobs.snapshot import TRIAL_FOLDER
from jupyter_amltrain.jobs.sweep import trial_of
from jupyter_amltrain.kernel.controller import Controller
from jupyter_amltrain.kernel.session import close, controller
from jupyter_amltrain.kernel.target_file import LOCAL
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunHandle, RunState, make_handle, split_handle
from jupyter_amltrain.state_dir import write_json
from jupyter_amltrain.sweeps.continued import read_history
from jupyter_amltrain.sweeps.policies import EarlyStopping
from jupyter_amltrain.sweeps.results import SweepResults
from jupyter_amltrain.sweeps.samplers import Proposer
from jupyter_amltrain.sweeps.sweep_journal import ASK, END, REPORT, SENT, TELL, Event, SweepJournal, points_fields
from jupyter_amltrain.sweeps.trial import Best, Trial, TrialCanceled, finite
from jupyter_amltrain.text import new_run_id

log = logging.getLogger(__name__)

#: Seconds between two looks at the metrics of the trials.
REPORT_INTERVAL_S = 0.25
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
#: Seconds in which MLflow's records of the trials can be written before the driver ends.
RECORD_TIMEOUT_S = 60.0


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
        self._journal = SweepJournal(folder)
        self.results = SweepResults(kernel.loop, self.spec, self.sweep, folder)
        self._proposer = Proposer(self.sweep)
        self._policy = EarlyStopping(self.sweep.policy, self.sweep.objective.goal)
        self._began = time.time()
        self._exhausted = False
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
                proposal = self._proposer.ask()
                if proposal is None or proposal[0] != event.trial:
                    raise SubmitError(f"The journal of {self.handle} does not fit its search space.")
                handle = make_handle(event.target, event.run_id)
                self.results.trials[event.trial] = Trial(event.trial, event.params, handle, event.time)
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
        self._unread = {trial.number for trial in self.results.living if trial.sent}

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

    async def run(self) -> int:
        """Drive the sweep to its end; return the exit code of the process."""
        events = await self._kernel.loop.offload(self._journal.open)
        await self._learn_history()
        await self._kernel.loop.offload(self._replay, events)
        if events:
            ended, living = len(self.results.ended), len(self.results.living)
            print(f"The driver was started again: {ended} trials have ended, {living} run.")
        for trial in self.results.living:
            self._follow(trial)
            if trial.early:  # whether its cancel was sent is unknown
                self._kernel.loop.start(self._cancel(trial), f"stop trial {trial.number}")
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
                await self._kernel.loop.offload(self._proposer.learn, trial.params, trial.value)
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
            if len(self.results.living) >= limits.max_concurrent:
                return
            if limits.max_trials is not None and len(self.results.trials) >= limits.max_trials:
                return
            proposal = await self._kernel.loop.offload(self._proposer.ask)
            if proposal is None:
                self._exhausted, self.results.message = True, "All combinations were tried."
                return
            number, params = proposal
            run_id = new_run_id(f"{self.spec.name}-{self.results.first + number}")
            target = self._next_target()
            event = self._append(ASK, number, params=params, run_id=run_id, target=target)
            trial = self.results.trials[number] = Trial(number, params, make_handle(target, run_id), event.time)
            self._follow(trial)

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
                if trial.sent or await self._exists(handle, trial):
                    await self._kernel.find(handle)
                elif trial.cancel_requested:
                    raise TrialCanceled
                else:
                    code = str(self._folder / "source" / TRIAL_FOLDER)
                    spec = trial_of(
                        self.spec, self.handle, self.results.first + trial.number, trial.params, code, self._parent_id
                    )
                    await self._kernel.jobs.submit(spec, trial.target, self._environ, self._secrets, trial.run_id)
                    await self._kernel.accepted(handle)
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
            TELL, trial.number, state=state, reason=reason, early=trial.early, value=finite(trial.latest),
            started=trial.started, ended=ended, **points_fields(trial.curve),
        )  # fmt: skip
        before = self.results.best
        trial.end(event)
        await self._kernel.loop.offload(self._pass_end, trial)
        self.results.print_end(trial, self.results.best != before)
        await self.results.log_best(self._parent_id)

    def _leave(self, target: str, reason: str) -> None:
        """Submit no more trials to a target that can run none."""
        self.targets = [name for name in self.targets if name != target]
        if not self.targets and not self._stopping:
            self._fail(reason)

    # ---- results

    def _cancel_living(self, reason: str) -> None:
        for trial in self.results.living:
            trial.reason = trial.reason or reason
            self._kernel.loop.start(self._cancel(trial), f"cancel trial {trial.number}")

    async def _cancel_all(self, reason: str) -> None:
        """Cancel the trials, and wait a moment for their ends."""
        self._cancel_living(reason)
        deadline = time.monotonic() + CANCEL_TIMEOUT_S
        while self.results.living and time.monotonic() < deadline:
            await self._wait()
            for trial in self.results.living:
                await self._advance(trial)

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
        handles = [trial.handle for trial in self.results.ended if trial.task is not None]
        while time.monotonic() < deadline:
            entries = [entry for handle in handles if (entry := self._kernel.store.get(handle)) is not None]
            if not any(entry.run.tracking == "pending" and entry.run.project for entry in entries):
                return
            await asyncio.sleep(0.1)


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
