"""HTML tables below a dashboard: current readings and processes of each GPU."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jupyter_amltrain.agent.telemetry.gpu_columns import GPU_COLUMNS, symbol
from jupyter_amltrain.agent.telemetry.gpu_names import gpu_name
from jupyter_amltrain.kernel.gpu_record import TABLE_FIGURES
from jupyter_amltrain.schema.record import GpuProcess, GpuSeries, GpuTelemetry
from jupyter_amltrain.text import bytes_text

#: Maximum GPUs for which the readings table is shown.
MAX_LISTED_GPUS = 8


#: Unit of a reading in bytes, shown with a fitting prefix.
BYTES = "B"


class Reading(NamedTuple):
    """The numbers of one cell, ``None`` where the device does not report them.

    Attributes
    ----------
    unit
        Text after the number, or :data:`BYTES`.
    whole
        Formatted maximum: ``80.0 GiB``; empty without.
    """

    values: tuple[float | None, ...]
    unit: str = ""
    whole: str = ""

    def __str__(self) -> str:
        # The page formats the numbers that come later in the same way: ``labextension/src/widgets/gpuTable.ts``.
        if all(value is None for value in self.values):
            return "n/a"
        if len(self.values) > 1:
            return ", ".join("n/a" if value is None else f"{value:,.0f}" for value in self.values) + self.unit
        (value,) = self.values
        return _of(bytes_text(value) if self.unit == BYTES else f"{value:.0f}{self.unit}", self.whole)


class Words(NamedTuple):
    """The text of a cell that may change with each tick."""

    text: str

    def __str__(self) -> str:
        return self.text


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

    text = "".join(_table(*table, marked) for table in tables)
    key = "".join(_table(*table, _masked) for table in tables)
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
    return "".join(_table(*table, lambda cell: ("", str(cell))) for table in _tables(part, run))


def _tables(part: GpuTelemetry | None, run: bool) -> list[tuple[tuple[str, ...], list[Any]]]:
    """Return heads and rows of the tables; a cell is a text, a :class:`Reading` or :class:`Words`."""
    if part is None or not part.gpus:
        return []
    several = len(part.nodes) > 1

    def label(gpu: GpuSeries | GpuProcess) -> str:
        return (f"n{gpu.node} " if several else "") + gpu_name({"index": gpu.index, "label": gpu.label})

    tables: list[tuple[tuple[str, ...], list[Any]]] = []
    if len(part.gpus) <= MAX_LISTED_GPUS and any(part.now):
        owners = ("this run", "others") if run else ("in processes",)
        figures = [figure for figure in _FIGURES if any(name in now for now in part.now for name in figure[1])]
        head = (
            "GPU", "utilization", "memory", "power", "temperature", *(title for title, _, _ in figures), "SM clock",
            "memory clock", "throttled by", "ECC errors", *owners,
        )  # fmt: skip
        rows = [
            (
                label(gpu),
                Reading((now.get("util"),), " %"),
                Reading((now.get("memory"),), BYTES, "" if gpu.memory_total is None else bytes_text(gpu.memory_total)),
                Reading((now.get("power"),), " W", "" if gpu.power_limit is None else f"{gpu.power_limit:.0f} W"),
                Reading((now.get("temperature"),), " °C"),
                *(Reading(tuple(now.get(name) for name in names), unit) for _, names, unit in figures),
                Reading((now.get("sm_clock"),), " MHz"),
                Reading((now.get("mem_clock"),), " MHz"),
                Words("n/a" if now.get("throttle") is None else (_shortened(now["throttle"]) or "nothing")),
                Reading((now.get("ecc"),)),
                *([Reading((now.get("mine"),), BYTES)] if run else []),
                Reading((now.get("others"),), BYTES),
            )
            for gpu, now in zip(part.gpus, part.now, strict=False)
        ]
        tables.append((head, rows))
    if part.processes:
        rows_ = [
            (
                label(p),
                str(p.pid),
                p.user or "n/a",
                p.name or "n/a",
                *([_OWNERS.get(p.owner, p.owner)] if run else []),
                Reading((p.sm,), " %"),
                Reading((p.memory,), BYTES),
            )
            for p in part.processes
        ]
        head = ("GPU", "pid", "user", "command", *(["owner"] if run else []), "SM", "GPU memory")
        tables.append((head, rows_))
    return tables


_LISTED = tuple(column for column in GPU_COLUMNS if column.name in TABLE_FIGURES)
#: Title, readings and unit of figures that only some devices report.
_FIGURES = tuple(
    (
        heading,
        tuple(column.name for column in _LISTED if column.heading == heading),
        " " + next(symbol(column.unit) for column in _LISTED if column.heading == heading),
    )
    for heading in dict.fromkeys(column.heading for column in _LISTED)
)
#: Tooltips of column titles.
_MEANINGS = {
    **{column.heading: column.meaning for column in GPU_COLUMNS if column.meaning},
    "SM": "Share of the streaming multiprocessors' time that the process uses, as the driver samples it.",
}
#: Columns of numbers, aligned right.
_NUMBERS = frozenset(
    {column.heading for column in GPU_COLUMNS if column.unit != "bits"}
    | {"pid", "SM", "this run", "others", "in processes", "GPU memory"}
)
_OWNERS = {"mine": "this run", "other": "others", "unknown": "unknown"}


def _shortened(words: str, limit: int = 2) -> str:
    """Return the first `limit` words and the number of the rest, to keep the column narrow."""
    parts = words.split(", ")
    return ", ".join(parts[:limit]) + (f" +{len(parts) - limit}" if len(parts) > limit else "")


def _of(value: str, whole: str) -> str:
    """``40 of 80 GiB``, with the unit once if both have the same unit."""
    if not whole:
        return value
    number, _, unit = value.partition(" ")
    return f"{number if whole.endswith(f' {unit}') else value} of {whole}"


def _table(head: Sequence[str], rows: list[Any], reading: Callable[[Reading | Words], tuple[str, str]]) -> str:
    """Return one table.

    Parameters
    ----------
    reading
        Returns attributes and text of the cell of a reading.
    """
    kinds = [' class="jp-mod-number"' if name in _NUMBERS else "" for name in head]
    hints = [f' title="{html.escape(_MEANINGS[name])}"' if name in _MEANINGS else "" for name in head]
    top = "".join(
        f'<th scope="col"{kind}{hint}>{html.escape(name)}</th>'
        for name, kind, hint in zip(head, kinds, hints, strict=True)
    )

    def td(cell: Any, kind: str) -> str:
        attributes, text = reading(cell) if isinstance(cell, Reading | Words) else ("", str(cell))
        return f"<td{kind}{attributes}>{html.escape(text)}</td>"

    body = "".join(f"<tr>{''.join(td(cell, kind) for cell, kind in zip(row, kinds, strict=True))}</tr>" for row in rows)
    return f'<table class="jp-AmlDashboard-table"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'
