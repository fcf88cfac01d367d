"""Files that a job left behind, from the workspace's artifact store: by a signature that is renewed, or by identity."""

from __future__ import annotations

import datetime
import os
import threading
import xml.etree.ElementTree
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from jupyter_amltrain.backends.azureml import errors
from jupyter_amltrain.backends.azureml.service import history, http
from jupyter_amltrain.errors import AmlTrainError

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.service.cloud import Workspace
    from jupyter_amltrain.backends.azureml.service.operations import ServiceCall

STORE = "workspaceartifactstore"
#: Bytes of one request.
_PART_BYTES = 16 << 20
#: Whom a token is for that the storage service takes.
_SCOPE = "https://storage.azure.com/.default"
#: Answers by which the service says that a datastore has no secret for us: its kind has none, or we may not see it.
_NO_SECRET = (400, 403, 409)
#: The storage service's codes where signatures by the account's key are switched off.
_NOT_BY_KEY = ("KeyBasedAuthenticationNotPermitted",)


class Stored(NamedTuple):
    """A file of a datastore.

    Attributes
    ----------
    path
        Below what was listed.
    size
        Bytes.
    """

    path: str
    size: int
    container: _Container
    name: str

    def read(self, start: int = 0, end: int | None = None) -> bytes:
        """Its bytes from `start` up to, not including, `end`."""
        return self.container.get(quote(self.name), start, end)


class _Container:
    """Where a datastore's files lie.

    It is opened by a signature, which a download may outlive, and where there is none by who we are.
    """

    def __init__(self, call: ServiceCall, workspace: Workspace, store: str) -> None:
        self._call, self._workspace, self._store = call, workspace, f"datastores/{store}"
        asked = workspace.arm.get(self._store, api=http.ARM, act="look at the workspace's storage")
        self._facts: dict[str, Any] = (asked.json or {})["properties"]
        suffix = self._facts.get("endpoint") or "core.windows.net"
        self.url = f"https://{self._facts['accountName']}.blob.{suffix}/{self._facts['containerName']}"
        self._guard = threading.Lock()
        self._refused: AmlTrainError | None = None
        self._signature = self._signed()

    @cached_property
    def _own(self) -> http.Rest:
        """The storage service, by who we are."""
        place = self._workspace
        return http.Rest("", "", place.credential, _SCOPE, where=place.name, user=place.user)

    def _signed(self) -> str:
        """A signature for an hour; empty where the datastore has no secret, or none for us."""
        if str((self._facts.get("credentials") or {}).get("credentialsType") or "").lower() == "none":
            return ""
        try:
            secret = self._workspace.arm.post(
                f"{self._store}/listSecrets",
                api=http.ARM_PREVIEW,
                json={"expirableSecret": True, "expireAfterHours": 1},
                act="ask for a signature of the workspace's storage",
            ).json
        except AmlTrainError as error:
            if errors.details_of(error).status not in _NO_SECRET:
                raise
            self._refused = error
            return ""
        return str((secret or {}).get("sasToken") or "").lstrip("?") or _signature(self._facts, secret or {})

    def send(self, query: str, **how: Any) -> http.Answer:
        """GET of the container."""
        return self._opened(lambda signature: self._blob("", query, signature).send("GET", **how))

    def get(self, path: str, start: int, end: int | None) -> bytes:
        """Bytes of a file, by its quoted name."""
        return self._opened(lambda signature: self._blob(f"/{path}", "", signature).get(start, end)).bytes

    def _blob(self, path: str, query: str, signature: str) -> http.Blob:
        url = f"{self.url}{path}?{query}{'&' if query and signature else ''}{signature}".rstrip("?")
        return self._call.cloud.blob(url) if signature else http.Blob(self._own, url)

    def _opened(self, ask: Callable[[str], http.Answer]) -> http.Answer:
        """What is asked with the signature; where its time is over, once more with a new one."""
        signature = self._signature
        try:
            return ask(signature)
        except AmlTrainError as error:
            said = errors.details_of(error)
            if said.status != 403:
                raise
            if not signature:
                raise (self._refused or error) from None
        with self._guard:
            if self._signature == signature:  # else another thread has a new one already
                self._signature = "" if said.code in _NOT_BY_KEY else self._signed()
            signature = self._signature
        return ask(signature)


def listing(call: ServiceCall, workspace: Workspace, name: str, paths: Sequence[str]) -> Iterator[Stored]:
    """Each file of a job below `paths`."""
    # Recorded: outputs.default is azureml://datastores/workspaceartifactstore/ExperimentRun/dcid.NAME
    return stored(call, workspace, STORE, f"ExperimentRun/dcid.{name}/", paths)


def stored(call: ServiceCall, workspace: Workspace, store: str, root: str, paths: Sequence[str]) -> Iterator[Stored]:
    """Each file of a datastore whose path below `root` begins with one of `paths`."""
    container = _Container(call, workspace, store)
    for path in paths:
        marker = ""
        while True:
            call.check()
            query = f"restype=container&comp=list&prefix={quote(root + path, safe='')}"
            query += f"&marker={quote(marker, safe='')}" if marker else ""
            answer = container.send(query, headers={"x-ms-version": http.BLOB}, act="list the outputs")
            tree = xml.etree.ElementTree.fromstring(answer.bytes)
            for blob in tree.iter("Blob"):
                full = blob.findtext("Name") or ""
                size = int(blob.findtext("Properties/Content-Length") or 0)
                yield Stored(full[len(root) :], size, container, full)
            marker = tree.findtext("NextMarker") or ""
            if not marker:
                break


def _signature(facts: Mapping[str, Any], secret: Mapping[str, Any]) -> str:
    """A signature for an hour, where the service gives the account's key in spite of what is asked; else empty."""
    key = str(secret.get("key") or "")
    if not key:
        return ""
    from azure.storage.blob import generate_container_sas

    now = datetime.datetime.now(datetime.timezone.utc)
    return str(
        generate_container_sas(
            facts["accountName"],
            facts["containerName"],
            key,
            permission="rl",
            start=now - datetime.timedelta(minutes=5),
            expiry=now + datetime.timedelta(hours=1),
        )
    )


def download(call: ServiceCall, workspace: Workspace, name: str, folder: str, paths: Sequence[str]) -> dict[str, Any]:
    """Fetch files below `paths` that `folder` does not have in that size."""
    return fetched(call, list(listing(call, workspace, name, paths)), folder)


def fetched(call: ServiceCall, there: Sequence[Stored], folder: str) -> dict[str, Any]:
    """Fetch listed files into `folder`, where it does not have them in that size."""
    total = sum(file.size for file in there)
    done = [0]

    def fetch(item: Stored) -> None:
        parts = PurePosixPath(item.path).parts
        if not parts or any(part in ("..", "/", "\\") or os.sep in part for part in parts):
            return  # a name that would lead out of the folder
        target = Path(folder, *parts)
        if not (target.is_file() and target.stat().st_size == item.size):
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(f".{target.name}.part")
            with part.open("wb") as file:
                start = 0
                while start < item.size:
                    call.check()
                    data = item.read(start, min(item.size, start + _PART_BYTES))
                    if not data:
                        break
                    file.write(data)
                    start += len(data)
            os.replace(part, target)
        done[0] += item.size
        call.progress(f"Downloaded {done[0] / 1e6:.1f} of {total / 1e6:.1f} MB.")

    history.all_of(fetch, there)
    return {"files": [file.path for file in there], "bytes": total}
