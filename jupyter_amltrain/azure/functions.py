"""Functions of :mod:`jupyter_amltrain.api` about workspaces, their machine sizes, costs and data."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Mapping
from typing import Any, cast

from jupyter_amltrain import api
from jupyter_amltrain.azure.catalog import Quotas, Size, matching_sizes, sizes_of
from jupyter_amltrain.azure.data_assets import DataAsset
from jupyter_amltrain.azure.workspace_file import WorkspaceFacts
from jupyter_amltrain.azure.workspaces import ConnectResult, WorkspaceManager, WorkspaceRef
from jupyter_amltrain.backends.provisioner import Provisioner
from jupyter_amltrain.kernel.session import controller
from jupyter_amltrain.run import ANSWER_TIMEOUT_S


def _workspaces() -> WorkspaceManager:
    return cast(WorkspaceManager, controller().workspaces)


def _request(op: str, workspace: str, **payload: Any) -> Any:
    """Send a request about a workspace to the service process; default: the current one."""
    return controller().loop.call(_workspaces().request(op, workspace, payload), None)


def connect(place: WorkspaceRef, show: Callable[[dict[str, Any]], None] | None = None) -> ConnectResult:
    """Connect an Azure ML workspace and add its computes as targets. Ctrl-C cancels.

    Parameters
    ----------
    show
        Called on this thread with progress events and sign-in instructions.
    """
    c = controller()
    events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    future = c.loop.post(_workspaces().connect(place, events.put))
    future.add_done_callback(lambda _: events.put(None))
    try:
        while True:
            try:
                event = events.get(timeout=0.5)  # short waits, so that Ctrl-C works on every platform
            except queue.Empty:
                continue
            if event is None:
                return future.result()
            if show is not None:
                show(event)
    except BaseException as error:  # Ctrl-C too: the work must not outlive the wait for it
        future.cancel()
        if isinstance(error, KeyboardInterrupt) and show is not None:
            show({"kind": "sign-in", "text": ""})
        raise


def workspaces() -> tuple[list[WorkspaceFacts], str]:
    """Return the connected Azure ML workspaces and the name of the current one."""
    return controller().loop.call(_workspaces().all(), ANSWER_TIMEOUT_S)


def disconnect(name: str, *, confirmed: bool = False) -> str:
    """Disconnect an Azure ML workspace and remove its targets; returns a message for the user."""
    return controller().loop.call(_workspaces().disconnect(name, confirmed=confirmed), ANSWER_TIMEOUT_S)


def sizes(
    *,
    gpu: bool = False,
    family: str = "",
    min_gpu_memory: float = 0.0,
    instance: bool = False,
    workspace: str = "",
    region: str = "",
) -> list[Size]:
    """Return the VM sizes that Azure ML offers, smallest first.

    Parameters
    ----------
    family
        VM family prefix: ``NC``, ``ND``, ``NV``.
    min_gpu_memory
        Minimum memory of one GPU, in bytes.
    instance
        Sizes for compute instances instead of clusters.
    workspace, region
        Default: the current workspace, and its region.
    """
    rows = _request("sizes.list", workspace, location=region)
    kind = "ComputeInstance" if instance else "AmlCompute"
    return matching_sizes(sizes_of(rows), gpu=gpu, family=family, min_gpu_memory=min_gpu_memory, kind=kind)


def quota(*, workspace: str = "", region: str = "") -> Quotas:
    """Return the remaining vCPU quota in Azure ML; arguments as for :func:`sizes`."""
    return Quotas(_request("quota.list", workspace, location=region))


def billing(workspace: str = "") -> dict[str, list[dict[str, Any]]]:
    """Return what is billed by the hour now, by workspace; default: every connected one.

    Computes and serverless jobs of the workspaces, and the virtual machines that are targets here.
    """
    names = [workspace] if workspace else [facts.name for facts in workspaces()[0]]
    found: dict[str, list[dict[str, Any]]] = {name: _request("billing.list", name) for name in names}
    for target in api.targets():
        owner = str(getattr(target, "azure_workspace", ""))
        if target.variant == "azure_vm" and owner in found:
            found[owner] += _billed_machine(target.name)
    return found


def _billed_machine(name: str) -> list[dict[str, Any]]:
    """Return the row of a virtual machine, as those of :func:`billing`; none if it is deallocated."""

    async def read() -> list[dict[str, Any]]:
        backend = controller().backend(name)
        assert isinstance(backend, Provisioner)
        state = await backend.state()
        if state.price == 0 or state.state == "failed":
            return []
        facts = {"size": state.size, "low_priority": False, "price": state.price, "currency": state.currency}
        return [{"name": name, "kind": "ssh", "nodes": 1, "keeps": 0, **facts}]

    return controller().loop.call(read(), ANSWER_TIMEOUT_S)


def upload_data(
    name: str,
    path: str | os.PathLike[str],
    version: str = "",
    *,
    type: str = "",
    description: str = "",
    tags: Mapping[str, str] | None = None,
    workspace: str = "",
    progress: Callable[[str], None] | None = None,
) -> DataAsset:
    """Upload a file or folder as a version of data of an Azure ML workspace; content that it has is not sent.

    Parameters
    ----------
    version
        Default: the newest version if it has the same content, otherwise the next one.
    progress
        Called with progress messages, on another thread.
    """
    c = controller()
    upload = _workspaces().data.upload(
        name,
        os.path.abspath(os.path.expanduser(path)),
        version,
        type=type,
        description=description,
        tags=tags,
        workspace=workspace,
        progress=progress,
    )
    return c.loop.call(upload, timeout=None)  # the files may have many gigabytes


def data_assets(workspace: str = "") -> list[DataAsset]:
    """Return all versions of the data of a workspace; default: that of the target in use."""
    return controller().loop.call(_workspaces().data.list(workspace), timeout=None)


def data_asset(name: str, version: str = "", *, workspace: str = "") -> DataAsset:
    """Return a version of data of a workspace; default: the newest one."""
    return controller().loop.call(_workspaces().data.find(name, version, workspace), timeout=None)


#: The functions by their names in ``api``.
FUNCTIONS = {
    function.__name__: function
    for function in (connect, workspaces, disconnect, sizes, quota, billing, upload_data, data_assets, data_asset)
}
