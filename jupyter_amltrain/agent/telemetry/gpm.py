"""GPM: means of what the parts of a GPU did between two samples of the driver. Hopper and newer."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, Optional, Protocol, Sequence

from .. import protocol
from .gpu_devices import INVALID, NEVER, OK, Driver, Refusals
from .nvml import attempt

Value = Optional[float]

# nvml.h, nvmlGpmMetricId_t: GRAPHICS_UTIL, SM_UTIL, SM_OCCUPANCY, ANY_TENSOR_UTIL, DRAM_BW_UTIL (percent),
# PCIE_RX_PER_SEC, PCIE_TX_PER_SEC, NVLINK_TOTAL_RX_PER_SEC, NVLINK_TOTAL_TX_PER_SEC (MiB/s)
_METRICS = (1, 2, 3, 5, 10, 21, 20, 60, 61)

#: Positions of the metrics; received means by the GPU.
GRAPHICS, SM, OCCUPANCY, TENSOR, DRAM, PCIE_RX, PCIE_TX, NVLINK_RX, NVLINK_TX = range(len(_METRICS))

_VERSION = 1

#: Seconds: for two samples that are closer, GPM returns no values.
MIN_INTERVAL_S = 0.1

#: Percent: a driver may round a full load up to this. MiB/s: no bus is faster.
_LIMITS = [101.0 if at <= DRAM else float(4 << 20) for at in range(len(_METRICS))]


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


class Gpm:
    """GPM of the GPUs of `readings`."""

    def __init__(self, readings: Devices) -> None:
        self.readings = readings
        self._refusals = Refusals()
        self._pairs: Dict[int, _SamplePair] = {}
        #: Argument of the function that compares two samples, and its rows: access to a row makes an object.
        self._request: Any = None
        self._rows: List[Any] = []

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
            pair.at, pair.last = None, [None] * len(_METRICS)
            return None
        pair.older, pair.newer = pair.newer, pair.older
        is_first, pair.at = pair.at is None, now
        pair.last = [None] * len(_METRICS) if is_first else self._difference(pair)
        return pair.last

    def supported(self, i: int) -> List[bool]:
        """Return which metrics a GPU has; none without GPM."""
        pair, driver = self._pair(i), self.readings.driver
        function = None if driver is None else driver.function("nvmlGpmMetricsGet")
        if pair is None or function is None:
            return [False] * len(_METRICS)
        for _ in range(2):
            pair.at = None  # the next sample is taken at once
            if self.read(i) is None:
                return [False] * len(_METRICS)
        if function(self._compared(pair)) != OK:
            return [True] * len(_METRICS)
        # Over a short time there are no values, but codes.
        return [row.nvmlReturn not in NEVER for row in self._rows]

    def last(self, i: int) -> Optional[Sequence[Value]]:
        """Return what :meth:`read` returned last; ``None`` without GPM."""
        pair = self._pairs.get(i)
        return None if pair is None else pair.last

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
            self._rows = [self._request.metrics[at] for at in range(len(_METRICS))]
        # Samples of an earlier handle belong to the library, which may have been closed.
        self._pairs[i] = pair = _SamplePair(handle, parent, instance, older, newer)
        return pair

    def _compared(self, pair: _SamplePair) -> Any:
        """Return the argument of the function that compares two samples."""
        self._request.sample1, self._request.sample2 = pair.older, pair.newer
        return ctypes.byref(self._request)

    def _difference(self, pair: _SamplePair) -> List[Value]:
        driver = self.readings.driver
        function = None if driver is None else driver.function("nvmlGpmMetricsGet")
        if function is None:
            return [None] * len(_METRICS)
        if function(self._compared(pair)) != OK:
            return [None] * len(_METRICS)
        return [
            value if row.nvmlReturn == OK and 0.0 <= (value := row.value) <= limit else None  # False of NaN
            for row, limit in zip(self._rows, _LIMITS)
        ]
