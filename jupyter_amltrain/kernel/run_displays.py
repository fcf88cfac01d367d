"""``RunDisplays``: displayed values of one run with their forms, as its record shows them. Loop thread only."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from jupyter_amltrain.kernel.display_forms import MAX_WHOLE_CHARS, TEXT, Forms
from jupyter_amltrain.kernel.streams import ShownPlace
from jupyter_amltrain.schema.record import RunDisplay

#: Displays in a record, characters of all their forms, and of these and the thumbnails of pictures.
MAX_SHOWN, MAX_CHARS, MAX_WITH_PICTURES = 12, 40_000, 48_000
#: Times that the file of a display is looked for: it may come after the line of the log.
MAX_TRIES = 30


def chars_of(data: dict[str, Any]) -> int:
    """Return the size of forms in a record."""
    return len(msgspec.json.encode(data)) if data else 0


class RunDisplays:
    """Displays of one run that its log names, or its folder has."""

    def __init__(self) -> None:
        self.forms: dict[int, Forms] = {}  #: by number
        self.tries: dict[int, int] = {}  #: of those whose file was not there
        self.listed: tuple[int, ...] = ()  #: numbers of files from before the known part of the log
        self.listed_for: Any = None  #: state of the log for which they were listed
        self.wanted = False
        self.task: asyncio.Task[None] | None = None
        self.lock = asyncio.Lock()

    def shown(self, among: Sequence[ShownPlace]) -> tuple[tuple[RunDisplay, ...], int]:
        """Return the newest displays with the forms that fit in a record, in the order of the log; and how many more.

        Parameters
        ----------
        among
            Their places in the log, of those that it names.
        """
        places = {place.number: place for place in among}
        numbers = [*(n for n in self.listed if n not in places), *places]
        left, found = MAX_CHARS, []
        for number in reversed(numbers[-MAX_SHOWN:]):
            if number not in self.forms:
                continue
            forms, place = self.forms[number], places.get(number)
            data = {mime: form for mime, form in forms.data.items() if mime != TEXT} or forms.data
            sizes, is_partial = forms.sizes, False
            if forms.chars > min(left, MAX_WHOLE_CHARS):
                data, sizes, is_partial = forms.small, forms.small_sizes, True
                if chars_of(data) > left:
                    data = {}
            left -= chars_of(data)
            shown = RunDisplay(number=number, version=forms.version, data=data, sizes=sizes, partial=is_partial)
            found.append(msgspec.structs.replace(shown, line=place.line, blocks=place.blocks) if place else shown)
        return tuple(reversed(found)), max(0, len(numbers) - MAX_SHOWN)
