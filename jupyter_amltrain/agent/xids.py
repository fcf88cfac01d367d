"""NVIDIA's Xid error numbers: what each means for a training run, and what to do.

Numbers and names follow https://docs.nvidia.com/deploy/xid-errors; which of them leave the GPU
healthy also follows what NVIDIA's Kubernetes device plugin treats as errors of the application.
"""

from __future__ import annotations

from typing import Dict, NamedTuple

#: The program did something that the GPU refuses; the GPU is healthy.
APPLICATION = "application"
#: The GPU, its memory, its power or a link is at fault.
HARDWARE = "hardware"
#: The driver or its firmware stopped working; it may be either of the two.
DRIVER = "driver"
#: Comes after another error or after a kill; never a cause of its own.
CLEANUP = "cleanup"
#: Recorded for later: no program ends by it.
RECORD = "record"

_DEBUG = "Run it again with CUDA_LAUNCH_BLOCKING=1 to find the line"
_RESET = "Reset the GPU (sudo nvidia-smi -r) or reboot the machine before the next run"
_REPLACE = "If it comes back after a reboot, the GPU has to be replaced"
_REBOOT = "Reboot the machine; if it comes back, update the driver or have the GPU checked"


class Xid(NamedTuple):
    """One number's meaning.

    Attributes
    ----------
    name
        In a few words, as it stands in a message.
    fault
        :data:`APPLICATION`, :data:`HARDWARE`, :data:`DRIVER`, :data:`CLEANUP` or :data:`RECORD`.
    action
        What to do, one sentence without its full stop.
    """

    name: str
    fault: str
    action: str


XIDS: Dict[int, Xid] = {
    8: Xid("a kernel ran into the GPU's time limit", APPLICATION, _DEBUG),
    11: Xid("the GPU was sent an invalid command", DRIVER, _REBOOT),
    13: Xid("illegal access or instruction in a kernel", APPLICATION, _DEBUG),
    31: Xid("a kernel accessed memory that is not its own", APPLICATION, _DEBUG),
    32: Xid("the GPU was sent a damaged command", DRIVER, _REBOOT),
    38: Xid("the driver's firmware failed", DRIVER, _REBOOT),
    43: Xid("the GPU stopped the program after an error of its own", APPLICATION, _DEBUG),
    45: Xid("the driver removed the program's work", CLEANUP, "Look at the errors before it"),
    48: Xid("uncorrectable memory error", HARDWARE, "%s. %s" % (_RESET, _REPLACE)),
    61: Xid("the GPU's internal controller stopped", HARDWARE, _REBOOT),
    62: Xid("the GPU's internal controller halted", HARDWARE, _REBOOT),
    63: Xid("a bad part of the GPU's memory is to be replaced by a spare one", RECORD, _RESET),
    64: Xid("a bad part of the GPU's memory could not be replaced", HARDWARE, "%s. %s" % (_RESET, _REPLACE)),
    68: Xid("the video decoder failed", APPLICATION, "Check the videos and the decoding library"),
    69: Xid("a kernel used the GPU in an invalid way", APPLICATION, _DEBUG),
    74: Xid("NVLink error", HARDWARE, "%s. If it comes back, have the NVLink connection checked" % _RESET),
    79: Xid("GPU has fallen off the bus", HARDWARE,
            "Reboot the machine; if it comes back, check the GPU's power, cooling and seat"),
    92: Xid("many correctable memory errors", RECORD, "Have the GPU checked; the results are right"),
    94: Xid("contained memory error: only the program that met it ends", HARDWARE, "Start the run again. " + _RESET),
    95: Xid("uncontained memory error: every program on the GPU ends", HARDWARE, "%s. %s" % (_RESET, _REPLACE)),
    109: Xid("the GPU could not switch between programs in time", APPLICATION, _DEBUG),
    119: Xid("the GPU's system processor does not answer", DRIVER, _REBOOT),
    120: Xid("the GPU's system processor failed", DRIVER, _REBOOT),
    121: Xid("error on the link between CPU and GPU", RECORD, "Have the machine checked if it comes back"),
    136: Xid("the link's training failed", HARDWARE, _REBOOT),
    137: Xid("NVLink access to memory that is not open", APPLICATION, _DEBUG),
    140: Xid("unrecovered memory error", HARDWARE, "%s. %s" % (_RESET, _REPLACE)),
    143: Xid("the GPU could not be initialized", HARDWARE, _REBOOT),
    154: Xid("the GPU needs another way of recovery than before", RECORD, "See GPU Recovery Action in: nvidia-smi -q"),
}  # fmt: skip
for _number in range(144, 151):
    XIDS[_number] = XIDS[74]
del _number

_UNKNOWN = Xid("", DRIVER, "See https://docs.nvidia.com/deploy/xid-errors")


def xid(number: int) -> Xid:
    """Return the meaning of a number; one that is not in the table has no name."""
    return XIDS.get(number, _UNKNOWN)


def in_words(number: int) -> str:
    """``Xid 79 (GPU has fallen off the bus)``."""
    name = xid(number).name
    return "Xid %d (%s)" % (number, name) if name else "Xid %d" % number
