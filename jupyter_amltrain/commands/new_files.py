"""New files in a folder of the user: nothing is overwritten, and no half of them is left."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.jobs.file_hash import hash_file
from jupyter_amltrain.text import tilde

#: Maximum number of files that an error names.
MAX_NAMED = 5


class NewFiles(NamedTuple):
    """Names of files that were written, and of those that had the same content before."""

    written: list[str]
    same: list[str]


def write_new(contents: Mapping[str, str | bytes], folder: str, command: str) -> NewFiles:
    """Write files below a folder, which is created if it does not exist.

    Parameters
    ----------
    contents
        By name relative to the folder: the bytes, or the path of a file to copy.
    folder
        Absolute path.
    command
        The command or flag that errors name.

    Raises
    ------
    CommandError
        A file exists with another content (then nothing is written), or the folder cannot be written.
    """
    found = _compared(contents, folder, command)
    try:
        for name in found.written:
            _write(os.path.join(folder, name), contents[name])
    except OSError as error:
        raise CommandError(
            f"{command}: cannot write {tilde(error.filename or folder)}: {error.strerror or error}.",
            hint="Choose another folder.",
            code="files.write",
            field="folder",
        ) from error
    return found


def _compared(contents: Mapping[str, str | bytes], folder: str, command: str) -> NewFiles:
    """Return what is to be written; raise for a file with another content, or behind a link out of the folder."""
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise CommandError(
            f"{command}: {tilde(folder)} is not a folder.",
            hint="Choose another one.",
            code="files.exists",
            field="folder",
        )
    root, other = os.path.realpath(folder), list[str]()
    found = NewFiles([], [])
    for name in sorted(contents):
        path = os.path.join(folder, name)
        parent = os.path.realpath(os.path.dirname(path))
        if parent != root and not parent.startswith(root.rstrip(os.sep) + os.sep):
            other.append(name)
        elif not os.path.lexists(path):
            found.written.append(name)
        elif os.path.isfile(path) and not os.path.islink(path) and _sha256(path) == _sha256(contents[name]):
            found.same.append(name)
        else:
            other.append(name)
    if other:
        named = ", ".join(other[:MAX_NAMED]) + (f" and {len(other) - MAX_NAMED} more" if len(other) > MAX_NAMED else "")
        raise CommandError(
            f"{command}: {tilde(folder)} has other files of these names: {named}. Nothing was written.",
            hint="Choose another place, or move them away.",
            code="files.exists",
            field="folder",
        )
    return found


def _sha256(content: str | bytes) -> bytes:
    return hashlib.sha256(content).digest() if isinstance(content, bytes) else hash_file(content).sha256


def _write(path: str, content: str | bytes) -> None:
    """Write a file, executable if its original is; an interrupted call leaves no half of it."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    part = f"{path}.{os.getpid()}.part"
    try:
        if isinstance(content, bytes):
            Path(part).write_bytes(content)
        else:
            shutil.copyfile(content, part)
            if os.stat(content).st_mode & 0o100:
                os.chmod(part, os.stat(part).st_mode | 0o111)
        os.replace(part, path)
    finally:
        if os.path.lexists(part):
            os.unlink(part)
