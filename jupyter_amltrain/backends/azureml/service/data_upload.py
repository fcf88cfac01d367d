"""Upload of data to the workspace's storage: once by content, continued after an interruption.

Files lie below ``amltrain/data/<digest>/<name>`` of the default datastore, where the digest is that of the content:
files that are there need not be sent again.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from jupyter_amltrain.agent import testing
from jupyter_amltrain.backends.azureml.service import history
from jupyter_amltrain.backends.azureml.service.artifacts import Container, files_in
from jupyter_amltrain.backends.transfer import Transfer
from jupyter_amltrain.errors import SubmitError
from jupyter_amltrain.jobs.file_hash import hash_file
from jupyter_amltrain.jobs.snapshot import data_files

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.service.operations import ServiceCall

log = logging.getLogger("amltrain.azure")

#: The default datastore, and our folder in it.
STORE, FOLDER = "workspaceblobstore", "amltrain/data"
#: Largest file that is sent in one request, and size of the blocks of larger ones.
_WHOLE_BYTES, _BLOCK_BYTES = 16 << 20, 8 << 20
#: Maximum number of files; a data set of more small files is better packed.
MAX_FILES = 500_000
#: Characters of a digest in a path.
_DIGEST_CHARS = 32


class LocalFile(NamedTuple):
    """A file to upload: its path, size, and digest."""

    path: str
    size: int
    sha256: bytes


class LocalData(NamedTuple):
    """A file or folder of this machine.

    Attributes
    ----------
    name
        Its own name, which it has in the storage too.
    files
        By path in the folder; the only one of a file has its name.
    sha256
        Digest of names and contents.
    """

    name: str
    is_folder: bool
    files: dict[str, LocalFile]
    sha256: str

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(file.size for file in self.files.values())

    @property
    def prefix(self) -> str:
        """Folder in the datastore that contains the files."""
        inner = f"{self.name}/" if self.is_folder else ""
        return f"{FOLDER}/{self.sha256[:_DIGEST_CHARS]}/{inner}"

    @property
    def uri_path(self) -> str:
        """Path in the datastore of the folder, with a final slash, or of the file."""
        return self.prefix if self.is_folder else f"{self.prefix}{self.name}"


def read_data(call: ServiceCall, path: str) -> LocalData:
    """Return the content of a file or folder; files that have not changed are not read again.

    Raises
    ------
    SubmitError
        It cannot be read, or is empty.
    """
    root = Path(path)
    if not root.exists():
        raise SubmitError(f"Cannot upload {path}: there is no such file or folder.", code="data.missing")
    is_folder = root.is_dir()
    names = data_files(root, MAX_FILES) if is_folder else {root.name: str(root)}
    if not names:
        raise SubmitError(
            f"Cannot upload {path}: it contains no files.",
            hint="Check the folder, and its .amlignore or .gitignore.",
            code="data.empty",
        )
    whole, files = hashlib.sha256(), dict[str, LocalFile]()
    transfer = Transfer("reading", sum(_size(file) for file in names.values()))

    def on_block(size: int) -> None:  # a large file takes minutes
        call.check()
        transfer.advance(size)
        if transfer.text:
            call.progress(transfer.text)

    for name in sorted(names):
        call.check()
        try:
            found = hash_file(names[name], on_block=on_block)
            whole.update(name.encode() + b"\0" + found.sha256)
        except UnicodeEncodeError:
            raise SubmitError(
                f"Cannot upload {path}: the file name {name!r} is not UTF-8.", hint="Rename it."
            ) from None
        except OSError as error:
            raise _unreadable(names[name], error) from error
        files[name] = LocalFile(names[name], found.size, found.sha256)
    return LocalData(root.name or "data", is_folder, files, whole.hexdigest())


def send(call: ServiceCall, *, workspace: str, path: str) -> dict[str, Any]:
    """Upload a file or folder, unless the storage has its content.

    Returns
    -------
    dict
        ``uri``; ``folder``: whether it is a folder; ``sha256``, ``files`` and ``bytes``; ``sent``: bytes sent now.
    """
    place = call.cloud.workspace(workspace)
    data = read_data(call, path)
    container = Container(call, place, STORE)
    sent = _Upload(call, container, data).run()
    log.info("data %s: %d bytes sent of %d", data.sha256[:12], sent, data.bytes)
    return {
        "uri": f"azureml://datastores/{STORE}/paths/{data.uri_path}",
        "folder": data.is_folder,
        "sha256": data.sha256,
        "files": len(data.files),
        "bytes": data.bytes,
        "sent": sent,
    }


class _Upload:
    """Upload of what the storage does not have."""

    def __init__(self, call: ServiceCall, container: Container, data: LocalData) -> None:
        self._call, self._container, self._data = call, container, data
        self._lock = threading.Lock()
        self._sent = 0
        self._transfer = Transfer("uploading", data.bytes)

    def run(self) -> int:
        """Send the missing files, some concurrently; return the number of bytes sent."""
        data = self._data
        # The listing of a file's folder may have other files of the same content under other names.
        present = {file.path: file.size for file in files_in(self._call, self._container, data.prefix, [""])}
        missing = [name for name, file in data.files.items() if present.get(name) != file.size]
        have = sum(file.size for name, file in data.files.items()) - sum(data.files[name].size for name in missing)
        self._transfer = Transfer("uploading", data.bytes, have)
        history.all_of(self._put, sorted(missing, key=lambda name: -data.files[name].size))
        return self._sent

    def _put(self, name: str) -> None:
        self._call.check()
        file, target = self._data.files[name], quote(self._data.prefix + name)
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
            raise _unreadable(file.path, error) from error
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


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:  # reported when it is read
        return 0


def _changed(path: str) -> SubmitError:
    return SubmitError(f"{path} changed during the upload.", hint="Try again.", code="data.changed")


def _unreadable(path: str, error: OSError) -> SubmitError:
    return SubmitError(
        f"Cannot read {path}: {error.strerror or error}.",
        hint="Make the file readable, or exclude it in .amlignore of the folder.",
        code="data.unreadable",
    )
