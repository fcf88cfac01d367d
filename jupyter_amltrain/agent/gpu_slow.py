"""Values of the GPUs that are read in turn: clocks, limits, errors and processes, of a few GPUs a tick."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from . import clock, gpu_sentinels
from .gpu_columns import SLOWS, NvmlCall
from .gpu_devices import NEVER, OK
from .gpu_readings import REFUSED_RETRY_S, SLOW_PERIOD_S, GpuReadings, Value
from .gpu_sentinels import NO_VALUE
from .process_lists import ProcessLists, by_pid

_NAMES = tuple(column.name for column in SLOWS if column.nvml is not None)
_CALLS = [column.nvml for column in SLOWS if column.nvml is not None]
_ENERGY = NvmlCall(("nvmlDeviceGetTotalEnergyConsumption",))

Call = Optional[Callable[[], int]]


class NvmlGauges:
    """Numbers that one NVML function each returns, of the GPUs of `readings`.

    Parameters
    ----------
    how
        The functions; one that a device refuses is asked again after :data:`.gpu_readings.REFUSED_RETRY_S`.
    """

    def __init__(self, readings: GpuReadings, how: Sequence[NvmlCall]) -> None:
        self.readings = readings
        self._how = list(how)
        self._scales = [(one.maximum, one.divisor) for one in how]
        #: When a function was refused for a GPU, monotonic seconds; one may give two numbers, by its constants.
        self._refused: Dict[Tuple[int, str, Tuple[int, ...]], float] = {}
        self._slot = ctypes.c_ulonglong(0)
        #: Of each GPU the handle for which its calls were made, and the calls.
        self._bound: List[Any] = [None] * len(readings.gpus)
        self._calls: List[List[Call]] = [[] for _ in readings.gpus]

    def read(self, i: int) -> List[Value]:
        """The numbers of the GPU at position `i`; ``None`` for *cannot tell*."""
        self._bind(i)
        found: List[Value] = []
        slot = self._slot
        calls = self._calls[i]
        for at, (maximum, divisor) in enumerate(self._scales):
            call = calls[at]
            slot.value = 0  # a function that fills half of it leaves the rest
            while call is not None:
                code = call()
                if code not in NEVER:
                    break
                call = self._refuse(i, at)
                calls = self._calls[i]
            value = slot.value if call is not None and code == OK else None
            found.append(None if value is None or value in NO_VALUE or value > maximum else value // divisor)
        return found

    def _bind(self, i: int) -> None:
        """Make the calls of one GPU, unless they are made for the handle that it has."""
        handle = self.readings.handle(i)
        if handle is self._bound[i] and self._calls[i] and not self._refused:
            return
        again = [key for key, t in self._refused.items() if key[0] == i and clock.mono() - t >= REFUSED_RETRY_S]
        if handle is self._bound[i] and self._calls[i] and not again:
            return
        for key in again:  # MIG and permissions change while we run
            del self._refused[key]
        self._bound[i] = handle
        self._calls[i] = [self._call(i, how) for how in self._how]

    def _call(self, i: int, how: NvmlCall) -> Call:
        handle, driver = self._bound[i], self.readings.driver
        if handle is None or driver is None:
            return None
        for name in how.functions:
            function = None if (i, name, how.constants) in self._refused else driver.function(name)
            if function is not None:
                return partial(function, handle, *map(ctypes.c_uint, how.constants), ctypes.byref(self._slot))
        return None

    def _refuse(self, i: int, at: int) -> Call:
        """The function that was just called is not for this GPU: the next one, if there is one."""
        how, driver = self._how[at], self.readings.driver
        for name in how.functions:
            key = (i, name, how.constants)
            if key not in self._refused and driver is not None and driver.function(name) is not None:
                self._refused[key] = clock.mono()
                break
        self._bound[i] = None
        self._bind(i)
        return self._calls[i][at]


class SlowReader:
    """Reads slow values of the GPUs of `readings`, a few GPUs in each tick."""

    def __init__(self, readings: GpuReadings) -> None:
        self.readings = readings
        self._gauges = NvmlGauges(readings, [*_CALLS, _ENERGY])
        self._turn, self._credit = 0, float(len(readings.gpus))
        self._lists = ProcessLists(self._function)

    def due(self, period: float) -> List[int]:
        """Positions of the GPUs whose slow values are to be read in this tick; all in the first."""
        n = len(self.readings.gpus)
        self._credit = min(float(n), self._credit)
        now = [(self._turn + k) % n for k in range(int(self._credit))] if n else []
        self._turn = (self._turn + len(now)) % max(1, n)
        self._credit += n * period / SLOW_PERIOD_S - len(now)
        return now

    def read(self, i: int) -> Tuple[Dict[str, Value], Optional[int]]:
        """Slow values of one GPU that are numbers of the driver's, by column, and its energy counter.

        The counter is the energy that the GPU has used, mJ since the driver was loaded.
        """
        numbers = self._gauges.read(i)
        energy: Any = numbers.pop()
        return dict(zip(_NAMES, numbers)), energy

    def processes(self, i: int) -> Optional[List[Tuple[int, Optional[int]]]]:
        """Pid and MiB (``None``: not told) of each compute process."""
        handle = self.readings.handle(i)
        if handle is None:
            return None
        gpu = self.readings.gpus[i]
        rows = self._lists.of(handle, gpu.get("gpu_instance"), gpu.get("compute_instance"))
        if not rows:
            return rows if rows is None else []
        return [(pid, None if size is None else gpu_sentinels.size_mebibytes(size)) for pid, size in by_pid(rows)]

    def _function(self, name: str) -> Optional[Callable[..., int]]:
        driver = self.readings.driver
        return None if driver is None else driver.function(name)

    def total_memory(self, i: int) -> Optional[int]:
        """MiB that one GPU or instance has."""
        handle, driver = self.readings.handle(i), self.readings.driver
        function = driver.function("nvmlDeviceGetMemoryInfo") if driver is not None else None
        slots = (ctypes.c_ulonglong * 3)()
        if function is None or handle is None or function(handle, ctypes.byref(slots)) != OK:
            return None
        return gpu_sentinels.size_mebibytes(int(slots[0]))
