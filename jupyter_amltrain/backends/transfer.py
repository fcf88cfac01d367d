"""Progress of a transfer of files between this machine and another one, and the size of its parts."""

from __future__ import annotations

import time

from jupyter_amltrain.text import bytes_text, seconds_text

#: Seconds after which a transfer is worth a message.
NOTICE_S = 1.0
#: Bytes of a part: the first, the smallest, the largest; seconds that one should take.
FIRST_PART_BYTES, MIN_PART_BYTES, MAX_PART_BYTES, PART_S = 256 << 10, 32 << 10, 4 << 20, 0.4


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
    """

    def __init__(self, verb: str, total: int, done: int = 0) -> None:
        self._verb, self.total, self.done, self._first = verb, total, done, done
        self._begun = time.monotonic()

    def advance(self, count: int) -> None:
        """Count further bytes."""
        self.done += count

    def skip(self, count: int) -> None:
        """Count bytes that need no transfer."""
        self.done += count
        self._first += count

    @property
    def text(self) -> str:
        """Progress, rate and time left, e.g. ``sending 12 MiB of 300 MiB, 3 MiB/s, 96 s left``; empty for a second."""
        elapsed = time.monotonic() - self._begun
        if elapsed < NOTICE_S:
            return ""
        rate = (self.done - self._first) / elapsed
        parts = [f"{self._verb} {bytes_text(self.done)} of {bytes_text(self.total)}"]
        if rate > 0:
            parts += [f"{bytes_text(rate)}/s", f"{seconds_text(max(0.0, self.total - self.done) / rate)} left"]
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
