"""What a compute's workspace has for it: sizes, prices, quotas; and what it refuses before anything is sent."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from jupyter_amltrain.backends.azureml import asked, kept
from jupyter_amltrain.backends.azureml.catalog import Size, find, sizes_of
from jupyter_amltrain.backends.azureml.client import Ended, client_of
from jupyter_amltrain.backends.azureml.quotas import Quotas, refusal
from jupyter_amltrain.backends.lifecycle import Progress
from jupyter_amltrain.errors import AmlTrainError, CapacityError
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.spec.azure_target import AmlComputeTarget, AzureTarget, InstanceTarget
from jupyter_amltrain.spec.target import ComputeTarget
from jupyter_amltrain.state import StateRoot
from jupyter_amltrain.workspaces import WorkspaceFacts, Workspaces

#: What may be asked again where the process ended in the middle: nothing is changed by it.
_READS = frozenset(
    ("computes.get", "computes.list", "sizes.list", "quota.list", "jobs.get", "jobs.poll", "jobs.list", "mirror.sync")
)


class AzureHoldings:
    """One target of a workspace, and the Azure process that answers for it.

    Whoever derives from it sets :attr:`_loop` and :attr:`_root`.
    """

    target: ComputeTarget
    _loop: LoopThread
    _root: StateRoot
    #: What the service last said of the compute.
    _row: dict[str, Any] | None = None

    @property
    def azure(self) -> AzureTarget:
        """The target, as what it is."""
        assert isinstance(self.target, AzureTarget)
        return self.target

    @property
    def kind(self) -> str:
        """Its tag."""
        return str(type(self.target).__struct_config__.tag)

    @property
    def low_priority(self) -> bool:
        """Whether its machines may be taken away."""
        return bool(getattr(self.target, "low_priority", False))

    @property
    def _type(self) -> str:
        """The service's word for what its sizes must be for."""
        return "ComputeInstance" if isinstance(self.target, InstanceTarget) else "AmlCompute"

    def workspace(self) -> WorkspaceFacts:
        """The workspace it is in; the current one when its target names none. Reads one small file.

        Raises
        ------
        CommandError
            There is no such workspace.
        """
        return Workspaces(self._root).get(self.azure.workspace)

    async def ask(self, op: str, progress: Progress | None = None, timeout: float = 120.0, **payload: Any) -> Any:
        """Have the Azure process do something in the target's workspace."""
        link = client_of(self._loop, self._root)
        whole = {"workspace": self.workspace().name, **payload}
        try:
            return await link.request(op, whole, progress=progress, timeout=timeout)
        except Ended:
            if op not in _READS:
                raise
            return await link.request(op, whole, progress=progress, timeout=timeout)

    # ---- sizes, prices, quotas

    def _region(self) -> str:
        return str(getattr(self.target, "region", "") or "")

    async def sizes(self, *, region: str = "") -> tuple[Size, ...]:
        """The sizes of its region."""
        return sizes_of(await self.ask("sizes.list", location=region or self._region()))

    async def quotas(self, *, fresh: bool = False) -> Quotas:
        """The quotas of its region."""
        return Quotas(await self.ask("quota.list", location=self._region(), fresh=fresh))

    def known_sizes(self) -> tuple[Size, ...]:
        """The sizes as they were last heard of; asks nobody."""
        found = self._kept("sizes")
        return sizes_of(found) if found else ()

    def known_quotas(self) -> Quotas:
        """The quotas as they were last heard of; asks nobody."""
        return Quotas(self._kept("quota"))

    def _kept(self, what: str) -> list[dict[str, Any]]:
        try:
            facts = self.workspace()
        except AmlTrainError:
            return []
        found = kept.read(kept.path(self._root.path, what, facts.subscription, self._region() or facts.location))
        return found[0] if found else []

    def size(self, name: str = "") -> Size | None:
        """A size by name, default the target's own, as far as it is known; asks nobody."""
        wanted = name or str(getattr(self.target, "size", "") or (self._row or {}).get("size") or "")
        return find(self.known_sizes(), wanted) if wanted else None

    async def prepare(self) -> None:
        """Hear of prices and quotas; see ``Provisioned.prepare``.

        Raises
        ------
        CommandError
            The workspace is not connected.
        """
        self.workspace()
        if getattr(self.target, "size", ""):
            await asyncio.gather(self.sizes(), self.quotas(), return_exceptions=True)

    async def hold(
        self,
        nodes: int,
        *,
        size: str = "",
        low_priority: bool | None = None,
        most: int | None = None,
        now: bool = True,
        fresh: bool = False,
    ) -> None:
        """Refuse what the quota cannot hold, or the target has not; nothing is refused that is not known.

        Parameters
        ----------
        nodes
            Machines that are wanted together.
        size
            Default the target's own.
        most
            Maximum number of nodes of the cluster, default the target's own.
        now
            Beside what others use now; else whether it could ever be.
        fresh
            Do not believe what was heard a minute ago.

        Raises
        ------
        QuotaExceeded, CapacityError
        """
        target = self.target
        if isinstance(target, AmlComputeTarget) and nodes > (most := target.max_nodes if most is None else most):
            raise CapacityError(
                f"{target.name!r} has {most} machine{'' if most == 1 else 's'} at most, {nodes} are wanted.",
                hint=f"Take fewer nodes, or raise the maximum: %aml_compute scale {target.name} --max-nodes {nodes}",
            )
        wanted = size or str(getattr(target, "size", ""))
        if not wanted or (isinstance(target, InstanceTarget) and self._row is not None):
            return  # it has its machine
        try:
            sizes, quotas = await asyncio.gather(self.sizes(), self.quotas(fresh=fresh))
        except AmlTrainError:
            return
        there = find(sizes, wanted)
        if there is None:
            return
        low = self.low_priority if low_priority is None else low_priority
        mine = 0
        if isinstance(target, AmlComputeTarget) and self._row is not None:
            mine = int(self._row.get("nodes") or 0) * (there.cpus or 0)
        refused = refusal(
            there, nodes, quotas, sizes, low_priority=low, kind=self._type, mine=mine, now=now, who=target.name
        )
        if refused is not None and not fresh:  # others may have let go in the last minute
            await self.hold(nodes, size=size, low_priority=low_priority, most=most, now=now, fresh=True)
        elif refused is not None:
            raise refused

    async def possible(self) -> None:
        """Refuse a size that cannot be had, before anything is sent."""
        wanted = str(getattr(self.target, "size", ""))
        try:
            sizes = await self.sizes()
        except AmlTrainError:
            return
        there = find(sizes, wanted)
        asked.check_size(self.target.name, wanted, there, sizes, self._type, self.low_priority, self._where())

    def _where(self) -> str:
        with contextlib.suppress(AmlTrainError):
            return self._region() or self.workspace().location
        return self._region()
