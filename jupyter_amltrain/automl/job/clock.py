"""The time of a run with a limit: its trials end when only the rest of the run still fits into it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

#: Seconds for the end of a run without its last fit, and as a share of what its beginning took.
_END_S, _END_SHARE = 4.0, 0.5
#: Largest share of the time that is kept for the end before a trial tells how long a fit takes.
_LARGEST_SHARE = 0.4
#: The last fit may take so many times as long as its trial lets expect.
_FIT_MARGIN = 1.3
#: Seconds between two looks at the time.
_INTERVAL_S = 0.2


class Clock:
    """The time of the whole run, of which the trials leave what the end of the run needs.

    Parameters
    ----------
    seconds
        For the whole run, of all attempts; ``None`` for no limit.
    began
        When the process of the job started, in Unix seconds.
    earlier
        Seconds that the attempts before this one took.
    rows
        Rows of the search.
    """

    def __init__(self, seconds: float | None, began: float, earlier: float, rows: int) -> None:
        self._until = None if seconds is None else began + seconds - earlier
        self._seconds = seconds or 0.0
        # On a machine that was slow to begin, the end takes longer, too.
        self._end_s = max(_END_S, _END_SHARE * (time.time() - began)) + rows / 20_000

    @property
    def left(self) -> float | None:
        """Seconds that are left; ``None`` for no limit."""
        return None if self._until is None else self._until - time.time()

    @property
    def for_trials(self) -> float | None:
        """Seconds for trials before one of them is known; ``None`` for no limit."""
        left = self.left
        return None if left is None else left - min(self._end_s, _LARGEST_SHARE * self._seconds)

    def is_due(self, fit_s: float) -> bool:
        """Return whether only the end of the run still fits into the time, with a last fit of so many seconds."""
        left = self.left
        return left is not None and left <= min(self._end_s, _LARGEST_SHARE * self._seconds) + _FIT_MARGIN * fit_s


class Deadline(threading.Thread):
    """Interrupts the trials by a signal to the main thread when the end of the run is due.

    Parameters
    ----------
    fit_s
        Returns the seconds that the fit of the best trial on all rows will take; ``None`` while no trial has ended.
    """

    def __init__(self, clock: Clock, fit_s: Callable[[], float | None], number: int) -> None:
        super().__init__(name="automl deadline", daemon=True)
        self._clock, self._fit_s, self._number = clock, fit_s, number
        self._closing = threading.Event()
        self.is_passed = False

    def run(self) -> None:
        """Look at the time until :meth:`close`; a first trial that is late is better than none."""
        while not self._closing.wait(_INTERVAL_S):
            seconds = self._fit_s()
            if seconds is not None and self._clock.is_due(seconds):
                self.is_passed = True
                # A library may swallow the exception, where its own code calls Python: so it comes again.
                signal.pthread_kill(threading.main_thread().ident or 0, self._number)

    def close(self) -> None:
        """End; no signal is sent after this."""
        self._closing.set()
        if self.is_alive():
            self.join(timeout=10)
