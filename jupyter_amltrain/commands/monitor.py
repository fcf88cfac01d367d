"""``monitor`` in a terminal: what a target's GPUs do now, as a table."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jupyter_amltrain.agent.gpu_names import gpu_name
from jupyter_amltrain.commands.tables import table
from jupyter_amltrain.runs.text import bytes_text

#: What the device cannot tell.
_UNKNOWN = "n/a"


def snapshot_text(snapshot: Mapping[str, Any]) -> str:
    """One measurement as a table of GPUs and a line about the host.

    Parameters
    ----------
    snapshot
        ``gpus``: rows of index, label, name, util (percent), memory and memory_total (MiB), power (W),
        temperature (°C) and, where the device tells it, power_limit, sm_activity, lost; ``processes``: rows of gpu,
        label, pid, user, command, memory (MiB), sm (percent); ``host``: cpu (percent of all cores), memory (bytes);
        ``note``: a sentence or "".
    """
    parts = []
    gpus = snapshot.get("gpus", ())
    activity = any(gpu.get("sm_activity") is not None for gpu in gpus)
    rows = [_row(gpu, activity) for gpu in gpus]
    if rows:
        extra = ["SM activity"] if activity else []
        parts.append(table(["", "name", "util", *extra, "memory", "power", "temperature"], rows))
    processes = [_process_row(process) for process in snapshot.get("processes", ())]
    if processes:
        parts.append(table(["", "pid", "user", "command", "SM", "GPU memory"], processes))
    host = snapshot.get("host") or {}
    if host:
        cpu, memory = _number(host.get("cpu"), "%"), host.get("memory")
        parts.append(f"host: cpu {cpu} of all cores, memory {_UNKNOWN if memory is None else bytes_text(memory)}")
    if snapshot.get("note"):
        parts.append(str(snapshot["note"]))
    return "\n".join(parts) or "Nothing measured yet."


def _process_row(process: Mapping[str, Any]) -> Sequence[str]:
    return [
        gpu_name({"index": process.get("gpu"), "label": process.get("label")}),
        str(process.get("pid", "")),
        str(process.get("user") or _UNKNOWN),
        str(process.get("command") or _UNKNOWN),
        _number(process.get("sm"), "%"),
        _number(process.get("memory"), "MiB"),
    ]


def _row(gpu: Mapping[str, Any], activity: bool) -> Sequence[str]:
    memory = _number(gpu.get("memory"), "MiB")
    total, limit = gpu.get("memory_total"), gpu.get("power_limit")
    power = _number(gpu.get("power"), "W")
    return [
        gpu_name(gpu),
        str(gpu.get("name") or ""),
        "lost" if gpu.get("lost") else _number(gpu.get("util"), "%"),
        *([_number(gpu.get("sm_activity"), "%")] if activity else []),
        memory if total is None else f"{memory} of {total:,.0f} MiB",
        power if limit is None else f"{power} of {limit:,.0f} W",
        _number(gpu.get("temperature"), "°C"),
    ]


def _number(value: float | None, unit: str) -> str:
    return _UNKNOWN if value is None or value != value else f"{value:,.0f} {unit}"


def repeat(
    view: Any,
    write: Callable[[str], Any],
    *,
    period: float,
    as_json: bool = False,
    rewrite: bool = False,
    once: bool = False,
) -> None:
    """Write measurements until an interrupt.

    Parameters
    ----------
    view
        What ``api.monitor`` returned.
    period
        Seconds from one to the next.
    rewrite
        Write each over the one before, as a terminal can.
    once
        Write one only.
    """
    lines, due = 0, time.monotonic()
    while True:
        snapshot = view.snapshot()
        text = json.dumps(snapshot) if as_json else snapshot_text(snapshot)
        # Up to the first line of the last table, and wipe what is below.
        write((f"\x1b[{lines}A\x1b[J" if rewrite and lines else "") + text + "\n")
        lines = text.count("\n") + 1
        if once:
            return
        due = max(due + period, time.monotonic())
        time.sleep(max(due - time.monotonic(), 0.0))
