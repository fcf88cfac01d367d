"""The lines of a run as a part of its record; see :mod:`jupyter_amltrain.kernel.record_parts`."""

from __future__ import annotations

import asyncio
import html
from typing import NamedTuple

import msgspec

from jupyter_amltrain.agent.protocol import LINES
from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.inside.line_report import LineReader, LineReport, LineUse, report_of
from jupyter_amltrain.inside.line_table import line_table, sentence, shown_uses, span_text
from jupyter_amltrain.inside.run_lines import read_run_lines
from jupyter_amltrain.schema.run import Run
from jupyter_amltrain.schema.run_lines import LineMark, RunLines
from jupyter_amltrain.text import printable, shorten

#: Lines of a record, and of the HTML of a saved notebook.
MAX_LINES, HTML_LINES = 40, 8
#: Seconds of a run from which its record has lines: a shorter one has too few samples.
MIN_SECONDS = 1.5
#: Characters of all cells of the table in a record.
MAX_CHARS = 8_000
_MAX_LINE = 1_000_000
_CELL = "text-align: left; padding: 1px 12px 1px 0"
_NUMBER = "text-align: right; padding: 1px 12px 1px 0; white-space: nowrap"

#: Names, sizes and times of the files.
_Listing = tuple[tuple[str, int, float], ...]


class ReadLines(NamedTuple):
    """What was read of a run's lines.

    Attributes
    ----------
    listing
        The files of which `shown` was made.
    reader
        What names the lines; it has the text of the files.
    """

    listing: _Listing
    reader: LineReader
    shown: RunLines | None


class LinesPart:
    """The lines in a record; a :class:`~jupyter_amltrain.kernel.record_parts.RecordPart`."""

    name = "lines"

    def applies(self, run: Run) -> bool:
        """Whether the job is sampled."""
        return not run.spec.no_lines

    async def read(self, backend: Backend, run: Run, known: ReadLines | None) -> ReadLines | None:
        """Read the files if they have changed."""
        if backend.files.lists_by_service:
            return None
        listing = tuple((file.path, file.size, file.modified) for file in await backend.files.list(run.run_id, LINES))
        if not listing or (known is not None and known.listing == listing):
            return known
        processes, reader = await read_run_lines(backend, run, None if known is None else known.reader)
        report = await asyncio.to_thread(report_of, processes, reader)
        return ReadLines(listing, reader, lines_of(report) if report.seconds >= MIN_SECONDS else None)

    def shown(self, known: ReadLines) -> RunLines | None:
        """Return the part of the record."""
        return known.shown

    def text(self, shown: RunLines) -> list[str]:
        """Return the sentence about the line that the time goes into, if there is one."""
        return [shown.sentence] if shown.sentence else []

    def html(self, shown: RunLines) -> str:
        """Return the sentence and the first lines as a table."""
        columns, table = shown.table.columns, shown.table
        numbers = [column.number for column in columns]
        head = "".join(
            f'<th style="{_NUMBER if column.number else _CELL}">{html.escape(column.title)}</th>' for column in columns
        )
        rows = []
        for row in table.rows[:HTML_LINES]:
            cells = [
                f'<td style="{_NUMBER if number else _CELL}">{html.escape(cell)}</td>'
                for cell, number in zip(row[:-1], numbers, strict=False)
            ]
            code = f'<td style="{_CELL}"><code>{html.escape(shorten(row[-1]))}</code></td>'
            rows.append(f"<tr>{''.join(cells)}{code}</tr>")
        title = html.escape(shown.sentence or "Where the time goes, by line.")
        body = f'<table style="font-size: 12px"><tr>{head}</tr>{"".join(rows)}</table>'
        return f"<details{' open' if shown.sentence else ''}><summary>{title}</summary>{body}</details>"


def lines_of(report: LineReport) -> RunLines:
    """Return what a record has of a report."""
    table, left, rows = line_table(report, MAX_LINES), MAX_CHARS, []
    for row in table.rows:
        left -= sum(map(len, row))
        if left >= 0:
            rows.append(tuple(map(printable, row)))
    more = table.more + len(table.rows) - len(rows)
    marks: dict[int, LineMark] = {}
    for at, use in enumerate(shown_uses(report)[: len(rows)]):
        if 0 < use.line < _MAX_LINE and not use.file:  # of threads that run the same line the main one comes first
            marks.setdefault(use.line, _mark(use, at))
    return RunLines(
        sentence=printable(sentence(report)),
        span=span_text(report),
        table=msgspec.structs.replace(table, rows=tuple(rows), more=more),
        marks=tuple(marks.values()),
    )


def _mark(use: LineUse, row: int) -> LineMark:
    work = use.busy if use.gpu is None else use.gpu / 100
    return LineMark(
        line=use.line,
        share=round(min(1.0, use.share), 3),
        total=round(min(1.0, use.total_share), 3),
        work=round(min(1.0, max(0.0, work)), 2),
        row=row,
    )
