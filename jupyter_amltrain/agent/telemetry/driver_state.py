"""State of the NVIDIA driver as a probe reports it (absent, working or broken), and how to repair it."""

from __future__ import annotations

import glob
import os
from typing import Any, Dict, Mapping, Optional, Sequence

from ..protocol import AgentError

#: No driver library, or one on a machine without an NVIDIA device: a CPU machine.
ABSENT = "absent"
WORKS = "works"
#: The library is there and NVML fails, or takes too long.
BROKEN = "broken"

#: In place of an NVML code: no answer in time; the probe ended without an answer; pynvml is missing; the
#: library was present after the boot and has been removed.
TOO_SLOW, NO_ANSWER, NO_BINDING, REMOVED = -1, -2, -3, -4

# nvml.h, nvmlReturn_t
_NO_PERMISSION, _NOT_LOADED, _LOST, _RESET_REQUIRED, _BLOCKED, _MISMATCH, _UNKNOWN = 4, 9, 15, 16, 17, 18, 999
#: What a device that cannot be used returns for every call.
LOST_CODES = frozenset({_LOST, _RESET_REQUIRED, _UNKNOWN})
#: NVIDIA's PCI vendor id; classes of display controllers (VGA, 3D) begin with the other.
_VENDOR, _DISPLAY_CLASS = "0x10de", "0x03"

_CONTAINER = (
    "In a container, restart the container (a systemctl daemon-reload on its host takes the GPUs away);"
    " elsewhere reboot, and see: sudo dmesg | grep -i nvrm"
)
_REPAIRS: Dict[int, str] = {
    _NO_PERMISSION: "Ask the administrator for access to /dev/nvidia*.",
    _NOT_LOADED: "Load the kernel module (sudo modprobe nvidia), or reboot.",
    _LOST: "Reboot the machine.",
    _RESET_REQUIRED: "Reset the GPU (sudo nvidia-smi -r), or reboot.",
    _BLOCKED: _CONTAINER,
    _MISMATCH: (
        "The driver was upgraded while the old kernel module is loaded. Reboot, or end what uses the GPUs and reload"
        " the module: sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia; sudo modprobe nvidia"
    ),
    _UNKNOWN: _CONTAINER,
    TOO_SLOW: (
        "Turn on persistence mode (sudo nvidia-smi -pm 1), so that the GPUs are not initialized again each time; or"
        " set a longer timeout, in seconds: AMLTRAIN_NVML_TIMEOUT=60"
    ),
    REMOVED: "Install the driver again, or wait for the end of its upgrade and reboot.",
    NO_BINDING: "Install it: pip install nvidia-ml-py",
}
_REPAIR = "See nvidia-smi and sudo dmesg | grep -i nvrm; a reboot usually repairs it."


def repair_of(code: Optional[int]) -> str:
    """Return the repair instructions for an NVML code, one or two sentences."""
    return _REPAIR if code is None else _REPAIRS.get(code, _REPAIR)


def has_hardware(root: str = "") -> bool:
    """Return whether this machine has an NVIDIA device: a device file, a PCI device, or WSL2's GPU.

    Parameters
    ----------
    root
        Folder that replaces ``/``; empty takes ``$AMLTRAIN_DEVICE_ROOT``, which tests set.
    """
    root = root or os.environ.get("AMLTRAIN_DEVICE_ROOT") or "/"
    nodes = [name for pattern in ("dev/nvidia*", "dev/dxg") for name in glob.glob(os.path.join(root, pattern))]
    return bool(nodes) or any(map(_is_nvidia, glob.glob(os.path.join(root, "sys/bus/pci/devices/*"))))


def _is_nvidia(device: str) -> bool:
    def first_line(name: str) -> str:
        try:
            with open(os.path.join(device, name)) as file:
                return file.read().strip()
        except OSError:
            return ""

    return first_line("vendor") == _VENDOR and first_line("class").startswith(_DISPLAY_CLASS)


def code_of(error: BaseException) -> Optional[int]:
    """Return NVML's return code of an error that pynvml raised; ``None`` if it has none."""
    value = getattr(error, "value", None)
    return value if isinstance(value, int) else None


def text_of(error: BaseException) -> str:
    """Return the text of an error, without a full stop."""
    return str(error).strip().rstrip(".") or type(error).__name__


def result(
    driver: str, note: str = "", code: Optional[int] = None, gpus: Any = (), present: Any = (), lost: Any = ()
) -> Dict[str, Any]:
    """Return the result of a probe.

    Parameters
    ----------
    note
        Reason why there is no GPU, one phrase.
    gpus
        Devices that jobs can get.
    present
        Whole GPUs that work: ``{"index", "name", "uuid"}``.
    lost
        GPUs that the driver counts and that cannot be used: ``{"index", "name", "uuid", "reason"}``, the last three
        ``None`` where the driver does not report them.
    """
    return {
        "driver": driver, "code": code, "note": note, "gpus": list(gpus), "present": list(present), "lost": list(lost),
    }  # fmt: skip


def failed_init(error: BaseException) -> Dict[str, Any]:
    """Return the result of a probe whose driver cannot be initialized."""
    code = code_of(error)
    if code == _NOT_LOADED and not has_hardware():  # CUDA's libraries on a machine without a GPU
        return result(ABSENT, "NVML finds no driver (%s), and this machine has no NVIDIA device" % text_of(error), code)
    return result(BROKEN, "NVML does not work here: %s" % text_of(error), code)


def lost_reason(code: Optional[int], error: Optional[BaseException] = None) -> str:
    """Return the reason why a GPU cannot be used, one phrase."""
    if code == _LOST:
        return "it fell off the bus"
    if code == _RESET_REQUIRED:
        return "it needs a reset"
    return "the driver does not report which GPU it is: %s" % (text_of(error) if error else "code %s" % code)


def lost_text(lost: Sequence[Mapping[str, Any]]) -> str:
    """Return ``GPU 1 is lost (it fell off the bus)``; several are separated by commas."""
    return ", ".join("GPU %d is lost (%s)" % (gpu["index"], gpu["reason"]) for gpu in lost)


def check_request(requested: Optional[int], watch: Any) -> None:
    """Refuse a job that would run without a GPU, or wait forever, because of the driver.

    Parameters
    ----------
    requested
        GPUs of the job; ``None`` for the default, 0 for a job without GPUs.
    watch
        The dispatcher's `gpus.GpuWatch`.

    Raises
    ------
    AgentError
        ``GpuDriverError`` with the repair instructions.
    """
    if requested == 0:
        return
    if watch.driver == BROKEN:
        raise AgentError(
            "GpuDriverError",
            "The run gets no GPU: %s. To run it without one: --gpus 0. To repair the driver: %s"
            % (watch.note.rstrip("."), repair_of(watch.code)),
        )
    usable, lost = len(watch.usable), watch.lost
    if lost and (not usable if requested is None else usable < requested <= usable + len(lost)):
        gpus = "a GPU" if requested is None else "%d GPU%s" % (requested, "s" * (requested > 1))
        raise AgentError(
            "GpuDriverError",
            "The run requests %s: %s. Reset the GPU (sudo nvidia-smi -r) or reboot. To run with the others: --gpus %d"
            % (gpus, lost_text(lost), usable),
        )
