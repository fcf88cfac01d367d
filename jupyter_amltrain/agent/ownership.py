"""Ownership of started runs: who supervises them, by the queue's records, which no job's folder holds."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, Mapping, Optional, Tuple

from . import clock
from .processes import alive, boot_id, node
from .protocol import FINALIZING, RUNNING, TERMINAL
from .shelf import NumberedJsonDir

Json = Dict[str, Any]
#: Seconds that a supervisor which has written the end of its run gets to leave.
LEAVE_TIMEOUT_S = 2.0


def records(queue: str) -> Dict[Tuple[str, str], Json]:
    """Slot records of a queue by state root and run."""
    found = NumberedJsonDir(os.path.join(queue, "slots")).load()
    return {(record["home"], record["run"]): record for record in found.values()}


def supervisors(record: Optional[Mapping[str, Any]], state: Mapping[str, Any]) -> List[Mapping[str, Any]]:
    """Live supervisor and guardian of a run of this machine, the supervisor first.

    Parameters
    ----------
    record
        Its slot record, where there is one: a job cannot change it by its run folder.
    state
        Its ``state.json``, believed where there is no record.
    """
    source = state
    if record is not None and record.get("boot") == boot_id() and record.get("node", node()) == node():
        source = record if record.get("supervisor") else dict(record, supervisor=state.get("supervisor"))
    elif state.get("node") != node():
        return []
    return [who for who in (source.get("supervisor"), source.get("guardian")) if isinstance(who, dict) and alive(who)]


def check_ends(queue: str, home: str, runs: Mapping[str, Json]) -> Dict[str, Json]:
    """Runs whose files say that they have ended while their supervisors still look after them.

    A supervisor leaves at once when it has written an end, so an end that is there while
    it stays was written by the job.

    Returns
    -------
    dict
        Run to the state to show in place of the false one.
    """
    ended = {run: state for run, state in runs.items() if state["state"] in TERMINAL}
    if not ended:
        return {}
    known = records(queue)
    suspects = {run: known[home, run] for run in ended if (home, run) in known}
    until = clock.mono() + LEAVE_TIMEOUT_S
    pause = 0.001
    while suspects:
        suspects = {run: record for run, record in suspects.items() if supervisors(record, {})}
        if not suspects or clock.mono() > until:
            break
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return {run: _running(ended[run]) for run in suspects}


def _running(state: Mapping[str, Any]) -> Json:
    """A false end as the running state that it hides."""
    phases = state.get("phases")
    named = [dict(phase) for phase in phases or () if isinstance(phase, dict)] if isinstance(phases, list) else []
    if named:
        named[-1].update(end=None, seconds=None)
    name = FINALIZING if named and named[-1].get("name") == FINALIZING else RUNNING
    detail = "its state file was changed by somebody else: it has not ended"
    return dict(state, state=name, phases=named, detail=detail, reason=None, exit_code=None, signal=None)
