"""Displayed values of runs: reads the files that the marks in a log name. Loop thread only."""

from __future__ import annotations

import re

from jupyter_amltrain.agent.protocol import DISPLAYS
from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.kernel.display_forms import MAX_FILE_BYTES, Forms, forms_of
from jupyter_amltrain.kernel.shown_files import MAX_DISPLAYS, MAX_TRIES, RunDisplays
from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.loop import LoopThread

_NAME = re.compile(r"(\d{1,9})\.json")


class DisplayFiles:
    """The files of displays; a :class:`~jupyter_amltrain.kernel.shown_reader.ShownKind`."""

    name, interval_s = "displays", 0.4

    def __init__(self, loop: LoopThread) -> None:
        self._loop = loop

    def of(self, entry: Entry) -> RunDisplays:
        """Return what is known of a run's displays."""
        return entry.displays

    def is_known(self, entry: Entry, *, has_ended: bool) -> bool:
        """Whether all that the log names and a record shows is known."""
        return not self._missing(entry) and not self._must_list(entry)

    async def read(self, entry: Entry, backend: Backend, *, has_ended: bool) -> bool:
        """Read what is not known; return whether anything has changed."""
        displays, changed = entry.displays, False
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

    async def read_whole(self, backend: Backend, run_id: str, number: int) -> Forms | None:
        """Return a display with all its forms."""
        data = await backend.files.read(run_id, _path(number), MAX_FILE_BYTES)
        return await self._loop.offload(lambda: forms_of(data, for_record=False))

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
        numbers = [*(n for n in displays.listed if n not in places), *places][-MAX_DISPLAYS:]
        found = []
        for number in numbers:
            version = places[number].version if number in places else 0
            known = displays.forms.get(number)
            if (known is None or known.version < version) and displays.tries.get(number, 0) < MAX_TRIES:
                found.append(number)
        return found


def _path(number: int) -> str:
    return f"{DISPLAYS}/{number}.json"
