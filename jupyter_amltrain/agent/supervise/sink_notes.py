"""Sentences of the sink for the run's user, which the supervisor takes into the notes of the run."""

import contextlib
import os
from typing import Any, Dict

from ..protocol import read_regular

#: File of the run folder to which the sink appends them, one a line.
FILE = os.path.join("metrics", "notes.txt")

#: Bytes of the file, number of sentences that are taken, and characters of one.
_MAX_BYTES, _MAX_NOTES, _MAX_CHARS = 1 << 16, 8, 1000


def append(folder: str, text: str) -> None:
    """Append a sentence; a sink that was killed and started again may append it a second time."""
    with contextlib.suppress(OSError):  # a full disk must not end what the sink does
        with open(os.path.join(folder, FILE), "a", encoding="utf-8", errors="replace") as file:
            file.write(" ".join(text.split()) + "\n")


class SinkNotes:
    """What the supervisor has taken of the file of a run folder."""

    def __init__(self, folder: str) -> None:
        self._path, self._size = os.path.join(folder, FILE), 0

    def take(self, state: Dict[str, Any]) -> bool:
        """Add new sentences to the notes of a state, each once; return whether there are any."""
        try:
            size = os.path.getsize(self._path)
            if size == self._size:
                return False
            self._size = size
            text = read_regular(self._path, _MAX_BYTES).decode("utf-8", "replace")
        except OSError:  # there is none, or the job has replaced it
            return False
        known = state.get("notes", ())
        lines = [line[:_MAX_CHARS] for line in text.split("\n")[:-1][:_MAX_NOTES]]
        new = [line for line in dict.fromkeys(lines) if line and line not in known]
        if new:
            state["notes"] = [*known, *new]
        return bool(new)
