"""How a rank ended: from wait status and the kernel's counters to state, reason and one sentence."""

from __future__ import annotations

import os
import signal
from typing import Dict, Mapping, NamedTuple, Optional

from .processes import signal_name
from .protocol import CANCELED, COMPLETED, FAILED

#: Reason of a run that was stopped because it did not use its GPUs.
GPU_UNUSED = "gpu-unused"


class Outcome(NamedTuple):
    """The end of a run."""

    state: str
    reason: str
    detail: str
    exit_code: Optional[int]
    signal: Optional[int]


def _counter(path: str, key: str) -> Optional[int]:
    try:
        with open(path) as file:
            for line in file:
                name, _, value = line.partition(" ")
                if name == key:
                    return int(value)
    except (OSError, ValueError):
        pass
    return None


def oom_counters(cgroups: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> Dict[str, int]:
    """Kills by the OOM killer so far: ``{"group": n}`` of our cgroup, ``{"machine": n}``.

    ``memory.events`` (cgroup v2) and ``memory.oom_control`` (v1) count kills of the
    group's own processes by any OOM killer; ``oom_kill`` of ``/proc/vmstat`` counts all.
    """
    found = {}
    machine = _counter(os.environ.get("AMLTRAIN_TEST_VMSTAT") or "/proc/vmstat", "oom_kill")
    if machine is not None:
        found["machine"] = machine
    try:
        with open(cgroups) as file:
            lines = file.read().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            name, tops = "memory.events", [root, root + "/unified"]
        elif "memory" in controllers.split(","):
            name, tops = "memory.oom_control", [root + "/memory"]
        else:
            continue
        for top in tops:
            # Inside a container the path may be the host's; its group is then the root.
            for folder in (top + path, top):
                value = _counter(os.path.join(folder, name), "oom_kill")
                if value is not None:
                    found["group"] = max(value, found.get("group", 0))
                    break
    return found


def oom_happened(before: Dict[str, int], after: Dict[str, int]) -> bool:
    """Whether the OOM killer took a process between two readings.

    The group's counter decides where there is one; but a job may run in a group
    below ours, so the machine's counter is believed as well.
    """
    return any(after.get(key, 0) > count for key, count in before.items())


def classify(
    status: int, stopped: Optional[str], limit: Optional[float], oom: bool, truth: Optional[Mapping[str, str]] = None
) -> Outcome:
    """The end of a rank.

    Parameters
    ----------
    status
        As `os.waitpid` gives it.
    stopped
        ``"canceled"``, ``"timeout"`` or ``"gpu-unused"`` when we ended it, else ``None``.
    limit
        The time limit in seconds, for the sentence.
    oom
        Whether the OOM killer was at work while the rank ran.
    truth
        The verdict on its GPUs for which it was stopped: ``detail`` and ``cause``.
    """
    code: Optional[int] = None
    number: Optional[int] = None
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
    else:
        code = os.WEXITSTATUS(status)
    if stopped == CANCELED:
        return Outcome(CANCELED, CANCELED, "canceled while it ran", code, number)
    if stopped == "timeout":
        return Outcome(FAILED, "timeout", "ran into its time limit of %g s" % (limit or 0), code, number)
    if stopped == GPU_UNUSED:
        said = truth or {}
        detail = "stopped because its GPUs were not used: %s; likely cause: %s" % (
            said.get("detail") or "no use was seen", said.get("cause") or "not known",
        )  # fmt: skip
        return Outcome(FAILED, GPU_UNUSED, detail, code, number)
    if number is not None:
        core = " (core dumped)" if os.WCOREDUMP(status) else ""
        if number == signal.SIGKILL and oom:
            detail = "killed by the kernel's OOM killer: the machine or its memory limit ran out of memory"
            return Outcome(FAILED, "oom", detail, None, number)
        return Outcome(FAILED, "signal", "killed by %s%s" % (signal_name(number), core), None, number)
    if code == 0:
        return Outcome(COMPLETED, "exit", "", 0, None)
    detail = "exited with code %d" % (code or 0)
    if oom and code == 128 + signal.SIGKILL:
        return Outcome(FAILED, "oom", detail + ": its process was killed by the kernel's OOM killer", code, None)
    if oom:
        detail += "; the kernel's OOM killer ended a process of this machine meanwhile"
    return Outcome(FAILED, "exit", detail, code, None)
