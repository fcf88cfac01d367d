"""Jobs of a sweep: the driver, and each trial."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from jupyter_amltrain.errors import CommandError, SpecError
from jupyter_amltrain.jobs import flag_types
from jupyter_amltrain.jobs.params import with_params
from jupyter_amltrain.schema.job import MAX_NAME, JobSpec, Resources
from jupyter_amltrain.schema.run import RunHandle
from jupyter_amltrain.schema.search_space import Expression, dimensions, is_expression, parse_expression, quantile_point
from jupyter_amltrain.schema.sweep import (
    Objective,
    Policy,
    Sweep,
    SweepLimits,
    check_sweep,
    default_trials,
    parse_goal,
    parse_policy,
)
from jupyter_amltrain.schema.target import TargetInfo

#: Script of a driver; its code is in ``sweeps/driver.py``.
DRIVER_SCRIPT = "from jupyter_amltrain.sweeps.driver import main\n\nmain()\n"
DRIVER_NAME = "aml_sweep_driver.py"
#: How often a driver that was killed starts again.
DRIVER_RESTARTS = 20
#: MLflow's tag that shows a run below another one.
PARENT_TAG = "mlflow.parentRunId"


#: Trials at the same time, where the line does not say.
DEFAULT_CONCURRENT = 4


def search_of(
    params: Mapping[str, Any],
    *,
    goal: str | Objective,
    sampler: str = "random",
    seed: int | None = None,
    policy: str | Policy | None = None,
    max_trials: int | None = None,
    max_concurrent: int | None = None,
    max_duration: float | str | None = None,
    trial_timeout: float | str | None = None,
) -> tuple[Sweep, dict[str, Any]]:
    """Return a checked sweep and its fixed parameters, from the keywords of :func:`jupyter_amltrain.sweep`.

    Raises
    ------
    SpecError, CommandError
        A value is invalid.
    """
    space: dict[str, Expression] = {}
    fixed: dict[str, Any] = {}
    for name, value in params.items():
        if isinstance(value, str) and is_expression(value):
            space[name] = parse_expression(name, value)
        elif isinstance(value, Expression):
            space[name] = value
        else:
            fixed[name] = value
    sweep = Sweep(
        space=space,
        sampler=sampler,  # type: ignore[arg-type]  # check_sweep refuses other words
        seed=new_seed() if seed is None else seed,
        objective=parse_goal(goal) if isinstance(goal, str) else goal,
        policy=parse_policy(policy) if isinstance(policy, str) else policy,
        limits=SweepLimits(
            max_trials=default_trials(sampler) if max_trials is None else max_trials,
            max_concurrent=DEFAULT_CONCURRENT if max_concurrent is None else max_concurrent,
            max_duration_s=_seconds(max_duration, "max_duration"),
            trial_timeout_s=_seconds(trial_timeout, "trial_timeout"),
        ),
    )
    check_sweep(sweep, fixed)
    return sweep, fixed


def new_seed() -> int:
    """Return a random seed."""
    import secrets  # slow to import

    return secrets.randbelow(2**31)


def _seconds(value: float | str | None, field: str) -> float | None:
    try:
        return flag_types.duration(value) if isinstance(value, str) else value
    except CommandError as error:
        raise error.about(f"{field}={value!r}") from None


def sample_point(sweep: Sweep) -> dict[str, Any]:
    """Return one point of the search space, with which a job can be checked."""
    return quantile_point(sweep.space, dict.fromkeys(dimensions(sweep.space), 0.5))


def check_trial(spec: JobSpec, sweep: Sweep) -> None:
    """Raise :class:`SpecError` for a sweep or a job that cannot be swept."""
    check_sweep(sweep, spec.params)
    if spec.job_type:
        raise SpecError(
            "A file of az ml sets its own search space.",
            hint="Try: %aml_sweep job.yml",
            code="sweep.job_type",
            field="script",
        )
    if spec.scaling is not None:
        raise SpecError("A sweep has no --scaling.", hint="Leave it out.", code="sweep.scaling", field="scaling")


def fit_to(sweep: Sweep, capacity: int | None, target: str, *, strict: bool = True) -> tuple[Sweep, str]:
    """Return a sweep with as many trials at the same time as its target can run, and a note if these are fewer.

    Parameters
    ----------
    capacity
        Number of trials that the target runs at the same time; ``None`` if unknown.
    strict
        Refuse a number that is too large, unless it is the default.

    Raises
    ------
    SpecError
        The target cannot run so many trials.
    """
    requested = sweep.limits.max_concurrent
    if capacity is None or requested <= max(1, capacity):
        return sweep, ""
    text = f"{target!r} runs {capacity} trial{'s' * (capacity != 1)} at the same time"
    if strict and requested != DEFAULT_CONCURRENT:
        raise SpecError(
            f"{text}.", hint=f"Try: --max-concurrent {capacity}", code="sweep.capacity", field="limits.max_concurrent"
        ).about(f"--max-concurrent {requested}")
    limits = msgspec.structs.replace(sweep.limits, max_concurrent=capacity)
    return msgspec.structs.replace(sweep, limits=limits), f"{text}."


def capacity_of(info: TargetInfo, spec: JobSpec) -> int | None:
    """Return how many jobs like `spec` a target runs at the same time; ``None`` if unknown or none."""
    gpus = spec.resources.gpus
    total = {kind: int(info.slots.get(kind, {}).get("total") or 0) for kind in ("cpu", "gpu")}
    slots = total["gpu"] // (gpus or 1) if gpus or (gpus is None and total["gpu"]) else total["cpu"]
    return slots // max(1, spec.resources.nodes) or None


def driver_of(trial: JobSpec, sweep: Sweep, target: str) -> JobSpec:
    """Return the job of the driver, which runs on this machine and submits trials to `target`."""
    return JobSpec(
        name=trial.name,
        script=DRIVER_SCRIPT,
        script_name=DRIVER_NAME,
        params=trial.params,
        out=trial.out,
        secrets=trial.secrets,
        resources=Resources(gpus=0),
        experiment=trial.experiment,
        tags=trial.tags,
        max_restarts=DRIVER_RESTARTS,
        notebook_dir=trial.notebook_dir,
        project=trial.project,
        python=sys.executable,
        source_sha256=trial.source_sha256,
        notes=trial.notes,
        sweep=sweep,
        trial=trial,
        trial_target=target,
    )


def trial_of(
    driver: JobSpec, parent: RunHandle, number: int, params: Mapping[str, Any], code_dir: str, parent_id: str = ""
) -> JobSpec:
    """Return the job of one trial.

    Parameters
    ----------
    parent
        Handle of the sweep.
    code_dir
        Folder with the code of the trials.
    parent_id
        Id of the sweep's MLflow run.
    """
    assert driver.trial is not None and driver.sweep is not None
    suffix = f"-{number}"
    timeout = driver.sweep.limits.trial_timeout_s
    spec = msgspec.structs.replace(
        driver.trial,
        name=driver.trial.name[: MAX_NAME - len(suffix)] + suffix,
        parent=parent,
        code_dir=code_dir,
        tags={**driver.trial.tags, **({PARENT_TAG: parent_id} if parent_id else {})},
        timeout=timeout if timeout is not None else driver.trial.timeout,
        notes=(),
    )
    return with_params(spec, params)
