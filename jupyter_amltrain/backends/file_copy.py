"""Copy of one file in parts: an interrupted copy continues where it ended. Blocks on the disk; any thread."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

#: Bytes of a name from which on its digest stands for it in the name of a part: file systems allow 255.
_LONG_NAME_BYTES = 180


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

    def __init__(self, to: str | Path, size: int, modified: float, *, grows: bool = False) -> None:
        self.path, self.size, self.modified, self._grows = os.fspath(to), size, modified, grows  # text: there are many

    @property
    def to(self) -> Path:
        """Path of the copy."""
        return Path(self.path)

    @property
    def part_stem(self) -> str:
        """Name of the file in the names of its parts."""
        name = os.path.basename(self.path)
        code = os.fsencode(name)
        return name if len(code) < _LONG_NAME_BYTES else hashlib.sha256(code).hexdigest()

    @property
    def _version(self) -> str:
        return f"{self.size}-{self.modified * 1000:.0f}"

    @property
    def _part(self) -> Path:
        return Path(self._part_path)

    @property
    def _part_path(self) -> str:
        name = f".{self.part_stem}.{self._version}.{os.getpid()}.part"
        return os.path.join(os.path.dirname(self.path), name)

    @property
    def is_current(self) -> bool:
        """Whether the copy is there and has the same size and time."""
        try:
            status = os.stat(self.path)
        except OSError:
            return False
        return status.st_size == self.size and abs(status.st_mtime - self.modified) < 1e-3

    def begin(self) -> int:
        """Return the number of bytes that an interrupted copy of the same version has."""
        self.to.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.adopt()
        if self._part.exists():
            return self._part.stat().st_size
        if self._grows and self.to.is_file() and (known := self.to.stat().st_size) <= self.size:
            with contextlib.suppress(OSError):  # a file system without links
                os.link(self.to, self._part)  # readers of the copy see it grow, as they do on the machine itself
                return known
        return 0

    def adopt(self) -> None:
        """Take over the part of a process that has ended, and delete its parts of other versions."""
        import psutil

        stem = self.part_stem
        for other in self.to.parent.glob(f".{glob.escape(stem)}.*.part"):
            version, _, pid = other.name[len(stem) + 2 : -len(".part")].rpartition(".")
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

    def write(self, data: bytes, modified: float) -> None:
        """Write the whole file as it was at `modified`; an error leaves nothing of it."""
        part = self._part_path
        try:
            handle = _new_file(part)
        except FileNotFoundError:
            self.to.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = _new_file(part)
        except FileExistsError:  # begun alone; it may be a second name of the copy, so that it is not written to
            os.unlink(part)
            handle = _new_file(part)
        self.size, self.modified = len(data), modified
        try:
            try:
                rest = memoryview(data)
                while rest:  # a disk that is almost full takes a part, and refuses the next one
                    rest = rest[os.write(handle, rest) :]
            finally:
                os.close(handle)
            os.utime(part, (modified, modified))
            os.replace(part, self.path)
        except BaseException:  # a full disk, Ctrl-C
            with contextlib.suppress(OSError):
                os.unlink(part)
            raise

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


def _new_file(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


def adopt_parts(copies: Iterable[FileCopy]) -> None:
    """Do what :meth:`FileCopy.adopt` does for many files; each folder is listed once."""
    folders: defaultdict[str, dict[str, FileCopy]] = defaultdict(dict)
    for copy in copies:
        folders[os.path.dirname(copy.path)][copy.part_stem] = copy
    for folder, stems in folders.items():
        try:
            names = os.listdir(folder)
        except OSError:  # not there yet
            continue
        for name in names:
            if name.endswith(".part") and (found := stems.get(name[1:].rsplit(".", 3)[0])) is not None:
                found.adopt()
