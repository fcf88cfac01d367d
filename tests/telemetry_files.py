"""Writes what the agent's sampler leaves in ``telemetry/``: raw rows, minutes, summary, truth.

A stand-in for hours of sampling, for the tests of those who read the files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

#: Unix seconds of the first tick, at a full minute.
START = 1_700_000_040.0
HOST = ("cpu", "memory", "processes", "host_cpu", "host_memory", "read_bytes", "write_bytes", "net_rx", "net_tx")
GPU = ("util", "peak", "memory", "power", "temperature", "sm_clock")
#: MiB on one of the GPUs, and the watts that it may draw.
SIZE, LIMIT = 81_559, 700

#: GPU number and seconds since the start -> values of :data:`GPU`; ``None`` for what it cannot tell.
Curve = Callable[[int, float], Sequence[float | None]]


def busy(gpu: int, seconds: float) -> Sequence[float | None]:
    """A GPU in use: each another phase of a slow wave, memory that has grown within a minute."""
    util = round(70 + 25 * math.sin(seconds / 40 + gpu))
    return util, min(100, util + 5), min(40_000 + 1000 * gpu, 700 * int(seconds + 1)), 300 + util, 55 + gpu % 8, 1980


def idle(gpu: int, seconds: float) -> Sequence[float | None]:
    """A GPU that nobody uses."""
    return 0, 0, 4, 68.5, 31, 345


def host(seconds: float, gpus: int) -> list[Any]:
    """Values of :data:`HOST`."""
    cpu = round(180 + 20 * math.sin(seconds / 25), 1)
    gib = 2**30
    return [cpu, 3 * gib, 4 + gpus, round(cpu / 8, 1), 9 * gib, int(4096 * seconds), 0, int(1e6 * seconds), 5000]


def write_node(
    folder: Path,
    node: int = 0,
    gpus: int = 0,
    seconds: float = 60,
    *,
    period: float = 1.0,
    start: float = START,
    curve: Curve = busy,
    host_name: str = "",
    note: str = "",
    hint: str = "",
    minutes: bool = True,
    summary: bool = True,
) -> None:
    """Write new ``node-N.jsonl`` and, on request, ``minutes-N.jsonl`` and ``summary-N.json``.

    Parameters
    ----------
    folder
        The run folder.
    seconds
        Length of the run; a minute is closed by the first tick after it.
    curve
        What the GPUs do.
    note
        Why there is no GPU reading.
    hint
        Sentence of the summary.
    """
    place = folder / "telemetry"
    place.mkdir(parents=True, exist_ok=True)
    header = {
        "schema": 1,
        "columns": ["seq", "t", *HOST],
        "units": ["1", "unix s", "percent of one core", "bytes", "1", "percent of all cores", *["bytes"] * 5],
        "memory_total": 64 * 2**30,
        "cpus": 8,
        "period": period,
        "node": node,
        "host": host_name or f"node{node}",
        "gpu_columns": list(GPU),
        "gpu_units": ["percent", "percent", "MiB", "W", "C", "MHz"],
        "gpus": [_gpu(index, node) for index in range(gpus)],
        "gpu_note": note,
    }
    rows, offset, ticks, raw = [], 0, [], bytearray(_line(header))
    closed = bytearray(_line({"schema": 1, "columns": _names(gpus), "period": 60}))
    for seq in range(round(seconds / period)):
        t = round(start + seq * period, 3)
        values = host(seq * period, gpus) + [v for gpu in range(gpus) for v in curve(gpu, seq * period)]
        if ticks and t // 60 > ticks[0][1] // 60:
            closed += _minute(ticks, offset)
            ticks = []
        if gpus and (seq == 0 or not ticks):
            slow = {"mem_clock": 2619, "throttle": 0, "ecc": 0, "power_limit": LIMIT, "mine": None, "others": None}
            raw += _line({"seq": seq, "gpu": [[index, slow] for index in range(gpus)]})
        row = [seq, t, *values]
        raw += _line(row)
        offset = len(raw)
        ticks.append(row)
        rows.append(row)
    (place / f"node-{node}.jsonl").write_bytes(raw)
    if minutes:
        (place / f"minutes-{node}.jsonl").write_bytes(closed)
    if summary:
        (place / f"summary-{node}.json").write_text(json.dumps(summary_of(rows, gpus, period, hint)))


def summary_of(rows: list[list[Any]], gpus: int, period: float, hint: str = "") -> dict[str, Any]:
    """What ``summary-N.json`` says of raw rows."""
    before = 2 + len(HOST)
    found = []
    for index in range(gpus):
        util, _, memory, power, temperature, _ = (
            [row[before + index * len(GPU) + i] for row in rows if row[before + index * len(GPU) + i] is not None]
            for i in range(len(GPU))
        )
        ordered = sorted(util)
        found.append(
            {
                "index": index,
                "name": "Fake H100",
                "memory_total": SIZE,
                "memory_peak": max(memory, default=None),
                "memory_mean": _mean(memory),
                "util_mean": _mean(util),
                "util_p50": ordered[len(ordered) // 2] if util else None,
                "util_p95": ordered[int(len(ordered) * 0.95)] if util else None,
                "idle_share": _mean([value < 10 for value in util]),
                "energy_wh": round(sum(power) * period / 3600, 3) if power else None,
                "energy_source": "power" if power else "",
                "power_mean": _mean(power),
                "first_use": next((i * period for i, value in enumerate(util) if value > 0), None),
                "temperature_max": max(temperature, default=None),
                "copy_share": None,
            }
        )
    return {
        "schema": 1,
        "seq": rows[-1][0],
        "seconds": len(rows) * period,
        "gpus": found,
        "cpu_mean": _mean([row[2] for row in rows]),
        "cpu_peak": max(row[2] for row in rows),
        "memory_peak": max(row[3] for row in rows),
        "cpus": 8,
        "hint": hint,
        "notes": [],
        "notes_left_out": 0,
        "state": {},
    }


def _gpu(index: int, node: int) -> dict[str, Any]:
    uuid = f"GPU-{node:08x}-0000-0000-0000-{index:012x}"
    sizes = {"memory_total": SIZE, "power_limit": LIMIT, "baseline": 4}
    return {"index": index, "uuid": uuid, "name": "Fake H100", **sizes, "mig": False}


def _names(gpus: int) -> list[str]:
    return [*HOST, *(f"gpu{index}.{name}" for index in range(gpus) for name in GPU)]


def _minute(ticks: list[list[Any]], offset: int) -> bytes:
    columns = [[v for v in column if v is not None] for column in zip(*(row[2:] for row in ticks), strict=True)]
    least, most = ([function(c) if c else None for c in columns] for function in (min, max))
    row = [ticks[-1][0], ticks[0][1], ticks[-1][1], len(ticks), offset, least, [_mean(c) for c in columns], most]
    return _line(row)


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None


def _line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
