"""What the sink tells the user of a run: sentences and its experiment. The supervisor takes them into its state."""

import contextlib
import os
from typing import Any, Dict, Iterator, Tuple

from .protocol import read_regular, write_text

#: File of the run folder to which the sink appends sentences, one a line.
FILE = os.path.join("metrics", "notes.txt")
#: File of the run folder with the name of the experiment that the script has chosen.
EXPERIMENT = os.path.join("metrics", "experiment.txt")

#: Bytes of a file, number of sentences that are taken, and characters of one.
_MAX_BYTES, _MAX_NOTES, _MAX_CHARS = 1 << 16, 8, 1000
#: Characters of the name of an experiment.
_MAX_NAME = 250


def append(folder: str, text: str) -> None:
    """Append a sentence; a sink that was killed and started again may append it a second time."""
    with contextlib.suppress(OSError):  # a full disk must not end what the sink does
        with open(os.path.join(folder, FILE), "a", encoding="utf-8", errors="replace") as file:
            file.write(" ".join(text.split()) + "\n")


def set_experiment(folder: str, name: str) -> None:
    """Set the experiment of the run."""
    with contextlib.suppress(OSError):
        write_text(os.path.join(folder, EXPERIMENT), " ".join(name.split()))


class SinkNotes:
    """What the supervisor has taken of the files of a run folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._seen: Dict[str, Tuple[int, int]] = {}

    def take(self, state: Dict[str, Any]) -> bool:
        """Add new sentences to the notes of a state, each once, and its experiment; return whether there is any."""
        changed = False
        for text in self._changed(FILE):
            known = state.get("notes", ())
            lines = [line[:_MAX_CHARS] for line in text.split("\n")[:-1][:_MAX_NOTES]]
            new = [line for line in dict.fromkeys(lines) if line and line not in known]
            if new:
                state["notes"], changed = [*known, *new], True
        for text in self._changed(EXPERIMENT):
            name = text.partition("\n")[0][:_MAX_NAME]
            if name and name != state.get("experiment"):
                state["experiment"], changed = name, True
        return changed

    def _changed(self, name: str) -> Iterator[str]:
        """Yield the text of a file if it has changed."""
        path = os.path.join(self._folder, name)
        with contextlib.suppress(OSError):  # there is none, or the job has replaced it
            status = os.stat(path)
            if self._seen.get(name) != (status.st_size, status.st_mtime_ns):
                self._seen[name] = (status.st_size, status.st_mtime_ns)
                yield read_regular(path, _MAX_BYTES).decode("utf-8", "replace")
