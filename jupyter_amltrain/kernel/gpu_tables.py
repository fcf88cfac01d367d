"""Tables of GPUs: current readings and processes; those of an ended run are in ``gpu_summary.py``."""

from __future__ import annotations

from typing import NamedTuple

from jupyter_amltrain.agent.telemetry.gpu_columns import GPU_COLUMNS, symbol
from jupyter_amltrain.kernel.gpu_record import TABLE_FIGURES
from jupyter_amltrain.kernel.gpu_summary import summary_tables
from jupyter_amltrain.kernel.run_charts import gpu_label
from jupyter_amltrain.schema.record import GpuTelemetry, RunRecord
from jupyter_amltrain.schema.table import Column, Table
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


#: A cell: text, or what changes with each tick.
Cell = str | Reading | Words


class LiveRows(NamedTuple):
    """Columns of a table, and its rows with cells that change."""

    columns: tuple[Column, ...]
    rows: list[tuple[Cell, ...]]


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


def _columns(*titles: str) -> tuple[Column, ...]:
    return tuple(Column(title, title in _NUMBERS, _MEANINGS.get(title, "")) for title in titles)


def reading_rows(part: GpuTelemetry, run: bool = True) -> LiveRows:
    """Return the current readings of each GPU; no rows without readings or for many GPUs.

    Parameters
    ----------
    run
        Distinguish the run's memory from that of others; false for a monitor.
    """
    owners = ("this run", "others") if run else ("in processes",)
    figures = [figure for figure in _FIGURES if any(name in now for now in part.now for name in figure[1])]
    columns = _columns(
        "GPU", "utilization", "memory", "power", "temperature", *(title for title, _, _ in figures), "SM clock",
        "memory clock", "throttled by", "ECC errors", *owners,
    )  # fmt: skip
    if len(part.gpus) > MAX_LISTED_GPUS or not any(part.now):
        return LiveRows(columns, [])
    rows: list[tuple[Cell, ...]] = [
        (
            gpu_label(part, gpu),
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
    return LiveRows(columns, rows)


def process_rows(part: GpuTelemetry, run: bool = True) -> LiveRows:
    """Return the processes on each GPU.

    Parameters
    ----------
    run
        Name the owner of each process; false for a monitor.
    """
    columns = _columns("GPU", "pid", "user", "command", *(["owner"] if run else []), "SM", "GPU memory")
    rows: list[tuple[Cell, ...]] = [
        (
            gpu_label(part, process),
            str(process.pid),
            process.user or "n/a",
            process.name or "n/a",
            *([_OWNERS.get(process.owner, process.owner)] if run else []),
            Reading((process.sm,), " %"),
            Reading((process.memory,), BYTES),
        )
        for process in part.processes
    ]
    return LiveRows(columns, rows)


def gpu_tables(record: RunRecord) -> tuple[Table, ...]:
    """Return the tables of a record: processes on its GPUs, and their use by an ended run."""
    processes = process_rows(record.gpu) if record.gpu is not None else LiveRows((), [])
    rows = tuple(tuple(map(str, row)) for row in processes.rows)
    tables = (Table("gpu processes", processes.columns, rows), *summary_tables(record))
    return tuple(table for table in tables if table.rows)


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
