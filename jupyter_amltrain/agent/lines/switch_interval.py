"""How soon a thread that runs gives Python's lock to the one that samples.

Python's own 5 ms are too long: a thread often gives the lock away before, by itself, for a read or a sleep, and a
sample at that moment is no fair one. With 0.05 ms it is, mostly. There are two limits:

* A native function may still keep the lock, and to ask for it that often takes a tenth of a processor. So the
  sampling thread waits in that way for 2 % of the time at most.
* Two threads that run would take the lock from each other each 0.05 ms. So only one may.

This file must load no module that a script might then find loaded (so not ``__future__``).
"""

import _thread
import os
import sys
import time

TYPE_CHECKING = False  # do not import the module typing into the user's program
if TYPE_CHECKING:
    from typing import Iterable

#: Python's own, and the short one (s).
LONG_S, SHORT_S = 0.005, 0.00005
#: Nanoseconds by which the system may delay the end of a wait of this thread; 50 µs is its own.
_SLACK_NS = b"1000"
#: Part of the time for which the sampling thread may wait with the short one, and most seconds that it may save.
_WAIT_SHARE, _MAX_SAVED_S = 0.02, 0.1
#: Seconds of a wait that do not count: so long takes one that no native function lengthens.
_FREE_S = 0.0005
#: Part of a processor from which a further thread counts as running; least and most seconds for which it then does.
_RUNS, _MIN_SHARED_S, _MAX_SHARED_S = 0.05, 10.0, 600.0


class SwitchInterval:
    """Sets ``sys.setswitchinterval`` for the sampling thread; one that the script has set stays."""

    def __init__(self) -> None:
        self._saved, self._saved_at = _MAX_SAVED_S, time.monotonic()
        self._shared_until, self._shared_s = 0.0, _MIN_SHARED_S / 2
        self._may_wait = True
        self.begin()

    def begin(self) -> None:
        """Begin the work of the sampling thread: it takes the lock several times, and shortly after each other."""
        _set(SHORT_S if self._saved_at >= self._shared_until else LONG_S)

    def wait(self) -> None:
        """Begin to wait for the next sample."""
        if not self._may_wait:
            _set(LONG_S)

    def waited(self, seconds: float, rates: "Iterable[float]") -> None:
        """End the wait.

        Parameters
        ----------
        seconds
            For how long the lock was kept.
        rates
            Part of a processor that each thread uses.
        """
        now = time.monotonic()
        self._saved += (now - self._saved_at) * _WAIT_SHARE - (max(0.0, seconds - _FREE_S) if self._may_wait else 0.0)
        self._saved, self._saved_at = min(_MAX_SAVED_S, self._saved), now
        if sum(rate > _RUNS for rate in rates) > 1:
            if now >= self._shared_until:
                self._shared_s = min(_MAX_SHARED_S, 2 * self._shared_s)
            self._shared_until = now + self._shared_s
        self._may_wait = now >= self._shared_until and self._saved > (0.0 if self._may_wait else _MAX_SAVED_S / 2)
        self.begin()

    def restore(self) -> None:
        """Set Python's own."""
        _set(LONG_S)


def _set(seconds: float) -> None:
    interval = sys.getswitchinterval()
    if abs(interval - seconds) > 1e-6 and min(abs(interval - LONG_S), abs(interval - SHORT_S)) < 1e-6:
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
