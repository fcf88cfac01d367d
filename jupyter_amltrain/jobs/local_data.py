"""Data of this machine that is sent to another one: its files, and their digest. Blocks on the disk; any thread."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from jupyter_amltrain.errors import SubmitError
from jupyter_amltrain.jobs.file_hash import hash_file
from jupyter_amltrain.jobs.snapshot import data_files

#: Maximum number of files; a data set of more small files is better packed.
MAX_FILES = 500_000


class LocalFile(NamedTuple):
    """A file to send: its path, size, and digest."""

    path: str
    size: int
    sha256: bytes


class LocalData(NamedTuple):
    """A file or folder of this machine.

    Attributes
    ----------
    name
        Its own name, which it keeps.
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


def read_data(path: str, on_block: Callable[[int, int], None] = lambda size, total: None) -> LocalData:
    """Return the content of a file or folder; files that have not changed are not read again.

    Parameters
    ----------
    on_block
        Called with the bytes of each block that is read, 0 before each file, and those of all files; it may raise.

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
    total = sum(_size(file) for file in names.values())
    for name in sorted(names):
        on_block(0, total)
        try:
            found = hash_file(names[name], on_block=lambda size: on_block(size, total))
            whole.update(name.encode() + b"\0" + found.sha256)
        except UnicodeEncodeError:
            raise SubmitError(
                f"Cannot upload {path}: the file name {name!r} is not UTF-8.", hint="Rename it."
            ) from None
        except OSError as error:
            raise unreadable(names[name], error) from error
        files[name] = LocalFile(names[name], found.size, found.sha256)
    return LocalData(data_name(path), is_folder, files, whole.hexdigest())


def data_name(path: str) -> str:
    """Return the name that a file or folder keeps elsewhere."""
    return Path(path).name or "data"


def unreadable(path: str, error: OSError) -> SubmitError:
    """Return the error for a file that cannot be read."""
    return SubmitError(
        f"Cannot read {path}: {error.strerror or error}.",
        hint="Make the file readable, or exclude it in .amlignore of the folder.",
        code="data.unreadable",
    )


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:  # reported when it is read
        return 0
