"""The workspaces that this process knows, with their HTTP clients."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from jupyter_amltrain.backends.azureml.service.account import ARM_SCOPE, DATA_SCOPE, Account
from jupyter_amltrain.backends.azureml.service.auth import Reopened
from jupyter_amltrain.backends.azureml.service.http import Blob, Rest
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.state_dir import read_json

#: Address of ARM.
ARM_HOST = "https://management.azure.com"


def arm_id(subscription: str, resource_group: str, workspace: str) -> str:
    """The resource id of a workspace."""
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
        What stands before paths of run history and MLflow on the data plane.
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
        """ARM, below the workspace."""
        return Rest(ARM_HOST, self.arm_id, self.credential, ARM_SCOPE, where=self.name, user=self.user)

    @cached_property
    def data(self) -> Rest:
        """The data plane."""
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
        self._guard = threading.Lock()
        self._known: dict[str, Workspace] = {}

    def workspace(self, name: str) -> Workspace:
        """Return a connected workspace; opened at first use, without network.

        Raises
        ------
        CommandError
            There is none of that name.
        """
        with self._guard:
            if name not in self._known:
                facts = self._stored().get(name)
                if facts is None:
                    raise CommandError(f"No workspace {name!r} is connected.", hint="%aml_compute connect")
                self._known[name] = Workspace(facts, _reopened(facts))
            return self._known[name]

    def add(self, facts: Mapping[str, Any], credential: Account | None = None) -> Workspace:
        """Know a workspace from now on; a credential that it had is replaced by one that is given."""
        with self._guard:
            before = self._known.get(str(facts["name"]))
            if credential is None:
                credential = before.credential if before else _reopened(facts)
            made = self._known[str(facts["name"])] = Workspace(facts, credential)
            return made

    def person(self, name: str) -> Account | None:
        """The account of a person who is signed in to a known workspace, if that still holds."""
        with self._guard:
            known = self._known.get(name)
            facts = None if known is not None else self._stored().get(name)
        if known is not None:
            account = known.credential
        elif facts is not None and facts.get("method", "auto") != "auto":
            account = _reopened(facts)
        else:
            return None
        if account.method == "auto":
            return None
        try:
            account.get_token(ARM_SCOPE)
        except Exception:  # then that person is asked again
            return None
        return account

    def forget(self, name: str) -> None:
        """Forget a workspace."""
        with self._guard:
            self._known.pop(name, None)

    def _stored(self) -> dict[str, Any]:
        path = self.root / "workspaces.json"
        return dict(read_json(path).get("workspaces") or {}) if path.exists() else {}

    @cached_property
    def _files(self) -> Rest:
        return Rest("", "", None)

    def blob(self, url: str) -> Blob:
        """One signed address of a file. Sends no Authorization."""
        return Blob(self._files, url)


def _reopened(facts: Mapping[str, Any]) -> Account:
    return Reopened(
        str(facts.get("tenant") or ""),
        str(facts.get("method") or "auto"),
        str(facts.get("account") or ""),
        str(facts["name"]),
    )
