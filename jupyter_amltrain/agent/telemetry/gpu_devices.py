"""NVML in this process: the library, handles of GPUs and MIG instances, and functions that a device refuses."""

from __future__ import annotations

from typing import Any, Callable, Dict, Hashable, List, NamedTuple, Optional, Sequence

from .. import protocol
from . import nvml as mig
from .call_prices import CallPrices
from .nvml import as_text, attempt, library

# nvml.h, nvmlReturn_t
OK, UNINITIALIZED, INVALID, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, TOO_SMALL = 0, 1, 2, 3, 4, 6, 7

DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED = 9, 12, 13, 15, 16

VERSION_MISMATCH, GPU_NOT_FOUND = 25, 28

#: A function that returns one of these does not exist for this device in its current setup.
NEVER = frozenset({INVALID, NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, VERSION_MISMATCH})

#: Codes that mean that the whole driver is unavailable.
DOWN = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND})

#: Codes that mean that one device is unavailable.
LOST = frozenset({GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND})


class Device(NamedTuple):
    """A GPU or a MIG instance."""

    number: int  #: as the driver counts; for an instance see `mig.Part`
    uuid: str
    name: str
    mig: bool
    handle: Any
    part: Optional[mig.Part] = None  #: position of an instance

    def facts(self) -> Dict[str, Any]:
        """Return the device's entry in the header of a telemetry file."""
        result: Dict[str, Any] = {"index": self.number, "uuid": self.uuid, "name": self.name, "mig": self.mig}
        if self.part is not None:
            result.update(parent=self.part.parent, instance=self.part.instance)
            result.update(gpu_instance=self.part.gpu_instance, compute_instance=self.part.compute_instance)
        return result


class DriverError(Exception):
    """NVML cannot be used; the text is one sentence."""


class Driver:
    """NVML, initialized in this process.

    Raises
    ------
    DriverError
        The driver is missing or does not work.

    Attributes
    ----------
    starts
        Number of initializations; handles of earlier ones are invalid.
    prices
        What its calls cost.
    """

    def __init__(self) -> None:
        self.starts = 0
        self.prices = CallPrices()
        pynvml, reason = library()
        if pynvml is None:
            raise DriverError(reason)
        self.nvml = pynvml
        self._functions: Dict[str, Optional[Callable[..., int]]] = {}
        self.start()

    def start(self) -> None:
        """Initialize NVML; also restarts it after the driver was unavailable.

        Raises
        ------
        DriverError
            The driver does not work.
        """
        try:
            self.nvml.nvmlInit()
        except Exception as error:  # a broken driver may also raise errors of ctypes
            raise DriverError("NVML does not work here: %s" % error) from error
        self.starts += 1

    def stop(self) -> None:
        """Shut NVML down; errors are ignored."""
        attempt(self.nvml.nvmlShutdown)

    def error_text(self, code: int) -> str:
        """Return NVML's text for a return code: ``Unknown Error``."""
        return str(attempt(self.nvml.NVMLError, code) or "error %d" % code)

    def function(self, *names: str) -> Optional[Callable[..., int]]:
        """Return the first of these functions that the library has."""
        for name in names:
            if name not in self._functions:
                # Bound by pynvml, without the cost of its wrapper.
                self._functions[name] = attempt(self.nvml._nvmlGetFunctionPointer, name)
            function = self._functions[name]
            if function is not None:
                return function
        return None

    def devices(self, indices: Optional[Sequence[int]] = None) -> List[Device]:
        """Return all GPUs (or those with these indices), each followed by its MIG instances."""
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
        """Return the devices with these UUIDs that exist."""
        found = {}
        for uuid in uuids:
            handle = attempt(self.nvml.nvmlDeviceGetHandleByUUID, uuid)
            index = None if handle is None else attempt(self.nvml.nvmlDeviceGetIndex, handle)
            if uuid.startswith("GPU-") and index is not None:
                device = self._device(handle, index)
                if device is not None:
                    found[uuid] = device
        if len(found) < len(set(uuids)):  # instances, and drivers that cannot look up a UUID
            found.update({device.uuid: device for device in self.devices() if device.uuid in uuids})
        return found

    def _device(self, handle: Any, index: int, part: Optional[mig.Part] = None) -> Optional[Device]:
        uuid = as_text(attempt(self.nvml.nvmlDeviceGetUUID, handle))
        if uuid is None:  # lost from the bus
            return None
        name = as_text(attempt(self.nvml.nvmlDeviceGetName, handle)) or "GPU"
        return Device(index, uuid, name, part is not None, handle, part)


#: Seconds until a refused function is called again: MIG modes and permissions change.
REFUSED_RETRY_S = 60.0


class Refusals:
    """Remembers which functions a device has refused."""

    def __init__(self) -> None:
        self._until: Dict[Hashable, float] = {}

    def __contains__(self, key: Hashable) -> bool:
        """Return whether the function of this key must not be called now."""
        until = self._until.get(key)
        return until is not None and protocol.mono() < until

    def note(self, key: Hashable, code: int) -> None:
        """Record the return code of a call."""
        if code in NEVER:
            self._until[key] = protocol.mono() + REFUSED_RETRY_S
        else:
            self._until.pop(key, None)
