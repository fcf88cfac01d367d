"""Attempts of a run: when its job starts again, after which pause, and what is kept of the earlier ends.

A job that fails starts again in place: its supervisor keeps slot, environment and secrets. A run whose supervisor
has ended too (killed, or SIGTERM as at a shutdown) or whose machine was restarted goes back to the queue, but not a run
on several machines: the others have lost it.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional

from .. import protocol
from ..distributed.launchers import LAUNCHER_LOG, RANKS
from ..protocol import (
    FAILED,
    LOG,
    LOST,
    MAX_RESTARTS,
    PREEMPTED,
    PREPARING,
    QUEUED,
    RESTART_PREFIX,
    RUNNING,
    AgentError,
)
from . import run_state

if TYPE_CHECKING:  # it imports the readers of GPUs
    from .outcome import Outcome

Json = Dict[str, Any]

#: Pauses before the first restart and before any other (seconds); each is twice as long as the last one.
MIN_PAUSE_S, MAX_PAUSE_S = 2.0, 30.0
#: Pause after SIGTERM to the supervisor, in which a machine that shuts down goes away.
SHUTDOWN_PAUSE_S = 10.0
#: Ends after which a job may start again; others would end in the same way, or were requested.
_RESTARTED = ("exit", "signal", "oom", PREEMPTED)


def check(restarts: Mapping[str, Any]) -> Json:
    """Return the restarts of a job: ``max``, ``preempt_after`` (seconds; 0 for never), and ``final``.

    After an exit with a code of ``final`` the job does not start again.

    Raises
    ------
    AgentError
        ``SubmitError`` that names the field.
    """
    count, after = restarts.get("max", 0), restarts.get("preempt_after", 0.0)
    if type(count) is not int or not 0 <= count <= MAX_RESTARTS:
        raise AgentError("SubmitError", "Cannot submit the job: restarts.max must be 0 to %d." % MAX_RESTARTS)
    if type(after) not in (int, float) or not 0 <= after < 1e9:
        raise AgentError("SubmitError", "Cannot submit the job: restarts.preempt_after must be a number of seconds.")
    final = restarts.get("final", [])
    if not isinstance(final, list) or not all(type(code) is int for code in final):
        raise AgentError("SubmitError", "Cannot submit the job: restarts.final must be a list of exit codes.")
    return {"max": count, "preempt_after": after, **({"final": final} if final else {})}


def number(state: Mapping[str, Any]) -> int:
    """Return the number of the current attempt, from 1."""
    value = state.get("attempt")
    return value if isinstance(value, int) and value > 0 else 1


def allowed(job: Mapping[str, Any]) -> int:
    """Return how often a job may start again."""
    return int((job.get("restarts") or {}).get("max") or 0)


def left(job: Mapping[str, Any], state: Mapping[str, Any]) -> int:
    """Return how often a job may still start again."""
    return max(0, allowed(job) + 1 - number(state))


def earlier(state: Mapping[str, Any]) -> List[Json]:
    """Return the ends of the earlier attempts; a job may have damaged them."""
    found = state.get("attempts")
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def seconds_before(state: Mapping[str, Any]) -> float:
    """Return the run time of the earlier attempts, which a time limit includes."""
    times = [row.get("seconds") for row in earlier(state)]
    return float(sum(seconds for seconds in times if isinstance(seconds, (int, float))))


def preemption_due(job: Mapping[str, Any], state: Mapping[str, Any], began: float) -> float:
    """Return when a simulated pre-emption ends the attempt that began at `began`; infinite for the last attempt."""
    after = float((job.get("restarts") or {}).get("preempt_after") or 0.0)
    return began + after if after and left(job, state) else float("inf")


def may_restart(job: Mapping[str, Any], state: Mapping[str, Any], outcome: Outcome) -> bool:
    """Return whether the job starts again after an end of its process."""
    final = (job.get("restarts") or {}).get("final") or ()
    is_final = outcome.reason == "exit" and outcome.exit_code in final
    return outcome.state == FAILED and outcome.reason in _RESTARTED and not is_final and left(job, state) > 0


def pause_s(state: Mapping[str, Any]) -> float:
    """Return the seconds until the current attempt may start; ``$AMLTRAIN_RESTART_PAUSE`` sets them."""
    try:
        return float(os.environ["AMLTRAIN_RESTART_PAUSE"])
    except (KeyError, ValueError):
        pass
    if earlier(state) and earlier(state)[-1].get("shutdown"):
        return SHUTDOWN_PAUSE_S
    return float(min(MAX_PAUSE_S, MIN_PAUSE_S * 2 ** min(20, max(0, number(state) - 2))))


def begin_next(job: Mapping[str, Any], state: Json, outcome: Outcome, seconds: float) -> None:
    """Enter ``queued`` for the next attempt, and keep the end of this one.

    Parameters
    ----------
    seconds
        Run time of this attempt.
    """
    last = state["phases"][-1] if state["phases"] else {}
    row: Json = {
        "reason": outcome.reason,
        "detail": outcome.detail,
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
    }
    row.update(start=last.get("start"), end=protocol.wall(), seconds=round(seconds, 3))
    if state.get("failed_rank") is not None:
        row["failed_rank"] = state.pop("failed_rank")
    state["attempts"] = [*earlier(state), row]
    state["attempt"] = number(state) + 1
    state["rank"] = None
    state.pop("rank_status", None)
    state["detail"] = waiting_text(job, state)
    run_state.enter(state, QUEUED, seconds)


def waiting_text(job: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    """Return why a run that has started before is queued."""
    rows = earlier(state)
    end = str(rows[-1].get("detail") or "") if rows else ""
    return "%s follows in %g s%s" % (title(job, state), pause_s(state), "; attempt %d %s" % (
        number(state) - 1, end) if end else "")  # fmt: skip


def note_shutdown(job: Mapping[str, Any], state: Json) -> None:
    """Note that the supervisor was asked to end: the next attempt waits until the machine may have gone away."""
    earlier(state)[-1]["shutdown"] = True
    state["detail"] = waiting_text(job, state)


def title(job: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    """Return ``attempt 2 of 3``."""
    return "attempt %d of %d" % (number(state), allowed(job) + 1)


def begin_next_of_lost(job: Mapping[str, Any], state: Json, reason: str, seconds: Optional[float] = None) -> bool:
    """Prepare the next attempt of a run whose supervisor has ended; return whether there is one.

    Parameters
    ----------
    reason
        What happened, for its state.
    seconds
        Run time of the attempt; ``None`` for the time until now.
    """
    if state["state"] == QUEUED and number(state) > 1 and not job.get("nodes"):  # it waited for this attempt
        return number(state) <= allowed(job) + 1
    if state["state"] not in (QUEUED, PREPARING, RUNNING) or not left(job, state) or job.get("nodes"):
        return False
    if state.get("rank_status") == 0:  # the job has ended well
        return False
    if seconds is None:
        began = state["phases"][-1]["start"] if state["state"] == RUNNING and state["phases"] else protocol.wall()
        seconds = max(0.0, protocol.wall() - began)
    from .outcome import Outcome

    begin_next(job, state, Outcome(FAILED, LOST, reason, None, None), seconds)
    return True


def mark_logs(folder: str, text: str) -> None:
    """Write a line to every log of the run's processes; what follows is of the next attempt."""
    first = os.path.join(folder, LOG)
    names = [name for name in _listed(os.path.dirname(first)) if name.startswith("rank-") and name.endswith(".txt")]
    paths = [os.path.join(os.path.dirname(first), name) for name in names]
    if os.path.exists(os.path.join(folder, LAUNCHER_LOG)):
        paths.append(os.path.join(folder, LAUNCHER_LOG))
    for path in paths or [first]:
        _append_line(path, RESTART_PREFIX + text)


def clear_records(folder: str) -> None:
    """Remove the records of the processes of the last attempt."""
    shutil.rmtree(os.path.join(folder, RANKS), ignore_errors=True)


def _listed(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _append_line(path: str, line: str) -> None:
    """Append a line, also after one that the job has not finished."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0)  # a job may have made it a FIFO
    try:
        handle = os.open(path, flags, 0o600)
        try:
            size = os.fstat(handle).st_size
            torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
            os.write(handle, (("\n" if torn else "") + line + "\n").encode("utf-8", "replace"))
        finally:
            os.close(handle)
    except OSError:  # a full disk must not stop a job
        pass
