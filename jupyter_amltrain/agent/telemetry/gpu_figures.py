"""GPU figures that only some devices have, read at each tick: activity, transfers, throttling.

Each value is a mean since the tick before, so that it belongs to the same second as the utilization beside it. A
call that is too dear for each tick is not made: GPM or the current throttle reasons take its place.
"""

from __future__ import annotations

import ctypes
from operator import itemgetter
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .. import protocol
from .call_prices import MEASURED_CALLS
from .gpm import DRAM, NVLINK_RX, NVLINK_TX, OCCUPANCY, PCIE_RX, PCIE_TX, SM, TENSOR
from .gpu_columns import FIGURES, unit_of
from .gpu_devices import OK, Refusals
from .gpu_readings import GpuReadings, Value

# nvml.h, nvmlPerfPolicyType_t: their counters are in nanoseconds.
_POLICIES = (0, 1)

# nvml.h, nvmlClocksEventReasons: software power cap, power brake; hardware slowdown, both thermal ones.
POWER_REASONS, HEAT_REASONS = 0x4 | 0x80, 0x8 | 0x20 | 0x40

_REASON_FUNCTIONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")

_NO_COUNT = (1 << 64) - 1

_VIOLATIONS, _FIELD_VALUES = "nvmlDeviceGetViolationStatus", "nvmlDeviceGetFieldValues"


class Throttling:
    """Throttling of the GPUs of `readings`, since the last reading of each.

    From the driver's violation counters; without a counter, or where they are dear, from the current reasons.
    """

    #: Columns in the order of the values.
    NAMES = ("throttled_power", "throttled_heat")
    TOPIC = "throttled"

    def __init__(self, readings: GpuReadings) -> None:
        self.readings = readings
        self._refusals = Refusals()
        self._slots, self._bits = (ctypes.c_ulonglong * 2)(), ctypes.c_ulonglong(0)
        #: For each GPU: its handle, when its counters were read, and their values.
        self._last: Dict[int, Tuple[Any, float, List[Optional[int]]]] = {}

    def supported(self, i: int) -> List[bool]:
        """Return which columns a GPU supports; measures what its counters cost."""
        for _ in range(MEASURED_CALLS):
            known = [value is not None for value in self.read(i)]
            counters = self._last[i][2]
        return [a or counter is not None for a, counter in zip(known, counters)]

    def source(self, i: int) -> str:
        """Return where the values come from: ``counters`` or ``reasons``."""
        return "reasons" if i not in self._last or None in self._last[i][2] else "counters"

    def read(self, i: int) -> List[Value]:
        """Return the values of one GPU in the order of :attr:`NAMES`, percent of the time."""
        driver = self.readings.driver
        if driver is not None and driver.prices.is_dear(_VIOLATIONS):
            self._last[i] = (None, 0.0, [None, None])
            return self._shares_of(self._reasons(i))
        handle = self.readings.handle(i)
        counters = [self._counter(i, policy) for policy in _POLICIES]
        before, now = self._last.get(i), protocol.mono()
        self._last[i] = (handle, now, counters)
        shares: List[Value] = [None, None]
        if before is not None and before[0] is handle and now > before[1]:
            shares = [_share(old, new, now - before[1]) for old, new in zip(before[2], counters)]
        bits = self._reasons(i) if None in counters else None
        if bits is None:
            return shares
        reasons = self._shares_of(bits)
        return [share if count is not None else reason for share, count, reason in zip(shares, counters, reasons)]

    @staticmethod
    def _shares_of(bits: Optional[int]) -> List[Value]:
        """Return the current reasons as shares of a tick."""
        if bits is None:
            return [None, None]
        return [100 if bits & POWER_REASONS else 0, 100 if bits & HEAT_REASONS else 0]

    def _counter(self, i: int, policy: int) -> Optional[int]:
        handle, driver = self.readings.handle(i), self.readings.driver
        function = driver.function(_VIOLATIONS) if driver is not None else None
        if function is None or handle is None or driver is None or (i, policy) in self._refusals:
            return None
        code = driver.prices.timed(_VIOLATIONS, lambda: function(handle, policy, ctypes.byref(self._slots)))
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
    TOPIC = "transfers"

    def __init__(self, readings: GpuReadings) -> None:
        self.readings = readings
        self._refusals = Refusals()
        self._fields: Any = None
        #: For each GPU: its handle, when its counters were read, and their values.
        self._last: Dict[int, Tuple[Any, float, List[Optional[int]]]] = {}

    def supported(self, i: int) -> List[bool]:
        """Return which columns a GPU supports; measures what its counters cost."""
        for _ in range(MEASURED_CALLS):
            self.read(i)
        driver = self.readings.driver
        if i in self._last and driver is not None and not driver.prices.is_dear(_FIELD_VALUES):
            return [value is not None for value in self._last[i][2]]
        found = self.readings.gpm.supported(i)
        return [found[at] for at in (PCIE_RX, PCIE_TX, NVLINK_RX, NVLINK_TX)]

    def source(self, i: int) -> str:
        """Return where the values come from: ``counters`` or ``GPM``."""
        return "counters" if i in self._last else "GPM"

    def read(self, i: int) -> List[Value]:
        """Return the values of one GPU in the order of :attr:`NAMES`."""
        handle, counters = self.readings.handle(i), self._counters(i)
        before, now = self._last.pop(i, None), protocol.mono()
        if counters is None:
            means = self.readings.gpm.last(i)
            if means is None:
                return [None] * len(self.NAMES)
            return [_short(means[at]) for at in (PCIE_RX, PCIE_TX, NVLINK_RX, NVLINK_TX)]
        self._last[i] = (handle, now, counters)
        if before is None or before[0] is not handle or now <= before[1]:
            return [None] * len(self.NAMES)
        seconds = now - before[1]
        return [
            _rate(old, new, unit, seconds) for old, new, (_, _, unit) in zip(before[2], counters, _FIELDS)
        ]  # fmt: skip

    def _counters(self, i: int) -> Optional[List[Optional[int]]]:
        handle, driver = self.readings.handle(i), self.readings.driver
        function = driver.function(_FIELD_VALUES) if driver is not None else None
        if function is None or handle is None or driver is None or i in self._refusals:
            return None
        if driver.prices.is_dear(_FIELD_VALUES):
            return None
        if self._fields is None:
            self._fields = (driver.nvml.c_nvmlFieldValue_t * len(_FIELDS))()
        for field, (number, scope, _) in zip(self._fields, _FIELDS):
            field.fieldId, field.scopeId, field.nvmlReturn, field.value.ullVal = number, scope, -1, 0
        code = driver.prices.timed(_FIELD_VALUES, lambda: function(handle, len(_FIELDS), ctypes.byref(self._fields)))
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
    return None if rate > _MAX_RATE else _short(rate)


def _short(rate: Value) -> Value:
    """Return a rate as the file stores it: three digits."""
    if rate is None:
        return None
    if rate >= 1000:
        return round(int(rate), 3 - len(str(int(rate))))
    tenths = round(rate, 1)
    return tenths if 0 < tenths < 1 else int(rate + 0.5)


#: Percent: a driver may round a full load up to this.
_MAX_PERCENT = 101.0


def percent(value: Value) -> Optional[int]:
    """Return a percentage as the file stores it; ``None`` if it is not one."""
    return min(100, int(value + 0.5)) if value is not None and 0.0 <= value <= _MAX_PERCENT else None  # False of NaN


class GpuActivity:
    """Activity of the GPUs of `readings`, since the last reading of each."""

    #: Columns in the order of the values.
    NAMES = ("sm_activity", "sm_occupancy", "tensor_activity", "dram_bandwidth", "memory_busy")
    TOPIC = "activity"

    def __init__(self, readings: GpuReadings) -> None:
        self.readings = readings
        self._refusals = Refusals()
        self._rates = (ctypes.c_uint * 2)()

    def supported(self, i: int) -> List[bool]:
        """Return which columns a GPU supports; takes the first samples."""
        if self.readings.gpm.read(i) is not None:
            found = self.readings.gpm.supported(i)
            return [*(found[at] for at in (SM, OCCUPANCY, TENSOR, DRAM)), False]
        return [False, False, False, False, self._memory_busy(i) is not None]

    def source(self, i: int) -> str:
        """Return where the values come from: ``GPM`` or ``rates``."""
        return "rates" if self.readings.gpm.last(i) is None else "GPM"

    def read(self, i: int) -> List[Value]:
        """Return the values of one GPU in the order of :attr:`NAMES`."""
        means = self.readings.gpm.last(i)
        if means is not None:
            return [*(percent(means[at]) for at in (SM, OCCUPANCY, TENSOR, DRAM)), None]
        return [None, None, None, None, self._memory_busy(i)]

    def _memory_busy(self, i: int) -> Value:
        handle, driver = self.readings.handle(i), self.readings.driver
        function = driver.function("nvmlDeviceGetUtilizationRates") if driver is not None else None
        if function is None or handle is None or (i, "rates") in self._refusals:
            return None
        code = function(handle, ctypes.byref(self._rates))
        self._refusals.note((i, "rates"), code)
        return percent(self._rates[1]) if code == OK else None


class GpuFigures:
    """Figures of the GPUs of `readings`, in the columns that one of them supports.

    Parameters
    ----------
    columns
        Names in the existing file; ``None``: all that the devices support.

    Attributes
    ----------
    columns
        Name and unit of each value of a GPU.
    """

    def __init__(self, readings: GpuReadings, columns: Optional[Sequence[str]] = None) -> None:
        self.readings = readings
        self._sources: List[Any] = [GpuActivity(readings), Transfers(readings), Throttling(readings)]
        names = [name for source in self._sources for name in source.NAMES]
        count = len(readings.gpus)
        supported = [[flag for source in self._sources for flag in source.supported(i)] for i in range(count)]
        if columns is None:
            known = {name for at, name in enumerate(names) if any(row[at] for row in supported)}
            columns = [column.name for column in FIGURES if column.name in known]
        self.columns: List[Tuple[str, str]] = [(name, unit_of(name)) for name in columns]
        at = [names.index(name) if name in names else len(names) for name in columns]
        # Two positions more, so that the result is always a tuple.
        self._pick = itemgetter(*at, len(names), len(names))

    def read(self) -> List[Sequence[Value]]:
        """Return the values of each GPU."""
        width = len(self.columns)
        if not width:
            return [()] * len(self.readings.gpus)
        rows: List[Sequence[Value]] = []
        for i in range(len(self.readings.gpus)):
            row = [value for source in self._sources for value in source.read(i)]
            rows.append(self._pick([*row, None])[:width])
        return rows

    def sources(self, i: int) -> Dict[str, str]:
        """Return where the figures of the GPU at position `i` come from: ``util_source``, ``activity_source``..."""
        columns = {name for name, _ in self.columns}
        found = {"util_source": self.readings.source(i)}
        for source in self._sources:
            if columns.intersection(source.NAMES):
                found[source.TOPIC + "_source"] = source.source(i)
        return found
