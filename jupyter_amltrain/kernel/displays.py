"""Displayed values of runs: reads the files that the marks in a log name. Loop thread only."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable

from jupyter_amltrain.agent.protocol import DISPLAYS
from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.kernel.display_forms import MAX_FILE_BYTES, Forms, forms_of
from jupyter_amltrain.kernel.run_displays import MAX_SHOWN, MAX_TRIES, RunDisplays
from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.run import RunHandle

log = logging.getLogger(__name__)

#: Seconds between two readings of one run's displays.
READ_INTERVAL_S = 0.4
#: Seconds that a reader waits for the displays of a run.
WAIT_TIMEOUT_S = 10.0
_NAME = re.compile(r"(\d{1,9})\.json")


class DisplayReader:
    """Reads the displays that a record shows, in the background.

    Parameters
    ----------
    backend
        Returns the live backend of a target.
    on_change
        Called with the handle of a run whose displays have changed.
    """

    def __init__(
        self, loop: LoopThread, backend: Callable[[str], Backend], on_change: Callable[[RunHandle], None]
    ) -> None:
        self._loop, self._backend, self._on_change = loop, backend, on_change

    def request(self, entry: Entry) -> None:
        """Read soon what the log names and is not known yet."""
        if not self._missing(entry) and not self._must_list(entry):
            return
        displays = entry.displays
        displays.wanted = True
        if displays.task is None or displays.task.done():
            displays.task = self._loop.start(self._follow(entry, displays), f"displays of {entry.handle}")

    async def complete(self, entry: Entry, timeout: float = WAIT_TIMEOUT_S, *, has_ended: bool = False) -> None:
        """Wait until the displays of a run are known.

        Parameters
        ----------
        has_ended
            The run has just ended: its files are complete now.
        """
        if has_ended:
            entry.displays.tries.clear()
        if not entry.run.folder or entry.kind != "run" or not (self._missing(entry) or self._must_list(entry)):
            return
        update = self._loop.start(self._update(entry, entry.displays), f"displays of {entry.handle}")
        if not (await asyncio.wait({update}, timeout=timeout))[0]:
            update.add_done_callback(lambda task: self._notify(entry, entry.displays))

    async def read(self, entry: Entry, number: int) -> Forms | None:
        """Return a display with all its forms; ``None`` if it is not one of the run's."""
        if number not in entry.displays.forms:  # the streams of an ended run were released meanwhile
            await self.complete(entry)
        if number not in entry.displays.forms:
            return None
        data = await self._backend(entry.run.target).files.read(entry.run_id, _path(number), MAX_FILE_BYTES)
        return await self._loop.offload(lambda: forms_of(data, for_record=False))

    async def _follow(self, entry: Entry, displays: RunDisplays) -> None:
        while displays.wanted:
            displays.wanted = False
            if await self._update(entry, displays):
                self._notify(entry, displays)
            await asyncio.sleep(READ_INTERVAL_S)

    def _notify(self, entry: Entry, displays: RunDisplays) -> None:
        if entry.has_displays(displays):
            self._on_change(entry.handle)

    def _must_list(self, entry: Entry) -> bool:
        """Whether displays may stand before the known part of the log."""
        places = entry.log.displays
        state = (id(places), places.clears)
        return not entry.log.whole and not places.clears and entry.displays.listed_for != state

    def _missing(self, entry: Entry) -> list[int]:
        """Return the numbers of displays whose newest version is to be read, of those that a record shows."""
        displays, places = entry.displays, entry.log.displays.places
        if entry.log.displays.clears:
            displays.listed = ()
        numbers = [*(n for n in displays.listed if n not in places), *places][-MAX_SHOWN:]
        found = []
        for number in numbers:
            version = places[number].version if number in places else 0
            known = displays.forms.get(number)
            if (known is None or known.version < version) and displays.tries.get(number, 0) < MAX_TRIES:
                found.append(number)
        return found

    async def _update(self, entry: Entry, displays: RunDisplays) -> bool:
        """Read now; return whether anything has changed."""
        try:
            async with displays.lock:
                return await self._read_missing(entry, displays)
        except (AmlTrainError, OSError) as error:
            log.info("displays of %s: %s", entry.handle, error)
        except Exception:  # a job can write anything into its folder
            log.warning("displays of %s", entry.handle, exc_info=True)
        return False

    async def _read_missing(self, entry: Entry, displays: RunDisplays) -> bool:
        backend, changed = self._backend(entry.run.target), False
        if self._must_list(entry):
            places = entry.log.displays
            displays.listed_for = id(places), places.clears
            names = [_NAME.fullmatch(file.path) for file in await backend.files.list(entry.run_id, DISPLAYS)]
            displays.listed = tuple(sorted(int(name[1]) for name in names if name))
            changed = bool(displays.listed)
        for number in self._missing(entry):
            data = await backend.files.read(entry.run_id, _path(number), MAX_FILE_BYTES)
            forms = await self._loop.offload(lambda data=data: forms_of(data)) if data else None
            if forms is None:
                displays.tries[number] = displays.tries.get(number, 0) + 1
                continue
            displays.forms[number], changed = forms, True
        known = {*displays.listed, *entry.log.displays.places}
        displays.forms = {number: forms for number, forms in displays.forms.items() if number in known}
        return changed


def _path(number: int) -> str:
    return f"{DISPLAYS}/{number}.json"
