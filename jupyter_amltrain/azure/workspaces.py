"""Connections to Azure ML workspaces, whose computes become targets. Loop thread only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from jupyter_amltrain.azure.client import client_of, close_client
from jupyter_amltrain.azure.data_assets import DataRegistry
from jupyter_amltrain.azure.environments import row_of
from jupyter_amltrain.azure.targets import AzureTarget
from jupyter_amltrain.azure.workspace_file import WorkspaceFacts, WorkspaceFile, may_be_billed, rows_of
from jupyter_amltrain.backends.target_kinds import target_kinds
from jupyter_amltrain.errors import AmlTrainError, CommandError, TargetUnreachable
from jupyter_amltrain.kernel.store import RunStore
from jupyter_amltrain.kernel.target_file import TargetFile, stored_fields
from jupyter_amltrain.kernel.target_status import TargetStatusCache
from jupyter_amltrain.kernel.workspaces import Workspaces
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.environment import EnvironmentRow
from jupyter_amltrain.schema.fields import name_error
from jupyter_amltrain.schema.rows import WorkspaceRow
from jupyter_amltrain.schema.target import ComputeTarget
from jupyter_amltrain.state_dir import StateRoot
from jupyter_amltrain.text import counted

#: Time without progress after which a sign-in fails; a device code is valid for 15 minutes.
CONNECT_TIMEOUT_S = 1000.0

#: Time in which a workspace must list its environments.
_ENVIRONMENTS_TIMEOUT_S = 20.0

#: Callback that takes one sentence about the progress of an operation.
Progress = Callable[[str], None]
#: Callback for ``{"kind": "progress" | "sign-in", "text", ...}`` on the loop.
Show = Callable[[dict[str, Any]], None]


class WorkspaceRef(msgspec.Struct, frozen=True, kw_only=True):
    """Reference to a workspace, as a user gives it; all fields empty means the current workspace.

    Attributes
    ----------
    subscription
        Id or name of the subscription.
    method
        How to sign in: ``auto``, ``browser`` or ``device``; empty uses the existing sign-in, else ``auto``.
    name
        Local name of the workspace; default its name in Azure.
    """

    subscription: str = ""
    resource_group: str = ""
    workspace: str = ""
    tenant: str = ""
    method: str = ""
    name: str = ""


class ConnectResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a connect.

    Attributes
    ----------
    sign_in_method
        Sign-in method, as text.
    previous_user
        User who was signed in before, if it was another one.
    targets
        Current names of the workspace's targets.
    renamed
        Computes whose name was already in use, by target.
    removed
        Targets whose compute no longer exists.
    missing
        One sentence for each feature that will not work.
    """

    facts: WorkspaceFacts
    sign_in_method: str = ""
    previous_user: str = ""
    targets: tuple[str, ...] = ()
    renamed: dict[str, str] = {}
    removed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def message(self) -> str:
        """One line: user, workspace, number of targets, missing features."""
        facts, number = self.facts, len(self.targets)
        account = f"{facts.user}{f' by {self.sign_in_method}' if self.sign_in_method else ''}"
        account += f" (before: {self.previous_user})" if self.previous_user else ""
        known = counted(number, "target")
        if self.targets:
            known += f" ({', '.join(self.targets[:6])}{', ...' if number > 6 else ''})"
        line = f"Connected to {facts.name} in {facts.location} as {account}: {known}."
        line += "" if self.targets else " Next: %aml_compute sizes, then %aml_compute create."
        if self.renamed:
            line += " " + ", ".join(f"{compute} is listed as {name}" for name, compute in self.renamed.items()) + "."
        if self.removed:
            line += f" Removed: {', '.join(self.removed)}."
        return " ".join([line, *self.missing])


class WorkspaceManager(Workspaces):
    """The connected workspaces of this user, their data and their models."""

    def __init__(
        self, loop: LoopThread, root: StateRoot, targets: TargetFile, computes: TargetStatusCache, store: RunStore
    ) -> None:
        super().__init__(loop, root, targets, computes, store)
        self._stored = WorkspaceFile(root)
        self.data = DataRegistry(loop, self._of_data)

    async def request(
        self, op: str, workspace: str, payload: dict[str, Any], progress: Progress | None = None, timeout: float = 600.0
    ) -> Any:
        """Send a request about a workspace to the service process; default: the current one."""
        whole = {"workspace": self.name_of(workspace), **payload}
        return await client_of(self._loop, self._root).request(op, whole, progress=progress, timeout=timeout)

    async def _of_data(self, op: str, workspace: str, payload: dict[str, Any], progress: Progress | None) -> Any:
        """Send a request about data; by default to the workspace of the target in use."""
        name = self.name_of(workspace or self.of_target(self._targets.get(self._targets.current)) or "")
        answer = await self.request(op, name, payload, progress)
        for row in answer if isinstance(answer, list) else [answer]:
            row["workspace"] = name
        return answer

    async def rows(self, targets: Sequence[ComputeTarget]) -> tuple[WorkspaceRow, ...]:
        return rows_of(*await self.all(), targets)

    def name_of(self, name: str) -> str:
        return self._stored.get(name).name

    def of_target(self, target: ComputeTarget) -> str | None:
        return target.workspace if isinstance(target, AzureTarget) else None

    async def environments(self) -> tuple[dict[str, list[EnvironmentRow]], dict[str, str]]:
        targets = reversed(await self._computes.refresh())
        own = {str(getattr(target, "workspace", "")): target.name for target in targets}
        found: dict[str, list[EnvironmentRow]] = {}
        failures: dict[str, str] = {}
        for facts in (await self.all())[0]:
            try:
                rows = await self.request("environments.list", facts.name, {}, timeout=_ENVIRONMENTS_TIMEOUT_S)
            except AmlTrainError as error:
                failures[facts.name] = str(error)
            else:
                found |= {facts.name: [row_of(row, own.get(facts.name, "")) for row in rows]} if rows else {}
        return found, failures

    async def models(self, op: str, payload: dict[str, Any], progress: Progress | None) -> Any:
        return await self.request(f"models.{op}", payload["workspace"], payload, progress)

    async def all(self) -> tuple[list[WorkspaceFacts], str]:
        """Return all workspaces, and the name of the current one."""
        return await self._loop.offload(lambda: (self._stored.all(), self._stored.current))

    async def connect(self, ref: WorkspaceRef, show: Show) -> ConnectResult:
        """Sign in, store the workspace, and add its computes as targets. Safe to repeat.

        Raises
        ------
        CommandError
            The workspace does not exist; the message names close matches.
        AuthenticationError, TargetUnreachable
            The sign-in failed, or Azure does not answer.
        """
        known, _ = await self.all()
        ref = await self.resolve(ref)
        link = client_of(self._loop, self._root)

        def progress(text: str) -> None:
            show({"kind": "progress", "text": text})

        payload = {k: v for k, v in msgspec.to_builtins(ref).items() if v}
        answer = await link.request(
            "workspace.connect", payload, progress=progress, signin=show, timeout=CONNECT_TIMEOUT_S
        )
        facts = msgspec.convert(answer, WorkspaceFacts)
        old = next((one for one in known if one.name == facts.name), None)
        missing = [str(sentence) for sentence in answer.get("missing", ())]
        if old is not None:
            facts = msgspec.structs.replace(facts, computes=old.computes)
        progress("Listing its computes")
        renamed: dict[str, str] = {}
        gone: list[str] = []
        try:
            rows = await link.request("computes.list", {"workspace": facts.name}, progress=progress)
        except TargetUnreachable:
            raise
        except AmlTrainError as error:
            missing.append(f"Its computes cannot be listed: {error}")
            await self._loop.offload(self._stored.put, facts)
        else:  # nothing was stored until listed, so that an interrupted connect changes nothing
            await self._loop.offload(self._stored.put, facts)
            live = {entry.run.target for entry in self._store.live()}
            created, renamed, gone, skipped = await self._loop.offload(self._take, facts, rows, live)
            facts = msgspec.structs.replace(facts, computes=created)
            await self._loop.offload(self._stored.put, facts)
            await self._computes.refresh()
            if skipped:
                missing.append(f"Not used by this version: {', '.join(skipped)}.")
        return ConnectResult(
            facts=facts,
            sign_in_method=str(answer.get("how") or ""),
            previous_user=old.user if old is not None and old.user != facts.user else "",
            targets=tuple(facts.computes),
            renamed=renamed,
            removed=tuple(gone),
            missing=tuple(missing),
        )

    async def resolve(self, ref: WorkspaceRef) -> WorkspaceRef:
        """Return the reference with all stored fields and the local name. No network I/O."""
        known, _ = await self.all()
        if not ref.workspace:
            stored = await self._loop.offload(self._stored.get, ref.name)
            return msgspec.structs.replace(
                ref,
                subscription=stored.subscription,
                resource_group=stored.resource_group,
                workspace=stored.workspace,
                tenant=ref.tenant or stored.tenant,
                name=stored.name,
            )

        def key(place: Any) -> tuple[str, ...]:
            return tuple(part.lower() for part in (place.subscription, place.resource_group, place.workspace))

        same = next((one for one in known if key(one) == key(ref)), None)
        taken = {one.name: one for one in known if one is not same}
        if same is not None:
            if ref.name and ref.name != same.name:
                raise CommandError(
                    f"This workspace is already connected as {same.name!r}.",
                    hint=f"Disconnect it first: %aml_compute disconnect {same.name}",
                )
            return msgspec.structs.replace(ref, name=same.name, tenant=ref.tenant or same.tenant)
        if ref.name in taken:
            raise CommandError(f"Another workspace is already called {ref.name!r}.", hint="Choose another --name.")
        name = ref.name or ref.workspace
        if name in taken:
            name = f"{ref.workspace}-{ref.resource_group}"
        if sentence := name_error(name):
            raise CommandError(f"--name {name}: {sentence}")
        return msgspec.structs.replace(ref, name=name)

    def _take(
        self, facts: WorkspaceFacts, rows: list[dict[str, Any]], live: set[str]
    ) -> tuple[dict[str, str], dict[str, str], list[str], list[str]]:
        """Add computes as targets, and remove targets without a compute unless they have live runs."""
        existing = {target.name: target for target in self._targets.all()}
        taken = {*existing, *(t.name for t in self._targets.retired() if not _of(t, facts.name))}
        own = {getattr(t, "compute", "") or t.name: t for t in existing.values() if _of(t, facts.name)}
        types = {str(kind.__struct_config__.tag): kind for kind in target_kinds()}
        created: dict[str, str] = {}
        renamed: dict[str, str] = {}
        skipped: list[str] = []
        for row in rows:
            compute, kind = str(row["name"]), types.get(str(row.get("kind")))
            old = own.get(compute)
            name = old.name if old is not None else compute
            if old is None and name in taken:
                name = f"{facts.name}-{compute}"
            target = None if kind is None or (old is None and name in taken) else _made(kind, name, facts, row, old)
            if target is None:
                skipped.append(compute)
                continue
            if old is None:
                self._targets.add(target)
            elif target != old:
                self._targets.replace(target)
            created[name] = compute
            if name != compute:
                renamed[name] = compute
        listed = {str(row["name"]) for row in rows}
        gone = []
        for name, compute in facts.computes.items():
            target = existing.get(name)
            if target is None or not _of(target, facts.name) or compute in listed:
                continue
            if name in live:
                created[name] = compute
                continue
            self._targets.remove(name, past=True)
            gone.append(name)
        return created, renamed, gone, skipped

    async def usage(self, name: str) -> tuple[WorkspaceFacts, list[ComputeTarget], list[str]]:
        """Return a workspace, its targets, and the handles of their live runs."""
        facts = await self._loop.offload(self._stored.get, name)
        own = [t for t in await self._computes.refresh() if _of(t, facts.name)]
        past = await self._loop.offload(self._targets.retired)
        names = [t.name for t in (*own, *past) if _of(t, facts.name)]
        live = [entry.run for entry in self._store.live() if entry.run.target in names]
        return facts, own, sorted(str(run.handle) for run in live)

    async def loss(self, name: str) -> str:
        _, targets, live = await self.usage(name)
        billed = [target.name for target in targets if may_be_billed(target)]
        return disconnect_loss(name, [target.name for target in targets], billed, live)

    async def disconnect(self, name: str, *, confirmed: bool = False) -> str:
        """Remove a workspace and its targets from this machine; returns the message. Changes nothing in Azure.

        Raises
        ------
        CommandError
            The workspace is unknown, or it has live runs and `confirmed` is false.
        """
        facts, own, live = await self.usage(name)
        if live and not confirmed:
            raise CommandError(
                f"{len(live)} run{' is' if len(live) == 1 else 's are'} still active in {facts.name}"
                f" ({', '.join(live[:3])}) and would no longer be watched.",
                hint=f"To disconnect anyway: %aml_compute disconnect {name} --yes",
            )
        targets = [t.name for t in own]
        past = [t.name for t in await self._loop.offload(self._targets.retired) if _of(t, facts.name)]
        for target in (*targets, *past):
            await self._loop.offload(self._targets.remove, target)
        await self._loop.offload(self._stored.remove, facts.name)
        await self._computes.refresh()
        await client_of(self._loop, self._root).request("workspace.forget", {"workspace": facts.name})
        off = "1 target was" if len(targets) == 1 else f"{len(targets)} targets were"
        message = f"{facts.name} is disconnected; {off} removed from the list. Nothing changed in Azure."
        on = [t.name for t in own if may_be_billed(t)]
        return f"{message} These are still on and cost money: {', '.join(on)}." if on else message

    async def close(self) -> None:
        await close_client(self._loop)


def _of(target: ComputeTarget, workspace: str) -> bool:
    return getattr(target, "workspace", None) == workspace


def _made(
    kind: type[ComputeTarget], name: str, facts: WorkspaceFacts, row: dict[str, Any], old: ComputeTarget | None
) -> ComputeTarget | None:
    """Build a target from the row of a service; fields that the row lacks keep their old values."""
    compute = str(row["name"])
    fields = {k: v for k, v in dict(row.get("settings") or {}).items() if v is not None}
    stored = stored_fields(old) if type(old) is kind and old is not None else {}
    fixed = {
        "kind": str(kind.__struct_config__.tag),
        "name": name,
        "workspace": facts.name,
        "compute": "" if compute == name else compute,
    }
    for values in ({**stored, **fields}, stored):  # an unknown value in the settings only drops the settings
        try:
            return msgspec.convert({**values, **fixed}, kind)
        except msgspec.ValidationError:
            continue
    return None


def disconnect_loss(name: str, targets: list[str], billed: list[str], live: list[str]) -> str:
    """Return the consequences of disconnecting a workspace, for the confirmation."""
    removed = f"its target {targets[0]}" if len(targets) == 1 else f"its {len(targets)} targets"
    text = [
        f"Disconnects {name}{f' and removes {removed} from the list' if targets else ''}. Nothing changes in Azure."
    ]
    if billed:
        text.append(f"Machines that are on are still billed ({', '.join(billed)}).")
    if live:
        runs = "1 of its runs is" if len(live) == 1 else f"{len(live)} of its runs are"
        text.append(f"{runs} still active ({', '.join(live[:3])}) and will no longer be watched.")
    return " ".join(text)
