"""Who uses a GPU: our runs, the process that submitted a job, desktops and servers that are always there, strangers."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Set

from ..processes import Process, comm_of, command_of, descendants, look, table, user_of

#: Command names (15 characters, as the kernel cuts them) of processes that hold a GPU as long as it is on:
#: NVIDIA's MPS server and its control process, display servers and compositors. They do not compute.
ALWAYS_THERE = frozenset(
    [
        "nvidia-cuda-mps", "nvidia-persiste", "nvidia-powerd", "Xorg", "Xorg.bin", "Xwayland", "gnome-shell",
        "gnome-remote-de", "kwin_x11", "kwin_wayland", "plasmashell", "mutter", "cinnamon", "xfwm4", "weston", "sway",
        "Hyprland", "cosmic-comp", "gamescope", "sddm-greeter", "lightdm-gtk-gre",
    ]
)  # fmt: skip
#: Ancestors of a submitter that its job remembers.
MAX_ANCESTORS = 16

Row = Mapping[str, Any]


def strangers(gpu: Mapping[str, Any], ours: Set[int]) -> List[Row]:
    """Processes that make `gpu` busy: neither of our runs, nor always there, nor of another MIG instance."""
    return [row for row in gpu.get("processes") or () if row["pid"] not in ours and _counts(gpu, row)]


def _counts(gpu: Mapping[str, Any], row: Row) -> bool:
    """Whether a listed process makes a GPU busy for those who compute."""
    own, instance = gpu.get("gpu_instance"), row.get("instance")
    if instance is not None and own is not None and instance != own:
        return False
    return comm_of(row["pid"]) not in ALWAYS_THERE


def lineage(pid: int) -> List[Dict[str, Any]]:
    """Identities of a process and its ancestors, nearest first; the first process of the machine is left out."""
    found: List[Dict[str, Any]] = []
    while pid > 1 and len(found) < MAX_ANCESTORS:
        row = look(pid)
        if row is None:
            break
        found.append({"pid": pid, "start": row.start})
        pid = row.parent
    return found


class Submitter:
    """The process that submitted a job, as the job's ticket names it.

    Parameters
    ----------
    chain
        `lineage` of the submitter when it submitted; another program's jobs have none.
    """

    def __init__(self, chain: Any) -> None:
        self._chain = [who for who in chain if _is_identity(who)] if isinstance(chain, list) else []

    def own(self, rows: Sequence[Row]) -> List[int]:
        """Pids of these processes that belong to the submitter: itself, one that it descends from, or its children."""
        if not self._chain:
            return []
        listed = {row["pid"] for row in rows}
        found = {who["pid"] for who in self._chain if who["pid"] in listed and _lives(who)}
        left = listed - found
        if left and _lives(self._chain[0]):
            below: Dict[int, Process] = table()
            found |= left & descendants(self._chain[0]["pid"], below)
        return sorted(found)

    def describe(self, pid: int) -> str:
        """``this notebook's kernel (pid 123)``, or another name of the submitter's process."""
        if is_kernel(pid):
            return "this notebook's kernel (pid %d)" % pid
        if any(is_kernel(who["pid"]) for who in self._chain[:1]):
            return "a process of this notebook's kernel (pid %d)" % pid
        return "the process that submitted this run (pid %d)" % pid


def is_kernel(pid: int) -> bool:
    """Whether a process is a Jupyter kernel of Python, by its command line."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return False
    return any(b"ipykernel" in word for word in words[:6])


def _lives(who: Mapping[str, Any]) -> bool:
    row = look(who["pid"])
    return row is not None and row.state not in "ZX" and row.start == who["start"]


def _is_identity(who: Any) -> bool:
    return isinstance(who, dict) and isinstance(who.get("pid"), int) and "start" in who


def describe(row: Row) -> str:
    """``pid 123 (ann: python train.py)``; what is not visible from here is left out."""
    pid = row["pid"]
    user = user_of(pid)
    if not user:
        return "pid %d (not visible from here)" % pid
    return "pid %d (%s: %s)" % (pid, user if not user.isdigit() else "uid " + user, command_of(pid) or "?")
