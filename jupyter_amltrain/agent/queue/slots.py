"""Slots: assignment of devices to jobs. Pure functions on data, apart from the CPU count.

A *record* is the dispatcher's data about a started job::

    {"schema", "number", "run", "home", "devices": [GPU uuid], "gpu_fraction": float, "cpu_slot": int | None,
     "guardian": {"pid", "start"}, "supervisor": {"pid", "start"} | None, "boot": str}

A *ticket* is a waiting job: ``{"schema", "number", "run", "home", "gpus": int, ...}``; with ``"no_slot": True`` it
takes no slot, because it submits other jobs and waits for them. With a ``"gpu_fraction"`` below 1 in ticket and record,
several jobs of this queue share one GPU.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ..protocol import AgentError
from .gpu_users import foreign_processes

Gpu = Mapping[str, Any]
Record = Mapping[str, Any]


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use, by affinity and cgroup quota."""
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
    """Return the CPU quota of the cgroup, or ``None``."""
    # Inside a container its own group is mounted at the root of the tree.
    v2 = _read("/sys/fs/cgroup/cpu.max").split()
    if len(v2) == 2 and v2[0].isdigit():
        return int(v2[0]) / float(v2[1])
    quota, period = _read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), _read("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    try:
        return int(quota) / float(period) if int(quota) > 0 else None
    except (ValueError, ZeroDivisionError):
        return None


def cpu_slots() -> int:
    """Return how many CPU jobs may run concurrently: ``$AMLTRAIN_CPU_SLOTS``, else the usable CPUs."""
    text = os.environ.get("AMLTRAIN_CPU_SLOTS", "")
    return int(text) if text.isdigit() and int(text) > 0 else usable_cpus()


def resolve_gpu_count(requested: Optional[int], gpus: Sequence[Gpu], note: str = "") -> int:
    """Return the number of GPUs that a job gets.

    Raises
    ------
    AgentError
        ``CapacityError`` if the machine has fewer GPUs than requested.
    """
    if requested is None:
        return 1 if gpus else 0
    if requested > len(gpus):
        if gpus:
            available = "%d GPU%s (%s)" % (
                len(gpus),
                "s" * (len(gpus) > 1),
                ", ".join(sorted({g["name"] for g in gpus})),
            )
        else:
            available = "no GPU: %s" % (note.rstrip(".") or "none was found")
        raise AgentError(
            "CapacityError",
            "The job requests %d GPU%s, but this machine has %s. Try: --gpus %d"
            % (requested, "s" * (requested > 1), available, len(gpus)),
        )
    return requested


#: Fractions of a GPU add up to 1 within this error: three times 0.3333, and 0.1 ten times.
_ROUNDING = 1e-3


def fraction_of(item: Mapping[str, Any]) -> float:
    """Return the part of each of its GPUs that a ticket requests, or a record has."""
    return float(item.get("gpu_fraction") or 1.0)


def loads(records: Sequence[Record]) -> Dict[str, float]:
    """Return the sum of the fractions of the runs on each GPU, by its UUID; a GPU that is not used is left out."""
    found: Dict[str, float] = {}
    for record in records:
        for uuid in record["devices"]:
            found[uuid] = found.get(uuid, 0.0) + fraction_of(record)
    return found


def free_gpus(
    gpus: Sequence[Gpu], records: Sequence[Record], own_pids: Set[int], share: bool, fraction: float = 1.0
) -> List[str]:
    """Return UUIDs of the GPUs with room for a job now, sorted by index, those shared with others last.

    For a fraction, GPUs that other fractions use already come first, so that whole ones stay free.
    """
    used = loads(records)
    free = [gpu for gpu in gpus if used.get(gpu["uuid"], 0.0) + fraction <= 1 + _ROUNDING]
    free.sort(key=lambda gpu: gpu["uuid"] not in used)
    unused = [gpu["uuid"] for gpu in free if not foreign_processes(gpu, own_pids)]
    return unused + [gpu["uuid"] for gpu in free if gpu["uuid"] not in unused] if share else unused


def free_cpu_slots(total: int, records: Sequence[Record]) -> List[int]:
    """Return indices of free CPU slots."""
    taken = {record["cpu_slot"] for record in records}
    return [index for index in range(total) if index not in taken]


def choose_slot(
    gpu_count: int, free: Sequence[str], free_cpus: Sequence[int]
) -> Optional[Tuple[List[str], Optional[int]]]:
    """Return devices and CPU slot for a job, or ``None`` when it must wait."""
    if gpu_count:
        return (list(free[:gpu_count]), None) if len(free) >= gpu_count else None
    return ([], free_cpus[0]) if free_cpus else None


def totals(
    gpus: Sequence[Gpu], records: Sequence[Record], own_pids: Set[int], share: bool, lost: int = 0
) -> Dict[str, Dict[str, int]]:
    """Return ``{"cpu": {"total", "free"}, "gpu": {"total", "free"}}``; with ``lost`` if GPUs of the total are lost."""
    total = cpu_slots()
    gpu_slots = {"total": len(gpus) + lost, "free": len(free_gpus(gpus, records, own_pids, share))}
    if lost:
        gpu_slots["lost"] = lost
    return {"cpu": {"total": total, "free": len(free_cpu_slots(total, records))}, "gpu": gpu_slots}
