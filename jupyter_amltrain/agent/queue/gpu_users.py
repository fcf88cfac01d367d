"""Users of a GPU: runs of this queue, the submitter of a job, permanent desktop and server processes, and others."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Set

from ..processes import (
    Process,
    comm_of,
    command_of,
    descendants,
    find_process,
    process_table,
    program_of,
    run_of,
    user_of,
)

#: Command names (15 characters, as the kernel cuts them) of processes that permanently have a GPU open:
#: NVIDIA's MPS server and its control process, display servers and compositors. They do not compute.
ALWAYS_THERE = frozenset(
    [
        "nvidia-cuda-mps", "nvidia-persiste", "nvidia-powerd", "Xorg", "Xorg.bin", "Xwayland", "gnome-shell",
        "gnome-remote-de", "kwin_x11", "kwin_wayland", "plasmashell", "mutter", "cinnamon", "xfwm4", "weston", "sway",
        "Hyprland", "cosmic-comp", "gamescope", "sddm-greeter", "lightdm-gtk-gre",
    ]
)  # fmt: skip
#: Max ancestors of a submitter that are stored with its job.
MAX_ANCESTORS = 16

Row = Mapping[str, Any]


def foreign_processes(gpu: Mapping[str, Any], own_pids: Set[int]) -> List[Row]:
    """Return processes that make `gpu` busy: not of our runs, not permanent, not of another MIG instance."""
    return [row for row in gpu.get("processes") or () if row["pid"] not in own_pids and _counts(gpu, row)]


def _counts(gpu: Mapping[str, Any], row: Row) -> bool:
    """Whether a listed process makes a GPU busy for jobs."""
    return _is_on(gpu, row) and comm_of(row["pid"]) not in ALWAYS_THERE


def _is_on(gpu: Mapping[str, Any], row: Row) -> bool:
    """Whether a listed process is on this GPU, and not on another instance of it."""
    gpu_instance, row_instance = gpu.get("gpu_instance"), row.get("instance")
    return row_instance is None or gpu_instance is None or row_instance == gpu_instance


def ancestors(pid: int) -> List[Dict[str, Any]]:
    """Return identities of a process and its ancestors, nearest first, without pid 1."""
    result: List[Dict[str, Any]] = []
    while pid > 1 and len(result) < MAX_ANCESTORS:
        row = find_process(pid)
        if row is None:
            break
        result.append({"pid": pid, "start": row.start})
        pid = row.parent
    return result


class Submitter:
    """The process that submitted a job, as the job's ticket names it.

    Parameters
    ----------
    chain
        `lineage` of the submitter at the time of the submit; jobs of other programs have none.
    """

    def __init__(self, chain: Any) -> None:
        self._chain = [process for process in chain if _is_identity(process)] if isinstance(chain, list) else []

    def own(self, rows: Sequence[Row]) -> List[int]:
        """Return pids of those processes that are the submitter, its ancestors or its descendants."""
        if not self._chain:
            return []
        listed = {row["pid"] for row in rows}
        own = {process["pid"] for process in self._chain if process["pid"] in listed and _is_alive(process)}
        others = listed - own
        if others and _is_alive(self._chain[0]):
            rows_by_pid: Dict[int, Process] = process_table()
            own |= others & descendants(self._chain[0]["pid"], rows_by_pid)
        return sorted(own)

    def describe(self, pid: int) -> str:
        """Return a description of a submitter process: ``this notebook's kernel (pid 123)``."""
        if is_kernel(pid):
            return "this notebook's kernel (pid %d)" % pid
        if any(is_kernel(process["pid"]) for process in self._chain[:1]):
            return "a process of this notebook's kernel (pid %d)" % pid
        return "the process that submitted this run (pid %d)" % pid


def is_kernel(pid: int) -> bool:
    """Whether a process is a Python kernel of Jupyter, by its command line."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return False
    return any(b"ipykernel" in word for word in words[:6])


def _is_alive(process: Mapping[str, Any]) -> bool:
    row = find_process(process["pid"])
    return row is not None and row.state not in "ZX" and row.start == process["start"]


def _is_identity(process: Any) -> bool:
    return isinstance(process, dict) and isinstance(process.get("pid"), int) and "start" in process


def describe(row: Row) -> str:
    """Return ``pid 123 (ann: python train.py)``, without the parts that are not visible from here."""
    pid = row["pid"]
    user = user_of(pid)
    if not user:
        return "pid %d (not visible from here)" % pid
    return "pid %d (%s: %s)" % (pid, user if not user.isdigit() else "uid " + user, program_of(pid) or "?")


def users_of(gpu: Mapping[str, Any], runs: Mapping[int, str], assigned: Sequence[str]) -> List[Dict[str, Any]]:
    """Return who uses a GPU now, one row each: ``run``, ``pid``, ``user``, ``command``, ``memory`` (bytes).

    A run that has the GPU and no process on it has a row without a pid; a system process has ``system``.

    Parameters
    ----------
    runs
        Runs of this queue, by the pids of their processes.
    assigned
        Runs of this queue that have the GPU.
    """
    users: List[Dict[str, Any]] = []
    for row in gpu.get("processes") or ():
        pid = row["pid"]
        if not _is_on(gpu, row):
            continue
        user = {"pid": pid, "user": user_of(pid), "command": command_of(pid), "memory": row.get("memory")}
        run = runs.get(pid) or run_of(pid)
        users.append({**user, "run": run, "system": comm_of(pid) in ALWAYS_THERE})
    seen = {user["run"] for user in users}
    return [*users, *({"run": run} for run in assigned if run not in seen)]
