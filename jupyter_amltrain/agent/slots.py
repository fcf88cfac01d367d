"""Slots: which job may own which devices. Data and functions; no process, no file.

A *record* is what the dispatcher keeps for a started job::

    {"schema", "number", "run", "home", "devices": [GPU uuid], "cpu_slot": int | None,
     "guardian": {"pid", "start"}, "supervisor": {"pid", "start"} | None, "boot": str}

A *ticket* is a waiting job: ``{"schema", "number", "run", "home", "gpus": int, ...}``.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from .gpu_names import gpu_name
from .protocol import AgentError

Gpu = Mapping[str, Any]
Record = Mapping[str, Any]


def usable_cpus() -> int:
    """CPUs that this process may use: affinity and cgroup quota counted."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        count = os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, min(count, int(quota + 0.999))) if quota else max(1, count)


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _cgroup_quota() -> Optional[float]:
    """CPUs by the cgroup's quota, or ``None``."""
    # Inside a container the own group is mounted at the root of the tree.
    v2 = _read("/sys/fs/cgroup/cpu.max").split()
    if len(v2) == 2 and v2[0].isdigit():
        return int(v2[0]) / float(v2[1])
    quota, period = _read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), _read("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    try:
        return int(quota) / float(period) if int(quota) > 0 else None
    except (ValueError, ZeroDivisionError):
        return None


def cpu_slots() -> int:
    """How many CPU jobs may run at once: ``$AMLTRAIN_CPU_SLOTS``, else the usable CPUs."""
    text = os.environ.get("AMLTRAIN_CPU_SLOTS", "")
    return int(text) if text.isdigit() and int(text) > 0 else usable_cpus()


def share_gpus() -> bool:
    """Whether a GPU on which others compute may be given out (``$AMLTRAIN_SHARE_GPUS=1``)."""
    return os.environ.get("AMLTRAIN_SHARE_GPUS", "") not in ("", "0")


def wanted_gpus(asked: Optional[int], gpus: Sequence[Gpu], note: str = "") -> int:
    """GPUs that a job gets.

    Raises
    ------
    AgentError
        ``CapacityError`` for more than the machine has.
    """
    if asked is None:
        return 1 if gpus else 0
    if asked > len(gpus):
        if gpus:
            have = "%d GPU%s (%s)" % (len(gpus), "s" * (len(gpus) > 1), ", ".join(sorted({g["name"] for g in gpus})))
        else:
            have = "no GPU: %s" % (note or "none was found")
        raise AgentError(
            "CapacityError",
            "The job asks for %d GPU%s and this machine has %s. Try: --gpus %d"
            % (asked, "s" * (asked > 1), have, len(gpus)),
        )
    return asked


def foreign(gpu: Gpu, ours: Set[int]) -> List[Mapping[str, Any]]:
    """Processes on `gpu` that belong to none of our runs."""
    return [p for p in gpu.get("processes") or () if p["pid"] not in ours]


def free_gpus(gpus: Sequence[Gpu], records: Sequence[Record], ours: Set[int], share: bool) -> List[str]:
    """UUIDs that a job may be given now, in the order of their index."""
    taken = {uuid for record in records for uuid in record["devices"]}
    return [g["uuid"] for g in gpus if g["uuid"] not in taken and (share or not foreign(g, ours))]


def free_cpu_slots(total: int, records: Sequence[Record]) -> List[int]:
    """Indices of free CPU slots."""
    taken = {record["cpu_slot"] for record in records}
    return [index for index in range(total) if index not in taken]


def choose(
    gpus_wanted: int, free: Sequence[str], free_cpus: Sequence[int]
) -> Optional[Tuple[List[str], Optional[int]]]:
    """Devices and CPU slot for a job, or ``None`` when it must wait."""
    if gpus_wanted:
        return (list(free[:gpus_wanted]), None) if len(free) >= gpus_wanted else None
    return ([], free_cpus[0]) if free_cpus else None


def _who(process: Mapping[str, Any]) -> str:
    """``pid 123 (ann: python)``; what is not visible from here is left out."""
    pid = process["pid"]
    try:
        import pwd

        uid = os.stat("/proc/%d" % pid).st_uid
        try:
            user = pwd.getpwuid(uid).pw_name
        except KeyError:
            user = "uid %d" % uid
        return "pid %d (%s: %s)" % (pid, user, _read("/proc/%d/comm" % pid).strip() or "?")
    except (OSError, ImportError):
        return "pid %d (not visible from here)" % pid


def explain(
    ticket: Mapping[str, Any],
    position: int,
    gpus: Sequence[Gpu],
    records: Sequence[Record],
    ours: Set[int],
    share: bool,
) -> str:
    """What a waiting job waits for, one line.

    Parameters
    ----------
    position
        1 for the next of its kind.
    """
    place = "next in line" if position == 1 else "number %d in line" % position
    if not ticket["gpus"]:
        busy = [r["run"] for r in records if r["cpu_slot"] is not None]
        return "%s for a CPU slot; busy with %s" % (place, _some(busy)) if busy else place
    parts = []
    busy = [r["run"] for r in records if r["devices"]]
    if busy:
        parts.append("busy with %s" % _some(busy))
    taken = {uuid for record in records for uuid in record["devices"]}
    for gpu in gpus:
        others = foreign(gpu, ours)
        if gpu["uuid"] not in taken and others and not share:
            parts.append("%s used by %s" % (gpu_name(gpu), _some([_who(p) for p in others])))
    count = "%d GPU%s" % (ticket["gpus"], "s" * (ticket["gpus"] > 1))
    return "%s for %s%s" % (place, count, "; " + "; ".join(parts) if parts else "")


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else "%s and %d more" % (shown, len(names) - 3)


def totals(gpus: Sequence[Gpu], records: Sequence[Record], ours: Set[int], share: bool) -> Dict[str, Dict[str, int]]:
    """``{"cpu": {"total", "free"}, "gpu": {"total", "free"}}``."""
    total = cpu_slots()
    return {
        "cpu": {"total": total, "free": len(free_cpu_slots(total, records))},
        "gpu": {"total": len(gpus), "free": len(free_gpus(gpus, records, ours, share))},
    }
