"""A terminal's screen: the lines that a stream of text with control codes leaves. Pure functions and state, no I/O.

The codes are those of ECMA-48 that programs without a full-screen display write: cursor movements, erasing,
colors. Lines are never wrapped. Lines above the screen cannot change any more, as in a terminal.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable

#: Rows that a cursor can reach, as in a terminal of this height.
HEIGHT = 50
#: Column that no code moves a cursor past: a code must not make a line of a gigabyte.
MAX_COLUMN = 4096
#: Columns kept of a line without an end.
MAX_LINE = 64 * 1024
#: Characters of an incomplete code that wait for their rest.
_MAX_PENDING = 4096
#: Fills the second column of a wide character, and the columns of a tab; never shown.
_FILL = "\0"

#: Where a job displays a value.
_MARK = r"\x1b_amltrain:(?P<mark>[a-z-]{1,20}(?:;\d{1,9}){0,2})\x1b\\"
_TOKEN = re.compile(
    r"\x1b\[(?P<args>[0-9;:<=>?]*)[ -/]*(?P<final>[@-~])"
    rf"|{_MARK}"
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\)"  # titles and links; their text stays
    r"|\x1b[ -/]*(?P<single>[0-~])"
    r"|(?P<control>[\x00-\x1f\x7f])",
    re.DOTALL,
)
_PENDING = re.compile(r"\x1b(?:\[[0-9;:<=>?]*[ -/]*|[\]PX^_](?:[^\x07\x1b]|\x1b(?!\\))*|[ -/]*)?\Z")
_HAS_CODES = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


def without_marks(text: str) -> str:
    """Return the text of a log without the marks of displays, which a terminal does not show."""
    return re.sub(_MARK, "", text)


Style = str
#: Text in one style, as the parameters of the code that selects it; ``""`` is plain.
Segment = tuple[str, Style]


class TerminalScreen:
    """Lines of a terminal without a right edge.

    Parameters
    ----------
    kept
        Characters kept of the lines above the screen.
    on_mark
        Called with each mark of a display, see ``agent/displays/display_hook.py``.
    """

    def __init__(self, kept: int = 1 << 62, on_mark: Callable[[str], None] | None = None) -> None:
        self._kept, self._on_mark = kept, on_mark
        self.restart()

    def restart(self) -> None:
        """Forget all lines."""
        #: Lines above the screen, each with the codes of its colors.
        self._above: deque[str] = deque()
        self._above_chars = 0
        self._rows = [_Row()]
        #: Number of the first line that is kept, of all lines so far.
        self.first = 0
        self._y = self._x = 0
        self._style: Style = ""
        self._saved = (0, 0, "")
        self._pending = ""

    @property
    def final(self) -> int:
        """Number of lines that cannot change any more, of all lines so far."""
        return self.first + len(self._above)

    @property
    def count(self) -> int:
        """Number of lines so far, with the one that has no end."""
        return self.final + len(self._rows)

    @property
    def cursor(self) -> tuple[int, int]:
        """Number of the line, of all lines so far, and the column at which text is written next."""
        return self.final + self._y, self._x

    @property
    def clean(self) -> bool:
        """Whether a new screen would show the same of what follows: the last line is empty, and no style is on."""
        at_start = self._x == 0 and self._y == len(self._rows) - 1 and not self._rows[-1].width
        return at_start and not self._style and not self._pending

    def forget_above(self) -> None:
        """Forget the lines above the screen; the others keep their numbers."""
        self.first = self.final
        self._above.clear()
        self._above_chars = 0

    def lines(self, since: int = 0) -> list[str]:
        """Return the lines from number `since` that are kept; a line in colors has their codes and ends plain."""
        skip = since - self.first
        above = list(self._above)[max(0, skip) :]
        return [*above, *(row.rendered() for row in self._rows[max(0, since - self.final) :])]

    def feed(self, text: str) -> None:
        """Apply text that a program has written."""
        text, self._pending = self._pending + text, ""
        if unfinished := _PENDING.search(text, max(0, len(text) - _MAX_PENDING)):
            text, self._pending = text[: unfinished.start()], unfinished[0]
        if not _HAS_CODES.search(text):
            self._plain(text)
            return
        at = 0
        for token in _TOKEN.finditer(text):
            if token.start() > at:
                self._write(text[at : token.start()])
            at = token.end()
            if (control := token["control"]) is not None:
                self._control(control)
            elif token["final"]:
                self._code(token["final"], token["args"])
            elif token["single"]:
                self._single(token["single"])
            elif token["mark"] and self._on_mark is not None:
                self._on_mark(token["mark"])
        if at < len(text):
            self._write(text[at:])

    def _plain(self, text: str) -> None:
        """Apply text whose only control characters are ends of lines."""
        first, *others = text.split("\n")
        self._write(first)
        if len(others) > 2 * HEIGHT and self._y == len(self._rows) - 1:
            others = self._scroll_lines(others)
        for line in others:
            self._line_feed()
            self._write(line)

    # ---- writing

    def _write(self, text: str) -> None:
        if not text:
            return
        cells = text if text.isascii() else _cells(text)
        row = self._rows[self._y]
        if self._x == row.width:
            row.append(cells, self._style)
            if row.width > 2 * MAX_LINE:  # a line without an end: its begin is forgotten
                self._rows[self._y] = row = _Row(row.part(row.width - MAX_LINE))
                self._x = row.width - len(cells)
        else:
            row.replace(self._x, cells, self._style)
        self._x += len(cells)

    def _line_feed(self) -> None:
        self._x = 0
        self._y += 1
        if self._y == len(self._rows):
            self._rows.append(_Row())
            self._scroll(len(self._rows) - HEIGHT)

    def _scroll(self, count: int) -> None:
        """Move the uppermost rows above the screen."""
        for row in self._rows[: max(0, count)]:
            line = row.rendered()
            self._above.append(line)
            self._above_chars += len(line) + 1
        if count > 0:
            del self._rows[:count]
            self._y = max(0, self._y - count)
        while self._above_chars > self._kept and self._above:
            self._above_chars -= len(self._above.popleft()) + 1
            self.first += 1

    def _scroll_lines(self, lines: list[str]) -> list[str]:
        """Put lines above the screen that would pass over it; return those that stay on it."""
        self._scroll(len(self._rows))
        passing, staying = lines[:-HEIGHT], lines[-HEIGHT:]
        # Of more than is kept only the number counts.
        chars = wanted = 0
        for line in reversed(passing):
            chars += len(line) + 1
            wanted += 1
            if chars > self._kept:
                break
        if skipped := len(passing) - wanted:
            self.first += len(self._above) + skipped
            self._above.clear()
            self._above_chars = 0
        self._rows = [_Row([(line, self._style)]) for line in passing[skipped:]]
        self._scroll(len(self._rows))
        self._rows, self._y, self._x = [_Row()], 0, 0
        self._write(staying[0])
        return staying[1:]

    def _move_to(self, y: int, x: int) -> None:
        y = min(max(0, y), HEIGHT - 1)
        while y >= len(self._rows):
            self._rows.append(_Row())
        self._y, self._x = y, min(max(0, x), MAX_COLUMN)

    # ---- codes

    def _control(self, code: str) -> None:
        if code == "\n" or code in "\v\f":
            self._line_feed()
        elif code == "\r":
            self._x = 0
        elif code == "\b":
            self._x = max(0, self._x - 1)
        elif code == "\t":
            columns = 8 - self._x % 8
            if self._x == self._rows[self._y].width:
                self._write("\t" + _FILL * (columns - 1))
            else:
                self._x += columns

    def _single(self, code: str) -> None:
        if code == "7":
            self._saved = (self._y, self._x, self._style)
        elif code == "8":
            self._move_to(*self._saved[:2])
            self._style = self._saved[2]
        elif code == "M":
            self._move_to(self._y - 1, self._x)
        elif code == "D":
            self._move_to(self._y + 1, self._x)
        elif code == "E":
            self._line_feed()
        elif code == "c":
            self._erase_screen(2)
            self._move_to(0, 0)
            self._style = ""

    def _code(self, final: str, args: str) -> None:
        if final == "m":
            self._style = styled(self._style, args)
            return
        if args[:1] in ("?", "<", "=", ">"):
            return
        numbers = [int(number[:6]) if number.isdigit() else 0 for number in args.split(";")]
        count = max(1, numbers[0])
        if final in "ABCDEFG`dHf":
            self._cursor(final, count, max(1, numbers[1]) if len(numbers) > 1 else 1)
        elif final == "J":
            self._erase_screen(numbers[0])
        elif final in "KX@P":
            self._edit(final, numbers[0])
        elif final in "LM":
            self._edit_rows(final, count)
        elif final in "su":
            self._single("7" if final == "s" else "8")

    def _cursor(self, final: str, count: int, column: int) -> None:
        moves = {
            "A": (-count, 0), "B": (count, 0), "C": (0, count), "D": (0, -count), "E": (count, -self._x),
            "F": (-count, -self._x), "G": (0, count - 1 - self._x), "`": (0, count - 1 - self._x),
            "d": (count - 1 - self._y, 0), "H": (count - 1 - self._y, column - 1 - self._x),
            "f": (count - 1 - self._y, column - 1 - self._x),
        }  # fmt: skip
        down, right = moves[final]
        self._move_to(self._y + down, self._x + right)

    def _erase_screen(self, what: int) -> None:
        if what == 0:
            self._edit("K", 0)
            del self._rows[self._y + 1 :]
        elif what == 1:
            self._rows[: self._y] = [_Row() for _ in range(self._y)]
            self._edit("K", 1)
        elif what == 2:  # what was on the screen stays above it
            y = self._y
            while len(self._rows) > 1 and not self._rows[-1].width:
                del self._rows[-1]
            self._scroll(len(self._rows))
            self._rows = [_Row()]
            self._move_to(y, self._x)

    def _edit(self, final: str, count: int) -> None:
        """Erase in the line (``K``), erase (``X``), insert (``@``) or delete (``P``) characters."""
        row, x = self._rows[self._y], self._x
        n = max(1, min(count, MAX_COLUMN))
        if final == "K" and count == 0:
            self._rows[self._y] = _Row(row.part(0, x))
        elif final == "K" and (count == 2 or row.width <= x + 1):
            self._rows[self._y] = _Row()
        elif final == "K" and count == 1:
            row.replace(0, " " * (x + 1), "")
        elif final == "X" and row.width > x:
            row.replace(x, " " * n, "")
        elif final == "P":
            self._rows[self._y] = _Row([*row.part(0, x), *row.part(x + n)])
        elif final == "@" and row.width > x:
            self._rows[self._y] = _Row([*row.part(0, x), (" " * n, ""), *row.part(x)])

    def _edit_rows(self, final: str, count: int) -> None:
        """Insert (``L``) or delete (``M``) rows at the cursor."""
        y = self._y
        if final == "M":
            del self._rows[y : y + count]
            while len(self._rows) <= y:
                self._rows.append(_Row())
        else:
            self._rows[y:y] = [_Row() for _ in range(min(count, HEIGHT - y))]
            del self._rows[HEIGHT:]
        self._x = 0


def shown(text: str) -> str:
    """Return what a terminal shows after all of `text`, with the codes of its colors."""
    if not _HAS_CODES.search(text):
        return text
    screen = TerminalScreen()
    screen.feed(text)
    return "\n".join(screen.lines())


# ---- rows


class _Row:
    """Columns of a line, as segments of one style."""

    __slots__ = ("segments", "width")

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self.segments = [segment for segment in segments if segment[0]]
        self.width = sum(len(text) for text, _ in self.segments)

    def append(self, text: str, style: Style) -> None:
        """Add columns at the end."""
        segments = self.segments
        if segments and segments[-1][1] == style:
            segments[-1] = (segments[-1][0] + text, style)
        elif text:
            segments.append((text, style))
        self.width += len(text)

    def part(self, start: int, end: int | None = None) -> list[Segment]:
        """Return the columns from `start`; half a wide character becomes a space."""
        found: list[Segment] = []
        at = 0
        for text, style in self.segments:
            if part := text[max(0, start - at) : None if end is None else max(0, end - at)]:
                found.append((part, style))
            at += len(text)
        if start and found and found[0][0][0] == _FILL:
            text, style = found[0]
            rest = text.lstrip(_FILL)
            found[0] = (" " * (len(text) - len(rest)) + rest, style)
        if end is not None and found and at > end and _is_wide(found[-1][0][-1]):
            found[-1] = (found[-1][0][:-1] + " ", found[-1][1])
        return found

    def replace(self, x: int, cells: str, style: Style) -> None:
        """Put `cells` from column `x`."""
        new = _Row(self.part(0, x))
        if new.width < x:
            new.append(" " * (x - new.width), "")
        new.append(cells, style)
        for segment in self.part(x + len(cells)):
            new.append(*segment)
        self.segments, self.width = new.segments, new.width

    def rendered(self) -> str:
        """Return the text with the codes of its colors."""
        parts = (f"\x1b[{style}m{text}\x1b[0m" if style else text for text, style in self.segments)
        return "".join(parts).replace(_FILL, "")


def _is_wide(char: str) -> bool:
    return not char.isascii() and unicodedata.east_asian_width(char) in "WF"


def _cells(text: str) -> str:
    """Return text with one character for each column."""
    return "".join(char + _FILL if _is_wide(char) else char for char in text)


# ---- styles

#: Attributes by their codes, in the order of a style; ``22`` ends bold and faint, and so on.
_ENDS = {22: (1, 2), 21: (1,), 23: (3,), 24: (4,), 25: (5,), 27: (7,), 28: (8,), 29: (9,)}


@functools.lru_cache(maxsize=512)
def styled(style: Style, args: str) -> Style:
    """Return a style after a code ``ESC [ args m``."""
    codes = [int(code[:6]) if code.isdigit() else 0 for code in _without_colons(args).split(";")]
    on = _attributes(style)
    i = 0
    while i < len(codes):
        code = codes[i]
        if code == 0:
            on.clear()
        elif code in (38, 48):
            used = 3 if codes[i + 1 : i + 2] == [5] else 5 if codes[i + 1 : i + 2] == [2] else 1
            if used > 1 and len(codes) >= i + used:
                on[code] = ";".join(map(str, codes[i : i + used]))
            i += used - 1
        elif 30 <= code <= 37 or 90 <= code <= 97:
            on[38] = str(code)
        elif 40 <= code <= 47 or 100 <= code <= 107:
            on[48] = str(code)
        elif code in (39, 49):
            on.pop(code - 1, None)
        elif 1 <= code <= 9:
            on[code] = str(code)
        for end in _ENDS.get(code, ()):
            on.pop(end, None)
        i += 1
    return ";".join(on[key] for key in sorted(on))


def _without_colons(args: str) -> str:
    """Return parameters with colors as ``38;2;1;2;3`` where they are ``38:2::1:2:3``, and underlines of one kind."""
    if ":" not in args:
        return args
    return ";".join(
        part.replace("::", ":").replace(":", ";") if part[:2] in ("38", "48") else part.partition(":")[0]
        for part in args.split(";")
    )


@functools.lru_cache(maxsize=512)
def _parsed(style: Style) -> tuple[tuple[int, str], ...]:
    on: dict[int, str] = {}
    codes = style.split(";") if style else []
    while codes:
        code = int(codes.pop(0))
        if code in (38, 48):
            rest = [codes.pop(0) for _ in range(2 if codes[0] == "5" else 4)]
            on[code] = ";".join([str(code), *rest])
        elif code >= 30:
            on[48 if code // 10 in (4, 10) else 38] = str(code)
        else:
            on[code] = str(code)
    return tuple(on.items())


def _attributes(style: Style) -> dict[int, str]:
    return dict(_parsed(style))
