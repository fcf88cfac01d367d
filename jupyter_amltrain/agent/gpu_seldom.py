"""GPU values that are written only when they change: slow values, processes and notes."""

from __future__ import annotations

from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

from . import clock
from .gpu_process_load import ProcessLoad
from .gpu_processes import Owners
from .gpu_readings import GpuReadings
from .gpu_slow import SlowReader
from .process_names import command_of, user_of
from .torch_memory import TORCH

#: A memory that changed by less (share) is the same, and a longer list comes this rarely (seconds).
SAME_MEMORY_SHARE, PROCESSES_INTERVAL_S = 0.01, 5.0
#: SM shares of processes are written when one changed by so much (percentage points).
MIN_SM_CHANGE = 5
_MEMORIES = ("mine", "others", *TORCH)


class SlowMetrics:
    """Slow values of the GPUs, and which of them the telemetry file has.

    Attributes
    ----------
    values
        ``mem_clock``, ``throttle``, ``ecc``, ``power_limit``, ``mine``, ``others`` and ``own`` of each GPU.
    """

    def __init__(self, readings: GpuReadings, owners: Optional[Owners] = None) -> None:
        self.readings = readings
        self.slow = SlowReader(readings)
        self.owners = owners or Owners()
        self.values: List[Dict[str, Any]] = [{} for _ in readings.gpus]
        self._energy: Dict[int, Optional[int]] = {}
        self.processes: List[List[Any]] = [[] for _ in readings.gpus]  #: index, pid, owner, MiB, command, user
        self._in_file: List[Dict[str, Any]] = [{} for _ in readings.gpus]
        self._processes_in_file: Optional[List[List[Any]]] = None
        self._processes_at = 0.0
        self._names: Dict[int, Tuple[str, str]] = {}
        self._load = ProcessLoad(readings)
        self._shares: List[Dict[int, int]] = [{} for _ in readings.gpus]
        self._shares_in_file: Optional[List[Optional[int]]] = None

    def read(self, period: float, members: Collection[int]) -> None:
        """Ask those GPUs whose turn it is.

        Parameters
        ----------
        members
            Pids of the run's processes.
        """
        for i in self.slow.due(period):
            listed = self.slow.processes(i)
            rows = self.owners.tell(listed, members) if listed else ([] if listed is not None else None)
            values, self._energy[i] = self.slow.read(i)
            values.update(self.owners.sums(rows))
            values.update(self._lost(i))
            self.values[i] = values
            index = self.readings.gpus[i]["index"]
            self.processes[i] = [
                [index, pid, owner, memory, *(self._name(pid) if owner != "unknown" else ("", ""))]
                for pid, owner, memory in rows or ()
            ]
            self._shares[i] = self._load.read(i) if rows else {}

    def _lost(self, i: int) -> Dict[str, int]:
        """Whether a GPU is lost, where that is news or was once: most never are."""
        lost = self.readings.is_lost(i)
        return {"lost": int(lost)} if lost or "lost" in self.values[i] else {}

    def take_energy(self) -> Dict[int, Optional[int]]:
        """The energy counters (mJ) that were read since the last call, by the GPU's position."""
        found, self._energy = self._energy, {}
        return found

    def forget(self) -> None:
        """Tell everything again: a reader may begin here."""
        self._in_file = [{} for _ in self.values]
        self._processes_in_file = None
        self._shares_in_file = None

    def news(self) -> Tuple[List[Dict[str, Any]], Any]:
        """Objects for the file, and what to give to :meth:`written` once they are in it."""
        objects: List[Dict[str, Any]] = []
        changes = [(i, self._changed(i)) for i in range(len(self.values))]
        changes = [(i, change) for i, change in changes if change]
        if changes:
            objects.append({"gpu": [[i, change] for i, change in changes]})
        rows = [row for rows in self.processes for row in rows]
        now = clock.mono()
        if not self._same(rows, now):
            objects.append({"processes": rows})
            self._shares_in_file = None  # those of the list before
        objects += self._share_news(rows)
        notes = list(self.readings.notes)
        objects += [{"note": note} for note in notes]
        return objects, (changes, rows if any("processes" in one for one in objects) else None, len(notes), now)

    def written(self, what: Any) -> None:
        """What :meth:`news` gave is in the file."""
        changes, rows, notes, now = what
        for i, change in changes:
            self._in_file[i].update(change)
        if rows is not None:
            self._processes_in_file, self._processes_at = rows, now
        del self.readings.notes[:notes]

    def _share_news(self, rows: List[List[Any]]) -> List[Dict[str, Any]]:
        """SM shares (percent) of the processes in the order of their list, when they have changed."""
        places = {gpu["index"]: i for i, gpu in enumerate(self.readings.gpus)}
        shares = [self._shares[places[row[0]]].get(row[1]) for row in rows]
        before = self._shares_in_file
        if before is None or len(before) != len(shares):
            same = not any(share is not None for share in shares)
        else:
            same = all(
                a is b if a is None or b is None else abs(a - b) < MIN_SM_CHANGE for a, b in zip(before, shares)
            )  # fmt: skip
        if same:
            return []
        self._shares_in_file = shares
        return [{"sm": shares}]

    def _changed(self, i: int) -> Dict[str, Any]:
        before = self._in_file[i]
        return {
            key: value
            for key, value in self.values[i].items()
            if key != "own"
            and not (key in before and _alike(before[key], value, SAME_MEMORY_SHARE if key in _MEMORIES else 0.0))
        }

    def _same(self, rows: List[List[Any]], now: float) -> bool:
        before = self._processes_in_file
        if before is None:
            return not rows
        if [row[:3] for row in before] != [row[:3] for row in rows]:
            return False
        alike = all(_alike(old[3], new[3], SAME_MEMORY_SHARE) for old, new in zip(before, rows))
        return alike or now - self._processes_at < PROCESSES_INTERVAL_S

    def add(self, values: Sequence[Mapping[str, Any]]) -> None:
        """Add values of each GPU that are not the driver's; they are written like the others when they change."""
        for mine, more in zip(self.values, values):
            mine.update(more)

    def _name(self, pid: int) -> Tuple[str, str]:
        """Command and user."""
        if len(self._names) > 1000:
            self._names.clear()
        if pid not in self._names:
            self._names[pid] = (command_of(pid), user_of(pid))
        return self._names[pid]


def _alike(old: Any, new: Any, share: float) -> bool:
    if old is None or new is None:
        return old is new
    return bool(abs(new - old) <= share * abs(old))
