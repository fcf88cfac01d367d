"""Whose streams are read because pages look: what they follow, live runs in view, details of past ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.panel.page import Page
from jupyter_amltrain.runs.row import Brief
from jupyter_amltrain.runs.store import RunStore
from jupyter_amltrain.spec.run import Run, RunHandle

log = logging.getLogger(__name__)

#: Live runs that are read because a panel shows them: the newest.
LIVE = 16
#: Handles of a request whose details are read; details that are kept.
DETAILS, BRIEFS = 30, 2000


class Sources(Protocol):
    """As much of a controller as is needed here."""

    store: RunStore

    @property
    def loop(self) -> LoopThread:
        """The loop."""

    def look(self, handle: RunHandle, more: int) -> None:
        """Count a looker of a run in (1) or out (-1)."""

    async def brief(self, handle: RunHandle) -> Brief:
        """What the streams of an ended run say, read without keeping them."""


class Looks:
    """Lookers of live runs. Runs on the loop.

    Parameters
    ----------
    pages
        Gives the pages as they are now.
    """

    def __init__(self, sources: Sources, pages: Callable[[], Iterable[Page]]) -> None:
        self._sources, self._pages = sources, pages
        self._looked: set[str] = set()
        self._live: set[str] = set()
        self._due = False

    def told(self, run: Run) -> None:
        """The store has something new of a run."""
        live = not run.status.state.terminal
        if live != (run.handle in self._live):
            (self._live.add if live else self._live.discard)(run.handle)
            if not self._due:
                self._due = True
                asyncio.get_running_loop().call_soon(self.update)

    def gone(self, handle: str) -> None:
        """A run was removed."""
        self._live.discard(handle)
        self._looked.discard(handle)

    def update(self) -> None:
        """Look at what pages follow, and at the newest live runs while a panel is seen."""
        self._due = False
        store, pages = self._sources.store, list(self._pages())
        wanted = {handle for page in pages if page.wants.shown for handle in page.wants.looks}
        if any(page.seen for page in pages):
            live = [entry.run for entry in store.live() if entry.run.handle in self._live]
            live.sort(key=lambda run: run.created)
            wanted |= {run.handle for run in live[-LIVE:]}
        wanted = {handle for handle in wanted if store.get(RunHandle(handle)) is not None}
        for handle in wanted - self._looked:
            self._sources.look(RunHandle(handle), 1)
        for handle in self._looked - wanted:
            if store.get(RunHandle(handle)) is not None:
                self._sources.look(RunHandle(handle), -1)
        self._looked = wanted


class Details:
    """What the streams of past runs say, read one after the other when somebody looks at their rows.

    Parameters
    ----------
    told
        Called with the handle of every run whose details were read.
    """

    def __init__(self, sources: Sources, told: Callable[[str], None]) -> None:
        self._sources, self._told = sources, told
        self._known: dict[str, Brief] = {}
        self._wanted: dict[str, None] = {}
        self._task: asyncio.Task[None] | None = None

    def of(self, handle: str) -> Brief | None:
        """The details of a run, as far as they were read."""
        return self._known.get(handle)

    def want(self, handles: Iterable[str]) -> None:
        """Read the details of ended runs; those that were asked for last come first."""
        for handle in list(handles)[:DETAILS]:
            entry = self._sources.store.get(RunHandle(handle))
            ended = entry is not None and entry.run.status.state.terminal
            told = entry is None or entry.read or entry.brief is not None or handle in self._known
            if ended and not told:
                self._wanted.pop(handle, None)
                self._wanted[handle] = None
        for old in list(self._wanted)[: -2 * DETAILS]:
            del self._wanted[old]
        if self._wanted and (self._task is None or self._task.done()):
            self._task = self._sources.loop.start(self._read(), "details for the panel")

    async def _read(self) -> None:
        while self._wanted:
            handle, _ = self._wanted.popitem()
            try:
                self._known[handle] = await self._sources.brief(RunHandle(handle))
            except (AmlTrainError, OSError) as error:
                log.info("%s", error)
                self._known[handle] = Brief()  # it cannot be read: asking again would find the same
            for old in list(self._known)[:-BRIEFS]:
                del self._known[old]
            self._told(handle)

    def forget(self, handle: str) -> None:
        """A run was removed."""
        self._known.pop(handle, None)
        self._wanted.pop(handle, None)

    def close(self) -> None:
        """Read no more."""
        self._wanted.clear()
        if self._task is not None:
            self._task.cancel()
