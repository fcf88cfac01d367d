"""How long the threads of a process were at each line: the samples of a window, added up.

This file must load no module that a script might then find loaded (so not ``__future__``).
"""

import os
import sys
import time

TYPE_CHECKING = False  # do not import the module typing into the user's program
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Tuple

    Key = Tuple[int, int, str]
    Seen = Tuple[int, int, str]

#: Threads of one process that have a name of their own.
MAX_THREADS = 64


class LineSums:
    """The samples of a window.

    Parameters
    ----------
    main
        Identifier of the main thread.
    gpus
        A `GpuUse`.
    figures
        Names of ``thread_figures.py``.
    text_of
        Returns a text as JSON.

    Attributes
    ----------
    has_lines
        A line of the user's was seen.
    new
        Lines of the file that describe new threads; the caller removes them.
    """

    def __init__(self, main: int, gpus: "Any", figures: "Dict[str, Any]", text_of: "Callable[[Any], str]") -> None:
        self._main, self._gpus, self._text_of = main, gpus, text_of
        self._pid = os.getpid()
        self._content, self._run_time, self._switches = figures["content"], figures["run_time"], figures["switches"]
        #: Working, timely waiting, late waiting (s); memory (KiB); GPUs (s, percent x s); how often we took the lock.
        self._sums: Dict[Key, List[float]] = {}
        self._threads: Dict[Tuple[int, str], int] = {}
        self._natives: Dict[int, int] = {0: self._pid}
        self._figures_of: Dict[int, Tuple[float, ...]] = {0: self._figures(0)}
        self._memory = self._memory_due = 0.0
        self.has_lines = False
        self.new: List[str] = []

    def native(self, ident: int) -> int:
        """Return the number that the system has for a thread; 0 if it is not known."""
        if ident == self._main:
            return self._pid
        thread = getattr(sys.modules.get("threading"), "_active", {}).get(ident)
        return getattr(thread, "native_id", None) or 0

    def add(self, seen: "List[Seen]", rates: "Dict[int, float]", weight: float, is_late: bool, wakes: float) -> None:
        """Add a sample.

        Parameters
        ----------
        seen
            Thread, node and word of each stack.
        rates
            Part of a processor that each thread used.
        weight
            Seconds for which the sample counts.
        is_late
            The sampling thread had to wait for a processor.
        wakes
            How often it took the interpreter's lock for the sample.
        """
        now = time.monotonic()
        for ident, node, word in seen:
            if not node and ident != self._main:
                continue
            self.has_lines = self.has_lines or node > 0
            working = min(1.0, max(0.0, rates.get(ident, 0.0)))
            key = (self._thread(ident), node, "" if working > 0.3 else word)
            sums = self._sums.get(key)
            if sums is None:
                sums = self._sums[key] = [0.0] * 7
            sums[0] += weight * working
            sums[2 if is_late else 1] += weight * (1.0 - working)
            sums[6] += wakes * working
            self._gpus.add(now, key, weight)
            if ident == self._main:
                self._add_memory(sums, now)
        for key, seconds, percent in self._gpus.take():
            sums = self._sums.setdefault(key, [0.0] * 7)
            sums[4] += seconds
            sums[5] += seconds * percent

    def _figures(self, thread: int) -> "Tuple[float, ...]":
        native = self._natives[thread]
        return (*self._run_time(native), *self._switches(native))

    def _thread(self, ident: int) -> int:
        """Return the number of a thread in the file."""
        if ident == self._main:
            return 0
        thread = getattr(sys.modules.get("threading"), "_active", {}).get(ident)
        name = str(getattr(thread, "_name", "") or "thread")
        number = self._threads.get((ident, name))
        if number is None:
            number = len(self._threads) + 1
            if number >= MAX_THREADS:
                return MAX_THREADS
            self._threads[ident, name] = number
            native = self.native(ident)
            if native:
                self._natives[number] = native
                self._figures_of[number] = ()
            self.new.append('["t",%d,%s]' % (number, self._text_of(name[:80])))
        return number

    def _add_memory(self, sums: "List[float]", now: float) -> None:
        """Count the growth of the process's memory for the line of its main thread."""
        if now < self._memory_due:
            return
        self._memory_due = now + 0.4
        data = self._content("/proc/self/statm")
        pages = float(data.split()[1]) if data else 0.0
        if self._memory:
            sums[3] += (pages - self._memory) * 4.0
        self._memory = pages

    def take(self) -> "Dict[Key, List[float]]":
        """Return the sums of the window and begin a new one; working and waiting are as the system counts them.

        Where all processors are busy, the sampling thread tends to run when the others begin to wait: so late samples
        of waiting count only where there are no others.
        """
        sums, self._sums = self._sums, {}
        found: Dict[Key, List[float]] = {}
        for thread in {key[0] for key in sums}:
            own = {key: values for key, values in sums.items() if key[0] == thread}
            working, timely, late = (sum(values[at] for values in own.values()) for at in range(3))
            used_late = 0.0 if timely > 0.25 * (timely + late) else 1.0
            waited = timely + late * used_late
            whole = working + timely + late
            ran, worked = self._worked(thread, working, whole, sum(values[6] for values in own.values()))
            for key, values in own.items():
                work = worked * values[0] / working if working else 0.0
                wait = (whole - worked) * (values[1] + values[2] * used_late) / waited if waited else 0.0
                found[key] = [work + wait, work * min(1.0, ran / worked) if ran and worked else work, *values[3:6]]
        return found

    def _worked(self, thread: int, working: float, whole: float, wakes: float) -> "Tuple[float, float]":
        """Return the seconds for which a thread ran, 0 if unknown, and for which it ran or should have."""
        last = self._figures_of.get(thread)
        if last is None:
            return 0.0, working
        self._figures_of[thread] = self._figures(thread)
        if not last:  # it began in this window
            return 0.0, working
        ran, ready, waits, breaks = (now - then for now, then in zip(self._figures_of[thread], last))
        if ran <= 0.0 or not working or working == whole:
            return max(0.0, ran), working
        # It waits for a processor after a wait, or in the middle of its work: also where it gave way to us.
        own_waits = max(0.0, waits - wakes)
        return ran, min(whole, ran + (ready - ran) * (1.0 - own_waits / max(1.0, waits + breaks)))
