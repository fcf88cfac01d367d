"""Asks the processes of a run: where they are, what an expression is in there, or to run a statement.

The processes answer by ``asked_hook.py``, when they get its signal. The main process of a rank that does not, because
it is in a native function, still writes its main thread's stack (``distributed/stall.py``). Statements are kept in
``pokes.jsonl``.
"""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any, Dict, List, Mapping

from ..distributed import stall
from ..distributed.own_rank import rank_of
from ..processes import LINUX
from ..protocol import ASKS, AgentError
from . import pokes
from .asked_hook import QUESTION, SIGNAL, keep
from .asked_run import AskedRun, Json

#: Seconds in which all processes say where they are, and in which the main thread begins with an expression.
_STACK_S, _BEGIN_S = 3.0, 5.0
#: Seconds that an expression and a statement may take.
_LIMITS = {"stack": 0.0, "peek": 1.0, "poke": 10.0}
_LOOK_S, _SIGNAL_S = 0.02, 1.0
#: Seconds after which the files of a question are those of a kernel that was killed.
_LEFT_S = 120.0
#: Seconds after which the processes that have not answered are in a native function.
_NATIVE_S = 1.5
_MAX_ANSWER_BYTES, _MAX_TEXT = 1 << 20, 20000


def ask(run: AskedRun, payload: Mapping[str, Any]) -> Json:
    """Ask a run that is running; return ``answers``, and ``silent``: pids of processes that did not answer.

    Parameters
    ----------
    payload
        ``kind``, ``text``, ``rank`` and ``who`` asks.

    Raises
    ------
    AgentError
        The question is not valid.
    """
    kind, text, rank = str(payload.get("kind")), payload.get("text", ""), payload.get("rank", 0)
    if not isinstance(text, str) or len(text) > _MAX_TEXT or not isinstance(rank, int):
        raise AgentError("CommandError", "Not a question that a run answers.")
    asks = os.path.join(run.folder, ASKS)
    number = "%d-%d" % (time.time_ns(), os.getpid())
    begin = _STACK_S if kind == "stack" else _BEGIN_S
    content: Json = {"kind": kind, "text": text, "rank": rank, "limit": _LIMITS[kind]}
    content["script"] = str(run.spec.get("script_name") or "")
    content["until"] = time.monotonic() + begin
    if kind == "poke":
        content["record"] = pokes.record_of(run.folder, payload)
    _sweep(asks)
    path = os.path.join(asks, number + QUESTION)
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(content, file)
    os.replace(path + ".part", path)
    question = _Question(run, number, kind == "stack")
    try:
        answers = question.answers(begin + _LIMITS[kind] + 0.5)
    finally:
        _remove(asks, number)
    if kind == "poke" and not answers:
        keep(content["record"], rank, text, "no answer")
    silent = question.silent() if kind == "stack" else {}
    return {"answers": answers, "silent": [{"pid": pid, "rank": silent[pid]} for pid in sorted(silent)]}


class _Question:
    """A question to the processes of a run.

    Parameters
    ----------
    for_all
        Whether each process answers it, not only the main one of a rank.
    """

    def __init__(self, run: AskedRun, number: str, for_all: bool) -> None:
        self._folder, self._asks, self._members = run.folder, os.path.join(run.folder, ASKS), run.members
        self._number, self._for_all = number, for_all
        self._found: Dict[str, Json] = {}
        self._expected: Dict[int, int] = {}

    def answers(self, seconds: float) -> List[Json]:
        """Wait for the answers of all processes, or for the first one where only one answers."""
        now = time.monotonic()
        end, signal_at, request_at, read_at = now + seconds, now, now + _NATIVE_S, float("inf")
        while now < end:
            if now >= signal_at:
                signal_at = now + _SIGNAL_S
                self._signal()
            self._collect()
            missing = self.silent()
            if self._found and not (self._for_all and missing):
                break
            if self._for_all and now >= request_at and missing:
                request_at, read_at = float("inf"), now + stall.ANSWER_S
                stall.request(self._folder)
            if now >= read_at:
                read_at = float("inf")
                self._found.update(_native(self._folder, missing))
                continue
            time.sleep(_LOOK_S)
            now = time.monotonic()
        return sorted(self._found.values(), key=lambda one: (_rank(one), bool(one.get("name")), _pid(one)))

    def silent(self) -> Dict[int, int]:
        """Return rank by pid of the processes that have not answered; a pid is that which the process itself sees."""
        answered = {_pid(one) for one in self._found.values()}
        return {pid: rank for pid, rank in self._expected.items() if pid not in answered}

    def _signal(self) -> None:
        """Let the processes look at the questions that have not answered."""
        expected = {}
        answered = {_pid(one) for one in self._found.values()}
        for pid in self._members():
            inner = listening_pid(pid)
            if inner and inner not in answered:
                try:
                    os.kill(pid, getattr(signal, SIGNAL))
                except OSError:  # it has ended, or is another user's
                    continue
                if inner > 0:
                    expected[inner] = rank_of(_environ(pid))
        self._expected = expected

    def _collect(self) -> None:
        for name in os.listdir(self._asks):
            if name.startswith(self._number + ".") and name.endswith(".answer") and name not in self._found:
                self._found[name] = _read(os.path.join(self._asks, name))


def listening_pid(pid: int) -> int:
    """Return the pid as a process sees it itself if it may handle the signal of questions; -1 if that is not known."""
    try:
        with open("/proc/%d/status" % pid) as file:
            rows = dict(line.split(":", 1) for line in file if ":" in line)
        if not int(rows["SigCgt"], 16) >> (int(getattr(signal, SIGNAL)) - 1) & 1:
            return 0
        is_python = "python" in os.path.basename(os.readlink("/proc/%d/exe" % pid))
        return int(rows.get("NSpid", str(pid)).split()[-1]) if is_python else -1
    except (OSError, KeyError, ValueError):
        return 0 if LINUX else -1


def _native(folder: str, missing: Mapping[int, int]) -> Dict[str, Json]:
    """Return where the main threads are of processes that are in a native function, as their answers."""
    found: Dict[str, Json] = {}
    for rank, path in stall.stack_files(folder):
        pid, stack = stall.read_stack(path)
        if stack is not None and pid in missing:
            thread = {"name": "", "main": True, "calls": [[one.file, one.line, one.name] for one in stack.frames]}
            found[path] = {"pid": pid, "rank": rank, "name": "", "threads": [thread]}
    return found


def _environ(pid: int) -> Dict[str, str]:
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            words = file.read().decode("utf-8", "replace").split("\0")
    except OSError:
        return {}
    return dict(word.split("=", 1) for word in words if "=" in word)


def _pid(answer: Json) -> int:
    pid = answer.get("pid")
    return pid if isinstance(pid, int) else 0


def _rank(answer: Json) -> int:
    rank = answer.get("rank")
    return rank if isinstance(rank, int) else 0


def _read(path: str) -> Json:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            answer = json.loads(file.read(_MAX_ANSWER_BYTES))
    except (OSError, ValueError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _sweep(asks: str) -> None:
    """Remove what is left of questions whose kernel was killed."""
    for entry in list(os.scandir(asks)):
        try:
            if entry.stat(follow_symlinks=False).st_mtime < time.time() - _LEFT_S:
                os.remove(entry.path)
        except OSError:
            pass


def _remove(asks: str, number: str) -> None:
    for name in os.listdir(asks):
        if name.startswith(number + "."):
            try:
                os.remove(os.path.join(asks, name))
            except OSError:
                pass
