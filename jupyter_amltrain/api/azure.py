"""Workspaces of Azure ML, and what may be had there."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.session import controller
from jupyter_amltrain.tracked_run import ANSWER

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.catalog import Quotas, Size
    from jupyter_amltrain.connections import Connected, Place
    from jupyter_amltrain.workspaces import WorkspaceFacts


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
    from jupyter_amltrain.workspaces import Workspaces

    stored = Workspaces(controller().root)
    facts = [stored.get(workspace)] if workspace else stored.all()
    return {one.name: _azure("billing.list", one.name) for one in facts}


def _azure(op: str, workspace: str, **payload: Any) -> Any:
    """Have the Azure process answer for a workspace; default the current one."""
    from jupyter_amltrain.backends.azureml.client import client_of
    from jupyter_amltrain.workspaces import Workspaces

    c = controller()
    facts = Workspaces(c.root).get(workspace)

    async def ask() -> Any:
        return await client_of(c.loop, c.root).request(op, {"workspace": facts.name, **payload})

    return c.loop.call(ask(), None)
