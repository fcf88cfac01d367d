"""Passes the lines of who debugs a run to its stopped processes (``debug_hook.py``), and their answers back."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Dict, List, Mapping, Optional

from ..asking.asked_run import AskedRun
from ..file_waits import wait_for
from ..protocol import AgentError
from .debug_hook import ANSWER, COMMAND, FOLDER, STOP

Json = Dict[str, Any]

#: Seconds that one call waits for a process.
_WAIT_S = 4.0
_MAX_BYTES, _MAX_LINE = 1 << 20, 20000


def talk(run: AskedRun, question: Mapping[str, Any]) -> Json:
    """Send a line to a stopped process, or wait for one; return ``state``, ``text``, and where it is.

    Parameters
    ----------
    question
        ``text``: the line; ``None`` asks only for a process that is stopped. ``rank``: number of the process. ``pid``
        and ``number`` of an earlier answer ``waiting`` wait on for it.

    Returns
    -------
    dict
        ``state``: ``stopped`` (it waits for a line), ``going`` (it runs on), ``waiting`` (not yet stopped again), or
        ``ended``.

    Raises
    ------
    AgentError
        The line is not valid, the run has no debugger, or its files cannot be written.
    """
    text, rank = question.get("text"), question.get("rank", 0)
    place = os.path.join(run.folder, FOLDER)
    pid, number = question.get("pid"), question.get("number")
    if not os.path.isdir(place):
        if not run.spec.get("debug"):
            raise AgentError("CommandError", "This run has no debugger: that needs --debug at the submit.")
        if pid is not None or text is not None:
            raise _lost("%s is gone" % place)
        if not wait_for(lambda: os.path.isdir(place), _WAIT_S):  # its process has not begun
            return {"state": "going", "text": ""}
    if text is not None and (not isinstance(text, str) or len(text) > _MAX_LINE or "\n" in text):
        raise AgentError("CommandError", "Not a line for the debugger.")
    if isinstance(pid, int) and isinstance(number, int):
        return _answer(place, pid, number)
    stop = wait_for(lambda: _stop(place, rank), 0.0 if text is not None else _WAIT_S)
    if stop is None:
        return {"state": "going", "text": ""}
    if text is None:
        return {"state": "stopped", **stop}
    try:
        number = _send(place, int(stop["pid"]), text)
    except OSError as error:
        text = "The line does not reach the run: %s: %s." % (place, error.strerror or error)
        raise AgentError("CommandError", text, "debug.files") from error
    return _answer(place, int(stop["pid"]), number)


def _stop(place: str, rank: Any) -> Optional[Json]:
    """Return where a process of a rank is stopped, the first one that has."""
    stops = [_read(os.path.join(place, name)) for name in os.listdir(place) if name.endswith(STOP)]
    found: List[Json] = [stop for stop in stops if stop.get("rank") == rank and isinstance(stop.get("pid"), int)]
    return min(found, key=lambda stop: int(stop["pid"])) if found else None


def _send(place: str, pid: int, text: str) -> int:
    number = time.time_ns()
    path = os.path.join(place, str(pid) + COMMAND)
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump({"number": number, "text": text}, file)
    os.replace(path + ".part", path)
    return number


def _answer(place: str, pid: int, number: int) -> Json:
    path = os.path.join(place, "%d.%d%s" % (pid, number, ANSWER))
    if not wait_for(lambda: os.path.exists(path) or not os.path.isdir(place), _WAIT_S):
        return {"state": "waiting", "text": "", "pid": pid, "number": number}
    answer = _read(path)
    if "state" not in answer:
        raise _lost("%s is gone, or its disk is full" % place)
    os.remove(path)
    stop = _read(os.path.join(place, str(pid) + STOP)) if answer["state"] == "stopped" else {}
    return {**stop, **answer}


def _lost(reason: str) -> AgentError:
    return AgentError("CommandError", "The debugger is lost: %s. The run goes on without it." % reason, "debug.files")


def _read(path: str) -> Json:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            value = json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
