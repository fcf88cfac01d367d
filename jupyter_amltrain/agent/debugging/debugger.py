"""Passes the lines of who debugs a run to its stopped processes (``debug_hook.py``), and their answers back."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Dict, List, Mapping, Optional

from ..protocol import AgentError
from .debug_hook import ANSWER, COMMAND, FOLDER, STOP

Json = Dict[str, Any]

#: Seconds that one call waits for a process.
_WAIT_S = 4.0
_LOOK_S, _START_S = 0.02, 0.2
_MAX_BYTES, _MAX_LINE = 1 << 20, 20000


def talk(folder: str, payload: Mapping[str, Any], is_wanted: bool) -> Json:
    """Send a line to a stopped process, or wait for one; return ``state``, ``text``, and where it is.

    Parameters
    ----------
    folder
        The run folder.
    payload
        ``text``: the line; ``None`` asks only for a process that is stopped. ``rank``: number of the process. ``pid``
        and ``number`` of an earlier answer ``waiting`` wait on for it.
    is_wanted
        Whether the run was submitted with a debugger; its process may not have begun.

    Returns
    -------
    dict
        ``state``: ``stopped`` (it waits for a line), ``going`` (it runs on), ``waiting`` (not yet stopped again), or
        ``ended``.

    Raises
    ------
    AgentError
        The line is not valid, or the run has no debugger.
    """
    text, rank = payload.get("text"), payload.get("rank", 0)
    place = os.path.join(folder, FOLDER)
    if is_wanted and not os.path.isdir(place):
        time.sleep(_START_S)
        return {"state": "going", "text": ""}
    if not os.path.isdir(place):
        raise AgentError("CommandError", "This run has no debugger: that needs --debug at the submit.")
    if text is not None and (not isinstance(text, str) or len(text) > _MAX_LINE or "\n" in text):
        raise AgentError("CommandError", "Not a line for the debugger.")
    pid, number = payload.get("pid"), payload.get("number")
    if isinstance(pid, int) and isinstance(number, int):
        return _answer(place, pid, number)
    stop = _stop(place, rank, 0.0 if text is not None else _WAIT_S)
    if stop is None:
        return {"state": "going", "text": ""}
    if text is None:
        return {"state": "stopped", **stop}
    return _answer(place, int(stop["pid"]), _send(place, int(stop["pid"]), text))


def _stop(place: str, rank: Any, seconds: float) -> Optional[Json]:
    """Return where a process of a rank is stopped, the first one that has."""
    end = time.monotonic() + seconds
    while True:
        stops = [_read(os.path.join(place, name)) for name in os.listdir(place) if name.endswith(STOP)]
        found: List[Json] = [stop for stop in stops if stop.get("rank") == rank and isinstance(stop.get("pid"), int)]
        if found:
            return min(found, key=lambda stop: int(stop["pid"]))
        if time.monotonic() >= end:
            return None
        time.sleep(_LOOK_S)


def _send(place: str, pid: int, text: str) -> int:
    number = time.time_ns()
    path = os.path.join(place, str(pid) + COMMAND)
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump({"number": number, "text": text}, file)
    os.replace(path + ".part", path)
    return number


def _answer(place: str, pid: int, number: int) -> Json:
    path = os.path.join(place, "%d.%d%s" % (pid, number, ANSWER))
    end = time.monotonic() + _WAIT_S
    while not os.path.exists(path):
        if time.monotonic() > end:
            return {"state": "waiting", "text": "", "pid": pid, "number": number}
        time.sleep(_LOOK_S)
    answer = _read(path)
    os.remove(path)
    stop = _read(os.path.join(place, str(pid) + STOP)) if answer.get("state") == "stopped" else {}
    return {**stop, "state": "ended", **answer}


def _read(path: str) -> Json:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            value = json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
