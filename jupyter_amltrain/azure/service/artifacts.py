"""Output files of a job in the workspace's artifact store, read with a renewable signature (SAS) or by identity."""

from __future__ import annotations

import datetime
import email.utils
import os
import threading
import time
import xml.etree.ElementTree
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from jupyter_amltrain.azure import errors
from jupyter_amltrain.azure.service import history, http
from jupyter_amltrain.backends.file_copy import FileCopy
from jupyter_amltrain.errors import AmlTrainError, CommandError

if TYPE_CHECKING:
    from jupyter_amltrain.azure.service.cloud import Workspace
    from jupyter_amltrain.azure.service.operations import ServiceCall

STORE = "workspaceartifactstore"
#: Code of the error about a datastore that is not a blob container.
NOT_BLOBS = "azure.datastore_type"
#: Bytes per request.
_PART_BYTES = 16 << 20
#: Token scope of the storage service.
_SCOPE = "https://storage.azure.com/.default"
#: Statuses that mean that no secret is available: the kind of datastore has none, or this user may not read it.
_NO_SECRET_STATUSES = (400, 403, 409)
#: Codes of the storage service when signatures with the account key are disabled.
_KEY_AUTH_DISABLED = ("KeyBasedAuthenticationNotPermitted",)


class StoredFile(NamedTuple):
    """A file of a datastore.

    Attributes
    ----------
    path
        Path relative to the listed folder.
    size
        Bytes.
    modified
        Unix seconds of the last change.
    """

    path: str
    size: int
    modified: float
    container: BlobContainer
    name: str

    def read(self, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes from `start` up to, not including, `end`."""
        return self.container.get(quote(self.name), start, end)


class BlobContainer:
    """The blob container of a datastore.

    Requests use a signature, which may expire during a download, or this user's identity where there is none.
    """

    def __init__(self, call: ServiceCall, workspace: Workspace, store: str) -> None:
        self._call, self._workspace, self._store = call, workspace, f"datastores/{store}"
        answer = workspace.arm.get(self._store, api=http.ARM, act="read the workspace's storage")
        self._facts: dict[str, Any] = (answer.json or {})["properties"]
        if "containerName" not in self._facts:
            kind = self._facts.get("datastoreType") or "another type"
            raise CommandError(
                f"Cannot read datastore {store!r}: it is {kind}, not a blob container.",
                hint="Read it with Azure's own tools.",
                code=NOT_BLOBS,
            )
        suffix = self._facts.get("endpoint") or "core.windows.net"
        self.url = f"https://{self._facts['accountName']}.blob.{suffix}/{self._facts['containerName']}"
        self._lock = threading.Lock()
        self._secret_error: AmlTrainError | None = None
        self._signature = self._new_signature()

    @cached_property
    def _identity_client(self) -> http.Rest:
        """Client of the storage service that authenticates with this user's identity."""
        workspace = self._workspace
        return http.Rest("", "", workspace.credential, _SCOPE, where=workspace.name, user=workspace.user)

    def _new_signature(self) -> str:
        """Return a signature for an hour; empty where the datastore has no secret that this user may read."""
        if str((self._facts.get("credentials") or {}).get("credentialsType") or "").lower() == "none":
            return ""
        try:
            secret = self._workspace.arm.post(
                f"{self._store}/listSecrets",
                api=http.ARM_PREVIEW,
                json={"expirableSecret": True, "expireAfterHours": 1},
                act="sign a URL of the workspace's storage",
            ).json
        except AmlTrainError as error:
            if errors.details_of(error).status not in _NO_SECRET_STATUSES:
                raise
            self._secret_error = error
            return ""
        return str((secret or {}).get("sasToken") or "").lstrip("?") or _signature_from_key(self._facts, secret or {})

    def send(self, query: str, **options: Any) -> http.Answer:
        """Send a GET request to the container."""
        return self._with_signature(lambda signature: self._blob("", query, signature).send("GET", **options))

    def get(self, path: str, start: int, end: int | None) -> bytes:
        """Return bytes of a file, by its quoted name."""
        return self._with_signature(lambda signature: self._blob(f"/{path}", "", signature).get(start, end)).bytes

    def put(self, path: str, content: bytes, query: str = "") -> None:
        """Write a file, by its quoted name; with a query such as ``comp=block&blockid=..`` a part of it."""
        headers = {"x-ms-version": http.BLOB, "Content-Type": "application/octet-stream"}
        if not query:
            headers["x-ms-blob-type"] = "BlockBlob"
        options: dict[str, Any] = {"content": content, "headers": headers, "act": "write a file to the storage"}
        self._with_signature(lambda signature: self._blob(f"/{path}", query, signature).send("PUT", **options))

    def uncommitted_blocks(self, path: str) -> frozenset[str]:
        """Return the ids of blocks that an interrupted upload of a file has sent."""
        query = "comp=blocklist&blocklisttype=uncommitted"
        options: dict[str, Any] = {
            "ok": (200, 404),
            "headers": {"x-ms-version": http.BLOB},
            "act": "continue an upload",
        }
        answer = self._with_signature(lambda signature: self._blob(f"/{path}", query, signature).send("GET", **options))
        if answer.status == 404:
            return frozenset()
        tree = xml.etree.ElementTree.fromstring(answer.bytes)
        return frozenset(block.findtext("Name") or "" for block in tree.iter("Block"))

    def _blob(self, path: str, query: str, signature: str) -> http.Blob:
        url = f"{self.url}{path}?{query}{'&' if query and signature else ''}{signature}".rstrip("?")
        return self._call.cloud.blob(url) if signature else http.Blob(self._identity_client, url)

    def _with_signature(self, request: Callable[[str], http.Answer]) -> http.Answer:
        """Run `request` with the signature; when it has expired, run it again with a new one."""
        signature = self._signature
        try:
            return request(signature)
        except AmlTrainError as error:
            details = errors.details_of(error)
            if details.status != 403:
                raise
            if not signature:
                raise (self._secret_error or error) from None
        with self._lock:
            if self._signature == signature:  # otherwise another thread has already renewed it
                self._signature = "" if details.code in _KEY_AUTH_DISABLED else self._new_signature()
            signature = self._signature
        return request(signature)


def list_job_files(call: ServiceCall, workspace: Workspace, name: str, paths: Sequence[str]) -> Iterator[StoredFile]:
    """Yield each file of a job below `paths`."""
    # Recorded: outputs.default is azureml://datastores/workspaceartifactstore/ExperimentRun/dcid.NAME
    return list_files(call, workspace, STORE, f"ExperimentRun/dcid.{name}/", paths)


#: Seconds for which the client of a container is kept; its signature is renewed when it has expired.
_CONTAINER_AGE_S = 1800.0
_containers: dict[tuple[str, str], tuple[float, BlobContainer]] = {}


def container_of(call: ServiceCall, workspace: Workspace, store: str) -> BlobContainer:
    """Return the container of a datastore, kept for a while: each new one costs two requests."""
    now = time.monotonic()
    made, container = _containers.get((workspace.name, store), (0.0, None))
    if container is None or now - made > _CONTAINER_AGE_S:
        container = BlobContainer(call, workspace, store)
        _containers[workspace.name, store] = now, container
    return container


def read_job_file(
    call: ServiceCall, *, workspace: str, name: str, path: str, store: str = "", offset: int = 0, limit: int = 1 << 20
) -> bytes:
    """Return up to `limit` bytes of a file of a job from byte `offset`; empty at its end.

    Parameters
    ----------
    path
        Path in the job's own artifacts; in `store`, if it is given.
    """
    container = container_of(call, call.cloud.workspace(workspace), store or STORE)
    return container.get(quote(path if store else f"ExperimentRun/dcid.{name}/{path}"), offset, offset + limit)


def list_files(
    call: ServiceCall, workspace: Workspace, store: str, root: str, paths: Sequence[str]
) -> Iterator[StoredFile]:
    """Yield each file of a datastore whose path below `root` starts with one of `paths`."""
    yield from files_in(call, BlobContainer(call, workspace, store), root, paths)


def files_in(call: ServiceCall, container: BlobContainer, root: str, paths: Sequence[str]) -> Iterator[StoredFile]:
    """Yield each file of a container whose path below `root` starts with one of `paths`."""
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
                modified = _seconds(blob.findtext("Properties/Last-Modified") or "")
                yield StoredFile(full[len(root) :], size, modified, container, full)
            marker = tree.findtext("NextMarker") or ""
            if not marker:
                break


def _seconds(date: str) -> float:
    """Return the Unix time of a date such as ``Mon, 23 Nov 2026 10:00:00 GMT``; 0 for another text."""
    try:
        return email.utils.parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return 0.0


def _signature_from_key(facts: Mapping[str, Any], secret: Mapping[str, Any]) -> str:
    """Return a signature for an hour if the service returned the account key, not a SAS; otherwise empty."""
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
            permission="racwl",
            start=now - datetime.timedelta(minutes=5),
            expiry=now + datetime.timedelta(hours=1),
        )
    )


def download(call: ServiceCall, workspace: Workspace, name: str, folder: str, paths: Sequence[str]) -> dict[str, Any]:
    """Download files below `paths`; files that `folder` already has in this version are skipped."""
    return download_files(call, list(list_job_files(call, workspace, name, paths)), folder)


def download_files(call: ServiceCall, files: Sequence[StoredFile], folder: str) -> dict[str, Any]:
    """Download listed files into `folder`; an interrupted download continues where it ended."""
    total = sum(file.size for file in files)
    done_bytes = [0]

    def fetch(item: StoredFile) -> None:
        parts = PurePosixPath(item.path).parts
        if not parts or any(part in ("..", "/", "\\") or os.sep in part for part in parts):
            return  # a path that would leave the folder
        copy = FileCopy(Path(folder, *parts), item.size, item.modified)
        if not copy.is_current:
            start = copy.begin()
            while start < item.size:
                call.check()
                data = item.read(start, min(item.size, start + _PART_BYTES))
                if not data:
                    break
                copy.append(data)
                start += len(data)
            copy.complete()
        done_bytes[0] += item.size
        call.progress(f"Downloaded {done_bytes[0] / 1e6:.1f} of {total / 1e6:.1f} MB.")

    history.all_of(fetch, files)
    return {"files": [file.path for file in files], "bytes": total}
