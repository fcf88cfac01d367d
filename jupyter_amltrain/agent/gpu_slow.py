"""What the GPUs tell seldom: clocks, limits, errors and processes, asked of a few GPUs a tick."""

from __future__ import annotations

import ctypes
import math
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from . import clock, gpu_sentinels
from .gpu_devices import NEVER, OK
from .gpu_readings import REFUSED_RETRY_S, SLOW_PERIOD_S, GpuReadings, Value
from .gpu_sentinels import NO_VALUE
from .process_lists import ProcessLists, by_pid

#: Unit of each value as it is written down; a reader takes them from the header.
UNITS = {
    "mem_clock": "MHz", "throttle": "bits", "ecc": "errors", "power_limit": "W", "mine": "MiB", "others": "MiB",
}  # fmt: skip


class _Value(NamedTuple):
    """A value that is asked seldom."""

    name: str
    divisor: int  #: of what the driver says
    most: float  #: what no device exceeds; more is a sentinel
    functions: Tuple[str, ...]  #: the first that works is asked
    constants: Tuple[int, ...] = ()


_THROTTLE = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
_VALUES = (
    _Value("mem_clock", 1, gpu_sentinels.MAX_MHZ, ("nvmlDeviceGetClockInfo",), (2,)),
    _Value("throttle", 1, math.inf, _THROTTLE),
    # Uncorrected, since the driver was loaded.
    _Value("ecc", 1, math.inf, ("nvmlDeviceGetTotalEccErrors",), (1, 0)),
    _Value("power_limit", 1000, 1000 * gpu_sentinels.MAX_WATTS, ("nvmlDeviceGetEnforcedPowerLimit",)),
)
_ENERGY, _AT_ENERGY = ("nvmlDeviceGetTotalEnergyConsumption",), -1

Call = Optional[Callable[[], int]]


class SlowReadings:
    """The seldom asked values of the GPUs of `readings`."""

    def __init__(self, readings: GpuReadings) -> None:
        self.readings = readings
        #: When a function was refused for a GPU, monotonic seconds.
        self._refused: Dict[Tuple[int, str], float] = {}
        self._energy: List[Call] = [None] * len(readings.gpus)
        self._turn, self._credit = 0, float(len(readings.gpus))
        self._slot = ctypes.c_ulonglong(0)
        self._lists = ProcessLists(self._function)
        #: Of each GPU the handle for which its calls were made, and the calls.
        self._bound: List[Any] = [None] * len(readings.gpus)
        self._calls: List[List[Call]] = [[] for _ in readings.gpus]

    def due(self, period: float) -> List[int]:
        """Positions of the GPUs whose slow values are to be asked in this tick; all in the first."""
        n = len(self.readings.gpus)
        self._credit = min(float(n), self._credit)
        now = [(self._turn + k) % n for k in range(int(self._credit))] if n else []
        self._turn = (self._turn + len(now)) % max(1, n)
        self._credit += n * period / SLOW_PERIOD_S - len(now)
        return now

    def read(self, i: int) -> Dict[str, Value]:
        """Memory clock (MHz), throttle reasons (bits), uncorrected ECC errors, power limit (W) of one GPU."""
        self._bind(i)
        found: Dict[str, Value] = {}
        slot = self._slot
        for at, (name, divisor, most, functions, _) in enumerate(_VALUES):
            call = self._calls[i][at]
            slot.value = 0  # a function that fills half of it leaves the rest
            while call is not None:
                code = call()
                if code not in NEVER:
                    break
                call = self._refuse(i, functions, at)
            value = slot.value if call is not None and code == OK else None
            found[name] = None if value is None or value in NO_VALUE or value > most else value // divisor
        return found

    def energy(self, i: int) -> Optional[int]:
        """The counter of the energy that one GPU has used, mJ since the driver was loaded."""
        self._bind(i)
        call = self._energy[i]
        if call is None:
            return None
        self._slot.value = 0
        code = call()
        if code in NEVER:
            self._refuse(i, _ENERGY, _AT_ENERGY)
        return gpu_sentinels.number(self._slot.value) if code == OK else None

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
        slot = ctypes.byref(self._slot)
        self._calls[i] = [
            self._call(i, names, *[ctypes.c_uint(number) for number in constants], slot)
            for _, _, _, names, constants in _VALUES
        ]
        self._energy[i] = self._call(i, _ENERGY, slot)

    def _call(self, i: int, names: Tuple[str, ...], *args: Any) -> Call:
        handle, driver = self._bound[i], self.readings.driver
        if handle is None or driver is None:
            return None
        # The same function may serve two values, with other constants.
        key = "".join(str(arg.value) for arg in args if isinstance(arg, ctypes.c_uint))
        for name in names:
            function = None if (i, name + key) in self._refused else driver.function(name)
            if function is not None:
                return partial(function, handle, *args)
        return None

    def _refuse(self, i: int, names: Tuple[str, ...], at: int) -> Call:
        """The function that was just asked is not for this GPU: the next one, if there is one."""
        key = "" if at == _AT_ENERGY else "".join(str(number) for number in _VALUES[at].constants)
        for name in names:
            driver = self.readings.driver
            if (i, name + key) not in self._refused and driver is not None and driver.function(name) is not None:
                self._refused[i, name + key] = clock.mono()
                break
        self._bound[i] = None
        self._bind(i)
        return self._energy[i] if at == _AT_ENERGY else self._calls[i][at]
