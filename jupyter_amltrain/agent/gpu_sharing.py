"""Says when processes of others appear on the GPUs of a run, at its start or later."""

from __future__ import annotations

import os
from typing import Any, Collection, Dict, List, Mapping, Sequence, Set

from .gpu_names import gpu_name
from .gpu_processes import OTHER
from .processes import look

#: Notes of this kind at most: a GPU that is shared for days is not news.
MAX_NOTES = 20
#: Processes that a note names.
MAX_NAMED = 3


class Sharing:
    """Watches the lists of processes of a run's GPUs.

    Parameters
    ----------
    gpus
        As in the telemetry's header.
    """

    def __init__(self, gpus: Sequence[Mapping[str, Any]]) -> None:
        self._gpus = gpus
        self._suspects: List[Dict[int, str]] = [{} for _ in gpus]  # pid and name, of the last look
        self._told: List[Set[int]] = [set() for _ in gpus]
        self._notes = 0

    def look(self, rows: Sequence[Sequence[Sequence[Any]]], members: Collection[int]) -> Dict[int, str]:
        """Return a sentence for each GPU (by its position) on which a process of others is new.

        A process counts at the second look that finds it outside the run: one that the run has just started
        may be listed before it is known as the run's.

        Parameters
        ----------
        rows
            Of each GPU, its processes as `SlowMetrics` keeps them.
        members
            Pids of the run's processes now.
        """
        found: Dict[int, str] = {}
        for at, listed in enumerate(rows):
            now = {pid: name for _, pid, owner, _, name, *_ in listed if owner == OTHER and pid not in members}
            sure = {pid: name for pid, name in now.items() if pid in self._suspects[at] and look(pid) is not None}
            self._suspects[at] = now
            new = {pid: name for pid, name in sure.items() if pid not in self._told[at]}
            if new and self._notes < MAX_NOTES:
                self._notes += 1
                found[at] = "others compute on %s too: %s" % (gpu_name(self._gpus[at]), _some(new))
            self._told[at].update(new)
        return found


def _some(processes: Mapping[int, str]) -> str:
    shown = ", ".join(_who(pid, name) for pid, name in sorted(processes.items())[:MAX_NAMED])
    return shown if len(processes) <= MAX_NAMED else "%s and %d more" % (shown, len(processes) - MAX_NAMED)


def _who(pid: int, name: str) -> str:
    try:
        import pwd

        uid = os.stat("/proc/%d" % pid).st_uid
        try:
            user = pwd.getpwuid(uid).pw_name
        except KeyError:
            user = "uid %d" % uid
        return "pid %d (%s: %s)" % (pid, user, name or "?")
    except (OSError, ImportError):
        return "pid %d" % pid
