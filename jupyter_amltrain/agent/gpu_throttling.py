"""For which share of the time something kept the clocks of a GPU down."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, Optional, Tuple

from . import clock
from .gpu_devices import OK
from .gpu_readings import GpuReadings, Value
from .gpu_refusals import Refusals

# nvml.h, nvmlPerfPolicyType_t: their counters are in nanoseconds.
_POLICIES = (0, 1)
# nvml.h, nvmlClocksEventReasons: software power cap, power brake; hardware slowdown, both thermal ones.
POWER_REASONS, HEAT_REASONS = 0x4 | 0x80, 0x8 | 0x20 | 0x40
_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
_NO_COUNT = (1 << 64) - 1


class Throttling:
    """Throttling of the GPUs of `readings`, since the last reading of each.

    By the driver's violation counters; where it has none, by the reasons that hold at the moment.
    """

    #: Columns that it reads, in their order here.
    NAMES = ("throttled_power", "throttled_heat")

    def __init__(self, readings: GpuReadings) -> None:
        self.readings = readings
        self._refusals = Refusals()
        self._slots, self._bits = (ctypes.c_ulonglong * 2)(), ctypes.c_ulonglong(0)
        #: Of each GPU its handle, when its counters were read and what they said.
        self._last: Dict[int, Tuple[Any, float, List[Optional[int]]]] = {}

    def tells(self, i: int) -> List[bool]:
        """Which columns a GPU can tell; its counters are read."""
        known = [value is not None for value in self.read(i)]
        counters = self._last[i][2] if i in self._last else [None, None]
        return [a or counter is not None for a, counter in zip(known, counters)]

    def read(self, i: int) -> List[Value]:
        """Values of one GPU in the order of :attr:`NAMES`."""
        handle = self.readings.handle(i)
        counters = [self._counter(i, policy) for policy in _POLICIES]
        before, now = self._last.pop(i, None), clock.mono()
        self._last[i] = (handle, now, counters)
        old: List[Optional[int]] = [None, None]
        if before is not None and before[0] is handle and now > before[1]:
            old = before[2]
        shares = [_share(a, b, now - before[1]) if before is not None else None for a, b in zip(old, counters)]
        if None not in counters:
            return shares
        bits = self._reasons(i)
        if bits is None:
            return shares
        reasons = [100 if bits & mask else 0 for mask in (POWER_REASONS, HEAT_REASONS)]
        return [share if count is not None else reason for share, count, reason in zip(shares, counters, reasons)]

    def _counter(self, i: int, policy: int) -> Optional[int]:
        handle, driver = self.readings.handle(i), self.readings.driver
        function = driver.function("nvmlDeviceGetViolationStatus") if driver is not None else None
        if function is None or handle is None or (i, policy) in self._refusals:
            return None
        code = function(handle, policy, ctypes.byref(self._slots))
        self._refusals.note((i, policy), code)
        return None if code != OK or self._slots[1] == _NO_COUNT else int(self._slots[1])

    def _reasons(self, i: int) -> Optional[int]:
        handle, driver = self.readings.handle(i), self.readings.driver
        function = driver.function(*_REASONS) if driver is not None else None
        if function is None or handle is None or (i, "reasons") in self._refusals:
            return None
        code = function(handle, ctypes.byref(self._bits))
        self._refusals.note((i, "reasons"), code)
        return int(self._bits.value) if code == OK and self._bits.value != _NO_COUNT else None


def _share(old: Optional[int], new: Optional[int], seconds: float) -> Value:
    """Percent of the time; ``None`` where the counter began anew."""
    if old is None or new is None or new < old or seconds <= 0:
        return None
    return min(100, int((new - old) / 1e7 / seconds + 0.5))
