"""Reads the files that records show, in the background: displayed values, pictures, further parts. Loop thread only."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.kernel.display_forms import Forms
from jupyter_amltrain.kernel.displays import DisplayFiles
from jupyter_amltrain.kernel.pictures import PictureFiles
from jupyter_amltrain.kernel.record_parts import PARTS, PartFiles
from jupyter_amltrain.kernel.shown_files import FileReading
from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.run import RunHandle

log = logging.getLogger(__name__)

#: Seconds that a reader waits for the files of a run.
WAIT_TIMEOUT_S = 10.0


class KnownFiles(Protocol):
    """What is known of one kind of files of one run."""

    @property
    def reading(self) -> FileReading:
        """State of their reading."""


class ShownKind(Protocol):
    """One kind of files that a record shows."""

    name: str
    interval_s: float  #: between two readings of one run's files

    def of(self, entry: Entry) -> KnownFiles:
        """Return what is known of a run's files."""

    def is_known(self, entry: Entry, *, has_ended: bool) -> bool:
        """Whether a reading would find nothing new."""

    async def read(self, entry: Entry, backend: Backend, *, has_ended: bool) -> bool:
        """Read now; return whether anything has changed."""


class ShownFilesReader:
    """Reads the files that records show.

    Parameters
    ----------
    backend
        Returns the live backend of a target.
    on_change
        Called with the handle of a run whose files have changed.
    """

    def __init__(
        self, loop: LoopThread, backend: Callable[[str], Backend], on_change: Callable[[RunHandle], None]
    ) -> None:
        self._loop, self._backend, self._on_change = loop, backend, on_change
        self._displays = DisplayFiles(loop)
        self._kinds: tuple[ShownKind, ...] = (self._displays, PictureFiles(loop), *map(PartFiles, PARTS))

    def request(self, entry: Entry, *, only_displays: bool = False) -> None:
        """Read soon; a run that changes all the time is read at intervals."""
        for kind in self._kinds[:1] if only_displays else self._kinds:
            if kind.is_known(entry, has_ended=False):
                continue
            reading = kind.of(entry).reading
            reading.wanted = True
            if reading.task is None or reading.task.done():
                reading.task = self._loop.start(self._follow(kind, entry), f"{kind.name} of {entry.handle}")

    async def complete(self, entry: Entry, timeout: float = WAIT_TIMEOUT_S, *, has_ended: bool = False) -> None:
        """Wait until the files of a run are known; what is not known in time comes later.

        Parameters
        ----------
        has_ended
            The run has just ended, and its entry does not say so yet: its files are complete now.
        """
        if not entry.run.folder or entry.kind != "run":
            return
        if has_ended:
            entry.displays.tries.clear()
        has_ended = has_ended or entry.run.status.state.terminal
        for kind in self._kinds:
            if not kind.is_known(entry, has_ended=has_ended):
                await self._complete(kind, entry, timeout, has_ended)

    async def read_display(self, entry: Entry, number: int) -> Forms | None:
        """Return a display with all its forms; ``None`` if it is not one of the run's."""
        if number not in entry.displays.forms:  # the streams of an ended run were released meanwhile
            await self.complete(entry)
        if number not in entry.displays.forms:
            return None
        return await self._displays.read_whole(self._backend(entry.run.target), entry.run_id, number)

    async def _complete(self, kind: ShownKind, entry: Entry, timeout: float, has_ended: bool) -> None:
        files = kind.of(entry)
        update = self._loop.start(self._update(kind, entry, has_ended), f"{kind.name} of {entry.handle}")
        if not (await asyncio.wait({update}, timeout=timeout))[0]:
            update.add_done_callback(lambda task: self._notify(entry, files))

    async def _follow(self, kind: ShownKind, entry: Entry) -> None:
        files = kind.of(entry)
        while files.reading.wanted:
            await asyncio.sleep(max(0.0, files.reading.due - time.monotonic()))
            files.reading.wanted = False
            if await self._update(kind, entry, entry.run.status.state.terminal):
                self._notify(entry, files)

    def _notify(self, entry: Entry, files: KnownFiles) -> None:
        if entry.shows(files):
            self._on_change(entry.handle)

    async def _update(self, kind: ShownKind, entry: Entry, has_ended: bool) -> bool:
        """Read now; return whether anything has changed."""
        reading = kind.of(entry).reading
        try:
            async with reading.lock:
                backend = self._backend(entry.run.target)
                try:
                    return await kind.read(entry, backend, has_ended=has_ended)
                finally:
                    reading.due = time.monotonic() + kind.interval_s
        except (AmlTrainError, OSError) as error:
            log.info("%s of %s: %s", kind.name, entry.handle, error)
        except Exception:  # a job can write anything into its folder
            log.warning("%s of %s", kind.name, entry.handle, exc_info=True)
        return False
