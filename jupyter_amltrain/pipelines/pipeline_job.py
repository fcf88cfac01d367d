"""Job of a pipeline: the driver with its plan and the jobs of its steps, each checked for its target."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from jupyter_amltrain.backends.agent_backend import AgentBackend
from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.errors import CommandError, SpecError
from jupyter_amltrain.jobs.driver import DRIVER_RESTARTS, driver_script
from jupyter_amltrain.kernel.job_submitter import JobSubmitter
from jupyter_amltrain.kernel.target_file import LOCAL
from jupyter_amltrain.pipelines.plan import (
    DATA,
    ONLY,
    REUSE,
    VALUE,
    Link,
    PipelinePlan,
    PlannedStep,
    ancestors,
    last_values,
    ordered,
    unknown_step,
)
from jupyter_amltrain.pipelines.split import PART, files_of_pattern
from jupyter_amltrain.pipelines.step_code import with_taken
from jupyter_amltrain.pipelines.steps import StepDefinition, linked, with_params
from jupyter_amltrain.schema.asset_names import STORE_ADDRESS
from jupyter_amltrain.schema.inputs import JobInput
from jupyter_amltrain.schema.job import DriverPlan, JobSpec, Resources

#: What the driver drives, as people call it.
KIND = "pipeline"
DRIVER_NAME = "aml_pipeline_driver.py"


class PipelineRequest(NamedTuple):
    """What a line or a call wants to run.

    Attributes
    ----------
    name, experiment, tags, project
        Of the run of the pipeline.
    target
        Where steps run that name no target; empty for the one in use.
    reuse, named, keep_going
        As of :class:`~jupyter_amltrain.pipelines.plan.PipelinePlan`.
    """

    steps: tuple[StepDefinition, ...]
    name: str
    params: Mapping[str, Any] = {}
    target: str = ""
    experiment: str = "default"
    tags: Mapping[str, str] = {}
    project: str = ""
    reuse: str = REUSE
    named: str = ""
    keep_going: bool = False


async def pipeline_job(submitter: JobSubmitter, request: PipelineRequest) -> JobSpec:
    """Return the job of a pipeline's driver. Sends nothing.

    Raises
    ------
    AmlTrainError
        The graph is not sound, or a step cannot run on its target.
    """
    if request.named and request.named not in {step.name for step in request.steps}:
        raise unknown_step(request.named, [step.name for step in request.steps])
    definitions = with_params(request.steps, request.params)
    by_name = {step.name: step for step in definitions}
    steps: list[PlannedStep] = []
    jobs: dict[str, JobSpec] = {}
    for step in ordered(linked(definitions, request.target)):
        target, jobs[step.name] = await _checked(submitter, step, by_name[step.name])
        steps.append(msgspec.structs.replace(step, target=target))
    plan = PipelinePlan(steps=tuple(steps), reuse=request.reuse, named=request.named, keep_going=request.keep_going)
    first = next(iter(jobs.values()))
    return JobSpec(
        name=request.name,
        script=driver_script("jupyter_amltrain.pipelines.driver"),
        script_name=DRIVER_NAME,
        params=dict(request.params),
        out=tuple(_returned(plan)),
        secrets=tuple(dict.fromkeys(name for job in jobs.values() for name in job.secrets)),
        resources=Resources(gpus=0),
        experiment=request.experiment,
        tracking_uri=first.tracking_uri,
        tags=dict(request.tags),
        max_restarts=DRIVER_RESTARTS,
        no_lines=True,  # it waits for its steps
        notebook_dir=first.notebook_dir,
        project=request.project or first.project,
        python=sys.executable,
        notes=tuple(_notes(jobs)),
        driver=DriverPlan(kind=KIND, plan=msgspec.to_builtins(plan), jobs=jobs),
    )


async def _checked(submitter: JobSubmitter, step: PlannedStep, definition: StepDefinition) -> tuple[str, JobSpec]:
    """Return the target of a step and its job as the target runs it, checked with stand-ins for its inputs."""
    spec = msgspec.structs.replace(definition.spec, name=definition.name)
    own = set(spec.inputs)
    backend = submitter.backend(await submitter.target_name(step.target or None))
    data = {name: stand_in(backend, link.type) for name, link in step.links.items() if link.kind == DATA}
    taken = {name: {"as": "json", "value": 0} for name, link in step.links.items() if link.kind == VALUE}
    if step.split:
        files_of_pattern(step.split, spec.notebook_dir)
        data[PART] = stand_in(backend, "uri_file")
    checked = with_taken(spec, taken, data)
    try:
        if definition.sweep is None:
            target, found = await submitter.prepare(checked, step.target or None)
        else:
            target, found = await submitter.sweep_job(checked, definition.sweep, step.target or None)
    except CommandError as error:
        raise error.about(f"Step {step.name!r}") from None
    if definition.sweep is not None:
        return target, _search(step, spec, found, own)
    inputs = {name: value for name, value in found.inputs.items() if name in own}
    return target, msgspec.structs.replace(
        found, inputs=inputs, script=spec.script, params=spec.params, values=spec.values, notes=definition.spec.notes
    )


def _search(step: PlannedStep, spec: JobSpec, found: JobSpec, own: set[str]) -> JobSpec:
    """Return the job of a search whose trials take what other steps make."""
    if found.trial is None:
        raise SpecError(
            f"Step {step.name!r}: {step.target!r} runs searches itself, which cannot be steps.",
            hint="Submit it alone: %%aml_sweep, or choose a machine: --target local",
            code="pipeline.sweep",
        )
    inputs = {name: value for name, value in found.trial.inputs.items() if name in own}
    trial = msgspec.structs.replace(
        found.trial, inputs=inputs, script=spec.script, params=spec.params, values=spec.values
    )
    return msgspec.structs.replace(found, trial=trial, notes=spec.notes)


def stand_in(backend: Backend, kind: str = "uri_folder") -> JobInput:
    """Return an input that exists where a backend runs jobs, in place of one that a step will make."""
    if not isinstance(backend, AgentBackend):
        return JobInput(type=kind, path=f"{STORE_ADDRESS}x")
    return JobInput(type=kind, path=sys.executable if kind == "uri_file" and backend.files.are_local else "/")


def _returned(plan: PipelinePlan) -> Iterable[str]:
    """Yield the values that the pipeline has as its own: those that no step takes."""
    run = set(ancestors(plan.steps, plan.named)) if plan.reuse == ONLY else {step.name for step in plan.steps}
    split = {step.name for step in plan.steps if step.split}
    for name, step in last_values(plan.steps).items():
        if step in run - split:
            yield name


def _notes(jobs: Mapping[str, JobSpec]) -> list[str]:
    return list(dict.fromkeys(f"{name}: {note}" for name, job in jobs.items() for note in job.notes))


async def driver_of_file(submitter: JobSubmitter, spec: JobSpec, target: str) -> tuple[str, JobSpec] | None:
    """Return target and job of a driver for a file of ``type: pipeline`` on a target that runs single jobs.

    A service runs such a file itself: then ``None``.
    """
    if spec.job_type != KIND or not isinstance(submitter.backend(target), AgentBackend):
        return None
    from jupyter_amltrain.pipelines.pipeline_file import steps_of_file

    found = await submitter.loop.offload(steps_of_file, spec)
    steps = [msgspec.structs.replace(step, target="") for step in found]  # the line has chosen a machine
    request = PipelineRequest(
        steps=tuple(steps), name=spec.name, target=target, experiment=spec.experiment, tags=spec.tags,
        project=spec.project,
    )  # fmt: skip
    return LOCAL.name, await pipeline_job(submitter, request)


def links_of(steps: Sequence[PlannedStep]) -> list[tuple[str, str, Link]]:
    """Return what each step takes: name of the step, name there, where it is from."""
    return [(step.name, name, link) for step in steps for name, link in step.links.items()]
