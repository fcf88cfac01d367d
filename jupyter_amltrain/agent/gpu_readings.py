"""What the GPUs measure, read with as few NVML calls and as little Python as can be.

A call of NVML's costs microseconds in Python and up to a millisecond in a driver. So a
tick asks each GPU five things, by bound calls into memory that is made once; what
changes seldom is asked of a few GPUs a tick, in turn; PCIe counters (20 ms a call) never.
"""

from __future__ import annotations

import ctypes
from array import array
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from . import clock
from .gpu_devices import DOWN, LOST, NEVER, NOT_FOUND, OK, Device, Driver, DriverError
from .gpu_names import gpu_name

#: Name and unit of each column of a GPU.
COLUMNS: Tuple[Tuple[str, str], ...] = (
    ("util", "percent"),
    ("peak", "percent"),
    ("memory", "MiB"),
    ("power", "W"),
    ("temperature", "C"),
    ("sm_clock", "MHz"),
)
WIDTH = len(COLUMNS)
#: Seconds until what is away is tried again.
RETRY = 5.0
#: Utilization samples taken at once: a driver keeps fewer (seconds to minutes).
ROOM = 2048

Value = Optional[float]


class _Metric:
    """One function that is asked of several GPUs each tick."""

    def __init__(self, column: int, read: Callable[[], List[Any]]) -> None:
        self.column = column
        self.read = read
        self.who: List[int] = []
        self.calls: List[Callable[[], int]] = []


def _mebibytes(slots: Any, start: int, step: int) -> List[int]:
    return [value >> 20 for value in slots[start::step]]


def _watts(slots: Any) -> List[float]:
    return [(value + 500) // 1000 if value >= 100000 else round(value / 1000, 1) for value in slots]


class GpuReadings:
    """GPUs that are read tick by tick.

    Parameters
    ----------
    driver
        The driver; ``None`` while there is none (it is looked for every few seconds).
    gpus
        What each GPU is, as in the header: ``index``, ``uuid``...
    devices
        Their handles by UUID; who is not in it is away and looked for.

    Attributes
    ----------
    notes
        Sentences for the record, of what went away or came back; the caller takes them out.
    """

    def __init__(self, driver: Optional[Driver], gpus: Sequence[Dict[str, Any]], devices: Dict[str, Device]) -> None:
        self.driver = driver
        self.gpus = list(gpus)
        self.notes: List[str] = []
        self._handles: List[Any] = [None if g["uuid"] not in devices else devices[g["uuid"]].handle for g in gpus]
        self._retry: Optional[float] = None if driver and all(self._handles) else clock.mono()
        self._unloaded = False
        self._refused: Set[Tuple[int, int]] = set()
        self._samplers: List[Tuple[int, Callable[[], int], Optional[Callable[[], int]]]] = []
        self._blank: List[Any] = [None] * (WIDTH * len(gpus))
        self._since = [ctypes.c_ulonglong(0) for _ in gpus]
        self._bind()

    def handle(self, i: int) -> Any:
        """NVML's handle of the GPU at position `i`; ``None`` while it is away."""
        return self._handles[i]

    def is_lost(self, i: int) -> bool:
        """Whether the driver works and the GPU at position `i` is away."""
        return self._handles[i] is None and self.driver is not None and not self._unloaded

    # -- calls ---------------------------------------------------------------------

    def _bind(self) -> None:
        """Make the calls of a tick for the GPUs that are here."""
        self._metrics: List[_Metric] = []
        self._samplers = []
        driver, n = self.driver, len(self.gpus)
        if driver is None or not n:
            return
        here = [i for i in range(n) if self._handles[i] is not None]
        self._bind_memory(driver, here, n)
        self._bind_numbers(driver, here, n, 3, "nvmlDeviceGetPowerUsage", (), _watts)
        self._bind_numbers(driver, here, n, 4, "nvmlDeviceGetTemperature", (ctypes.c_uint(0),), None)
        self._bind_numbers(driver, here, n, 5, "nvmlDeviceGetClockInfo", (ctypes.c_uint(1),), None)
        self._bind_utilization(driver, here, n)

    def _bind_numbers(self, driver: Driver, here: List[int], n: int, column: int, name: str, args: Any,
                      convert: Optional[Callable[[Any], List[Any]]]) -> None:  # fmt: skip
        function = driver.function(name)
        if function is None:
            return
        slots = array("I", bytes(4 * n))
        into = (ctypes.c_uint * n).from_buffer(slots)
        metric = _Metric(column, slots.tolist if convert is None else partial(convert, slots))
        for i in here:
            if (i, column) not in self._refused:
                metric.who.append(i)
                metric.calls.append(partial(function, self._handles[i], *args, ctypes.byref(into, 4 * i)))
        self._metrics.append(metric)

    def _bind_memory(self, driver: Driver, here: List[int], n: int) -> None:
        # The second version leaves out what the driver reserves, as nvidia-smi and CUDA do.
        newer, older = driver.function("nvmlDeviceGetMemoryInfo_v2"), driver.function("nvmlDeviceGetMemoryInfo")
        for function, words, used, key in ((newer, 5, 4, -2), (older, 3, 2, 2)):
            if function is None:
                continue
            slots = array("Q", bytes(8 * words * n))
            if words == 5:
                slots[0::5] = array("Q", [40 | 2 << 24] * n)  # NVML_STRUCT_VERSION(Memory, 2)
            into = (ctypes.c_ulonglong * len(slots)).from_buffer(slots)
            metric = _Metric(key, partial(_mebibytes, slots, used, words))
            for i in here:
                other = newer is not None and words == 3 and (i, -2) not in self._refused
                if not other and (i, key) not in self._refused:
                    metric.who.append(i)
                    metric.calls.append(partial(function, self._handles[i], ctypes.byref(into, 8 * words * i)))
            if metric.who:
                self._metrics.append(metric)

    def _bind_utilization(self, driver: Driver, here: List[int], n: int) -> None:
        now, samples = driver.function("nvmlDeviceGetUtilizationRates"), driver.function("nvmlDeviceGetSamples")
        slots = array("I", bytes(8 * n))
        into = (ctypes.c_uint * (2 * n)).from_buffer(slots)
        self._now = slots
        buffer = array("Q", bytes(16 * ROOM))
        self._times = buffer
        self._words = memoryview(buffer).cast("B").cast("I")
        self._count = ctypes.c_uint(0)
        kind, type_ = ctypes.c_uint(1), ctypes.c_uint(0)  # NVML_GPU_UTILIZATION_SAMPLES
        array_ = (ctypes.c_ulonglong * len(buffer)).from_buffer(buffer)
        metric = _Metric(0, lambda: slots[0::2].tolist())
        for i in here:
            ask = None
            if now is not None and (i, 0) not in self._refused:
                ask = partial(now, self._handles[i], ctypes.byref(into, 8 * i))
            if samples is not None and (i, 1) not in self._refused:
                take = partial(
                    samples, self._handles[i], kind, self._since[i], ctypes.byref(type_),
                    ctypes.byref(self._count), ctypes.byref(array_),
                )  # fmt: skip
                self._samplers.append((i, take, ask))
            elif ask is not None:
                metric.who.append(i)
                metric.calls.append(ask)
        if metric.who:
            self._metrics.append(metric)

    # -- a tick ----------------------------------------------------------------------

    def read(self) -> List[Value]:
        """The values of every GPU in the order of :data:`COLUMNS`, one list; ``None`` for *cannot tell*."""
        if self._retry is not None and clock.mono() >= self._retry:
            self._look_again()
        out = self._blank[:]
        n = len(self.gpus)
        trouble: List[Tuple[int, int, int]] = []
        for metric in self._metrics:
            codes = [call() for call in metric.calls]
            column = metric.column if metric.column >= 0 else 2
            if len(codes) == n and not any(codes):
                out[column::WIDTH] = metric.read()
            else:
                values = metric.read()
                for i, code in zip(metric.who, codes):
                    if code == OK:
                        out[WIDTH * i + column] = values[i]
                    else:
                        trouble.append((i, metric.column, code))
            if not column:
                out[1::WIDTH] = out[0::WIDTH]
        self._sample(out, trouble)
        if trouble:
            self._handle(trouble, out)
        return out

    def _sample(self, out: List[Any], trouble: List[Tuple[int, int, int]]) -> None:
        """Utilization from the driver's own samples since the last tick: short bursts are in them."""
        if not self._samplers:
            return
        count, words, times, last = self._count, self._words, self._times, self._since
        for i, take, ask in self._samplers:
            count.value = ROOM
            code = take()
            k = 0 if code else count.value
            if k:
                values = words[2 : 4 * k : 4].tolist()
                since = last[i]
                first = not since.value
                since.value = max(times[0], times[2 * k - 2])  # in whichever order they come
                most = max(values)
                if most > 100:  # seen of drivers in trouble
                    values = [value for value in values if value <= 100]
                    most = max(values, default=0)
                if values and not first:  # the first answer is of the time before us
                    k = len(values)
                    out[WIDTH * i] = (2 * sum(values) + k) // (2 * k)
                    out[WIDTH * i + 1] = most
                    continue
            elif code not in (OK, NOT_FOUND):
                trouble.append((i, 1, code))
            if ask is not None:
                code = ask()
                if code == OK:
                    out[WIDTH * i] = out[WIDTH * i + 1] = self._now[2 * i]
                else:
                    trouble.append((i, 0, code))

    # -- trouble -----------------------------------------------------------------------

    def _handle(self, trouble: List[Tuple[int, int, int]], out: List[Any]) -> None:
        """Learn from the codes that calls have returned."""
        if any(code in DOWN for _, _, code in trouble):
            self._down(out)
            return
        changed = False
        for i, key, code in trouble:
            if code in LOST and self._handles[i] is not None:
                self._handles[i] = None
                self.notes.append("%s fell off the bus" % gpu_name(self.gpus[i]))
                self._retry = clock.mono() + RETRY
                changed = True
            elif code in NEVER:
                self._refused.add((i, key))
                changed = True
            if self._handles[i] is None:
                out[WIDTH * i : WIDTH * (i + 1)] = [None] * WIDTH
        if changed:
            self._bind()

    def _down(self, out: List[Any]) -> None:
        if any(handle is not None for handle in self._handles):
            self.notes.append("the NVIDIA driver was unloaded")
            self._unloaded = True
        self._handles = [None] * len(self.gpus)
        out[:] = self._blank
        self._retry = clock.mono() + RETRY
        self._bind()

    def _look_again(self) -> None:
        """Try to get back what is away."""
        self._retry = clock.mono() + RETRY
        all_away = not any(self._handles)
        try:
            if self.driver is None:
                self.driver = Driver()
            elif all_away:
                self.driver.stop()
                self.driver.start()
        except DriverError:
            return
        away = [i for i, handle in enumerate(self._handles) if handle is None]
        found = self.driver.by_uuid([self.gpus[i]["uuid"] for i in away])
        back = [i for i in away if self.gpus[i]["uuid"] in found]
        for i in back:
            self._handles[i] = found[self.gpus[i]["uuid"]].handle
        if back:
            # Another driver may have come back.
            self._refused = {(i, key) for i, key in self._refused if i not in back}
            who = [gpu_name(self.gpus[i]) for i in back]
            gpus = ", ".join(who) + (" is" if len(who) == 1 else " are")
            self.notes.append("%s back" % ("the NVIDIA driver is" if self._unloaded else gpus))
            self._unloaded = False
            self._bind()
        if len(back) == len(away):
            self._retry = None
