"""GPU incidents of a run with their times: Xid errors, lost devices, memory errors."""

from __future__ import annotations

import ctypes
import os
from typing import Any, Callable, Collection, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .. import protocol
from ..processes import program_of, user_of
from ..protocol import SCHEMA, AgentError, read_json, write_json
from .gpu_devices import OK, TOO_SMALL
from .gpu_names import gpu_name
from .gpu_readings import GpuReadings
from .nvml import as_text, attempt

#: The program did something that the GPU refuses; the GPU is healthy.
APPLICATION = "application"

#: The GPU, its memory, its power or a link is at fault.
HARDWARE = "hardware"

#: The driver or its firmware stopped working; program or hardware may be the cause.
DRIVER = "driver"

#: Follows another error or a kill; never a cause.
CLEANUP = "cleanup"

#: Recorded for later: it ends no program.
RECORD = "record"

_DEBUG = "Run it again with CUDA_LAUNCH_BLOCKING=1 to find the line"

_RESET = "Reset the GPU (sudo nvidia-smi -r) or reboot the machine before the next run"

_REPLACE = "If the error recurs after a reboot, replace the GPU"

_REBOOT = "Reboot the machine; if the error recurs, update the driver or have the GPU checked"


class Xid(NamedTuple):
    """Meaning of an Xid number.

    Attributes
    ----------
    name
        A few words, as in a message.
    fault
        :data:`APPLICATION`, :data:`HARDWARE`, :data:`DRIVER`, :data:`CLEANUP` or :data:`RECORD`.
    action
        What to do, one sentence without its full stop.
    """

    name: str
    fault: str
    action: str


XIDS: Dict[int, Xid] = {
    8: Xid("a kernel exceeded the GPU's time limit", APPLICATION, _DEBUG),
    11: Xid("the GPU was sent an invalid command", DRIVER, _REBOOT),
    13: Xid("illegal access or instruction in a kernel", APPLICATION, _DEBUG),
    31: Xid("a kernel accessed memory outside its own allocations", APPLICATION, _DEBUG),
    32: Xid("the GPU was sent a damaged command", DRIVER, _REBOOT),
    38: Xid("the driver's firmware failed", DRIVER, _REBOOT),
    43: Xid("the GPU stopped the program after a program error", APPLICATION, _DEBUG),
    45: Xid("the driver removed the program's work", CLEANUP, "Check the errors before it"),
    48: Xid("uncorrectable memory error", HARDWARE, "%s. %s" % (_RESET, _REPLACE)),
    61: Xid("the GPU's internal controller stopped", HARDWARE, _REBOOT),
    62: Xid("the GPU's internal controller halted", HARDWARE, _REBOOT),
    63: Xid("bad memory of the GPU will be replaced by spare memory", RECORD, _RESET),
    64: Xid("bad memory of the GPU could not be replaced", HARDWARE, "%s. %s" % (_RESET, _REPLACE)),
    68: Xid("the video decoder failed", APPLICATION, "Check the videos and the decoding library"),
    69: Xid("a kernel used the GPU in an invalid way", APPLICATION, _DEBUG),
    74: Xid("NVLink error", HARDWARE, "%s. If the error recurs, have the NVLink connection checked" % _RESET),
    79: Xid("GPU has fallen off the bus", HARDWARE,
            "Reboot the machine; if the error recurs, check the GPU's power, cooling and seat"),
    92: Xid("many correctable memory errors", RECORD, "Have the GPU checked; the results are correct"),
    94: Xid("contained memory error: only the affected program ends", HARDWARE, "Start the run again. " + _RESET),
    95: Xid("uncontained memory error: every program on the GPU ends", HARDWARE, "%s. %s" % (_RESET, _REPLACE)),
    109: Xid("the GPU could not switch between programs in time", APPLICATION, _DEBUG),
    119: Xid("the GPU's system processor does not respond", DRIVER, _REBOOT),
    120: Xid("the GPU's system processor failed", DRIVER, _REBOOT),
    121: Xid("error on the link between CPU and GPU", RECORD, "Have the machine checked if the error recurs"),
    136: Xid("link training failed", HARDWARE, _REBOOT),
    137: Xid("NVLink access to memory that is not open", APPLICATION, _DEBUG),
    140: Xid("unrecovered memory error", HARDWARE, "%s. %s" % (_RESET, _REPLACE)),
    143: Xid("the GPU could not be initialized", HARDWARE, _REBOOT),
    154: Xid("the GPU needs another kind of recovery", RECORD, "See GPU Recovery Action in: nvidia-smi -q"),
}  # fmt: skip

for _number in range(144, 151):
    XIDS[_number] = XIDS[74]

del _number

_UNKNOWN = Xid("", DRIVER, "See https://docs.nvidia.com/deploy/xid-errors")


def xid(number: int) -> Xid:
    """Return the meaning of a number; an unknown number has no name."""
    return XIDS.get(number, _UNKNOWN)


def xid_text(number: int) -> str:
    """Return ``Xid 79 (GPU has fallen off the bus)``."""
    name = xid(number).name
    return "Xid %d (%s)" % (number, name) if name else "Xid %d" % number


XID_EVENT = 8  #: nvmlEventTypeXidCriticalError

WHOLE_GPU = 0xFFFFFFFF  #: in place of an instance's id

#: Events read at one tick: a broken GPU may report without end.
MAX_EVENTS = 64


class _EventData(ctypes.Structure):
    """nvmlEventData_t; the first version ends after `data`."""

    _fields_ = [
        ("device", ctypes.c_void_p),
        ("type", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class XidEvent(NamedTuple):
    """One Xid error."""

    gpu: int  #: position among the sampled GPUs
    number: int


class _Registered(NamedTuple):
    """A GPU with registered events, and its sampled instances."""

    handle: Any
    address: Optional[int]
    uuid: Optional[str]
    whole: Optional[int]  #: position of the GPU itself; ``None`` where only instances of it are sampled
    instances: Dict[Tuple[int, int], int]  #: position by ids of GPU and compute instance


class GpuEvents:
    """The driver's events about the GPUs of `readings`.

    Attributes
    ----------
    refused
        Codes with which NVML refused registrations: permission, or not supported.
    """

    def __init__(self, readings: GpuReadings) -> None:
        self.readings = readings
        self.refused: Dict[int, int] = {}
        self._set: Any = None
        self._start = -1
        self._data = _EventData()
        self._handles: List[Any] = []
        self._registered: List[_Registered] = []

    def read(self) -> List[XidEvent]:
        """Return the Xid errors since the last call; call it before the GPUs are read."""
        driver = self.readings.driver
        if driver is None or not self.readings.gpus:
            return []
        if self._start != driver.starts:
            # An event set of a driver that was shut down must not be touched, not even to free it.
            self._set, self._registered, self._start = None, [], driver.starts
            self._handles = []
        found = self._wait() if self._set is not None else []
        handles = [self.readings.handle(i) for i in range(len(self.readings.gpus))]
        if any(new is not None and new is not old for new, old in zip(handles, self._handles or [None] * len(handles))):
            self._register(handles)
            found += self._wait()
        return found

    def _register(self, handles: List[Any]) -> None:
        driver = self.readings.driver
        create = driver.function("nvmlEventSetCreate") if driver is not None else None
        register = driver.function("nvmlDeviceRegisterEvents") if driver is not None else None
        self._handles, self._registered = handles, []
        self.refused = {}
        if driver is None or create is None or register is None:
            return
        event_set = ctypes.c_void_p()
        if create(ctypes.byref(event_set)) != OK:
            return
        self._set = event_set
        for one in self._gpus(driver.nvml, handles):
            code = register(one.handle, ctypes.c_ulonglong(XID_EVENT), event_set)
            if code == OK:
                self._registered.append(one)
            else:
                self.refused.update((i, code) for i in [one.whole, *one.instances.values()] if i is not None)
        if not self._registered:
            self._set = None

    def _gpus(self, nvml: Any, handles: List[Any]) -> List[_Registered]:
        """Return the whole GPUs of `handles`: an instance does not report events, its GPU does."""
        found: Dict[Optional[int], _Registered] = {}
        for i, handle in enumerate(handles):
            if handle is None:
                continue
            whole: Optional[int] = i
            ids = None
            if self.readings.gpus[i].get("mig"):
                whole = None
                ids = (
                    attempt(nvml.nvmlDeviceGetGpuInstanceId, handle),
                    attempt(nvml.nvmlDeviceGetComputeInstanceId, handle),
                )
                handle = attempt(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)
                if handle is None:
                    continue
            address = _address(handle)
            one = found.get(address)
            if one is None:
                uuid = as_text(attempt(nvml.nvmlDeviceGetUUID, handle))
                one = found[address] = _Registered(handle, address, uuid, whole, {})
            elif whole is not None:
                one = found[address] = one._replace(whole=whole)
            if ids is not None and ids[0] is not None:
                one.instances[(ids[0], WHOLE_GPU if ids[1] is None else ids[1])] = i
        return list(found.values())

    def _wait(self) -> List[XidEvent]:
        driver = self.readings.driver
        # Only the second version reports the instance.
        wait = driver.function("nvmlEventSetWait_v2", "nvmlEventSetWait") if driver is not None else None
        found: List[XidEvent] = []
        data = self._data
        while wait is not None and self._set is not None and len(found) < MAX_EVENTS:
            data.gpu_instance = data.compute_instance = WHOLE_GPU
            if wait(self._set, ctypes.byref(data), ctypes.c_uint(0)) != OK:
                break
            at = self._position() if data.type == XID_EVENT else None
            if at is not None:
                found.append(XidEvent(at, int(data.data)))
        return found

    def _position(self) -> Optional[int]:
        """Return the position of the GPU or instance of the current event; ``None`` if it is not sampled."""
        one = next((one for one in self._registered if one.address == data_address(self._data)), None)
        if one is None:
            uuid = self._uuid()
            same = [known for known in self._registered if uuid is not None and known.uuid == uuid]
            one = same[0] if same else self._registered[0] if len(self._registered) == 1 else None
        if one is None:
            return None
        if self._data.gpu_instance == WHOLE_GPU:
            return one.whole if one.whole is not None else min(one.instances.values(), default=None)
        ids = (self._data.gpu_instance, self._data.compute_instance)
        if ids in one.instances:
            return one.instances[ids]
        if ids[1] == WHOLE_GPU:
            return next((i for (gpu, _), i in sorted(one.instances.items()) if gpu == ids[0]), one.whole)
        return one.whole  # None: an instance that is not sampled

    def _uuid(self) -> Optional[str]:
        driver = self.readings.driver
        function = driver.function("nvmlDeviceGetUUID") if driver is not None else None
        text = ctypes.create_string_buffer(96)
        if function is None or function(ctypes.c_void_p(self._data.device), text, ctypes.c_uint(96)) != OK:
            return None
        return as_text(text.value)


def data_address(data: _EventData) -> Optional[int]:
    """Return the address in an event's handle."""
    return None if data.device is None else int(data.device)


def _address(handle: Any) -> Optional[int]:
    return ctypes.cast(handle, ctypes.c_void_p).value


GPU_INCIDENTS = "telemetry/gpu-incidents-%d.json"

XID, LOST = "xid", "lost"

#: Counters of a GPU: key, and the words for an increase (one, several).
COUNTERS: Tuple[Tuple[str, str, str], ...] = (
    ("ecc_uncorrectable", "uncorrectable memory error", "uncorrectable memory errors"),
    ("ecc_correctable", "correctable memory error", "correctable memory errors"),
    ("rows_remapped", "replaced memory row", "replaced memory rows"),
    ("remap_failures", "memory row that could not be replaced", "memory rows that could not be replaced"),
    ("pages_retired", "retired memory page", "retired memory pages"),
)

#: Seconds in which the counters of every GPU are read once, and until a refused function is called again.
COUNTERS_INTERVAL_S, REFUSED_RETRY_S = 10.0, 60.0

#: Stored kinds of errors; the same error of the same GPU counts as one.
MAX_ERRORS = 64

#: Seconds after which the same error of the same GPU is noted again.
NOTE_INTERVAL_S = 60.0

#: Remembered processes of other users, and the change of a memory (share) that is not written.
MAX_PROCESSES, SAME_SHARE = 32, 0.05


class GpuIncidents:
    """Incidents of one sampler, and of earlier samplers of the same run.

    Parameters
    ----------
    folder
        Folder that holds ``telemetry``.
    number
        Number of the machine within the run.

    Attributes
    ----------
    errors
        ``{"gpu": index, "kind", "number", "count", "first", "last" (monotonic), "t" (unix seconds of the
        first), "shared"}`` each; `shared`: others had processes on the GPU at that time.
    """

    def __init__(self, folder: str, readings: GpuReadings, number: int = 0) -> None:
        self.path = os.path.join(folder, GPU_INCIDENTS % number)
        self.readings = readings
        self.events = GpuEvents(readings)
        self.errors: List[Dict[str, Any]] = []
        self._base: Dict[str, Dict[str, int]] = {}
        self._rises: Dict[str, Dict[str, int]] = {}
        self._processes: List[Dict[str, Any]] = []
        self._listed: Sequence[Sequence[Any]] = []
        self._shared: Collection[int] = frozenset()
        self._lost = [readings.handle(i) is None for i in range(len(readings.gpus))]
        self._refused: Dict[Tuple[int, str], float] = {}
        self._due, self._turn = protocol.mono(), 0
        self._noted: Dict[Tuple[int, str, int], float] = {}
        self._dirty = False
        self._resume()
        for i in range(len(readings.gpus)):
            self._count(i)
        self.before_reading()  # registers

    # -- ticks ---------------------------------------------------------------------

    def before_reading(self) -> None:
        """Read the driver's events; call it before the GPUs are read, which may initialize the driver again."""
        for event in self.events.read():
            self._add(event.gpu, XID, event.number)

    def after_reading(self, processes: Sequence[Sequence[Any]] = ()) -> None:
        """Detect lost GPUs, read the counters of the next GPU, and write what is new.

        Parameters
        ----------
        processes
            ``[GPU's index, pid, owner, MiB, command, user]`` each, the current list.
        """
        gpus = self.readings.gpus
        self._others(processes)
        for i in range(len(gpus)):
            lost = self.readings.handle(i) is None
            if lost and not self._lost[i]:
                self._add(i, LOST, 0)
            self._lost[i] = lost
        if gpus and protocol.mono() >= self._due:
            self._count(self._turn)
            self._turn = (self._turn + 1) % len(gpus)
            self._due = protocol.mono() + max(0.0, COUNTERS_INTERVAL_S / len(gpus))
        if self._dirty:
            self._save()

    def close(self) -> None:
        """Read the events since the last tick, and all counters once more."""
        self.before_reading()
        for i in range(len(self.readings.gpus)):
            self._count(i)
        if self._dirty:
            self._save()

    def figures(self, i: int) -> Dict[str, Any]:
        """Return the summary's values of one GPU: ``xids`` (numbers, in one text) and each increased counter."""
        gpu = self.readings.gpus[i]
        numbers = [str(one["number"]) for one in self.errors if one["gpu"] == gpu["index"] and one["kind"] == XID]
        result: Dict[str, Any] = {"xids": ", ".join(numbers)} if numbers else {}
        result.update(self._rises.get(gpu["uuid"], {}))
        return result

    # -- errors --------------------------------------------------------------------

    def _add(self, i: int, kind: str, number: int) -> None:
        now, index = protocol.mono(), int(self.readings.gpus[i]["index"])
        key = (index, kind, number)
        known = next((one for one in self.errors if (one["gpu"], one["kind"], one["number"]) == key), None)
        if known is not None:
            known["count"] += 1
            known["last"] = now
        elif len(self.errors) < MAX_ERRORS:
            self.errors.append(
                {
                    "gpu": index, "kind": kind, "number": number, "count": 1, "first": now, "last": now,
                    "t": round(protocol.wall(), 3), "shared": index in self._shared,
                }
            )  # fmt: skip
        self._dirty = True
        if (
            kind == XID
            and now - self._noted.get(key, -NOTE_INTERVAL_S) >= NOTE_INTERVAL_S
            and len(self._noted) < MAX_ERRORS
        ):
            self._noted[key] = now
            self.readings.notes.append("%s reported %s" % (gpu_name(self.readings.gpus[i]), xid_text(number)))

    def _count(self, i: int) -> None:
        """Read the counters of one GPU, and note which have increased since the run began."""
        gpu = self.readings.gpus[i]
        handle, driver = self.readings.handle(i), self.readings.driver
        if handle is None or driver is None or gpu.get("mig"):
            return
        base = self._base.setdefault(gpu["uuid"], {})
        rises = self._rises.setdefault(gpu["uuid"], {})
        for key, value in self._counters(i, handle, driver.function).items():
            if key not in base or value < base[key]:  # a reset counter starts again
                base[key] = value - rises.get(key, 0)
            rise = value - base[key]
            if rise > rises.get(key, 0):
                more = rise - rises.get(key, 0)
                rises[key] = rise
                self._add(i, key, 0)
                word = next(names[min(more, 2)] for names in COUNTERS if names[0] == key)
                if key != "ecc_correctable" or rise == more:  # there may be thousands: one note
                    self.readings.notes.append("%s: %d %s" % (gpu_name(gpu), more, word))

    def _counters(self, i: int, handle: Any, function: Callable[..., Any]) -> Dict[str, int]:
        found: Dict[str, int] = {}
        wide, count = ctypes.c_ulonglong(0), ctypes.c_uint(0)
        for key, kind in (("ecc_uncorrectable", 1), ("ecc_correctable", 0)):
            wide.value = 0
            sort: List[Any] = [ctypes.c_uint(kind), ctypes.c_uint(0), ctypes.byref(wide)]  # since the driver was loaded
            if self._call(i, function, "nvmlDeviceGetTotalEccErrors", key, handle, *sort) == OK:
                found[key] = int(wide.value)
        rows = [ctypes.c_uint(0) for _ in range(4)]
        into = [ctypes.byref(number) for number in rows]
        if self._call(i, function, "nvmlDeviceGetRemappedRows", "rows_remapped", handle, *into) == OK:
            found["rows_remapped"] = int(rows[0].value + rows[1].value)
            found["remap_failures"] = int(bool(rows[3].value))
        pages, known = 0, False
        for cause in (0, 1):
            count.value = 0  # without room for addresses the call only counts
            key = "pages_retired.%d" % cause
            sort = [ctypes.c_uint(cause), ctypes.byref(count), None]
            if self._call(i, function, "nvmlDeviceGetRetiredPages", key, handle, *sort) in (OK, TOO_SMALL):
                pages, known = pages + int(count.value), True
        if known:
            found["pages_retired"] = pages
        # Some boards report an unknown value as all bits set.
        return {key: value for key, value in found.items() if value < 0xFFFFFFFF}

    def _call(self, i: int, function: Callable[..., Any], name: str, key: str, *args: Any) -> int:
        """Call a function unless it was refused recently; return its code."""
        if protocol.mono() < self._refused.get((i, key), 0.0):
            return -1
        call = function(name)
        code = -1 if call is None else int(call(*args))
        if code not in (OK, TOO_SMALL):
            self._refused[(i, key)] = protocol.mono() + REFUSED_RETRY_S
        return code

    # -- owners of the processes ------------------------------------------------------

    def _others(self, processes: Sequence[Sequence[Any]]) -> None:
        """Remember the processes on the GPUs: at the end of the run they may have ended."""
        if processes == self._listed:
            return
        self._listed = processes
        listed = sorted(processes, key=lambda row: bool(row[2] == "mine"))[:MAX_PROCESSES]  # a stable order
        self._shared = frozenset(int(row[0]) for row in listed if row[2] != "mine")
        before = {(one["gpu"], one["pid"]): one for one in self._processes}
        now: List[Dict[str, Any]] = []
        for row in listed:
            index, pid, owner, memory, name, *more = row
            user = more[0] if more else ""
            known = before.get((index, pid)) or {}
            if owner == "mine":
                now.append({"gpu": index, "pid": pid, "memory": None, "owner": owner})
                continue
            translated = owner == "other"
            now.append(
                {
                    "gpu": index, "pid": pid, "memory": memory, "owner": owner,
                    "user": known.get("user") or user or (user_of(pid) if translated else ""),
                    "program": known.get("program") or (program_of(pid) or name if translated else name),
                }
            )  # fmt: skip
        # An error may name a process that has ended since: keep its pid.
        here = {(one["gpu"], one["pid"]) for one in now}
        ended = [one for key, one in before.items() if key not in here and one["owner"] != "mine"]
        now += [dict(one, memory=None) for one in ended[: MAX_PROCESSES - len(here)]]
        changed = len(now) != len(self._processes) or any(
            (new["gpu"], new["pid"]) != (old["gpu"], old["pid"])
            or abs((new["memory"] or 0) - (old["memory"] or 0)) > SAME_SHARE * (old["memory"] or 0)
            for new, old in zip(now, self._processes)
        )
        if changed:
            self._processes, self._dirty = now, True

    # -- the file --------------------------------------------------------------------

    def _save(self) -> None:
        """Write the file; with a full disk, the next tick tries again."""
        value = {
            "schema": SCHEMA, "errors": self.errors, "processes": self._processes, "base": self._base,
            "rises": self._rises,
        }  # fmt: skip
        try:
            write_json(self.path, value)
        except OSError:
            return
        self._dirty = False

    def _resume(self) -> None:
        """Continue the file of an earlier sampler of this run; values that a job has written are left out."""
        stored = read_incidents(self.path)
        errors, base, rises = stored.get("errors"), stored.get("base"), stored.get("rises")
        if isinstance(errors, list):
            self.errors = [one for one in errors if _is_error(one)][:MAX_ERRORS]
        if _is_counters(base) and _is_counters(rises):
            self._base, self._rises = dict(base or {}), dict(rises or {})


def _is_error(value: Any) -> bool:
    """Return whether a value of the file is an error in the written format."""
    if not isinstance(value, dict):
        return False
    whole = all(isinstance(value.get(key), int) for key in ("gpu", "number", "count"))
    return whole and isinstance(value.get("kind"), str) and all(_is_time(value.get(key)) for key in ("first", "last"))


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 <= value < 1e12


def _is_counters(value: Any) -> bool:
    rows = list(value.values()) if isinstance(value, dict) else [None]
    return all(isinstance(row, dict) and all(isinstance(number, int) for number in row.values()) for row in rows)


def read_incidents(path: str) -> Dict[str, Any]:
    """Return the content of an incidents file; empty if there is none."""
    try:
        return read_json(path) or {}
    except (OSError, AgentError):
        return {}
