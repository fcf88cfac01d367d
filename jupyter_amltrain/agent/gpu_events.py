"""Xid errors of the GPUs that are sampled, as the driver reports them to whoever registered.

A driver keeps events for a set from the moment of its registration, so none is older than its
sampler. Waiting for them takes no time: an event is known at the next tick.
"""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from .gpu_devices import OK
from .gpu_readings import GpuReadings
from .nvml import as_text, attempt

XID_EVENT = 8  #: nvmlEventTypeXidCriticalError
WHOLE_GPU = 0xFFFFFFFF  #: in the place of an instance's id
#: Events that are taken at one tick: a broken GPU may report without end.
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
    """A GPU that reports to us, and its instances that we sample."""

    handle: Any
    address: Optional[int]
    uuid: Optional[str]
    whole: Optional[int]  #: position of the GPU itself; ``None`` where only instances of it are sampled
    instances: Dict[Tuple[int, int], int]  #: position by ids of GPU and compute instance


class GpuEvents:
    """Reports of the driver on the GPUs of `readings`.

    Attributes
    ----------
    refused
        Codes of NVML with which registrations were refused: permission, or not supported.
    """

    def __init__(self, readings: GpuReadings) -> None:
        self.readings = readings
        self.refused: Dict[int, int] = {}
        self._set: Any = None
        self._start = -1
        self._data = _EventData()
        self._handles: List[Any] = []
        self._registered: List[_Registered] = []

    def take(self) -> List[XidEvent]:
        """Return the Xid errors since the last call; to be called before the GPUs are read."""
        driver = self.readings.driver
        if driver is None or not self.readings.gpus:
            return []
        if self._start != driver.starts:
            # A set of a driver that was shut down is not ours to touch, not even to free.
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
        made = ctypes.c_void_p()
        if create(ctypes.byref(made)) != OK:
            return
        self._set = made
        for one in self._gpus(driver.nvml, handles):
            code = register(one.handle, ctypes.c_ulonglong(XID_EVENT), made)
            if code == OK:
                self._registered.append(one)
            else:
                self.refused.update((i, code) for i in [one.whole, *one.instances.values()] if i is not None)
        if not self._registered:
            self._set = None

    def _gpus(self, nvml: Any, handles: List[Any]) -> List[_Registered]:
        """The whole GPUs behind `handles`: an instance does not report, its GPU does."""
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
        # Only the second version tells the instance.
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
        """Position of the GPU or instance that the event in our hands is about; ``None`` for somebody else's."""
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
        return one.whole  # None: it is of an instance that is not ours

    def _uuid(self) -> Optional[str]:
        driver = self.readings.driver
        function = driver.function("nvmlDeviceGetUUID") if driver is not None else None
        text = ctypes.create_string_buffer(96)
        if function is None or function(ctypes.c_void_p(self._data.device), text, ctypes.c_uint(96)) != OK:
            return None
        return as_text(text.value)


def data_address(data: _EventData) -> Optional[int]:
    """Address in an event's handle."""
    return None if data.device is None else int(data.device)


def _address(handle: Any) -> Optional[int]:
    return ctypes.cast(handle, ctypes.c_void_p).value
