"""Statements that somebody has run in a job: kept in ``pokes.jsonl``, the newest also in the state of the run."""

from __future__ import annotations

import getpass
import json
import os
from typing import Any, Dict, Mapping, Tuple

from ..plain_text import without_codes
from ..protocol import METRICS, POKES, read_regular

Json = Dict[str, Any]

#: Statements in the state, and characters of one.
MAX_SHOWN, MAX_TEXT = 20, 300
_MAX_WHO = 100
#: Bytes at the end of the file that are read.
_TAIL_BYTES = 128 << 10


def record_of(folder: str, payload: Mapping[str, Any]) -> Json:
    """Return what the job needs to keep a statement (:func:`.asked_hook.keep`): files of the run, and its author.

    The job keeps it itself, so that no statement that has run is missing when the kernel is killed meanwhile.
    """
    machine = str(payload.get("who") or "")
    who = "%s on %s" % (getpass.getuser(), machine) if machine else getpass.getuser()
    return {"pokes": os.path.join(folder, POKES), "metrics": os.path.join(folder, METRICS), "who": who}


class NewPokes:
    """Takes the newest statements into the state of a run.

    Parameters
    ----------
    folder
        The run folder.
    """

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, POKES)
        self._seen: Tuple[int, int] = (0, 0)

    def take(self, state: Json) -> bool:
        """Set ``state["pokes"]``; return whether it has changed."""
        try:
            status = os.stat(self._path)
        except OSError:
            return False
        seen = (status.st_size, status.st_mtime_ns)
        if seen == self._seen:
            return False
        self._seen = seen
        rows = [row for row in map(_shown, _tail(self._path, _TAIL_BYTES).splitlines()) if row]
        changed: bool = rows[-MAX_SHOWN:] != state.get("pokes", [])
        if changed:
            state["pokes"] = rows[-MAX_SHOWN:]
        return changed


def _shown(line: bytes) -> Json:
    """Return a row as a state has it; empty for a damaged one."""
    try:
        row = json.loads(line.decode())
        step, rank = row.get("step"), row.get("rank")
        return {
            "time": float(row["time"]),
            "who": _line(row.get("who"), _MAX_WHO),
            "rank": rank if isinstance(rank, int) else 0,
            "step": step if isinstance(step, int) else None,
            "text": _line(row["text"], MAX_TEXT),
            "error": _line(row.get("error"), MAX_TEXT),
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _line(text: Any, limit: int) -> str:
    line = " ".join(without_codes(str(text or "")).split())
    return line if len(line) <= limit else line[: limit - 1] + "\u2026"


def _tail(path: str, limit: int) -> bytes:
    """Return the last bytes of a regular file."""
    try:
        size = os.stat(path).st_size
        if size <= limit:
            return read_regular(path, limit)
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(handle, limit, size - limit).partition(b"\n")[2]
    except OSError:
        return b""
    finally:
        os.close(handle)
