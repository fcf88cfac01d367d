"""Copy of the files of a run on this machine, with progress. Blocks on the disk; any thread."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from io import FileIO
from pathlib import Path

from jupyter_amltrain.agent.file_store import share_blocks
from jupyter_amltrain.agent.protocol import open_regular
from jupyter_amltrain.agent.values import FOLDER
from jupyter_amltrain.backends.transfer import Transfer

_BLOCK = 1 << 20


class CopyStopped(Exception):
    """The copy was stopped."""


class TreeCopy:
    """A copy of files into a new folder, for this user alone; nothing stays of one that fails or is stopped.

    Blocks are shared where the file system can (Btrfs, XFS). A job may write into its copy, so that only the values of
    the notebook are hard links: they are write-protected, and the trials of a sweep have the same large ones.

    Parameters
    ----------
    files
        Path inside the folder (posix) to the bytes, or to the path of a file.
    """

    def __init__(self, files: Mapping[str, bytes | str], folder: Path) -> None:
        self._files, self._folder, self._stopped = dict(files), folder, False
        self.transfer = Transfer("copying", 0)

    def stop(self) -> None:
        """End the copy soon."""
        self._stopped = True

    def run(self) -> None:
        """Copy.

        Raises
        ------
        OSError
            A file cannot be read or written; its name is that of the error.
        CopyStopped
            After :meth:`stop`.
        """
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.transfer.total = sum(map(_size, self._files.values()))
            for name, content in self._files.items():
                for part in reversed(Path(name).parents[:-1]):  # `parents=True` would leave them readable
                    (self._folder / part).mkdir(mode=0o700, exist_ok=True)
                self._write(str(self._folder / name), content)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def _write(self, path: str, content: bytes | str) -> None:
        if isinstance(content, bytes):
            with _created(path, 0o600) as file:
                self._append(file, path, content)
            return
        if Path(path).parent.name == FOLDER and self._link(content, path):
            return
        with os.fdopen(open_regular(content), "rb", buffering=0) as source:
            facts = os.fstat(source.fileno())
            # As in the snapshot's digest. os.access would also depend on mount options, and on being root.
            with _created(path, 0o700 if facts.st_mode & stat.S_IXUSR else 0o600) as file:
                if share_blocks(source.fileno(), file.fileno()):
                    self.transfer.advance(facts.st_size)
                    return
                while block := source.read(_BLOCK):
                    self._append(file, path, block)

    def _link(self, source: str, path: str) -> bool:
        """Whether a file could be linked: not one that others may write, or on another file system."""
        try:
            facts = os.lstat(source)
            if not stat.S_ISREG(facts.st_mode) or facts.st_mode & 0o222:
                return False
            os.link(source, path)
        except OSError:
            return False
        self.transfer.advance(facts.st_size)
        return True

    def _append(self, file: FileIO, path: str, data: bytes) -> None:
        if self._stopped:
            raise CopyStopped
        try:
            at = 0
            while at < len(data):
                at += file.write(memoryview(data)[at:])
        except OSError as error:  # a full disk: the error has no name
            raise OSError(error.errno, error.strerror, path) from None
        self.transfer.advance(len(data))


def _created(path: str, mode: int) -> FileIO:
    return FileIO(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w")


def _size(content: bytes | str) -> int:
    return len(content) if isinstance(content, bytes) else os.stat(content).st_size
