"""NVML's description of this machine's GPUs, read in a short-lived child process."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import struct
import sys
from functools import partial
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from . import driver_state
from .gpu_names import instance_number

#: "No value" in 32 and in 64 bits (NVML_VALUE_NOT_AVAILABLE).
ALL_ONES_32, ALL_ONES_64 = (1 << 32) - 1, (1 << 64) - 1

NO_VALUE = frozenset({ALL_ONES_32, ALL_ONES_64})

MAX_PERCENT = 100

#: A pebibyte.
MAX_BYTES = 1 << 50

Value = Optional[float]


def number(value: int, maximum: Optional[float] = None) -> Optional[int]:
    """Return the value; ``None`` for a sentinel and for more than `maximum`."""
    return None if value in NO_VALUE or (maximum is not None and value > maximum) else value


# A tick converts arrays; if no value is too large, which is the usual case, C does the work.


def percents(values: Any) -> List[Optional[int]]:
    """Return the utilizations (percent) in an array."""
    return _up_to(MAX_PERCENT, values)


def converter(divisor: int, maximum: float, values: Any) -> Callable[[], List[Any]]:
    """Return a function that divides the numbers of an array by `divisor`; ``None`` for a sentinel."""
    return partial(_up_to if divisor == 1 else partial(_scaled, divisor), maximum, values)


def _scaled(divisor: int, maximum: float, values: Any) -> List[Any]:
    """Divide; a fractional result under 100 gets one decimal."""
    exact, half = 100 * divisor, divisor // 2
    return [
        (value + half) // divisor if exact <= value <= maximum
        else round(value / divisor, 1) if value < exact
        else None
        for value in values
    ]  # fmt: skip


def _up_to(maximum: float, values: Any) -> List[Optional[int]]:
    numbers: List[Optional[int]] = values.tolist()
    return numbers if max(values) <= maximum else [value if value <= maximum else None for value in values]


def mebibytes(used: int, total: int) -> Optional[int]:
    """Return the used memory in MiB, from bytes; ``None`` if it exceeds the total."""
    return used >> 20 if 0 <= used <= total <= MAX_BYTES and total else None


def all_mebibytes(used: Any, total: Any) -> List[Optional[int]]:
    """Return used memories in MiB, from arrays of bytes; see :func:`mebibytes`."""
    if max(used) <= min(total) and min(total) > 0 and max(total) <= MAX_BYTES:
        return [value >> 20 for value in used]
    return [mebibytes(*pair) for pair in zip(used, total)]


def size_mebibytes(size: int) -> Optional[int]:
    """Return a size in MiB, from bytes."""
    return size >> 20 if 0 <= size <= MAX_BYTES else None


def memory(total: Optional[int], used: Optional[int]) -> Tuple[Optional[int], Optional[int]]:
    """Return size and use of a device's memory, bytes; ``None`` for an impossible value."""
    if total is None or not 0 < total <= MAX_BYTES:
        return None, None
    return total, used if used is not None and 0 <= used <= total else None


class Part(NamedTuple):
    """One MIG instance."""

    number: int  #: unique among all devices of the machine
    parent: int  #: number of its GPU
    instance: int  #: number in its GPU
    handle: Any
    gpu_instance: Optional[int]  #: ids in the driver's lists of processes
    compute_instance: Optional[int]


def is_split(nvml: Any, device: Any) -> bool:
    """Return whether MIG is on: CUDA then uses the GPU's instances, never the GPU itself."""
    mode = attempt(nvml.nvmlDeviceGetMigMode, device)
    return bool(mode and mode[0])


def mig_parts(nvml: Any, device: Any, index: int, gpus: int) -> List[Part]:
    """Return the instances of a GPU in the driver's order.

    Parameters
    ----------
    nvml
        The module pynvml, initialized.
    device, index
        NVML's handle of the GPU, and its number.
    gpus
        GPUs of the machine.
    """
    found = []
    for number in range(attempt(nvml.nvmlDeviceGetMaxMigDeviceCount, device) or 0):
        handle = attempt(nvml.nvmlDeviceGetMigDeviceHandleByIndex, device, number)
        if handle is not None:  # else this number is unused
            gpu_instance = attempt(nvml.nvmlDeviceGetGpuInstanceId, handle)
            compute_instance = attempt(nvml.nvmlDeviceGetComputeInstanceId, handle)
            device_number = instance_number(index, number, gpus)
            found.append(Part(device_number, index, number, handle, gpu_instance, compute_instance))
    return found


#: Returns a function of the driver's library, or ``None`` for an unknown name.
Lookup = Callable[[str], Optional[Callable[..., int]]]

_LIST = "nvmlDeviceGetComputeRunningProcesses"

_OK, _TOO_SMALL = 0, 7

#: Codes that concern one of the functions only: invalid, not supported, no permission, no function, version.
_OF_FUNCTION = frozenset({2, 3, 4, 13, 25})

#: What the driver returns for an unknown number.
NO_NUMBER_32, NO_NUMBER_64 = (1 << 32) - 1, (1 << 64) - 1

#: Bytes of the longest known row: the buffer has this room for each row that the driver may write.
MAX_ROW = 32

_FIRST_ROOM, _MAX_ROOM = 64, 1 << 16

_TRIES = 4


class Row(NamedTuple):
    """A process on a GPU."""

    pid: int
    memory: Optional[int]  #: bytes; ``None``: unknown
    gpu_instance: Optional[int]  #: of MIG; ``None``: unknown
    compute_instance: Optional[int]


class ProcessLists:
    """Reads lists of processes.

    Parameters
    ----------
    lookup
        Returns functions of the driver's library.
    """

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._count = ctypes.c_uint(0)
        self._count_at = ctypes.byref(self._count)
        self._make_room(_FIRST_ROOM)
        #: The function that worked last and the bytes of its rows: it is called first.
        self._last: Optional[Tuple[Callable[..., int], int]] = None

    def of(
        self, device: Any, gpu_instance: Optional[int] = None, compute_instance: Optional[int] = None
    ) -> Optional[List[Row]]:
        """Return the rows of one device, each pid once; ``None`` if the driver does not report them.

        Parameters
        ----------
        device
            NVML's handle of a GPU or MIG instance.
        gpu_instance, compute_instance
            Leave out processes that the driver reports as of another instance.
        """
        for function, row in (self._last,) if self._last is not None else self._functions():
            code, rows = self._call(function, row, device)
            if code == _OK:
                self._last = function, row
                return once(r for r in rows if _is_of(r, gpu_instance, compute_instance)) if rows else rows
            if code not in _OF_FUNCTION:
                return None
        if self._last is None:
            return None
        self._last = None  # the driver may be another one now
        return self.of(device, gpu_instance, compute_instance)

    def _functions(self) -> Iterator[Tuple[Callable[..., int], int]]:
        """Yield the library's readable list functions in the order of calls, and the bytes of their rows."""
        for name, row in ((_LIST + "_v2", 24), (_LIST + "_v3", self._third_row()), (_LIST, 16)):
            function = self._lookup(name)
            if function is not None:
                yield function, row

    def _make_room(self, rows: int) -> None:
        self._room = rows
        self._buffer = (ctypes.c_ubyte * (MAX_ROW * rows))()
        self._buffer_at = ctypes.byref(self._buffer)

    def _third_row(self) -> int:
        # These drivers have the first function and not yet the second.
        early = self._lookup("nvmlDeviceGetConfComputeMemSizeInfo") is not None
        return 32 if early and self._lookup("nvmlDeviceGetRunningProcessDetailList") is None else 24

    def _call(self, function: Callable[..., int], row: int, device: Any) -> Tuple[int, List[Row]]:
        code = _TOO_SMALL
        for _ in range(_TRIES):
            self._count.value = self._room
            code = function(device, self._count_at, self._buffer_at)
            count = self._count.value
            if code == _OK:
                # A driver that reports more than there is room for has filled the room.
                return code, _rows(self._buffer, min(count, self._room), row) if count else []
            if code != _TOO_SMALL or self._room >= _MAX_ROOM:
                break
            self._make_room(min(_MAX_ROOM, max(2 * self._room, 2 * count + 8)))
        return code, []


def _rows(data: Any, count: int, row: int) -> List[Row]:
    found = []
    for at in range(count):
        pid, memory = struct.unpack_from("=I4xQ", data, at * row)
        gpu, compute = struct.unpack_from("=II", data, at * row + 16) if row > 16 else (NO_NUMBER_32, NO_NUMBER_32)
        if pid == NO_NUMBER_32:
            continue
        found.append(
            Row(
                pid,
                None if memory == NO_NUMBER_64 else memory,
                None if gpu == NO_NUMBER_32 else gpu,
                None if compute == NO_NUMBER_32 else compute,
            )
        )
    return found


def _is_of(row: Row, gpu_instance: Optional[int], compute_instance: Optional[int]) -> bool:
    pairs = ((row.gpu_instance, gpu_instance), (row.compute_instance, compute_instance))
    return all(reported is None or requested is None or reported == requested for reported, requested in pairs)


def once(rows: Iterable[Row]) -> List[Row]:
    """Return rows with each pid of an instance once: in containers a driver may list one twice."""
    found: Dict[Tuple[int, Optional[int], Optional[int]], Row] = {}
    for row in rows:
        key = (row.pid, row.gpu_instance, row.compute_instance)
        known = found.get(key)
        if known is None or (row.memory or 0) > (known.memory or 0):
            found[key] = row
    return list(found.values())


def by_pid(rows: Iterable[Row]) -> List[Tuple[int, Optional[int]]]:
    """Return pid and bytes of each process, summed over the instances of a split GPU."""
    found: Dict[int, Optional[int]] = {}
    for row in rows:
        before = found.get(row.pid)
        found[row.pid] = row.memory if before is None else before + (row.memory or 0)
    return list(found.items())


LIBRARY = "libnvidia-ml.so.1"

#: Seconds until a probe is given up; a broken driver may never return.
PROBE_TIMEOUT_S = 20.0


def probe_timeout_s() -> float:
    """Return the seconds until a probe is given up: ``$AMLTRAIN_NVML_TIMEOUT``, else 20."""
    try:
        return max(0.1, float(os.environ["AMLTRAIN_NVML_TIMEOUT"]))
    except (KeyError, ValueError):
        return PROBE_TIMEOUT_S


def attempt(call: Callable[..., Any], *args: Any) -> Any:
    """Return the result of a call; ``None`` if the board, driver or instance does not support it."""
    try:
        return call(*args)
    except Exception:  # NVML's own errors, and what a binding without the function raises
        return None


def as_text(value: Any) -> Optional[str]:
    """Return NVML's text, which older bindings return as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def is_installed() -> bool:
    """Return whether the driver's library can be loaded; takes 0.05 ms and does not speak to the driver."""
    try:
        ctypes.CDLL(LIBRARY)
        return True
    except OSError:
        return False


def library() -> Tuple[Any, str]:
    """Return the module pynvml (``None`` without it or without a driver), and the reason if it cannot be used."""
    if not is_installed():
        text = "no NVIDIA driver found (%s is missing)" % LIBRARY
        if driver_state.has_hardware():
            text += ", although there is an NVIDIA device: install it (on Ubuntu: sudo ubuntu-drivers install)"
            text += ", or start the container with its GPUs"
        return None, text
    try:
        import pynvml
    except ImportError:
        return None, "the agent was built without pynvml: pip install nvidia-ml-py"
    return pynvml, ""


#: Note about a GPU of which CUDA can use no part.
NO_INSTANCE = (
    "GPU %d is in MIG mode and has no instance, so CUDA cannot use it. Create some with"
    " `nvidia-smi mig -cgi`, or switch MIG off"
)


def read_gpus() -> Dict[str, Any]:
    """Initialize NVML; return the GPUs of this machine and the driver's state (see `driver_state.result`).

    Each GPU is ``{"index", "name", "uuid", "memory_total", "memory_used", "utilization", "temperature",
    "processes": [{"pid", "memory"}] | None, "driver", "cuda"}``; bytes, percent, degrees Celsius and versions;
    ``None`` if the device does not report it.
    A GPU that is split by MIG is replaced by its instances, which also have ``mig`` (true), ``parent``,
    ``instance`` (numbers of the GPU and in it), ``parent_uuid``, ``gpu_instance``, ``compute_instance``.
    """
    pynvml, reason = library()
    if pynvml is None:
        broken = "pynvml" in reason and driver_state.has_hardware()
        return driver_state.result(
            driver_state.BROKEN if broken else driver_state.ABSENT, reason, driver_state.NO_BINDING if broken else None
        )
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except Exception as error:  # a broken driver may also raise errors of ctypes
        return driver_state.failed_init(error)
    gpus: List[Dict[str, Any]] = []
    notes: List[str] = []
    present: List[Dict[str, Any]] = []
    lost: List[Dict[str, Any]] = []
    lists = ProcessLists(lambda name: attempt(pynvml._nvmlGetFunctionPointer, name))
    for index in range(count):
        device, uuid, reason = _identified(pynvml, index)
        if reason or uuid is None:  # no job can get it
            name = None if device is None else as_text(attempt(pynvml.nvmlDeviceGetName, device))
            lost.append({"index": index, "name": name, "uuid": uuid, "reason": reason})
            continue
        name = as_text(attempt(pynvml.nvmlDeviceGetName, device)) or "GPU"
        present.append({"index": index, "name": name, "uuid": uuid})
        if not is_split(pynvml, device):
            gpus.append(_facts(pynvml, device, index, uuid, lists.of(device)))
            continue
        # CUDA uses an instance of a split GPU, never the GPU itself.
        parts = mig_parts(pynvml, device, index, count)
        if not parts:
            notes.append(NO_INSTANCE % index)
        gpus += _instance_facts(pynvml, lists, device, uuid, parts)

    driver_versions = versions(pynvml)
    for gpu in gpus:
        gpu.update(driver_versions)
    attempt(pynvml.nvmlShutdown)
    if not gpus and not notes and not lost:
        notes = ["the NVIDIA driver knows no GPU"]
    return driver_state.result(driver_state.WORKS, "; ".join(notes), None, gpus, present, lost)


def _instance_facts(
    pynvml: Any, lists: ProcessLists, device: Any, uuid: str, parts: Iterable[Part]
) -> Iterator[Dict[str, Any]]:
    """Yield the facts of the instances of one GPU."""
    for part in parts:
        own = as_text(attempt(pynvml.nvmlDeviceGetUUID, part.handle))
        if own is None:
            continue
        ids = (part.gpu_instance, part.compute_instance)
        rows = lists.of(part.handle, *ids)
        if rows is None and part.gpu_instance is not None:
            # The GPU lists the processes of all its instances; a row without ids may be of this one.
            rows = lists.of(device, *ids)
        facts = _facts(pynvml, part.handle, part.number, own, rows)
        facts.update(mig=True, parent=part.parent, instance=part.instance, parent_uuid=uuid)
        facts.update(gpu_instance=part.gpu_instance, compute_instance=part.compute_instance)
        yield facts


def _facts(pynvml: Any, device: Any, index: int, uuid: str, rows: Optional[List[Row]]) -> Dict[str, Any]:
    # The second version leaves out what the driver reserves, as nvidia-smi does.
    memory = attempt(pynvml.nvmlDeviceGetMemoryInfo, device, getattr(pynvml, "nvmlMemory_v2", None))
    memory = memory or attempt(pynvml.nvmlDeviceGetMemoryInfo, device)
    rates = attempt(pynvml.nvmlDeviceGetUtilizationRates, device)
    return {
        "index": index,
        "name": as_text(attempt(pynvml.nvmlDeviceGetName, device)) or "GPU",
        "uuid": uuid,
        "memory_total": None if memory is None else int(memory.total),
        "memory_used": None if memory is None else int(memory.used),
        "utilization": None if rates is None else number(int(rates.gpu), MAX_PERCENT),
        "temperature": attempt(pynvml.nvmlDeviceGetTemperature, device, 0),
        "processes": None if rows is None else [{"pid": pid, "memory": size} for pid, size in by_pid(rows)],
    }


def _identified(pynvml: Any, index: int) -> Tuple[Any, Optional[str], str]:
    """Return handle and UUID of a GPU, if the driver reports them, and why it cannot be used (empty: it can)."""
    device: Any = None
    uuid: Optional[str] = None
    try:
        device = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = as_text(pynvml.nvmlDeviceGetUUID(device))
    except Exception as error:  # NVML's own errors, and errors of ctypes
        return device, uuid, driver_state.lost_reason(driver_state.code_of(error), error)
    try:  # a driver may know the name of a lost GPU
        pynvml.nvmlDeviceGetMemoryInfo(device)
    except Exception as error:  # as above
        code = driver_state.code_of(error)
        if code in driver_state.LOST_CODES:
            return device, uuid, driver_state.lost_reason(code, error)
    return device, uuid, ""


def start_probe() -> Tuple[int, int]:
    """Fork a child that runs :func:`read_gpus`; return its pid and the pipe with the JSON result.

    Raises
    ------
    OSError
        The process or the pipe cannot be created.
    """
    reader, writer = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        raise
    if pid:
        os.close(writer)
        os.set_blocking(reader, False)
        return pid, reader
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        if writer != 3:
            os.dup2(writer, 3)
        os.closerange(4, 4096)
        answer = json.dumps(read_gpus()).encode()
        while answer:
            answer = answer[os.write(3, answer) :]
    finally:
        os._exit(0)


def parse_probe(data: bytes, seconds: float = PROBE_TIMEOUT_S) -> Dict[str, Any]:
    """Return the result of a probe; a probe that ended without one means a broken driver.

    Parameters
    ----------
    seconds
        Duration of the probe.
    """
    try:
        value = json.loads(data.decode())
    except ValueError:
        value = None
    if isinstance(value, dict):
        for gpu in value["gpus"]:
            gpu["memory_total"], gpu["memory_used"] = memory(gpu["memory_total"], gpu["memory_used"])
        return value
    if seconds >= probe_timeout_s():
        note = "NVML did not answer within %g s" % probe_timeout_s()
        return driver_state.result(driver_state.BROKEN, note, driver_state.TOO_SLOW)
    return driver_state.result(driver_state.BROKEN, "NVML crashed", driver_state.NO_ANSWER)


def preload() -> None:
    """Import pynvml here (the import touches no driver), so that later probes need not."""
    if "pynvml" not in sys.modules:
        try:
            import pynvml  # noqa: F401
        except ImportError:  # later probes report that it is missing
            pass


def versions(pynvml: Any) -> Dict[str, Optional[str]]:
    """Return ``{"driver": "580.65.06", "cuda": "13.0"}`` of an initialized NVML; ``None`` if it is unknown."""
    number = attempt(pynvml.nvmlSystemGetCudaDriverVersion_v2)
    return {
        "driver": as_text(attempt(pynvml.nvmlSystemGetDriverVersion)),
        "cuda": "%d.%d" % (number // 1000, number % 1000 // 10) if isinstance(number, int) and number > 0 else None,
    }
