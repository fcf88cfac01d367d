"""HTML tables below a dashboard: current readings and processes of each GPU."""

from __future__ import annotations

import html
import math
from collections.abc import Callable
from typing import NamedTuple

from jupyter_amltrain.kernel.gpu_tables import Cell, LiveRows, Reading, Words, process_rows, reading_rows
from jupyter_amltrain.schema.record import GpuTelemetry


class LiveTable(NamedTuple):
    """Tables of a page that gets new readings without new HTML.

    Attributes
    ----------
    html
        The tables; cells with readings have their positions in `values` or `words` as attributes.
    key
        Changes with everything in the tables but the readings.
    values
        The numbers, NaN if unknown.
    words
        The texts.
    """

    html: str
    key: str
    values: tuple[float, ...]
    words: tuple[str, ...]


def live_table(part: GpuTelemetry | None, run: bool = True) -> LiveTable:
    """Return the tables of :func:`table_html` for a page that updates their readings."""
    tables = _tables(part, run)
    values: list[float] = []
    words: list[str] = []

    def marked(cell: Reading | Words) -> tuple[str, str]:
        if isinstance(cell, Words):
            words.append(cell.text)
            return f' data-words="{len(words) - 1}"', cell.text
        begin = len(values)
        values.extend(math.nan if value is None else float(value) for value in cell.values)
        whole = f' data-whole="{html.escape(cell.whole)}"' if cell.whole else ""
        count = f' data-count="{len(cell.values)}"' if len(cell.values) > 1 else ""
        return f' data-reading="{begin}"{count} data-unit="{html.escape(cell.unit)}"{whole}', str(cell)

    text = "".join(_table(table, marked) for table in tables)
    key = "".join(_table(table, _masked) for table in tables)
    return LiveTable(text, key, tuple(values), tuple(words))


def _masked(cell: Reading | Words) -> tuple[str, str]:
    return (f"{cell.unit} {cell.whole}" if isinstance(cell, Reading) else "", "")


def table_html(part: GpuTelemetry | None, run: bool = True) -> str:
    """Return the tables as HTML; empty without GPUs. Values that the device does not report are n/a.

    Parameters
    ----------
    run
        Distinguish the run's memory and processes from others; false for a monitor.
    """
    return "".join(_table(table, lambda cell: ("", str(cell))) for table in _tables(part, run))


def _tables(part: GpuTelemetry | None, run: bool) -> list[LiveRows]:
    """Return the tables that have rows."""
    tables = [] if part is None or not part.gpus else [reading_rows(part, run), process_rows(part, run)]
    return [table for table in tables if table.rows]


def _table(table: LiveRows, reading: Callable[[Reading | Words], tuple[str, str]]) -> str:
    """Return one table.

    Parameters
    ----------
    reading
        Returns attributes and text of the cell of a reading.
    """
    kinds = [' class="jp-mod-number"' if column.number else "" for column in table.columns]
    hints = [f' title="{html.escape(column.help)}"' if column.help else "" for column in table.columns]
    top = "".join(
        f'<th scope="col"{kind}{hint}>{html.escape(column.title)}</th>'
        for column, kind, hint in zip(table.columns, kinds, hints, strict=True)
    )

    def td(cell: Cell, kind: str) -> str:
        attributes, text = ("", cell) if isinstance(cell, str) else reading(cell)
        return f"<td{kind}{attributes}>{html.escape(text)}</td>"

    body = "".join(
        f"<tr>{''.join(td(cell, kind) for cell, kind in zip(row, kinds, strict=True))}</tr>" for row in table.rows
    )
    return f'<table class="jp-AmlDashboard-table"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'
