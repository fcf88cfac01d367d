"""The files of a mirror folder: appended only, and after a crash as if the last sync had not been.

``mirror.json`` beside them says how far each is known to go; what is behind that is cut off before the next
append. It also says how far every file of the job was read.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from jupyter_amltrain.errors import StateError
from jupyter_amltrain.state_dir import read_json, write_json

STATE = "mirror.json"
#: Bytes before the end of what was read that are read again: whether it is still the same file.
OVERLAP = 32


class MirrorFiles:
    """One folder, held by one lock.

    Attributes
    ----------
    sizes
        Bytes of each local file.
    remote
        Of each file of the job ``offset``, ``tail`` (its last bytes, hex) or ``etag``, and ``due``.
    facts
        What else is remembered.
    grown
        Streams that have news since this object was made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.grown: set[str] = set()
        try:
            state = read_json(folder / STATE) if (folder / STATE).exists() else {}
        except StateError:  # then all is read again
            state = {}
        self.sizes: dict[str, int] = dict(state.get("sizes") or {})
        self.remote: dict[str, dict[str, Any]] = dict(state.get("remote") or {})
        self.facts: dict[str, Any] = dict(state.get("facts") or {})
        self._before = self._text()
        for name, size in list(self.sizes.items()):
            self._cut(name, size)

    def _cut(self, name: str, size: int) -> None:
        path = self.folder / name
        try:
            there = path.stat().st_size
        except OSError:
            there = 0
        if there > size:
            os.truncate(path, size)
        elif there < size:  # somebody has removed it: what came once is not fetched again by itself
            self.sizes[name] = there

    def append(self, name: str, data: bytes, stream: str = "") -> None:
        """Add to a local file."""
        if not data:
            return
        path = self.folder / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # One that does not count yet was begun by a process that died before it said so.
        anew = 0 if name in self.sizes else os.O_TRUNC
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | anew, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        self.sizes[name] = self.sizes.get(name, 0) + len(data)
        if stream:
            self.grown.add(stream)

    def replace(self, name: str, data: bytes, stream: str = "") -> None:
        """Write a local file anew, at once; other processes never see half of it."""
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
        """A local JSON object; empty without one."""
        try:
            value = json.loads((self.folder / name).read_bytes())
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def of(self, remote: str) -> dict[str, Any]:
        """How far a file of the job was read."""
        return self.remote.setdefault(remote, {"offset": 0, "tail": ""})

    def _text(self) -> str:
        return json.dumps([self.sizes, self.remote, self.facts], sort_keys=True)

    def save(self) -> None:
        """Make what was appended count."""
        if self._text() != self._before:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            state = {"schema": 1, "sizes": self.sizes, "remote": self.remote, "facts": self.facts}
            write_json(self.folder / STATE, state)
            self._before = self._text()
