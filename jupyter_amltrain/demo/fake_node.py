"""Simulated telemetry in the format of ``agent/telemetry/sampler.py``.

Every value is computed from node, GPU and tick number, so that all readers get the same values.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from jupyter_amltrain.agent.telemetry.gpu_columns import TICKS
from jupyter_amltrain.agent.telemetry.host import COLUMNS as HOST_COLUMNS
from jupyter_amltrain.agent.telemetry.reduce import Reducer, reduce

#: Name, memory in MiB, power limit in W and base memory use in MiB of each fake GPU.
NAME, SIZE, LIMIT, BASELINE = "Fake H100 80GB", 81_920, 700, 512
CPUS, MEMORY = 8, 32 << 30
_PID = 4711


@functools.cache
def uuid_of(node: int, index: int) -> str:
    """Return the UUID of a fake GPU."""
    return f"GPU-fa4e{node:04x}-0000-0000-0000-{index:012x}"


def gpu_values(node: int, index: int, seconds: float, idle: bool = False, size: int = SIZE) -> dict[str, float]:
    """Return the values of tick columns `seconds` after the first tick.

    A GPU in use loads for two seconds, then works in a slow wave, each in its own phase; `size` is its memory in MiB.
    """
    if idle:
        return _reading(0, 0, BASELINE, 68.5, 31, 345)
    if seconds < 2:
        return _reading(0, 0, BASELINE + 400, 92.0, 33, 1980)
    util = round(75 + 20 * math.sin(seconds / 40 + index + 3 * node))
    grown = round(size / SIZE * 40_000 * (1 - math.exp(-seconds / 10)))
    memory = min(size - 4096, BASELINE + 400 + grown + 256 * index)
    return _reading(util, min(100, util + 5), memory, 150 + 5 * util, 40 + util // 4 + index % 4, 1980)


def _reading(
    util: float, peak: float, memory: float, power: float, temperature: float, sm_clock: float
) -> dict[str, float]:
    return {
        "util": util, "peak": peak, "memory": memory, "power": power, "temperature": temperature, "sm_clock": sm_clock,
    }  # fmt: skip


def host_values(node: int, seconds: float, gpus: int) -> list[float]:
    """Return the values of :data:`HOST_COLUMNS` `seconds` after the first tick."""
    cpu = round(180 + 20 * math.sin(seconds / 25 + node), 1)
    memory = (2 << 30) + int(seconds) % 60 * (1 << 20)
    moved = int(seconds * 1_000_000)
    return [cpu, memory, 1 + max(1, gpus), round(cpu / CPUS, 1), memory + (3 << 30), moved, moved // 10, moved, 9000]


class FakeNode:
    """The files that the sampler of one node has written so far.

    Parameters
    ----------
    start
        Unix seconds of the first tick.
    gpus
        Indices of its GPUs.
    period
        Seconds between ticks.
    idle
        Whether the GPUs are unused.
    model
        Name of a GPU, and its memory in MiB.
    """

    def __init__(
        self,
        node: int,
        gpus: Sequence[int],
        start: float,
        period: float,
        idle: bool = False,
        model: tuple[str, int] = (NAME, SIZE),
    ) -> None:
        self.node, self.gpus, self.start, self.period, self.idle = node, tuple(gpus), start, period, idle
        self.name, self.size = model
        self.ticks = 0
        self.raw = bytearray(_line(self._header()))
        names = [name for name, _ in HOST_COLUMNS]
        names += [f"gpu{index}.{column.name}" for index in self.gpus for column in TICKS]
        self.minutes = bytearray(_line({"schema": 1, "columns": names, "period": 60}))
        self._open: list[list[Any]] = []  # ticks of the current minute
        self._after = 0
        self._cpu, self._memory = Reducer(), Reducer()
        self._gpu_sums = [{column.name: Reducer() for column in TICKS} for _ in gpus]
        self._utils = [[0] * 101 for _ in gpus]  # ticks by utilization
        self._first: list[float | None] = [None] * len(self.gpus)

    def upto(self, seconds: float) -> FakeNode:
        """Write the ticks until `seconds` after the start; return the node."""
        while self.ticks * self.period <= seconds:
            self._tick()
        return self

    def _tick(self) -> None:
        seq, seconds = self.ticks, self.ticks * self.period
        t = round(self.start + seconds, 3)
        boundary = bool(self._open) and t // 60 > self._open[0][1] // 60
        if boundary:
            self._close_minute()
        gpu_rows = [gpu_values(self.node, index, seconds, self.idle, self.size) for index in self.gpus]
        if self.gpus and (boundary or seq == 0):
            self._slow(seq, gpu_rows)
        row: list[Any] = [seq, t, *host_values(self.node, seconds, len(self.gpus))]
        row += [values.get(column.name) for values in gpu_rows for column in TICKS]
        self.raw += _line(row)
        self._after = len(self.raw)
        self._open.append(row)
        self._add(seconds, row, gpu_rows)
        self.ticks += 1

    def _slow(self, seq: int, gpu_rows: Sequence[Mapping[str, float]]) -> None:
        used = [0 if self.idle else round(values["memory"]) - BASELINE for values in gpu_rows]
        slow = {"mem_clock": 2619, "throttle": 0, "ecc": 0, "power_limit": LIMIT}
        rows = [[i, {**slow, "mine": mine, "others": 0}] for i, mine in zip(self.gpus, used, strict=True)]
        self.raw += _line({"seq": seq, "gpu": rows})
        if not self.idle:
            found = [[i, _PID + i, "mine", mine, "python"] for i, mine in zip(self.gpus, used, strict=True)]
            self.raw += _line({"seq": seq, "processes": found})

    def _close_minute(self) -> None:
        rows = self._open
        columns = [reduce(column) for column in zip(*(row[2:] for row in rows), strict=True)]
        means = [None if column.mean is None else round(column.mean, 3) for column in columns]
        row = [rows[-1][0], rows[0][1], rows[-1][1], len(rows), self._after]
        self.minutes += _line([*row, [column.low for column in columns], means, [column.high for column in columns]])
        self._open = []

    def _add(self, seconds: float, row: Sequence[float], gpu_rows: Sequence[Mapping[str, float]]) -> None:
        self._cpu.add(row[2])
        self._memory.add(row[3])
        for at, values in enumerate(gpu_rows):
            self._utils[at][int(values["util"])] += 1
            for name, value in values.items():
                self._gpu_sums[at][name].add(value)
            if self._first[at] is None and values["util"] >= 1:
                self._first[at] = seconds

    def summary(self) -> bytes:
        """Return the content of ``summary-N.json`` for the ticks so far."""
        n = self.ticks
        if not n:
            return b""
        value = {
            "schema": 1,
            "seq": n - 1,
            "seconds": round(n * self.period, 3),
            "gpus": [self._gpu_summary(at, index) for at, index in enumerate(self.gpus)],
            "cpu_mean": self._cpu.mean(1),
            "cpu_peak": self._cpu.high,
            "memory_peak": self._memory.high,
            "cpus": CPUS,
            "hint": "",
            "state": {},
        }
        return _line(value)

    def _gpu_summary(self, at: int, index: int) -> dict[str, Any]:
        sums, counts = self._gpu_sums[at], self._utils[at]
        return {
            "index": index,
            "name": self.name,
            "memory_total": self.size,
            "memory_peak": sums["memory"].high,
            "memory_mean": sums["memory"].mean(1),
            "util_mean": sums["util"].mean(1),
            "util_p50": _percentile(counts, 0.5),
            "util_p95": _percentile(counts, 0.95),
            "idle_share": round(sum(counts[:10]) / self.ticks, 4),
            "energy_wh": round(sums["power"].total * self.period / 3600, 3),
            "power_mean": sums["power"].mean(1),
            "first_use": self._first[at],
            "temperature_max": sums["temperature"].high,
        }

    def _header(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "columns": ["seq", "t", *(name for name, _ in HOST_COLUMNS)],
            "units": ["1", "unix s", *(unit for _, unit in HOST_COLUMNS)],
            "memory_total": MEMORY,
            "cpus": CPUS,
            "period": self.period,
            "node": self.node,
            "host": f"fake-{self.node}",
            "gpu_columns": [column.name for column in TICKS],
            "gpu_units": [column.unit for column in TICKS],
            "gpus": [
                {
                    "index": index,
                    "uuid": uuid_of(self.node, index),
                    "name": self.name,
                    "memory_total": self.size,
                    "power_limit": LIMIT,
                    "baseline": BASELINE,
                    "mig": False,
                }
                for index in self.gpus
            ],
            "gpu_note": "" if self.gpus else "a fake target without GPUs",
        }


def _percentile(counts: Sequence[int], share: float) -> int:
    """Return the lowest value that at least `share` of the ticks do not exceed."""
    rank, seen = math.ceil(sum(counts) * share), 0
    for value, count in enumerate(counts):
        seen += count
        if seen >= rank:
            return value
    return 0


def _line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
