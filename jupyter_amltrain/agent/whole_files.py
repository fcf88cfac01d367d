"""Whole small files, as each was at one moment: a download reads many of them at once."""

from __future__ import annotations

import os
from typing import List, NamedTuple, Optional, Sequence

from .protocol import open_regular, read_up_to

#: Reads of a file that changes meanwhile, before it is left out.
_TRIES = 3


class WholeFile(NamedTuple):
    """The content of a file and the time of its last change (Unix seconds)."""

    data: bytes
    modified: float


def read_whole(path: str, limit: int) -> Optional[WholeFile]:
    """Return a regular file; ``None`` if it is absent, unreadable, longer than `limit` bytes, or always changing."""
    try:
        handle = open_regular(path)
    except (OSError, ValueError):
        return None
    try:
        for _ in range(_TRIES):
            before = os.fstat(handle)
            if before.st_size > limit:
                return None
            data = read_up_to(handle, before.st_size + 1)
            after = os.fstat(handle)
            if len(data) == after.st_size and before.st_mtime_ns == after.st_mtime_ns:
                return WholeFile(data, after.st_mtime)
            os.lseek(handle, 0, os.SEEK_SET)
    except OSError:
        return None
    finally:
        os.close(handle)
    return None


def read_all(folder: str, names: Sequence[str], limit: int) -> List[Optional[WholeFile]]:
    """Return files of a folder, together at most `limit` bytes: a file that does not fit is left out as well."""
    found = []
    for name in names:
        file = read_whole(os.path.join(folder, name), limit)
        limit -= 0 if file is None else len(file.data)
        found.append(file)
    return found
