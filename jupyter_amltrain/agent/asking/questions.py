"""Asks the processes of a run: where they are, what an expression is in there, or to run a statement.

The processes answer by ``asked_hook.py``. A process that does not, because a native function keeps its interpreter's
lock, may still write its main thread's stack (``distributed/stall.py``). Statements are kept in ``pokes.jsonl``.
"""

from __future__ import annotations

import getpass
import json
import os
import time
from typing import Any, Dict, List, Mapping

from ..processes import process_table
from ..protocol import ASKS, LINES, POKES, AgentError, wall
from .asked_hook import QUESTION

Json = Dict[str, Any]

KINDS = ("stack", "peek", "poke")
#: Seconds in which all processes say where they are, and in which the main thread begins with an expression.
_STACK_S, _BEGIN_S = 3.0, 5.0
#: Seconds that an expression and a statement may take.
_LIMITS = {"stack": 0.0, "peek": 1.0, "poke": 10.0}
_LOOK_S, _TOUCH_S = 0.02, 0.1
_MAX_ANSWER_BYTES, _MAX_TEXT = 1 << 20, 20000


def ask(folder: str, payload: Mapping[str, Any], script: str) -> Json:
    """Ask a run that is running; return ``answers``, and ``silent``: pids of processes that did not answer.

    Parameters
    ----------
    folder
        The run folder.
    payload
        ``kind``, ``text``, ``rank`` and ``who`` asks.
    script
        File name of the script that the process runs; empty if that is not known.

    Raises
    ------
    AgentError
        The question is not valid, or the run takes none.
    """
    kind, text, rank = payload.get("kind"), payload.get("text", ""), payload.get("rank", 0)
    if kind not in KINDS or not isinstance(text, str) or len(text) > _MAX_TEXT or not isinstance(rank, int):
        raise AgentError("CommandError", "Not a question that a run answers.")
    asks = os.path.join(folder, ASKS)
    if not os.path.isdir(asks):
        raise AgentError("CommandError", "This run does not answer: that needs --lines at the submit, and no --sealed.")
    number = "%d-%d" % (time.time_ns(), os.getpid())
    begin = _STACK_S if kind == "stack" else _BEGIN_S
    question = {"kind": kind, "text": text, "rank": rank, "script": script, "limit": _LIMITS[kind]}
    question["until"] = time.monotonic() + begin
    path = os.path.join(asks, number + QUESTION)
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(question, file)
    os.replace(path + ".part", path)
    expected = _listening(folder)
    try:
        answers = _answers(asks, number, kind, expected, begin + _LIMITS[kind] + 0.5)
    finally:
        _remove(asks, number)
    if kind == "poke":
        _note(folder, payload, answers)
    silent = sorted(set(expected) - {one.get("pid") for one in answers}) if kind == "stack" else []
    return {"answers": answers, "silent": [{"pid": pid, "rank": expected[pid]} for pid in silent]}


def _listening(folder: str) -> Dict[int, int]:
    """Return rank by pid of the processes whose lines are sampled."""
    rows, found = process_table(), {}
    try:
        names = os.listdir(os.path.join(folder, LINES))
    except OSError:
        names = []
    for name in names:
        rank, _, pid = name.partition(".")[0].partition("-")
        if rank.isdigit() and pid.isdigit() and int(pid) in rows:
            found[int(pid)] = int(rank)
    return found


def _answers(asks: str, number: str, kind: str, expected: Mapping[int, int], seconds: float) -> List[Json]:
    """Wait for the answers of all processes, or for the first one where only one answers."""
    found: Dict[str, Json] = {}
    end = touched = time.monotonic()
    end += seconds
    while time.monotonic() < end:
        for name in os.listdir(asks):
            if name.startswith(number + ".") and name.endswith(".answer") and name not in found:
                found[name] = _read(os.path.join(asks, name))
        pids = {one.get("pid") for one in found.values()}
        if found and (kind != "stack" or pids >= set(expected)):
            break
        if time.monotonic() > touched + _TOUCH_S:  # two changes in one tick of the clock look like one
            touched = time.monotonic()
            os.utime(asks)
        time.sleep(_LOOK_S)
    return sorted(found.values(), key=lambda one: (one.get("rank", 0), bool(one.get("name")), one.get("pid", 0)))


def _read(path: str) -> Json:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            answer = json.loads(file.read(_MAX_ANSWER_BYTES))
    except (OSError, ValueError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _remove(asks: str, number: str) -> None:
    for name in os.listdir(asks):
        if name.startswith(number + "."):
            try:
                os.remove(os.path.join(asks, name))
            except OSError:
                pass


def _note(folder: str, payload: Mapping[str, Any], answers: List[Json]) -> None:
    """Keep what was run in the job: who, when, what, and its error."""
    error = answers[0].get("error", "") if answers else "no answer"
    row = {
        "time": wall(),
        "who": "%s, %s" % (getpass.getuser(), payload.get("who", "")),
        "rank": payload.get("rank", 0),
    }
    row.update(text=payload.get("text", ""), error=error)
    with open(os.path.join(folder, POKES), "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
