"""The file of the lines of one process: it grows by whole lines, slower the larger it is.

This file must load no module that a script might then find loaded (so not ``__future__``).
"""

import os
import sys
import time

TYPE_CHECKING = False  # do not import the module typing into the user's program
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Tuple

    Key = Tuple[int, int, str]

#: Seconds since the start -> seconds that one line of the file is about.
_WINDOWS = ((0.8, 0.3), (4.0, 1.0), (600.0, 2.0), (3600.0, 10.0), (float("inf"), 60.0))
_MAX_WINDOW_S = 900.0
#: Bytes of all files of a run in a day, and the part of them that is there from the start.
_DAY_BYTES, _FIRST_PART = 900_000, 0.1
_MAX_FILES, _MAX_ROWS, _MAX_PENDING_BYTES = 64, 60, 1 << 16


class LineFile:
    """Writes the windows of this process.

    Parameters
    ----------
    folder
        Folder of the files.
    text_of, rank_of
        Return a text as JSON; the number of a process in a job of several (``own_rank.py``).

    Attributes
    ----------
    is_off
        Nothing more can be written.
    """

    def __init__(self, folder: str, text_of: "Callable[[Any], str]", rank_of: "Callable[[Any], int]") -> None:
        self._folder, self._text_of, self._rank_of = folder, text_of, rank_of
        self._started = self._window_start = time.monotonic()
        self._clock_offset = time.time() - time.monotonic()
        self._pid = os.getpid()
        self._path = ""
        self._data = b""
        self._written = self._flushes = 0
        self._files = 1
        self._longer = 1.0
        self.is_off = False

    def window_s(self, now: float) -> float:
        """Return the age of the current window, once it is to be written; else 0."""
        age = now - self._started
        length = next(value for limit, value in _WINDOWS if age < limit) * self._longer
        return now - self._window_start if now - self._window_start >= length else 0.0

    def skip(self) -> None:
        """Begin a new window without writing the last one."""
        self._window_start = time.monotonic()

    def write(self, sums: "Dict[Key, List[float]]", new: "List[str]") -> None:
        """Write the window that ends now.

        Parameters
        ----------
        sums
            See :func:`_row`.
        new
            Lines that describe what the window names.
        """
        now = time.monotonic()
        begun, self._window_start = self._window_start, now
        if not self._path and not self._open():
            return
        rows = sorted(sums.items(), key=lambda one: -one[1][0])
        text = [_row(key, values, self._text_of) for key, values in rows[:_MAX_ROWS]]
        rest: Dict[int, List[float]] = {}
        for (thread, _, _), values in rows[_MAX_ROWS:]:
            rest[thread] = [a + b for a, b in zip(rest.get(thread, [0.0] * 5), values)]
        text += [_row((thread, 0, "other"), values, self._text_of) for thread, values in rest.items()]
        window = '["w",%.2f,%.2f,[%s]]' % (begun + self._clock_offset, now + self._clock_offset, ",".join(text))
        self._append("\n".join([*new, window, ""]).encode("ascii", "replace"))
        self._pace(now)

    def _pace(self, now: float) -> None:
        """Write less often where the file is larger than its share of a day's bytes."""
        self._flushes += 1
        age = now - self._started
        share = _DAY_BYTES / max(2, self._files) * (_FIRST_PART + (1 - _FIRST_PART) * age / 86400.0)
        length = next(value for limit, value in _WINDOWS if age < limit) * self._longer
        if self._written > share and length < _MAX_WINDOW_S:
            self._longer *= 2.0
        elif self._written < share / 2 and self._longer > 1.0:
            self._longer /= 2.0

    def _open(self) -> bool:
        """Choose the file; return false where a run has enough of them."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        if len(os.listdir(self._folder)) >= _MAX_FILES:
            self.is_off = True
            return False
        rank = self._rank_of(os.environ)
        self._path = "%s/%d-%d.jsonl" % (self._folder, rank, self._pid)
        main = getattr(sys.modules.get("__main__"), "__file__", None) or ""
        facts = (self._text_of(self._name()), self._text_of(str(main)[-400:]), os.getppid())
        begun = self._started + self._clock_offset
        header = '["h",1,%d,%s,%.2f,%s,%s,%d]\n' % (self._pid, rank, begun, *facts)
        self._data = header.encode("ascii", "replace")
        return True

    def _name(self) -> str:
        """Return the name of this process among those of the job; empty for one that nothing names."""
        worker = getattr(sys.modules.get("torch.utils.data._utils.worker"), "_worker_info", None)
        if worker is not None:
            return "DataLoader worker %s" % worker.id
        process = getattr(sys.modules.get("multiprocessing.process"), "_current_process", None)
        name = str(getattr(process, "_name", ""))
        return "" if name == "MainProcess" else name[:80]

    def _append(self, data: bytes) -> None:
        """Append to the file. It does not stay open: a script may close all descriptors, and open others."""
        self._data += data
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                count = os.write(handle, self._data)
            finally:
                os.close(handle)
            self._data = self._data[count:]
            self._written += count
            if self._flushes % 10 == 0:
                self._files = len(os.listdir(self._folder))
        except OSError:  # a full disk: the next time
            if len(self._data) > _MAX_PENDING_BYTES:
                self.is_off = True


def _row(key: "Key", values: "List[float]", text_of: "Callable[[Any], str]") -> str:
    """Return ``[thread, node, word, wall ms, processor ms, growth of memory KiB, ms with GPU readings, percent]``."""
    wall, used, memory, gpu, percent = values
    row = "[%d,%d,%s,%.0f,%.0f,%.0f" % (key[0], key[1], text_of(key[2]), wall * 1e3, used * 1e3, memory)
    return row + (",%.0f,%.1f]" % (gpu * 1e3, percent / gpu) if gpu else "]")
