"""Journal of a driver: one line of JSON for each event, from which the driver continues after its own end."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from jupyter_amltrain.agent import testing


class JournalEvent(Protocol):
    """A line of a journal: a struct."""

    @property
    def op(self) -> str:
        """What has happened, as the failpoints before and after it name it."""


E = TypeVar("E", bound=JournalEvent)


class Journal(Generic[E]):
    """The journal in a file. A line that was not written whole is dropped when it is opened.

    Parameters
    ----------
    event
        Type of an event.
    name
        First part of the names of failpoints: ``sweep`` for ``sweep_before_ask``.
    passing
        What need not survive a power loss.
    """

    def __init__(self, path: Path, event: type[E], name: str, passing: Collection[str] = ()) -> None:
        self._path, self._name, self._passing = path, name, passing
        self._decoder, self._encoder = msgspec.json.Decoder(event), msgspec.json.Encoder()
        self._fd = -1

    def open(self) -> list[E]:
        """Open it for appending; return what it has. Blocks on the disk."""
        data = self._path.read_bytes() if self._path.exists() else b""
        events: list[E] = []
        size = 0
        for line in data.split(b"\n")[:-1]:
            try:
                events.append(self._decoder.decode(line))
            except msgspec.DecodeError:  # of a full disk, or a power loss: what follows was not written in order
                break
            size += len(line) + 1
        self._fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        if size < len(data):
            os.truncate(self._path, size)
        return events

    def add(self, event: E) -> None:
        """Write one line; it survives the end of this process at any moment, and of the machine unless it may pass."""
        testing.hit(f"{self._name}_before_{event.op}")
        data = self._encoder.encode(event) + b"\n"
        end = os.fstat(self._fd).st_size
        try:
            written = os.write(self._fd, data)
        except OSError:
            written = 0
        if written < len(data):
            os.ftruncate(self._fd, end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        if event.op not in self._passing:
            os.fsync(self._fd)
        testing.hit(f"{self._name}_after_{event.op}")

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
