"""Whether no run has been active on a machine for some time: what a line of cron asks before it stops the machine.

Every doubt counts as activity: a machine with a run must not be stopped.
"""

from __future__ import annotations

import os
import sys
from typing import List, Set

from .json_dir import NumberedJsonDir, default_queue
from .protocol import TERMINAL, wall


def main(argv: List[str]) -> int:
    """Say why the machine is not idle; return 0 only if it is.

    Parameters
    ----------
    argv
        State root, and the seconds without a run.
    """
    try:
        reason = busy_reason(os.path.abspath(argv[0]), float(argv[1]))
    except (OSError, ValueError, KeyError) as error:
        reason = "its runs are not known: %s" % error
    sys.stdout.write("%s\n" % (reason or "idle"))
    return 1 if reason else 0


def busy_reason(home: str, seconds: float) -> str:
    """Return why a machine has not been idle for so long; empty if it has."""
    passed = _uptime()
    if passed < seconds:
        return "it started %.0f s ago" % passed
    homes = {home}
    for name in ("tickets", "slots"):  # runs of the same user with another state root
        folder = NumberedJsonDir(os.path.join(default_queue(), name))
        homes.update(str(item["home"]) for item in folder.load().values())
        if folder.unreadable:
            return "its queue is not known: %s" % ", ".join(folder.unreadable)
    return next(filter(None, (_busy_run(one, seconds) for one in sorted(homes))), "")


def _busy_run(home: str, seconds: float) -> str:
    from .calls import call
    from .damage import processes_of

    reply = call("list", {"full": True}, home)
    if "error" in reply:
        return "its runs are not known: %s" % reply["error"].get("message")
    for row in reply["runs"]:
        if row["state"] not in TERMINAL:
            return "run %s is %s" % (row["run"], row["state"])
        passed = wall() - float(row["status"]["changed"])
        if passed < seconds:
            return "run %s ended %.0f s ago" % (row["run"], passed)
    listed: Set[str] = {row["run"] for row in reply["runs"]}
    for run, error in reply["errors"].items():
        passed = wall() - float(error.get("changed") or 0.0)
        if run not in listed and (processes_of(run) or passed < seconds):
            return "run %s is damaged, and may be active" % run
    return ""


def _uptime() -> float:
    """Return the seconds since the machine was started; infinite if they are not known."""
    try:
        with open("/proc/uptime", encoding="ascii") as file:
            return float(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return float("inf")
