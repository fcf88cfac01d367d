"""Whose processes are on a GPU: mine, others', or nobody can say.

In a container NVML may list the host's pids, which are nobody's here or, worse, some
other process's; some drivers mix the two, or list nothing. So a listed pid says *other*
only where it is known to mean what it says, and a missing pid says nothing at all.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Collection, Dict, List, Optional, Sequence, Tuple

from .processes import LINUX, look

MINE, OTHER, UNKNOWN = "mine", "other", "unknown"
#: Inode of the first PID name space of every Linux (PROC_PID_INIT_INO).
_FIRST_SPACE = "pid:[4026531836]"

#: Pid and MiB as NVML lists them.
Listed = Tuple[int, Optional[int]]


def pids_are_true() -> bool:
    """Whether the driver's pids are ours for certain: we are not in a container."""
    try:
        return os.readlink("/proc/self/ns/pid") == _FIRST_SPACE
    except OSError:
        return False


def one_per_pid(listed: Sequence[Listed]) -> List[Listed]:
    """Each process once: drivers in containers may list one twice, with the same memory."""
    found: Dict[int, Optional[int]] = {}
    for pid, memory in listed:
        before = found.get(pid)
        found[pid] = memory if before is None else max(before, memory or 0)
    return list(found.items())


def _is_here(pid: int) -> bool:
    row = look(pid)
    return row is not None and row.state not in "ZX"


def holds_gpu(pid: int) -> bool:
    """Whether the process has a device of the driver open (where we may look)."""
    folder = "/proc/%d/fd" % pid
    try:
        return any(os.readlink("%s/%s" % (folder, name)).startswith("/dev/nvidia") for name in os.listdir(folder))
    except OSError:
        return False


class Owners:
    """Tells whose the listed processes are.

    Parameters
    ----------
    true
        Whether pids are certainly ours; see :func:`pids_are_true`.
    here, holds
        Whether a pid is a live process of this machine; whether it has a GPU open.
    """

    def __init__(
        self,
        true: Optional[bool] = None,
        here: Callable[[int], bool] = _is_here,
        holds: Callable[[int], bool] = holds_gpu,
    ) -> None:
        self.true = pids_are_true() if true is None and LINUX else bool(true)
        self.here, self.holds = here, holds

    def tell(self, listed: Sequence[Listed], members: Collection[int]) -> List[Tuple[int, str, Optional[int]]]:
        """``(pid, owner, MiB)`` of each process of one GPU.

        Parameters
        ----------
        members
            Pids of the run's processes.
        """
        rows = []
        # One of ours under its own pid: this driver translates, at least where it can.
        translated = self.true or any(pid in members for pid, _ in listed)
        for pid, memory in one_per_pid(listed):
            if pid in members:
                owner = MINE
            elif self.here(pid) and (translated or self.holds(pid)):
                owner = OTHER
            else:
                owner = UNKNOWN
            rows.append((pid, owner, memory))
        return rows

    def sums(self, rows: Optional[Sequence[Tuple[int, str, Optional[int]]]]) -> Dict[str, Any]:
        """``mine`` and ``others`` in MiB, ``None`` where that is not known; ``own``: one of ours is listed."""
        if rows is None:
            return {"mine": None, "others": None, "own": False}
        if not rows:  # the rule on a GPU that is idle, or in a container
            none = 0 if self.true else None
            return {"mine": none, "others": none, "own": False}
        owners = {owner for _, owner, _ in rows}
        certain = self.true and UNKNOWN not in owners
        return {
            "mine": _sum(rows, MINE) if MINE in owners or certain else None,
            "others": _sum(rows, OTHER) if OTHER in owners or (certain or owners == {MINE}) else None,
            "own": MINE in owners,
        }


def _sum(rows: Sequence[Tuple[int, str, Optional[int]]], owner: str) -> Optional[int]:
    sizes = [memory for _, who, memory in rows if who == owner]
    known = [memory for memory in sizes if memory is not None]
    return sum(known) if len(known) == len(sizes) else None
