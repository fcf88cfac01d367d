"""Conversion of a job's row to the status of a run. No I/O.

A *row* is the plain dict into which the service process converts a response (:mod:`.job.history`)::

    {"name", "status", "created", "started", "ended" (unix seconds or None), "error", "code", "why",
     "nodes": {"AllocationState", "PreparingNodeCount", "RunningNodeCount", "CurrentNodeCount"},
     "attempt", "revision", "compute", "count", "archived", "display", "experiment",
     "limit" (seconds, if the row is from ARM),
     "links": [{"kind", "title", "url", "hint"}]}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from jupyter_amltrain.agent.supervise.outcome import SLICE
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
    """Return the status; ``None`` if the service does not know the state (``Unknown``).

    Parameters
    ----------
    agent
        ``state.json`` of the agent in the job, if it was fetched: details that only the agent knows.
    """
    word = str(row.get("status") or "")
    cancel_requested = word == "CancelRequested"
    state = _STATES.get(word)
    if cancel_requested:
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
        cancel_requested=cancel_requested or state is RunState.CANCELED,
        version=_int(row.get("revision")) or 0,
        truth={str(k): str(v) for k, v in truth.items()} if isinstance(truth, dict) else {},
        cause={str(k): str(v) for k, v in cause.items()} if isinstance(cause, dict) else {},
        nodes=max(1, _int(row.get("count")) or 1),
        # The service counts machines that it took away, the agent starts of the script on the last machine.
        attempt=max(1, _int(row.get("attempt")) or 1) + max(1, _int(agent.get("attempt")) or 1) - 1,
        links=links_of(row),
    )


def links_of(row: Mapping[str, Any]) -> tuple[RunLink, ...]:
    """Return the links of a run, as far as they are known."""
    return tuple(msgspec.convert(link, RunLink) for link in row.get("links") or ())


def _ending(
    state: RunState, row: Mapping[str, Any], agent: Mapping[str, Any]
) -> tuple[RunState, str | None, int | None, str]:
    text = _NO_WORDS.sub(" ", str(row.get("error") or "")).strip()  # whole: its end may name the input
    service_text = " ".join(str(row.get(key) or "") for key in ("code", "why", "error"))
    agent_reason = str(agent.get("reason") or "")
    if state is RunState.COMPLETED:
        return (
            (state, agent_reason, None, str(agent.get("detail"))) if agent_reason == SLICE else (state, "exit", 0, "")
        )
    code = _int(agent.get("exit_code"))
    if code is None and (found := _EXIT.search(text)):
        code = int(found[1])
    if agent_reason == "timeout" or _timed_out(row, service_text, code):
        return RunState.FAILED, "timeout", None if code == _TIMEOUT_EXIT_CODE else code, "stopped at its time limit"
    if state is RunState.CANCELED:
        return state, "canceled", None, _words(row.get("why"))
    if agent_reason in ("gpu-unused", "signal", "oom"):
        return state, agent_reason, code, str(agent.get("detail") or text)
    if _PREEMPTED.search(service_text):
        return (
            state,
            "preempted",
            None,
            "its low-priority machines were preempted, and Azure did not restart the job. Submit it again",
        )
    if _IMAGE.search(service_text) and not row.get("started"):
        return state, "environment", None, f"its environment could not be built: {_plain(text)}"
    if code is not None:
        return state, "exit", code, ""
    return state, "service", None, _plain(text) or "the service gives no reason"


def _timed_out(row: Mapping[str, Any], because: str, code: int | None) -> bool:
    """Return whether a run ended at its time limit, according to the service's answers.

    Every kernel must reach the same result, even without the run's files and whatever message the service has:
    so the duration counts too.
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
    """Return why a run is not running yet, one phrase."""
    attempt = _int(row.get("attempt")) or 1
    attempt_text = f" (attempt {attempt}: its machine was preempted)" if attempt > 1 else ""
    nodes = row.get("nodes") or {}
    if word in ("Queued", "NotStarted", "Starting", "Scheduled"):
        if attempt_text:
            return f"waits for a machine again{attempt_text}"
        allocation = str(nodes.get("AllocationState") or "").lower()
        preparing, current = _int(nodes.get("PreparingNodeCount")) or 0, _int(nodes.get("CurrentNodeCount")) or 0
        busy = _int(nodes.get("RunningNodeCount")) or 0
        if allocation == "resizing" or preparing:
            return f"waits for {'machines' if max(preparing, 1) > 1 else 'a machine'} to start"
        if busy:
            return f"waits for a machine: {busy} of {max(current, busy)} busy"
        return _words(row.get("why")) or ("waits for a machine" if word == "Queued" else "")
    if word in ("Provisioning", "Preparing"):
        return f"preparing the environment and the machine{attempt_text}"
    if word == "NotResponding":
        return "its machine does not respond at the moment"
    if word == "Paused":
        return "paused at the service"
    return attempt_text.strip(" ()")


def _phases(row: Mapping[str, Any], state: RunState) -> tuple[Phase, ...]:
    created, started, ended = (_float(row.get(key)) for key in ("created", "started", "ended"))
    if created is None:
        return ()
    end = ended if state.terminal else None
    if started is None:
        return (Phase(name="queued", start=created, end=end, seconds=_length(created, end)),)
    began = max(created, started)
    phases = [Phase(name="queued", start=created, end=began, seconds=_length(created, began))]
    phases.append(Phase(name="running", start=began, end=end, seconds=_length(began, end)))
    return tuple(phases)


def _length(start: float, end: float | None) -> float | None:
    return None if end is None else max(0.0, end - start)


def _words(value: Any) -> str:
    return _NO_WORDS.sub(" ", str(value or "")).strip()[:_MAX_REASON]


def _plain(text: str) -> str:
    """Return the service's message without references to the studio."""
    if (match := _DATA.search(text)) is not None:
        location = match["place"].rpartition("/workspaces/")[2].partition("/")[2] or match["place"]
        return f"an input cannot be read: {match['why'].strip(' .')} ({location.strip()}). Check --input"
    text = re.sub(r"(?:Please check|For more|See https?:|Marking the experiment).*", "", text)
    return text.strip(" .:")[:_MAX_REASON]


def _int(value: Any) -> int | None:
    try:
        return None if value is None or isinstance(value, bool) else int(value)
    except (TypeError, ValueError):
        return None


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
