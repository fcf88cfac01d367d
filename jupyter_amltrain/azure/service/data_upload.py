"""Upload of data to the workspace's storage: once by content, continued after an interruption.

Files lie below ``amltrain/data/<digest>/<name>`` of the default datastore, where the digest is that of the content:
files that are there need not be sent again.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jupyter_amltrain.agent import testing
from jupyter_amltrain.azure.service import history
from jupyter_amltrain.azure.service.artifacts import BlobContainer, files_in
from jupyter_amltrain.backends.transfer import Transfer
from jupyter_amltrain.errors import SubmitError
from jupyter_amltrain.jobs.local_data import LocalData, LocalFile, read_data, unreadable

if TYPE_CHECKING:
    from jupyter_amltrain.azure.service.operations import ServiceCall

log = logging.getLogger("amltrain.azure")

#: The default datastore, and our folder in it.
STORE, FOLDER = "workspaceblobstore", "amltrain/data"
#: Largest file that is sent in one request, and size of the blocks of larger ones.
_WHOLE_BYTES, _BLOCK_BYTES = 16 << 20, 8 << 20
#: Characters of a digest in a path.
_DIGEST_CHARS = 32


def _prefix(data: LocalData) -> str:
    """Folder in the datastore that contains the files."""
    inner = f"{data.name}/" if data.is_folder else ""
    return f"{FOLDER}/{data.sha256[:_DIGEST_CHARS]}/{inner}"


def _read(call: ServiceCall, path: str) -> LocalData:
    transfer = Transfer("reading", 0)

    def on_block(size: int, total: int) -> None:  # a large file takes minutes
        call.check()
        transfer.total = total
        transfer.advance(size)
        if transfer.text:
            call.progress(transfer.text)

    return read_data(path, on_block)


def send(call: ServiceCall, *, workspace: str, path: str) -> dict[str, Any]:
    """Upload a file or folder, unless the storage has its content.

    Returns
    -------
    dict
        ``uri``; ``folder``: whether it is a folder; ``sha256``, ``files`` and ``bytes``; ``sent``: bytes sent now.
    """
    place = call.cloud.workspace(workspace)
    data = _read(call, path)
    container = BlobContainer(call, place, STORE)
    sent = _Upload(call, container, data).run()
    log.info("data %s: %d bytes sent of %d", data.sha256[:12], sent, data.bytes)
    return {
        "uri": f"azureml://datastores/{STORE}/paths/{_prefix(data)}{'' if data.is_folder else data.name}",
        "folder": data.is_folder,
        "sha256": data.sha256,
        "files": len(data.files),
        "bytes": data.bytes,
        "sent": sent,
    }


class _Upload:
    """Upload of what the storage does not have."""

    def __init__(self, call: ServiceCall, container: BlobContainer, data: LocalData) -> None:
        self._call, self._container, self._data = call, container, data
        self._lock = threading.Lock()
        self._sent = 0
        self._transfer = Transfer("uploading", data.bytes)

    def run(self) -> int:
        """Send the missing files, some concurrently; return the number of bytes sent."""
        data = self._data
        # The listing of a file's folder may have other files of the same content under other names.
        present = {file.path: file.size for file in files_in(self._call, self._container, _prefix(data), [""])}
        missing = [name for name, file in data.files.items() if present.get(name) != file.size]
        have = sum(file.size for name, file in data.files.items()) - sum(data.files[name].size for name in missing)
        self._transfer = Transfer("uploading", data.bytes, have)
        history.all_of(self._put, sorted(missing, key=lambda name: -data.files[name].size))
        return self._sent

    def _put(self, name: str) -> None:
        self._call.check()
        file, target = self._data.files[name], quote(_prefix(self._data) + name)
        try:
            if file.size <= _WHOLE_BYTES:
                with open(file.path, "rb") as stream:
                    content = stream.read(_WHOLE_BYTES + 1)
                if hashlib.sha256(content).digest() != file.sha256:
                    raise _changed(file.path)
                self._container.put(target, content)
                self._advance(len(content), is_sent=True)
            else:
                self._put_blocks(file, target)
        except OSError as error:
            raise unreadable(file.path, error) from error
        testing.hit("azure_during_data_upload")

    def _put_blocks(self, file: LocalFile, target: str) -> None:
        """Send a large file in blocks whose ids contain their content: those of an earlier try are not sent again."""
        known, ids, whole = self._container.uncommitted_blocks(target), list[str](), hashlib.sha256()
        with open(file.path, "rb") as stream:
            while block := stream.read(_BLOCK_BYTES):
                self._call.check()
                whole.update(block)
                label = f"{len(ids):06d}-{hashlib.sha256(block).hexdigest()[:24]}"
                block_id = base64.b64encode(label.encode()).decode()
                ids.append(block_id)
                if block_id not in known:
                    self._container.put(target, block, f"comp=block&blockid={quote(block_id, safe='')}")
                    testing.hit("azure_during_data_upload")
                self._advance(len(block), is_sent=block_id not in known)
        if whole.digest() != file.sha256:  # the list of blocks, which makes the file, is not sent
            raise _changed(file.path)
        listed = "".join(f"<Latest>{block_id}</Latest>" for block_id in ids)
        body = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{listed}</BlockList>'
        self._container.put(target, body.encode(), "comp=blocklist")

    def _advance(self, count: int, is_sent: bool) -> None:
        with self._lock:
            self._transfer.advance(count)
            self._sent += count if is_sent else 0
            text = self._transfer.text
        if text:
            self._call.progress(text)


def _changed(path: str) -> SubmitError:
    return SubmitError(f"{path} changed during the upload.", hint="Try again.", code="data.changed")
