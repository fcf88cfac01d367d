"""Files that a job left behind, from the workspace's artifact store."""

from __future__ import annotations

import datetime
import os
import xml.etree.ElementTree
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jupyter_amltrain.backends.azureml.process import history, rest
from jupyter_amltrain.errors import AmlTrainError

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.process.cloud import Workspace
    from jupyter_amltrain.backends.azureml.process.serve import Call

STORE = "workspaceartifactstore"
#: Bytes of one request.
_PART = 16 << 20


def listing(call: Call, workspace: Workspace, name: str, paths: Sequence[str]) -> Iterator[tuple[str, int, str]]:
    """Path in the job, size and signed address of each file below `paths`."""
    # Recorded: outputs.default is azureml://datastores/workspaceartifactstore/ExperimentRun/dcid.NAME
    return stored(call, workspace, STORE, f"ExperimentRun/dcid.{name}/", paths)


def stored(
    call: Call, workspace: Workspace, store: str, root: str, paths: Sequence[str]
) -> Iterator[tuple[str, int, str]]:
    """Path below `root`, size and signed address of each file of a datastore that begins with one of `paths`."""
    store = f"datastores/{store}"
    facts = (workspace.arm.get(store, api=rest.ARM, act="look at the workspace's storage").json or {})["properties"]
    secret = workspace.arm.post(
        f"{store}/listSecrets",
        api=rest.ARM_PREVIEW,
        json={"expirableSecret": True, "expireAfterHours": 1},
        act="ask for a signature of the workspace's storage",
    ).json
    token = str((secret or {}).get("sasToken") or "").lstrip("?") or _signature(facts, secret or {})
    if not token:
        raise AmlTrainError(
            "The workspace's storage gives no signatures (it is reached by identity only).",
            hint="Download the outputs in the studio.",
        )
    suffix = facts.get("endpoint") or "core.windows.net"
    container = f"https://{facts['accountName']}.blob.{suffix}/{facts['containerName']}"
    for path in paths:
        marker = ""
        while True:
            call.check()
            query = f"restype=container&comp=list&prefix={quote(root + path, safe='')}&{token}"
            query += f"&marker={quote(marker, safe='')}" if marker else ""
            answer = call.cloud.blob(f"{container}?{query}").send(
                "GET", headers={"x-ms-version": rest.BLOB}, act="list the outputs"
            )
            tree = xml.etree.ElementTree.fromstring(answer.bytes)
            for blob in tree.iter("Blob"):
                full = blob.findtext("Name") or ""
                size = int(blob.findtext("Properties/Content-Length") or 0)
                yield full[len(root) :], size, f"{container}/{quote(full)}?{token}"
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


def download(call: Call, workspace: Workspace, name: str, folder: str, paths: Sequence[str]) -> dict[str, Any]:
    """Fetch files below `paths` that `folder` does not have in that size."""
    return fetched(call, list(listing(call, workspace, name, paths)), folder)


def fetched(call: Call, there: Sequence[tuple[str, int, str]], folder: str) -> dict[str, Any]:
    """Fetch listed files into `folder`, where it does not have them in that size."""
    total = sum(size for _, size, _ in there)
    done = [0]

    def fetch(item: tuple[str, int, str]) -> None:
        path, size, url = item
        parts = PurePosixPath(path).parts
        if not parts or any(part in ("..", "/", "\\") or os.sep in part for part in parts):
            return  # a name that would lead out of the folder
        target = Path(folder, *parts)
        if not (target.is_file() and target.stat().st_size == size):
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(f".{target.name}.part")
            with part.open("wb") as file:
                start = 0
                while start < size:
                    call.check()
                    data = call.cloud.blob(url).get(start, min(size, start + _PART)).bytes
                    if not data:
                        break
                    file.write(data)
                    start += len(data)
            os.replace(part, target)
        done[0] += size
        call.progress(f"Downloaded {done[0] / 1e6:.1f} of {total / 1e6:.1f} MB.")

    history.all_of(fetch, there)
    return {"files": [path for path, _, _ in there], "bytes": total}
