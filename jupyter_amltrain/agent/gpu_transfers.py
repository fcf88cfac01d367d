"""What a GPU moves over PCIe and NVLink, from counters that cost one call for all of them.

``nvmlDeviceGetPcieThroughput`` would measure for 20 ms a call, and is never asked.
"""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, Optional, Tuple

from . import clock
from .gpu_devices import OK
from .gpu_readings import GpuReadings, Value
from .gpu_refusals import Refusals

# nvml.h: NVML_FI_DEV_PCIE_COUNT_RX_BYTES, .._TX_BYTES (bytes), NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, .._TX (KiB)
_FIELDS = ((198, 0, 1.0), (197, 0, 1.0), (139, 0xFFFFFFFF, 1024.0), (138, 0xFFFFFFFF, 1024.0))
#: No bus is faster (MiB/s): a counter that jumps so far was set anew.
_MAX_RATE = 4 << 20
_NO_COUNTS = (0xFFFFFFFF, (1 << 64) - 1)


class Transfers:
    """Throughput of the GPUs of `readings`, since the last reading of each."""

    #: Columns that it reads, in their order here; received is what comes to the GPU.
    NAMES = ("pcie_rx", "pcie_tx", "nvlink_rx", "nvlink_tx")

    def __init__(self, readings: GpuReadings) -> None:
        self.readings = readings
        self._refusals = Refusals()
        self._room: Any = None
        #: Of each GPU its handle, when its counters were read and what they said.
        self._last: Dict[int, Tuple[Any, float, List[Optional[int]]]] = {}

    def tells(self, i: int) -> List[bool]:
        """Which columns a GPU can tell; its counters are read."""
        self.read(i)
        counters = self._last[i][2] if i in self._last else [None] * len(self.NAMES)
        return [value is not None for value in counters]

    def read(self, i: int) -> List[Value]:
        """Values of one GPU in the order of :attr:`NAMES`."""
        handle, counters = self.readings.handle(i), self._counters(i)
        before, now = self._last.pop(i, None), clock.mono()
        if counters is None:
            return [None] * len(self.NAMES)
        self._last[i] = (handle, now, counters)
        if before is None or before[0] is not handle or now <= before[1]:
            return [None] * len(self.NAMES)
        seconds = now - before[1]
        return [
            _rate(old, new, unit, seconds) for old, new, (_, _, unit) in zip(before[2], counters, _FIELDS)
        ]  # fmt: skip

    def _counters(self, i: int) -> Optional[List[Optional[int]]]:
        handle, driver = self.readings.handle(i), self.readings.driver
        function = driver.function("nvmlDeviceGetFieldValues") if driver is not None else None
        if function is None or handle is None or driver is None or i in self._refusals:
            return None
        if self._room is None:
            self._room = (driver.nvml.c_nvmlFieldValue_t * len(_FIELDS))()
        for field, (number, scope, _) in zip(self._room, _FIELDS):
            field.fieldId, field.scopeId, field.nvmlReturn, field.value.ullVal = number, scope, -1, 0
        code = function(handle, len(_FIELDS), ctypes.byref(self._room))
        self._refusals.note(i, code)
        return [_counter(field) for field in self._room] if code == OK else None


def _counter(field: Any) -> Optional[int]:
    if field.nvmlReturn != OK or field.valueType not in (1, 2, 3, 4):  # unsigned ones, and a signed long long
        return None
    value = int(field.value.uiVal if field.valueType == 1 else field.value.ullVal)
    return None if value in _NO_COUNTS else value


def _rate(old: Optional[int], new: Optional[int], unit: float, seconds: float) -> Value:
    """MiB/s; ``None`` where the counter began anew or wrapped."""
    if old is None or new is None or new < old:
        return None
    rate = (new - old) * unit / (1 << 20) / seconds
    return None if rate > _MAX_RATE else int(rate + 0.5) if rate >= 10 else round(rate, 1)
