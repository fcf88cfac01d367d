"""Validation of the files of a run folder; a file that is not as the agent writes it raises `DamagedRun`."""

from __future__ import annotations

import math
import os
from typing import Any, Callable, Dict, Mapping, Optional

from .processes import pids_with_mark, process_table
from .protocol import (
    CANCELED,
    COMPLETED,
    FAILED,
    FINALIZING,
    JOB,
    LOST,
    PREPARING,
    QUEUED,
    RUNNING,
    STATE,
    TERMINAL,
    AgentError,
    read_json,
    run_folder,
)

Json = Dict[str, Any]
_STATES = frozenset({QUEUED, PREPARING, RUNNING, FINALIZING, COMPLETED, FAILED, CANCELED, LOST})
#: Largest integer that every JSON reader supports; unix seconds up to the year 5138.
_MAX_INT, _MAX_TIME = 2**53, 1e11


class DamagedFolder(AgentError):
    """A run whose folder exists but has missing or invalid files.

    Parameters
    ----------
    run
        The run's id.
    problem
        The file and the problem with it.
    """

    def __init__(self, run: str, problem: str) -> None:
        text = "Run %r is damaged: %s. Remove it with: %%aml_runs delete --force %s"
        super().__init__("DamagedRun", text % (run, problem, run))


def read_state(home: str, run: str) -> Optional[Json]:
    """Return ``state.json`` of a run with all required fields checked; ``None`` when there is no such run.

    Raises
    ------
    AgentError
        ``DamagedRun``, or ``StateError`` when a newer version wrote it.
    """
    state = _load(home, run, STATE)
    if state is None:
        return None
    _check(run, STATE, state, _STATE)
    if state["state"] not in TERMINAL:  # without these fields the end of the run cannot be detected
        _check(run, STATE, state, _LIVE)
    for name, default in _DEFAULTS.items():
        if state.get(name) is None:
            state[name] = [] if name == "phases" else default
    return state


def read_job(home: str, run: str) -> Optional[Json]:
    """Return ``job.json`` of a run, like `read_state`."""
    job = _load(home, run, JOB)
    if job is not None:
        _check(run, JOB, job, _JOB)
    return job


def processes_of(run: str) -> Dict[int, Any]:
    """Return live processes of a run on this machine, found by the mark in their environment."""
    rows = process_table()
    return {pid: rows[pid] for pid in pids_with_mark(run + ":", rows, whole=False) if rows[pid].state not in "ZX"}


def _load(home: str, run: str, name: str) -> Optional[Json]:
    path = os.path.join(run_folder(home, run), name)
    try:
        value = read_json(path)
        if value is not None:
            return value
        folder = os.path.dirname(path)
        if not os.path.isdir(folder) or not any(os.path.lexists(os.path.join(folder, one)) for one in (JOB, STATE)):
            return None  # left over by a removal or a late helper: not a run
        problem = "is not a JSON object" if os.path.lexists(path) else "is missing"
    except OSError as error:
        problem = "cannot be read (%s)" % (error.strerror or error)
    raise DamagedFolder(run, "%s %s" % (path, problem))


def _check(run: str, file: str, value: Mapping[str, Any], fields: Mapping[str, Callable[[Any], bool]]) -> None:
    for name, is_valid in fields.items():
        try:
            valid = is_valid(value.get(name))
        except (TypeError, ValueError, OverflowError):
            valid = False
        if not valid:
            raise DamagedFolder(run, "%s has a wrong or missing field %r" % (file, name))


# ---- validators of fields; an absent field is ``None``


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _optional_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _optional_int(value: Any) -> bool:
    return value is None or (isinstance(value, int) and abs(value) < _MAX_INT)


def _time(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and abs(value) < _MAX_TIME


def _optional_time(value: Any) -> bool:
    return value is None or _time(value)


def _optional_dict(value: Any) -> bool:
    return value is None or isinstance(value, dict)


def _optional_texts(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(item, str) for item in value))


def _optional_process(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and isinstance(value.get("pid"), int) and 0 < value["pid"] < 2**31)


def _optional_phases(value: Any) -> bool:
    return value is None or (
        isinstance(value, list)
        and all(
            isinstance(phase, dict)
            and _text(phase.get("name"))
            and _time(phase.get("start"))
            and _optional_time(phase.get("end"))
            and _optional_time(phase.get("seconds"))
            and "end" in phase
            for phase in value
        )
    )


_STATE: Dict[str, Callable[[Any], bool]] = {
    "state": lambda value: value in _STATES,
    "detail": _optional_text,
    "reason": _optional_text,
    "exit_code": _optional_int,
    "signal": _optional_int,
    "phases": _optional_phases,
    "devices": _optional_texts,
    "node": _optional_text,
    "boot": _optional_text,
    "mark": _optional_text,
    "guardian": _optional_process,
    "supervisor": _optional_process,
    "rank": _optional_process,
    "changed": _optional_time,
    "version": _optional_int,
    "queue": _optional_text,
    "experiment": _optional_text,
    "truth": _optional_dict,
    "cause": _optional_dict,
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
    "name": _optional_text,
    "submitted": _optional_time,
    "experiment": _optional_text,
    "project": _optional_text,
    "spec": _optional_dict,
    "tracking": _optional_dict,
}
