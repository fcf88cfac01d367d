"""Plain text for people: tables, and times as one says them."""

from __future__ import annotations

import time
from collections.abc import Sequence

#: A cell of a table is cut at this many characters.
CELL = 60


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, whole_end: bool = False) -> str:
    """Columns under their headings, two spaces apart; with `whole_end` the last column is not cut."""
    cut = [[*map(_cut, row[:-1]), row[-1] if whole_end else _cut(row[-1])] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cut, strict=True)]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in [list(header), *cut]
    ]
    return "\n".join(lines)


def pairs(rows: Sequence[tuple[str, str]]) -> str:
    """``name  value`` lines, values below each other; rows without a value are left out."""
    rows = [row for row in rows if row[1]]
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def ago(then: float, now: float | None = None) -> str:
    """``just now``, ``12 s ago``, ``4 min ago``, ``3 h ago``, ``2 d ago``; unix seconds."""
    seconds = (time.time() if now is None else now) - then
    if not then:
        return ""
    if seconds < 2:  # also when a clock jumped back
        return "just now"
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds // size:.0f} {unit} ago"
    return f"{seconds // 86400:.0f} d ago"


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= CELL else text[: CELL - 1] + "…"
