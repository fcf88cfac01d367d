"""Sentences about GPUs that fail: lost ones, and those whose functions return errors (999 after an Xid)."""

from __future__ import annotations

from typing import Callable, Dict, List, Mapping

#: nvmlReturn_t of a device that is away, in words.
_LOST = {15: "fell off the bus", 16: "requires a reset", 28: "is not found any more"}
#: Notes of errors about one GPU; a flapping one would fill the file.
MAX_NOTES = 20


def lost_text(code: int) -> str:
    """What has happened to a device that answers this code."""
    return _LOST.get(code, "is lost")


class ErrorNotes:
    """Notes the beginning and the end of errors of a GPU, not each of them.

    Parameters
    ----------
    notes
        Where the sentences go.

    Attributes
    ----------
    open
        What fails now, by the GPU's position: value and code.
    """

    def __init__(self, notes: List[str]) -> None:
        self.notes = notes
        self.open: Dict[int, Dict[str, int]] = {}
        self._last: Dict[int, float] = {}
        self._indices: Dict[int, int] = {}
        self._counts: Dict[int, int] = {}

    def add(
        self, t: float, i: int, index: int, codes: Mapping[str, int], silent: bool, text: Callable[[int], str]
    ) -> None:
        """Take the errors of one tick.

        Parameters
        ----------
        t
            Seconds of the monotonic clock.
        i, index
            The GPU's position and number.
        codes
            What failed, and what its function returned.
        silent
            Whether the GPU told nothing at all.
        text
            Gives the words of a code.
        """
        self._last[i], self._indices[i] = t, index
        known = self.open.setdefault(i, {})
        new = {name: code for name, code in codes.items() if known.get(name) != code}
        known.update(new)
        for code in sorted(set(new.values())):
            names = sorted(name for name in new if new[name] == code)
            what = "does not answer" if silent else "does not tell its " + ", ".join(names)
            self._note(i, "GPU %d %s: %s (NVML %d)" % (index, what, text(code), code))

    def close(self, t: float, seconds: float) -> None:
        """Note which GPUs had no error for some seconds."""
        for i in [i for i in self.open if t - self._last[i] >= seconds]:
            self._note(i, "GPU %d answers again" % self._indices[i])
            del self.open[i]

    def forget(self, i: int) -> None:
        """The GPU is away: that is another note."""
        self.open.pop(i, None)

    def _note(self, i: int, text: str) -> None:
        count = self._counts[i] = self._counts.get(i, 0) + 1
        if count < MAX_NOTES:
            self.notes.append(text)
        elif count == MAX_NOTES:
            self.notes.append("%s; further errors of GPU %d are not noted" % (text, self._indices[i]))
