"""Tables of GPUs: current readings, processes, and the use by an ended run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from jupyter_amltrain.agent.telemetry.gpu_columns import GPU_COLUMNS, symbol
from jupyter_amltrain.kernel.chart_axes import number_text
from jupyter_amltrain.kernel.gpu_record import TABLE_FIGURES
from jupyter_amltrain.kernel.run_charts import gpu_label
from jupyter_amltrain.schema.record import GpuTelemetry, RunRecord
from jupyter_amltrain.schema.table import Column, Table
from jupyter_amltrain.text import bytes_text, seconds_text

#: Error counters of a summary that are shown if not zero, with their singular and plural.
_ERRORS = (
    ("ecc_uncorrectable", "uncorrectable memory error", "uncorrectable memory errors"),
    ("ecc_correctable", "correctable memory error", "correctable memory errors"),
    ("rows_remapped", "replaced memory row", "replaced memory rows"),
    ("remap_failures", "memory row that could not be replaced", "memory rows that could not be replaced"),
    ("pages_retired", "retired memory page", "retired memory pages"),
)

#: Maximum GPUs of the table of an ended run.
_MAX_SUMMARIZED = 16

#: Bytes of a MiB.
_MIB = 1024.0**2

#: Shortest throttling that is shown, in seconds.
_MIN_THROTTLED_S = 0.5

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
    tables = (Table("gpu processes", processes.columns, rows), _summary_table(record))
    return tuple(table for table in tables if table.rows)


def error_texts(gpus: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return Xid numbers and memory error counts, summed over the GPUs."""
    gpus = list(gpus)
    numbers = dict.fromkeys(text for gpu in gpus for text in str(gpu.get("xids") or "")[:100].split(", ") if text)
    words = [f"Xid {' and '.join(numbers)}"] if numbers else []
    for name, one, several in _ERRORS:
        count = sum(int(gpu[name]) for gpu in gpus if isinstance(gpu.get(name), int | float))
        words += [f"{count:,} {one if count == 1 else several}"] if count else []
    return words


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


# -- use of the GPUs by an ended run

#: A GPU of a summary.
_Gpu = Mapping[str, Any]


def _summary_table(record: RunRecord) -> Table:
    """Return the use of each GPU by an ended run."""
    gpus: list[_Gpu] = [gpu for gpu in record.summary.get("gpus") or () if isinstance(gpu, dict)]
    shown = gpus[:_MAX_SUMMARIZED]
    part = record.gpu
    labels = {} if part is None else {(gpu.node, gpu.index): gpu_label(part, gpu) for gpu in part.gpus}
    several = len({gpu.get("node") for gpu in gpus}) > 1

    def name(gpu: _Gpu) -> str:
        node, index = gpu.get("node") or 0, gpu.get("index") or 0
        label = labels.get((node, index)) or (f"n{node} " if several else "") + f"GPU {index}"
        return f"{label.replace('GPU ', '')} {gpu.get('name') or ''}".strip()

    columns = [("GPU", name), *((title, text) for title, text, wanted in _SUMMARY if any(map(wanted, shown)))]
    rows = tuple(tuple(text(gpu) for _, text in columns) for gpu in shown)
    return Table("gpu summary", tuple(Column(title) for title, _ in columns), rows, len(gpus) - len(shown))


def _always(gpu: _Gpu) -> bool:
    return True


def _known(key: str) -> Callable[[_Gpu], bool]:
    return lambda gpu: gpu.get(key) is not None


def _was_throttled(gpu: _Gpu) -> bool:
    return max(gpu.get("throttled_power_s") or 0, gpu.get("throttled_heat_s") or 0) >= _MIN_THROTTLED_S


def _put(key: str, form: Callable[[Any], str]) -> Callable[[_Gpu], str]:
    """Return a function from a GPU of the summary to the text of a value."""
    return lambda gpu: "n/a" if gpu.get(key) is None else form(gpu[key])


def _joined(pattern: str, *texts: Callable[[_Gpu], str]) -> Callable[[_Gpu], str]:
    return lambda gpu: pattern.format(*(text(gpu) for text in texts))


def _percent(value: float) -> str:
    return f"{value:.0f} %"


def _mib(value: float) -> str:
    return bytes_text(value * _MIB)


def _peak(gpu: _Gpu) -> str:
    total = gpu.get("memory_total")
    return _of(_put("memory_peak", _mib)(gpu), "" if total is None else _mib(total))


def _energy(gpu: _Gpu) -> str:
    text = _put("energy_wh", lambda value: f"{number_text(value)} Wh")(gpu)
    # Else it is the driver's counter, or a record of an earlier version.
    return f"{text} (estimated from power samples)" if gpu.get("energy_source") == "power" else text


def _errors(gpu: _Gpu) -> str:
    return ", ".join(error_texts([gpu]))


#: Titles of the columns, the text of a GPU, and whether a GPU makes the column worth showing.
_SUMMARY: tuple[tuple[str, Callable[[_Gpu], str], Callable[[_Gpu], object]], ...] = (
    ("utilization", _put("util_mean", _percent), _always),
    ("median, 95th", _joined("{}, {}", _put("util_p50", _percent), _put("util_p95", _percent)), _always),
    ("SM activity", _put("sm_activity_mean", _percent), _known("sm_activity_mean")),
    ("idle", _put("idle_share", lambda share: _percent(100 * share)), _always),
    ("memory peak", _peak, _always),
    ("memory mean", _put("memory_mean", _mib), _always),
    ("energy", _energy, _always),
    ("power", _put("power_mean", lambda value: f"{value:.0f} W"), _always),
    ("first use after", _put("first_use", seconds_text), _always),
    (
        "throttled by power, heat",
        _joined("{}, {}", _put("throttled_power_s", seconds_text), _put("throttled_heat_s", seconds_text)),
        _was_throttled,
    ),
    (
        "PyTorch peak",
        _joined("{} allocated, {} reserved", _put("torch_allocated_peak", _mib), _put("torch_reserved_peak", _mib)),
        _known("torch_reserved_peak"),
    ),
    ("errors", _errors, _errors),
)
