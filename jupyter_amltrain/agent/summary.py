"""``telemetry/summary-<node>.json``: what a run made of its machine, in a few numbers.

Taken minute by minute from the ticks; what is kept between is of one size for ever.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Optional, Sequence

from . import gpu_figure_sums
from .minutes import Tick
from .protocol import SCHEMA, SUMMARY, AgentError, read_json, write_json

#: A longer pause between two ticks (seconds) is no time of the run: the machine slept.
LONGEST = 60.0
#: Percent under which a GPU counts as idle, and under which a busy CPU makes us look at the loader.
IDLE, LOW = 10, 50.0
#: MiB over the memory before the run that are use.
SLACK = 64
_WIDTH = 6  # columns of a GPU: util, peak, memory, power, temperature, sm_clock


class _Gpu:
    """Sums of one GPU; all of it is kept in the file between restarts."""

    def __init__(self, state: Optional[Mapping[str, Any]] = None) -> None:
        self.bins = [0] * 101
        self.memory = [0, 0, 0]  # sum, count, most
        self.joules: Optional[float] = None
        self.powered = 0.0  # seconds with a power reading
        self.power: Optional[float] = None  # of the last tick
        self.hot: Optional[float] = None
        self.first: Optional[float] = None
        self.figures_sums: gpu_figure_sums.Sums = {}
        if state:
            self.__dict__.update(state)

    def add(self, t: Sequence[float], columns: Sequence[Sequence[Any]], before: Optional[float]) -> None:
        util, peak, memory, power, temperature, _ = columns
        for value in util:
            if value is not None:
                self.bins[min(100, max(0, int(value)))] += 1
        known = [value for value in memory if value is not None]
        if known:
            self.memory = [self.memory[0] + sum(known), self.memory[1] + len(known), max(self.memory[2], *known)]
        self.hot = max((x for x in (self.hot, *temperature) if x is not None), default=None)
        for i, watts in enumerate(power):
            pause = t[i + 1] - t[i]
            if watts is not None and self.power is not None and 0 < pause < LONGEST:
                self.joules = (self.joules or 0.0) + (watts + self.power) / 2 * pause
                self.powered += pause
            self.power = watts
        if self.first is None:
            for at, u, p, m in zip(t[1:], util, peak, memory):
                grown = m is not None and before is not None and m > before + SLACK
                if (u or 0) >= 1 or (p or 0) >= 1 or grown:
                    self.first = at
                    break

    def percentile(self, share: float) -> Optional[int]:
        """Least utilization that this share of ticks does not exceed."""
        total, seen = sum(self.bins), 0
        for percent, count in enumerate(self.bins):
            seen += count
            if count and seen >= share * total:
                return percent
        return None

    def figures(self, began: Optional[float]) -> Dict[str, Any]:
        count = sum(self.bins)
        util = sum(i * x for i, x in enumerate(self.bins))
        return {
            "memory_peak": self.memory[2] if self.memory[1] else None,
            "memory_mean": round(self.memory[0] / self.memory[1], 1) if self.memory[1] else None,
            "util_mean": round(util / count, 1) if count else None,
            "util_p50": self.percentile(0.5),
            "util_p95": self.percentile(0.95),
            "idle_share": round(sum(self.bins[:IDLE]) / count, 4) if count else None,
            "energy_wh": None if self.joules is None else round(self.joules / 3600, 4),
            "power_mean": round((self.joules or 0.0) / self.powered, 1) if self.powered else None,
            "first_use": None if self.first is None or began is None else round(max(0.0, self.first - began), 1),
            "temperature_max": self.hot,
            **gpu_figure_sums.results(self.figures_sums),
        }


class Summary:
    """The summary's file.

    Parameters
    ----------
    folder
        Folder that holds ``telemetry``.
    header
        First line of the telemetry file; its ``node`` names ours.

    Attributes
    ----------
    seq, offset
        Number of the last tick in the figures, -1 for none, and the byte after it among the ticks.
    """

    def __init__(self, folder: str, header: Mapping[str, Any]) -> None:
        self.path = os.path.join(folder, SUMMARY % (header.get("node") or 0))
        self.header = header
        self.gpus: List[Dict[str, Any]] = list(header.get("gpus") or ())
        self.names = list(header["columns"])[2:]
        self.figures: List[str] = list(header.get("gpu_figures") or ())
        self.seq, self.offset = -1, 0
        self.began: Optional[float] = None
        self.last: Optional[float] = None
        self.seconds = 0.0
        self.cpu: List[Any] = [0.0, 0, None]  # sum, count, most
        self.memory: Optional[float] = None
        self.sums = [_Gpu() for _ in self.gpus]
        try:
            state = (read_json(self.path) or {}).get("state")
        except (OSError, AgentError):
            state = None
        if isinstance(state, dict) and len(state.get("sums", ())) == len(self.gpus):
            self.sums = [_Gpu(one) for one in state.pop("sums")]
            self.__dict__.update(state)

    def add(self, ticks: Sequence[Tick]) -> None:
        """Take the ticks of a closed minute; those that are in the figures already are left out."""
        ticks = [tick for tick in ticks if tick.seq > self.seq]
        if not ticks:
            return
        columns = list(zip(*(tick.values for tick in ticks)))
        host = dict(zip(self.names, columns))
        # One time more than ticks: the pause before each.
        t = [self.last if self.last is not None else ticks[0].t] + [tick.t for tick in ticks]
        pauses = [b - a if 0 < b - a < LONGEST else 0.0 for a, b in zip(t, t[1:])]
        self.seconds += sum(pauses)
        if self.began is None:
            present = (tick.t for tick, count in zip(ticks, host["processes"]) if count)
            self.began = next(present, None)
        cpu = [value for value in host["cpu"] if value is not None]
        if cpu:
            self.cpu = [self.cpu[0] + sum(cpu), self.cpu[1] + len(cpu), max([*cpu, self.cpu[2] or 0.0])]
        self.memory = max((x for x in (self.memory, *host["memory"]) if x is not None), default=None)
        for i, gpu in enumerate(self.gpus):
            start = len(self.names) + _WIDTH * i
            self.sums[i].add(t, columns[start : start + _WIDTH], gpu.get("baseline"))
            start = len(self.names) + _WIDTH * len(self.gpus) + len(self.figures) * i
            gpu_figure_sums.add(self.sums[i].figures_sums, pauses, dict(zip(self.figures, columns[start:])))
        self.seq, self.offset, self.last = ticks[-1].seq, ticks[-1].end, ticks[-1].t

    def value(self) -> Dict[str, Any]:
        """The file's content; units are in its keys' description (percent, MiB, Wh, W, C, seconds; bytes)."""
        gpus = [
            dict(
                index=gpu.get("index"),
                name=gpu.get("name"),
                memory_total=gpu.get("memory_total"),
                **x.figures(self.began),
            )
            for gpu, x in zip(self.gpus, self.sums)
        ]
        cpu_mean = round(self.cpu[0] / self.cpu[1], 1) if self.cpu[1] else None
        kept = ("seq", "offset", "began", "last", "seconds", "cpu", "memory")
        return {
            "schema": SCHEMA,
            "seq": self.seq,
            "seconds": round(self.seconds, 1),
            "gpus": gpus,
            "cpu_mean": cpu_mean,
            "cpu_peak": self.cpu[2],
            "memory_peak": self.memory,
            "cpus": self.header.get("cpus"),
            "hint": hint([gpu["util_mean"] for gpu in gpus], cpu_mean, self.header.get("cpus")),
            "state": dict({key: getattr(self, key) for key in kept}, sums=[one.__dict__ for one in self.sums]),
        }

    def save(self) -> None:
        """Replace the file; a full disk leaves the old one, and the ticks from which to make the new."""
        try:
            write_json(self.path, self.value())
        except OSError:
            pass


def hint(utils: Sequence[Optional[float]], cpu: Optional[float], cpus: Optional[int]) -> str:
    """Whether the GPUs seem to have waited for the CPU: one sentence of what was measured, or nothing.

    Parameters
    ----------
    utils
        Mean utilization of each GPU, percent.
    cpu
        Mean CPU of the run's processes, percent of one core.
    cpus
        Cores that the run could use.
    """
    known = [value for value in utils if value is not None]
    if not known or cpu is None or not cpus:
        return ""
    mean = sum(known) / len(known)
    if not 1 <= mean < LOW:  # at 0 nobody waited for data
        return ""
    seen = "GPU utilization was %.0f %% on average while the run's processes used %.1f of %d CPU cores" % (
        mean, cpu / 100, cpus,
    )  # fmt: skip
    if cpu >= 80.0 * cpus:
        return seen + ": the CPU seems to hold the GPU up. Prepare the data beforehand, or on the GPU."
    if 85 <= cpu <= 130:
        return seen + ": one process seems to prepare the data. Give the loader workers (num_workers)."
    return ""
