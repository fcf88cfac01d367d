"""Jobs of a sweep: the driver, and each trial."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from jupyter_amltrain.errors import CommandError, SpecError
from jupyter_amltrain.jobs import flag_types
from jupyter_amltrain.jobs.driver import DRIVER_RESTARTS, PARENT_TAG, driver_script
from jupyter_amltrain.jobs.params import with_params, with_script
from jupyter_amltrain.jobs.script import unread_params
from jupyter_amltrain.jobs.snapshot import TRIAL_FOLDER
from jupyter_amltrain.schema import az_yaml, az_yaml_job
from jupyter_amltrain.schema.asset_names import SWEEP_VARIABLE
from jupyter_amltrain.schema.inputs import is_address, literal_text
from jupyter_amltrain.schema.job import MAX_NAME, JobSpec, Resources
from jupyter_amltrain.schema.run import Run, RunHandle
from jupyter_amltrain.schema.search_space import (
    Choice,
    Expression,
    dimensions,
    is_expression,
    parameter_names,
    parse_expression,
    quantile_point,
)
from jupyter_amltrain.schema.sweep import (
    Objective,
    Policy,
    Sweep,
    SweepLimits,
    check_sweep,
    default_trials,
    goal_text,
    parse_goal,
    parse_policy,
)
from jupyter_amltrain.schema.sweep_file import sweep_from_yaml
from jupyter_amltrain.schema.target import TargetInfo
from jupyter_amltrain.text import counted

DRIVER_NAME = "aml_sweep_driver.py"


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


def part_of_gpu(trials: int, gpus: float | None = None, file: str = "") -> float:
    """Return the GPUs of a trial where `trials` share one.

    Parameters
    ----------
    gpus
        GPUs of a trial that are set as well.
    file
        Path of the file that sets the sweep, if one does.

    Raises
    ------
    SpecError
        `trials` is outside 1 to 100, or the GPUs of a trial are set in two places.
    """
    if not 1 <= trials <= 100:
        raise SpecError(
            f"Cannot share a GPU by {trials} trials.", hint="Use 1 to 100.", code="sweep.gpus", field="gpus"
        )
    part = 1 / trials if trials > 1 else 1
    if file:
        hint = f"Leave it out. Use --gpus {part:.4g}, and max_concurrent_trials: {trials} in {file}."
        raise SpecError(
            "--trials-per-gpu is not supported for a sweep file.", hint=hint, code="sweep.gpus", field="gpus"
        )
    if gpus is not None:
        what = f"--trials-per-gpu {trials} sets the part of a GPU that a trial gets."
        raise SpecError(what, hint=f"Leave out --gpus {gpus:g}.", code="sweep.gpus", field="gpus")
    return part


def sample_point(sweep: Sweep) -> dict[str, Any]:
    """Return one point of the search space, with which a job can be checked."""
    return quantile_point(sweep.space, dict.fromkeys(dimensions(sweep.space), 0.5))


def check_trial(spec: JobSpec, sweep: Sweep) -> None:
    """Raise :class:`SpecError` for a sweep or a job that cannot be swept."""
    check_sweep(sweep, spec.params if not spec.job_type else {})
    if spec.job_type not in ("", "command"):
        raise SpecError(
            f"A job of type {spec.job_type} has no trials.",
            hint="Try: %aml_sweep sweep.yml with a file of type: sweep",
            code="sweep.job_type",
            field="script",
        )
    if spec.scaling is not None:
        raise SpecError("A sweep has no --scaling.", hint="Leave it out.", code="sweep.scaling", field="scaling")


def check_used(spec: JobSpec, sweep: Sweep) -> None:
    """Raise :class:`SpecError` if the code reads a searched parameter nowhere: all trials would be equal."""
    if not spec.cell:
        return
    names = parameter_names(sweep.space)
    if unread := unread_params(spec.cell, names, helpers="\n".join(spec.modules.values()), out=spec.out):
        raise SpecError(
            f"Nothing in the code reads {', '.join(unread)}, so that every value gives the same result.",
            hint=f"Use the variable {unread[0]}, leave the parameter out, or add --allow-unused",
            code="sweep.unused",
            field="params",
        ).about(f"--param {unread[0]}")


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
    text = f"{target!r} runs {counted(capacity, 'trial')} at the same time"
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
    slots = int(total["gpu"] / (gpus or 1) + 1e-3) if gpus or (gpus is None and total["gpu"]) else total["cpu"]
    return slots // max(1, spec.resources.nodes) or None


def service_job(trial: JobSpec, sweep: Sweep) -> JobSpec:
    """Return the job of a target that runs sweeps itself: each trial reads its values from its environment."""
    timeout = sweep.limits.trial_timeout_s
    spec = msgspec.structs.replace(trial, sweep=sweep, timeout=trial.timeout if timeout is None else timeout)
    if not spec.script:  # a file: the values are arguments
        return spec
    made = with_script(spec, spec.params, sweep.space)
    return msgspec.structs.replace(made, notes=tuple(dict.fromkeys((*trial.notes, *made.notes))))


# ---- files of az ml

_SEARCHED = re.compile(r"\$\{\{\s*search_space\.([\w-]+)\s*\}\}")
#: Keys of the sweep that the job of a trial has.
_SWEEP_KEYS = ("display_name", "name", "experiment_name", "tags", "outputs", "identity", "queue_settings", "resources")


def of_type(spec: JobSpec) -> Sweep:
    """Return the sweep of a file with ``type: sweep``.

    Raises
    ------
    SpecError
        The file has another type, or an invalid search.
    """
    if spec.job_type != "sweep":
        raise SpecError(
            f"{spec.script_name} is a job of type {spec.job_type}, not a sweep.",
            hint=f"Submit it: %aml_submit {spec.script_name}",
            code="sweep.type",
            field="script",
        )
    return spec.sweep or sweep_from_yaml(az_yaml.parse(spec.cell, spec.script_name, spec.notebook_dir).doc)


def of_file(spec: JobSpec) -> tuple[JobSpec, Sweep]:
    """Return the job of a trial, and the sweep, of a file with ``type: sweep``. Blocks on the disk.

    The job is that of a command file whose inputs are those of the sweep and the searched parameters.

    Raises
    ------
    SpecError
        The file is invalid, or only the service can run it.
    """
    job = az_yaml_job.file_of(spec)
    sweep = sweep_from_yaml(job.doc)
    if sweep.seed is None:
        sweep = msgspec.structs.replace(sweep, seed=new_seed())
    trial, lines = _trial_doc(job)
    _check_searched(job, trial, sweep)
    inputs = {**_defaults(trial), **(job.doc.get("inputs") or {})}
    doc = {
        "type": "command",
        **{key: job.doc[key] for key in _SWEEP_KEYS if job.doc.get(key) is not None},
        **{key: trial[key] for key in az_yaml_job.TRIAL_KEYS if trial.get(key) is not None},
        "inputs": {**inputs, **sample_point(sweep)},
    }
    if isinstance(trial.get("command"), str):
        doc["command"] = _SEARCHED.sub(r"${{inputs.\1}}", trial["command"])
    if job.doc.get("resources"):
        doc["resources"] = {**(trial.get("resources") or {}), **job.doc["resources"]}
    found = az_yaml_job.spec_of(msgspec.structs.replace(job, doc=doc, lines=lines, text=az_yaml.to_yaml(doc)))
    if found.source is not None:  # a trial has its code already, wherever the folder is by then
        found = msgspec.structs.replace(found, cell=az_yaml.to_yaml({k: v for k, v in doc.items() if k != "code"}))
    kept = {name: getattr(spec, name) for name in ("name", "experiment", "tags", "project")}
    return msgspec.structs.replace(found, params=spec.params, **kept), sweep


def _trial_doc(job: az_yaml.JobFile) -> tuple[dict[str, Any], dict[az_yaml.Keys, int]]:
    """Return the trial of a sweep with absolute paths if it is a component's file, and the lines of its keys."""
    trial = job.doc.get("trial")
    if isinstance(trial, str):
        name = trial.removeprefix("file:")
        if not az_yaml.is_file(name) or is_address(name):
            raise job.error(("trial",), "this component is in a workspace.", "Run the sweep there, or name a file.")
        path = az_yaml_job.absolute(name, job.folder)
        doc, folder = az_yaml.load_doc(path), os.path.dirname(path)
        for key in ("code", "environment"):
            doc[key] = _absolute(doc.get(key), folder, key)
        return doc, {keys: line for keys, line in job.lines.items() if keys == ("trial",)}
    if not isinstance(trial, dict):
        raise job.error(("trial",), "the trial is missing.", "Add trial: with command: and environment:.")
    return trial, {keys[1:] if keys[0] == "trial" and len(keys) > 1 else keys: n for keys, n in job.lines.items()}


def _absolute(value: Any, folder: str, key: str) -> Any:
    if isinstance(value, dict):
        paths = ("conda_file", "build", "path")
        return {k: _absolute(v, folder, "code") if k in paths else v for k, v in value.items()}
    if not isinstance(value, str) or is_address(value) or value.startswith("git+"):
        return value
    if key == "environment" and not az_yaml.is_file(value.removeprefix("file:")):
        return value
    return az_yaml_job.absolute(value.removeprefix("file:"), folder)


def _defaults(component: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a component that have a default."""
    rows = component.get("inputs")
    return {
        str(name): row["default"]
        for name, row in (rows.items() if isinstance(rows, dict) else ())
        if isinstance(row, dict) and row.get("default") is not None
    }


def _check_searched(job: az_yaml.JobFile, trial: Mapping[str, Any], sweep: Sweep) -> None:
    """Raise :class:`SpecError` for a parameter that the command of a trial cannot have."""
    command = str(trial.get("command") or "")
    for match in _SEARCHED.finditer(command):
        if match[1] not in sweep.space:
            hint = f"Searched: {', '.join(sweep.space)}."
            raise job.error(("trial", "command"), f"search_space.{match[1]} is not defined.", hint)
    for name, e in sweep.space.items():
        if name in (job.doc.get("inputs") or {}):
            raise job.error(("search_space", name), f"{name} is an input too.", "Rename one of the two.")
        values = e.values if isinstance(e, Choice) else ()
        if any(value is None or isinstance(value, dict | list | tuple) for value in values):
            what = "a value of a command must be a number, text, true or false."
            raise job.error(("search_space", name), what, "Use a file of Python with: %aml_sweep train.py")


def continued(run: Run, spec: JobSpec | None, sweep: Sweep) -> JobSpec:
    """Return the job of the trials of a sweep that continues another one.

    Parameters
    ----------
    run
        The other sweep.
    spec
        Job with other code; ``None`` for the code that the other sweep had.
    sweep
        The new search; a parameter of the old one that it does not have must be fixed in `spec`.

    Raises
    ------
    SpecError
        The run is not a sweep that was driven from here.
    """
    trial = run.spec.trial
    if run.spec.sweep is None or trial is None:
        raise SpecError(
            f"{run.handle} is not a sweep with a driver, so it cannot be continued.",
            hint="Start a new sweep.",
            code="sweep.continue",
            field="continues",
        )
    if run.spec.sweep.objective != sweep.objective:
        raise SpecError(
            f"{run.handle} has another goal: {goal_text(run.spec.sweep.objective)}.",
            hint="Leave out --goal, or start a new sweep.",
            code="sweep.continue",
            field="goal",
        )
    if spec is None and not run.folder:
        raise SpecError(
            f"{run.handle} is not submitted yet, so its code is not known.",
            hint="Try again when its first trials run.",
            code="sweep.continue",
            field="continues",
        )
    if spec is None:
        folder = os.path.join(run.folder, "source", TRIAL_FOLDER)
        spec = msgspec.structs.replace(trial, code_dir=folder, repeats=run.handle)
    return msgspec.structs.replace(spec, continues=run.handle)


def driver_of(trial: JobSpec, sweep: Sweep, target: str, slots: Mapping[str, int | None] | None = None) -> JobSpec:
    """Return the job of the driver, which submits trials to `target`.

    Parameters
    ----------
    slots
        Number of trials that each target runs at the same time; ``None`` if unknown.
    """
    return JobSpec(
        name=trial.name,
        script=driver_script("jupyter_amltrain.sweeps.driver"),
        script_name=DRIVER_NAME,
        params=trial.params,
        out=trial.out,
        secrets=trial.secrets,
        resources=Resources(gpus=0),
        experiment=trial.experiment,
        tracking_uri=trial.tracking_uri,
        tags=trial.tags,
        max_restarts=DRIVER_RESTARTS,
        no_lines=True,  # it waits for its trials
        notebook_dir=trial.notebook_dir,
        project=trial.project,
        python=sys.executable,
        source_sha256=trial.source_sha256,
        notes=trial.notes,
        sweep=sweep,
        trial=msgspec.structs.replace(trial, continues="", driver_target=""),
        trial_target=target,
        driver_target=trial.driver_target,
        trial_slots={name: count for name, count in (slots or {}).items() if count},
        continues=trial.continues,
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
    if spec.job_type:
        variables = {f"{SWEEP_VARIABLE}{name}": literal_text(value) for name, value in params.items()}
        spec = msgspec.structs.replace(spec, env={**spec.env, **variables})
    return with_params(spec, params)
