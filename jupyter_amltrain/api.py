"""The same as the magics, as plain functions: for scripts, tests, papermill and the command line."""

from __future__ import annotations

import inspect
import os
import queue
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.jobs.flags import FLAGS, job_fields, keyword_values
from jupyter_amltrain.kernel.session import close, controller
from jupyter_amltrain.run import ANSWER, TrackedRun
from jupyter_amltrain.schema.inputs import with_literals
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.target import ComputeTarget, TargetInfo
from jupyter_amltrain.state_dir import working_folder
from jupyter_amltrain.text import notebook_name

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.catalog import Quotas, Size
    from jupyter_amltrain.backends.azureml.workspace_file import WorkspaceFacts
    from jupyter_amltrain.backends.base import Plan
    from jupyter_amltrain.kernel.models import Fetched, ModelRow
    from jupyter_amltrain.kernel.operations import ActionResult
    from jupyter_amltrain.kernel.workspaces import ConnectResult, WorkspaceRef
    from jupyter_amltrain.output.monitor import Monitor
    from jupyter_amltrain.schema.rows import TargetRow


def connect(place: WorkspaceRef, show: Callable[[dict[str, Any]], None] | None = None) -> ConnectResult:
    """Connect an Azure ML workspace: its computes become targets. Ctrl-C gives it up.

    Parameters
    ----------
    show
        Takes, on this thread, what is being done, and what a person must do to sign in.
    """
    c = controller()
    news: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    future = c.loop.post(c.connections.connect(place, news.put))
    future.add_done_callback(lambda _: news.put(None))
    try:
        while True:
            try:
                event = news.get(timeout=0.5)  # in slices, so that Ctrl-C comes through everywhere
            except queue.Empty:
                continue
            if event is None:
                return future.result()
            if show is not None:
                show(event)
    except BaseException as error:
        future.cancel()
        if isinstance(error, KeyboardInterrupt) and show is not None:
            show({"kind": "sign-in", "text": ""})
        raise


def workspaces() -> tuple[list[WorkspaceFacts], str]:
    """The connected Azure ML workspaces, and the name of the current one."""
    return controller().loop.call(controller().connections.all(), ANSWER)


def disconnect(name: str, *, confirmed: bool = False) -> str:
    """Forget an Azure ML workspace and its targets; returns what is told."""
    return controller().loop.call(controller().connections.disconnect(name, confirmed=confirmed), ANSWER)


def sizes(
    *,
    gpu: bool = False,
    family: str = "",
    min_gpu_memory: float = 0.0,
    instance: bool = False,
    workspace: str = "",
    region: str = "",
) -> list[Size]:
    """The sizes of machines that Azure ML has, the smallest first.

    Parameters
    ----------
    family
        Letters of the names: ``NC``, ``ND``, ``NV``.
    min_gpu_memory
        Bytes of one GPU.
    instance
        For compute instances, not for clusters.
    workspace, region
        Default the current one, and its region.
    """
    from jupyter_amltrain.backends.azureml.catalog import choose, sizes_of

    rows = _azure("sizes.list", workspace, location=region)
    kind = "ComputeInstance" if instance else "AmlCompute"
    return choose(sizes_of(rows), gpu=gpu, family=family, min_gpu_memory=min_gpu_memory, kind=kind)


def quota(*, workspace: str = "", region: str = "") -> Quotas:
    """The processor cores that may be had at Azure ML; arguments as of :func:`sizes`."""
    from jupyter_amltrain.backends.azureml.catalog import Quotas

    return Quotas(_azure("quota.list", workspace, location=region))


def billing(workspace: str = "") -> dict[str, list[dict[str, Any]]]:
    """What bills by the hour at Azure ML now, by workspace; default every connected one."""
    from jupyter_amltrain.backends.azureml.workspace_file import Workspaces

    stored = Workspaces(controller().root)
    facts = [stored.get(workspace)] if workspace else stored.all()
    return {one.name: _azure("billing.list", one.name) for one in facts}


def _azure(op: str, workspace: str, **payload: Any) -> Any:
    """Have the Azure process answer for a workspace; default the current one."""
    from jupyter_amltrain.backends.azureml.client import client_of
    from jupyter_amltrain.backends.azureml.workspace_file import Workspaces

    c = controller()
    facts = Workspaces(c.root).get(workspace)

    async def ask() -> Any:
        return await client_of(c.loop, c.root).request(op, {"workspace": facts.name, **payload})

    return c.loop.call(ask(), None)


def targets() -> list[ComputeTarget]:
    """Every compute target."""
    return controller().loop.call(controller().list_targets(), ANSWER)


def compute(name: str | None = None) -> TargetInfo:
    """What a check of a target finds; default the target in use."""
    c = controller()

    async def read() -> TargetInfo:
        info = await c.computes.check(name)
        c.computes.forget_failure(info.target)
        return info

    return c.loop.call(read(), ANSWER)


def current_target() -> str:
    """Name of the target in use."""
    return controller().targets.current


def use(name: str) -> None:
    """Make `name` the target in use."""
    controller().loop.call(controller().computes.act("use", name), ANSWER)


def configure_target(name: str, *, share_gpus: bool) -> dict[str, Any]:
    """Change settings of a target's queue, which hold at once; returns all of them.

    Parameters
    ----------
    share_gpus
        Whether its runs may be given GPUs on which other processes compute.
    """
    return dict(controller().loop.call(controller().computes.configure(name, {"share_gpus": share_gpus}), ANSWER))


def compute_rows(patience: float = 1.5) -> tuple[TargetRow, ...]:
    """Every target with its state, size and price; what does not answer within `patience` seconds as it is known."""
    c = controller()

    async def read() -> tuple[TargetRow, ...]:
        await c.computes.listed(patience)
        return c.computes.rows()

    return c.loop.call(read(), ANSWER)


def act(
    verb: str,
    name: str,
    *,
    kind: str = "",
    values: Mapping[str, Any] | None = None,
    confirmed: bool = False,
) -> ActionResult:
    """Begin ``create``, ``start``, ``stop``, ``scale``, ``delete``, ... of a target; see :meth:`Computes.act`."""
    return controller().loop.call(
        controller().computes.act(verb, name, kind=kind, values=values, confirmed=confirmed), ANSWER
    )


def compute_progress(name: str, patience: float = 0.2) -> tuple[str | None, str]:
    """What is told at the end of a target's last work, or ``None``, and how far it is."""
    c = controller()

    async def ask() -> tuple[str | None, str]:
        return await c.computes.finished(name, patience), c.computes.progress(name)

    return c.loop.call(ask(), ANSWER)


def create_target(name: str, kind: str, *, confirmed: bool = False, **values: Any) -> str:
    """Make a compute target and wait until it is there; returns one sentence.

    Parameters
    ----------
    kind
        ``fake``.
    confirmed
        What it costs is agreed to; without, an error says what that is.
    **values
        The flags of ``%aml_compute create``: ``size="gpu-v100", max_nodes=4``.
    """
    return _through("create", name, kind, values, confirmed)


def start_target(name: str, *, confirmed: bool = False) -> str:
    """Start the machine of a target, and wait for it."""
    return _through("start", name, "", {}, confirmed)


def stop_target(name: str, *, confirmed: bool = False) -> str:
    """Stop the machine of a target, and wait for it."""
    return _through("stop", name, "", {}, confirmed)


def scale_target(
    name: str,
    min_nodes: int | None = None,
    *,
    max_nodes: int | None = None,
    idle_minutes: float | None = None,
    confirmed: bool = False,
) -> str:
    """Change the scale of a cluster, and wait for it.

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
    return _through("scale", name, "", {k: v for k, v in values.items() if v is not None}, confirmed)


def delete_target(name: str, *, confirmed: bool = False) -> str:
    """Delete a target with its machines, and wait for it."""
    return _through("delete", name, "", {}, confirmed)


def _through(verb: str, name: str, kind: str, values: Mapping[str, Any], confirmed: bool) -> str:
    done = act(verb, name, kind=kind, values=values, confirmed=confirmed)
    if done.errors:
        raise CommandError(" ".join(f"{field}: {text}" for field, text in done.errors.items()))
    if done.ask:
        raise CommandError(done.ask, hint="If that is meant: confirmed=True")
    said: str | None = done.said
    if done.begun:
        said = None
        while said is None:
            said, _ = compute_progress(name)
    return said or ""


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
    """Make a version of a model of files that an ended run left; see :meth:`Models.register`.

    Parameters
    ----------
    path
        Within the run, ``outputs/model``; empty takes the only model that it left.
    progress
        Takes sentences on how far it is, on another thread.
    """
    c = controller()

    async def go() -> ModelRow:
        entry = await c.settle(await c.resolve(run))
        return await c.models.register(
            entry.run, name, path=path, type=type, description=description, tags=tags, progress=progress
        )

    return c.loop.call(go(), timeout=None)  # its files may be many gigabytes


def models(workspace: str = "") -> list[ModelRow]:
    """Every version of every model: where the target in use is, of a workspace, or (``"local"``) of this folder."""
    c = controller()
    return c.loop.call(c.models.list(working_folder(), workspace), timeout=None)


def download_model(
    name: str,
    version: str = "",
    *,
    to: str | os.PathLike[str] = "",
    workspace: str = "",
    progress: Callable[[str], None] | None = None,
) -> Fetched:
    """Copy a model into a folder that is not there yet, or empty; default ``NAME-VERSION`` here."""
    c = controller()
    folder, here = os.fspath(to), working_folder()
    done = c.models.download(here, name, version, to=folder, workspace=workspace, progress=progress)
    return c.loop.call(done, timeout=None)


def runs(target: str | None = None) -> list[TrackedRun]:
    """Every run that the targets know, newest first."""
    return [TrackedRun(handle) for handle in controller().loop.call(controller().handles(target), ANSWER)]


def attach(handle: str = "last") -> TrackedRun:
    """A run by handle, id, unambiguous beginning of one, or ``last``; from any kernel."""
    return TrackedRun(controller().loop.call(controller().resolve(handle), ANSWER))


def monitor(
    target: str | None = None, gpus: Iterable[int] | None = None, window: float = 600.0, rate: float = 1.0
) -> Monitor:
    """Sample the GPUs and the host of a target without a run.

    Parameters
    ----------
    target
        Name of the target; default the one in use.
    gpus
        Indices of GPUs; default all.
    window
        Seconds that the charts show at first; 0 for all.
    rate
        Samples a second, at most 10.

    Raises
    ------
    CommandError
        No such GPU, a rate out of range, or a target that cannot be monitored.
    """
    from jupyter_amltrain.output.mime import seconds_of
    from jupyter_amltrain.output.monitor import Monitor

    seconds_of(window)  # before anything is started
    if not 0 < rate <= 10:
        raise CommandError(f"rate {rate:g}: a monitor takes at most 10 samples a second.", hint="Try: --rate 1")
    c = controller()
    name = target or current_target()
    chosen = None if gpus is None else tuple(gpus)
    return Monitor(c.loop.call(c.monitors.open(name, chosen, 1 / rate), ANSWER), window)


def ui(project: str | os.PathLike[str] | None = None) -> str:
    """URL of MLflow's own pages for a project (default: this folder's); started if need be."""
    return mlflow_page(project)[0]


def mlflow_page(project: str | os.PathLike[str] | None = None) -> tuple[str, str]:
    """URL of MLflow's own pages for a project, and their path at the Jupyter server (empty without one).

    A link in a cell's output needs the path: only the browser knows under which name and port it reaches the server.
    """
    c = controller()
    folder = str(Path(project or working_folder()).resolve())
    answer = c.loop.call(c.open_ui(folder), 180)
    return str(answer["url"]), str(answer["path"])


#: A text that is the name of a file, not code.
_FILE = re.compile(r"[^\n]+\.py|[^\s=()]+\.(?:ipynb|csv|tsv|json|parquet|ya?ml|txt|md|sh)", re.I)


def submit_spec(spec: JobSpec, *, target: str | None = None, secrets: Mapping[str, str] | None = None) -> TrackedRun:
    """Submit a job; returns at once with the run."""
    c = controller()
    handle = c.loop.call(c.submit(spec, target, dict(os.environ), dict(secrets or {})))
    return TrackedRun(handle)


def check_spec(spec: JobSpec, *, target: str | None = None) -> None:
    """Raise the error for which the target would reject the job; sends nothing."""
    controller().loop.call(controller().prepare(spec, target), ANSWER)


def plan_spec(spec: JobSpec, *, target: str | None = None) -> Plan:
    """The exact request of a submit, without secrets; sends nothing."""
    return controller().loop.call(controller().plan(spec, target), ANSWER)


def submit(
    script: str | os.PathLike[str],
    *,
    target: str | None = None,
    args: Iterable[str] = (),
    secrets: Mapping[str, str] | None = None,
    **fields: Any,
) -> TrackedRun:
    """Submit a ``.py`` file, or code as text; returns when the target has accepted it.

        Parameters
        ----------
        script
            Path of a ``.py`` file (``os.PathLike``, or text that ends like a file's name), else code.
        target
            Where to run; default the target in use.
        args
            Further arguments of a file.
        secrets
            Names and values; handed to the job's process, stored nowhere.
        **fields
            The flags of ``%%aml_submit`` as keywords, with Python values. The signature lists them:
    %s

        Raises
        ------
        CommandError
            A value is wrong, the target is unknown, or it cannot run such a job.

        Examples
        --------
        >>> run = submit("accuracy = 0.9 + lr", params={"lr": 0.05}, out=["accuracy"])  # doctest: +SKIP
        >>> run.wait().result("accuracy")  # doctest: +SKIP
        0.95
    """
    from jupyter_amltrain.jobs import script as scripts

    if isinstance(args, str):
        raise CommandError(
            f"args must be a list of strings, got {args!r}.", hint=f"Example: args=[{args!r}]", field="args"
        )
    values = job_fields(keyword_values({**fields, "secrets": secrets}))
    folder = working_folder()
    inputs = values.get("inputs", {})
    params = values["params"] = dict(with_literals(values.get("params", {}), inputs))
    out, source = values.get("out", ()), values.get("source")
    code: dict[str, Any]
    if isinstance(script, os.PathLike) or _FILE.fullmatch(script):
        file = scripts.from_file(Path(script), source=Path(source) if source else None, out=out)
        code = {
            "script_name": file.name,
            "source_sha256": file.sha256,
            "notebook_dir": file.folder,
            "notes": file.notes,
        }
        name = Path(script).stem
    else:
        made = scripts.from_cell(script, magic_line="", params=params, out=out)
        code = {
            "script": made.text,
            "source_sha256": made.sha256,
            "notebook_dir": folder,
            "cell": script,
            "line_offset": made.line_offset + 1,  # no line of a magic stands above it
            "notes": made.notes,
        }
        name = "run"
    values.setdefault("name", name)
    values.setdefault("experiment", notebook_name() or "default")
    values["source"] = str(Path(source).resolve()) if source else None
    arguments = tuple(map(str, with_literals(tuple(args), inputs)))
    spec = JobSpec(**{**values, **code, "args": arguments, "project": folder})
    # A script may end right after this line: its target must have accepted the job by then.
    return submit_spec(spec, target=target, secrets=dict(secrets or {})).accepted()


def _documented(function: Any) -> None:
    """Put the keywords of the table of flags into a function's signature and docstring."""
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


_documented(submit)

__all__ = [
    "TrackedRun",
    "act",
    "attach",
    "billing",
    "check_spec",
    "close",
    "compute",
    "compute_progress",
    "compute_rows",
    "configure_target",
    "connect",
    "controller",
    "create_target",
    "current_target",
    "delete_target",
    "disconnect",
    "download_model",
    "models",
    "monitor",
    "plan_spec",
    "quota",
    "register_model",
    "runs",
    "scale_target",
    "sizes",
    "start_target",
    "stop_target",
    "submit",
    "submit_spec",
    "targets",
    "ui",
    "use",
    "workspaces",
]
