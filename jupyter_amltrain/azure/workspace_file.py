"""The connected Azure ML workspaces in ``workspaces.json``, beside ``targets.json``. Never a secret."""

from __future__ import annotations

import contextlib
import difflib
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from jupyter_amltrain.azure.targets import AmlComputeTarget, InstanceTarget
from jupyter_amltrain.errors import CommandError, StateError
from jupyter_amltrain.schema.rows import WorkspaceRow
from jupyter_amltrain.schema.target import ComputeTarget
from jupyter_amltrain.state_dir import SCHEMA, StateRoot, check_schema, locked, read_json, write_json


class WorkspaceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A connected workspace.

    Attributes
    ----------
    name
        Local name, which targets refer to; usually the workspace's own name.
    subscription, resource_group, workspace, tenant
        Location at Azure.
    id
        GUID of the workspace; a deleted workspace that was created again has another one.
    location
        Region, ``eastus``.
    api
        Address of the data plane.
    tracking_uri
        Address of the MLflow server.
    studio_url
        Page in the studio.
    user
        User who was signed in at the last connect.
    method
        Method of the sign-in: ``auto`` (without interaction), ``browser`` or ``device``.
    account
        azure-identity's account record to sign the same user in again: names and ids, no secret.
    computes
        Names at the service of the computes that were targets after the last connect, by target.
    """

    name: str
    subscription: str
    resource_group: str
    workspace: str
    tenant: str = ""
    id: str = ""
    location: str = ""
    api: str = ""
    tracking_uri: str = ""
    studio_url: str = ""
    user: str = ""
    method: str = "auto"
    account: str = ""
    computes: dict[str, str] = {}

    @property
    def arm_id(self) -> str:
        """The resource id."""
        return (
            f"/subscriptions/{self.subscription}/resourceGroups/{self.resource_group}"
            f"/providers/Microsoft.MachineLearningServices/workspaces/{self.workspace}"
        )


def rows_of(
    found: Iterable[WorkspaceFacts], current: str, targets: Iterable[ComputeTarget]
) -> tuple[WorkspaceRow, ...]:
    """Return the rows of the list of workspaces."""
    names: dict[str, list[str]] = {}
    for target in targets:
        names.setdefault(str(getattr(target, "workspace", None) or ""), []).append(target.name)
    return tuple(
        WorkspaceRow(
            name=facts.name,
            current=facts.name == current,
            workspace=facts.workspace,
            resource_group=facts.resource_group,
            subscription=facts.subscription,
            location=facts.location,
            user=facts.user,
            targets=tuple(names.get(facts.name, ())),
            studio_url=facts.studio_url,
        )
        for facts in found
    )


def may_be_billed(target: ComputeTarget) -> bool:
    """Return whether a target may be on, and billed, without running jobs."""
    return isinstance(target, InstanceTarget) or (isinstance(target, AmlComputeTarget) and target.min_nodes > 0)


class WorkspaceFile:
    """The user's workspaces, shared by every kernel."""

    def __init__(self, root: StateRoot) -> None:
        self._path = root.workspaces

    def _read(self) -> dict[str, Any]:
        """Return the stored content. Do not change the result: it is cached, because each request to Azure reads it."""
        try:
            file_stat = self._path.stat()
        except FileNotFoundError:
            return {"schema": SCHEMA, "current": "", "workspaces": {}}
        except OSError as error:
            raise StateError(f"Cannot read {self._path}: {error.strerror or error}.") from error
        return _read(self._path, file_stat.st_mtime_ns, file_stat.st_size, file_stat.st_ino)

    def all(self) -> list[WorkspaceFacts]:
        """Every workspace, in the order in which they were connected."""
        named = self._read().get("workspaces") or {}
        try:
            return [msgspec.convert(value, WorkspaceFacts) for value in named.values()]
        except msgspec.ValidationError as error:
            raise StateError(
                f"{self._path} contains a workspace that this version cannot read: {error}.",
                hint="Upgrade jupyter_amltrain, or remove that entry.",
            ) from error

    def get(self, name: str = "") -> WorkspaceFacts:
        """Return the workspace with a name; without a name the current one.

        Raises
        ------
        CommandError
            The workspace is not connected; the message names similar ones.
        """
        connected = {facts.name: facts for facts in self.all()}
        name = name or self.current
        if name in connected:
            return connected[name]
        if not connected:
            raise CommandError(
                "No Azure ML workspace is connected.",
                hint="Connect one: %aml_compute connect --config config.json",
                code="workspace.none",
            )
        near = difflib.get_close_matches(name, connected, 3, 0.5)
        guess = f"Did you mean {' or '.join(near)}?" if near else f"Connected: {', '.join(connected)}."
        raise CommandError(f"No workspace {name!r} is connected.", hint=f"{guess} See: %aml_compute workspaces")

    @property
    def current(self) -> str:
        """Name of the workspace that is used when none is given; empty without one."""
        value = self._read()
        named = value.get("workspaces") or {}
        current = str(value.get("current") or "")
        return current if current in named else next(reversed(named), "")

    def put(self, facts: WorkspaceFacts) -> None:
        """Store a workspace, and make it the current one."""
        with self._changing() as value:
            value["workspaces"][facts.name] = msgspec.to_builtins(facts)
            value["current"] = facts.name

    def remove(self, name: str) -> None:
        """Remove a workspace; no error if it is not stored."""
        with self._changing() as value:
            value["workspaces"].pop(name, None)
            if value.get("current") == name:
                value["current"] = next(reversed(value["workspaces"]), "")

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        with locked(self._path.with_suffix(".lock")):
            value = dict(self._read())
            value["workspaces"] = dict(value.get("workspaces") or {})
            yield value
            write_json(self._path, value)


@functools.lru_cache(maxsize=4)
def _read(path: Path, changed: int, size: int, node: int) -> dict[str, Any]:
    value = read_json(path)
    check_schema(value, path)
    return dict(value)
