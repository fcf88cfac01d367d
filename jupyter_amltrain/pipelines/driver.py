"""Driver of a pipeline: a supervised run that takes no slot, starts each step when it can, and uses results again.

It survives the kernel. After its own end the agent starts it again, and it continues from its journal: steps that run
are followed, those whose submit was interrupted are submitted under the same id.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from jupyter_amltrain.agent.protocol import OUTPUTS
from jupyter_amltrain.errors import AmlTrainError, CapacityError, SubmitError, TargetError, UnknownRun
from jupyter_amltrain.jobs.launch import FINAL_EXIT_CODE
from jupyter_amltrain.kernel.driven_runs import cancel, exists, wait_recorded
from jupyter_amltrain.kernel.driver_process import DriverJob, drive
from jupyter_amltrain.kernel.journal import Journal
from jupyter_amltrain.pipelines import step_code
from jupyter_amltrain.pipelines.kept_steps import KeptStep, KeptSteps
from jupyter_amltrain.pipelines.pipeline_event import END, FILE, FINISH, SENT, START, PipelineEvent
from jupyter_amltrain.pipelines.plan import DATA, ONLY, VALUE, Link, PipelinePlan, dependents, last_values
from jupyter_amltrain.pipelines.split import PART, files_of_pattern, part_input
from jupyter_amltrain.pipelines.step_inputs import StepInputs
from jupyter_amltrain.pipelines.step_output import StepOutput, content_digest, node_of, outputs_of, outputs_of_parts
from jupyter_amltrain.pipelines.step_run import StepRun
from jupyter_amltrain.schema.child_run import ChildRuns
from jupyter_amltrain.schema.inputs import JobInput
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunState, split_handle
from jupyter_amltrain.sweeps.outputs import BEST
from jupyter_amltrain.sweeps.trials_file import TrialsFile
from jupyter_amltrain.text import new_run_id, seconds_text

log = logging.getLogger(__name__)

#: Seconds between two looks at the states of the steps.
LOOK_INTERVAL_S = 0.25
#: Seconds until a request is tried again whose target does not answer.
RETRY_S = 5.0
#: Seconds in which canceled steps can end before the driver does.
CANCEL_TIMEOUT_S = 6.0
#: Fewest seconds for MLflow's records of the steps at the end, and as a share of the pipeline's time: whoever waits for
#: a short pipeline would wait longer for its records than for its steps.
RECORD_S, RECORD_SHARE = 3.0, 0.1


class StepCanceled(Exception):
    """A step was canceled before its target had it."""


class PipelineDriver:
    """Drives one pipeline. Loop thread only."""

    def __init__(self, job: DriverJob) -> None:
        kernel, folder = job.kernel, job.folder
        self.spec, self.handle = job.spec, job.handle
        if self.spec.driver is None:
            raise SubmitError(f"{folder} is not the run of a pipeline.")
        self.plan = msgspec.convert(self.spec.driver.plan, PipelinePlan)
        self.jobs = self.spec.driver.jobs
        self._job, self._kernel, self._folder = job, kernel, folder
        self._journal = Journal(folder / FILE, PipelineEvent, "pipeline")
        self._kept, self._rows = KeptSteps(), TrialsFile(folder)
        self.steps = {step.name: StepRun(step) for step in self.plan.steps}
        self._given = StepInputs(kernel, folder)
        self._parts: dict[str, list[StepRun]] = {}  #: of split steps, by the name of the step
        self._must_run, self._may_not_run = self.plan.must_run(), self.plan.may_not_run()
        self._message = ""
        self._canceled = False
        self._wake = asyncio.Event()
        self._began = time.monotonic()

    # ---- the journal

    def _replay(self, events: Sequence[PipelineEvent]) -> None:
        """Restore the state that the events led to."""
        for event in events:
            if (step := self._step(event.step)) is None:
                continue
            if event.op == START:
                step.begin(event)
            elif event.op == SENT:
                step.sent = True
            elif event.op == END:
                step.end(event)

    def _step(self, name: str) -> StepRun | None:
        """Return a step, or a part of a split one, which a journal may name before the step begins again."""
        owner, colon, number = name.partition(":")
        if not colon or owner not in self.steps:
            return self.steps.get(owner)
        parts = self._parts.setdefault(owner, [])
        while len(parts) <= int(number):
            parts.append(StepRun(self.steps[owner].step, f"{owner}:{len(parts)}"))
        return parts[int(number)]

    def _append(self, op: str, step: str = "", **fields: Any) -> PipelineEvent:
        event = PipelineEvent(op=op, step=step, time=time.time(), **fields)
        self._journal.add(event)
        return event

    # ---- the pipeline

    async def run(self) -> int:
        """Drive the pipeline to its end; return the exit code of the process."""
        events = await self._kernel.loop.offload(self._journal.open)
        self._replay(events)
        if events:
            ended = sum(step.is_ended for step in self.steps.values())
            print(f"The driver was started again: {ended} of {len(self.steps)} steps have ended.", flush=True)
        try:
            while not self._canceled:
                self._skip()
                self._begin_ready()
                await self._write()
                if all(step.is_ended for step in self.steps.values()):
                    break
                await self._wait()
                self._look()
            if self._canceled:
                await self._cancel_all()
            return await self._finish()
        finally:
            self._journal.close()

    def stop(self) -> None:
        """Cancel the steps and end, because the pipeline was canceled."""
        self._canceled = True
        self._wake.set()

    @property
    def _failed(self) -> list[StepRun]:
        return [step for step in self.steps.values() if step.ended is not None and not step.is_completed]

    @property
    def _living(self) -> list[StepRun]:
        every = [*self.steps.values(), *(part for parts in self._parts.values() for part in parts)]
        return [step for step in every if not step.is_ended and step.task is not None]

    def _skip(self) -> None:
        """Note the steps that never start: their inputs are missing, or a step has failed."""
        for failed in self._failed:
            for name in dependents(self.plan.steps, failed.name)[1:]:
                step = self.steps[name]
                if not step.is_ended and step.task is None:
                    step.skip(f"needs {failed.name}, which has not completed")
        if self._failed and not self.plan.keep_going:
            for step in self.steps.values():
                if not step.is_ended and step.task is None and not step.has_run:
                    step.skip(f"not started, because {self._failed[0].name} has not completed")
        after = dependents(self.plan.steps, self.plan.named)[1:] if self.plan.reuse == ONLY else ()
        for name in after:
            if not self.steps[name].is_ended:
                self.steps[name].skip(f"not started, because only {self.plan.named} was to run")

    def _begin_ready(self) -> None:
        """Start the steps whose inputs are there."""
        for step in self.steps.values():
            is_ready = all(self.steps[name].is_completed for name in step.step.needs)
            if step.task is None and not step.is_ended and is_ready:
                self._follow(step, self._run_step(step))

    def _follow(self, step: StepRun, work: Any) -> None:
        step.task = self._kernel.loop.start(work, f"step {step.name}")
        step.task.add_done_callback(lambda _: self._wake.set())

    async def _wait(self) -> None:
        """Wait until a step has ended, or the states should be looked at."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._wake.wait(), LOOK_INTERVAL_S)
        self._wake.clear()

    def _look(self) -> None:
        """Take the states of the runs."""
        for step in self._living:
            entry = self._kernel.store.get(step.handle) if step.has_run else None
            if entry is not None and not entry.run.status.state.terminal:
                step.state, step.started = entry.run.status.state.value, entry.run.status.started

    # ---- one step

    async def _run_step(self, step: StepRun, part: JobInput | None = None) -> None:
        """Bring a step, or a part of a split one with its file, to its end, and write it to the journal."""
        begun, is_split = time.time(), bool(step.step.split) and part is None
        fields: dict[str, Any] = {"state": RunState.FAILED.value}
        try:
            fields = await (self._run_parts(step) if is_split else self._run_one(step, part))
        except StepCanceled:
            fields = {"state": RunState.CANCELED.value}
        except AmlTrainError as error:
            fields["reason"] = str(error)
        except Exception as error:  # the other steps go on
            log.exception("step %s", step.name)
            fields["reason"] = f"{type(error).__name__}: {error}"
        fields.setdefault("ended", time.time())
        fields.setdefault("started", begun if is_split else step.started)
        step.end(self._append(END, step.name, **fields))
        self._print_end(step)

    async def _run_one(self, step: StepRun, part: JobInput | None = None) -> dict[str, Any]:
        """Run a step or use its earlier result; return the fields of its end.

        Parameters
        ----------
        part
            Of a part of a split step: its file.
        """
        taken, data, key = await self._inputs(step, part)
        spec = self.jobs[step.step.name]
        if not step.has_run:
            if (kept := await self._earlier(step, key)) is not None:
                reason = f"Unchanged: the result of {kept.handle} is used."
                return {"state": RunState.COMPLETED.value, "reused": kept.handle, "outputs": kept.outputs,
                        "reason": reason, "started": None}  # fmt: skip
            run_id = new_run_id(f"{self.spec.name}-{step.name.replace(':', '-')}")
            step.begin(self._append(START, step.name, run_id=run_id, target=step.step.target, key=key))
        job = await self._kernel.loop.offload(step_code.with_taken, spec, taken, data)
        run = await self._submitted(step, job, taken)
        outputs: dict[str, StepOutput] = {}
        state, reason = run.status.state.value, run.error or ""
        if run.status.state is RunState.COMPLETED:
            try:
                outputs = await self._answered(step, lambda: self._outputs(run, spec))
                reason = ""
                await self._keep(step, run, outputs)
            except AmlTrainError as error:  # what others need does not exist
                state, reason = RunState.FAILED.value, str(error)
        return {"state": state, "reason": reason, "outputs": outputs, "started": run.status.started,
                "ended": run.status.ended or time.time()}  # fmt: skip

    async def _inputs(
        self, step: StepRun, part: JobInput | None
    ) -> tuple[dict[str, dict[str, Any]], dict[str, JobInput], str]:
        """Return the values and the data that a step takes of others, and what its result depends on."""
        given = {name: self._output(link) for name, link in step.step.links.items()}
        taken = {name: node_of(given[name]) for name, link in step.step.links.items() if link.kind == VALUE}
        data: dict[str, JobInput] = {}
        for name in given.keys() - taken.keys():
            read = functools.partial(self._given.data, given[name], step.step.target)
            data[name] = await self._answered(step, read)
        more: dict[str, str] = {}
        if part is not None:
            data[PART] = part
            more[PART] = await self._kernel.loop.offload(content_digest, part.path)
        known = {name: output.identity for name, output in given.items()}
        return taken, data, await self._given.key(step.step, self.jobs[step.step.name], known, more)

    def _output(self, link: Link) -> StepOutput:
        outputs = self.steps[link.step].outputs
        if link.output not in outputs:
            raise UnknownRun(f"{self.steps[link.step].handle} has no {link.output}.", hint="Run the step again.")
        return outputs[link.output]

    async def _earlier(self, step: StepRun, key: str) -> KeptStep | None:
        """Return the result of an earlier run of a step that may be used.

        Raises
        ------
        UnknownRun
            There is none, and the step may not run.
        """
        name = step.step.name
        found = None if name in self._must_run else await self._kernel.loop.offload(self._kept.find, key)
        if found is not None and any(output.kind == DATA for output in found.outputs.values()) and not found.folder:
            try:
                await self._answered(step, lambda: self._kernel.find(found.handle))
            except UnknownRun:
                found = None
        if found is None and name in self._may_not_run:
            raise UnknownRun(
                f"Step {name!r} has no result to use: it has changed, or was never run.",
                hint=f"Run it: %aml_pipeline submit {' '.join(self.steps)}",
            )
        return found

    async def _submitted(self, step: StepRun, job: JobSpec, taken: Mapping[str, dict[str, Any]]) -> Run:
        """Submit a step unless its target has it, and wait for its end."""
        handle = step.handle

        async def submit() -> None:
            if step.sent or await exists(self._kernel, handle):
                await self._kernel.find(handle)
                return
            if step.cancel_requested or self._canceled:
                raise StepCanceled
            spec = await self._kernel.loop.offload(
                step_code.run_of, job, self._folder, step.name, taken, self.handle, self._job.parent_id
            )
            await self._job.submit(spec, handle)

        await self._answered(step, submit)
        if not step.sent:
            step.sent = True
            self._append(SENT, step.name)
        return await self._kernel.wait(handle)

    async def _answered(self, step: StepRun, call: Any) -> Any:
        """Return the result of a call, which is repeated while its target does not answer."""
        while True:
            try:
                found = await call()
                self._message = ""
                return found
            except CapacityError:  # it never has so many devices
                raise
            except TargetError as error:
                self._message = f"Step {step.name} waits for {step.step.target}: {error}"
                await asyncio.sleep(RETRY_S)
                if self._canceled:
                    raise StepCanceled from None

    async def _outputs(self, run: Run, spec: JobSpec) -> dict[str, StepOutput]:
        if spec.trial is not None:  # a search: what its best trial has made
            data = await self._kernel.backend(run.target).files.read(run.run_id, f"{OUTPUTS}/{BEST}")
            handle = await self._kernel.find(str(msgspec.json.decode(data or b"{}").get("run", "")))
            run, spec = await self._kernel.load(handle), spec.trial
        return await outputs_of(self._kernel.loop, self._kernel.backend(run.target), run, spec)

    async def _keep(self, step: StepRun, run: Run, outputs: dict[str, StepOutput]) -> None:
        """Remember a result for later pipelines."""
        started, ended = run.status.started, run.status.ended
        is_local = self._kernel.backend(run.target).files.are_local
        kept = KeptStep(
            handle=run.handle,
            outputs=outputs,
            folder=run.folder if is_local else "",
            seconds=ended - started if started and ended else None,
            made=time.time(),
        )
        with contextlib.suppress(OSError):  # the step is still complete
            await self._kernel.loop.offload(self._kept.add, step.key, kept)

    # ---- a step for each file

    async def _run_parts(self, step: StepRun) -> dict[str, Any]:
        """Run a step once for each file of a pattern, and gather what the runs make."""
        paths = await self._kernel.loop.offload(files_of_pattern, step.step.split, self.jobs[step.name].notebook_dir)
        last = self._step(f"{step.name}:{len(paths) - 1}")
        assert last is not None
        parts = self._parts[step.name][: len(paths)]
        step.state = RunState.RUNNING.value
        for part, path in zip(parts, paths, strict=True):
            if not part.is_ended:
                self._follow(part, self._run_step(part, part_input(path, self._kernel.backend(step.step.target))))
        await asyncio.gather(*(part.task for part in parts if part.task is not None))
        if failed := next((part for part in parts if not part.is_completed), None):
            state = RunState.CANCELED.value if self._canceled else RunState.FAILED.value
            number = int(failed.name.rpartition(":")[2])
            return {"state": state, "reason": f"{Path(paths[number]).name}: {failed.reason}"}
        outputs = outputs_of_parts([part.outputs for part in parts])
        reused = sum(bool(part.reused) for part in parts)
        reason = f"{reused} of {len(parts)} files are unchanged." if reused else ""
        return {"state": RunState.COMPLETED.value, "outputs": outputs, "reason": reason}

    # ---- ends

    def _print_end(self, step: StepRun) -> None:
        took = f" in {seconds_text(step.ended - step.started)}" if step.ended and step.started else ""
        print(f"{step.name}: {step.state}{took}{f'. {step.reason}' if step.reason else ''}", flush=True)

    async def _cancel_all(self) -> None:
        """Cancel the steps, and wait a moment for their ends."""
        for step in self._living:
            self._kernel.loop.start(cancel(self._kernel, step), f"cancel step {step.name}")
        for step in self.steps.values():
            if step.task is None and not step.is_ended:
                step.skip("the pipeline was canceled")
        deadline = time.monotonic() + CANCEL_TIMEOUT_S
        while self._living and time.monotonic() < deadline:
            await self._wait()
            await self._write()

    async def _write(self) -> None:
        """Write the rows of the steps."""
        rows = [step.row for step in self.steps.values()]
        rows += [part.row for parts in self._parts.values() for part in parts if part.created is not None]
        with contextlib.suppress(OSError):  # no space is left: the journal has it
            await self._kernel.loop.offload(self._rows.write, ChildRuns(runs=tuple(rows), message=self._message))

    async def _finish(self) -> int:
        failed = self._failed
        if self._canceled:
            self._message = "The pipeline was canceled."
        elif failed:
            self._message = f"Step {failed[0].name} has not completed: {failed[0].reason or failed[0].state}"
        elif reused := sum(bool(step.reused) for step in self.steps.values()):
            self._message = f"{reused} of {len(self.steps)} steps were unchanged."
        self._append(FINISH, reason=self._message)
        await self._write()
        if failed and not self._canceled:
            print(self._message, flush=True)
            return FINAL_EXIT_CODE
        if not self._canceled:
            await self._return_values()
            handles = [step.handle for step in self.steps.values() if step.has_run and step.task is not None]
            took = time.monotonic() - self._began
            await wait_recorded(self._kernel, handles, max(RECORD_S, RECORD_SHARE * took))
            await self._kernel.loop.offload(self._kept.prune)
        return 0

    async def _return_values(self) -> None:
        """Make the values that no step takes those of the pipeline."""
        makers = last_values(self.plan.steps)
        for name in self.spec.out:
            step = self.steps[makers[name]]
            if not step.is_completed or step.step.split:
                continue
            target, run_id = split_handle(step.handle)
            try:
                await self._kernel.find(step.handle)
                folder = await self._kernel.backend(target).files.local_copy(run_id, OUTPUTS)
                if folder is not None:
                    await self._kernel.loop.offload(_copy_value, Path(folder), self._folder / OUTPUTS, name)
            except AmlTrainError as error:  # the pipeline is still complete
                print(f"--out {name} of {step.handle} cannot be read: {error}", flush=True)


def _copy_value(source: Path, to: Path, name: str) -> None:
    """Copy the files of a value of ``--out``. Blocks on the disk."""
    for path in source.glob(f"{name}.*"):
        if path.is_dir():
            shutil.copytree(path, to / path.name, dirs_exist_ok=True)
        else:
            shutil.copyfile(path, to / path.name)


def main() -> None:
    """Drive the pipeline of the run that this process is the job of."""
    drive(PipelineDriver)
