"""The agent's own processes that a job may come to stand above.

A job that submits a job while no dispatcher runs starts one, and the supervisor
collects it as any orphan below itself. It serves the whole queue: the job's end must
not be its end, nor that of the runs which it started.
"""

from __future__ import annotations

import os
from typing import Any, FrozenSet, List, Mapping, Optional

from .processes import alive
from .protocol import AgentError, read_json, read_state, run_folder
from .shelf import LOCK, NumberedJsonDir


def protected_pids(queue: str, home: str, run: str) -> FrozenSet[int]:
    """Pids of a queue's dispatcher and of the guardians and supervisors of its other runs.

    Parameters
    ----------
    queue
        The queue of the run; the dispatcher of another one is the job's own affair.
    home, run
        The run whose processes are about to be removed.
    """
    found: List[Optional[Mapping[str, Any]]] = []
    try:
        found.append(read_json(os.path.join(queue, LOCK), "Queue folder"))
    except (OSError, AgentError):
        pass
    for record in NumberedJsonDir(os.path.join(queue, "slots")).load().values():
        if (record["home"], record["run"]) == (home, run):
            continue
        found += [record.get("guardian"), record.get("supervisor") or _stated_supervisor(record)]
    return frozenset(who["pid"] for who in found if who and alive(who))


def _stated_supervisor(record: Mapping[str, Any]) -> Optional[Mapping[str, Any]]:
    """The supervisor by a run's ``state.json``, for a record that was written before it was known."""
    try:
        who = (read_state(run_folder(record["home"], record["run"])) or {}).get("supervisor")
    except (OSError, AgentError):
        return None
    return who if isinstance(who, dict) else None  # a job may have written anything
