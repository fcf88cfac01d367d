"""The use of the run's GPUs while each line ran: the agent's readings, joined with the samples by time.

This file must load no module that a script might then find loaded (so not ``__future__``).
"""

import os
import time

TYPE_CHECKING = False  # do not import the module typing into the user's program
if TYPE_CHECKING:
    from typing import Callable, List, Optional, Tuple

    Key = Tuple[int, int, str]

#: Seconds after which a reading (``telemetry/line_gpus.py``) is too old.
_MAX_AGE_S = 5.0
#: Samples that wait for a reading.
_MAX_WAITING = 1000
_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")


class GpuUse:
    """Samples that wait for the reading of the GPUs in whose time they fall.

    Parameters
    ----------
    folder
        Folder with the file of the readings.
    content
        Returns a small file.
    """

    def __init__(self, folder: str, content: "Callable[[str], bytes]") -> None:
        self._folder, self._content = folder, content
        self._pending: List[Tuple[float, Key, float]] = []
        self._due = self._last = 0.0
        self._path = ""

    def add(self, now: float, key: "Key", weight: float) -> None:
        """Note a sample."""
        self._pending.append((now, key, weight))

    def take(self) -> "List[Tuple[Key, float, float]]":
        """Return samples whose reading is there: key, weight and percent."""
        now = time.monotonic()
        if now < self._due:
            return []
        del self._pending[:-_MAX_WAITING]
        self._due = now + 0.5
        if not self._path:
            boot = self._content("/proc/sys/kernel/random/boot_id")[:8].decode("ascii", "replace")
            self._path = "%s/gpus%s" % (self._folder, boot and "-" + boot)
        words = self._content(self._path).split()
        if not words:
            self._due = now + 5.0
            self._pending = []
            return []
        stamp, last, pending = float(words[0]), self._last, self._pending
        if stamp <= last:
            if now - stamp > _MAX_AGE_S:
                self._pending = []
            return []
        self._pending = [one for one in pending if one[0] > stamp]
        self._last = stamp
        percent = self._percent(words[1:])
        if not last or stamp - last > _MAX_AGE_S or percent is None:
            return []
        return [(key, weight, percent) for at, key, weight in pending if last < at <= stamp]

    def _percent(self, words: "List[bytes]") -> "Optional[float]":
        """Return the utilization of the GPU of this rank, else the mean of all."""
        local = next((os.environ[name] for name in _LOCAL_RANKS if os.environ.get(name, "").isdigit()), "")
        if local and len(words) > int(local) and len(words) > 1:
            words = [words[int(local)]]
        known = [float(word) for word in words if word != b"-"]
        return sum(known) / len(known) if known else None
