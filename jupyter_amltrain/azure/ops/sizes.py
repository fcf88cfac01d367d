"""Operation that lists the machine sizes of a workspace, for the choice of a size in the form of a new target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from jupyter_amltrain.azure.workspaces import WorkspaceManager
from jupyter_amltrain.errors import AmlTrainError, CommandError
from jupyter_amltrain.frontend.protocol import Reply, Request, op

if TYPE_CHECKING:
    from jupyter_amltrain.azure.catalog import Quotas, Size
    from jupyter_amltrain.kernel.controller import Controller


class SizeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One machine size; the same columns as in the table of ``%aml_compute sizes``.

    Attributes
    ----------
    gpu
        Model and memory of one GPU: ``NVIDIA T4 16 GB``; empty without GPUs.
    gpu_memory, memory
        Bytes of one GPU, and of the machine; ``None`` if unknown.
    price, price_low
        Per hour of one machine, dedicated and low-priority; ``None`` if unknown, or if there is no such machine.
    fit, fit_low
        Machines that the remaining quota allows; ``None`` where the quota is not known.
    retirement
        ``retired 2025-09-30``, or ``until 2027-03-31`` some time before; else empty.
    retired
        Whether Azure has retired the size.
    """

    name: str
    gpus: int = 0
    gpu: str = ""
    gpu_memory: float | None = None
    cpus: int | None = None
    memory: float | None = None
    price: float | None = None
    price_low: float | None = None
    fit: int | None = None
    fit_low: int | None = None
    retirement: str = ""
    retired: bool = False


class GetSizes(Request, frozen=True, kw_only=True):
    """Get the sizes that a kind of target may have in a workspace.

    Attributes
    ----------
    kind
        Kind of the target: ``amlcompute``, ``instance``, ...
    workspace
        Name of a connected workspace; empty for the current one.
    region
        Empty for the workspace's own.
    """

    kind: str = ""
    workspace: str = ""
    region: str = ""


class SizesReply(Reply, frozen=True, kw_only=True):
    """Answer to :class:`GetSizes`.

    Attributes
    ----------
    sizes
        The sizes with the fewest and smallest GPUs first.
    currency
        Of the prices; empty if unknown.
    gpu_table_date
        Date of the table of GPU models.
    error
        Why there are none; empty otherwise.
    """

    sizes: tuple[SizeRow, ...] = ()
    currency: str = ""
    gpu_table_date: str = ""
    error: str = ""


class SizeHandlers:
    """Handler of the list of sizes."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    @op("sizes")
    async def get_sizes(self, request: GetSizes) -> SizesReply:
        """Ask the service for its sizes and quotas; takes seconds at the first time."""
        from jupyter_amltrain.azure.catalog import Quotas, gpu_table, matching_sizes, sizes_of
        from jupyter_amltrain.azure.client import client_of

        try:
            name = await self._workspace(request.workspace)
            payload = {"workspace": name, "location": request.region}
            service = client_of(self._controller.loop, self._controller.root)
            rows = await service.request("sizes.list", payload)
            quotas = Quotas(await service.request("quota.list", payload))
        except AmlTrainError as error:
            return SizesReply(error=str(error))
        compute_type = "ComputeInstance" if request.kind == "instance" else "AmlCompute"
        sizes = matching_sizes(sizes_of(rows), kind=compute_type)
        return SizesReply(
            sizes=size_rows(sizes, quotas),
            currency=next((size.currency for size in sizes if size.currency), ""),
            gpu_table_date=str(gpu_table()["date"]),
        )

    async def _workspace(self, name: str) -> str:
        """Return the name of a connected workspace; empty: the current one."""
        workspaces, current = await cast(WorkspaceManager, self._controller.workspaces).all()
        names = [facts.name for facts in workspaces]
        if (name or current) not in names:
            raise CommandError(
                "No Azure ML workspace is connected.", hint="%aml_compute connect", code="workspace.none"
            )
        return name or current


def size_rows(sizes: Sequence[Size], quotas: Quotas) -> tuple[SizeRow, ...]:
    """Return the rows of sizes with what their quotas allow."""
    from jupyter_amltrain.azure.catalog import is_retired, retirement_text
    from jupyter_amltrain.azure.cost_prompts import gpu_text

    def fit(size: Size, low: bool) -> int | None:
        return quotas.max_machines(size, low) if quotas.is_known(size, low) else None

    def row(size: Size) -> dict[str, Any]:
        return {
            "price_low": size.price_low if size.low_priority else None,
            "fit": fit(size, False),
            "fit_low": fit(size, True) if size.low_priority else None,
            "retirement": retirement_text(size.name),
            "retired": is_retired(size.name),
        }

    return tuple(
        SizeRow(
            name=size.name,
            gpus=size.gpus or 0,
            gpu=gpu_text(size),
            gpu_memory=size.gpu_memory,
            cpus=size.cpus,
            memory=size.memory,
            price=size.price,
            **row(size),
        )
        for size in sizes
    )
