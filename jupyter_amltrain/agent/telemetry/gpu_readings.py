"""What the GPUs measure, read with as few NVML calls and as little Python as possible."""

from __future__ import annotations

import ctypes
import os
from array import array
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from .. import protocol
from . import nvml
from .gpu_columns import MEMORY, PEAK, TICKS, UTIL, NvmlCall
from .gpu_columns import TICK_WIDTH as WIDTH
from .gpu_devices import DOWN, LOST, NEVER, NOT_FOUND, OK, Device, Driver, DriverError
from .gpu_names import gpu_name

#: nvmlReturn_t of a device that is away, in words.
_LOST = {15: "fell off the bus", 16: "requires a reset", 28: "is not found any more"}

#: Notes of errors about one GPU; a flapping one would fill the file.
MAX_NOTES = 20


def lost_text(code: int) -> str:
    """What has happened to a device that answers this code."""
    return _LOST.get(code, "is lost")


class ErrorNotes:
    """Notes the beginning and the end of errors of a GPU, not each of them.

    Parameters
    ----------
    notes
        Where the sentences go.

    Attributes
    ----------
    open
        What fails now, by the GPU's position: value and code.
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
        """Take the errors of one tick.

        Parameters
        ----------
        t
            Seconds of the monotonic clock.
        i, index
            The GPU's position and number.
        codes
            What failed, and what its function returned.
        silent
            Whether the GPU told nothing at all.
        text
            Gives the words of a code.
        """
        self._last[i], self._indices[i] = t, index
        known = self.open.setdefault(i, {})
        new = {name: code for name, code in codes.items() if known.get(name) != code}
        known.update(new)
        for code in sorted(set(new.values())):
            names = sorted(name for name in new if new[name] == code)
            what = "does not answer" if silent else "does not tell its " + ", ".join(names)
            self._note(i, "GPU %d %s: %s (NVML %d)" % (index, what, text(code), code))

    def close(self, t: float, seconds: float) -> None:
        """Note which GPUs had no error for some seconds."""
        for i in [i for i in self.open if t - self._last[i] >= seconds]:
            self._note(i, "GPU %d answers again" % self._indices[i])
            del self.open[i]

    def forget(self, i: int) -> None:
        """The GPU is away: that is another note."""
        self.open.pop(i, None)

    def _note(self, i: int, text: str) -> None:
        count = self._counts[i] = self._counts.get(i, 0) + 1
        if count < MAX_NOTES:
            self.notes.append(text)
        elif count == MAX_NOTES:
            self.notes.append("%s; further errors of GPU %d are not noted" % (text, self._indices[i]))


#: Key of the first version of the memory's call among the refused ones, and of the second.
_OLDER, _NEWER = MEMORY, -MEMORY

#: Key of the call for the utilization now, and of the one for its samples.
_NOW, _SAMPLES = UTIL, PEAK

#: Seconds in which the slow metrics of every GPU are read once; ``AMLTRAIN_GPU_SLOW_PERIOD`` sets another number.
SLOW_PERIOD_S = float(os.environ.get("AMLTRAIN_GPU_SLOW_PERIOD") or 5.0)

#: Seconds until a lost GPU is tried again.
LOST_RETRY_S = SLOW_PERIOD_S

#: Seconds in which each function that was refused is asked once more: MIG and permissions change.
REFUSED_RETRY_S = 60.0

#: Utilization samples taken at once: a driver keeps fewer (seconds to minutes).
MAX_SAMPLES = 2048

Value = Optional[float]


class _Metric:
    """One function that is asked of several GPUs each tick."""

    def __init__(self, key: int, read: Callable[[], List[Any]]) -> None:
        #: Among the refused calls, and where the values go.
        self.key, self.column = key, MEMORY if key == _NEWER else key
        self.read = read
        self.who: List[int] = []
        self.calls: List[Callable[[], int]] = []


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
        self._retry: Optional[float] = None if driver and all(self._handles) else protocol.mono()
        self._unloaded = False
        # A run that began with the first version of the memory's function stays with it: no jump.
        self._refused: Set[Tuple[int, int]] = {
            (i, _NEWER) for i, gpu in enumerate(gpus) if "reserved" in gpu and gpu["reserved"] is None
        }
        #: Calls that were refused, and when the next of them is asked again.
        self._refused_calls: Dict[Tuple[int, int], Callable[[], int]] = {}
        self._ask_refused_at = protocol.mono() + REFUSED_RETRY_S
        self._errors = ErrorNotes(self.notes)
        #: Bytes that the driver reserves on each GPU: the second version of the function told them.
        self._reserved: List[Optional[int]] = [
            None if gpu.get("reserved") is None else gpu["reserved"] << 20 for gpu in gpus
        ]
        self._newer_memory: Any = ()
        self._samplers: List[Tuple[int, Any, Callable[[], int], Optional[Callable[[], int]]]] = []
        self._blank: List[Any] = [None] * (WIDTH * len(gpus))
        self._since = [ctypes.c_ulonglong(0) for _ in gpus]
        self._bind()

    def handle(self, i: int) -> Any:
        """NVML's handle of the GPU at position `i`; ``None`` while it is away."""
        return self._handles[i]

    def is_lost(self, i: int) -> bool:
        """Whether the driver works and the GPU at position `i` is away."""
        return self._handles[i] is None and self.driver is not None and not self._unloaded

    def reserved(self, i: int) -> Optional[int]:
        """MiB that the driver keeps for itself on the GPU at position `i`, as far as it has told them."""
        self._keep_reserved()
        size = self._reserved[i]
        return None if size is None else size >> 20

    # -- calls ---------------------------------------------------------------------

    def _bind(self) -> None:
        """Make the calls of a tick for the GPUs that are here."""
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

    def _bind_numbers(self, driver: Driver, here: List[int], n: int, column: int, how: NvmlCall) -> None:
        function = driver.function(*how.functions)
        if function is None:
            return
        slots = array("I", bytes(4 * n))
        into = (ctypes.c_uint * n).from_buffer(slots)
        args = [ctypes.c_uint(constant) for constant in how.constants]
        metric = _Metric(column, nvml.converter(how.divisor, how.maximum, slots))
        for i in here:
            call = partial(function, self._handles[i], *args, ctypes.byref(into, 4 * i))
            if (i, column) in self._refused:
                self._refused_calls[i, column] = call
            else:
                metric.who.append(i)
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
                    # Who began with the first version stays with it, see above.
                    if key != _NEWER or self._reserved[i] is not None:
                        self._refused_calls[i, key] = call
                elif words == 5 or newer is None or (i, _NEWER) in self._refused:
                    metric.who.append(i)
                    metric.calls.append(call)
            if metric.who:
                self._metrics.append(metric)

    @staticmethod
    def _newer(slots: Any) -> List[Any]:
        return nvml.all_mebibytes(slots[4::5], slots[1::5])

    def _older(self, slots: Any) -> List[Any]:
        # The reserve is in it: where it is known it is taken out, so that the chart does not jump.
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
        now, samples = driver.function("nvmlDeviceGetUtilizationRates"), driver.function("nvmlDeviceGetSamples")
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
            ask = take = None
            if now is not None:
                ask = self._unless_refused(i, _NOW, partial(now, self._handles[i], ctypes.byref(into, 8 * i)))
            if samples is not None:
                take = self._unless_refused(i, _SAMPLES, partial(
                    samples, self._handles[i], kind, self._since[i], ctypes.byref(type_),
                    ctypes.byref(self._count), ctypes.byref(array_),
                ))  # fmt: skip
            if take is not None:
                self._samplers.append((i, self._since[i], take, ask))
            elif ask is not None:
                metric.who.append(i)
                metric.calls.append(ask)
        if metric.who:
            self._metrics.append(metric)

    def _unless_refused(self, i: int, key: int, call: Callable[[], int]) -> Optional[Callable[[], int]]:
        if (i, key) not in self._refused:
            return call
        self._refused_calls[i, key] = call
        return None

    # -- a tick ----------------------------------------------------------------------

    def read(self) -> List[Value]:
        """The values of every GPU in the order of :data:`.gpu_columns.TICKS`, one list; ``None`` for *cannot tell*."""
        if self._retry is not None and protocol.mono() >= self._retry:
            self._look_again()
        if self._refused_calls and protocol.mono() >= self._ask_refused_at:
            self._ask_refused()
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
                for i, code in zip(metric.who, codes):
                    if code == OK:
                        out[WIDTH * i + column] = values[i]
                    else:
                        trouble.append((i, metric.key, code))
            if column == UTIL:
                out[PEAK::WIDTH] = out[UTIL::WIDTH]
        self._sample(out, trouble)
        if trouble:
            self._handle(trouble, out)
        if self._errors.open:
            self._errors.close(protocol.mono(), LOST_RETRY_S)
        return out

    def _sample(self, out: List[Any], trouble: List[Tuple[int, int, int]]) -> None:
        """Utilization from the driver's own samples since the last tick: short bursts are in them."""
        if not self._samplers:
            return
        count, words, times = self._count, self._words, self._times
        most, rubbish = nvml.MAX_PERCENT, nvml.ALL_ONES_64
        for i, since, take, ask in self._samplers:
            count.value = MAX_SAMPLES
            code = take()
            k = 0 if code else min(count.value, MAX_SAMPLES)
            if k:
                values = words[2 : 4 * k : 4].tolist()
                at = times[0 : 2 * k : 2].tolist()
                seen = since.value
                newest, highest = max(at), max(values)
                if min(at) <= seen or newest == rubbish or highest > most:
                    # A driver may give what we have had, slots that it never filled, and rubbish in trouble.
                    newest = max((moment for moment in at if 0 < moment < rubbish), default=seen)
                    values = [
                        value for value, moment in zip(values, at)
                        if seen < moment < rubbish and value <= most
                    ]  # fmt: skip
                    highest = max(values, default=0)
                since.value = newest  # also back: the clock of the samples was set, or began anew
                if values and seen:  # the first answer is of the time before us
                    k = len(values)
                    out[WIDTH * i + UTIL] = (2 * sum(values) + k) // (2 * k)
                    out[WIDTH * i + PEAK] = highest
                    continue
            elif code not in (OK, NOT_FOUND):
                trouble.append((i, _SAMPLES, code))
            if ask is not None:
                code = ask()
                if code == OK:
                    out[WIDTH * i + UTIL] = out[WIDTH * i + PEAK] = nvml.number(self._now[2 * i], nvml.MAX_PERCENT)
                else:
                    trouble.append((i, _NOW, code))

    # -- trouble -----------------------------------------------------------------------

    def _handle(self, trouble: List[Tuple[int, int, int]], out: List[Any]) -> None:
        """Learn from the codes that calls have returned."""
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
                failed.setdefault(i, {})[_what(key)] = code
            if self._handles[i] is None:
                out[WIDTH * i : WIDTH * (i + 1)] = [None] * WIDTH
        for i, codes in failed.items():
            if self._handles[i] is not None and self.driver is not None:
                silent = not any(value is not None for value in out[WIDTH * i : WIDTH * (i + 1)])
                self._errors.add(protocol.mono(), i, self.gpus[i]["index"], codes, silent, self.driver.error_text)
        if changed:
            self._bind()

    def _ask_refused(self) -> None:
        """Ask one of the functions that were refused; they take turns."""
        where = next(iter(self._refused_calls))
        call = self._refused_calls.pop(where)
        self._refused_calls[where] = call  # to the end of the line
        self._ask_refused_at = protocol.mono() + REFUSED_RETRY_S / len(self._refused_calls)
        if where[1] == _SAMPLES:
            self._count.value = MAX_SAMPLES
        if call() in (OK, NOT_FOUND):
            self._refused.discard(where)
            self._bind()

    def _down(self, out: List[Any]) -> None:
        if any(handle is not None for handle in self._handles):
            self.notes.append("the NVIDIA driver was unloaded")
            self._unloaded = True
        self._handles = [None] * len(self.gpus)
        out[:] = self._blank
        self._retry = protocol.mono() + LOST_RETRY_S
        self._bind()

    def _look_again(self) -> None:
        """Try to get back what is away."""
        self._retry = protocol.mono() + LOST_RETRY_S
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
        back = [i for i in away if self.gpus[i]["uuid"] in found and self._answers(found[self.gpus[i]["uuid"]].handle)]
        for i in back:
            self._handles[i] = found[self.gpus[i]["uuid"]].handle
            self._since[i].value = 0
        if back:
            # Another driver may have come back.
            self._refused = {
                (i, key) for i, key in self._refused if i not in back or (key == _NEWER and self._reserved[i] is None)
            }
            who = [gpu_name(self.gpus[i]) for i in back]
            gpus = ", ".join(who) + (" is" if len(who) == 1 else " are")
            self.notes.append("%s back" % ("the NVIDIA driver is" if self._unloaded else gpus))
            self._unloaded = False
            self._bind()
        if len(back) == len(away):
            self._retry = None

    def _answers(self, handle: Any) -> bool:
        """Whether a device that has a handle is there: one that requires a reset has one, too."""
        function = self.driver.function("nvmlDeviceGetMemoryInfo") if self.driver is not None else None
        slots = (ctypes.c_ulonglong * 3)()
        return function is None or function(handle, ctypes.byref(slots)) not in LOST | DOWN


def _what(key: int) -> str:
    """What a key of a call reads, in words."""
    if key in (_NEWER, _OLDER):
        return "memory"
    return "utilization" if key in (_NOW, _SAMPLES) else TICKS[key].name.replace("_", " ")
