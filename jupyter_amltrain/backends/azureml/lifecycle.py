"""How Azure's computes come, stand and go, as the kernel sees it: asks the Azure process, words it, decides.

``AzureLifecycle`` is the half of ``AzureBackend`` that is :class:`~jupyter_amltrain.backends.lifecycle.Provisioned`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from jupyter_amltrain.backends.azureml import asked
from jupyter_amltrain.backends.azureml.catalog import find
from jupyter_amltrain.backends.azureml.client import Unanswered
from jupyter_amltrain.backends.azureml.holdings import AzureHoldings
from jupyter_amltrain.backends.azureml.keys import key_file, public_key, secrets_of, wrong_secrets
from jupyter_amltrain.backends.azureml.quotas import refusal
from jupyter_amltrain.backends.lifecycle import Progress, Provisioned, ProvisionState, scaling, switching
from jupyter_amltrain.errors import AmlTrainError, CreateUnsure
from jupyter_amltrain.spec.azure_target import AmlComputeTarget, InstanceTarget, ServerlessTarget
from jupyter_amltrain.spec.fields import Act
from jupyter_amltrain.spec.target import ComputeTarget

#: A row's price and quota are not waited for longer (seconds).
BESIDE = 0.5
#: What is kept of quotas is asked for anew when machines have come or gone. The service's own count may follow by and
#: by: it is asked again so often, for so long (seconds).
AGAIN, FOLLOWS = 10.0, 60.0
#: A work has no limit of ours but that the process says nothing for so long (seconds).
SILENCE = 300.0


class AzureLifecycle(AzureHoldings, Provisioned):
    """The life of one compute of a workspace."""

    #: When :attr:`_row` was asked for (Unix seconds).
    _seen_at: float = 0.0
    #: Machines when that was told, when their number changed, and when the quotas were last asked for because of it.
    _nodes: int | None = None
    _moved_at: float = -1e9
    _counted_at: float = -1e9

    def inherits(self, past: ComputeTarget) -> bool:
        """See :meth:`Provisioned.inherits`: of the same workspace."""
        return getattr(past, "workspace", None) == self.workspace().name

    async def state(self) -> ProvisionState:
        """See :meth:`Provisioned.state`."""
        target = self.azure
        beside = asyncio.gather(self.sizes(), self.quotas(), return_exceptions=True)
        try:
            if isinstance(target, ServerlessTarget):
                await asyncio.shield(beside)
                first = beside.result()[0]
                if isinstance(first, AmlTrainError) and not self.known_sizes():
                    raise first
                return asked.state_of(target, None, self.size(), self.known_quotas(), created=False)
            row = await self.ask("computes.get", name=target.compute_name)
            self._row, self._seen_at = row, time.time()
            if row is not None and row.get("size"):
                if self._moved(row):
                    beside.add_done_callback(_heard)
                    beside = asyncio.gather(self.sizes(), self.quotas(fresh=True), return_exceptions=True)
                await asyncio.wait([beside], timeout=BESIDE)
        finally:
            beside.add_done_callback(_heard)
        if row is None:
            return ProvisionState(
                state="failed",
                detail=f"There is no compute {target.compute_name!r} in {self.workspace().name}: it was deleted at"
                " Azure. Create it again under this name, or remove it from the list:"
                f" %aml_compute delete {target.name}",
            )
        return asked.state_of(target, row, self.size(str(row.get("size") or "")), self.known_quotas())

    def _moved(self, row: Mapping[str, Any]) -> bool:
        """Whether machines have come or gone, of which what is kept of the quotas may know nothing."""
        now, nodes, before = time.monotonic(), row.get("nodes"), self._nodes
        self._nodes = nodes
        if nodes != before and before is not None:
            self._moved_at = now
        elif now - self._counted_at < AGAIN or not (now - self._moved_at < FOLLOWS or self._uncounted(row)):
            return False
        self._counted_at = now
        return True

    def _uncounted(self, row: Mapping[str, Any]) -> bool:
        """Whether the quotas, as they are kept, count less than what this compute has on."""
        size = self.size(str(row.get("size") or ""))
        if size is None or not size.cpus or not row.get("nodes"):
            return False
        low = bool(row.get("low_priority", self.low_priority))
        return any(quota.used < row["nodes"] * size.cpus for quota in self.known_quotas().binding(size, low))

    def _settle(self) -> None:
        """Name the workspace in the target: the current one may be another tomorrow."""
        if not self.azure.workspace:
            self.target = msgspec.structs.replace(self.azure, workspace=self.workspace().name)

    async def is_gone(self) -> bool:
        """See :meth:`Provisioned.is_gone`."""
        if isinstance(self.azure, ServerlessTarget) or self.azure.attached:
            return False
        return await self.ask("computes.get", name=self.azure.compute_name) is None

    async def create(self, progress: Progress) -> None:
        """See :meth:`Provisioned.create`; attaches what is there already."""
        self._settle()
        target = self.azure
        if getattr(target, "size", ""):
            await self.possible()
        if isinstance(target, AmlComputeTarget):
            there = self._row = await self.ask("computes.get", name=target.compute_name)
            if there is None:  # one that is there has what it needs
                await self.hold(target.max_nodes, now=False, fresh=True)
                if target.min_nodes:
                    await self.hold(target.min_nodes)
        elif isinstance(target, InstanceTarget):
            there = self._row = await self.ask("computes.get", name=target.compute_name)
            if there is None:
                await self.hold(1, fresh=True)
        if isinstance(target, ServerlessTarget):
            await self.hold(1, now=False)
            return
        settings = {k: v for k, v in msgspec.to_builtins(target).items() if k not in ("kind", "name", "workspace")}
        payload: dict[str, Any] = {"kind": self.kind, "name": target.compute_name, "settings": settings}
        if target.attached:
            payload["secrets"] = secrets_of(target)
            if settings.get("ssh_key_file"):
                settings["ssh_key_file"] = str(key_file(settings["ssh_key_file"], target.name))
        elif settings.get("ssh_key_file"):
            settings["ssh_key"] = public_key(settings["ssh_key_file"], target.name)
        op = "computes.attach" if target.attached else "computes.create"
        try:
            self._row = await self.ask(op, progress, SILENCE, **payload)
        except Unanswered as error:
            raise CreateUnsure(
                f"{error.message} {target.name!r} may still be created.", hint="%aml_compute list shows it then."
            ) from error
        self._seen_at = time.time()

    async def remove(self, progress: Progress) -> None:
        """See :meth:`Provisioned.remove`."""
        target = self.azure
        if isinstance(target, ServerlessTarget):
            return
        op = "computes.detach" if target.attached else "computes.delete"
        await self.ask(op, progress, SILENCE, name=target.compute_name)
        self._row = None

    async def start(self, progress: Progress) -> None:
        """See :meth:`Provisioned.start`."""
        await self._power("start", progress)

    async def stop(self, progress: Progress) -> None:
        """See :meth:`Provisioned.stop`."""
        await self._power("stop", progress)

    async def restart(self, progress: Progress) -> None:
        """See :meth:`Provisioned.restart`."""
        await self._power("restart", progress)

    async def _power(self, verb: str, progress: Progress) -> None:
        if not isinstance(self.target, InstanceTarget):
            raise self._cannot({"start": "started", "stop": "stopped", "restart": "restarted"}[verb])
        self._row = await self.ask(f"computes.{verb}", progress, SILENCE, name=self.azure.compute_name)

    async def scale(self, settings: Mapping[str, Any], progress: Progress) -> None:
        """See :meth:`Provisioned.scale`."""
        target = self.target
        if not isinstance(target, AmlComputeTarget):
            raise self._cannot("scaled")
        self._row = await self.ask("computes.get", name=target.compute_name)
        existing = msgspec.structs.replace(target, **self._scale())  # somebody else may have changed it
        wanted = msgspec.structs.replace(existing, **settings)
        if wanted.max_nodes > existing.max_nodes:
            await self.hold(wanted.max_nodes, most=wanted.max_nodes, now=False, fresh=True)
        if wanted.min_nodes > existing.min_nodes:
            await self.hold(wanted.min_nodes, most=wanted.max_nodes, fresh=True)
        self._row = await self.ask(
            "computes.update", progress, SILENCE, name=target.compute_name, settings=dict(settings)
        )
        self.target = wanted

    def _scale(self) -> dict[str, Any]:
        """The scale settings that the service last told."""
        row = self._row or {}
        idle = row.get("idle_seconds")
        found = {"min_nodes": row.get("min_nodes"), "max_nodes": row.get("max_nodes")}
        found["idle_minutes"] = None if idle is None else idle / 60
        return {name: value for name, value in found.items() if value is not None}

    def wrong(self) -> dict[str, str]:
        """See :meth:`Provisioned.wrong`."""
        target, sizes = self.azure, self.known_sizes()
        wanted = str(getattr(target, "size", ""))
        try:
            if wanted:
                there = find(sizes, wanted)
                asked.check_size("", wanted, there, sizes, self._type, self.low_priority, self._where())
        except AmlTrainError as error:
            return {"size": str(error)}
        nodes = target.max_nodes if isinstance(target, AmlComputeTarget) else 1
        if wanted and there is not None:
            low, quotas = self.low_priority, self.known_quotas()
            refused = refusal(there, nodes, quotas, sizes, low_priority=low, kind=self._type, now=False)
            if refused is not None:
                return {"max_nodes" if isinstance(target, AmlComputeTarget) else "size": str(refused)}
        return wrong_secrets(target)

    def asks(self, verb: str, values: Mapping[str, Any], *, running: int, queued: int = 0) -> str:
        """See :meth:`Provisioned.asks`."""
        size, quotas = self.size(), self.known_quotas()
        return asked.asks(
            self.azure, verb, values, running=running, queued=queued, size=size, quotas=quotas, kind=self._type
        )

    def acts(self, state: ProvisionState) -> tuple[Act, ...]:
        """See :meth:`Provisioned.acts`."""
        delete = Act(verb="delete")
        target = self.target
        if isinstance(target, AmlComputeTarget):
            now = msgspec.structs.replace(target, **self._scale())
            return (scaling(now.min_nodes, now.max_nodes, now.idle_minutes), delete)
        if isinstance(target, InstanceTarget):
            stopped = state.state == "stopped"
            return (*switching(stopped), Act(verb="restart", why_not="It is stopped." if stopped else ""), delete)
        return (delete,)


def _heard(beside: asyncio.Future[Any]) -> None:
    """Nobody waits for it any more; what it brought is kept on disk."""
    if not beside.cancelled():
        beside.exception()
