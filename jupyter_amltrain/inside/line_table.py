"""The table of a run's lines, and the sentence about the one that its time goes into."""

from __future__ import annotations

from collections.abc import Sequence

from jupyter_amltrain.inside.line_report import WAITING, LineReport, LineUse
from jupyter_amltrain.schema.table import Column, Table
from jupyter_amltrain.text import bytes_text, seconds_text, shorten

#: Lines of a table, and the least part of the time of a line in it: its own, or with the lines that it calls.
MAX_LINES, MIN_SHARE, MIN_TOTAL = 25, 0.01, 0.05
#: Sampled seconds from which a run has a sentence, and the least share of the line that it names.
MIN_SECONDS, MIN_NAMED, MIN_WAITING = 20.0, 0.25, 0.4
#: GPU utilization in percent below which a line keeps the GPU waiting.
IDLE_GPU = 20.0
_MIB = 1 << 20
#: What a script waits in on purpose, or what says nothing about the line.
_NO_CAUSE = frozenset(("sleep", "event loop", "other", ""))


def place_of(use: LineUse) -> str:
    """Return ``14`` for a line of the cell, ``data.py:14`` for one of another file, empty for none."""
    return (f"{use.file}:{use.line}" if use.file else str(use.line)) if use.line else ""


def shown_uses(report: LineReport) -> list[LineUse]:
    """Return the lines of a table: those that take time, of the main thread first."""
    return [use for use in report.lines if use.share >= MIN_SHARE or use.total_share >= MIN_TOTAL]


def line_table(report: LineReport, limit: int = MAX_LINES) -> Table:
    """Return the lines as a table."""
    uses = shown_uses(report)
    has_gpu = any(use.gpu is not None for use in uses)
    has_memory = any(abs(use.memory) >= _MIB for use in uses)
    has_threads = any(use.process or use.thread for use in uses)
    columns = [
        *([Column("process", help="Process and thread; empty for the main ones")] if has_threads else []),
        Column("line", True),
        Column("time", True, "Part of the time of the process in this line and in libraries that it calls"),
        Column("with calls", True, "The same, with the user's own lines that it calls"),
        Column("CPU", True, "Part of that time in which the thread computed; the rest it waited"),
        *([Column("GPU", True, "Mean utilization of the run's GPUs while the line ran")] if has_gpu else []),
        *([Column("memory", True, "Growth of the host's memory in this line")] if has_memory else []),
        Column("waits for"),
        Column("code"),
    ]
    rows = []
    for use in uses[:limit]:
        rows.append(
            (
                *([" ".join(filter(None, (use.process, use.thread)))] if has_threads else []),
                place_of(use) or "-",
                _percent(use.share),
                _percent(use.total_share),
                _percent(use.busy),
                *(["" if use.gpu is None else f"{use.gpu:.0f} %"] if has_gpu else []),
                *([_growth(use.memory)] if has_memory else []),
                _waits(use),
                use.text if use.line else "outside of your files: imports, start, end",
            )
        )
    return Table("lines", tuple(columns), tuple(rows), max(0, len(uses) - limit))


def table_text(table: Table) -> str:
    """Return a table as text."""
    titles = [column.title for column in table.columns]
    rows = [[shorten(cell) for cell in row] for row in table.rows]
    widths = [max([len(title), *(len(row[at]) for row in rows)]) for at, title in enumerate(titles)]
    numbers = [column.number for column in table.columns]

    def line(cells: Sequence[str]) -> str:
        aligned = zip(cells, widths, numbers, strict=True)
        return "  ".join(cell.rjust(width) if number else cell.ljust(width) for cell, width, number in aligned).rstrip()

    more = [f"... {table.more} more lines"] if table.more else []
    return "\n".join([line(titles), *map(line, rows), *more])


def span_text(report: LineReport) -> str:
    """Return what a report is about: its time, and its processes."""
    ranks = f", {len(report.ranks)} ranks" if len(report.ranks) > 1 else ""
    return f"From {seconds_text(report.start)} to {seconds_text(report.end)}{ranks}."


def sentence(report: LineReport) -> str:
    """Return one sentence about the line that a run's time goes into; empty if that says nothing new."""
    if report.seconds < MIN_SECONDS * max(1, len(report.ranks)):
        return ""
    uses = [use for use in report.lines if use.line and not use.process and not use.thread]
    idle = [use for use in uses if use.gpu is not None and use.gpu < IDLE_GPU and use.share >= MIN_NAMED]
    if idle:
        use = max(idle, key=lambda one: one.share)
        return f"{_start(use)}: the GPU is {use.gpu:.0f} % busy there."
    if any(use.gpu is not None for use in uses):
        return ""
    waiting = [use for use in uses if use.share >= MIN_WAITING and _cause(use)]
    if not waiting:
        return ""
    use = max(waiting, key=lambda one: one.share)
    return f"{_start(use)}: it waits for {_article(_cause(use))} there."


def _start(use: LineUse) -> str:
    where = f"line {use.line}" + (f" of {use.file}" if use.file else "")
    code = f", `{shorten(use.text.rstrip(':'), 60)}`" if use.text else ""
    return f"{_percent(use.share)} of the time in {where}{code}"


def _cause(use: LineUse) -> str:
    """Return what a line waits in for most of its time."""
    word, seconds = max(use.waits.items(), key=lambda one: one[1], default=("", 0.0))
    return word if word not in _NO_CAUSE and seconds > WAITING * use.own else ""


def _article(word: str) -> str:
    return word if word in ("other ranks", "synchronize") else f"the {word}" if word[:1].isupper() else f"a {word}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _growth(size: float) -> str:
    if abs(size) < _MIB:
        return ""
    return ("-" if size < 0 else "+") + bytes_text(abs(size))


def _waits(use: LineUse) -> str:
    waits = sorted(use.waits.items(), key=lambda one: -one[1])
    return ", ".join(word for word, seconds in waits[:2] if seconds > 0.1 * use.own)
