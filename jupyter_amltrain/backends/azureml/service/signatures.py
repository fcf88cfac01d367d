"""Signatures that open addresses of the storage service (shared access signatures)."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from jupyter_amltrain.backends.azureml.service import rest

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.service.cloud import Workspace


class Signatures:
    """Signatures of addresses, by the beginning of the address. Secrets: in memory only, for less than their hour."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._known: dict[str, tuple[float, str]] = {}

    def put(self, begin: str, signature: str) -> None:
        """Keep one for all addresses that begin so."""
        with self._guard:
            self._known[begin] = time.time() + 3000, signature

    def get(self, url: str) -> str:
        """One that opens an address; empty for none."""
        with self._guard:
            now = time.time()
            self._known = {begin: pair for begin, pair in self._known.items() if pair[0] > now}
            found = (text for begin, (_, text) in self._known.items() if url == begin or url.startswith(begin + "/"))
            return next(found, "")


#: Those of this process.
KNOWN = Signatures()


def of_account(workspace: Workspace, host: str) -> str:
    """Of the storage account of the workspace (recorded: ``secretsType`` ``Sas``, a token with a leading ``?``)."""
    key = f"account:{workspace.name}"
    if found := KNOWN.get(key):
        return found
    store = "datastores/workspaceblobstore"
    facts = (workspace.arm.get(store, api=rest.ARM, act="look at the workspace's storage").json or {})["properties"]
    if not host.startswith(f"{facts.get('accountName')}."):
        return ""
    secret = workspace.arm.post(
        f"{store}/listSecrets",
        api=rest.ARM_PREVIEW,
        json={"expirableSecret": True, "expireAfterHours": 1},
        act="ask for a signature of the workspace's storage",
    ).json
    token = str((secret or {}).get("sasToken") or "").lstrip("?")
    if token:
        KNOWN.put(key, token)
    return token
