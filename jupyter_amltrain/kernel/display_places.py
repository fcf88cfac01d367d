"""Where the displays of a run stand between the lines of its log. No I/O.

The marks in the log come from ``agent/displays/display_hook.py``, but a job can write anything into its log.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: Places that are remembered, and blocks of lines of one.
MAX_PLACES, MAX_BLOCKS = 50, 200


@dataclass
class DisplayPlace:
    """Place of one display.

    Attributes
    ----------
    number, version
        Its file, and the newest version of it.
    is_above
        Whether it stands above the known part of the log.
    blocks
        First line and number of lines of each text of it; the first is its place.
    """

    number: int
    version: int = 0
    is_above: bool = False
    blocks: list[tuple[int, int]] = field(default_factory=list)


class DisplayPlaces:
    """The places of a log's displays, from the marks in the order of the log."""

    def __init__(self) -> None:
        #: Oldest first.
        self.places: dict[int, DisplayPlace] = {}
        #: Line before which nothing is shown, because the script has cleared its output there.
        self.first_line = 0
        #: Number of times that the script has cleared its output.
        self.clears = 0
        self._open: tuple[DisplayPlace, int] | None = None
        self._clears_at: tuple[int, int] | None = None

    def mark(self, text: str, cursor: tuple[int, int]) -> None:
        """Apply a mark; `cursor` is the line and column at which it stands."""
        self.settle(cursor)
        name, *numbers = text.split(";")
        line = cursor[0] + (cursor[1] > 0)
        if name == "display" and numbers:
            self._begin(int(numbers[0]), int(numbers[-1]) if len(numbers) > 1 else 0, line)
        elif name == "update" and len(numbers) == 2:
            number, version = map(int, numbers)
            place = self.places.setdefault(number, DisplayPlace(number, is_above=True))
            place.version = max(place.version, version)
            self._open = place, line
            self._forget_oldest()
        elif name == "end":
            self._end(line)
        elif name == "clear":
            self._clear(line)
        elif name == "clear-next":
            self._clears_at = cursor

    def settle(self, cursor: tuple[int, int]) -> None:
        """Clear what waits for more text, if `cursor` has moved on since."""
        if self._clears_at is not None and cursor != self._clears_at:
            line, self._clears_at = self._clears_at[0], None
            self._clear(line)

    def open_lines(self, cursor: tuple[int, int]) -> dict[int, list[tuple[int, int]]]:
        """Return the blocks of each display by its number, with the one that has no end yet."""
        blocks = {number: list(place.blocks) for number, place in self.places.items()}
        if self._open is not None and self._open[0].number in blocks:
            place, first = self._open
            blocks[place.number].append((first, max(0, cursor[0] + (cursor[1] > 0) - first)))
        return blocks

    def _begin(self, number: int, version: int, line: int) -> None:
        if self._clears_at is not None:
            first, self._clears_at = self._clears_at[0], None
            self._clear(first)
        self.places.pop(number, None)
        place = self.places[number] = DisplayPlace(number, version)
        self._open = place, line
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        while len(self.places) > MAX_PLACES:
            del self.places[next(iter(self.places))]

    def _end(self, line: int) -> None:
        if self._open is None:
            return
        (place, first), self._open = self._open, None
        place.blocks.append((first, max(0, line - first)))
        if len(place.blocks) > MAX_BLOCKS:
            del place.blocks[1]

    def _clear(self, line: int) -> None:
        self.places.clear()
        self._open = None
        self.first_line = line
        self.clears += 1
