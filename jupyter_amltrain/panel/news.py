"""Changes by others: another kernel's runs, another kernel's targets, the command line's.

The state root's folders tell of them (inotify); where the system cannot, and for network
folders that another machine writes to, the times of change are looked at every 2 s, and only
while a panel is seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from typing import Protocol

from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.runs.pace import Pace
from jupyter_amltrain.state import StateRoot
from jupyter_amltrain.targets import LOCAL
from jupyter_amltrain.transports.inotify import FolderChanges

#: Seconds between looks, and between questions to targets whose folders are not here.
LOOK, FAR = 2.0, 30.0
#: Listings a second while other kernels submit without end.
_RATE, _BURST = 2.0, 4
#: Seconds after which a folder that has come is listed again.
_AFTER = (0.5, 3.0)
#: News of everything in a row, with nothing new, that make us take the time of change alone.
_DULL = 8


class Sources(Protocol):
    """As much of a controller as is needed here."""

    root: StateRoot

    @property
    def loop(self) -> LoopThread:
        """The loop."""

    async def refresh(self, target: str | None = None) -> None:
        """Take in the runs of a target, or of all."""


class News:
    """See the module's docstring.

    Parameters
    ----------
    seen
        Whether a panel is seen.
    retarget
        Called when targets or workspaces may have changed.
    """

    def __init__(self, sources: Sources, seen: Callable[[], bool], retarget: Callable[[], None]) -> None:
        self._sources, self._seen, self._retarget = sources, seen, retarget
        self._runs = str(sources.root.runs)
        self._home = str(sources.root.path)
        self._lists = (str(sources.root.targets), str(sources.root.workspaces))
        self._pace = Pace(_RATE, _BURST)

    async def run(self) -> None:
        """Take in what is new until cancelled."""
        changes = FolderChanges()
        times, asked, dull = await self._times(), time.monotonic(), 0
        later: list[float] = []  # monotonic seconds of listings that are due
        try:
            while True:
                now = time.monotonic()
                pause = max(0.0, min([LOOK, *(due - now for due in later)]))
                if dull < _DULL:
                    found = await changes.wait((self._runs, self._home), pause)
                else:  # nobody tells us: it always says that there may be news
                    await asyncio.sleep(pause)
                    found = ()
                due = [at for at in later if at <= time.monotonic()]
                later = [at for at in later if at not in due]
                if not found and not due and not self._seen():
                    continue
                if wait := self._pace.wait():
                    await asyncio.sleep(wait)
                    self._pace.wait()
                before, times = times, await self._times()
                dull = dull + 1 if len(found) == 2 and times == before else 0 if dull < _DULL else dull
                if times[1] != before[1]:
                    self._retarget()
                if times[0] != before[0]:
                    # A folder is there before what tells of its run is.
                    later = [time.monotonic() + after for after in _AFTER]
                if due or times[0] != before[0]:
                    await self._sources.refresh(LOCAL.name)
                if self._seen() and time.monotonic() - asked > FAR:
                    asked = time.monotonic()
                    await self._sources.refresh()
        finally:
            changes.close()

    async def _times(self) -> tuple[int, tuple[int, ...]]:
        """Of the folder of runs, and of the lists of targets and workspaces."""
        runs, *lists = await self._sources.loop.offload(_times, self._runs, *self._lists)
        return runs, tuple(lists)


def _times(*paths: str) -> list[int]:
    found = []
    for path in paths:
        moment = 0
        with contextlib.suppress(OSError):
            moment = os.stat(path).st_mtime_ns
        found.append(moment)
    return found
