"""GPM: means of what the parts of a GPU did between two samples of the driver. Hopper and newer."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, Optional, Protocol, Sequence

from .. import protocol
from .gpu_devices import INVALID, OK, Driver, Refusals
from .nvml import attempt

Value = Optional[float]

# nvml.h, nvmlGpmMetricId_t: GRAPHICS_UTIL, SM_UTIL, ANY_TENSOR_UTIL, DRAM_BW_UTIL (percent), PCIE_RX_PER_SEC,
# PCIE_TX_PER_SEC, NVLINK_TOTAL_RX_PER_SEC, NVLINK_TOTAL_TX_PER_SEC (MiB/s)
_METRICS = (1, 2, 5, 10, 21, 20, 60, 61)

#: Positions of the metrics; received means by the GPU.
GRAPHICS, SM, TENSOR, DRAM, PCIE_RX, PCIE_TX, NVLINK_RX, NVLINK_TX = range(len(_METRICS))

_VERSION = 1

#: Seconds: for two samples that are closer, GPM returns no values.
MIN_INTERVAL_S = 0.1

#: Percent: a driver may round a full load up to this. MiB/s: no bus is faster.
_MAX_PERCENT, _MAX_RATE = 101.0, float(4 << 20)


class Devices(Protocol):
    """GPUs by position, whose handles change when one is lost or comes back."""

    driver: Optional[Driver]
    gpus: List[Dict[str, Any]]

    def handle(self, i: int) -> Any:
        """Return NVML's handle of a GPU; ``None`` while it is lost."""


class _SamplePair:
    """Two GPM samples of one device; the older one is overwritten next."""

    def __init__(self, handle: Any, parent: Any, instance: Optional[int], older: Any, newer: Any) -> None:
        self.handle, self.parent, self.instance = handle, parent, instance
        self.older, self.newer = older, newer
        self.at: Optional[float] = None
        self.last: List[Value] = [None] * len(_METRICS)
        #: Seconds and sums of the values since the last mean.
        self.weights, self.sums = [0.0] * len(_METRICS), [0.0] * len(_METRICS)


class Gpm:
    """GPM of the GPUs of `readings`."""

    def __init__(self, readings: Devices) -> None:
        self.readings = readings
        self._refusals = Refusals()
        self._pairs: Dict[int, _SamplePair] = {}
        self._request: Any = None

    def read(self, i: int) -> Optional[Sequence[Value]]:
        """Take a sample; return the means since the one before (``None``: unknown), or ``None`` without GPM."""
        pair = self._pair(i)
        driver = self.readings.driver
        if pair is None or driver is None:
            return None
        now = protocol.mono()
        if pair.at is not None and now - pair.at < MIN_INTERVAL_S:
            return pair.last
        function = driver.function("nvmlGpmSampleGet" if pair.instance is None else "nvmlGpmMigSampleGet")
        if function is None:
            return None
        args = () if pair.instance is None else (ctypes.c_uint(pair.instance),)
        code = function(pair.parent, *args, pair.older)
        self._refusals.note(i, code)
        if code != OK:
            pair.at = None
            return None
        pair.older, pair.newer = pair.newer, pair.older
        seconds, pair.at = 0.0 if pair.at is None else now - pair.at, now
        pair.last = self._difference(pair) if seconds else [None] * len(_METRICS)
        for at, value in enumerate(pair.last):
            if value is not None:
                pair.weights[at] += seconds
                pair.sums[at] += seconds * value
        return pair.last

    def means(self, i: int) -> Optional[List[Value]]:
        """Return the means since the last call of this function; ``None`` without GPM."""
        if self.read(i) is None:
            return None
        pair = self._pairs[i]
        found: List[Value] = [total / weight if weight else None for total, weight in zip(pair.sums, pair.weights)]
        pair.weights, pair.sums = [0.0] * len(_METRICS), [0.0] * len(_METRICS)
        return found

    def _pair(self, i: int) -> Optional[_SamplePair]:
        """Return the sample pair of one device, a new one if its handle has changed."""
        handle, driver = self.readings.handle(i), self.readings.driver
        pair = self._pairs.get(i)
        if handle is None or driver is None:
            self._pairs.pop(i, None)
            return None
        if i in self._refusals:
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
            self._refusals.note(i, INVALID)
            return None
        if self._request is None:
            # The library may expect the struct at full length.
            self._request = nvml.c_nvmlGpmMetricsGet_t()
            self._request.version, self._request.numMetrics = _VERSION, len(_METRICS)
            for at, metric in enumerate(_METRICS):
                self._request.metrics[at].metricId = metric
        # Samples of an earlier handle belong to the library, which may have been closed.
        self._pairs[i] = pair = _SamplePair(handle, parent, instance, older, newer)
        return pair

    def _difference(self, pair: _SamplePair) -> List[Value]:
        driver, request = self.readings.driver, self._request
        function = None if driver is None else driver.function("nvmlGpmMetricsGet")
        if function is None:
            return [None] * len(_METRICS)
        request.sample1, request.sample2 = pair.older, pair.newer
        if function(ctypes.byref(request)) != OK:
            return [None] * len(_METRICS)
        rows = [request.metrics[at] for at in range(len(_METRICS))]
        return [
            row.value
            if row.nvmlReturn == OK and 0.0 <= row.value <= (_MAX_PERCENT if at <= DRAM else _MAX_RATE)
            else None
            for at, row in enumerate(rows)
        ]  # False of NaN
