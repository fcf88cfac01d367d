"""Files of submits by their sha256: a file is sent to this machine once, and each run gets a copy of its own."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import threading
import time
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

from .values import FOLDER as VALUES

Json = Dict[str, Any]
#: Digest of the content, and whether the file is executable.
Row = Tuple[str, bool]

#: ``ioctl`` that makes a file share another file's blocks (linux/fs.h).
_FICLONE = 0x40049409
#: Folder of the state root in which the files are.
BLOBS = "blobs"
#: Folder in it with lists of files, by :func:`manifest_digest`.
_MANIFESTS = "manifests"
#: Folder in it with the spare copy of the tree of the last submit.
_SPARE = "spare"
#: Seconds after the last submit that named it for which a file is kept.
KEEP_S = 30 * 86400.0
#: Lists of files that are kept at least; one of a large tree has a megabyte.
MAX_MANIFESTS = 32
#: Files from which on a spare copy is worth its disk, and bytes up to which it is.
SPARE_FILES, SPARE_BYTES = 200, 512 << 20
#: Seconds after a submit at which the spare copy for the next one is begun: the run starts first.
_SPARE_DELAY_S = 1.0
#: Seconds after which an unfinished upload, or an unfinished or discarded spare copy, belongs to nobody.
_ABANDONED_S = 3600.0


def manifest_digest(rows: Mapping[str, Row]) -> str:
    """Return the sha256 of a list of files: digest of the content, and whether it is executable, by name."""
    whole = hashlib.sha256()
    for name in sorted(rows):
        digest, executable = rows[name]
        whole.update(("%s %d %s\0" % (digest, executable, name)).encode("utf-8", "surrogatepass"))
    return whole.hexdigest()


def prune(folder: str, count: int) -> None:
    """Delete the oldest files of a folder, if it has more than twice as many as are kept."""
    names = os.listdir(folder)
    if len(names) <= 2 * count:
        return
    ages = []
    for name in names:
        try:
            ages.append((os.stat(os.path.join(folder, name)).st_mtime, name))
        except OSError:  # deleted by another server
            continue
    for _, name in sorted(ages, reverse=True)[count:]:
        try:
            os.unlink(os.path.join(folder, name))
        except OSError:
            continue


class FileStore:
    """The folder with the files, the lists of files that name them, and a spare copy of the last tree.

    To copy 10,000 files takes more than a second, to rename a folder takes none. So a copy of the last tree is made
    while nobody waits for it; the next submit takes it and copies only what has changed.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._spare = SpareTree(os.path.join(folder, _SPARE))
        self._present: Set[str] = set()  # digests of files that were seen

    def stage(self, request: Json, data: bytes) -> Json:
        """Make a folder from files by content; files that are sent along are kept for later submits.

        The list of files comes as changes of an earlier one, `base`. The reply has ``base: false`` if that is not
        here, and ``missing`` with the digests of files that are not; in both cases nothing was made.
        """
        self._make()
        at = 0
        for digest, size in request["sent"]:
            _write(self._path(digest), data[at : at + size])
            at += size
        rows = self._rows(request)
        if rows is None:
            return {"base": False, "missing": []}
        missing = sorted({digest for digest, _ in rows.values() if not self._has(digest)})
        if not missing:
            missing = self._copy_tree(rows, os.path.normpath(request["folder"]))
        if not missing:
            self._spare.prepare(request["manifest"], rows, self.folder)
        return {"base": True, "missing": missing}

    def append(self, digest: str, upload: str, offset: int, data: bytes, last: bool) -> None:
        """Append a part of a large file; the last part completes it.

        Each upload has a part of its own, so that two kernels that send one file do not write into each other's.
        """
        self._make()
        path = os.path.join(self.folder, ".part-" + _name(upload))
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if offset == 0 else 0)
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            if os.fstat(file.fileno()).st_size != offset:
                raise ValueError("a part at byte %d of an upload that has other bytes" % offset)
            file.seek(offset)
            file.write(data)
        if last:
            os.replace(path, self._path(digest))

    def sweep(self, now: float) -> None:
        """Delete files of submits that no list of files of the last days names, and those lists that are older."""
        self._make()
        self._spare.sweep(now)
        manifests = os.path.join(self.folder, _MANIFESTS)
        named: Set[str] = set()
        for name in os.listdir(manifests):
            path = os.path.join(manifests, name)
            if now - os.stat(path).st_mtime > KEEP_S:
                os.unlink(path)
                continue
            with open(path, "rb") as file:
                named.update(digest for _, digest, _ in json.loads(file.read().decode()))
        for name in os.listdir(self.folder):
            path = os.path.join(self.folder, name)
            age = now - os.stat(path).st_mtime
            if name not in named and name not in (_MANIFESTS, _SPARE) and age > _kept_s(name):
                os.unlink(path)

    def _make(self) -> None:
        os.makedirs(os.path.join(self.folder, _MANIFESTS), mode=0o700, exist_ok=True)

    def _path(self, digest: Any) -> str:
        return os.path.join(self.folder, _name(digest))

    def _rows(self, request: Json) -> Optional[Dict[str, Row]]:
        """Return digest and mode of each file; ``None`` if the base is not here."""
        rows: Dict[str, Row] = {}
        if request["base"]:
            known = self._listed(request["base"])
            if known is None:
                return None
            rows = known
        for name in request["removed"]:
            rows.pop(name, None)
        rows.update((name, (digest, executable)) for name, digest, executable in request["changed"])
        if manifest_digest(rows) != request["manifest"]:
            return None
        path = os.path.join(self.folder, _MANIFESTS, _name(request["manifest"]))
        if not os.path.exists(path):
            text = json.dumps([[name, digest, mode] for name, (digest, mode) in rows.items()], separators=(",", ":"))
            _write(path, text.encode())
            prune(os.path.dirname(path), MAX_MANIFESTS)
        return rows

    def _listed(self, manifest: str) -> Optional[Dict[str, Row]]:
        """Read a list of files, and keep it for longer; ``None`` if it is not here."""
        path = os.path.join(self.folder, _MANIFESTS, _name(manifest))
        try:
            with open(path, "rb") as file:
                rows = {name: (digest, executable) for name, digest, executable in json.loads(file.read().decode())}
            os.utime(path)
        except (OSError, ValueError):
            return None
        return rows

    def _has(self, digest: str) -> bool:
        if digest not in self._present and os.path.exists(self._path(digest)):
            self._present.add(digest)
        return digest in self._present

    def _copy_tree(self, rows: Mapping[str, Row], folder: str) -> List[str]:
        """Copy files into their folder; return the digests of files that have disappeared meanwhile."""
        self._spare.stop()
        there: Mapping[str, Row] = {}
        for name in self._spare.names():
            spare = self._listed(name) or {}
            same = sum(spare.get(path) == row for path, row in rows.items())
            if 2 * same > len(spare) and self._spare.take(name, folder):
                there = spare
                break
        missing = copy_files(self.folder, rows, there, folder)
        self._present.difference_update(missing)
        return missing


class SpareTree:
    """A copy of the tree of the last submit, which nobody uses yet.

    Its name is the sha256 of its list of files. It appears and disappears by a rename: two servers of one user never
    share a half of it.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._number = 0  #: of the last submit: a tree that is made for an earlier one is not finished

    def names(self) -> List[str]:
        """Return the lists of files that a tree is ready for: one, or none."""
        try:
            return [name for name in os.listdir(self._folder) if not name.startswith(".")]
        except OSError:
            return []

    def take(self, name: str, folder: str) -> bool:
        """Move the tree to where a run needs it."""
        _make_folder(os.path.dirname(folder))
        try:
            os.rename(os.path.join(self._folder, name), folder)
        except OSError:  # taken by another server, or the folder is there
            return False
        return True

    def stop(self) -> int:
        """Do not finish a tree that is being made; return the number of the next one."""
        with self._lock:
            self._number += 1
            return self._number

    def prepare(self, name: str, rows: Mapping[str, Row], blobs: str) -> None:
        """Make a tree for the next submit in a thread of its own."""
        if len(rows) < SPARE_FILES:
            return
        number = self.stop()
        threading.Thread(target=self._make, args=(number, name, dict(rows), blobs), daemon=True).start()

    def _make(self, number: int, name: str, rows: Dict[str, Row], blobs: str) -> None:
        time.sleep(_SPARE_DELAY_S)
        part = os.path.join(self._folder, ".part-%d-%d" % (os.getpid(), number))
        try:
            if number != self._number or _bytes(blobs, rows) > SPARE_BYTES:
                return
            _be_nice()
            _make_folder(part)
            missing = copy_files(blobs, rows, {}, part, lambda: number == self._number)
            with self._lock:
                if number == self._number and not missing:
                    self._discard()
                    os.rename(part, os.path.join(self._folder, name))
        except (OSError, ValueError):  # full disk, or another server made the same one: the next submit copies
            pass
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def _discard(self) -> None:
        for name in self.names():
            gone = os.path.join(self._folder, ".gone-%d-%s" % (os.getpid(), name))
            os.rename(os.path.join(self._folder, name), gone)
            shutil.rmtree(gone, ignore_errors=True)

    def sweep(self, now: float) -> None:
        """Delete what ended servers have left."""
        try:
            names = os.listdir(self._folder)
        except OSError:
            return
        for name in names:
            path = os.path.join(self._folder, name)
            age = now - os.stat(path).st_mtime
            if age > _kept_s(name):
                shutil.rmtree(path, ignore_errors=True)


def copy_files(
    blobs: str, rows: Mapping[str, Row], there: Mapping[str, Row], folder: str, is_wanted: Any = lambda: True
) -> List[str]:
    """Bring a folder that has the files `there` to `rows`; return the digests that the store lacks.

    Stops early when it is no longer wanted.
    """
    for name, row in there.items():
        if rows.get(name) != row:
            _remove(folder, name)
    jobs = []
    for name, row in rows.items():
        path = os.path.normpath(os.path.join(folder, name))
        if not path.startswith(folder + os.sep):
            raise ValueError("a file outside of its folder: %r" % name)
        if there.get(name) != row:
            jobs.append((row[0], path, 0o700 if row[1] else 0o600))
    for parent in sorted({os.path.dirname(path) for _, path, _ in jobs}):
        _make_folder(parent)
    missing = []
    for digest, path, mode in jobs:
        if not is_wanted():
            break
        try:
            _copy(os.path.join(blobs, _name(digest)), path, mode)
        except FileNotFoundError:
            missing.append(digest)
    return missing


def _kept_s(name: str) -> float:
    """Seconds after which a file or tree is deleted; hidden ones are not complete."""
    return _ABANDONED_S if name.startswith(".") else KEEP_S


def _remove(folder: str, name: str) -> None:
    """Remove a file, and the folders that are empty without it."""
    os.unlink(os.path.join(folder, name))
    parent = os.path.dirname(name)
    while parent:
        try:
            os.rmdir(os.path.join(folder, parent))
        except OSError:  # not empty
            return
        parent = os.path.dirname(parent)


def _bytes(blobs: str, rows: Mapping[str, Row]) -> int:
    return sum(os.stat(os.path.join(blobs, _name(digest))).st_size for digest, _ in rows.values())


def _be_nice() -> None:
    """Give this thread a low priority where threads have one (Linux)."""
    if os.uname().sysname == "Linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 15)


def _make_folder(path: str) -> None:
    """Make a folder and its parents, for this user alone; `os.makedirs` leaves the parents readable."""
    if not os.path.isdir(path):
        _make_folder(os.path.dirname(path))
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:  # made by another thread
            pass


def _name(digest: Any) -> str:
    if not isinstance(digest, str) or not digest.isalnum():
        raise ValueError("not a digest: %r" % (digest,))
    return digest


def share_blocks(source: int, target: int) -> bool:
    """Let an empty file share the blocks of another one until either is changed (Btrfs, XFS); False where it cannot.

    Parameters
    ----------
    source, target
        File descriptors.
    """
    if not sys.platform.startswith("linux"):
        return False
    import fcntl

    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def _link(source: str, path: str) -> bool:
    """Whether a value of the notebook could be linked: trials of a sweep have the same large ones."""
    try:
        os.chmod(source, 0o400)
        os.link(source, path)
    except OSError:
        return False
    return True


def _copy(source: str, path: str, mode: int) -> None:
    """Copy a file: no link, unless it is a value, so that a job that changes its code leaves that of later runs."""
    if os.path.basename(os.path.dirname(path)) == VALUES and _link(source, path):
        return
    come = os.open(source, os.O_RDONLY)
    try:
        go = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        try:
            while not share_blocks(come, go):
                part = os.read(come, 1 << 20)
                rest = memoryview(part)
                while rest:  # a disk that is almost full takes a part, and refuses the next one
                    rest = rest[os.write(go, rest) :]
                if len(part) < 1 << 20:
                    break
        finally:
            os.close(go)
    finally:
        os.close(come)


def _write(path: str, data: bytes) -> None:
    part = "%s.%d-%d.part" % (path, os.getpid(), threading.get_ident())
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    os.replace(part, path)
