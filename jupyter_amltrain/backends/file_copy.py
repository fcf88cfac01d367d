"""Copy of one file in parts: an interrupted copy continues where it ended. Blocks on the disk; any thread."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


class FileCopy:
    """A copy that is not complete is a hidden file beside the new one, with a mark of the version that it copies.

    Parameters
    ----------
    to
        Path of the copy.
    size, modified
        Bytes, and Unix seconds of the last change, of the file that is copied: another version starts over.
    """

    def __init__(self, to: Path, size: int, modified: float) -> None:
        self.to, self.size, self.modified = to, size, modified
        self._part = to.with_name(f".{to.name}.part")
        self._mark = to.with_name(f".{to.name}.part.version")

    @property
    def is_current(self) -> bool:
        """Whether the copy is there and has the same size and time."""
        try:
            status = self.to.stat()
        except OSError:
            return False
        return status.st_size == self.size and abs(status.st_mtime - self.modified) < 1e-3

    def begin(self) -> int:
        """Return the number of bytes that an interrupted copy of the same version has."""
        self.to.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        version = f"{self.size} {self.modified}"
        if self._part.exists() and self._mark.exists() and self._mark.read_text() == version:
            return self._part.stat().st_size
        self._part.unlink(missing_ok=True)
        self._mark.write_text(version)
        return 0

    def restart(self) -> None:
        """Drop what an interrupted copy has."""
        self._part.unlink(missing_ok=True)

    def append(self, data: bytes) -> None:
        """Write the next bytes."""
        with os.fdopen(os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as file:
            file.write(data)

    def digest(self) -> str:
        """Return the sha256 of what there is, before it is complete."""
        with self._part.open("rb") as file:
            digest = hashlib.sha256()
            while block := file.read(1 << 20):
                digest.update(block)
        return digest.hexdigest()

    def complete(self) -> None:
        """Give the copy its name, and the time of the original."""
        if not self._part.exists():  # an empty file
            self.append(b"")
        os.utime(self._part, (self.modified, self.modified))
        os.replace(self._part, self.to)
        self._mark.unlink(missing_ok=True)
