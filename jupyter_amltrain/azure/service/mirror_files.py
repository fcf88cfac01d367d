"""Files of a mirror folder: append-only, and transactional per sync.

``mirror.json`` has the committed size of each file; bytes after it, left by a crash, are truncated before the next
append. It also has the read position in every file of the job.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from jupyter_amltrain.errors import StateError
from jupyter_amltrain.state_dir import read_json, write_json

STATE = "mirror.json"
#: Bytes before the read position that are read again, to detect a replaced file.
OVERLAP = 32


class MirrorFiles:
    """The files of one mirror folder; the caller holds its lock.

    Attributes
    ----------
    sizes
        Bytes of each local file.
    remote
        For each file of the job ``offset``, ``tail`` (its last bytes, hex) or ``etag``, and ``due``.
    facts
        Other state, by name.
    grown
        Streams with new data since this object was created.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.grown: set[str] = set()
        try:
            state = read_json(folder / STATE) if (folder / STATE).exists() else {}
        except StateError:  # then everything is read again
            state = {}
        self.sizes: dict[str, int] = dict(state.get("sizes") or {})
        self.remote: dict[str, dict[str, Any]] = dict(state.get("remote") or {})
        self.facts: dict[str, Any] = dict(state.get("facts") or {})
        self._committed = self._text()
        for name, size in list(self.sizes.items()):
            self._cut(name, size)

    def _cut(self, name: str, size: int) -> None:
        path = self.folder / name
        try:
            actual = path.stat().st_size
        except OSError:
            actual = 0
        if actual > size:
            os.truncate(path, size)
        elif actual < size:  # removed by the user; data that was read once is not fetched again
            self.sizes[name] = actual

    def append(self, name: str, data: bytes, stream: str = "") -> None:
        """Add to a local file."""
        if not data:
            return
        path = self.folder / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A file without a committed size was started by a process that died before committing.
        truncate = 0 if name in self.sizes else os.O_TRUNC
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | truncate, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        self.sizes[name] = self.sizes.get(name, 0) + len(data)
        if stream:
            self.grown.add(stream)

    def replace(self, name: str, data: bytes, stream: str = "") -> None:
        """Replace a local file atomically; other processes never see a partial file."""
        path = self.folder / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
        if stream:
            self.grown.add(stream)

    def json(self, name: str) -> dict[str, Any]:
        """Return a local JSON object; empty if the file is missing or invalid."""
        try:
            value = json.loads((self.folder / name).read_bytes())
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def read_position(self, remote: str) -> dict[str, Any]:
        """Return the read position of a file of the job."""
        return self.remote.setdefault(remote, {"offset": 0, "tail": ""})

    def _text(self) -> str:
        return json.dumps([self.sizes, self.remote, self.facts], sort_keys=True)

    def save(self) -> None:
        """Commit what was appended."""
        if self._text() != self._committed:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            state = {"schema": 1, "sizes": self.sizes, "remote": self.remote, "facts": self.facts}
            write_json(self.folder / STATE, state)
            self._committed = self._text()
