"""HTML tables below a dashboard: current readings and processes of each GPU."""

from __future__ import annotations

import html
from typing import Any

from jupyter_amltrain.agent.telemetry.gpu_columns import FIGURES, GPU_COLUMNS, symbol
from jupyter_amltrain.agent.telemetry.gpu_names import gpu_name
from jupyter_amltrain.schema.record import GpuProcess, GpuSeries, GpuTelemetry
from jupyter_amltrain.text import bytes_text

#: Maximum GPUs for which the readings table is shown.
MAX_LISTED_GPUS = 8


def table_html(part: GpuTelemetry | None, run: bool = True) -> str:
    """Return the tables as HTML; empty without GPUs. Values that the device does not report are n/a.

    Parameters
    ----------
    run
        Distinguish the run's memory and processes from others; false for a monitor.
    """
    if part is None or not part.gpus:
        return ""
    several = len(part.nodes) > 1

    def label(gpu: GpuSeries | GpuProcess) -> str:
        return (f"n{gpu.node} " if several else "") + gpu_name({"index": gpu.index, "label": gpu.label})

    tables = []
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
                _unit(now.get("util"), " %"),
                _of(_size(now.get("memory")), None if gpu.memory_total is None else bytes_text(gpu.memory_total)),
                _of(_unit(now.get("power"), " W"), None if gpu.power_limit is None else f"{gpu.power_limit:.0f} W"),
                _unit(now.get("temperature"), " °C"),
                *(_pair([now.get(name) for name in names], unit) for _, names, unit in figures),
                _unit(now.get("sm_clock"), " MHz"),
                _unit(now.get("mem_clock"), " MHz"),
                "n/a" if now.get("throttle") is None else (_shortened(now["throttle"]) or "nothing"),
                _unit(now.get("ecc"), ""),
                *([_size(now.get("mine"))] if run else []),
                _size(now.get("others")),
            )
            for gpu, now in zip(part.gpus, part.now, strict=False)
        ]
        tables.append(_table(head, rows, _NUMBERS))
    if part.processes:
        rows_ = [
            (
                label(p),
                str(p.pid),
                p.user or "n/a",
                p.name or "n/a",
                *([_OWNERS.get(p.owner, p.owner)] if run else []),
                _unit(p.sm, " %"),
                _size(p.memory),
            )
            for p in part.processes
        ]
        head = ("GPU", "pid", "user", "command", *(["owner"] if run else []), "SM", "GPU memory")
        tables.append(_table(head, rows_, _NUMBERS))
    return "".join(tables)


#: Title, readings and unit of figures that only some devices report.
_FIGURES = tuple(
    (
        heading,
        tuple(column.name for column in FIGURES if column.heading == heading),
        " " + next(symbol(column.unit) for column in FIGURES if column.heading == heading),
    )
    for heading in dict.fromkeys(column.heading for column in FIGURES if column.heading)
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


def _unit(value: Any, unit: str) -> str:
    return "n/a" if value is None else f"{value:.0f}{unit}"


def _size(value: Any) -> str:
    return "n/a" if value is None else bytes_text(value)


def _of(value: str, whole: str | None) -> str:
    """``40 of 80 GiB``, with the unit once if both have the same unit."""
    if whole is None or value == "n/a":
        return value
    number, _, unit = value.partition(" ")
    return f"{number if whole.endswith(f' {unit}') else value} of {whole}"


def _pair(values: list[Any], unit: str) -> str:
    """Format one value, or two values with one unit."""
    if len(values) == 1 or all(value is None for value in values):
        return _unit(values[0], unit)
    return ", ".join("n/a" if value is None else f"{value:,.0f}" for value in values) + unit


def _table(head: tuple[str, ...], rows: list[Any], numbers: frozenset[str]) -> str:
    kinds = [' class="jp-mod-number"' if name in numbers else "" for name in head]
    hints = [f' title="{html.escape(_MEANINGS[name])}"' if name in _MEANINGS else "" for name in head]
    top = "".join(
        f'<th scope="col"{kind}{hint}>{html.escape(name)}</th>'
        for name, kind, hint in zip(head, kinds, hints, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{html.escape(str(cell))}</td>" for cell, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<table class="jp-AmlDashboard-table"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'
