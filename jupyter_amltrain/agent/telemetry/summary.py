"""``telemetry/summary-<node>.json``: a run's use of its machine, in a few numbers.

Computed minute by minute from the ticks; the state between minutes has a constant size.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..protocol import SCHEMA, SUMMARY, AgentError, read_json, write_json
from .advice import IDLE_PERCENT, Evidence, advice
from .gpu_columns import BY_NAME, MAX_WATTS, SUM, TICKS
from .reduce import Reducer, highest
from .telemetry_files import Tick

#: Seconds: a longer pause between two ticks is not counted as time of the run, because the machine slept.
MAX_PAUSE_S = 60.0
#: MiB over the memory before the run that count as use.
MEMORY_SLACK_MIB = 64
#: Percentage points of utilization over those before the run that count as use.
BUSY_POINTS = 10
#: Maximum number of sentences about the GPUs; of more, the first and the last are kept.
MAX_NOTES = 100
#: Joules that power readings may sum to while the driver's counter does not change.
STILL_J = 60.0


class _Gpu:
    """Sums of one GPU; all attributes are stored in the file between restarts."""

    def __init__(self, state: Optional[Mapping[str, Any]] = None) -> None:
        self.bins = [0] * 101
        self.memory = Reducer()
        self.joules: Optional[float] = None
        self.powered = 0.0  # seconds with a power reading
        self.power: Optional[float] = None  # of the last tick
        self.hot: Optional[float] = None
        self.first: Optional[float] = None
        #: The driver's energy counter: first and last mJ, unix seconds of the last, whether it only increased.
        self.counter: Optional[List[Any]] = None
        #: For each figure, its value x seconds.
        self.figures_sums: Dict[str, Reducer] = {}
        self.evidence = Evidence()
        if state:
            self.__dict__.update(state)
            self.memory = Reducer(*state["memory"])
            self.figures_sums = {name: Reducer(*sums[:2]) for name, sums in state["figures_sums"].items()}
            self.evidence = Evidence(state.get("evidence"))

    def state(self) -> Dict[str, Any]:
        """Return the values for the file, from which another sampler resumes."""
        figures = {name: sums.state()[:2] for name, sums in self.figures_sums.items()}
        return dict(
            self.__dict__, memory=self.memory.state(), figures_sums=figures, evidence=self.evidence.state()
        )  # fmt: skip

    def count(self, t: float, count: Optional[int], begin: Optional[int]) -> None:
        """Add a value of the driver's counter (mJ); `begin`: its value in the header of the file."""
        if count is None:
            return
        if self.counter is None:
            self.counter = [count if begin is None else begin, count, t, begin is not None and begin <= count]
            return
        grown, seconds = count - self.counter[1], max(1.0, t - self.counter[2])
        # The counter was reset, or jumped further than any board draws: the use is unknown.
        good = self.counter[3] and 0 <= grown <= 1000 * MAX_WATTS * seconds
        self.counter[1:] = [count, t, good]

    def energy(self) -> Tuple[Optional[float], str]:
        """Return Wh and the source: the driver's ``counter``, or samples of ``power`` times their seconds."""
        if self.counter is not None and self.counter[3]:
            joules = (self.counter[1] - self.counter[0]) / 1000
            if joules > 0 or (self.joules or 0.0) <= STILL_J:
                return joules / 3600, "counter"
        return (None, "") if self.joules is None else (self.joules / 3600, "power")

    def add(
        self,
        t: Sequence[float],
        columns: Mapping[str, Sequence[Any]],
        before: Optional[float],
        busy: Optional[float] = None,
    ) -> None:
        """Add ticks: `columns` by name; `t` has one more time, that of the tick before the first."""
        util, peak, memory = columns["util"], columns["peak"], columns["memory"]
        for value in util:
            if value is not None:
                self.bins[min(100, max(0, int(value)))] += 1
        self.memory.add_all(memory)
        self.hot = highest((self.hot, *columns["temperature"]))
        for i, watts in enumerate(columns["power"]):
            pause = t[i + 1] - t[i]
            if watts is not None and self.power is not None and 0 < pause < MAX_PAUSE_S:
                self.joules = (self.joules or 0.0) + (watts + self.power) / 2 * pause
                self.powered += pause
            self.power = watts
        if self.first is None:
            for at, u, p, m in zip(t[1:], util, peak, memory):
                grown = m is not None and before is not None and m > before + MEMORY_SLACK_MIB
                if max(u or 0, p or 0) >= (busy + BUSY_POINTS if busy else 1) or grown:
                    self.first = at
                    break

    def add_figures(self, pauses: Sequence[float], columns: Mapping[str, Sequence[Any]]) -> None:
        """Add figures of ticks: `columns` by name, weighted by the seconds of each tick (0: no time)."""
        for name, values in columns.items():
            self.figures_sums.setdefault(name, Reducer()).add_all(values, pauses)

    def add_evidence(
        self, pauses: Sequence[float], columns: Mapping[str, Sequence[Any]], cpu: Sequence[Any], busy: Optional[float]
    ) -> None:
        """Add ticks to the evidence: `columns` by name, and the run's CPU (percent of one core)."""
        sm = columns.get("sm_activity") or [None] * len(pauses)
        for row in zip(pauses, columns["util"], columns["peak"], sm, cpu):
            self.evidence.add(*row, before=busy or 0.0)

    def figure_results(self) -> Dict[str, Any]:
        """Return ``<figure>_mean``; for a share of time ``<figure>_s``, seconds. ``None``: never known."""
        results: Dict[str, Any] = {}
        for name, sums in self.figures_sums.items():
            if name in BY_NAME and BY_NAME[name].reducer == SUM:
                results[name + "_s"] = round(sums.total / 100, 1) if sums.weight else None
            else:
                results[name + "_mean"] = sums.mean(1)
        return results

    def copy_share(self) -> Optional[float]:
        """Return the share of the time since the first use in which the GPU only copied; ``None``: unknown."""
        found = self.evidence
        return round(found.copying / found.seconds, 4) if found.seconds and "sm_activity" in self.figures_sums else None

    def percentile(self, share: float) -> Optional[int]:
        """Return the lowest utilization that this share of ticks does not exceed."""
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
            "memory_peak": self.memory.high,
            "memory_mean": self.memory.mean(1),
            "util_mean": round(util / count, 1) if count else None,
            "util_p50": self.percentile(0.5),
            "util_p95": self.percentile(0.95),
            "idle_share": round(sum(self.bins[:IDLE_PERCENT]) / count, 4) if count else None,
            "energy_wh": None if energy is None else round(energy, 4),
            "energy_source": source,
            "power_mean": round((self.joules or 0.0) / self.powered, 1) if self.powered else None,
            "first_use": None if self.first is None or began is None else round(max(0.0, self.first - began), 1),
            "temperature_max": self.hot,
            "copy_share": self.copy_share(),
            **self.figure_results(),
        }


class Summary:
    """The file with the summary.

    Parameters
    ----------
    folder
        Folder that holds ``telemetry``.
    header
        First line of the telemetry file; its ``node`` gives the file's name.
    more
        Called with the position of a GPU, returns further figures of it; ``None``: no further figures.

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
        self.gpu_columns: List[str] = list(header.get("gpu_columns") or (column.name for column in TICKS))
        ticks = {column.name for column in TICKS}
        self.figures = [name for name in self.gpu_columns if name not in ticks]
        self.seq, self.offset = -1, 0
        self.began: Optional[float] = None
        self.last: Optional[float] = None
        self.seconds = 0.0
        self.cpu = Reducer()
        self.memory: Optional[float] = None
        self.sums = [_Gpu() for _ in self.gpus]
        self.notes: List[List[Any]] = []  #: unix seconds and sentence
        self.notes_left_out = 0
        try:
            stored = read_json(self.path) or {}
        except (OSError, AgentError):
            stored = {}
        state = stored.get("state")
        if isinstance(stored.get("notes"), list):
            self.notes, self.notes_left_out = stored["notes"], stored.get("notes_left_out") or 0
        if isinstance(state, dict) and len(state.get("sums", ())) == len(self.gpus):
            self.sums = [_Gpu(one) for one in state.pop("sums")]
            self.__dict__.update(state)
            self.cpu = Reducer(*state["cpu"])

    def add(self, ticks: Sequence[Tick]) -> None:
        """Add the ticks of a closed minute; those that were added already are left out."""
        ticks = [tick for tick in ticks if tick.seq > self.seq]
        if not ticks:
            return
        columns = list(zip(*(tick.values for tick in ticks)))
        host = dict(zip(self.names, columns))
        # One more time than ticks: the pause before each.
        t = [self.last if self.last is not None else ticks[0].t] + [tick.t for tick in ticks]
        pauses = [b - a if 0 < b - a < MAX_PAUSE_S else 0.0 for a, b in zip(t, t[1:])]
        self.seconds += sum(pauses)
        if self.began is None:
            present = (tick.t for tick, count in zip(ticks, host["processes"]) if count)
            self.began = next(present, None)
        self.cpu.add_all(host["cpu"])
        self.memory = highest((self.memory, *host["memory"]))
        width = len(self.gpu_columns)
        for i, gpu in enumerate(self.gpus):
            start = len(self.names) + width * i
            own = dict(zip(self.gpu_columns, columns[start : start + width]))
            self.sums[i].add(t, own, gpu.get("baseline"), gpu.get("baseline_util"))
            self.sums[i].add_figures(pauses, {name: own[name] for name in self.figures})
            self.sums[i].add_evidence(pauses, own, host["cpu"], gpu.get("baseline_util"))
        self.seq, self.offset, self.last = ticks[-1].seq, ticks[-1].end, ticks[-1].t

    @property
    def only_copied(self) -> bool:
        """Whether GPUs were busy with copies, and none computed."""
        used = [one.evidence for one in self.sums if one.evidence.seconds]
        return bool(used) and all(one.only_copied for one in used)

    def energy(self, i: int, t: float, count: Optional[int]) -> None:
        """Add the energy counter (mJ) of the GPU at position `i`, read at `t` (unix seconds)."""
        self.sums[i].count(t, count, self.gpus[i].get("energy"))

    def note(self, t: float, sentences: Sequence[str]) -> None:
        """Store sentences about the GPUs at `t` (unix seconds), and save immediately."""
        self.notes += [[t, sentence] for sentence in sentences]
        while len(self.notes) > MAX_NOTES:
            del self.notes[MAX_NOTES // 2]
            self.notes_left_out += 1
        self.save()

    def value(self) -> Dict[str, Any]:
        """Return the file's content; units are percent, MiB, Wh, W, C and seconds; bytes for host memory."""
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
        cpu_mean = self.cpu.mean(1)
        state = {key: getattr(self, key) for key in ("seq", "offset", "began", "last", "seconds", "memory")}
        state.update(cpu=self.cpu.state(), sums=[one.state() for one in self.sums])
        return {
            "schema": SCHEMA,
            "seq": self.seq,
            "seconds": round(self.seconds, 1),
            "gpus": gpus,
            "cpu_mean": cpu_mean,
            "cpu_peak": self.cpu.high,
            "memory_peak": self.memory,
            "cpus": self.header.get("cpus"),
            "hint": advice([one.evidence for one in self.sums], self.header.get("cpus")),
            "notes": self.notes,
            "notes_left_out": self.notes_left_out,
            "state": state,
        }

    def save(self) -> None:
        """Replace the file; a full disk leaves the old one, which the next save replaces."""
        try:
            write_json(self.path, self.value())
        except OSError:  # see above
            pass
