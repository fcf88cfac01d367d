"""Files of a run folder that are not as we write them: found in one place, said in one sentence."""

from __future__ import annotations

import math
import os
from typing import Any, Callable, Dict, Mapping, Optional

from .processes import marked, table
from .protocol import (
    CANCELED,
    COMPLETED,
    FAILED,
    FINALIZING,
    JOB,
    LOST,
    QUEUED,
    RUNNING,
    STATE,
    TERMINAL,
    AgentError,
    read_json,
    run_folder,
)

Json = Dict[str, Any]
_STATES = frozenset({QUEUED, RUNNING, FINALIZING, COMPLETED, FAILED, CANCELED, LOST})
#: Whole numbers that every reader of JSON takes, and unix seconds up to the year 5138.
_MAX_INT, _MAX_TIME = 2**53, 1e11


class DamagedRun(AgentError):
    """A run whose folder is there and cannot be understood.

    Parameters
    ----------
    run
        The run's id.
    what
        The file, and what is wrong with it.
    """

    def __init__(self, run: str, what: str) -> None:
        text = "Run %r is damaged: %s. Remove it with: %%aml_runs delete --force %s"
        super().__init__("DamagedRun", text % (run, what, run))


def read_state(home: str, run: str) -> Optional[Json]:
    """``state.json`` of a run with every field that we rely on; ``None`` when there is no such run.

    Raises
    ------
    AgentError
        ``DamagedRun``, or ``StateError`` when a newer version wrote it.
    """
    state = _load(home, run, STATE)
    if state is None:
        return None
    _check(run, STATE, state, _STATE)
    if state["state"] not in TERMINAL:  # without these nobody could say when it has ended
        _check(run, STATE, state, _LIVE)
    for name, default in _DEFAULTS.items():
        if state.get(name) is None:
            state[name] = [] if name == "phases" else default
    return state


def read_job(home: str, run: str) -> Optional[Json]:
    """``job.json`` of a run; as `read_state`."""
    job = _load(home, run, JOB)
    if job is not None:
        _check(run, JOB, job, _JOB)
    return job


def processes_of(run: str) -> Dict[int, Any]:
    """Live processes of a run on this machine, by the mark in their environment."""
    rows = table()
    return {pid: rows[pid] for pid in marked(run + ":", rows, whole=False) if rows[pid].state not in "ZX"}


def _load(home: str, run: str, name: str) -> Optional[Json]:
    path = os.path.join(run_folder(home, run), name)
    try:
        value = read_json(path)
        if value is not None:
            return value
        folder = os.path.dirname(path)
        if not os.path.isdir(folder) or not any(os.path.lexists(os.path.join(folder, one)) for one in (JOB, STATE)):
            return None  # what a removal or a late helper has left is no run
        why = "is not a JSON object" if os.path.lexists(path) else "is missing"
    except OSError as error:
        why = "cannot be read (%s)" % (error.strerror or error)
    raise DamagedRun(run, "%s %s" % (path, why))


def _check(run: str, file: str, value: Mapping[str, Any], fields: Mapping[str, Callable[[Any], bool]]) -> None:
    for name, right in fields.items():
        try:
            good = right(value.get(name))
        except (TypeError, ValueError, OverflowError):
            good = False
        if not good:
            raise DamagedRun(run, "%s has a wrong or missing field %r" % (file, name))


# ---- what a field may be; absent is ``None``


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _maybe_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _maybe_whole(value: Any) -> bool:
    return value is None or (isinstance(value, int) and abs(value) < _MAX_INT)


def _time(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and abs(value) < _MAX_TIME


def _maybe_time(value: Any) -> bool:
    return value is None or _time(value)


def _maybe_dict(value: Any) -> bool:
    return value is None or isinstance(value, dict)


def _maybe_texts(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(item, str) for item in value))


def _maybe_process(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and isinstance(value.get("pid"), int) and 0 < value["pid"] < 2**31)


def _maybe_phases(value: Any) -> bool:
    return value is None or (
        isinstance(value, list)
        and all(
            isinstance(phase, dict)
            and _text(phase.get("name"))
            and _time(phase.get("start"))
            and _maybe_time(phase.get("end"))
            and _maybe_time(phase.get("seconds"))
            and "end" in phase
            for phase in value
        )
    )


_STATE: Dict[str, Callable[[Any], bool]] = {
    "state": lambda value: value in _STATES,
    "detail": _maybe_text,
    "reason": _maybe_text,
    "exit_code": _maybe_whole,
    "signal": _maybe_whole,
    "phases": _maybe_phases,
    "devices": _maybe_texts,
    "node": _maybe_text,
    "boot": _maybe_text,
    "mark": _maybe_text,
    "guardian": _maybe_process,
    "supervisor": _maybe_process,
    "rank": _maybe_process,
    "changed": _maybe_time,
    "version": _maybe_whole,
    "queue": _maybe_text,
    "truth": _maybe_dict,
    "cause": _maybe_dict,
    "nodes": lambda value: value is None or (isinstance(value, int) and 0 <= value < 100_000),
}
_LIVE: Dict[str, Callable[[Any], bool]] = {
    "phases": lambda value: bool(value),
    "node": _text,
    "boot": _text,
    "mark": _text,
    "changed": _time,
    "version": lambda value: value is not None,
}
_DEFAULTS: Json = {"phases": [], "node": None, "boot": None, "mark": "", "changed": 0.0, "version": 0}

_JOB: Dict[str, Callable[[Any], bool]] = {
    "run": _text,
    "name": _maybe_text,
    "submitted": _maybe_time,
    "experiment": _maybe_text,
    "project": _maybe_text,
    "spec": _maybe_dict,
    "tracking": _maybe_dict,
}
