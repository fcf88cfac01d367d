"""Unpacks code archives: the service would upload a large tree file by file.

``.amltrain/manifest.json``: ``{"schema": 1, "digest", "packs": [name], "removed": [path]}``. The packs are
in the same folder (``base-<digest>.tar.gz``, ``edit-<digest>.tar.gz``); a later pack overrides an earlier one, and
files that were removed since the first are left out. A manifest does not list its files: it is sent again with
every edit. All processes of a node share the folder, so one of them unpacks.
"""

from __future__ import annotations

import errno
import os
import shutil
import tarfile
from typing import Any, FrozenSet, Mapping, Optional

from ..protocol import AgentError, read_json
from .job import BadJob, private_folder, temporary_folders

HIDDEN = ".amltrain"
_MANIFEST, _DONE = "manifest.json", "unpacked"
#: Folders that a copy of the code folder leaves out.
_LEFT = ("logs", "outputs")


def unpack(code: str, run: str) -> str:
    """Complete the code folder; return the complete folder (a copy if the code folder is read-only).

    Raises
    ------
    BadJob
        The code is damaged, or no folder is writable.
    """
    hidden = os.path.join(code, HIDDEN)
    try:
        manifest = read_json(os.path.join(hidden, _MANIFEST), "Code folder")
    except (OSError, AgentError) as error:
        raise BadJob("cannot read the list of packed code files: %s" % error) from error
    if manifest is None or not manifest.get("packs"):
        return code
    try:
        _fill(code, hidden, manifest)
        return code
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise BadJob("cannot unpack the code: %s" % (error.strerror or error)) from error
        last_error: OSError = error
    for base in temporary_folders():
        try:
            copy = os.path.join(private_folder(base, run), "code-%s" % manifest.get("digest", ""))
            os.makedirs(os.path.join(copy, HIDDEN), mode=0o700, exist_ok=True)
            _fill(copy, hidden, manifest, code)
            return copy
        except OSError as error:
            last_error = error
    raise BadJob("cannot unpack the code: %s" % (last_error.strerror or last_error))


def _fill(folder: str, hidden: str, manifest: Mapping[str, Any], code: str = "") -> None:
    """Unpack into `folder`, over a copy of `code`, unless another process of this node has done so."""
    done = os.path.join(folder, HIDDEN, _DONE)
    digest = str(manifest.get("digest") or "")
    with _NodeLock(os.path.join(folder, HIDDEN)):
        if _text(done) == digest:
            return
        if code:
            _copy(code, folder)
        removed = frozenset(manifest.get("removed") or ())
        for name in manifest["packs"]:
            _extract(os.path.join(hidden, os.path.basename(name)), folder, removed)
        _write(done, digest.encode(), 0o600)


def _extract(pack: str, folder: str, removed: FrozenSet[str]) -> None:
    try:
        with tarfile.open(pack, "r:gz") as archive:
            for member in archive:
                name = os.path.normpath(member.name)
                if name in removed or not member.isfile() or name.startswith(("..", "/")):
                    continue
                source = archive.extractfile(member)
                data = source.read() if source is not None else b""
                _write(os.path.join(folder, name), data, 0o755 if member.mode & 0o100 else 0o644)
    except FileNotFoundError as error:
        raise BadJob("the code lacks %s. Submit the job again." % os.path.basename(pack)) from error
    except (tarfile.TarError, EOFError) as error:
        raise BadJob("%s is damaged: %s. Submit the job again." % (os.path.basename(pack), error)) from error


def _write(path: str, data: bytes, mode: int) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = "%s.%d.tmp" % (path, os.getpid())
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    os.replace(temporary, path)


def _copy(code: str, copy: str) -> None:
    for name in os.listdir(code):
        source, target = os.path.join(code, name), os.path.join(copy, name)
        if name in _LEFT or name == HIDDEN or os.path.exists(target):
            continue
        if os.path.isdir(source):
            shutil.copytree(source, target, symlinks=True)
        else:
            shutil.copy2(source, target)


def _text(path: str) -> Optional[str]:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return None


class _NodeLock:
    """A lock among the processes of a node; on a disk without locks, each process does the same work."""

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, "turn")
        self.handle: Optional[int] = None

    def __enter__(self) -> None:
        import fcntl

        self.handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self.handle, fcntl.LOCK_EX)
        except OSError:  # a mount without locks: processes may unpack twice
            pass

    def __exit__(self, *what: Any) -> None:
        if self.handle is not None:
            os.close(self.handle)
