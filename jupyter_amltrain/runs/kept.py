"""Cache of the streams of ended runs: of those with viewers, and of the few that were read last."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from jupyter_amltrain.runs.row import brief_of
from jupyter_amltrain.runs.store import Entry, RunStore
from jupyter_amltrain.spec.run import RunHandle

#: Ended runs whose streams are kept although nobody looks: one of 64 GPUs has some 11 MB.
KEPT = 16


class KeptStreams:
    """Releases streams that can be read again from the target. Loop thread only.

    Parameters
    ----------
    most
        Ended runs whose streams are kept.
    """

    def __init__(self, store: RunStore, most: int = KEPT) -> None:
        self._store, self._most = store, most
        self._read: dict[RunHandle, None] = {}  #: the one that was read last is the last

    @contextmanager
    def reading(self, handle: RunHandle) -> Iterator[None]:
        """The streams of a run are being read: they are not let go of meanwhile, and others may be after it."""
        entry = self._store.get(handle)
        if entry is not None:
            entry.lookers += 1
        try:
            yield
        finally:
            if entry is not None:
                entry.lookers -= 1
                self.read(handle)

    def read(self, handle: RunHandle) -> None:
        """The streams of a run were read."""
        self._read.pop(handle, None)
        self._read[handle] = None
        for handle in list(self._read)[: max(0, len(self._read) - self._most)]:
            entry = self._store.get(handle)
            if entry is None:
                del self._read[handle]
            elif entry.run.status.state.terminal and not entry.lookers and not entry.telemetry.heard:
                del self._read[handle]
                release(entry)


def release(entry: Entry) -> None:
    """Forget the streams of an entry; its row goes on saying what they said."""
    if entry.read:
        entry.brief = brief_of(entry)
    entry.release()
