"""GPU values that change slowly: clocks, limits, errors and processes, read from a few GPUs a tick."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any, Callable, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

from .. import protocol
from ..processes import command_of, user_of
from . import nvml
from .call_prices import DEAR_PERIOD_S
from .gpu_columns import SLOWS, NvmlCall
from .gpu_devices import NEVER, OK
from .gpu_processes import ProcessLoad, ProcessOwners
from .gpu_readings import REFUSED_RETRY_S, SLOW_PERIOD_S, GpuReadings, Value
from .nvml import NO_VALUE, ProcessLists, by_pid
from .torch_memory import TORCH

_NAMES = tuple(column.name for column in SLOWS if column.nvml is not None)

_CALLS = [column.nvml for column in SLOWS if column.nvml is not None]

_ENERGY = NvmlCall(("nvmlDeviceGetTotalEnergyConsumption",))

Call = Optional[Callable[[], int]]


class NvmlGauges:
    """Numbers that are each the result of one NVML function, of the GPUs of `readings`.

    Parameters
    ----------
    specs
        The functions; a refused one is called again after :data:`.gpu_readings.REFUSED_RETRY_S`.
    """

    def __init__(self, readings: GpuReadings, specs: Sequence[NvmlCall]) -> None:
        self.readings = readings
        self._specs = list(specs)
        self._scales = [(spec.maximum, spec.divisor) for spec in specs]
        #: When a function was refused for a GPU, monotonic seconds; its constants select one of several numbers.
        self._refused: Dict[Tuple[int, str, Tuple[int, ...]], float] = {}
        self._slot = ctypes.c_ulonglong(0)
        #: For each GPU: the handle for which its calls were created, and the calls.
        self._bound: List[Any] = [None] * len(readings.gpus)
        self._calls: List[List[Call]] = [[] for _ in readings.gpus]

    def read(self, i: int) -> List[Value]:
        """Return the numbers of the GPU at position `i`; ``None``: unknown."""
        self._bind(i)
        numbers: List[Value] = []
        slot = self._slot
        calls = self._calls[i]
        for at, (maximum, divisor) in enumerate(self._scales):
            call = calls[at]
            slot.value = 0  # a 32-bit function fills only half of it
            while call is not None:
                code = call()
                if code not in NEVER:
                    break
                call = self._refuse(i, at)
                calls = self._calls[i]
            value = slot.value if call is not None and code == OK else None
            numbers.append(None if value is None or value in NO_VALUE or value > maximum else value // divisor)
        return numbers

    def _bind(self, i: int) -> None:
        """Create the calls of one GPU, unless they exist for its current handle."""
        handle = self.readings.handle(i)
        if handle is self._bound[i] and self._calls[i] and not self._refused:
            return
        expired = [key for key, t in self._refused.items() if key[0] == i and protocol.mono() - t >= REFUSED_RETRY_S]
        if handle is self._bound[i] and self._calls[i] and not expired:
            return
        for key in expired:  # MIG and permissions may have changed
            del self._refused[key]
        self._bound[i] = handle
        self._calls[i] = [self._call(i, spec) for spec in self._specs]

    def _call(self, i: int, spec: NvmlCall) -> Call:
        handle, driver = self._bound[i], self.readings.driver
        if handle is None or driver is None:
            return None
        for name in spec.functions:
            function = None if (i, name, spec.constants) in self._refused else driver.function(name)
            if function is not None:
                return partial(function, handle, *map(ctypes.c_uint, spec.constants), ctypes.byref(self._slot))
        return None

    def _refuse(self, i: int, at: int) -> Call:
        """Mark the function that was just called as refused by this GPU; return the next one, if there is one."""
        spec, driver = self._specs[at], self.readings.driver
        for name in spec.functions:
            key = (i, name, spec.constants)
            if key not in self._refused and driver is not None and driver.function(name) is not None:
                self._refused[key] = protocol.mono()
                break
        self._bound[i] = None
        self._bind(i)
        return self._calls[i][at]


class SlowReader:
    """Reads slow values of the GPUs of `readings`, a few GPUs in each tick."""

    def __init__(self, readings: GpuReadings) -> None:
        self.readings = readings
        self._gauges, self._energy = NvmlGauges(readings, _CALLS), NvmlGauges(readings, [_ENERGY])
        self._energy_due: Dict[int, float] = {}
        self._turn, self._credit = 0, float(len(readings.gpus))
        self._lists = ProcessLists(self._function)

    def due(self, period: float) -> List[int]:
        """Return the positions of the GPUs to read in this tick; all in the first."""
        n = len(self.readings.gpus)
        self._credit = min(float(n), self._credit)
        now = [(self._turn + k) % n for k in range(int(self._credit))] if n else []
        self._turn = (self._turn + len(now)) % max(1, n)
        self._credit += n * period / SLOW_PERIOD_S - len(now)
        return now

    def read(self, i: int) -> Dict[str, Value]:
        """Return the driver's slow numbers of one GPU, by column."""
        return dict(zip(_NAMES, self._gauges.read(i)))

    def energy(self, i: int, final: bool = False) -> List[Optional[int]]:
        """Return the energy that a GPU has used, mJ since the driver was loaded; empty if it is not due.

        A driver whose call is dear is read every two minutes, and at the end.
        """
        driver = self.readings.driver
        if driver is None:
            return [None]
        name = _ENERGY.functions[0]
        now = protocol.mono()
        if driver.prices.is_dear(name) and now < self._energy_due.get(i, 0.0) and not final:
            return []
        self._energy_due[i] = now + DEAR_PERIOD_S
        (count,) = driver.prices.timed(name, lambda: self._energy.read(i))
        return [None if count is None else int(count)]

    def processes(self, i: int) -> Optional[List[Tuple[int, Optional[int]]]]:
        """Return pid and MiB (``None``: unknown) of each compute process."""
        handle = self.readings.handle(i)
        if handle is None:
            return None
        gpu = self.readings.gpus[i]
        rows = self._lists.of(handle, gpu.get("gpu_instance"), gpu.get("compute_instance"))
        if not rows:
            return rows if rows is None else []
        return [(pid, None if size is None else nvml.size_mebibytes(size)) for pid, size in by_pid(rows)]

    def _function(self, name: str) -> Optional[Callable[..., int]]:
        driver = self.readings.driver
        return None if driver is None else driver.function(name)

    def total_memory(self, i: int) -> Optional[int]:
        """Return the MiB of one GPU or instance."""
        handle, driver = self.readings.handle(i), self.readings.driver
        function = driver.function("nvmlDeviceGetMemoryInfo") if driver is not None else None
        slots = (ctypes.c_ulonglong * 3)()
        if function is None or handle is None or function(handle, ctypes.byref(slots)) != OK:
            return None
        return nvml.size_mebibytes(int(slots[0]))


#: A memory that changed by less (share) counts as the same; interval of a list of the same processes (seconds).
SAME_MEMORY_SHARE, PROCESSES_INTERVAL_S = 0.01, 5.0

#: SM shares of processes are written when one has changed by this much (percentage points).
MIN_SM_CHANGE = 5

_MEMORIES = ("mine", "others", *TORCH)


class SlowMetrics:
    """Slow values of the GPUs, and which of them the telemetry file already has.

    Attributes
    ----------
    values
        ``mem_clock``, ``throttle``, ``ecc``, ``power_limit``, ``mine``, ``others`` and ``own`` of each GPU.
    """

    def __init__(self, readings: GpuReadings, owners: Optional[ProcessOwners] = None) -> None:
        self.readings = readings
        self.slow = SlowReader(readings)
        self.owners = owners or ProcessOwners()
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
        """Read the GPUs that are due in this tick.

        Parameters
        ----------
        members
            Pids of the run's processes.
        """
        for i in self.slow.due(period):
            listed = self.slow.processes(i)
            rows = self.owners.classify(listed, members) if listed else ([] if listed is not None else None)
            values: Dict[str, Any] = self.slow.read(i)
            self._energy.update((i, count) for count in self.slow.energy(i))
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
        """Return whether a GPU is lost, if it is or was; nothing for the many that never were."""
        lost = self.readings.is_lost(i)
        return {"lost": int(lost)} if lost or "lost" in self.values[i] else {}

    def take_energy(self) -> Dict[int, Optional[int]]:
        """Return the energy counters (mJ) that were read since the last call, by the GPU's position."""
        counters, self._energy = self._energy, {}
        return counters

    def write_again(self) -> None:
        """Write everything again with the next tick: a reader may start here."""
        self._in_file = [{} for _ in self.values]
        self._processes_in_file = None
        self._shares_in_file = None

    def updates(self) -> Tuple[List[Dict[str, Any]], Any]:
        """Return new objects for the file, and what to pass to :meth:`set_written` once they are in it."""
        objects: List[Dict[str, Any]] = []
        changes = [(i, self._changed(i)) for i in range(len(self.values))]
        changes = [(i, change) for i, change in changes if change]
        if changes:
            objects.append({"gpu": [[i, change] for i, change in changes]})
        rows = [row for rows in self.processes for row in rows]
        now = protocol.mono()
        if not self._same(rows, now):
            objects.append({"processes": rows})
            self._shares_in_file = None  # they belong to the earlier list
        objects += self._share_news(rows)
        notes = list(self.readings.notes)
        objects += [{"note": note} for note in notes]
        return objects, (changes, rows if any("processes" in one for one in objects) else None, len(notes), now)

    def set_written(self, update: Any) -> None:
        """Record that the objects of :meth:`updates` are in the file."""
        changes, rows, notes, now = update
        for i, change in changes:
            self._in_file[i].update(change)
        if rows is not None:
            self._processes_in_file, self._processes_at = rows, now
        del self.readings.notes[:notes]

    def _share_news(self, rows: List[List[Any]]) -> List[Dict[str, Any]]:
        """Return SM shares (percent) of the processes in the order of their list, if they have changed."""
        positions = {gpu["index"]: i for i, gpu in enumerate(self.readings.gpus)}
        shares = [self._shares[positions[row[0]]].get(row[1]) for row in rows]
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
        """Add values of each GPU from other sources than the driver; they are written when they change."""
        for own, more in zip(self.values, values):
            own.update(more)

    def _name(self, pid: int) -> Tuple[str, str]:
        """Return command and user of a process."""
        if len(self._names) > 1000:
            self._names.clear()
        if pid not in self._names:
            self._names[pid] = (command_of(pid), user_of(pid))
        return self._names[pid]


def _alike(old: Any, new: Any, share: float) -> bool:
    if old is None or new is None:
        return old is new
    return bool(abs(new - old) <= share * abs(old))
