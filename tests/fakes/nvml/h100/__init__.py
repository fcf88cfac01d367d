"""An H100 80GB HBM3 as it was recorded (driver 580.159.04, CUDA 13.0): what its calls cost, and a load by phases.

``prices.txt`` has the median CPU time of each call on the busy device (us): its calls keep their thread busy.
``trace.jsonl`` has facts and refused calls in its first line, then readings at 5 Hz through a scripted load. Ids are
replaced.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

PRICES = Path(__file__).with_name("prices.txt")


class Reading(NamedTuple):
    """One reading: seconds since the first, phase of the load, and values in the units of the fake's curves.

    `gpm` has the means from this reading to the next: graphics engine, SM activity, SM occupancy, tensor cores, DRAM
    (percent), PCIe sent, PCIe received (MiB/s).
    """

    t: float
    phase: str
    util: float
    memory: float
    power: float
    temperature: float
    clock: float
    gpm: tuple[float, ...]


def price(function: str) -> float:
    """Return what a call costs, in us."""
    prices = dict(line.split() for line in PRICES.read_text().splitlines())
    return float(prices[function])


@cache
def lines() -> list[dict[str, Any]]:
    """Return the facts, and the readings as they were recorded."""
    return [json.loads(line) for line in Path(__file__).with_name("trace.jsonl").read_text().splitlines()]


def refused() -> list[str]:
    """Return the functions that the device does not support."""
    return [name for name, one in lines()[0]["facts"].items() if isinstance(one, dict) and one.get("error") == 3]


def readings() -> Iterator[Reading]:
    """Yield the readings in their order."""
    rows = lines()[1:]
    for row, later in zip(rows, [*rows[1:], rows[-1]], strict=True):
        yield Reading(
            row["t"] - rows[0]["t"],
            row["phase"],
            row["nvmlDeviceGetUtilizationRates"]["value"]["gpu"],
            row["nvmlDeviceGetMemoryInfo"]["value"]["used"] / 2**20,
            row["nvmlDeviceGetPowerUsage"]["value"] / 1000,
            row["nvmlDeviceGetTemperature"]["value"],
            row["nvmlDeviceGetClockInfo"]["value"],
            tuple(value if value == value and value >= 0 else 0.0 for value in later.get("gpm") or [0.0] * 7),
        )


def curves(start: float = 0.0) -> list[str]:
    """Return the load as lines of the fake's curves, for all its GPUs, from `start` (seconds of its epoch)."""
    return [
        f"* {start + one.t:.3f} {one.util} {one.memory:.0f} {one.power:.1f} {one.temperature} {one.clock} "
        + " ".join(f"{value:.2f}" for value in one.gpm)
        for one in readings()
    ]
