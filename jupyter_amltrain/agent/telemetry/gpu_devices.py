"""The driver library of this process, handles of its GPUs and MIG instances, and functions that a device refuses."""

from __future__ import annotations

from typing import Any, Callable, Dict, Hashable, List, NamedTuple, Optional, Sequence

from .. import protocol
from . import nvml as mig
from .nvml import as_text, attempt, library

# nvml.h, nvmlReturn_t
OK, UNINITIALIZED, INVALID, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, TOO_SMALL = 0, 1, 2, 3, 4, 6, 7

DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED = 9, 12, 13, 15, 16

VERSION_MISMATCH, GPU_NOT_FOUND = 25, 28

#: A function that answers this is not for this device, as it is now set up.
NEVER = frozenset({INVALID, NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, VERSION_MISMATCH})

#: The whole driver is away.
DOWN = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND})

#: This device is away.
LOST = frozenset({GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND})


class Device(NamedTuple):
    """A GPU or an instance of one."""

    number: int  #: as the driver counts; of an instance: see `mig.Part`
    uuid: str
    name: str
    mig: bool
    handle: Any
    part: Optional[mig.Part] = None  #: where an instance is

    def facts(self) -> Dict[str, Any]:
        """Return what the header of a telemetry file says of it."""
        found: Dict[str, Any] = {"index": self.number, "uuid": self.uuid, "name": self.name, "mig": self.mig}
        if self.part is not None:
            found.update(parent=self.part.parent, instance=self.part.instance)
            found.update(gpu_instance=self.part.gpu_instance, compute_instance=self.part.compute_instance)
        return found


class DriverError(Exception):
    """NVML cannot be used; the text is one sentence."""


class Driver:
    """NVML, initialized in this process.

    Raises
    ------
    DriverError
        There is none, or it does not work.

    Attributes
    ----------
    starts
        How often it was initialized here; what was made before the last time is gone.
    """

    def __init__(self) -> None:
        self.starts = 0
        pynvml, why = library()
        if pynvml is None:
            raise DriverError(why)
        self.nvml = pynvml
        self._functions: Dict[str, Optional[Callable[..., int]]] = {}
        self.start()

    def start(self) -> None:
        """Initialize, also again after the driver was away.

        Raises
        ------
        DriverError
            It does not work.
        """
        try:
            self.nvml.nvmlInit()
        except Exception as error:  # a broken driver may raise what ctypes raises, too
            raise DriverError("NVML does not work here: %s" % error) from error
        self.starts += 1

    def stop(self) -> None:
        """Let the driver go; an error changes nothing."""
        attempt(self.nvml.nvmlShutdown)

    def error_text(self, code: int) -> str:
        """What NVML calls a return code: ``Unknown Error``."""
        return str(attempt(self.nvml.NVMLError, code) or "error %d" % code)

    def function(self, *names: str) -> Optional[Callable[..., int]]:
        """The first of these functions that the library has."""
        for name in names:
            if name not in self._functions:
                # Bound by pynvml, and without its wrapper's cost.
                self._functions[name] = attempt(self.nvml._nvmlGetFunctionPointer, name)
            found = self._functions[name]
            if found is not None:
                return found
        return None

    def devices(self, indices: Optional[Sequence[int]] = None) -> List[Device]:
        """All GPUs (or those with these indices), each followed by its MIG instances."""
        nvml, found = self.nvml, []
        count = attempt(nvml.nvmlDeviceGetCount) or 0
        for index in range(count):
            handle = attempt(nvml.nvmlDeviceGetHandleByIndex, index)
            if handle is None or (indices is not None and index not in indices):
                continue
            device = self._device(handle, index)
            if device is None:
                continue
            found.append(device)
            if not mig.is_split(nvml, handle):
                continue
            for part in mig.mig_parts(nvml, handle, index, count):
                instance = self._device(part.handle, part.number, part)
                if instance is not None:
                    found.append(instance)
        return found

    def by_uuid(self, uuids: Sequence[str]) -> Dict[str, Device]:
        """Devices with these ids, as far as they are here."""
        found = {}
        for uuid in uuids:
            handle = attempt(self.nvml.nvmlDeviceGetHandleByUUID, uuid)
            index = None if handle is None else attempt(self.nvml.nvmlDeviceGetIndex, handle)
            if uuid.startswith("GPU-") and index is not None:
                device = self._device(handle, index)
                if device is not None:
                    found[uuid] = device
        if len(found) < len(set(uuids)):  # instances, and drivers that do not look up ids
            found.update({device.uuid: device for device in self.devices() if device.uuid in uuids})
        return found

    def _device(self, handle: Any, index: int, part: Optional[mig.Part] = None) -> Optional[Device]:
        uuid = as_text(attempt(self.nvml.nvmlDeviceGetUUID, handle))
        if uuid is None:  # lost from the bus
            return None
        name = as_text(attempt(self.nvml.nvmlDeviceGetName, handle)) or "GPU"
        return Device(index, uuid, name, part is not None, handle, part)


#: Seconds until a refused function is asked again: MIG modes and permissions change.
REFUSED_RETRY_S = 60.0


class Refusals:
    """Remembers which functions a device refused."""

    def __init__(self) -> None:
        self._until: Dict[Hashable, float] = {}

    def __contains__(self, key: Hashable) -> bool:
        """Whether the function of this key is not to be called now."""
        until = self._until.get(key)
        return until is not None and protocol.mono() < until

    def note(self, key: Hashable, code: int) -> None:
        """Take what a call returned."""
        if code in NEVER:
            self._until[key] = protocol.mono() + REFUSED_RETRY_S
        else:
            self._until.pop(key, None)
