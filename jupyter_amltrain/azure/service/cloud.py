"""Connected workspaces of the service process, with their HTTP clients."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from jupyter_amltrain.azure.service.account import ARM_SCOPE, DATA_SCOPE, Account
from jupyter_amltrain.azure.service.auth import Reopened
from jupyter_amltrain.azure.service.http import Blob, Rest
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.state_dir import read_json

#: Address of ARM.
ARM_HOST = "https://management.azure.com"


def arm_id(subscription: str, resource_group: str, workspace: str) -> str:
    """Return the resource id of a workspace."""
    return (
        f"/subscriptions/{subscription}/resourceGroups/{resource_group}"
        f"/providers/Microsoft.MachineLearningServices/workspaces/{workspace}"
    )


class Workspace:
    """One workspace and its clients.

    Attributes
    ----------
    api
        Address of its data plane, ``https://eastus.api.azureml.ms``.
    arm, data
        Clients; a path below the workspace's id, or below `api`.
    history, mlflow
        Path prefixes of run history and MLflow on the data plane.
    """

    def __init__(self, facts: Mapping[str, Any], credential: Account) -> None:
        self.facts = dict(facts)
        self.name = str(facts["name"])
        self.subscription = str(facts["subscription"])
        self.resource_group = str(facts["resource_group"])
        self.workspace = str(facts["workspace"])
        self.tenant = str(facts.get("tenant") or "")
        self.location = str(facts.get("location") or "")
        self.api = str(facts.get("api") or "").rstrip("/")
        self.tracking_uri = str(facts.get("tracking_uri") or "")
        self.user = str(facts.get("user") or "")
        self.arm_id = arm_id(self.subscription, self.resource_group, self.workspace)
        self.credential = credential
        self.history = f"history/v1.0{self.arm_id}"
        self.mlflow = f"mlflow/v2.0{self.arm_id}"

    @cached_property
    def arm(self) -> Rest:
        """Client of ARM, below the workspace."""
        return Rest(ARM_HOST, self.arm_id, self.credential, ARM_SCOPE, where=self.name, user=self.user)

    @cached_property
    def data(self) -> Rest:
        """Client of the data plane."""
        return Rest(self.api, "", self.credential, DATA_SCOPE, where=self.name, user=self.user)


class Cloud:
    """Workspaces by name.

    Parameters
    ----------
    root
        The state root, whose ``workspaces.json`` names the connected ones.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = threading.Lock()
        self._workspaces: dict[str, Workspace] = {}

    def workspace(self, name: str) -> Workspace:
        """Return a connected workspace; created at first use, without network requests.

        Raises
        ------
        CommandError
            No workspace of that name is connected.
        """
        with self._lock:
            if name not in self._workspaces:
                facts = self._stored().get(name)
                if facts is None:
                    raise CommandError(f"No workspace {name!r} is connected.", hint="Connect it: %aml_compute connect")
                self._workspaces[name] = Workspace(facts, _reopened(facts))
            return self._workspaces[name]

    def add(self, facts: Mapping[str, Any], credential: Account | None = None) -> Workspace:
        """Add a workspace, or replace it; without `credential` the existing one is kept."""
        with self._lock:
            existing = self._workspaces.get(str(facts["name"]))
            if credential is None:
                credential = existing.credential if existing else _reopened(facts)
            created = self._workspaces[str(facts["name"])] = Workspace(facts, credential)
            return created

    def interactive_account(self, name: str) -> Account | None:
        """Return the account of an interactive sign-in to a workspace, if it is still valid."""
        with self._lock:
            workspace = self._workspaces.get(name)
            facts = None if workspace is not None else self._stored().get(name)
        if workspace is not None:
            account = workspace.credential
        elif facts is not None and facts.get("method", "auto") != "auto":
            account = _reopened(facts)
        else:
            return None
        if account.method == "auto":
            return None
        try:
            account.get_token(ARM_SCOPE)
        except Exception:  # then the user signs in again
            return None
        return account

    def forget(self, name: str) -> None:
        """Forget a workspace."""
        with self._lock:
            self._workspaces.pop(name, None)

    def _stored(self) -> dict[str, Any]:
        path = self.root / "workspaces.json"
        return dict(read_json(path).get("workspaces") or {}) if path.exists() else {}

    @cached_property
    def _files(self) -> Rest:
        return Rest("", "", None)

    def blob(self, url: str) -> Blob:
        """Return a client of one signed file URL, which sends no Authorization header."""
        return Blob(self._files, url)


def _reopened(facts: Mapping[str, Any]) -> Account:
    return Reopened(
        str(facts.get("tenant") or ""),
        str(facts.get("method") or "auto"),
        str(facts.get("account") or ""),
        str(facts["name"]),
    )
