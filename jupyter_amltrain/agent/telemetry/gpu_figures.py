"""GPU figures that are means over some seconds: activity, transfers, throttling."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .. import protocol
from .gpu_columns import FIGURES, unit_of
from .gpu_devices import INVALID, OK, Refusals
from .gpu_readings import GpuReadings, Value
from .gpu_slow import NvmlGauges
from .nvml import attempt

# nvml.h, nvmlPerfPolicyType_t: their counters are in nanoseconds.
_POLICIES = (0, 1)

# nvml.h, nvmlClocksEventReasons: software power cap, power brake; hardware slowdown, both thermal ones.
POWER_REASONS, HEAT_REASONS = 0x4 | 0x80, 0x8 | 0x20 | 0x40

_REASON_FUNCTIONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")

_NO_COUNT = (1 << 64) - 1


class Throttling:
    """Throttling of the GPUs of `readings`, since the last reading of each.

    From the driver's violation counters; without a counter, from the current throttle reasons.
    """

    #: Columns in the order of the values.
    NAMES = ("throttled_power", "throttled_heat")

    def __init__(self, readings: GpuReadings) -> None:
        self.readings = readings
        self._refusals = Refusals()
        self._slots, self._bits = (ctypes.c_ulonglong * 2)(), ctypes.c_ulonglong(0)
        #: For each GPU: its handle, when its counters were read, and their values.
        self._last: Dict[int, Tuple[Any, float, List[Optional[int]]]] = {}

    def supported(self, i: int) -> List[bool]:
        """Return which columns a GPU supports; reads its counters."""
        known = [value is not None for value in self.read(i)]
        counters = self._last[i][2] if i in self._last else [None, None]
        return [a or counter is not None for a, counter in zip(known, counters)]

    def read(self, i: int) -> List[Value]:
        """Return the values of one GPU in the order of :attr:`NAMES`."""
        handle = self.readings.handle(i)
        counters = [self._counter(i, policy) for policy in _POLICIES]
        before, now = self._last.pop(i, None), protocol.mono()
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
        function = driver.function(*_REASON_FUNCTIONS) if driver is not None else None
        if function is None or handle is None or (i, "reasons") in self._refusals:
            return None
        code = function(handle, ctypes.byref(self._bits))
        self._refusals.note((i, "reasons"), code)
        return int(self._bits.value) if code == OK and self._bits.value != _NO_COUNT else None


def _share(old: Optional[int], new: Optional[int], seconds: float) -> Value:
    """Return percent of the time; ``None`` if the counter was reset."""
    if old is None or new is None or new < old or seconds <= 0:
        return None
    return min(100, int((new - old) / 1e7 / seconds + 0.5))


# nvml.h: NVML_FI_DEV_PCIE_COUNT_RX_BYTES, .._TX_BYTES (bytes), NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, .._TX (KiB)
_FIELDS = ((198, 0, 1.0), (197, 0, 1.0), (139, 0xFFFFFFFF, 1024.0), (138, 0xFFFFFFFF, 1024.0))

#: Upper bound of a bus (MiB/s): a counter that jumps further was reset.
_MAX_RATE = 4 << 20

_NO_COUNTS = (0xFFFFFFFF, (1 << 64) - 1)


class Transfers:
    """Throughput of the GPUs of `readings`, since the last reading of each."""

    #: Columns in the order of the values; received means by the GPU.
    NAMES = ("pcie_rx", "pcie_tx", "nvlink_rx", "nvlink_tx")

    def __init__(self, readings: GpuReadings) -> None:
        self.readings = readings
        self._refusals = Refusals()
        self._fields: Any = None
        #: For each GPU: its handle, when its counters were read, and their values.
        self._last: Dict[int, Tuple[Any, float, List[Optional[int]]]] = {}

    def supported(self, i: int) -> List[bool]:
        """Return which columns a GPU supports; reads its counters."""
        self.read(i)
        counters = self._last[i][2] if i in self._last else [None] * len(self.NAMES)
        return [value is not None for value in counters]

    def read(self, i: int) -> List[Value]:
        """Return the values of one GPU in the order of :attr:`NAMES`."""
        handle, counters = self.readings.handle(i), self._counters(i)
        before, now = self._last.pop(i, None), protocol.mono()
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
        if self._fields is None:
            self._fields = (driver.nvml.c_nvmlFieldValue_t * len(_FIELDS))()
        for field, (number, scope, _) in zip(self._fields, _FIELDS):
            field.fieldId, field.scopeId, field.nvmlReturn, field.value.ullVal = number, scope, -1, 0
        code = function(handle, len(_FIELDS), ctypes.byref(self._fields))
        self._refusals.note(i, code)
        return [_counter(field) for field in self._fields] if code == OK else None


def _counter(field: Any) -> Optional[int]:
    if field.nvmlReturn != OK or field.valueType not in (1, 2, 3, 4):  # unsigned ones, and a signed long long
        return None
    value = int(field.value.uiVal if field.valueType == 1 else field.value.ullVal)
    return None if value in _NO_COUNTS else value


def _rate(old: Optional[int], new: Optional[int], unit: float, seconds: float) -> Value:
    """Return MiB/s; ``None`` if the counter was reset or wrapped."""
    if old is None or new is None or new < old:
        return None
    rate = (new - old) * unit / (1 << 20) / seconds
    return None if rate > _MAX_RATE else int(rate + 0.5) if rate >= 10 else round(rate, 1)


# nvml.h, nvmlGpmMetricId_t: SM_UTIL, ANY_TENSOR_UTIL, DRAM_BW_UTIL
_METRICS = (2, 5, 10)

_VERSION = 1

#: Seconds: for two samples that are closer, GPM returns no values.
MIN_GPM_INTERVAL_S = 0.1

#: Percent: a driver may round a full load up to this.
_MAX_PERCENT = 101.0


def percent(value: float) -> Optional[int]:
    """Return a percentage as the file stores it; ``None`` if it is not one."""
    return min(100, int(value + 0.5)) if 0.0 <= value <= _MAX_PERCENT else None  # False of NaN


class _SamplePair:
    """Two GPM samples of one device; the older one is overwritten next."""

    def __init__(self, handle: Any, parent: Any, instance: Optional[int], older: Any, newer: Any) -> None:
        self.handle, self.parent, self.instance = handle, parent, instance
        self.older, self.newer = older, newer
        self.at: Optional[float] = None


class Activity:
    """Activity of the GPUs of `readings`, since the last reading of each."""

    #: Columns in the order of the values.
    NAMES = ("sm_activity", "tensor_activity", "dram_bandwidth", "memory_busy")

    def __init__(self, readings: GpuReadings) -> None:
        self.readings = readings
        self._refusals = Refusals()
        self._pairs: Dict[int, _SamplePair] = {}
        self._metrics: Any = None
        self._rates = (ctypes.c_uint * 2)()

    def supported(self, i: int) -> List[bool]:
        """Return which columns a GPU supports; takes the first samples."""
        if self._sample(i):
            return [True, True, True, False]
        return [False, False, False, self._memory_busy(i) is not None]

    def read(self, i: int) -> List[Value]:
        """Return the values of one GPU in the order of :attr:`NAMES`."""
        pair = self._pairs.get(i)
        before = None if pair is None else pair.at
        if self._sample(i):
            pair = self._pairs[i]
            known = before is not None and pair.at is not None and pair.at - before >= MIN_GPM_INTERVAL_S
            return [*(self._difference(i, pair) if known else [None] * 3), None]
        return [None, None, None, self._memory_busy(i)]

    def _sample(self, i: int) -> bool:
        """Take a GPM sample; return whether the device provided one."""
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
        pair.at = protocol.mono()
        return True

    def _pair(self, i: int) -> Optional[_SamplePair]:
        """Return the sample pair of one device, a new one if its handle has changed."""
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
            self._metrics = self._request(nvml)
        # Samples of an earlier handle belong to the library, which may have been closed.
        self._pairs[i] = pair = _SamplePair(handle, parent, instance, older, newer)
        return pair

    @staticmethod
    def _request(nvml: Any) -> Any:
        """Return the request for all metrics: the library may expect the struct at full length."""
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = _VERSION, len(_METRICS)
        for at, metric in enumerate(_METRICS):
            request.metrics[at].metricId = metric
        return request

    def _difference(self, i: int, pair: _SamplePair) -> List[Value]:
        driver, request = self.readings.driver, self._metrics
        function = None if driver is None else driver.function("nvmlGpmMetricsGet")
        if function is None:
            return [None] * 3
        request.sample1, request.sample2 = pair.older, pair.newer
        if function(ctypes.byref(request)) != OK:
            return [None] * 3
        rows = [request.metrics[at] for at in range(len(_METRICS))]
        return [percent(row.value) if row.nvmlReturn == OK else None for row in rows]

    def _memory_busy(self, i: int) -> Value:
        handle, driver = self.readings.handle(i), self.readings.driver
        function = driver.function("nvmlDeviceGetUtilizationRates") if driver is not None else None
        if function is None or handle is None or (i, "rates") in self._refusals:
            return None
        code = function(handle, ctypes.byref(self._rates))
        self._refusals.note((i, "rates"), code)
        return percent(self._rates[1]) if code == OK else None


#: Seconds between two readings.
FIGURES_PERIOD_S = 5.0

#: Seconds from the start to the first reading.
_FIRST_S = 1.0


class _Gauges:
    """Figures that are each the result of one NVML function."""

    def __init__(self, readings: GpuReadings) -> None:
        columns = [(column.name, column.nvml) for column in FIGURES if column.nvml is not None]
        self.NAMES = tuple(name for name, _ in columns)
        self._gauges = NvmlGauges(readings, [call for _, call in columns if call is not None])

    def supported(self, i: int) -> List[bool]:
        """Return which columns a GPU supports."""
        return [value is not None for value in self.read(i)]

    def read(self, i: int) -> List[Value]:
        """Return the values of one GPU in the order of :attr:`NAMES`."""
        return self._gauges.read(i) if self.NAMES else []


class GpuFigures:
    """Figures of the GPUs of `readings`.

    Parameters
    ----------
    columns
        Names in the existing file; ``None``: all that the devices support.
    """

    def __init__(self, readings: GpuReadings, columns: Optional[Sequence[str]] = None) -> None:
        self.readings = readings
        sources: List[Any] = [
            Activity(readings), Transfers(readings), Throttling(readings),
            _Gauges(readings),
        ]  # fmt: skip
        names = [name for source in sources for name in source.NAMES]
        count = len(readings.gpus)
        supported = [[flag for source in sources for flag in source.supported(i)] for i in range(count)]
        if columns is None:
            known = {name for at, name in enumerate(names) if any(row[at] for row in supported)}
            columns = [column.name for column in FIGURES if column.name in known]
        self.columns: List[Tuple[str, str]] = [(name, unit_of(name)) for name in columns]
        self._at = [names.index(name) if name in names else -1 for name in columns]
        self._sources = sources if self.columns else []
        self._due = protocol.mono() + _FIRST_S
        self._values: List[Value] = [None] * (len(self.columns) * count)
        self._written: Optional[List[Value]] = list(self._values)

    def read(self) -> Optional[List[Value]]:
        """Return the values of every GPU in one list, if they are due and one differs from the written ones."""
        now = protocol.mono()
        if not self._sources or now < self._due:
            return self._values if self._written is None else None
        self._due = now + FIGURES_PERIOD_S - 0.05  # a tick may be a little early or late
        values: List[Value] = []
        for i in range(len(self.readings.gpus)):
            row = [value for source in self._sources for value in source.read(i)]
            values += [row[at] if at >= 0 else None for at in self._at]
        self._values = values
        return None if values == self._written else values

    def current(self) -> List[Value]:
        """Return the current values."""
        return self._values

    def set_written(self, values: Sequence[Value]) -> None:
        """Record that these values are in the file."""
        self._written = list(values)

    def write_again(self) -> None:
        """Write the values again with the next tick: a reader may start here."""
        self._written = None
