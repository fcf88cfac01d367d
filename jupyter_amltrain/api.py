"""The features of the magics as plain functions, for scripts, tests, papermill and the command line."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import msgspec

from jupyter_amltrain.errors import CommandError, ConfirmationNeeded
from jupyter_amltrain.jobs import flag_values
from jupyter_amltrain.jobs.flags import FLAGS, job_fields, keyword_values
from jupyter_amltrain.jobs.kept_names import Keep, keep_for
from jupyter_amltrain.jobs.scaling import ScalingPlan, plan_of
from jupyter_amltrain.kernel.session import close, controller, known_targets
from jupyter_amltrain.plugins import parts
from jupyter_amltrain.run import ANSWER_TIMEOUT_S, TrackedRun
from jupyter_amltrain.schema import az_yaml, az_yaml_job
from jupyter_amltrain.schema.inputs import with_literals
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.target import ComputeTarget, TargetInfo
from jupyter_amltrain.state_dir import working_folder
from jupyter_amltrain.text import notebook_name

if TYPE_CHECKING:
    from jupyter_amltrain.backends.base import LaunchPlan
    from jupyter_amltrain.kernel.models import DownloadedModel, ModelRow
    from jupyter_amltrain.kernel.operations import ActionResult
    from jupyter_amltrain.output.monitor_view import Monitor
    from jupyter_amltrain.output.scaling_runs import ScalingRuns
    from jupyter_amltrain.run_list import RunList
    from jupyter_amltrain.schema.environment import Environment, EnvironmentRow
    from jupyter_amltrain.schema.rows import TargetRow
    from jupyter_amltrain.schema.sweep import Sweep


def __getattr__(name: str) -> Any:
    """Return a function of a plug-in: those of workspaces, for example."""
    for functions in parts("functions"):
        if name in functions:
            return functions[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *(name for functions in parts("functions") for name in functions)})


def targets() -> list[ComputeTarget]:
    """Return all compute targets."""
    return controller().loop.call(controller().target_manager.status.refresh(), ANSWER_TIMEOUT_S)


def compute(name: str | None = None, *, wait: bool = True) -> TargetInfo:
    """Check a target and return the result.

    Parameters
    ----------
    name
        Default: the target in use.
    wait
        Whether to wait for a target that does not answer within a second; otherwise the result says what was known of
        it, and is not ``reachable``.
    """
    c = controller()

    async def read() -> TargetInfo:
        info = await (c.target_manager.status.check(name) if wait else c.target_manager.status.known(name))
        c.target_manager.operations.forget_failure(info.target)
        return info

    return c.loop.call(read(), ANSWER_TIMEOUT_S)


def current_target() -> str:
    """Return the name of the target in use."""
    return controller().targets.current


def is_local(target: str | None = None) -> bool:
    """Return whether jobs of a target (default: the one in use) run on this machine in this interpreter."""
    from jupyter_amltrain.errors import AmlTrainError

    try:
        known = known_targets()
        return known.get(target or known.current).__struct_config__.tag == "local"
    except AmlTrainError:  # unknown: the submit says so
        return True


def use(name: str, *, default: bool = False) -> None:
    """Make `name` the target of this notebook.

    Parameters
    ----------
    default
        Make it the target of this notebook and of all others that have chosen none.
    """
    action = controller().target_manager.run_action("use", name, values={"default": default})
    controller().loop.call(action, ANSWER_TIMEOUT_S)


#: Maximum wait for a service that changes settings of a target.
CONFIGURE_TIMEOUT_S = 120.0


def configure_target(
    name: str,
    *,
    share_gpus: bool | None = None,
    idle_shutdown: int | None = None,
    schedule_start: str | None = None,
    schedule_stop: str | None = None,
) -> dict[str, Any]:
    """Change settings of a target, effective immediately; returns them.

    Parameters
    ----------
    share_gpus
        Whether runs may use GPUs that other processes are using.
    idle_shutdown
        Minutes before the idle machine is stopped; 0 for never.
    schedule_start, schedule_stop
        Daily times or cron expressions (UTC) of an instance; empty for none.
    """
    manager, settings = controller().target_manager, dict[str, Any]()
    if share_gpus is not None:
        settings |= controller().loop.call(manager.configure(name, {"share_gpus": share_gpus}), ANSWER_TIMEOUT_S)
    power = {"idle_shutdown": idle_shutdown, "schedule_start": schedule_start, "schedule_stop": schedule_stop}
    if changes := {key: value for key, value in power.items() if value is not None}:
        settings |= controller().loop.call(manager.configure(name, changes), CONFIGURE_TIMEOUT_S)
    return settings


def compute_rows(timeout_s: float = 0.9) -> tuple[TargetRow, ...]:
    """Return every target with state, size and price; last known values if it needs over `timeout_s` seconds."""
    c = controller()

    async def read() -> tuple[TargetRow, ...]:
        await c.target_manager.status.refresh_all(timeout_s)
        return c.target_manager.status.rows()

    return c.loop.call(read(), ANSWER_TIMEOUT_S)


def act(
    verb: str,
    name: str,
    *,
    kind: str = "",
    values: Mapping[str, Any] | None = None,
    confirmed: bool = False,
) -> ActionResult:
    """Start ``create``, ``start``, ``stop``, ``scale``, ``delete``, ... on a target."""
    return controller().loop.call(
        controller().target_manager.run_action(verb, name, kind=kind, values=values, confirmed=confirmed),
        ANSWER_TIMEOUT_S,
    )


def compute_progress(name: str, timeout_s: float = 0.2) -> tuple[str | None, str]:
    """Return the message of a target's finished operation (``None`` while it runs) and its progress."""
    c = controller()

    async def read() -> tuple[str | None, str]:
        return await c.target_manager.operations.finished(name, timeout_s), c.target_manager.operations.progress(name)

    return c.loop.call(read(), ANSWER_TIMEOUT_S)


def create_target(name: str, kind: str, *, confirmed: bool = False, **values: Any) -> str:
    """Create a compute target and wait until it exists; returns a message.

    Parameters
    ----------
    kind
        A kind of ``%aml_compute create --kind``.
    confirmed
        Accept the cost; otherwise an error states the cost.
    **values
        The flags of ``%aml_compute create``: ``size="gpu-v100", max_nodes=4``.
    """
    return _act_and_wait("create", name, kind, values, confirmed)


def start_target(name: str, *, confirmed: bool = False) -> str:
    """Start the machine of a target and wait until it runs."""
    return _act_and_wait("start", name, "", {}, confirmed)


def stop_target(name: str, *, confirmed: bool = False) -> str:
    """Stop the machine of a target and wait until it has stopped."""
    return _act_and_wait("stop", name, "", {}, confirmed)


def scale_target(
    name: str,
    min_nodes: int | None = None,
    *,
    max_nodes: int | None = None,
    idle_minutes: float | None = None,
    confirmed: bool = False,
) -> str:
    """Scale a cluster and wait until the change is done.

    Parameters
    ----------
    min_nodes
        Nodes to keep running when idle, which are always billed.
    max_nodes
        Maximum number of nodes.
    idle_minutes
        Minutes before an idle node is released.
    """
    values = {"min_nodes": min_nodes, "max_nodes": max_nodes, "idle_minutes": idle_minutes}
    return _act_and_wait("scale", name, "", {k: v for k, v in values.items() if v is not None}, confirmed)


def delete_target(name: str, *, confirmed: bool = False) -> str:
    """Delete a target with its machines and wait until they are deleted."""
    return _act_and_wait("delete", name, "", {}, confirmed)


def _act_and_wait(verb: str, name: str, kind: str, values: Mapping[str, Any], confirmed: bool) -> str:
    """Run an action on a target, wait until it is done and return its message."""
    result = act(verb, name, kind=kind, values=values, confirmed=confirmed)
    if result.errors:
        raise CommandError(" ".join(f"{field}: {text}" for field, text in result.errors.items()))
    if result.confirmation:
        raise CommandError(result.confirmation, hint="To confirm, pass confirmed=True.")
    message: str | None = result.message
    if result.begun:
        message = None
        while message is None:
            message, _ = compute_progress(name)
    return message or ""


def register_model(
    name: str,
    *,
    run: str = "last",
    path: str = "",
    type: str = "",
    description: str = "",
    tags: Mapping[str, str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> ModelRow:
    """Register files of an ended run as a model version; see :meth:`Models.register`.

    Parameters
    ----------
    path
        Path within the run, such as ``outputs/model``; empty selects the only model in the run.
    progress
        Called with progress messages, on another thread.
    """
    c = controller()

    async def go() -> ModelRow:
        entry = await c.refresh_run(await c.resolve(run))
        return await c.models.register(
            entry.run, name, path=path, type=type, description=description, tags=tags, progress=progress
        )

    return c.loop.call(go(), timeout=None)  # the files may have many gigabytes


def models(workspace: str = "") -> list[ModelRow]:
    """Return all model versions of the workspace in use, of `workspace`, or (``"local"``) of this folder."""
    c = controller()
    return c.loop.call(c.models.list(working_folder(), workspace), timeout=None)


def download_model(
    name: str,
    version: str = "",
    *,
    to: str | os.PathLike[str] = "",
    workspace: str = "",
    progress: Callable[[str], None] | None = None,
) -> DownloadedModel:
    """Download a model into a new or empty folder; default: ``NAME-VERSION`` in the working folder."""
    c = controller()
    folder, here = os.fspath(to), working_folder()
    download = c.models.download(here, name, version, to=folder, workspace=workspace, progress=progress)
    return c.loop.call(download, timeout=None)


def runs(target: str | None = None) -> RunList:
    """Return all runs of all targets or of `target`, newest first: a list with ``to_frame()``."""
    from jupyter_amltrain.run_list import RunList

    return RunList(map(TrackedRun, controller().loop.call(controller().handles(target), ANSWER_TIMEOUT_S)))


def attach(handle: str = "last") -> TrackedRun:
    """Return a run of any kernel by handle, id, unique prefix of either, or ``last``."""
    return TrackedRun(controller().loop.call(controller().resolve(handle), ANSWER_TIMEOUT_S))


def monitor(
    target: str | None = None, gpus: Iterable[int] | None = None, window: float = 600.0, rate: float = 1.0
) -> Monitor:
    """Sample the GPUs and the host of a target without a run.

    Parameters
    ----------
    target
        Name of the target; default: the one in use.
    gpus
        GPU indices; default: all.
    window
        Seconds that the charts show initially; 0 = everything recorded.
    rate
        Samples per second, at most 10.

    Raises
    ------
    CommandError
        The GPU does not exist, the rate is out of range, or the target does not support monitoring.
    """
    from jupyter_amltrain.output.mime import parse_window
    from jupyter_amltrain.output.monitor_view import Monitor

    parse_window(window)  # before anything is started
    if not 0 < rate <= 10:
        raise CommandError(
            f"--rate must be above 0 and at most 10 samples per second, got {rate:g}.", hint="Example: --rate 1"
        )
    c = controller()
    name = target or current_target()
    chosen = None if gpus is None else tuple(gpus)
    return Monitor(c.loop.call(c.monitors.open(name, chosen, 1 / rate), ANSWER_TIMEOUT_S), window)


def target_overview(target: str | None = None) -> tuple[str, list[dict[str, Any]]] | None:
    """Return what a target of many machines has and does now, as text and as rows; ``None`` for one machine.

    Raises
    ------
    TargetUnreachable
        The target does not answer.
    """
    c = controller()
    name = target or current_target()

    async def read() -> tuple[str, list[dict[str, Any]]] | None:
        overview = c.backend(name).overview
        return None if overview is None else await overview.read()

    return c.loop.call(read(), ANSWER_TIMEOUT_S)


def target_quota(target: str | None = None, *, everything: bool = False) -> tuple[str, list[dict[str, Any]]] | None:
    """Return what a target lets this user have, as text and as rows; ``None`` for one without such limits.

    Parameters
    ----------
    everything
        Also what allows nothing.

    Raises
    ------
    CommandError
        The target does not tell.
    """
    c = controller()
    name = target or current_target()

    async def read() -> tuple[str, list[dict[str, Any]]] | None:
        quota = c.backend(name).quota
        return None if quota is None else await quota.read(everything=everything)

    return c.loop.call(read(), ANSWER_TIMEOUT_S)


def stop_monitors(target: str = "") -> list[str]:
    """Stop the monitors of this notebook, of one target or of all, and return their handles."""
    return controller().loop.call(controller().monitors.stop(target), 60)


def ui(project: str | os.PathLike[str] | None = None) -> str:
    """Return the URL of the MLflow UI of a project (default: this folder), starting the UI if needed."""
    return mlflow_page(project)[0]


def mlflow_page(project: str | os.PathLike[str] | None = None) -> tuple[str, str]:
    """Return the URL of the MLflow UI of a project and its path on the Jupyter server (empty without one).

    Links in cell outputs use the path, because only the browser knows the server's host name and port.
    """
    c = controller()
    folder = str(Path(project or working_folder()).resolve())
    reply = c.loop.call(c.open_ui(folder), 180)
    return str(reply["url"]), str(reply["path"])


#: Text that names a file, in contrast to code.
_FILE = re.compile(r"[^\n]+\.py|[^\s=()]+\.(?:ipynb|csv|tsv|json|parquet|ya?ml|txt|md|sh)", re.I)


def submit_spec(spec: JobSpec, *, target: str | None = None, secrets: Mapping[str, str] | None = None) -> TrackedRun:
    """Submit a job and return the run immediately."""
    c = controller()
    handle = c.loop.call(c.jobs.submit(spec, target, dict(os.environ), dict(secrets or {})))
    return TrackedRun(handle)


def check_spec(spec: JobSpec, *, target: str | None = None) -> None:
    """Raise the error with which the target would reject the job; sends nothing."""
    controller().loop.call(controller().jobs.prepare(spec, target), ANSWER_TIMEOUT_S)


def plan_spec(spec: JobSpec, *, target: str | None = None) -> LaunchPlan:
    """Return the exact request of a submission, without secrets; sends nothing."""
    return controller().loop.call(controller().jobs.plan(spec, target), ANSWER_TIMEOUT_S)


def submit_scaling(
    spec: JobSpec, plan: ScalingPlan, *, target: str | None = None, secrets: Mapping[str, str] | None = None
) -> ScalingRuns:
    """Measure a job at several widths, one after another; return immediately."""
    from jupyter_amltrain.output.scaling_runs import ScalingRuns

    c = controller()
    submitting = c.jobs.submit_scaling(spec, plan, target, dict(os.environ), dict(secrets or {}))
    return ScalingRuns(c.loop.call(submitting, ANSWER_TIMEOUT_S))


def submit_sweep(
    spec: JobSpec, sweep: Sweep, *, target: str | None = None, secrets: Mapping[str, str] | None = None
) -> TrackedRun:
    """Submit a sweep over the job of a trial and return its run immediately."""
    c = controller()
    submitting = c.jobs.submit_sweep(spec, sweep, target, dict(os.environ), dict(secrets or {}))
    return TrackedRun(c.loop.call(submitting, ANSWER_TIMEOUT_S))


def plan_sweep(spec: JobSpec, sweep: Sweep, *, target: str | None = None) -> LaunchPlan:
    """Return the exact request of a sweep, without secrets; sends nothing."""
    c = controller()

    async def read() -> LaunchPlan:
        name, job = await c.jobs.sweep_job(spec, sweep, target)
        return await c.jobs.plan(job, name)

    return c.loop.call(read(), ANSWER_TIMEOUT_S)


def plan_scaling(spec: JobSpec, plan: ScalingPlan, *, target: str | None = None) -> list[LaunchPlan]:
    """Return the exact requests of a measurement, by increasing width; sends nothing."""
    c = controller()

    async def read() -> list[LaunchPlan]:
        name, jobs = await c.jobs.slices(spec, plan, target)
        return [await c.jobs.plan(job, name) for job in jobs]

    return c.loop.call(read(), ANSWER_TIMEOUT_S)


@overload
def submit(
    script: str | os.PathLike[str],
    *,
    target: str | None = None,
    args: Iterable[str] = (),
    secrets: Mapping[str, str] | None = None,
    scaling: None = None,
    **fields: Any,
) -> TrackedRun: ...


@overload
def submit(
    script: str | os.PathLike[str],
    *,
    target: str | None = None,
    args: Iterable[str] = (),
    secrets: Mapping[str, str] | None = None,
    scaling: Iterable[int] | str,
    scaling_time: float | None = None,
    scaling_steps: int | None = None,
    **fields: Any,
) -> ScalingRuns: ...


def submit(
    script: str | os.PathLike[str],
    *,
    target: str | None = None,
    args: Iterable[str] = (),
    secrets: Mapping[str, str] | None = None,
    scaling: Iterable[int] | str | None = None,
    scaling_time: float | None = None,
    scaling_steps: int | None = None,
    **fields: Any,
) -> TrackedRun | ScalingRuns:
    """Submit a ``.py`` file or code as text; returns when the target has accepted the job.

        Parameters
        ----------
        script
            Path of a ``.py`` file (``os.PathLike``, or text with a file suffix), otherwise code.
        target
            Where to run; default: the target in use.
        args
            Command-line arguments of a file.
        secrets
            Names and values, passed to the job's process and never stored.
        scaling
            Numbers of processes at which to measure the job, ``[1, 2, 4]``, or of machines, ``"nodes:1,2"``: returns
            a :class:`~jupyter_amltrain.output.scaling_runs.ScalingRuns` in place of a run.
        scaling_time, scaling_steps
            Seconds (default 60) or steps that each width is measured after its first metric.
        **fields
            The flags of ``%%aml_submit`` as keywords, with Python values. The signature lists them:
    %s

        Raises
        ------
        CommandError
            A value is invalid, the target is unknown, or the target cannot run the job.

        Examples
        --------
        >>> run = submit("accuracy = 0.9 + lr", params={"lr": 0.05}, out=["accuracy"])  # doctest: +SKIP
        >>> run.wait().result("accuracy")  # doctest: +SKIP
        0.95
    """
    plan = plan_of(scaling, scaling_time, scaling_steps)
    keep = keep_for(is_local(target))
    spec = job_of(script, args, {**fields, "secrets": secrets}, keep)
    if plan is not None:
        return submit_scaling(spec, plan, target=target, secrets=dict(secrets or {}))
    # The calling script may end after this call, so wait until the target has accepted the job.
    return submit_spec(spec, target=target, secrets=dict(secrets or {})).accepted()


def job_of(
    script: str | os.PathLike[str], args: Iterable[str], keywords: Mapping[str, Any], keep: Keep = Keep.NOTHING
) -> JobSpec:
    """Return the job of a ``.py`` file or of code, from the keywords of :func:`submit`."""
    from jupyter_amltrain.jobs import script as scripts
    from jupyter_amltrain.jobs import script_file

    if isinstance(args, str):
        raise CommandError(
            f"args must be a list of strings, got {args!r}.", hint=f"Example: args=[{args!r}]", field="args"
        )
    values = job_fields(keyword_values(keywords))
    folder = working_folder()
    inputs = values.get("inputs", {})
    params = values["params"] = dict(with_literals(values.get("params", {}), inputs))
    out, source = values.get("out", ()), values.get("source")
    code: dict[str, Any]
    if isinstance(script, os.PathLike) or _FILE.fullmatch(script):
        where = Path(source) if source else None
        style = str(values.get("style", ""))
        code = script_file.from_file(Path(script), source=where, out=out, params=params, style=style)
        name = Path(script).stem
    else:
        cell = scripts.from_cell(script, magic_line="", params=params, out=out, keep=keep)
        code = {
            "script": cell.text,
            "source_sha256": cell.sha256,
            "notebook_dir": folder,
            "cell": script,
            "line_offset": cell.line_offset + 1,  # no magic line above the code
            "notes": cell.notes,
        }
        name = "run"
    values.setdefault("name", name)
    values.setdefault("experiment", notebook_name() or "default")
    values["source"] = str(Path(source).resolve()) if source else None
    arguments = tuple(map(str, with_literals(tuple(args), inputs)))
    return JobSpec(**{**values, **code, "args": arguments, "project": folder})


def sweep(
    script: str | os.PathLike[str],
    *,
    goal: str | None = None,
    params: Mapping[str, Any] | None = None,
    sampler: str | None = None,
    seed: int | None = None,
    policy: str | None = None,
    max_trials: int | None = None,
    max_concurrent: int | None = None,
    trials_per_gpu: int | None = None,
    max_duration: float | str | None = None,
    trial_timeout: float | str | None = None,
    allow_unused: bool = False,
    target: str | None = None,
    driver: str = "",
    args: Iterable[str] = (),
    secrets: Mapping[str, str] | None = None,
    **fields: Any,
) -> TrackedRun:
    """Search values of parameters with many runs of a ``.py`` file or of code; returns the run of the sweep.

    Parameters
    ----------
    script
        A ``.py`` file or code as of :func:`submit`, or a file of ``az ml`` with ``type: sweep``, which sets the search
        and the job: then `params` are values of its inputs, and only `target`, `name`, `experiment` and `tags` can be
        given besides.
    target, args, secrets
        As of :func:`submit`.
    driver
        Target that runs the driver, which chooses and submits the trials; default: this computer.
    goal
        ``"maximize accuracy"``: the primary metric, which each trial logs to MLflow or returns with `out`.
    params
        Values by name. A text such as ``"loguniform(1e-4, 1e-1)"`` or ``"choice(1, 2, 3)"`` is searched, any other
        value is fixed.
    sampler
        ``random`` (the default), ``sobol``, ``grid`` or ``bayesian``.
    seed
        The same seed proposes the same trials; default: a new one.
    policy
        ``"bandit(slack_factor=0.1)"``, ``"median_stopping"``, ``"truncation_selection(20)"`` or ``"none"``
        (the default).
    max_trials
        Default: 20; for ``grid`` every point.
    max_concurrent
        Trials at the same time; default 4.
    trials_per_gpu
        Trials that share one GPU: the same as ``gpus=1 / n, max_concurrent=n``.
    max_duration, trial_timeout
        Seconds, or a text such as ``"10m"``, after which the sweep or a trial ends.
    allow_unused
        Search parameters that nothing in the code reads.
    **fields
        The other keywords of :func:`submit`.

    Raises
    ------
    CommandError
        A value is invalid, the target is unknown, or the target cannot run the sweep.

    Examples
    --------
    >>> found = sweep("import mlflow; mlflow.log_metric('loss', (x - 2) ** 2)", goal="minimize loss",
    ...               params={"x": "uniform(0, 5)"}, max_trials=10)  # doctest: +SKIP
    >>> found.wait().children().to_frame()  # doctest: +SKIP
    """
    from jupyter_amltrain.jobs.sweep import check_used, of_type, part_of_gpu, sample_point, search_of

    if trials_per_gpu is not None:
        of_file = os.fspath(script) if az_yaml.is_file(os.fspath(script)) else ""
        fields = {**fields, "gpus": part_of_gpu(trials_per_gpu, fields.get("gpus"), of_file)}
        max_concurrent = trials_per_gpu if max_concurrent is None else max_concurrent
    settings: dict[str, Any] = {
        "seed": seed, "policy": policy, "max_trials": max_trials, "max_concurrent": max_concurrent,
        "max_duration": max_duration, "trial_timeout": trial_timeout,
    }  # fmt: skip
    if az_yaml.is_file(os.fspath(script)):
        own = {**settings, "goal": goal, "sampler": sampler, "args": tuple(args) or None, "secrets": secrets or None}
        file, compute = _sweep_file(script, params or {}, own, fields)
        place = target or (target_of_compute(compute) if compute else None)
        file = msgspec.structs.replace(file, driver_target=driver)
        return submit_sweep(file, of_type(file), target=place).accepted()
    if goal is None:
        raise CommandError(
            "The sweep has no goal.", hint="Try: goal='maximize accuracy'", code="sweep.no_goal", field="goal"
        )
    search, fixed = search_of(params or {}, goal=goal, sampler=sampler or "random", **settings)
    # The code is checked with one point of the space.
    trial = job_of(script, args, {**fields, "params": {**fixed, **sample_point(search)}, "secrets": secrets})
    spec = job_of(script, args, {**fields, "params": fixed, "secrets": secrets})
    spec = msgspec.structs.replace(spec, forms=trial.forms, driver_target=driver)
    if not allow_unused:
        check_used(spec, search)
    return submit_sweep(spec, search, target=target, secrets=secrets).accepted()


def target_of_compute(compute: str) -> str:
    """Return the name of the target whose compute a file of ``az ml`` names.

    Raises
    ------
    CommandError
        No target has this compute.
    """
    for target in targets():
        if compute.lower() in (target.name.lower(), str(getattr(target, "compute", "")).lower()):
            return target.name
    raise CommandError(
        f"The file names the compute {compute!r}, but no target has it.",
        hint="Run it elsewhere with --target NAME, or see: %aml_compute list",
        code="submit.unknown_compute",
        field="target",
    )


def _sweep_file(
    path: str | os.PathLike[str], params: Mapping[str, Any], own: Mapping[str, Any], fields: Mapping[str, Any]
) -> tuple[JobSpec, str]:
    """Return the job of a sweep file, and the compute that the file names.

    Parameters
    ----------
    own, fields
        Keywords that a file sets itself, and the other ones.
    """
    allowed = ("name", "experiment", "tags", "inputs")
    given = [name for name, value in own.items() if value is not None]
    if wrong := next(iter([*given, *(name for name in fields if name not in allowed)]), ""):
        raise CommandError(
            f"{wrong} is not supported for a sweep file: the file sets it.",
            hint=f"Write it in {os.fspath(path)}, or leave it out.",
            code="submit.flag_of_file",
            field=wrong,
        )
    job = az_yaml.load(path)
    inputs = flag_values.inputs_of_file(flag_values.inputs_of(fields.get("inputs") or {}), job.doc.get("inputs"))
    spec = az_yaml_job.spec_of_line(job, params, inputs)
    values = {name: fields[name] for name in ("name", "experiment") if fields.get(name) is not None}
    tags = {**spec.tags, **dict(fields.get("tags") or {})}
    spec = msgspec.structs.replace(spec, tags=tags, project=working_folder(), **values)
    return spec, job.compute


def environments(target: str | None = None) -> list[EnvironmentRow]:
    """Return the environments of a target, last used first; default: the target in use."""
    c = controller()
    return c.loop.call(c.environments.rows(target or c.targets.current), ANSWER_TIMEOUT_S)


def workspace_environments() -> tuple[dict[str, list[EnvironmentRow]], dict[str, str]]:
    """Return the environments of every connected workspace, and why those of one are not known, by workspace."""
    return controller().loop.call(controller().workspaces.environments(), None)


def environment(name: str, *, target: str | None = None) -> EnvironmentRow:
    """Return an environment by its name, the beginning of its key, or the file that it was built from."""
    c = controller()
    return c.loop.call(c.environments.find(target or c.targets.current, name), ANSWER_TIMEOUT_S)


def create_environment(
    name: str, environment: str | Environment = "", *, pip: Iterable[str] = (), target: str | None = None
) -> EnvironmentRow:
    """Give a name to the packages of a file, for ``--env NAME``; a later change of the file does not change them.

    On a target of a workspace, register a new version of its environment of that name, from a file or image.

    Parameters
    ----------
    environment, pip
        As `environment` and `pip` of :func:`submit`.
    target
        Where the result says whether it is built, or whose workspace gets it; default: the target in use.
    """
    from jupyter_amltrain.kernel.environments import environment_from

    c = controller()
    where = target or c.targets.current
    c.loop.call(c.environments.create(name, environment_from(environment, [*pip]), where), ANSWER_TIMEOUT_S)
    return c.loop.call(c.environments.find(where, name), ANSWER_TIMEOUT_S)


def build_environment(
    environment: str | Environment = "", *, pip: Iterable[str] = (), target: str | None = None
) -> TrackedRun:
    """Build an environment now; returns the run that builds it, which ends when it is built.

    Parameters
    ----------
    environment, pip
        As `environment` and `pip` of :func:`submit`.
    """
    label = Path(str(environment)).stem if isinstance(environment, str) and environment else "packages"
    if not environment and not [*(pip := list(pip))]:
        raise CommandError(
            "No environment is named.", hint="Try: %aml_env build requirements.txt", code="environment.file"
        )
    name = re.sub(r"[^\w.-]", "-", f"build-{label}")[:64]  # an image has a colon
    return submit(_BUILD_SCRIPT, target=target, environment=environment, pip=[*pip], name=name, gpus=0)


#: A run that builds an environment shows with it that its Python starts.
_BUILD_SCRIPT = "import sys\nprint('Python', sys.version.split()[0], 'in', sys.prefix)\n"


def delete_environment(name: str, *, target: str | None = None, confirmed: bool = False) -> EnvironmentRow:
    """Delete an environment and its names; returns what it was.

    Raises
    ------
    ConfirmationNeeded
        Without `confirmed`.
    """
    from jupyter_amltrain.kernel.environments import deletion_question

    c = controller()
    where = target or c.targets.current
    if not confirmed:
        row = c.loop.call(c.environments.find(where, name), ANSWER_TIMEOUT_S)
        if not row.version:  # a service refuses it
            raise ConfirmationNeeded(
                deletion_question(row), hint="To confirm, pass confirmed=True.", code="environment.confirm"
            )
    return c.loop.call(c.environments.delete(where, name), ANSWER_TIMEOUT_S)


def _add_flag_keywords(function: Any) -> None:
    """Add the keywords of the flag table to a function's signature and docstring."""
    names = {flag.name: flag for flag in FLAGS}
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names if name not in signature.parameters
    ]
    more = [parameter.replace(default=None, annotation=Any) for parameter in more]
    function.__signature__ = signature.replace(parameters=[*own, *more])
    lines = [f"        * ``{flag.name}`` (``{flag.flag}``): {flag.keyword_help or flag.help}" for flag in FLAGS]
    function.__doc__ = (function.__doc__ or "").replace("%s", "\n" + "\n".join(lines), 1)


_add_flag_keywords(submit)

__all__ = [
    "TrackedRun",
    "act",
    "attach",
    "build_environment",
    "check_spec",
    "close",
    "compute",
    "compute_progress",
    "compute_rows",
    "configure_target",
    "controller",
    "create_environment",
    "create_target",
    "current_target",
    "delete_environment",
    "delete_target",
    "download_model",
    "environment",
    "environments",
    "models",
    "monitor",
    "plan_spec",
    "register_model",
    "runs",
    "scale_target",
    "start_target",
    "stop_monitors",
    "stop_target",
    "submit",
    "submit_spec",
    "submit_sweep",
    "sweep",
    "targets",
    "ui",
    "use",
]
