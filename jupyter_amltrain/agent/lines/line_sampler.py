"""The thread in a job's Python that samples the stacks of the others.

What makes the shares true:

* The moments of the samples are random and do not depend on what the script does. A sample that comes late, because
  a native function kept the interpreter's lock, counts for all moments that have passed.
* It gets the interpreter's lock soon: see ``switch_interval.py``.
* Each thread's processor clock is read again a millisecond after the sample: so working differs from waiting. How
  long a thread worked in all comes from the system.

This file must load no module that a script might then find loaded (so not ``__future__``).
"""

import _thread
import os
import sys
import time

TYPE_CHECKING = False  # do not import the module typing into the user's program
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Tuple

    Seen = Tuple[int, int, str]

#: Seconds since the start -> mean seconds between two samples.
_PERIODS = ((20.0, 0.025), (600.0, 0.05), (3600.0, 0.1), (float("inf"), 0.2))
#: Seconds after a sample in which the processor clocks of the threads are compared, and the threads for which they are.
_CLOCK_S, _MAX_CLOCKS = 0.001, 64
#: Seconds from which a sample is late, and from which nothing but a native function can have delayed it.
_LATE_S, _NATIVE_S = 0.003, 0.1
#: Largest part of one processor's time that this thread takes to look at stacks and to count.
_MAX_PRICE = 0.005
#: Then the samples are at most that many times as rare.
_MAX_SLOWER = 100.0
#: Seconds for which a sample may count: a process that was stopped.
_MAX_WEIGHT_S = 10.0
#: Samples at a place that use the rate of the ones before, and number of those whose mean it is.
_RATE_USES, _RATE_MEASURES = 3, 8.0


class LineSampler:
    """Samples this process.

    Parameters
    ----------
    folder
        Folder for its file.
    load
        Returns the names of a module beside this file.
    main
        Identifier of the main thread.
    """

    def __init__(self, folder: str, load: "Callable[[str], Dict[str, Any]]", main: int) -> None:
        switches = load("amltrain_switch_interval")
        self._switch, self._wait_precisely = switches["SwitchInterval"](), switches["wait_precisely"]
        figures, stacks = load("amltrain_thread_figures"), load("amltrain_stacks")
        text_of = stacks["text_of"]
        self._stacks = stacks["Stacks"](os.path.dirname(os.path.dirname(__file__)))
        gpus = load("amltrain_gpu_use")["GpuUse"](folder, figures["content"])
        self._sums = load("amltrain_line_sums")["LineSums"](main, gpus, figures, text_of)
        self._file = load("amltrain_line_file")["LineFile"](folder, text_of, load("amltrain_own_rank")["rank_of"])
        self._run_time = figures["run_time"]
        self._started = time.monotonic()
        self._random = time.time_ns() & 0xFFFFFFFF
        self._idents = [main]
        self._slower = 1.0
        self._waited = 0.0
        self._rates: Dict[Seen, List[float]] = {}

    def flush(self) -> None:
        """Write the current window."""
        if not self._sums.has_lines:  # a Python that runs no file of the user's
            self._sums.take()
            self._file.skip()
            return
        new = [*self._stacks.new, *self._sums.new]
        self._stacks.new, self._sums.new = [], []
        self._file.write(self._sums.take(), new)

    def run(self, stop: "Any") -> bool:
        """Sample until the lock `stop` can be had; return false if no file can be written."""
        try:
            return self._sample(stop)
        finally:
            self._switch.restore()

    def _sample(self, stop: "Any") -> bool:
        own = _thread.get_ident()
        self._wait_precisely()
        due = now = last_time = time.monotonic()
        price, woken = 0.0, time.thread_time()
        gap = self._gap(now)
        requested = now
        seen: Any = None
        last: Dict[int, float] = {}
        last_rates: Dict[int, float] = {}
        while not self._file.is_off:
            kept, used = -1.0, 0.0  # how long the lock was kept after a wait, and processor seconds of both
            if seen is None:
                requested = max(due + gap, now)
                begin, asleep = time.monotonic(), time.thread_time()
                price += asleep - woken
                if stop.acquire(True, requested - now):
                    return True
                woken = time.thread_time()
                used = woken - asleep
                seen = self._look(own)
                now = time.monotonic()
                kept = now - begin - max(0.0, requested - begin)
            weight, lateness = 0.0, now - requested
            # To ask the system gives the lock away, so only where the script cannot have kept it by itself.
            is_late = _LATE_S + sys.getswitchinterval() < lateness < _NATIVE_S and self._waited_for_processor(lateness)
            if kept >= 0.0:
                self._switch.waited(0.0 if is_late else kept, used, last_rates.values())
            while due + gap <= now:
                due += gap
                weight += gap
                gap = self._gap(now)
                if weight > _MAX_WEIGHT_S:
                    weight, due = weight + now - due, now
            following, later = None, now
            earlier: Dict[int, float] = {}
            rates = self._known_rates(seen) if lateness < _LATE_S else {}
            if not rates:
                before, begin, asleep = self._clocks(), time.monotonic(), time.thread_time()
                if stop.acquire(True, _CLOCK_S):
                    return True
                woken += time.thread_time() - asleep
                end, after = time.monotonic(), self._clocks()
                later = time.monotonic()
                # At once, if a native function has kept the lock: what follows gives the lock away.
                following = self._look(own) if due + gap <= later else None
                requested = max(due + gap, now + _CLOCK_S)
                rates = _rates_of(before, after, end - begin)
                earlier = last_rates if now == last_time else _rates_of(last, before, now - last_time)
                last, last_time, last_rates = after, later, rates
                rates = self._smoothed(seen, rates)
            if lateness > _LATE_S and not is_late:
                # A native function has kept the lock: it has worked, whatever its thread does now.
                least = dict.fromkeys(rates, 1.0) if len(rates) == 1 else earlier
                rates = {one: max(rate, least.get(one, 0.0)) for one, rate in rates.items()}
            self._sums.add(seen, rates, weight, is_late, 2.0 if later > now else 1.0)
            seen, now = following, later
            length = self._file.window_s(now)
            if length:
                self._limit(price / length)
                price = 0.0
                self.flush()
                self._waited_for_processor(0.0)
            if seen is None:
                requested, now = max(due + gap, now), time.monotonic()
                if requested <= now:  # a native function has kept the lock while the file was written
                    seen, now = self._look(own), time.monotonic()
        return False

    def _waited_for_processor(self, lateness: float) -> bool:
        """Whether this thread was late because other programs used all processors."""
        ran, ready = self._run_time(_thread.get_native_id())
        before, self._waited = self._waited, ready - ran
        return self._waited - before > 0.4 * lateness

    def _gap(self, now: float) -> float:
        """Return the seconds to the next sample: random, so that no period of the script is in step with it."""
        self._random = (self._random * 1664525 + 1013904223) & 0xFFFFFFFF
        mean = next(value for limit, value in _PERIODS if now - self._started < limit)
        return max(2 * _CLOCK_S, mean * self._slower) * (0.5 + self._random / 0xFFFFFFFF)

    def _limit(self, price: float) -> None:
        """Sample less often where a sample is expensive: deep stacks, a loop that often gives the lock away."""
        self._slower = min(_MAX_SLOWER, max(1.0, self._slower * min(10.0, max(0.3, price / _MAX_PRICE))))

    def _look(self, own: int) -> "List[Seen]":
        """Return thread, node and word of each stack."""
        read = self._stacks.read
        frames = sys._current_frames()
        frames.pop(own, None)
        seen = [(ident, *read(frame)) for ident, frame in frames.items()]
        frames.clear()  # before anything that may wait: nobody's variables live longer
        self._idents = [ident for ident, _, _ in seen]
        return seen

    def _clocks(self) -> "Dict[int, float]":
        """Return the processor time of the threads of the last sample, as far as it is known."""
        found: Dict[int, float] = {}
        for ident in self._idents[:_MAX_CLOCKS]:
            number = self._sums.native(ident)
            if number:
                try:  # the clock of a thread by its number, as the C library makes it; of an ended one an error
                    found[ident] = time.clock_gettime((~number << 3) | 6)
                except (OSError, AttributeError, OverflowError):
                    pass
        return found

    def _known_rates(self, seen: "List[Seen]") -> "Dict[int, float]":
        """Return the parts of a processor that the threads used when they were last seen where they are now.

        Empty if that is not known of each, and for every fourth time.
        """
        found: Dict[int, float] = {}
        for one in seen:
            known = self._rates.get(one)
            if known is None or known[1] <= 0:
                return {}
            found[one[0]] = known[0]
        for one in seen:
            self._rates[one][1] -= 1
        return found

    def _smoothed(self, seen: "List[Seen]", rates: "Dict[int, float]") -> "Dict[int, float]":
        """Return the mean rates at the places where the threads are: a millisecond may fall between two lines."""
        if len(self._rates) > 1000:
            self._rates.clear()
        found: Dict[int, float] = {}
        for one in seen:
            if one[0] in rates:
                known = self._rates.get(one) or [0.0, 0.0, 0.0]
                count = min(known[2] + 1.0, _RATE_MEASURES)
                found[one[0]] = known[0] + (rates[one[0]] - known[0]) / count
                self._rates[one] = [found[one[0]], _RATE_USES, count]
        return found


def _rates_of(before: "Dict[int, float]", after: "Dict[int, float]", seconds: float) -> "Dict[int, float]":
    """Return the part of a processor that each thread has used."""
    return {one: (after[one] - before[one]) / max(seconds, 1e-6) for one in before if one in after}
