"""Cache of files of web addresses: ``data/<key>/<version>/<file>`` in the state root.

The key belongs to the address, the version to the content. A download holds ``data/locks/<key>`` exclusively; a run
holds ``data/locks/<key>-<version>`` shared while it uses the file. A file has its final name only when it is complete.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from typing import Any, Dict, List, Mapping, Optional
from urllib.parse import unquote, urlsplit

from .. import protocol
from ..file_lock import take_lock, take_shared_lock
from ..protocol import AgentError, private_folder, read_json, write_json

Json = Dict[str, Any]

DATA, LOCKS = "data", "locks"
#: Folder of a run with links to its downloaded inputs.
INPUTS = "inputs"
#: File that describes the newest version of an address; beginning of a file, and what is known of it.
RECORD, PART, PART_FACTS = "record.json", "file.part", "part.json"
#: Characters of keys and versions.
KEY_CHARS = 16
#: Files that no run has used for this time are removed by the next download.
MAX_UNUSED_S = 30 * 86400.0

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}\Z")
_MAX_NAME_BYTES = 200


def is_web_address(text: str) -> bool:
    """Whether `text` is an address that the agent can download."""
    return text.lower().startswith(("https://", "http://"))


def key_of(url: str) -> str:
    """Return the key of an address; references to secrets in it count, their values do not."""
    return hashlib.sha256(url.encode("utf-8", "surrogatepass")).hexdigest()[:KEY_CHARS]


def shown_url(url: str) -> str:
    """Return an address without credentials and query, for messages and records."""
    parts = urlsplit(url)
    return "%s://%s%s" % (parts.scheme, parts.netloc.rpartition("@")[2], parts.path)


def file_name(url: str) -> str:
    """Return the name of the file of an address: the last part of its path."""
    name = unquote(urlsplit(url).path.rstrip("/").rpartition("/")[2])
    name = re.sub(r"[\x00-\x1f\x7f/\\:$`\"']", "_", name).strip()
    if not name.strip("."):
        return "data"
    stem, suffix = os.path.splitext(name)
    if len(suffix) >= 20:
        return _cut(name, _MAX_NAME_BYTES)
    return _cut(stem, _MAX_NAME_BYTES - len(suffix.encode("utf-8", "replace"))) + suffix


def _cut(text: str, limit: int) -> str:
    """Return the beginning of a text that has at most `limit` bytes."""
    return text.encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")


def link_path(folder: str, name: str, url: str) -> str:
    """Return the path at which a run finds an input: a link to the file in the cache.

    Parameters
    ----------
    folder
        The run folder.
    name
        Name of the input.
    """
    return input_path(folder, name, file_name(url))


def input_path(folder: str, name: str, file: str) -> str:
    """Return the path at which a run finds a file or folder of the cache as its input."""
    return "%s/%s/%s/%s" % (folder, INPUTS, name, file)


def is_input_name(name: Any) -> bool:
    """Whether `name` can be that of an input, which is a folder of the run."""
    return isinstance(name, str) and _NAME.match(name) is not None


def check(downloads: Mapping[str, Any]) -> Dict[str, str]:
    """Return the addresses of a submitted job by the name of its input.

    Raises
    ------
    AgentError
        ``SubmitError`` that names the input.
    """
    for name, url in downloads.items():
        if not is_input_name(name) or not isinstance(url, str) or not is_web_address(url) or "\0" in url:
            raise AgentError("SubmitError", "Cannot submit the job: downloads.%s is not a web address." % name[:80])
    return dict(downloads)


class DataCache:
    """Downloaded files of a state root.

    Parameters
    ----------
    home
        The state root.
    """

    def __init__(self, home: str) -> None:
        self.folder = os.path.join(home, DATA)

    def below(self, key: str, *names: str) -> str:
        """Return a path in the folder of an address."""
        return os.path.join(self.folder, key, *names)

    def path(self, key: str, record: Mapping[str, Any]) -> str:
        """Return the file that a record describes."""
        return self.below(key, str(record["version"]), str(record["file"]))

    def record(self, key: str) -> Optional[Json]:
        """Return the record of an address; ``None`` if its file is missing or was changed."""
        try:
            record = read_json(self.below(key, RECORD), "Data cache")
            if record is None:
                return None
            facts = os.stat(self.path(key, record))
            is_same = [facts.st_size, facts.st_mtime_ns] == [record["bytes"], record["mtime_ns"]]
        except (OSError, KeyError, AgentError):
            return None
        return record if is_same else None

    def write_record(self, key: str, record: Mapping[str, Any]) -> None:
        """Write the record of an address."""
        write_json(self.below(key, RECORD), record)

    def lock(self, key: str, wait: bool = False) -> Optional[int]:
        """Lock an address for a download; ``None`` if another process holds the lock."""
        return take_lock(os.path.join(self.folder, LOCKS), key, exclusive=True, wait=wait)

    def hold(self, key: str, record: Mapping[str, Any]) -> Optional[int]:
        """Keep a file from being removed until the descriptor is closed; ``None`` if it was removed."""
        handle = take_shared_lock(os.path.join(self.folder, LOCKS), "%s-%s" % (key, record["version"]))
        if handle is None or os.path.exists(self.path(key, record)):
            return handle
        os.close(handle)
        return None

    def make_folder(self, key: str) -> None:
        """Create the folder of an address.

        Raises
        ------
        AgentError
            ``StateError`` when the state root cannot be written.
        """
        private_folder(self.below(key))

    def sweep(self, key: str) -> None:
        """Remove older versions of an address, and files of others that were not used for long; none that is in use.

        Parameters
        ----------
        key
            Address that this process has locked.
        """
        record = self.record(key)
        for version in self._versions(key):
            if record is not None and version != record["version"]:
                self._remove_version(key, version)
        for other in self._list(self.folder):
            if other in (key, LOCKS) or not self._is_old(other):
                continue
            handle = self.lock(other)
            if handle is None:
                continue
            try:
                removed = [self._remove_version(other, version) for version in self._versions(other)]
                if all(removed):
                    shutil.rmtree(self.below(other), ignore_errors=True)
            finally:
                os.close(handle)

    def _is_old(self, key: str) -> bool:
        path = self.below(key, RECORD)
        try:
            used = os.stat(path if os.path.exists(path) else self.below(key)).st_mtime
        except OSError:  # removed meanwhile
            return False
        return time.time() - used > MAX_UNUSED_S

    def _remove_version(self, key: str, version: str) -> bool:
        handle = take_lock(os.path.join(self.folder, LOCKS), "%s-%s" % (key, version), exclusive=True)
        if handle is None:
            return False
        shutil.rmtree(self.below(key, version), ignore_errors=True)
        os.close(handle)
        return True

    def _versions(self, key: str) -> List[str]:
        return [name for name in self._list(self.below(key)) if os.path.isdir(self.below(key, name))]

    @staticmethod
    def _list(folder: str) -> List[str]:
        try:
            return sorted(os.listdir(folder))
        except OSError:
            return []


def new_record(url: str, sha256: str, facts: os.stat_result, etag: str, modified: str) -> Json:
    """Return the record of a file that was downloaded now."""
    return {
        "schema": protocol.SCHEMA,
        "url": shown_url(url),
        "file": file_name(url),
        "version": sha256[:KEY_CHARS],
        "sha256": sha256,
        "bytes": facts.st_size,
        "mtime_ns": facts.st_mtime_ns,
        "etag": etag,
        "modified": modified,
        "downloaded": protocol.wall(),
    }
