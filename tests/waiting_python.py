"""Waiting interpreters of a state root, for tests of runs that start in one."""

from __future__ import annotations

from pathlib import Path

from jupyter_amltrain.agent.processes import process_table
from tests.agent.conftest import processes_of
from tests.helpers import until


def waiting(home: Path | str) -> set[int]:
    """Return the pids of waiting interpreters."""
    return processes_of(f"{home}/agent/hook") & processes_of("AMLTRAIN_WAITING=")


def ready(home: Path | str) -> int:
    """Wait for an interpreter that has imported, and sleeps; return its pid."""
    times: dict[int, list[int]] = {}

    def sleeper() -> int:
        for pid in waiting(home):
            row = process_table().get(pid)
            own = times.setdefault(pid, [])
            own.append(row.own_time if row is not None and row.state == "S" else -len(own) - 1)
            if len(own) > 10 and len(set(own[-10:])) == 1:
                return pid
        return 0

    return until(sleeper, "a waiting interpreter that has imported")


def start_of(folder: Path | str) -> str:
    """Return what the agent has noted of the start of a run: ``warm``, or the reason of a cold one."""
    path = Path(folder) / "log" / "agent.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    if any("a warm start" in line for line in lines):
        return "warm"
    return next((line.partition("a cold start: ")[2] for line in lines if "a cold start" in line), "")
