"""MIG: the instances into which a GPU may be split."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional

from .gpu_names import instance_number


class Part(NamedTuple):
    """One MIG instance."""

    number: int  #: among all devices of the machine
    parent: int  #: number of its GPU
    instance: int  #: number in its GPU
    handle: Any
    gpu_instance: Optional[int]  #: ids that the driver's lists of processes have
    compute_instance: Optional[int]


def is_split(nvml: Any, device: Any) -> bool:
    """Whether MIG is on: CUDA then takes the GPU's instances, never the GPU itself."""
    mode = _attempt(nvml.nvmlDeviceGetMigMode, device)
    return bool(mode and mode[0])


def parts(nvml: Any, device: Any, index: int, gpus: int) -> List[Part]:
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
    for number in range(_attempt(nvml.nvmlDeviceGetMaxMigDeviceCount, device) or 0):
        handle = _attempt(nvml.nvmlDeviceGetMigDeviceHandleByIndex, device, number)
        if handle is not None:  # else nothing is at this place
            gpu_instance = _attempt(nvml.nvmlDeviceGetGpuInstanceId, handle)
            compute_instance = _attempt(nvml.nvmlDeviceGetComputeInstanceId, handle)
            place = instance_number(index, number, gpus)
            found.append(Part(place, index, number, handle, gpu_instance, compute_instance))
    return found


def _attempt(call: Any, *args: Any) -> Any:
    try:
        return call(*args)
    except Exception:  # NVML's own errors, and what a binding without the function raises
        return None
