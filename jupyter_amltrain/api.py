"""The same as the magics, as plain functions: for scripts, tests, papermill, the command line."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.session import close, controller
from jupyter_amltrain.spec.target import ComputeTarget, TargetInfo
from jupyter_amltrain.submitting import plan_spec, submit, submit_spec
from jupyter_amltrain.tracked_run import ANSWER, TrackedRun

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.catalog import Size
    from jupyter_amltrain.backends.azureml.quotas import Quotas
    from jupyter_amltrain.computes import Done
    from jupyter_amltrain.connections import Connected, Place
    from jupyter_amltrain.models import Fetched, ModelRow
    from jupyter_amltrain.monitor import Monitor
    from jupyter_amltrain.spec.rows import TargetRow
    from jupyter_amltrain.workspaces import WorkspaceFacts

__all__ = [
    "TrackedRun",
    "act",
    "attach",
    "close",
    "compute",
    "compute_progress",
    "compute_rows",
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
    "register_model",
    "quota",
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


def runs(target: str | None = None) -> list[TrackedRun]:
    """Every run that the targets know, newest first."""
    found = controller().loop.call(controller().runs(target), ANSWER)
    return [TrackedRun(run.handle) for run in found]


def attach(handle: str = "last") -> TrackedRun:
    """A run by handle, id, unambiguous beginning of one, or ``last``; from any kernel."""
    return TrackedRun(controller().loop.call(controller().resolve(handle), ANSWER))


def compute(name: str | None = None) -> TargetInfo:
    """What a check of a target finds; default the target in use."""
    return controller().loop.call(controller().computes.check(name), ANSWER)


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
    from jupyter_amltrain.monitor import Monitor
    from jupyter_amltrain.widgets.view import seconds_of

    seconds_of(window)  # before anything is started
    if not 0 < rate <= 10:
        raise CommandError(f"rate {rate:g}: a monitor takes at most 10 samples a second.", hint="Try: --rate 1")
    c = controller()
    name = target or current_target()
    chosen = None if gpus is None else tuple(gpus)
    return Monitor(c.loop.call(c.monitors.open(name, chosen, 1 / rate), ANSWER), window)


def connect(place: Place, show: Callable[[dict[str, Any]], None] | None = None) -> Connected:
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
    from jupyter_amltrain.backends.azureml.quotas import Quotas

    return Quotas(_azure("quota.list", workspace, location=region))


def billing(workspace: str = "") -> dict[str, list[dict[str, Any]]]:
    """What bills by the hour at Azure ML now, by workspace; default every connected one."""
    from jupyter_amltrain.workspaces import Workspaces

    stored = Workspaces(controller().root)
    facts = [stored.get(workspace)] if workspace else stored.all()
    return {one.name: _azure("billing.list", one.name) for one in facts}


def _azure(op: str, workspace: str, **payload: Any) -> Any:
    """Have the Azure process answer for a workspace; default the current one."""
    from jupyter_amltrain.backends.azureml.link import link_of
    from jupyter_amltrain.workspaces import Workspaces

    c = controller()
    facts = Workspaces(c.root).get(workspace)

    async def ask() -> Any:
        return await link_of(c.loop, c.root).request(op, {"workspace": facts.name, **payload})

    return c.loop.call(ask(), None)


def disconnect(name: str, *, confirmed: bool = False) -> str:
    """Forget an Azure ML workspace and its targets; returns what is told."""
    return controller().loop.call(controller().connections.disconnect(name, confirmed=confirmed), ANSWER)


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

    return c.loop.call(go())


def models(workspace: str = "") -> list[ModelRow]:
    """Every version of every model: where the target in use is, of a workspace, or (``"local"``) of this folder."""
    c = controller()
    return c.loop.call(c.models.list(str(Path.cwd()), workspace))


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
    folder, here = os.fspath(to), str(Path.cwd())
    return c.loop.call(c.models.download(here, name, version, to=folder, workspace=workspace, progress=progress))


def targets() -> list[ComputeTarget]:
    """Every compute target."""
    return controller().loop.call(controller().list_targets(), ANSWER)


def ui(project: str | os.PathLike[str] | None = None) -> str:
    """URL of MLflow's own pages for a project (default: this folder's); started if need be."""
    c = controller()
    folder = str(Path(project or Path.cwd()).resolve())
    answer = c.loop.call(c.open_ui(folder), 180)
    return str(answer["url"])


def current_target() -> str:
    """Name of the target in use."""
    return controller().targets.current


def use(name: str) -> None:
    """Make `name` the target in use."""
    controller().loop.call(controller().computes.act("use", name), ANSWER)


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
) -> Done:
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


def scale_target(name: str, nodes: int, *, confirmed: bool = False) -> str:
    """Keep `nodes` machines of a cluster on, and wait for it."""
    return _through("scale", name, "", {"nodes": nodes}, confirmed)


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
