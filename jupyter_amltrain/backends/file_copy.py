"""Copy of one file in parts: an interrupted copy continues where it ended. Blocks on the disk; any thread."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
from pathlib import Path


class FileCopy:
    """A copy that is not complete is a hidden file beside the new one.

    Its name, ``.NAME.VERSION.PID.part``, says what it copies and for which process: another process takes it over
    only after that one has ended, so that two kernels never write into one file.

    Parameters
    ----------
    to
        Path of the copy.
    size, modified
        Bytes, and Unix seconds of the last change, of the file that is copied: another version starts over.
    grows
        The file is only ever appended to: an older copy is a part of the new one.
    """

    def __init__(self, to: Path, size: int, modified: float, *, grows: bool = False) -> None:
        self.to, self.size, self.modified, self._grows = to, size, modified, grows
        self._version = f"{size}-{modified * 1000:.0f}"
        self._part = to.with_name(f".{to.name}.{self._version}.{os.getpid()}.part")

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
        self._adopt()
        if self._part.exists():
            return self._part.stat().st_size
        if self._grows and self.to.is_file() and (known := self.to.stat().st_size) <= self.size:
            with contextlib.suppress(OSError):  # a file system without links
                os.link(self.to, self._part)  # readers of the copy see it grow, as they do on the machine itself
                return known
        return 0

    def _adopt(self) -> None:
        """Take over the part of a process that has ended, and delete its parts of other versions."""
        import psutil

        for other in self.to.parent.glob(f".{glob.escape(self.to.name)}.*.part"):
            version, _, pid = other.name[len(self.to.name) + 2 : -len(".part")].rpartition(".")
            if other == self._part or not pid.isdigit() or (int(pid) != os.getpid() and psutil.pid_exists(int(pid))):
                continue
            with contextlib.suppress(OSError):  # another process was faster
                if version == self._version and not self._part.exists():
                    os.rename(other, self._part)
                else:
                    other.unlink()

    def restart(self) -> None:
        """Drop what an interrupted copy, or an older one, has."""
        self._grows = False
        self._part.unlink(missing_ok=True)

    def append(self, data: bytes) -> None:
        """Write the next bytes."""
        with os.fdopen(os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as file:
            file.write(data)

    def digest(self) -> str:
        """Return the sha256 of what there is, before it is complete."""
        digest = hashlib.sha256()
        with contextlib.suppress(FileNotFoundError), self._part.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        return digest.hexdigest()

    def complete(self) -> None:
        """Give the copy its name, and the time of the original."""
        if not self._part.exists():  # an empty file
            self.append(b"")
        os.utime(self._part, (self.modified, self.modified))
        os.replace(self._part, self.to)
        self._part.unlink(missing_ok=True)  # where both are names of one file, `replace` does nothing
