"""Functions of :mod:`jupyter_amltrain.api` for pipelines: ``step`` and ``pipeline``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from jupyter_amltrain import api
from jupyter_amltrain.backends.agent_backend import AgentBackend
from jupyter_amltrain.backends.capabilities import RunSchedules
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.jobs.sweep import search_of
from jupyter_amltrain.kernel.session import controller
from jupyter_amltrain.pipelines import steps as registry
from jupyter_amltrain.pipelines.pipeline_job import PipelineRequest, pipeline_job
from jupyter_amltrain.pipelines.plan import FROM, NEVER, ONLY, REUSE, PipelinePlan
from jupyter_amltrain.pipelines.plan_text import outlook_of, plan_text
from jupyter_amltrain.pipelines.step_inputs import runs_here
from jupyter_amltrain.pipelines.steps import StepDefinition
from jupyter_amltrain.run import ANSWER_TIMEOUT_S, TrackedRun
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.state_dir import working_folder
from jupyter_amltrain.text import notebook_name

#: Seed of a search that names none: the same step proposes the same values, and can be reused.
SEED = 1


def step(
    name: str,
    script: str | os.PathLike[str],
    *,
    needs: Iterable[str] = (),
    after: Iterable[str] = (),
    map: str = "",
    target: str = "",
    args: Iterable[str] = (),
    goal: str = "",
    search: Mapping[str, Any] | None = None,
    **fields: Any,
) -> StepDefinition:
    """Return a step for :func:`pipeline`.

    Parameters
    ----------
    name
        Letters, digits and ``_``.
    script
        A ``.py`` file, or code as text.
    needs
        What it takes of other steps: ``data``, ``prep.data``, or ``table=prep.data``.
    after
        Steps that must have ended before it.
    map
        Pattern of files, of which each gets a run of its own: the variable `part` is its path.
    target
        Where it runs; default: that of the pipeline.
    goal, search
        Of a search: its goal, and the other keywords of :func:`~jupyter_amltrain.sweep`, such as `max_trials`; texts
        such as ``"loguniform(1e-4, 1e-1)"`` among `params` are searched.
    **fields
        The keywords of :func:`~jupyter_amltrain.submit`: `out`, `outputs`, `params`, `pip`, ...

    Raises
    ------
    CommandError
        A value is invalid.

    Examples
    --------
    >>> prep = step("prep", "data = [1, 2, 3]", out=["data"])
    >>> total = step("total", "total = sum(data)", needs=["data"], out=["total"])
    """
    sweep = None
    if goal:
        sweep, fixed = search_of(fields.get("params") or {}, goal=goal, **{"seed": SEED, **(search or {})})
        fields["params"] = fixed
    spec = api.job_of(script, args, fields)
    return StepDefinition(
        sweep=sweep,
        name=registry.check_name(name),
        spec=msgspec.structs.replace(spec, name=name),
        target=target,
        needs=tuple(map_need(one) for one in needs),
        after=tuple(after),
        split=map,
    )


map_need = registry.need


def pipeline(
    *steps: StepDefinition | str,
    params: Mapping[str, Any] | None = None,
    target: str | None = None,
    name: str = "",
    experiment: str = "",
    tags: Mapping[str, str] | None = None,
    reuse: bool = True,
    only: str = "",
    first: str = "",
    keep_going: bool = False,
    secrets: Mapping[str, str] | None = None,
) -> TrackedRun:
    """Run steps in the order of what they take of each other, and return the run of the pipeline.

    Parameters
    ----------
    *steps
        Results of :func:`step`, or names of steps of this notebook (``%%aml_step``); default: all of these.
    params
        Values of parameters: ``lr`` in each step that has it, ``train.lr`` in one.
    reuse
        Whether results of steps that have not changed are used again.
    only, first
        Run this step and no other, or this one and all that depend on it, though nothing has changed.
    keep_going
        Whether other steps still start when one has failed.
    secrets
        Values of secrets of the steps.

    Raises
    ------
    CommandError
        The steps need each other in a circle, nothing makes what one needs, or a step cannot run on its target.

    Examples
    --------
    >>> pipeline(prep, total).wait().result("total")  # doctest: +SKIP
    6
    """
    given = [one for one in steps if isinstance(one, StepDefinition)]
    names = [one for one in steps if isinstance(one, str)]
    definitions = [*given, *(registry.chosen(names) if names or not given else [])]
    request = request_of(
        definitions, params=params or {}, target=target or "", name=name, experiment=experiment, tags=tags or {},
        reuse=reuse, only=only, first=first, keep_going=keep_going,
    )  # fmt: skip
    if service := service_of(request):
        from jupyter_amltrain.pipelines.saved_pipeline import service_job

        return api.submit_spec(service_job(request, service), target=service).accepted()
    return submit_request(request, secrets or {}).accepted()


def request_of(
    definitions: Iterable[StepDefinition],
    *,
    reuse: bool,
    only: str,
    first: str,
    name: str,
    experiment: str,
    **rest: Any,
) -> PipelineRequest:
    """Return what a line or a call wants to run.

    Raises
    ------
    CommandError
        It says in two ways which steps run.
    """
    ways = [word for word, given in (("--no-reuse", not reuse), ("--only", only), ("--from", first)) if given]
    if len(ways) > 1:
        raise CommandError(
            f"{' and '.join(ways)} say in different ways which steps run.", hint="Give one of them.",
            code="pipeline.reuse", field="reuse",
        )  # fmt: skip
    found = tuple(definitions)
    twice = [one.name for one in found]
    if double := next((one for one in twice if twice.count(one) > 1), ""):
        raise CommandError(f"Two steps have the name {double!r}.", hint="Rename one.", code="pipeline.twice")
    title = notebook_name()
    return PipelineRequest(
        steps=found,
        name=(name or (f"{title}-pipeline" if title else "pipeline"))[:64],
        experiment=experiment or title or "default",
        project=working_folder(),
        reuse=NEVER if not reuse else ONLY if only else FROM if first else REUSE,
        named=only or first,
        **rest,
    )


def service_of(request: PipelineRequest) -> str:
    """Return the target of all steps, if it is a service that runs pipelines itself; else empty."""
    given = {one.target or request.target or api.current_target() for one in request.steps}
    names = list(given)
    is_plain = not any(one.split or one.after or one.sweep for one in request.steps) and request.reuse in (REUSE, NEVER)
    if len(names) > 1 or not is_plain:
        return ""
    return names[0] if runs_files(names[0]) else ""


def runs_files(target: str) -> bool:
    """Return whether a target is a service that runs the files of pipelines itself."""

    async def get() -> bool:
        backend = controller().backend(target)
        return not isinstance(backend, AgentBackend) and backend.sweeps is not None

    return controller().loop.call(get(), ANSWER_TIMEOUT_S)


def schedules_of(target: str) -> RunSchedules | None:
    """Return the schedules of a target that submits jobs at fixed times itself."""

    async def get() -> RunSchedules | None:
        return controller().backend(target).schedules

    return controller().loop.call(get(), ANSWER_TIMEOUT_S)


def schedule_file(schedules: RunSchedules, name: str, cron: str, spec: JobSpec, target: str) -> dict[str, Any]:
    """Let a target run a file at fixed times; return the row of the schedule."""

    async def create() -> dict[str, Any]:
        _, checked = await controller().jobs.prepare(spec, target)
        return await schedules.create(name, cron, checked)

    return controller().loop.call(create(), None)


def schedule_rows(schedules: RunSchedules) -> list[dict[str, Any]]:
    """Return the rows of the schedules of a target."""
    return controller().loop.call(schedules.list(), None)


def unschedule(schedules: RunSchedules, name: str) -> bool:
    """Remove a schedule; return whether there was one."""
    return controller().loop.call(schedules.remove(name), None)


def job_of_request(request: PipelineRequest) -> JobSpec:
    """Return the job of the driver; sends nothing."""
    return controller().loop.call(pipeline_job(controller().jobs, request), ANSWER_TIMEOUT_S)


def plan_text_of(job: JobSpec, service: str) -> str:
    """Return what a pipeline would do; `service` is the target that runs it itself."""
    assert job.driver is not None
    plan = msgspec.convert(job.driver.plan, PipelinePlan)
    if service:
        return plan_text(job, plan, {step.name: f"run, unless {service} reuses its result" for step in plan.steps})

    async def here() -> set[str]:
        return {step.target for step in plan.steps if runs_here(controller().backend(step.target))}

    return plan_text(job, plan, outlook_of(job, plan, controller().loop.call(here(), ANSWER_TIMEOUT_S)))


def submit_request(request: PipelineRequest, secrets: Mapping[str, str]) -> TrackedRun:
    """Submit a pipeline and return its run immediately."""
    return api.submit_spec(job_of_request(request), target="local", secrets=dict(secrets))


FUNCTIONS = {"step": step, "pipeline": pipeline}
