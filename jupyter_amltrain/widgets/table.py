"""The table below a dashboard: what each GPU says now, and the processes on it."""

from __future__ import annotations

import html
from typing import Any

from jupyter_amltrain.agent.gpu_names import gpu_name
from jupyter_amltrain.runs.text import bytes_text
from jupyter_amltrain.spec.record import GpuProcess, GpuSeries, GpuTelemetry

#: GPUs whose readings are listed one by one.
LISTED = 8


def table_html(part: GpuTelemetry | None, run: bool = True) -> str:
    """Tables as HTML; empty without GPUs. What the device cannot tell is n/a.

    Parameters
    ----------
    run
        Tell the run's memory and processes from those of others; a monitor has no run.
    """
    if part is None or not part.gpus:
        return ""
    several = len(part.nodes) > 1

    def where(gpu: GpuSeries | GpuProcess) -> str:
        return (f"n{gpu.node} " if several else "") + gpu_name({"index": gpu.index, "label": gpu.label})

    tables = []
    if len(part.gpus) <= LISTED and any(part.now):
        whose = ("this run", "others") if run else ("in processes",)
        head = ("", "temperature", "SM clock", "memory clock", "throttled by", "ECC errors", *whose)
        rows = [
            (
                where(gpu),
                _unit(now.get("temperature"), " °C"),
                _unit(now.get("sm_clock"), " MHz"),
                _unit(now.get("mem_clock"), " MHz"),
                "n/a" if now.get("throttle") is None else (_few(now["throttle"]) or "nothing"),
                _unit(now.get("ecc"), ""),
                *([_size(now.get("mine"))] if run else []),
                _size(now.get("others")),
            )
            for gpu, now in zip(part.gpus, part.now, strict=False)
        ]
        tables.append(_table(head, rows))
    if part.processes:
        rows_ = [
            (
                where(p),
                str(p.pid),
                p.name or "n/a",
                *([_OWNERS.get(p.owner, p.owner)] if run else []),
                _size(p.memory),
            )
            for p in part.processes
        ]
        tables.append(_table(("", "pid", "process", *(["whose"] if run else []), "GPU memory"), rows_))
    return "".join(tables)


_OWNERS = {"mine": "this run", "other": "others", "unknown": "cannot tell"}


def _few(words: str, most: int = 2) -> str:
    """The first of some words, and how many more: a wide cell pushes others out of the output."""
    parts = words.split(", ")
    return ", ".join(parts[:most]) + (f" +{len(parts) - most}" if len(parts) > most else "")


def _unit(value: Any, unit: str) -> str:
    return "n/a" if value is None else f"{value:.0f}{unit}"


def _size(value: Any) -> str:
    return "n/a" if value is None else bytes_text(value)


def _table(head: tuple[str, ...], rows: list[Any]) -> str:
    top = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<table class="jp-AmlDashboard-table"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'
