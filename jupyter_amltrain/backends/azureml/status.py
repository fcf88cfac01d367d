"""The status of a run, from a row of its job. No I/O.

A *row* is the plain dict that the service process makes of an answer (:mod:`.job.history`)::

    {"name", "status", "created", "started", "ended" (unix seconds or None), "error", "code", "why",
     "nodes": {"AllocationState", "PreparingNodeCount", "RunningNodeCount", "CurrentNodeCount"},
     "attempt", "revision", "compute", "count", "archived", "display", "experiment",
     "limit" (seconds, where ARM was asked),
     "doors": [{"kind", "title", "url", "hint"}]}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from jupyter_amltrain.schema.run import Phase, RunLink, RunState, RunStatus

_STATES = {
    "NotStarted": RunState.QUEUED,
    "Unapproved": RunState.QUEUED,
    "Starting": RunState.QUEUED,
    "Provisioning": RunState.PREPARING,
    "Preparing": RunState.PREPARING,
    "Queued": RunState.QUEUED,
    "Scheduled": RunState.QUEUED,
    "Paused": RunState.QUEUED,
    "Running": RunState.RUNNING,
    "NotResponding": RunState.RUNNING,
    "Finalizing": RunState.FINALIZING,
    "Completed": RunState.COMPLETED,
    "Finished": RunState.COMPLETED,
    "Failed": RunState.FAILED,
    "Canceled": RunState.CANCELED,
}
#: "... User process 'python' exited with status code 1. ..."
#: Recorded: job 02 of the recordings, whose input's address was wrong.
_DATA = re.compile(
    r"ScriptExecution\.StreamAccess\..*?Error Message: (?P<why>.*?)"
    r"Please make sure the request uri is correct:(?P<place>.*)",
    re.S,
)
_EXIT = re.compile(r"exit(?:ed)?(?: with)?(?: status| exit)?(?: code)?:? (-?\d{1,10})\b", re.I)
_TIMEOUT = re.compile(
    r"time[d]?[ -]?out|time limit|exceeded .{0,60}(?:time|duration)|max(?:imum)? (?:run|duration)", re.I
)
#: "PreemptionError: Nodes of this job got pre-empted. Check if the run has failed or restarted" (pasted by users).
_PREEMPTED = re.compile(r"PreemptionError|\bpre-?empted\b", re.I)
_IMAGE = re.compile(r"image ?build|environment ?build|failed to build|docker ?build|materializ", re.I)
#: Exit code of our agent for a run that it stopped at its limit, as timeout(1) has it.
_TIMEOUT_EXIT_CODE = 124
_NO_WORDS = re.compile(r"\s+")
_MAX_REASON = 400


def status_of(row: Mapping[str, Any], agent: Mapping[str, Any] | None = None) -> RunStatus | None:
    """The status; ``None`` where the service does not know itself (``Unknown``).

    Parameters
    ----------
    agent
        ``state.json`` of the agent in the job, where it came home: what only it knows.
    """
    word = str(row.get("status") or "")
    asked = word == "CancelRequested"
    state = _STATES.get(word)
    if asked:
        state = RunState.RUNNING if row.get("started") else RunState.QUEUED
    if state is None:
        return None
    agent = agent or {}
    reason, exit_code, detail = None, None, _waiting(word, row)
    if state.terminal:
        state, reason, exit_code, detail = _ending(state, row, agent)
    truth, cause = agent.get("truth"), agent.get("cause")
    return RunStatus(
        state=state,
        detail=detail,
        reason=reason,
        exit_code=exit_code,
        signal=_int(agent.get("signal")) if state.terminal else None,
        phases=_phases(row, state),
        devices=tuple(str(device) for device in agent.get("devices") or ()),
        cancel_requested=asked or state is RunState.CANCELED,
        version=_int(row.get("revision")) or 0,
        truth={str(k): str(v) for k, v in truth.items()} if isinstance(truth, dict) else {},
        cause={str(k): str(v) for k, v in cause.items()} if isinstance(cause, dict) else {},
        nodes=max(1, _int(row.get("count")) or 1),
        doors=doors_of(row),
    )


def doors_of(row: Mapping[str, Any]) -> tuple[RunLink, ...]:
    """Its doors, as far as they are known."""
    return tuple(msgspec.convert(door, RunLink) for door in row.get("doors") or ())


def _ending(
    state: RunState, row: Mapping[str, Any], agent: Mapping[str, Any]
) -> tuple[RunState, str | None, int | None, str]:
    text = _NO_WORDS.sub(" ", str(row.get("error") or "")).strip()  # whole: its end may name the input
    because = " ".join(str(row.get(key) or "") for key in ("code", "why", "error"))
    if state is RunState.COMPLETED:
        return state, "exit", 0, ""
    own = str(agent.get("reason") or "")
    code = _int(agent.get("exit_code"))
    if code is None and (found := _EXIT.search(text)):
        code = int(found[1])
    if own == "timeout" or _timed_out(row, because, code):
        return RunState.FAILED, "timeout", None if code == _TIMEOUT_EXIT_CODE else code, "stopped at its time limit"
    if state is RunState.CANCELED:
        return state, "canceled", None, _words(row.get("why"))
    if own in ("gpu-unused", "signal", "oom"):
        return state, own, code, str(agent.get("detail") or text)
    if _PREEMPTED.search(because):
        return (
            state,
            "preempted",
            None,
            "its low-priority machines were preempted, and Azure did not restart it. Submit it again",
        )
    if _IMAGE.search(because) and not row.get("started"):
        return state, "environment", None, f"its environment could not be built: {_plain(text)}"
    if code is not None:
        return state, "exit", code, ""
    return state, "service", None, _plain(text) or "the service gives no reason"


def _timed_out(row: Mapping[str, Any], because: str, code: int | None) -> bool:
    """Return whether a run ended at its time limit, as far as the service's answers show it.

    Every kernel has to come to the same end, also one that has none of the run's files and whatever words the
    service has for it: so the time counts too.
    """
    limit = _float(row.get("limit"))
    if code is not None:
        return code == _TIMEOUT_EXIT_CODE and limit is not None
    if _TIMEOUT.search(because):
        return True
    started, ended = _float(row.get("started")), _float(row.get("ended"))
    # Times of ARM are whole seconds.
    return None not in (limit, started, ended) and ended - started >= limit - 1.0  # type: ignore[operator]


def _waiting(word: str, row: Mapping[str, Any]) -> str:
    """Why it does not run yet, one phrase."""
    attempt = _int(row.get("attempt")) or 1
    again = f" (attempt {attempt}: its machine was taken away)" if attempt > 1 else ""
    nodes = row.get("nodes") or {}
    if word in ("Queued", "NotStarted", "Starting", "Scheduled"):
        if again:
            return f"waits for a machine again{again}"
        allocation = str(nodes.get("AllocationState") or "").lower()
        preparing, current = _int(nodes.get("PreparingNodeCount")) or 0, _int(nodes.get("CurrentNodeCount")) or 0
        busy = _int(nodes.get("RunningNodeCount")) or 0
        if allocation == "resizing" or preparing:
            return f"waits for {'machines' if max(preparing, 1) > 1 else 'a machine'} to start"
        if busy:
            return f"waits for a machine: {busy} of {max(current, busy)} busy"
        return _words(row.get("why")) or ("waits for a machine" if word == "Queued" else "")
    if word in ("Provisioning", "Preparing"):
        return f"the environment and the machine are prepared{again}"
    if word == "NotResponding":
        return "its machine does not respond at the moment"
    if word == "Paused":
        return "paused at the service"
    return again.strip(" ()")


def _phases(row: Mapping[str, Any], state: RunState) -> tuple[Phase, ...]:
    created, started, ended = (_float(row.get(key)) for key in ("created", "started", "ended"))
    if created is None:
        return ()
    over = ended if state.terminal else None
    if started is None:
        return (Phase(name="queued", start=created, end=over, seconds=_length(created, over)),)
    began = max(created, started)
    phases = [Phase(name="queued", start=created, end=began, seconds=_length(created, began))]
    phases.append(Phase(name="running", start=began, end=over, seconds=_length(began, over)))
    return tuple(phases)


def _length(start: float, end: float | None) -> float | None:
    return None if end is None else max(0.0, end - start)


def _words(value: Any) -> str:
    return _NO_WORDS.sub(" ", str(value or "")).strip()[:_MAX_REASON]


def _plain(text: str) -> str:
    """Without what only the studio knows."""
    if (found := _DATA.search(text)) is not None:
        place = found["place"].rpartition("/workspaces/")[2].partition("/")[2] or found["place"]
        return f"an input cannot be read: {found['why'].strip(' .')} ({place.strip()}). Check --input"
    text = re.sub(r"(?:Please check|For more|See https?:|Marking the experiment).*", "", text)
    return text.strip(" .:")[:_MAX_REASON]


def _int(value: Any) -> int | None:
    try:
        return None if value is None or isinstance(value, bool) else int(value)
    except (TypeError, ValueError):
        return None


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
