"""What the GPUs tell seldom: clocks, limits, errors and processes, asked of a few GPUs a tick."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, Optional, Set, Tuple

from .gpu_devices import GPU_IS_LOST, NEVER, NOT_FOUND, OK, TOO_SMALL
from .gpu_readings import GpuReadings, Value

#: Seconds in which every GPU is asked once.
SLOW = 5.0
_NO_MEMORY = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE
#: Bytes of nvmlProcessInfo_t: pid, memory, two ids of instances.
_ROW = 24


class SlowReadings:
    """The seldom asked values of the GPUs of `readings`."""

    def __init__(self, readings: GpuReadings) -> None:
        self.readings = readings
        self._refused: Set[Tuple[int, str]] = set()
        self._turn, self._credit = 0, float(len(readings.gpus))
        self._found = (ctypes.c_ubyte * (_ROW * 64))()

    def due(self, period: float) -> List[int]:
        """Positions of the GPUs whose slow values are to be asked in this tick; all in the first."""
        n = len(self.readings.gpus)
        self._credit = min(float(n), self._credit)
        now = [(self._turn + k) % n for k in range(int(self._credit))] if n else []
        self._turn = (self._turn + len(now)) % max(1, n)
        self._credit += n * period / SLOW - len(now)
        return now

    def read(self, i: int) -> Dict[str, Value]:
        """Memory clock (MHz), throttle reasons (bits), uncorrected ECC errors, power limit (W) of one GPU."""
        limit = self._number(i, "power_limit", ("nvmlDeviceGetEnforcedPowerLimit",), (), ctypes.c_uint)
        reasons = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        uncorrected = (ctypes.c_uint(1), ctypes.c_uint(0))  # since the driver was loaded
        return {
            "mem_clock": self._number(i, "mem_clock", ("nvmlDeviceGetClockInfo",), (ctypes.c_uint(2),), ctypes.c_uint),
            "throttle": self._number(i, "throttle", reasons, (), ctypes.c_ulonglong),
            "ecc": self._number(i, "ecc", ("nvmlDeviceGetTotalEccErrors",), uncorrected, ctypes.c_ulonglong),
            "power_limit": None if limit is None else limit // 1000,
        }

    def _number(self, i: int, key: str, names: Tuple[str, ...], args: Tuple[Any, ...], kind: Any) -> Optional[int]:
        for name in names:
            slot = kind(0)
            code = self._ask(i, key + name, name, *args, ctypes.byref(slot))
            if code == OK:
                return int(slot.value)
        return None

    def _ask(self, i: int, key: str, name: str, *args: Any) -> int:
        """Call a function that may be missing; a refusal is remembered, a lost GPU is the tick's to find."""
        handle = self.readings.handle(i)
        if handle is None or self.readings.driver is None:
            return GPU_IS_LOST
        function = None if (i, key) in self._refused else self.readings.driver.function(name)
        if function is None:
            return NOT_FOUND
        code = function(handle, *args)
        if code in NEVER:
            self._refused.add((i, key))
        return code

    def total_memory(self, i: int) -> Optional[int]:
        """MiB that one GPU or instance has."""
        slots = (ctypes.c_ulonglong * 3)()
        code = self._ask(i, "total", "nvmlDeviceGetMemoryInfo", ctypes.byref(slots))
        return int(slots[0]) >> 20 if code == OK else None

    def processes(self, i: int) -> Optional[List[Tuple[int, Optional[int]]]]:
        """Pid and MiB (``None``: not told) of each compute process, as the driver lists them."""
        for name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"):
            for _ in range(3):
                number = ctypes.c_uint(len(self._found) // _ROW)
                code = self._ask(i, name, name, ctypes.byref(number), ctypes.byref(self._found))
                if code != TOO_SMALL:
                    break
                self._found = (ctypes.c_ubyte * (_ROW * (2 * number.value + 8)))()
            if code == OK:
                data = memoryview(bytes(self._found)[: _ROW * number.value])
                rows, sizes = data.cast("I"), data.cast("Q")
                return [
                    (rows[6 * k], None if sizes[3 * k + 1] == _NO_MEMORY else sizes[3 * k + 1] >> 20)
                    for k in range(number.value)
                ]
        return None
