"""Connecting Azure ML workspaces: their computes become targets. Loop thread only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from jupyter_amltrain.backends.azureml.client import client_of, close_client
from jupyter_amltrain.backends.azureml.workspace_file import WorkspaceFacts, Workspaces, bills
from jupyter_amltrain.backends.registry import target_kinds
from jupyter_amltrain.errors import AmlTrainError, CommandError, TargetUnreachable
from jupyter_amltrain.kernel.store import RunStore
from jupyter_amltrain.kernel.target_file import TargetFile, stored_fields
from jupyter_amltrain.kernel.targets import TargetManager
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.fields import name_error
from jupyter_amltrain.schema.target import ComputeTarget
from jupyter_amltrain.state_dir import StateRoot

#: Seconds without news until a sign-in is given up; a device code lives for 15 minutes.
CONNECT_TIMEOUT_S = 1000.0

#: Takes ``{"kind": "progress" | "sign-in", "text", ...}`` on the loop.
Show = Callable[[dict[str, Any]], None]


class WorkspaceRef(msgspec.Struct, frozen=True, kw_only=True):
    """What a person said of a workspace; all empty means the current one.

    Attributes
    ----------
    subscription
        Its id, or its name.
    method
        How to sign in: ``auto``, ``browser`` or ``device``; empty takes who is signed in there, else ``auto``.
    name
        What to call it here; default the workspace's own name.
    """

    subscription: str = ""
    resource_group: str = ""
    workspace: str = ""
    tenant: str = ""
    method: str = ""
    name: str = ""


class ConnectResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a connect.

    Attributes
    ----------
    how
        What signed us in, in words.
    before
        Who was signed in before, when that was somebody else.
    targets
        Names of the workspace's targets now.
    renamed
        Computes whose name was taken, by target.
    gone
        Targets whose compute is no more.
    missing
        A sentence for each thing that will not work.
    """

    facts: WorkspaceFacts
    how: str = ""
    before: str = ""
    targets: tuple[str, ...] = ()
    renamed: dict[str, str] = {}
    gone: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def said(self) -> str:
        """One line: who, where, how many targets, what is missing."""
        facts, number = self.facts, len(self.targets)
        who = f"{facts.user}{f' by {self.how}' if self.how else ''}"
        who += f" (before: {self.before})" if self.before else ""
        known = f"{number} target{'' if number == 1 else 's'}"
        if self.targets:
            known += f" ({', '.join(self.targets[:6])}{', ...' if number > 6 else ''})"
        line = f"Connected to {facts.name} in {facts.location} as {who}: {known}."
        line += "" if self.targets else " Next: %aml_compute sizes, then %aml_compute create."
        if self.renamed:
            line += " " + ", ".join(f"{compute} is here {name}" for name, compute in self.renamed.items()) + "."
        if self.gone:
            line += f" Gone: {', '.join(self.gone)}."
        return " ".join([line, *self.missing])


class WorkspaceManager:
    """The connected workspaces of this user."""

    def __init__(
        self, loop: LoopThread, root: StateRoot, targets: TargetFile, computes: TargetManager, store: RunStore
    ) -> None:
        self._loop, self._root, self._targets, self._computes, self._store = loop, root, targets, computes, store
        self._stored = Workspaces(root)

    async def all(self) -> tuple[list[WorkspaceFacts], str]:
        """Every workspace, and the name of the current one."""
        return await self._loop.offload(lambda: (self._stored.all(), self._stored.current))

    async def connect(self, asked: WorkspaceRef, show: Show) -> ConnectResult:
        """Sign in, store the workspace, and make its computes targets. Safe to repeat.

        Raises
        ------
        CommandError
            There is no such workspace; near ones are named.
        AuthenticationError, TargetUnreachable
            Nobody is signed in, or Azure does not answer.
        """
        known, _ = await self.all()
        asked = await self.completed(asked)
        link = client_of(self._loop, self._root)

        def progress(text: str) -> None:
            show({"kind": "progress", "text": text})

        payload = {k: v for k, v in msgspec.to_builtins(asked).items() if v}
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
        else:  # who has given up by now finds nothing changed
            await self._loop.offload(self._stored.put, facts)
            live = {entry.run.target for entry in self._store.live()}
            made, renamed, gone, skipped = await self._loop.offload(self._take, facts, rows, live)
            facts = msgspec.structs.replace(facts, computes=made)
            await self._loop.offload(self._stored.put, facts)
            await self._computes.refresh()
            if skipped:
                missing.append(f"Not used by this version: {', '.join(skipped)}.")
        return ConnectResult(
            facts=facts,
            how=str(answer.get("how") or ""),
            before=old.user if old is not None and old.user != facts.user else "",
            targets=tuple(facts.computes),
            renamed=renamed,
            gone=tuple(gone),
            missing=tuple(missing),
        )

    async def completed(self, asked: WorkspaceRef) -> WorkspaceRef:
        """With all that is known of the place, and with the name that it will have; nobody is asked."""
        known, _ = await self.all()
        if not asked.workspace:
            found = await self._loop.offload(self._stored.get, asked.name)
            return msgspec.structs.replace(
                asked,
                subscription=found.subscription,
                resource_group=found.resource_group,
                workspace=found.workspace,
                tenant=asked.tenant or found.tenant,
                name=found.name,
            )

        def key(place: Any) -> tuple[str, ...]:
            return tuple(part.lower() for part in (place.subscription, place.resource_group, place.workspace))

        same = next((one for one in known if key(one) == key(asked)), None)
        taken = {one.name: one for one in known if one is not same}
        if same is not None:
            if asked.name and asked.name != same.name:
                raise CommandError(
                    f"This workspace is connected already, as {same.name!r}.",
                    hint=f"First: %aml_compute disconnect {same.name}",
                )
            return msgspec.structs.replace(asked, name=same.name, tenant=asked.tenant or same.tenant)
        if asked.name in taken:
            raise CommandError(f"Another workspace is called {asked.name!r} here.", hint="Choose another --name.")
        name = asked.name or asked.workspace
        if name in taken:
            name = f"{asked.workspace}-{asked.resource_group}"
        if sentence := name_error(name):
            raise CommandError(f"--name {name}: {sentence}")
        return msgspec.structs.replace(asked, name=name)

    def _take(
        self, facts: WorkspaceFacts, rows: list[dict[str, Any]], live: set[str]
    ) -> tuple[dict[str, str], dict[str, str], list[str], list[str]]:
        """Make the computes targets; what is no more is removed, unless it has live runs."""
        there = {target.name: target for target in self._targets.all()}
        taken = {*there, *(t.name for t in self._targets.past() if not _of(t, facts.name))}
        mine = {getattr(t, "compute", "") or t.name: t for t in there.values() if _of(t, facts.name)}
        types = {str(kind.__struct_config__.tag): kind for kind in target_kinds()}
        made: dict[str, str] = {}
        renamed: dict[str, str] = {}
        skipped: list[str] = []
        for row in rows:
            compute, kind = str(row["name"]), types.get(str(row.get("kind")))
            old = mine.get(compute)
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
            made[name] = compute
            if name != compute:
                renamed[name] = compute
        here = {str(row["name"]) for row in rows}
        gone = []
        for name, compute in facts.computes.items():
            target = there.get(name)
            if target is None or not _of(target, facts.name) or compute in here:
                continue
            if name in live:
                made[name] = compute
                continue
            self._targets.remove(name, past=True)
            gone.append(name)
        return made, renamed, gone, skipped

    async def held(self, name: str) -> tuple[WorkspaceFacts, list[ComputeTarget], list[str]]:
        """A workspace, its targets, and the handles of the runs that are live on them."""
        facts = await self._loop.offload(self._stored.get, name)
        mine = [t for t in await self._computes.refresh() if _of(t, facts.name)]
        past = await self._loop.offload(self._targets.past)
        names = [t.name for t in (*mine, *past) if _of(t, facts.name)]
        live = [entry.run for entry in self._store.live() if entry.run.target in names]
        return facts, mine, sorted(str(run.handle) for run in live)

    async def disconnect(self, name: str, *, confirmed: bool = False) -> str:
        """Forget a workspace and its targets; returns what is told. Nothing is done at Azure.

        Raises
        ------
        CommandError
            There is none of that name, or runs are live there and nobody agreed.
        """
        facts, mine, live = await self.held(name)
        if live and not confirmed:
            raise CommandError(
                f"{len(live)} of its runs {'goes' if len(live) == 1 else 'go'} on ({', '.join(live[:3])})"
                " and would not be watched any more.",
                hint=f"If that is meant: %aml_compute disconnect {name} --yes",
            )
        targets = [t.name for t in mine]
        past = [t.name for t in await self._loop.offload(self._targets.past) if _of(t, facts.name)]
        for target in (*targets, *past):
            await self._loop.offload(self._targets.remove, target)
        await self._loop.offload(self._stored.remove, facts.name)
        await self._computes.refresh()
        await client_of(self._loop, self._root).request("workspace.forget", {"workspace": facts.name})
        off = "1 target was" if len(targets) == 1 else f"{len(targets)} targets were"
        said = f"{facts.name} is disconnected; {off} taken off the list. At Azure nothing changed."
        on = [t.name for t in mine if bills(t)]
        return f"{said} What is on bills there as before ({', '.join(on)})." if on else said

    async def close(self) -> None:
        """Let go of the process that talks to Azure."""
        await close_client(self._loop)


def _of(target: ComputeTarget, workspace: str) -> bool:
    return getattr(target, "workspace", None) == workspace


def _made(
    kind: type[ComputeTarget], name: str, facts: WorkspaceFacts, row: dict[str, Any], old: ComputeTarget | None
) -> ComputeTarget | None:
    """A target of what the service says; fields that it does not tell stay as they were."""
    compute = str(row["name"])
    fields = {k: v for k, v in dict(row.get("settings") or {}).items() if v is not None}
    kept = stored_fields(old) if type(old) is kind and old is not None else {}
    fixed = {
        "kind": str(kind.__struct_config__.tag),
        "name": name,
        "workspace": facts.name,
        "compute": "" if compute == name else compute,
    }
    for values in ({**kept, **fields}, kept):  # a value that this version does not know costs only the settings
        try:
            return msgspec.convert({**values, **fixed}, kind)
        except msgspec.ValidationError:
            continue
    return None
