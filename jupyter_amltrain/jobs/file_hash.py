"""Digests of files. A file that has not changed is not read again."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

#: Maximum number of files whose digests are kept.
MAX_FILES = 50_000
#: A file that changed within this time may change again without another time stamp (seconds).
_SETTLED_S = 2.0


class FileHash(NamedTuple):
    """Content of a file: its size in bytes, whether it is executable, and its sha256."""

    size: int
    executable: bool
    sha256: bytes


#: Device, inode, size, modification and status change time in ns, mode.
_Key = tuple[int, int, int, int, int, int]

_lock = threading.Lock()
_known: OrderedDict[str, tuple[_Key, FileHash]] = OrderedDict()


def hash_file(
    path: str, facts: os.stat_result | None = None, on_block: Callable[[int], object] | None = None
) -> FileHash:
    """Return the hash of a regular file. Blocks on the disk; any thread.

    Parameters
    ----------
    facts
        What ``os.stat`` has just returned for it.
    on_block
        Called with the size of each block that is read; it may raise.

    Raises
    ------
    OSError
        It does not exist, is not a regular file, or cannot be read.
    """
    facts = facts or os.stat(path)
    key = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_mode)
    known = _known.get(path)  # one operation: only changes need the lock
    if known is not None and known[0] == key:
        return known[1]
    digest, size = hashlib.sha256(), 0
    with open(path, "rb", buffering=0, opener=_open_regular) as file:
        executable = bool(os.fstat(file.fileno()).st_mode & stat.S_IXUSR)
        while block := file.read(1 << 20):
            digest.update(block)
            size += len(block)
            if on_block is not None:
                on_block(len(block))
    found = FileHash(size, executable, digest.digest())
    is_settled = max(facts.st_mtime, facts.st_ctime) < time.time() - _SETTLED_S
    with _lock:
        _known.pop(path, None)
        if is_settled and size == facts.st_size:
            _known[path] = key, found
            if len(_known) > MAX_FILES:
                _known.popitem(last=False)
    return found


def _open_regular(path: str, flags: int) -> int:
    """Opener that does not block on a file that was replaced by a pipe."""
    handle = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "Not a regular file", path)
    return handle
