"""Processes on a GPU: their owners, their use, and when those of other users appear."""

from __future__ import annotations

import ctypes
import os
from typing import Any, Callable, Collection, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ..processes import LINUX, find_process, run_of
from .gpu_devices import NOT_FOUND, OK, TOO_SMALL, Refusals
from .gpu_names import gpu_name
from .gpu_readings import GpuReadings

MINE, OTHER, UNKNOWN = "mine", "other", "unknown"

#: Inode of the first PID name space of every Linux (PROC_PID_INIT_INO).
_FIRST_SPACE = "pid:[4026531836]"

#: Pid and MiB as NVML lists them.
Listed = Tuple[int, Optional[int]]


def pids_are_reliable() -> bool:
    """Return whether the driver's pids are this process's pids for certain: not in a container."""
    try:
        return os.readlink("/proc/self/ns/pid") == _FIRST_SPACE
    except OSError:
        return False


def one_per_pid(listed: Sequence[Listed]) -> List[Listed]:
    """Return each process once: drivers in containers may list one twice, with the same memory."""
    found: Dict[int, Optional[int]] = {}
    for pid, memory in listed:
        before = found.get(pid)
        found[pid] = memory if before is None else max(before, memory or 0)
    return list(found.items())


def _is_here(pid: int) -> bool:
    row = find_process(pid)
    return row is not None and row.state not in "ZX"


def holds_gpu(pid: int) -> bool:
    """Return whether the process has a device of the driver open (as far as it is readable)."""
    folder = "/proc/%d/fd" % pid
    try:
        return any(os.readlink("%s/%s" % (folder, name)).startswith("/dev/nvidia") for name in os.listdir(folder))
    except OSError:
        return False


class ProcessOwners:
    """Assigns listed processes to owners.

    Parameters
    ----------
    true
        Whether pids are certainly of this machine's name space; see :func:`pids_are_reliable`.
    here, holds
        Functions: whether a pid is a live process of this machine; whether it has a GPU open.
    """

    def __init__(
        self,
        true: Optional[bool] = None,
        here: Callable[[int], bool] = _is_here,
        holds: Callable[[int], bool] = holds_gpu,
    ) -> None:
        self.reliable_pids = pids_are_reliable() if true is None and LINUX else bool(true)
        self.is_local, self.holds_gpu = here, holds

    def classify(self, listed: Sequence[Listed], members: Collection[int]) -> List[Tuple[int, str, Optional[int]]]:
        """Return ``(pid, owner, MiB)`` of each process of one GPU.

        Parameters
        ----------
        members
            Pids of the run's processes.
        """
        rows = []
        # A process of the run under its own pid: this driver translates pids, at least where it can.
        translated = self.reliable_pids or any(pid in members for pid, _ in listed)
        for pid, memory in one_per_pid(listed):
            if pid in members:
                owner = MINE
            elif self.is_local(pid) and (translated or self.holds_gpu(pid)):
                owner = OTHER
            else:
                owner = UNKNOWN
            rows.append((pid, owner, memory))
        return rows

    def sums(self, rows: Optional[Sequence[Tuple[int, str, Optional[int]]]]) -> Dict[str, Any]:
        """Return ``mine`` and ``others`` in MiB, ``None`` if unknown; ``own``: a process of the run is listed."""
        if rows is None:
            return {"mine": None, "others": None, "own": False}
        if not rows:  # usual for an idle GPU, or in a container
            none = 0 if self.reliable_pids else None
            return {"mine": none, "others": none, "own": False}
        owners = {owner for _, owner, _ in rows}
        certain = self.reliable_pids and UNKNOWN not in owners
        return {
            "mine": _sum(rows, MINE) if MINE in owners or certain else None,
            "others": _sum(rows, OTHER) if OTHER in owners or (certain or owners == {MINE}) else None,
            "own": MINE in owners,
        }


def _sum(rows: Sequence[Tuple[int, str, Optional[int]]], owner: str) -> Optional[int]:
    sizes = [memory for _, row_owner, memory in rows if row_owner == owner]
    known = [memory for memory in sizes if memory is not None]
    return sum(known) if len(known) == len(sizes) else None


#: Samples read at once: initial and maximum number.
_ROOM, _MAX_ROOM = 256, 1 << 16

_UTILIZATION = "nvmlDeviceGetProcessUtilization"


class ProcessLoad:
    """SM utilization by process, of the GPUs of `readings`."""

    def __init__(self, readings: GpuReadings) -> None:
        self.readings = readings
        self._refusals = Refusals()
        self._room: Any = None
        #: For each GPU: its handle and the time (of the driver's clock) of the newest sample.
        self._seen: Dict[int, Tuple[Any, int]] = {}

    def read(self, i: int) -> Dict[int, int]:
        """Return percent by pid, the mean since the last reading; a missing pid did nothing, or is unknown."""
        handle, driver = self.readings.handle(i), self.readings.driver
        function = driver.function(_UTILIZATION) if driver is not None else None
        if function is None or handle is None or driver is None or i in self._refusals:
            return {}
        if driver.prices.is_dear(_UTILIZATION):  # and nothing cheaper says it
            return {}
        row = driver.nvml.c_nvmlProcessUtilizationSample_t
        if self._room is None:
            self._room = (row * _ROOM)()
        before = self._seen.get(i)
        since = before[1] if before is not None and before[0] is handle else 0
        count = ctypes.c_uint(0)

        def call() -> int:
            return function(handle, ctypes.byref(self._room), ctypes.byref(count), ctypes.c_ulonglong(since))

        for _ in range(3):
            count.value = len(self._room)
            code = driver.prices.timed(_UTILIZATION, call)
            if code != TOO_SMALL or not len(self._room) < count.value <= _MAX_ROOM:
                break
            self._room = (row * count.value)()
        self._refusals.note(i, code)
        if code != OK:
            if code != NOT_FOUND:
                self._seen.pop(i, None)
            return {}
        shares: Dict[int, List[int]] = {}
        newest = since
        for sample in self._room[: min(count.value, len(self._room))]:
            # Some drivers fill up with older samples, with zeros or with invalid percentages.
            if sample.timeStamp > since and sample.smUtil <= 100 and sample.pid:
                shares.setdefault(sample.pid, []).append(sample.smUtil)
                newest = max(newest, sample.timeStamp)
        self._seen[i] = (handle, newest)
        return {pid: (2 * sum(values) + len(values)) // (2 * len(values)) for pid, values in shares.items()}


#: Maximum number of notes: a GPU that is shared for days needs no more.
MAX_NOTES = 20

#: Maximum number of processes that a note names.
MAX_NAMED = 3


class SharingDetector:
    """Watches the lists of processes of a run's GPUs.

    Parameters
    ----------
    gpus
        As in the telemetry's header.
    """

    def __init__(self, gpus: Sequence[Mapping[str, Any]]) -> None:
        self._gpus = gpus
        self._suspects: List[Dict[int, str]] = [{} for _ in gpus]  # pid and name, of the last check
        self._reported: List[Set[int]] = [set() for _ in gpus]
        self._notes = 0

    def check(self, rows: Sequence[Sequence[Sequence[Any]]], members: Collection[int]) -> Dict[int, str]:
        """Return a sentence for each GPU (by its position) on which a process of another user is new.

        A process counts at the second check that finds it outside the run: one that the run has just started
        may be listed before it is known as the run's.

        Parameters
        ----------
        rows
            Processes of each GPU, as in `SlowMetrics`.
        members
            Pids of the run's processes now.
        """
        found: Dict[int, str] = {}
        for at, listed in enumerate(rows):
            now = {pid: name for _, pid, owner, _, name, *_ in listed if owner == OTHER and pid not in members}
            sure = {
                pid: name for pid, name in now.items() if pid in self._suspects[at] and find_process(pid) is not None
            }
            self._suspects[at] = now
            new = {pid: name for pid, name in sure.items() if pid not in self._reported[at]}
            if new and self._notes < MAX_NOTES:
                self._notes += 1
                found[at] = "others compute on %s too: %s" % (gpu_name(self._gpus[at]), _some(new))
            self._reported[at].update(new)
        return found


def _some(processes: Mapping[int, str]) -> str:
    shown = ", ".join(_owner_text(pid, name) for pid, name in sorted(processes.items())[:MAX_NAMED])
    return shown if len(processes) <= MAX_NAMED else "%s and %d more" % (shown, len(processes) - MAX_NAMED)


def _owner_text(pid: int, name: str) -> str:
    try:
        import pwd

        uid = os.stat("/proc/%d" % pid).st_uid
        try:
            user = pwd.getpwuid(uid).pw_name
        except KeyError:
            user = "uid %d" % uid
        run = run_of(pid)
        return "pid %d (%s: %s)" % (pid, user, "run %s" % run if run else name or "?")
    except (OSError, ImportError):
        return "pid %d" % pid
