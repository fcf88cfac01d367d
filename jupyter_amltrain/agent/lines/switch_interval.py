"""How soon a thread that runs gives Python's lock to the one that samples.

Python's own 5 ms are too long. A thread often gives the lock away before, by itself, for a read or a sleep: a sample
at that moment is no fair one. Each time it wakes the waiting thread, too, which mostly comes too late and has used a
tenth of a processor before it gets the lock. With 0.02 ms both is rare. There are limits:

* A native function may keep the lock, and to ask for it that often takes a third of a processor. So it
  is 5 ms after a wait that was long without such wakes, and comes down from there in steps. Waiting with less than
  5 ms uses 0.3 % of a processor at most, except where 5 ms cost more.
* An import may load libraries for a second with the lock kept, and is one line of the script. While modules are
  loaded it is 5 ms.
* Two threads that run would take the lock from each other each 0.02 ms. So only one may.

This file must load no module that a script might then find loaded (so not ``__future__``).
"""

import _thread
import os
import sys
import time

TYPE_CHECKING = False  # do not import the module typing into the user's program
if TYPE_CHECKING:
    from typing import Iterable

#: Python's own, and the shorter ones (s).
_STEPS = (0.005, 0.00125, 0.0003, 0.00008, 0.00002)
#: Nanoseconds by which the system may delay the end of a wait of this thread; 50 µs is its own.
_SLACK_NS = b"1000"
#: Part of a processor that waiting with the short one may use, and most seconds of a processor that it may save.
_PART, _MAX_SAVED_S = 0.003, 0.02
#: Processor seconds of a wait that do not count: what the system needs to put a thread to sleep and to wake it.
_FREE_S = 0.0002
#: Seconds from which a wait is long, and the part of them that a waiting thread uses at most if nobody wakes it. With
#: more steps than these it uses more by itself.
_LONG_S, _QUIET, _QUIET_STEPS = 0.01, 0.04, 1
#: Part of a processor from which a further thread counts as running; least and most seconds for which it then does.
_RUNS, _MIN_SHARED_S, _MAX_SHARED_S = 0.05, 10.0, 600.0


class SwitchInterval:
    """Sets ``sys.setswitchinterval`` for the sampling thread; one that the script has set stays."""

    def __init__(self) -> None:
        self._saved, self._saved_at = _MAX_SAVED_S, time.monotonic()
        self._shared_until, self._shared_s = 0.0, _MIN_SHARED_S / 2
        self._modules, self._was_importing = len(sys.modules), True  #: the start of a script is mostly imports
        self._step = 0
        #: Mean processor seconds of a wait with Python's own and with a shorter one.
        self._costs = [0.0, 0.0]

    def waited(self, seconds: float, used: float, rates: "Iterable[float]") -> None:
        """End a wait, and set what is right for the next ones.

        Parameters
        ----------
        seconds
            For how long the lock was kept, without a wait for a processor.
        used
            Processor seconds of the wait.
        rates
            Part of a processor that each thread uses.
        """
        now = time.monotonic()
        cost, was_short = max(0.0, used - _FREE_S), self._step > 0
        self._costs[was_short] += (cost - self._costs[was_short]) / 4.0
        self._saved += (now - self._saved_at) * _PART - (cost if was_short else 0.0)
        self._saved, self._saved_at = min(_MAX_SAVED_S, self._saved), now
        if sum(rate > _RUNS for rate in rates) > 1:
            if now >= self._shared_until:
                self._shared_s = min(_MAX_SHARED_S, 2 * self._shared_s)
            self._shared_until = now + self._shared_s
        is_long = seconds > _LONG_S
        is_woken = is_long and self._step <= _QUIET_STEPS and cost >= _QUIET * seconds
        may_use = self._saved > (0.0 if was_short else _MAX_SAVED_S / 2) or self._costs[1] <= self._costs[0]
        is_importing = self._modules != len(sys.modules)
        is_fast = is_woken or not (is_long or is_importing)
        is_short = may_use and is_fast and now >= self._shared_until
        last = len(_STEPS) - 1
        self._step = 0 if not is_short else last if is_woken or self._was_importing else min(self._step + 1, last)
        self._modules, self._was_importing = len(sys.modules), is_importing
        _set(_STEPS[self._step])

    def restore(self) -> None:
        """Set Python's own."""
        _set(_STEPS[0])


def _set(seconds: float) -> None:
    interval = sys.getswitchinterval()
    if abs(interval - seconds) > 1e-6 and any(abs(interval - one) < 2e-6 for one in _STEPS):
        sys.setswitchinterval(seconds)


def wait_precisely() -> None:
    """Let the waits of this thread end when they should, where the system can do that."""
    try:
        handle = os.open("/proc/%d/timerslack_ns" % _thread.get_native_id(), os.O_WRONLY)
    except OSError:
        return
    try:
        os.write(handle, _SLACK_NS)
    except OSError:
        pass
    finally:
        os.close(handle)
