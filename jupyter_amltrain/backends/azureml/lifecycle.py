"""How Azure's computes come, stand and go, as the kernel sees it: asks the Azure process, words it, decides.

``AzureLifecycle`` is the half of ``AzureBackend`` that is :class:`~jupyter_amltrain.backends.lifecycle.Provisioned`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from jupyter_amltrain.backends.azureml import asked, kept
from jupyter_amltrain.backends.azureml.catalog import Size, find, sizes_of
from jupyter_amltrain.backends.azureml.link import link_of
from jupyter_amltrain.backends.azureml.quotas import Quotas, refusal
from jupyter_amltrain.backends.lifecycle import Progress, Provisioned, ProvisionState
from jupyter_amltrain.errors import AmlTrainError, CapacityError, CommandError
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.spec.azure_target import AmlComputeTarget, AzureTarget, InstanceTarget, ServerlessTarget
from jupyter_amltrain.spec.fields import Act, Field
from jupyter_amltrain.spec.target import ComputeTarget
from jupyter_amltrain.state import StateRoot
from jupyter_amltrain.workspaces import WorkspaceFacts, Workspaces

#: A row's price and quota are not waited for longer (seconds).
BESIDE = 0.5
#: A work has no limit of ours but that the process says nothing for so long (seconds).
SILENCE = 300.0


class AzureLifecycle(Provisioned):
    """The life of one compute of a workspace.

    Whoever derives from it sets :attr:`_loop` and :attr:`_root`.
    """

    target: ComputeTarget
    _loop: LoopThread
    _root: StateRoot
    #: What the last :meth:`state` found: the compute's row, and when (Unix seconds).
    _row: dict[str, Any] | None = None
    _seen_at: float = 0.0

    # ---- what it is

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
        link = link_of(self._loop, self._root)
        return await link.request(
            op, {"workspace": self.workspace().name, **payload}, progress=progress, timeout=timeout
        )

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
        """See :meth:`Provisioned.prepare`: hear of prices and quotas.

        Raises
        ------
        CommandError
            The workspace is not connected.
        """
        self.workspace()
        if getattr(self.target, "size", ""):
            await asyncio.gather(self.sizes(), self.quotas(), return_exceptions=True)

    async def hold(
        self, nodes: int, *, size: str = "", low_priority: bool | None = None, now: bool = True, fresh: bool = False
    ) -> None:
        """Refuse what the quota cannot hold, or the target has not; nothing is refused that is not known.

        Parameters
        ----------
        nodes
            Machines that are wanted together.
        size
            Default the target's own.
        now
            Beside what others use now; else whether it could ever be.
        fresh
            Do not believe what was heard a minute ago.

        Raises
        ------
        QuotaExceeded, CapacityError
        """
        target = self.target
        if isinstance(target, AmlComputeTarget) and nodes > target.max_nodes:
            raise CapacityError(
                f"{target.name!r} has {target.max_nodes} machine{'' if target.max_nodes == 1 else 's'} at most,"
                f" {nodes} are wanted.",
                hint="Take fewer nodes, or a cluster with a higher --max-nodes.",
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
            await self.hold(nodes, size=size, low_priority=low_priority, now=now, fresh=True)
        elif refused is not None:
            raise refused

    async def _possible(self) -> None:
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

    # ---- the life

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
                await asyncio.wait([beside], timeout=BESIDE)
        finally:
            beside.add_done_callback(_heard)
        if row is None:
            return ProvisionState(
                state="failed",
                detail=f"There is no compute {target.compute_name!r} in {self.workspace().name} (any more);"
                f" %aml_compute delete {target.name} removes it from the list.",
            )
        return asked.state_of(target, row, self.size(str(row.get("size") or "")), self.known_quotas())

    def _settle(self) -> None:
        """Name the workspace in the target: the current one may be another tomorrow."""
        if not self.azure.workspace:
            self.target = msgspec.structs.replace(self.azure, workspace=self.workspace().name)

    async def create(self, progress: Progress) -> None:
        """See :meth:`Provisioned.create`; attaches what is there already."""
        self._settle()
        target = self.azure
        if getattr(target, "size", ""):
            await self._possible()
        if isinstance(target, AmlComputeTarget):
            there = await self.ask("computes.get", name=target.compute_name)
            if there is None:  # one that is there has what it needs
                await self.hold(target.max_nodes, now=False, fresh=True)
                if target.min_nodes:
                    await self.hold(target.min_nodes)
        elif isinstance(target, InstanceTarget):
            there = await self.ask("computes.get", name=target.compute_name)
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
                settings["ssh_key_file"] = str(_file(settings["ssh_key_file"], target.name))
        elif settings.get("ssh_key_file"):
            settings["ssh_key"] = public_key(settings["ssh_key_file"], target.name)
        op = "computes.attach" if target.attached else "computes.create"
        self._row = await self.ask(op, progress, SILENCE, **payload)
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

    async def scale(self, nodes: int, progress: Progress) -> None:
        """See :meth:`Provisioned.scale`."""
        target = self.target
        if not isinstance(target, AmlComputeTarget):
            raise self._cannot("scaled")
        if nodes > target.min_nodes:
            self._row = await self.ask("computes.get", name=target.compute_name)
            await self.hold(nodes, fresh=True)
        self._row = await self.ask(
            "computes.update", progress, SILENCE, name=target.compute_name, settings={"min_nodes": nodes}
        )
        self.target = msgspec.structs.replace(target, min_nodes=nodes)

    # ---- what is said

    def asks(self, verb: str, values: Mapping[str, Any], *, running: int) -> str:
        """See :meth:`Provisioned.asks`."""
        return asked.asks(
            self.azure, verb, values, running=running, size=self.size(), quotas=self.known_quotas(), kind=self._type
        )

    def acts(self, state: ProvisionState) -> tuple[Act, ...]:
        """See :meth:`Provisioned.acts`."""
        delete = Act(verb="delete")
        target = self.target
        if isinstance(target, AmlComputeTarget):
            nodes = Field(
                name="nodes",
                flag="--nodes",
                kind="int",
                help=f"Machines to keep on, 0 to {target.max_nodes}",
                default=target.min_nodes,
                required=True,
                metavar="N",
            )
            return (Act(verb="scale", fields=(nodes,)), delete)
        if isinstance(target, InstanceTarget):
            stopped = state.state == "stopped"
            return (
                Act(verb="start", why_not="" if stopped else "It runs already."),
                Act(verb="stop", why_not="It is stopped already." if stopped else ""),
                Act(verb="restart", why_not="It is stopped." if stopped else ""),
                delete,
            )
        return (delete,)


def _heard(beside: asyncio.Future[Any]) -> None:
    """Nobody waits for it any more; what it brought is kept on disk."""
    if not beside.cancelled():
        beside.exception()


def secrets_of(target: AzureTarget) -> dict[str, str]:
    """What the environment variables hold that a target names, read now.

    Raises
    ------
    CommandError
        One of them is empty; names the variable, never its value.
    """
    found = {}
    for key, name in (("password", "password_from"), ("token", "token_from")):
        variable = str(getattr(target, name, "") or "")
        if not variable:
            continue
        value = os.environ.get(variable, "")
        if not value:
            raise CommandError(
                f"{target.name!r}: the environment variable {variable} is empty or not set.",
                hint=f"Set it first: import os, getpass; os.environ[{variable!r}] = getpass.getpass()",
            )
        found[key] = value
    return found


def public_key(file: str, who: str) -> str:
    """The text of a public key file.

    Raises
    ------
    CommandError
        It cannot be read, or holds something else; a private key is never repeated.
    """
    path = _file(file, who)
    text = path.read_text(encoding="utf-8", errors="replace").strip()
    if "PRIVATE KEY" in text:
        raise CommandError(f"{who!r}: {file} is a private key.", hint=f"Give the public one: {file}.pub")
    if not text.startswith(("ssh-", "ecdsa-")) or "\n" in text:
        raise CommandError(f"{who!r}: {file} is no public key.", hint="ssh-keygen -t rsa makes one: id_rsa.pub")
    return text


def _file(file: str, who: str) -> Path:
    path = Path(file).expanduser().absolute()
    if not path.is_file():
        raise CommandError(f"{who!r}: there is no file {file}.", hint="Check --ssh-key-file.")
    return path
