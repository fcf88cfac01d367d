"""What share of a GPU's SMs each process uses, as the driver samples it."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, Tuple

from .gpu_devices import NOT_FOUND, OK, TOO_SMALL
from .gpu_readings import GpuReadings
from .gpu_refusals import Refusals

#: Samples taken at once, at first and at most.
_ROOM, _MAX_ROOM = 256, 1 << 16


class ProcessLoad:
    """SM utilization by process, of the GPUs of `readings`."""

    def __init__(self, readings: GpuReadings) -> None:
        self.readings = readings
        self._refusals = Refusals()
        self._room: Any = None
        #: Of each GPU its handle and the time (by the driver's clock) of the newest sample.
        self._seen: Dict[int, Tuple[Any, int]] = {}

    def read(self, i: int) -> Dict[int, int]:
        """Percent by pid, the mean since the last reading; who is not in it did nothing, or cannot be told."""
        handle, driver = self.readings.handle(i), self.readings.driver
        function = driver.function("nvmlDeviceGetProcessUtilization") if driver is not None else None
        if function is None or handle is None or driver is None or i in self._refusals:
            return {}
        row = driver.nvml.c_nvmlProcessUtilizationSample_t
        if self._room is None:
            self._room = (row * _ROOM)()
        before = self._seen.get(i)
        since = before[1] if before is not None and before[0] is handle else 0
        count = ctypes.c_uint(0)
        for _ in range(3):
            count.value = len(self._room)
            code = function(handle, ctypes.byref(self._room), ctypes.byref(count), ctypes.c_ulonglong(since))
            if code != TOO_SMALL or not len(self._room) < count.value <= _MAX_ROOM:
                break
            self._room = (row * count.value)()
        self._refusals.note(i, code)
        if code != OK:
            if code != NOT_FOUND:
                self._seen.pop(i, None)
            return {}
        shares: Dict[int, List[int]] = {}
        newest = since
        for sample in self._room[: min(count.value, len(self._room))]:
            # Some drivers fill up with what is older, with zeros or with what is no percentage.
            if sample.timeStamp > since and sample.smUtil <= 100 and sample.pid:
                shares.setdefault(sample.pid, []).append(sample.smUtil)
                newest = max(newest, sample.timeStamp)
        self._seen[i] = (handle, newest)
        return {pid: (2 * sum(values) + len(values)) // (2 * len(values)) for pid, values in shares.items()}
