"""Growing files that are read on where the last reading ended, without a thread for it (Linux).

What was just written lies in the page cache, and there is a call that reads from it and
nowhere else. So news of a file cost the loop microseconds, where a thread would have to
get the interpreter's lock back twice while a cell keeps it.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict

from jupyter_amltrain.agent.protocol import open_regular

#: Open files, at most.
MOST = 64
#: Bytes that are read at once; more than that is work for a thread.
PIECE = 1 << 16

_NOWAIT = getattr(os, "RWF_NOWAIT", None)


class Tails:
    """Descriptors of files of which somebody has read the beginning. For one thread."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, int] = OrderedDict()
        self._able = _NOWAIT is not None

    def read(self, path: str, offset: int, limit: int) -> bytes | None:
        """What :func:`read` would give, or ``None`` when only a thread may find out."""
        fd = self._open.get(path)
        # From its beginning one also reads what is replaced, not appended to.
        if fd is None or _NOWAIT is None or offset == 0:
            return None
        piece = bytearray(min(limit, PIECE))
        try:
            count = os.preadv(fd, [piece], offset, _NOWAIT)
            # At its end: another file may have its name now. Who reads some bytes again never gets none.
            if count < PIECE and os.fstat(fd).st_nlink == 0:
                self._forget(path)
        except OSError as error:
            if error.errno != errno.EAGAIN:
                self._able = self._able and error.errno != errno.EOPNOTSUPP
                self._forget(path)
            return None
        return None if count == PIECE else bytes(piece[:count])

    def wants(self, path: str, offset: int) -> bool:
        """Whether a descriptor of `path` would be kept after reading from `offset`."""
        return self._able and offset > 0 and path not in self._open

    def keep(self, path: str, fd: int) -> None:
        """Take over a descriptor."""
        if path in self._open:
            os.close(fd)
            return
        self.sweep()
        self._open[path] = fd
        if len(self._open) > MOST:
            self._forget(next(iter(self._open)))

    def sweep(self) -> None:
        """Let go of files that were deleted: as long as they are open, they keep their disk."""
        for path, fd in list(self._open.items()):
            if os.fstat(fd).st_nlink == 0:
                self._forget(path)

    def _forget(self, path: str) -> None:
        os.close(self._open.pop(path))

    def close(self) -> None:
        """Close all."""
        for path in list(self._open):
            self._forget(path)


def read(path: str, offset: int, limit: int, keep: bool) -> tuple[bytes, int]:
    """Up to `limit` bytes from `offset`, and the open descriptor if it shall be kept, else -1.

    Raises
    ------
    OSError
        The file is not there or no regular one, or cannot be read.
    """
    fd = open_regular(path)
    try:
        os.lseek(fd, offset, os.SEEK_SET)
        parts = []
        while limit > 0 and (part := os.read(fd, limit)):
            parts.append(part)
            limit -= len(part)
    except BaseException:
        os.close(fd)
        raise
    if not keep:
        os.close(fd)
        fd = -1
    return b"".join(parts), fd
