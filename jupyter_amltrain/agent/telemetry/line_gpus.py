"""The last utilization of a run's GPUs, in a small file for the job's Python: it gives it to the lines that ran.

``lines/lines_hook.py`` reads the file. Its name has the boot id, because machines may share the folder of a run, and a
container has a host name of its own.
"""

from __future__ import annotations

import os
from typing import Optional, Sequence

from ..protocol import LINES

#: Bytes of the file, whose content is replaced in place.
SIZE = 256
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def file_name() -> str:
    """Return the name of this machine's file in the folder of the lines."""
    try:
        with open(_BOOT_ID) as file:
            return "gpus-" + file.read(8)
    except OSError:
        return "gpus"


class LineGpus:
    """Writes the file of one machine.

    Parameters
    ----------
    folder
        Folder of the run.
    """

    def __init__(self, folder: str) -> None:
        self._handle: Optional[int] = None
        place = os.path.join(folder, LINES)
        try:
            os.makedirs(place, mode=0o700, exist_ok=True)
            path = os.path.join(place, file_name())
            self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:  # the lines are there without their GPU use
            pass

    def write(self, t: float, percents: Sequence[Optional[float]]) -> None:
        """Write the mean utilization of each GPU since the last call; `t` in seconds of the monotonic clock."""
        if self._handle is None:
            return
        words = ["%.3f" % t, *("-" if one is None else "%d" % one for one in percents[:48])]
        try:
            os.pwrite(self._handle, " ".join(words).encode().ljust(SIZE), 0)
        except OSError:
            pass
