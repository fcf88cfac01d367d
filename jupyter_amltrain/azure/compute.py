"""One compute of a workspace: its lifecycle, and the sizes, prices and quotas of its workspace."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from jupyter_amltrain.azure import catalog, cost_prompts
from jupyter_amltrain.azure.catalog import Quotas, Size, find, quota_error, sizes_of
from jupyter_amltrain.azure.client import NoReply, ProcessEnded, client_of
from jupyter_amltrain.azure.targets import AmlComputeTarget, AzureTarget, InstanceTarget, ServerlessTarget
from jupyter_amltrain.azure.workspace_file import WorkspaceFacts, WorkspaceFile
from jupyter_amltrain.backends.provisioner import (
    Progress,
    Provisioner,
    ProvisionState,
    RunPrice,
    scale_action,
    start_stop_actions,
)
from jupyter_amltrain.errors import AmlTrainError, CapacityError, CommandError, CreateUnsure
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.fields import TargetAction
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.target import ComputeTarget
from jupyter_amltrain.state_dir import StateRoot
from jupyter_amltrain.text import counted

#: Secret of the service's request -> field with the name of the environment variable that holds it.
_SECRETS = {"password": "password_from", "token": "token_from"}


def wrong_secrets(target: AzureTarget) -> dict[str, str]:
    """Return an error sentence for each field that names a missing secret or key."""
    errors: dict[str, str] = {}
    for name in _SECRETS.values():
        variable = str(getattr(target, name, "") or "")
        if variable and not os.environ.get(variable):
            errors[name] = f"The environment variable {variable} is empty or not set. {_how_to_set(variable)}"
    if file := str(getattr(target, "ssh_key_file", "") or ""):
        try:
            if target.attached:
                key_file(file)
            else:
                public_key(file)
        except CommandError as error:
            errors["ssh_key_file"] = str(error)
    return errors


def _how_to_set(variable: str) -> str:
    return f"Set it first: import os, getpass; os.environ[{variable!r}] = getpass.getpass()"


def secrets_of(target: AzureTarget) -> dict[str, str]:
    """Return the current values of the environment variables that a target names.

    Raises
    ------
    CommandError
        A variable is empty; the message names the variable, never its value.
    """
    secrets = {}
    for key, name in _SECRETS.items():
        variable = str(getattr(target, name, "") or "")
        if not variable:
            continue
        value = os.environ.get(variable, "")
        if not value:
            raise CommandError(
                f"the environment variable {variable} is empty or not set.", field=name, hint=_how_to_set(variable)
            ).about(repr(target.name))
        secrets[key] = value
    return secrets


def public_key(file: str) -> str:
    """Return the text of a public key file.

    Raises
    ------
    CommandError
        The file cannot be read, or is not a public key; the message never contains a private key.
    """
    path = key_file(file)
    text = path.read_text(encoding="utf-8", errors="replace").strip()
    if "PRIVATE KEY" in text:
        raise CommandError(
            f"--ssh-key-file: {file} is a private key.", field="ssh_key_file", hint=f"Use the public key: {file}.pub"
        )
    if not text.startswith(("ssh-", "ecdsa-")) or "\n" in text:
        raise CommandError(
            f"--ssh-key-file: {file} is not a public key.",
            field="ssh_key_file",
            hint="Create one with: ssh-keygen -t rsa (the public key is id_rsa.pub)",
        )
    return text


def key_file(file: str) -> Path:
    """Return the absolute path of a key file.

    Raises
    ------
    CommandError
        The file does not exist.
    """
    path = Path(file).expanduser().absolute()
    if not path.is_file():
        raise CommandError(f"--ssh-key-file: there is no file {file}.", field="ssh_key_file", hint="Check the path.")
    return path


#: Operations that are sent again if the process ended during the request: repeating them changes nothing.
_READS = frozenset(
    (
        "computes.get",
        "computes.list",
        "environments.list",
        "environments.show",
        "sizes.list",
        "quota.list",
        "jobs.get",
        "jobs.poll",
        "jobs.list",
        "jobs.files",
        "jobs.file",
        "mirror.sync",
        "data.send",  # sends only what is missing
    )
)
#: Seconds that the price and quota of a row may take in addition to its state.
EXTRAS_TIMEOUT_S = 0.5
#: Seconds without a progress event before an operation fails; it has no other time limit.
OPERATION_TIMEOUT_S = 300.0


class AzureCompute(Provisioner):
    """One compute of a workspace: operations in the service process, confirmation texts, and checks of quotas.

    Parameters
    ----------
    target
        Stored target; an operation may change it (:class:`~jupyter_amltrain.backends.provisioner.Provisioner`).
    root
        The state root.
    """

    keeps_history: ClassVar[bool] = True

    def __init__(self, target: ComputeTarget, loop: LoopThread, root: StateRoot) -> None:
        self.target, self.loop, self.root = target, loop, root
        #: The service's last description of the compute, and its Unix time.
        self._row: dict[str, Any] | None = None
        self._seen_at = 0.0
        self._quota_clock = catalog.QuotaClock()

    @property
    def azure(self) -> AzureTarget:
        """The target with its Azure type."""
        assert isinstance(self.target, AzureTarget)
        return self.target

    @property
    def kind(self) -> str:
        """Tag of the target's type."""
        return str(type(self.target).__struct_config__.tag)

    @property
    def _type(self) -> str:
        """The service's compute type, by which sizes are filtered."""
        return "ComputeInstance" if isinstance(self.target, InstanceTarget) else "AmlCompute"

    @property
    def is_missing(self) -> bool:
        """Whether the compute was missing in the service's last answer."""
        return self._row is None and self._seen_at > 0

    def workspace(self) -> WorkspaceFacts:
        """Return the target's workspace; the current one if the target names none. Reads one small file.

        Raises
        ------
        CommandError
            There is no such workspace.
        """
        return WorkspaceFile(self.root).get(self.azure.workspace)

    async def request(self, op: str, progress: Progress | None = None, timeout: float = 120.0, **payload: Any) -> Any:
        """Run an operation of the service process in the target's workspace."""
        link = client_of(self.loop, self.root)
        whole = {"workspace": self.workspace().name, **payload}
        try:
            return await link.request(op, whole, progress=progress, timeout=timeout)
        except ProcessEnded:
            if op not in _READS:
                raise
            return await link.request(op, whole, progress=progress, timeout=timeout)

    # ---- sizes, prices, quotas

    def _region(self) -> str:
        return str(getattr(self.target, "region", "") or "")

    async def sizes(self, *, region: str = "") -> tuple[Size, ...]:
        """Fetch the sizes of its region."""
        return sizes_of(await self.request("sizes.list", location=region or self._region()))

    async def quotas(self, *, fresh: bool = False) -> Quotas:
        """Fetch the quotas of its region."""
        return Quotas(await self.request("quota.list", location=self._region(), fresh=fresh))

    def known_sizes(self) -> tuple[Size, ...]:
        """Return the sizes as last fetched. No network."""
        rows = self._stored_rows("sizes")
        return sizes_of(rows) if rows else ()

    def known_quotas(self) -> Quotas:
        """Return the quotas as last fetched. No network."""
        return Quotas(self._stored_rows("quota"))

    def _stored_rows(self, what: str) -> list[dict[str, Any]]:
        try:
            facts = self.workspace()
        except AmlTrainError:
            return []
        stored = catalog.read_region_rows(
            catalog.region_file(self.root.path, what, facts.subscription, self._region() or facts.location)
        )
        return stored[0] if stored else []

    def size(self, name: str = "") -> Size | None:
        """Return a size by name, default the target's own, as far as it is known. No network."""
        size_name = name or str(getattr(self.target, "size", "") or (self._row or {}).get("size") or "")
        return find(self.known_sizes(), size_name) if size_name else None

    async def prepare(self) -> None:
        """Fetch prices and quotas; see ``Provisioner.prepare``.

        Raises
        ------
        CommandError
            The workspace is not connected.
        """
        self.workspace()
        if getattr(self.target, "size", ""):
            await asyncio.gather(self.sizes(), self.quotas(), return_exceptions=True)

    def of_run(self, spec: JobSpec) -> AzureTarget:
        """Return the target with the size and the tier of a run, which a serverless run may choose itself."""
        target = self.azure
        if not isinstance(target, ServerlessTarget):
            return target
        return msgspec.structs.replace(
            target,
            size=spec.resources.instance_type or target.size,
            tier=("Spot" if spec.tier == "spot" else "Standard") if spec.tier else target.tier,
        )

    def state_for(self, spec: JobSpec, state: ProvisionState) -> ProvisionState:
        """See :meth:`Provisioner.state_for`."""
        target = self.of_run(spec)
        if not isinstance(target, ServerlessTarget):
            return state
        return cost_prompts.state_of(target, None, self.size(target.size), self.known_quotas(), created=False)

    def run_price(self, spec: JobSpec, state: ProvisionState) -> RunPrice | None:
        """See :meth:`Provisioner.run_price`."""
        price = super().run_price(spec, state)
        if price is None or not isinstance(self.target, ServerlessTarget):
            return price
        # The steps of a pipeline have their own machines.
        return None if spec.job_type else msgspec.structs.replace(price, machine="the machine of this run")

    async def check_run(self, spec: JobSpec) -> None:
        """Raise an error for a run whose machines do not exist or exceed the quota of their tier.

        Raises
        ------
        CommandError, QuotaExceeded, CapacityError
        """
        target = self.of_run(spec)
        if target != self.target:
            await self.check_size(target)
        await self.check_quota(spec.resources.nodes, target=target, now=False)

    async def check_quota(
        self,
        nodes: int,
        *,
        target: AzureTarget | None = None,
        most: int | None = None,
        now: bool = True,
        fresh: bool = False,
    ) -> None:
        """Raise an error for machines that exceed the quota or the target; what is not known is allowed.

        Parameters
        ----------
        nodes
            Machines that are requested together.
        target
            With the size and the tier of the machines; default the target itself.
        most
            Maximum number of nodes of the cluster, default the target's own.
        now
            Whether the machines of others count; else whether it is possible at all.
        fresh
            Fetch the quotas even if they are a minute old.

        Raises
        ------
        QuotaExceeded, CapacityError
        """
        target = target or self.azure
        if isinstance(target, AmlComputeTarget):
            _check_capacity(target, nodes, target.max_nodes if most is None else most)
        size_name = str(getattr(target, "size", ""))
        if not size_name or (isinstance(target, InstanceTarget) and self._row is not None):
            return  # the machine exists already
        try:
            sizes, quotas = await asyncio.gather(self.sizes(), self.quotas(fresh=fresh))
        except AmlTrainError:
            return
        size_row = find(sizes, size_name)
        if size_row is None:
            return
        own_nodes = int((self._row or {}).get("nodes") or 0) if isinstance(target, AmlComputeTarget) else 0
        over_quota = quota_error(
            size_row, nodes, quotas, sizes, low_priority=_low_priority(target), kind=self._type,
            mine=own_nodes * (size_row.cpus or 0), now=now, who=target.name,
        )  # fmt: skip
        if over_quota is not None and not fresh:  # cores may have become free in the last minute
            await self.check_quota(nodes, target=target, most=most, now=now, fresh=True)
        elif over_quota is not None:
            raise over_quota

    async def check_size(self, target: AzureTarget) -> None:
        """Raise an error for a size that is not available, before anything is sent."""
        size_name = str(getattr(target, "size", ""))
        try:
            sizes = await self.sizes()
        except AmlTrainError:
            return
        there = find(sizes, size_name)
        cost_prompts.check_size(
            target.name, size_name, there, sizes, self._type, _low_priority(target), self._region_text()
        )

    def _region_text(self) -> str:
        with contextlib.suppress(AmlTrainError):
            return self._region() or self.workspace().location
        return self._region()

    # ---- lifecycle

    def adopts_runs_of(self, past: ComputeTarget) -> bool:
        """See :meth:`Provisioner.adopts_runs_of`; true for targets of the same workspace."""
        return getattr(past, "workspace", None) == self.workspace().name

    async def state(self) -> ProvisionState:
        """See :meth:`Provisioner.state`."""
        target = self.azure
        extras = asyncio.gather(self.sizes(), self.quotas(), return_exceptions=True)
        try:
            if isinstance(target, ServerlessTarget):
                await asyncio.shield(extras)
                sizes_result = extras.result()[0]
                if isinstance(sizes_result, AmlTrainError) and not self.known_sizes():
                    raise sizes_result
                return cost_prompts.state_of(target, None, self.size(), self.known_quotas(), created=False)
            row = await self.request("computes.get", name=target.compute_name)
            self._row, self._seen_at = row, time.time()
            if row is not None and row.get("size"):
                if self._quota_clock.is_due(row.get("nodes"), lambda: self._is_uncounted(row)):
                    extras.add_done_callback(_ignore_result)
                    extras = asyncio.gather(self.sizes(), self.quotas(fresh=True), return_exceptions=True)
                await asyncio.wait([extras], timeout=EXTRAS_TIMEOUT_S)
        finally:
            extras.add_done_callback(_ignore_result)
        if row is None:
            return ProvisionState(state="failed", detail=_missing_text(target, self.workspace().name))
        return cost_prompts.state_of(target, row, self.size(str(row.get("size") or "")), self.known_quotas())

    def _is_uncounted(self, row: Mapping[str, Any]) -> bool:
        """Return whether the stored quotas count fewer cores than this compute has running."""
        size = self.size(str(row.get("size") or ""))
        if size is None or not size.cpus or not row.get("nodes"):
            return False
        low = bool(row.get("low_priority", _low_priority(self.azure)))
        return any(quota.used < row["nodes"] * size.cpus for quota in self.known_quotas().binding(size, low))

    def _store_workspace(self) -> None:
        """Store the workspace's name in the target, because the current workspace may change."""
        if not self.azure.workspace:
            self.target = msgspec.structs.replace(self.azure, workspace=self.workspace().name)

    async def is_gone(self) -> bool:
        """See :meth:`Provisioner.is_gone`."""
        if isinstance(self.azure, ServerlessTarget) or self.azure.attached:
            return False
        return await self.request("computes.get", name=self.azure.compute_name) is None

    async def create(self, progress: Progress) -> None:
        """See :meth:`Provisioner.create`; attaches an existing resource."""
        self._store_workspace()
        target = self.azure
        if getattr(target, "size", ""):
            await self.check_size(target)
        if isinstance(target, AmlComputeTarget):
            existing = self._row = await self.request("computes.get", name=target.compute_name)
            if existing is None:  # an existing cluster has its quota already
                await self.check_quota(target.max_nodes, now=False, fresh=True)
                if target.min_nodes:
                    await self.check_quota(target.min_nodes)
        elif isinstance(target, InstanceTarget):
            existing = self._row = await self.request("computes.get", name=target.compute_name)
            if existing is None:
                await self.check_quota(1, fresh=True)
        if isinstance(target, ServerlessTarget):
            await self.check_quota(1, now=False)
            return
        payload = {"kind": self.kind, "name": target.compute_name, **_settings_of(target)}
        op = "computes.attach" if target.attached else "computes.create"
        try:
            self._row = await self.request(op, progress, OPERATION_TIMEOUT_S, **payload)
        except NoReply as error:
            raise CreateUnsure(
                f"{error.message} {target.name!r} may still be created.", hint="Check with: %aml_compute list"
            ) from error
        self._seen_at = time.time()

    async def remove(self, progress: Progress) -> None:
        """See :meth:`Provisioner.remove`."""
        target = self.azure
        if isinstance(target, ServerlessTarget):
            return
        op = "computes.detach" if target.attached else "computes.delete"
        await self.request(op, progress, OPERATION_TIMEOUT_S, name=target.compute_name)
        self._row = None

    async def start(self, progress: Progress) -> None:
        """See :meth:`Provisioner.start`."""
        await self._power("start", progress)

    async def stop(self, progress: Progress) -> None:
        """See :meth:`Provisioner.stop`."""
        await self._power("stop", progress)

    async def restart(self, progress: Progress) -> None:
        """See :meth:`Provisioner.restart`."""
        await self._power("restart", progress)

    async def _power(self, verb: str, progress: Progress) -> None:
        if not isinstance(self.target, InstanceTarget):
            raise self._cannot({"start": "started", "stop": "stopped", "restart": "restarted"}[verb])
        self._row = await self.request(f"computes.{verb}", progress, OPERATION_TIMEOUT_S, name=self.azure.compute_name)

    async def scale(self, settings: Mapping[str, Any], progress: Progress) -> None:
        """See :meth:`Provisioner.scale`."""
        target = self.target
        if not isinstance(target, AmlComputeTarget):
            raise self._cannot("scaled")
        self._row = await self.request("computes.get", name=target.compute_name)
        existing = msgspec.structs.replace(target, **self._known_scale())  # the settings may have changed at Azure
        requested = msgspec.structs.replace(existing, **settings)
        if requested.max_nodes > existing.max_nodes:
            await self.check_quota(requested.max_nodes, most=requested.max_nodes, now=False, fresh=True)
        if requested.min_nodes > existing.min_nodes:
            await self.check_quota(requested.min_nodes, most=requested.max_nodes, fresh=True)
        self._row = await self.request(
            "computes.update", progress, OPERATION_TIMEOUT_S, name=target.compute_name, settings=dict(settings)
        )
        self.target = requested

    async def configure(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """See :class:`TargetSettings`; changes when an instance starts and stops automatically."""
        assert isinstance(self.target, InstanceTarget)
        requested = msgspec.structs.replace(self.target, **settings)
        for field, error in requested.field_errors().items():
            raise CommandError(error, code="compute.values", field=field, details={"errors": {field: error}})
        self._row = await self.request("computes.configure", name=self.azure.compute_name, settings=dict(settings))
        self.target = requested
        return {**settings, "stops": cost_prompts.stops_text(requested, self._row)}

    def _known_scale(self) -> dict[str, Any]:
        """Return the scale settings that the service last reported."""
        row = self._row or {}
        idle = row.get("idle_seconds")
        settings = {"min_nodes": row.get("min_nodes"), "max_nodes": row.get("max_nodes")}
        settings["idle_minutes"] = None if idle is None else idle / 60
        return {name: value for name, value in settings.items() if value is not None}

    def field_errors(self) -> dict[str, str]:
        """See :meth:`Provisioner.field_errors`."""
        target, sizes, low = self.azure, self.known_sizes(), _low_priority(self.azure)
        size_name = str(getattr(target, "size", ""))
        try:
            if size_name:
                there = find(sizes, size_name)
                cost_prompts.check_size("", size_name, there, sizes, self._type, low, self._region_text())
        except AmlTrainError as error:
            return {"size": str(error)}
        nodes = target.max_nodes if isinstance(target, AmlComputeTarget) else 1
        if size_name and there is not None:
            over_quota = quota_error(
                there, nodes, self.known_quotas(), sizes, low_priority=low, kind=self._type, now=False
            )
            if over_quota is not None:
                return {"max_nodes" if isinstance(target, AmlComputeTarget) else "size": str(over_quota)}
        return wrong_secrets(target)

    def confirmation(self, verb: str, values: Mapping[str, Any], *, running: int, queued: int = 0) -> str:
        """See :meth:`Provisioner.confirmation`."""
        size, quotas = self.size(), self.known_quotas()
        return cost_prompts.confirmation(
            self.azure, verb, values, running=running, queued=queued, size=size, quotas=quotas
        )

    def actions(self, state: ProvisionState) -> tuple[TargetAction, ...]:
        """See :meth:`Provisioner.actions`."""
        delete = TargetAction(verb="delete")
        target = self.target
        if isinstance(target, AmlComputeTarget):
            current = msgspec.structs.replace(target, **self._known_scale())
            return (scale_action(current.min_nodes, current.max_nodes, current.idle_minutes), delete)
        if isinstance(target, InstanceTarget):
            stopped = state.state == "stopped"
            return (
                *start_stop_actions(stopped),
                TargetAction(verb="restart", disabled_reason="The instance is stopped." if stopped else ""),
                delete,
            )
        return (delete,)


def _missing_text(target: AzureTarget, workspace: str) -> str:
    return (
        f"There is no compute {target.compute_name!r} in {workspace}: it was deleted in Azure, or the kernel ended"
        " before Azure got the request. Create it again under this name, or remove it from the list:"
        f" %aml_compute delete {target.name}"
    )


def _check_capacity(target: AmlComputeTarget, nodes: int, most: int) -> None:
    if nodes > most:
        raise CapacityError(
            f"{target.name!r} has at most {counted(most, 'machine')}, but {nodes} are requested.",
            hint=f"Use fewer nodes, or raise the maximum: %aml_compute scale {target.name} --max-nodes {nodes}",
        )


def _settings_of(target: AzureTarget) -> dict[str, Any]:
    """Return ``settings`` and ``secrets`` of the request that creates or attaches a compute; reads its key."""
    settings = {k: v for k, v in msgspec.to_builtins(target).items() if k not in ("kind", "name", "workspace")}
    file = settings.get("ssh_key_file")
    if not target.attached:
        return {"settings": {**settings, "ssh_key": public_key(file)} if file else settings}
    secrets = secrets_of(target)
    return {"settings": {**settings, "ssh_key_file": str(key_file(file))} if file else settings, "secrets": secrets}


def _low_priority(target: AzureTarget) -> bool:
    """Return whether the machines of a target can be preempted."""
    return bool(getattr(target, "low_priority", False))


def _ignore_result(future: asyncio.Future[Any]) -> None:
    """Ignore the result of a request without a waiter; the result is stored on disk."""
    if not future.cancelled():
        future.exception()
