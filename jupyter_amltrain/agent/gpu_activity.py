"""How busy the parts of a GPU are: SMs, tensor cores and memory.

Hopper and newer GPUs tell it by NVML's GPM, as the difference of two samples of
counters, also for one MIG instance. Older ones only tell how much of the time their
memory controller was busy.
"""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, Optional

from . import clock
from .gpu_devices import INVALID, OK
from .gpu_readings import GpuReadings, Value
from .gpu_refusals import Refusals
from .nvml import attempt

# nvml.h, nvmlGpmMetricId_t: SM_UTIL, ANY_TENSOR_UTIL, DRAM_BW_UTIL
_METRICS = (2, 5, 10)
_VERSION = 1
#: GPM gives no values for two samples that are closer (seconds).
MIN_GPM_INTERVAL_S = 0.1
#: A driver may round a full load up to this (percent).
_MAX_PERCENT = 101.0


def percent(value: float) -> Optional[int]:
    """A percentage as it is written down; ``None`` for what is none."""
    return min(100, int(value + 0.5)) if 0.0 <= value <= _MAX_PERCENT else None  # False of NaN


class _Pair:
    """Two GPM samples of one device, of which the older is overwritten next."""

    def __init__(self, handle: Any, parent: Any, instance: Optional[int], older: Any, newer: Any) -> None:
        self.handle, self.parent, self.instance = handle, parent, instance
        self.older, self.newer = older, newer
        self.at: Optional[float] = None


class Activity:
    """Activity of the GPUs of `readings`, since the last reading of each."""

    #: Columns that it reads, in their order here.
    NAMES = ("sm_activity", "tensor_activity", "dram_bandwidth", "memory_busy")

    def __init__(self, readings: GpuReadings) -> None:
        self.readings = readings
        self._refusals = Refusals()
        self._pairs: Dict[int, _Pair] = {}
        self._metrics: Any = None
        self._rates = (ctypes.c_uint * 2)()

    def tells(self, i: int) -> List[bool]:
        """Which columns a GPU can tell; the first samples are taken."""
        if self._take(i):
            return [True, True, True, False]
        return [False, False, False, self._memory_busy(i) is not None]

    def read(self, i: int) -> List[Value]:
        """Values of one GPU in the order of :attr:`NAMES`."""
        pair = self._pairs.get(i)
        before = None if pair is None else pair.at
        if self._take(i):
            pair = self._pairs[i]
            known = before is not None and pair.at is not None and pair.at - before >= MIN_GPM_INTERVAL_S
            return [*(self._difference(i, pair) if known else [None] * 3), None]
        return [None, None, None, self._memory_busy(i)]

    def _take(self, i: int) -> bool:
        """Take a GPM sample; whether the device gave one."""
        pair = self._pair(i)
        driver = self.readings.driver
        if pair is None or driver is None:
            return False
        name = "nvmlGpmSampleGet" if pair.instance is None else "nvmlGpmMigSampleGet"
        function = driver.function(name)
        if function is None:
            return False
        args = () if pair.instance is None else (ctypes.c_uint(pair.instance),)
        code = function(pair.parent, *args, pair.older)
        self._refusals.note((i, "gpm"), code)
        if code != OK:
            pair.at = None
            return False
        pair.older, pair.newer = pair.newer, pair.older
        pair.at = clock.mono()
        return True

    def _pair(self, i: int) -> Optional[_Pair]:
        """The samples of one device, made when it has another handle than before."""
        handle, driver = self.readings.handle(i), self.readings.driver
        pair = self._pairs.get(i)
        if handle is None or driver is None:
            self._pairs.pop(i, None)
            return None
        if (i, "gpm") in self._refusals:
            return None
        if pair is not None and pair.handle is handle:
            return pair
        nvml = driver.nvml
        parent, instance = handle, None
        if self.readings.gpus[i].get("mig"):
            parent = attempt(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)
            instance = attempt(nvml.nvmlDeviceGetGpuInstanceId, handle)
        support = None if parent is None else attempt(nvml.nvmlGpmQueryDeviceSupport, parent)
        older, newer = (attempt(nvml.nvmlGpmSampleAlloc) for _ in range(2)) if support else (None, None)
        refused = not (support and support.isSupportedDevice and older and newer)
        if refused or (instance is None and parent is not handle):
            self._refusals.note((i, "gpm"), INVALID)
            return None
        if self._metrics is None:
            self._metrics = self._room(nvml)
        # Samples of an earlier handle stay with the library, which may have been closed.
        self._pairs[i] = pair = _Pair(handle, parent, instance, older, newer)
        return pair

    @staticmethod
    def _room(nvml: Any) -> Any:
        """The struct of a question for all metrics: the library may expect its whole length."""
        room = nvml.c_nvmlGpmMetricsGet_t()
        room.version, room.numMetrics = _VERSION, len(_METRICS)
        for at, metric in enumerate(_METRICS):
            room.metrics[at].metricId = metric
        return room

    def _difference(self, i: int, pair: _Pair) -> List[Value]:
        driver, room = self.readings.driver, self._metrics
        function = None if driver is None else driver.function("nvmlGpmMetricsGet")
        if function is None:
            return [None] * 3
        room.sample1, room.sample2 = pair.older, pair.newer
        if function(ctypes.byref(room)) != OK:
            return [None] * 3
        rows = [room.metrics[at] for at in range(len(_METRICS))]
        return [percent(row.value) if row.nvmlReturn == OK else None for row in rows]

    def _memory_busy(self, i: int) -> Value:
        handle, driver = self.readings.handle(i), self.readings.driver
        function = driver.function("nvmlDeviceGetUtilizationRates") if driver is not None else None
        if function is None or handle is None or (i, "rates") in self._refusals:
            return None
        code = function(handle, ctypes.byref(self._rates))
        self._refusals.note((i, "rates"), code)
        return percent(self._rates[1]) if code == OK else None
