"""``telemetry/summary-<node>.json``: what a run made of its machine, in a few numbers.

Taken minute by minute from the ticks; what is kept between is of one size for ever.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from . import gpu_figure_sums
from .gpu_sentinels import MAX_WATTS
from .minutes import Tick
from .protocol import SCHEMA, SUMMARY, AgentError, read_json, write_json

#: A longer pause between two ticks (seconds) is no time of the run: the machine slept.
LONGEST = 60.0
#: Percent under which a GPU counts as idle, and under which a busy CPU makes us look at the loader.
IDLE, LOW = 10, 50.0
#: MiB over the memory before the run that are use.
SLACK = 64
#: Points of utilization over those before the run that are use.
BUSY = 10
#: Sentences about the GPUs that are kept; of more, the first and the last.
MAX_NOTES = 100
#: Joules that a power reading may sum to while the driver's counter stands still.
STILL_J = 60.0
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
        #: The driver's counter of energy: first and last mJ, unix seconds of the last, whether it only grew.
        self.counter: Optional[List[Any]] = None
        self.figures_sums: gpu_figure_sums.Sums = {}
        if state:
            self.__dict__.update(state)

    def count(self, t: float, count: Optional[int], begin: Optional[int]) -> None:
        """Take the driver's counter (mJ); `begin`: where it stood when the file was begun."""
        if count is None:
            return
        if self.counter is None:
            self.counter = [count if begin is None else begin, count, t, begin is not None and begin <= count]
            return
        grown, seconds = count - self.counter[1], max(1.0, t - self.counter[2])
        # It began anew, or jumped further than any board draws: nobody knows what was used.
        good = self.counter[3] and 0 <= grown <= 1000 * MAX_WATTS * seconds
        self.counter[1:] = [count, t, good]

    def energy(self) -> Tuple[Optional[float], str]:
        """Wh, and whence: the driver's ``counter``, or samples of ``power`` times their seconds."""
        if self.counter is not None and self.counter[3]:
            joules = (self.counter[1] - self.counter[0]) / 1000
            if joules > 0 or (self.joules or 0.0) <= STILL_J:
                return joules / 3600, "counter"
        return (None, "") if self.joules is None else (self.joules / 3600, "power")

    def add(
        self,
        t: Sequence[float],
        columns: Sequence[Sequence[Any]],
        before: Optional[float],
        busy: Optional[float] = None,
    ) -> None:
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
                if max(u or 0, p or 0) >= (busy + BUSY if busy else 1) or grown:
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
        energy, source = self.energy()
        return {
            "memory_peak": self.memory[2] if self.memory[1] else None,
            "memory_mean": round(self.memory[0] / self.memory[1], 1) if self.memory[1] else None,
            "util_mean": round(util / count, 1) if count else None,
            "util_p50": self.percentile(0.5),
            "util_p95": self.percentile(0.95),
            "idle_share": round(sum(self.bins[:IDLE]) / count, 4) if count else None,
            "energy_wh": None if energy is None else round(energy, 4),
            "energy_source": source,
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
    more
        Called with the position of a GPU, returns further figures of it; ``None``: there are none.

    Attributes
    ----------
    seq, offset
        Number of the last tick in the figures, -1 for none, and the byte after it among the ticks.
    """

    def __init__(self, folder: str, header: Mapping[str, Any], more: Any = None) -> None:
        self.path = os.path.join(folder, SUMMARY % (header.get("node") or 0))
        self.more: Any = more or (lambda i: {})
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
        self.notes: List[List[Any]] = []  #: unix seconds and sentence
        self.notes_left_out = 0
        try:
            found = read_json(self.path) or {}
        except (OSError, AgentError):
            found = {}
        state = found.get("state")
        if isinstance(found.get("notes"), list):
            self.notes, self.notes_left_out = found["notes"], found.get("notes_left_out") or 0
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
            mine = columns[start : start + _WIDTH]
            self.sums[i].add(t, mine, gpu.get("baseline"), gpu.get("baseline_util"))
            start = len(self.names) + _WIDTH * len(self.gpus) + len(self.figures) * i
            gpu_figure_sums.add(self.sums[i].figures_sums, pauses, dict(zip(self.figures, columns[start:])))
        self.seq, self.offset, self.last = ticks[-1].seq, ticks[-1].end, ticks[-1].t

    def energy(self, i: int, t: float, count: Optional[int]) -> None:
        """Take the energy counter (mJ) of the GPU at position `i`, read at `t` (unix seconds)."""
        self.sums[i].count(t, count, self.gpus[i].get("energy"))

    def note(self, t: float, sentences: Sequence[str]) -> None:
        """Keep what happened to the GPUs at `t` (unix seconds), on disk at once."""
        self.notes += [[t, sentence] for sentence in sentences]
        while len(self.notes) > MAX_NOTES:
            del self.notes[MAX_NOTES // 2]
            self.notes_left_out += 1
        self.save()

    def value(self) -> Dict[str, Any]:
        """The file's content; units are in its keys' description (percent, MiB, Wh, W, C, seconds; bytes)."""
        gpus = [
            dict(
                index=gpu.get("index"),
                name=gpu.get("name"),
                memory_total=gpu.get("memory_total"),
                **x.figures(self.began),
                **self.more(i),
            )
            for i, (gpu, x) in enumerate(zip(self.gpus, self.sums))
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
            "notes": self.notes,
            "notes_left_out": self.notes_left_out,
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
