"""GPU readings of each tick, with as few NVML calls and as little Python as possible."""

from __future__ import annotations

import ctypes
import os
from array import array
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from .. import protocol
from . import nvml
from .gpm import GRAPHICS, Gpm
from .gpu_columns import MEMORY, PEAK, TICKS, UTIL, NvmlCall
from .gpu_columns import TICK_WIDTH as WIDTH
from .gpu_devices import DOWN, LOST, NEVER, NOT_FOUND, OK, Device, Driver, DriverError
from .gpu_names import gpu_name

#: Texts for the nvmlReturn_t of a lost device.
_LOST = {15: "fell off the bus", 16: "requires a reset", 28: "is no longer found"}

#: Maximum number of error notes of one GPU; a flapping one would fill the file.
MAX_NOTES = 20


def lost_text(code: int) -> str:
    """Return what happened to a device that returns this code."""
    return _LOST.get(code, "is lost")


class ErrorNotes:
    """Notes the beginning and the end of errors of a GPU, not each error.

    Parameters
    ----------
    notes
        List to which the sentences are appended.

    Attributes
    ----------
    open
        Current failures by the GPU's position: value and code.
    """

    def __init__(self, notes: List[str]) -> None:
        self.notes = notes
        self.open: Dict[int, Dict[str, int]] = {}
        self._last: Dict[int, float] = {}
        self._indices: Dict[int, int] = {}
        self._counts: Dict[int, int] = {}

    def add(
        self, t: float, i: int, index: int, codes: Mapping[str, int], silent: bool, text: Callable[[int], str]
    ) -> None:
        """Record the errors of one tick.

        Parameters
        ----------
        t
            Seconds of the monotonic clock.
        i, index
            The GPU's position and number.
        codes
            Values that failed, and the return codes of their functions.
        silent
            Whether the GPU returned no value at all.
        text
            Returns the text of a code.
        """
        self._last[i], self._indices[i] = t, index
        known = self.open.setdefault(i, {})
        new = {name: code for name, code in codes.items() if known.get(name) != code}
        known.update(new)
        for code in sorted(set(new.values())):
            names = sorted(name for name in new if new[name] == code)
            what = "does not answer" if silent else "does not report its " + ", ".join(names)
            self._note(i, "GPU %d %s: %s (NVML %d)" % (index, what, text(code), code))

    def close(self, t: float, seconds: float) -> None:
        """Note the GPUs that have had no error for some seconds."""
        for i in [i for i in self.open if t - self._last[i] >= seconds]:
            self._note(i, "GPU %d responds again" % self._indices[i])
            del self.open[i]

    def forget(self, i: int) -> None:
        """Drop the errors of a GPU that is lost: that is another note."""
        self.open.pop(i, None)

    def _note(self, i: int, text: str) -> None:
        count = self._counts[i] = self._counts.get(i, 0) + 1
        if count < MAX_NOTES:
            self.notes.append(text)
        elif count == MAX_NOTES:
            self.notes.append("%s; further errors of GPU %d are not recorded" % (text, self._indices[i]))


#: Keys of the two versions of the memory call among the refused calls.
_OLDER, _NEWER = MEMORY, -MEMORY

#: Keys of the call for the current utilization, and of the call for its samples.
_NOW, _SAMPLES = UTIL, PEAK
_SAMPLES_CALL = "nvmlDeviceGetSamples"

#: Seconds in which the slow metrics of every GPU are read once; ``AMLTRAIN_GPU_SLOW_PERIOD`` sets another number.
SLOW_PERIOD_S = float(os.environ.get("AMLTRAIN_GPU_SLOW_PERIOD") or 5.0)

#: Seconds until a lost GPU is tried again.
LOST_RETRY_S = SLOW_PERIOD_S

#: Seconds in which each refused function is called once more: MIG and permissions change.
REFUSED_RETRY_S = 60.0

#: Utilization samples read at once: a driver keeps fewer (seconds to minutes).
MAX_SAMPLES = 2048

Value = Optional[float]


class _Metric:
    """One function that is called for several GPUs each tick."""

    def __init__(self, key: int, read: Callable[[], List[Any]]) -> None:
        #: Key among the refused calls, and column of the values.
        self.key, self.column = key, MEMORY if key == _NEWER else key
        self.read = read
        self.positions: List[int] = []
        self.calls: List[Callable[[], int]] = []


class GpuReadings:
    """Reads GPUs tick by tick.

    Parameters
    ----------
    driver
        The driver; ``None`` if there is none (then it is looked for every few seconds).
    gpus
        Description of each GPU, as in the header: ``index``, ``uuid``...
    devices
        Their handles by UUID; a missing GPU is lost and looked for.

    Attributes
    ----------
    notes
        Sentences about lost and returned devices; the caller removes them.
    """

    def __init__(self, driver: Optional[Driver], gpus: Sequence[Dict[str, Any]], devices: Dict[str, Device]) -> None:
        self.driver = driver
        self.gpus = list(gpus)
        self.notes: List[str] = []
        self._handles: List[Any] = [None if g["uuid"] not in devices else devices[g["uuid"]].handle for g in gpus]
        self._retry: Optional[float] = None if driver and all(self._handles) else protocol.mono()
        self._unloaded = False
        # A run that began with the first version of the memory function stays with it: no jump in the chart.
        self._refused: Set[Tuple[int, int]] = {
            (i, _NEWER) for i, gpu in enumerate(gpus) if "reserved" in gpu and gpu["reserved"] is None
        }
        #: Refused calls, and when the next one is tried again.
        self._refused_calls: Dict[Tuple[int, int], Callable[[], int]] = {}
        self._retry_refused_at = protocol.mono() + REFUSED_RETRY_S
        self._errors = ErrorNotes(self.notes)
        self.gpm = Gpm(self)
        #: Positions whose utilization is GPM's.
        self._of_gpm: Set[int] = set()
        #: Bytes that the driver reserves on each GPU, from the second version of the function.
        self._reserved: List[Optional[int]] = [
            None if gpu.get("reserved") is None else gpu["reserved"] << 20 for gpu in gpus
        ]
        self._newer_memory: Any = ()
        self._samplers: List[Tuple[int, Any, Callable[[], int], Optional[Callable[[], int]]]] = []
        self._blank: List[Any] = [None] * (WIDTH * len(gpus))
        self._since = [ctypes.c_ulonglong(0) for _ in gpus]
        self._bind()

    def handle(self, i: int) -> Any:
        """Return NVML's handle of the GPU at position `i`; ``None`` while the GPU is lost."""
        return self._handles[i]

    def is_lost(self, i: int) -> bool:
        """Return whether the driver works and the GPU at position `i` is lost."""
        return self._handles[i] is None and self.driver is not None and not self._unloaded

    def reserved(self, i: int) -> Optional[int]:
        """Return the MiB that the driver reserves on the GPU at position `i`; ``None`` if unknown."""
        self._keep_reserved()
        size = self._reserved[i]
        return None if size is None else size >> 20

    def source(self, i: int) -> str:
        """Return where the utilization of the GPU at position `i` comes from: ``GPM``, ``samples`` or ``rates``."""
        if i in self._of_gpm:
            return "GPM"
        return "samples" if any(sampler[0] == i for sampler in self._samplers) else "rates"

    # -- calls ---------------------------------------------------------------------

    def _bind(self) -> None:
        """Create the calls of a tick for the GPUs that are present."""
        self._keep_reserved()
        self._metrics: List[_Metric] = []
        self._samplers, self._refused_calls, self._newer_memory = [], {}, ()
        driver, n = self.driver, len(self.gpus)
        if driver is None or not n:
            return
        here = [i for i in range(n) if self._handles[i] is not None]
        self._bind_memory(driver, here, n)
        for at, column in enumerate(TICKS):
            if column.nvml is not None:
                self._bind_numbers(driver, here, n, at, column.nvml)
        self._bind_utilization(driver, here, n)

    def _bind_numbers(self, driver: Driver, here: List[int], n: int, column: int, call_spec: NvmlCall) -> None:
        function = driver.function(*call_spec.functions)
        if function is None:
            return
        slots = array("I", bytes(4 * n))
        into = (ctypes.c_uint * n).from_buffer(slots)
        args = [ctypes.c_uint(constant) for constant in call_spec.constants]
        metric = _Metric(column, nvml.converter(call_spec.divisor, call_spec.maximum, slots))
        for i in here:
            call = partial(function, self._handles[i], *args, ctypes.byref(into, 4 * i))
            if (i, column) in self._refused:
                self._refused_calls[i, column] = call
            else:
                metric.positions.append(i)
                metric.calls.append(call)
        self._metrics.append(metric)

    def _bind_memory(self, driver: Driver, here: List[int], n: int) -> None:
        # The second version leaves out what the driver reserves, as nvidia-smi and CUDA do.
        newer, older = driver.function("nvmlDeviceGetMemoryInfo_v2"), driver.function("nvmlDeviceGetMemoryInfo")
        for function, words, key in ((newer, 5, _NEWER), (older, 3, _OLDER)):
            if function is None:
                continue
            slots = array("Q", bytes(8 * words * n))
            if words == 5:
                slots[0::5] = array("Q", [40 | 2 << 24] * n)  # NVML_STRUCT_VERSION(Memory, 2)
                self._newer_memory = slots
            into = (ctypes.c_ulonglong * len(slots)).from_buffer(slots)
            metric = _Metric(key, partial(self._newer if words == 5 else self._older, slots))
            for i in here:
                call = partial(function, self._handles[i], ctypes.byref(into, 8 * words * i))
                if (i, key) in self._refused:
                    # A GPU that began with the first version stays with it, see above.
                    if key != _NEWER or self._reserved[i] is not None:
                        self._refused_calls[i, key] = call
                elif words == 5 or newer is None or (i, _NEWER) in self._refused:
                    metric.positions.append(i)
                    metric.calls.append(call)
            if metric.positions:
                self._metrics.append(metric)

    @staticmethod
    def _newer(slots: Any) -> List[Any]:
        return nvml.all_mebibytes(slots[4::5], slots[1::5])

    def _older(self, slots: Any) -> List[Any]:
        # The first version counts the reserved memory as used: subtract it where it is known, so that the chart
        # does not jump.
        return [
            None if used > total else nvml.mebibytes(max(0, used - (reserved or 0)), total)
            for used, total, reserved in zip(slots[2::3], slots[0::3], self._reserved)
        ]

    def _keep_reserved(self) -> None:
        slots = self._newer_memory
        for i in range(len(slots) // 5):
            total, reserved = slots[5 * i + 1], slots[5 * i + 2]
            if 0 <= reserved < total <= nvml.MAX_BYTES:
                self._reserved[i] = reserved

    def _bind_utilization(self, driver: Driver, here: List[int], n: int) -> None:
        now, samples = driver.function("nvmlDeviceGetUtilizationRates"), driver.function(_SAMPLES_CALL)
        slots = array("I", bytes(8 * n))
        into = (ctypes.c_uint * (2 * n)).from_buffer(slots)
        self._now = slots
        buffer = array("Q", bytes(16 * MAX_SAMPLES))
        self._times = memoryview(buffer)
        self._words = self._times.cast("B").cast("I")
        self._count = ctypes.c_uint(0)
        kind, type_ = ctypes.c_uint(1), ctypes.c_uint(0)  # NVML_GPU_UTILIZATION_SAMPLES
        array_ = (ctypes.c_ulonglong * len(buffer)).from_buffer(buffer)
        metric = _Metric(UTIL, lambda: nvml.percents(slots[0::2]))
        for i in here:
            rates = read_samples = None
            if now is not None:
                rates = self._unless_refused(i, _NOW, partial(now, self._handles[i], ctypes.byref(into, 8 * i)))
            if samples is not None and i not in self._of_gpm and not (rates and driver.prices.is_dear(_SAMPLES_CALL)):
                read_samples = self._unless_refused(i, _SAMPLES, partial(
                    samples, self._handles[i], kind, self._since[i], ctypes.byref(type_),
                    ctypes.byref(self._count), ctypes.byref(array_),
                ))  # fmt: skip
            if read_samples is not None:
                self._samplers.append((i, self._since[i], read_samples, rates))
            elif rates is not None:
                metric.positions.append(i)
                metric.calls.append(rates)
        if metric.positions:
            self._metrics.append(metric)

    def _unless_refused(self, i: int, key: int, call: Callable[[], int]) -> Optional[Callable[[], int]]:
        if (i, key) not in self._refused:
            return call
        self._refused_calls[i, key] = call
        return None

    # -- a tick ----------------------------------------------------------------------

    def read(self) -> List[Value]:
        """Return the values of every GPU in the order of :data:`.gpu_columns.TICKS`, one list; ``None``: unknown."""
        if self._retry is not None and protocol.mono() >= self._retry:
            self._retry_lost()
        if self._refused_calls and protocol.mono() >= self._retry_refused_at:
            self._retry_refused()
        out = self._blank[:]
        n = len(self.gpus)
        trouble: List[Tuple[int, int, int]] = []
        for metric in self._metrics:
            codes = [call() for call in metric.calls]
            column = metric.column
            if len(codes) == n and not any(codes):
                out[column::WIDTH] = metric.read()
            else:
                values = metric.read()
                for i, code in zip(metric.positions, codes):
                    if code == OK:
                        out[WIDTH * i + column] = values[i]
                    else:
                        trouble.append((i, metric.key, code))
            if column == UTIL:
                out[PEAK::WIDTH] = out[UTIL::WIDTH]
        self._sample(out, trouble)
        self._read_gpm(out)
        if trouble:
            self._handle(trouble, out)
        if self._errors.open:
            self._errors.close(protocol.mono(), LOST_RETRY_S)
        return out

    def _sample(self, out: List[Any], trouble: List[Tuple[int, int, int]]) -> None:
        """Set the utilization from the driver's own samples since the last tick: they include short bursts."""
        driver = self.driver
        if not self._samplers or driver is None:
            return
        count, words, times = self._count, self._words, self._times
        limit, invalid = nvml.MAX_PERCENT, nvml.ALL_ONES_64
        for i, since, read_samples, rates in self._samplers:
            count.value = MAX_SAMPLES
            code = driver.prices.timed(_SAMPLES_CALL, read_samples)
            k = 0 if code else min(count.value, MAX_SAMPLES)
            if k:
                values = words[2 : 4 * k : 4].tolist()
                at = times[0 : 2 * k : 2].tolist()
                seen = since.value
                newest, highest = max(at), max(values)
                if min(at) <= seen or newest == invalid or highest > limit:
                    # A driver may return old samples, unused slots, and invalid values in an error state.
                    newest = max((moment for moment in at if 0 < moment < invalid), default=seen)
                    values = [
                        value for value, moment in zip(values, at)
                        if seen < moment < invalid and value <= limit
                    ]  # fmt: skip
                    highest = max(values, default=0)
                since.value = newest  # may go back: the clock of the samples was set or restarted
                if values and seen:  # the first samples are older than this reader
                    k = len(values)
                    out[WIDTH * i + UTIL] = (2 * sum(values) + k) // (2 * k)
                    out[WIDTH * i + PEAK] = highest
                    continue
            elif code not in (OK, NOT_FOUND):
                trouble.append((i, _SAMPLES, code))
            if rates is not None:
                code = rates()
                if code == OK:
                    out[WIDTH * i + UTIL] = out[WIDTH * i + PEAK] = nvml.number(self._now[2 * i], nvml.MAX_PERCENT)
                else:
                    trouble.append((i, _NOW, code))
        if driver.prices.is_dear(_SAMPLES_CALL) and any(rates is not None for *_, rates in self._samplers):
            self._bind()  # without them

    def _read_gpm(self, out: List[Any]) -> None:
        """Set the utilization to GPM's mean since the last tick, which has the bursts between two readings.

        The driver's own utilization is of a shorter time, and counts copies, too: it is the peak, and the utilization
        of a tick without kernels.
        """
        changed = False
        for i, handle in enumerate(self._handles):
            values = None if handle is None else self.gpm.read(i)
            busy = None if values is None else values[GRAPHICS]
            if busy is not None:
                mean, rate = min(100, int(busy + 0.5)), out[WIDTH * i + UTIL] or 0
                out[WIDTH * i + UTIL] = mean or rate
                out[WIDTH * i + PEAK] = max(mean, rate)
                changed = changed or i not in self._of_gpm
                self._of_gpm.add(i)
        if changed:
            self._bind()

    # -- trouble -----------------------------------------------------------------------

    def _handle(self, trouble: List[Tuple[int, int, int]], out: List[Any]) -> None:
        """Update handles, refused calls and notes from the codes that calls returned."""
        if any(code in DOWN for _, _, code in trouble):
            self._down(out)
            return
        changed = False
        failed: Dict[int, Dict[str, int]] = {}
        for i, key, code in trouble:
            if code in LOST and self._handles[i] is not None:
                self._handles[i] = None
                self._errors.forget(i)
                self.notes.append("%s %s" % (gpu_name(self.gpus[i]), lost_text(code)))
                self._retry = protocol.mono() + LOST_RETRY_S
                changed = True
            elif code in NEVER:
                self._refused.add((i, key))
                changed = True
            elif code not in LOST and code != NOT_FOUND:
                failed.setdefault(i, {})[_value_name(key)] = code
            if self._handles[i] is None:
                out[WIDTH * i : WIDTH * (i + 1)] = [None] * WIDTH
        for i, codes in failed.items():
            if self._handles[i] is not None and self.driver is not None:
                silent = not any(value is not None for value in out[WIDTH * i : WIDTH * (i + 1)])
                self._errors.add(protocol.mono(), i, self.gpus[i]["index"], codes, silent, self.driver.error_text)
        if changed:
            self._bind()

    def _retry_refused(self) -> None:
        """Call one of the refused functions, in turn."""
        key = next(iter(self._refused_calls))
        call = self._refused_calls.pop(key)
        self._refused_calls[key] = call  # to the end of the queue
        self._retry_refused_at = protocol.mono() + REFUSED_RETRY_S / len(self._refused_calls)
        if key[1] == _SAMPLES:
            self._count.value = MAX_SAMPLES
        if call() in (OK, NOT_FOUND):
            self._refused.discard(key)
            self._bind()

    def _down(self, out: List[Any]) -> None:
        if any(handle is not None for handle in self._handles):
            self.notes.append("the NVIDIA driver was unloaded")
            self._unloaded = True
        self._handles = [None] * len(self.gpus)
        out[:] = self._blank
        self._retry = protocol.mono() + LOST_RETRY_S
        self._bind()

    def _retry_lost(self) -> None:
        """Try to reopen lost devices and the driver."""
        self._retry = protocol.mono() + LOST_RETRY_S
        all_lost = not any(self._handles)
        try:
            if self.driver is None:
                self.driver = Driver()
            elif all_lost:
                self.driver.stop()
                self.driver.start()
        except DriverError:
            return
        lost = [i for i, handle in enumerate(self._handles) if handle is None]
        found = self.driver.by_uuid([self.gpus[i]["uuid"] for i in lost])
        back = [i for i in lost if self.gpus[i]["uuid"] in found and self._answers(found[self.gpus[i]["uuid"]].handle)]
        for i in back:
            self._handles[i] = found[self.gpus[i]["uuid"]].handle
            self._since[i].value = 0
        self._of_gpm.difference_update(back)
        if back:
            # The driver may be another one now.
            self._refused = {
                (i, key) for i, key in self._refused if i not in back or (key == _NEWER and self._reserved[i] is None)
            }
            names = [gpu_name(self.gpus[i]) for i in back]
            gpus = ", ".join(names) + (" is" if len(names) == 1 else " are")
            self.notes.append("%s back" % ("the NVIDIA driver is" if self._unloaded else gpus))
            self._unloaded = False
            self._bind()
        if len(back) == len(lost):
            self._retry = None

    def _answers(self, handle: Any) -> bool:
        """Return whether a device with a handle works: one that requires a reset has a handle, too."""
        function = self.driver.function("nvmlDeviceGetMemoryInfo") if self.driver is not None else None
        slots = (ctypes.c_ulonglong * 3)()
        return function is None or function(handle, ctypes.byref(slots)) not in LOST | DOWN


def _value_name(key: int) -> str:
    """Return the name of the value that a call with this key reads."""
    if key in (_NEWER, _OLDER):
        return "memory"
    return "utilization" if key in (_NOW, _SAMPLES) else TICKS[key].name.replace("_", " ")
