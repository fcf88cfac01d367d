"""A log as a terminal shows it, read part by part by one view of a page."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import NamedTuple

from jupyter_amltrain.kernel.terminal_screen import TerminalScreen

#: Bytes after which the next end of a line may become a mark.
MARK_BYTES = 8 * 1024


class ScreenChange(NamedTuple):
    """What a part of a log has changed: all lines from number `first` on, and marks as in ``LogReply``."""

    first: int
    lines: list[str]
    marks: list[tuple[int, int]]


class LogScreen:
    """The screen of a log that a view reads from byte `start` on; remembers what the view has."""

    def __init__(self, start: int) -> None:
        #: Byte that comes next.
        self.offset = start
        self._screen = TerminalScreen()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        #: Lines on the screen that the view has.
        self._sent: list[str] = []

    def feed(self, data: bytes, *, complete: bool = False) -> ScreenChange:
        """Add the next bytes; `complete` if none follow."""
        screen, first, marks = self._screen, self._screen.final, []
        for piece in _pieces(data):
            screen.feed(self._decoder.decode(piece))
            self.offset += len(piece)
            if screen.clean and not self._decoder.getstate()[0]:
                marks.append((screen.count - 1, self.offset))
        if complete:
            screen.feed(self._decoder.decode(b"", True))
        lines = screen.lines(first)
        same = 0
        for old, new in zip(self._sent, lines, strict=False):
            if old != new:
                break
            same += 1
        # What is above the screen never changes, and the view has it.
        screen.forget_above()
        self._sent = screen.lines()
        return ScreenChange(first + same, lines[same:], [mark for mark in marks if mark[0] < screen.count])


def lines_before(data: bytes, most: int) -> tuple[list[str], int]:
    """Return the last lines of `data`, about `most`, and the number of bytes before them.

    Its last line is left out: it is the one with which the text after `data` begins.
    """
    at = len(data)
    for _ in range(most + 1):
        at = data.rfind(b"\n", 0, at)
        if at < 0:
            break
    screen = TerminalScreen()
    screen.feed(data[at + 1 :].decode("utf-8", "replace"))
    return screen.lines()[:-1], at + 1


def _pieces(data: bytes) -> Iterator[bytes]:
    """Split `data` after ends of lines."""
    at = 0
    while at < len(data):
        end = data.find(b"\n", at + MARK_BYTES) + 1 or len(data)
        yield data[at:end]
        at = end
