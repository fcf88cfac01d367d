"""Progress of a transfer of files between this machine and another one, the size of its parts, and its resumption."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from jupyter_amltrain.errors import TargetUnreachable
from jupyter_amltrain.text import bytes_text, seconds_text

T = TypeVar("T")

#: Seconds after which a transfer is worth a message.
NOTICE_S = 1.0
#: Bytes of a part: the first, the smallest, the largest; seconds that one should take.
FIRST_PART_BYTES, MIN_PART_BYTES, MAX_PART_BYTES, PART_S = 256 << 10, 32 << 10, 4 << 20, 0.4
#: Files of a part at most.
MAX_PACK_FILES = 1000
#: Bytes by which the files of a part may have grown since they were listed.
GROWTH_BYTES = 1 << 20
#: Seconds for which a transfer waits for a machine that does not answer any more, and between two attempts.
RESUME_S, _PAUSE_S = 60.0, 1.0
#: Bytes that take about as long as the other work for a file, for the time that is left.
_FILE_BYTES = 16 << 10


class Transfer:
    """A transfer of a known number of bytes.

    Parameters
    ----------
    verb
        Participle for its message, e.g. ``sending``.
    total
        Bytes.
    done
        Bytes that were there at the beginning.
    files
        Number of files; 0 if the message does not count them.

    Attributes
    ----------
    is_lost
        The machine does not answer, and the transfer tries again.
    """

    def __init__(self, verb: str, total: int, done: int = 0, files: int = 0) -> None:
        self._verb, self.total, self.done, self._first = verb, total, done, done
        self.files, self.done_files, self._first_files = files, 0, 0
        self.is_lost = False
        self._begun = time.monotonic()

    def advance(self, count: int, files: int = 0) -> None:
        """Count further bytes, and files that are complete."""
        self.done += count
        self.done_files += files

    def skip(self, count: int, files: int = 0) -> None:
        """Count bytes and files that need no transfer."""
        self.advance(count, files)
        self._first += count
        self._first_files += files

    @property
    def text(self) -> str:
        """Progress, rate and time left, e.g. ``sending 12 MiB of 300 MiB, 3 MiB/s, 96 s left``; empty for a second."""
        elapsed = time.monotonic() - self._begun
        if elapsed < NOTICE_S:
            return ""
        size = f"{bytes_text(self.done)} of {bytes_text(self.total)}"
        parts = [f"{self._verb} {self.done_files:,} of {self.files:,} files", size] if self.files else []
        parts = parts or [f"{self._verb} {size}"]
        if self.is_lost:
            return ", ".join([*parts, "connection lost, trying again"])
        rate = (self.done - self._first) / elapsed
        if rate > 0:
            done = self.done - self._first + _FILE_BYTES * (self.done_files - self._first_files)
            left = self.total - self.done + _FILE_BYTES * (self.files - self.done_files)
            parts += [f"{bytes_text(rate)}/s", f"{seconds_text(max(0.0, left) * elapsed / done)} left"]
        return ", ".join(parts)


class PartSize:
    """Size of the next part of a transfer: small on a slow link, so that other requests need not wait long."""

    def __init__(self) -> None:
        self.bytes = FIRST_PART_BYTES

    def took(self, size: int, seconds: float) -> None:
        """Note how long a part took."""
        if size >= MIN_PART_BYTES:
            fitting = size * PART_S / max(seconds, 1e-3)
            self.bytes = int(max(MIN_PART_BYTES, min(MAX_PART_BYTES, 2 * self.bytes, fitting)))


def pack_length(sizes: Sequence[int], limit: int) -> int:
    """Return how many of the first files one part takes: together `limit` bytes, or the first one alone."""
    total = 0
    for number, size in enumerate(sizes[:MAX_PACK_FILES]):
        total += size
        if number and total > limit:
            return number
    return min(len(sizes), MAX_PACK_FILES)


async def resumed(read: Callable[[], Awaitable[T]], transfer: Transfer) -> T:
    """Return what `read` returns; a machine that does not answer gets further requests for :data:`RESUME_S`.

    Raises
    ------
    TargetUnreachable
        It has not answered for so long.
    """
    begin = time.monotonic()
    try:
        while True:
            try:
                return await read()
            except TargetUnreachable:
                transfer.is_lost = True
                if time.monotonic() - begin > RESUME_S:
                    raise
            await asyncio.sleep(_PAUSE_S)
    finally:
        transfer.is_lost = False
