"""What calls of a driver cost: measured at their first times, because drivers differ by a factor of a thousand."""

from __future__ import annotations

import time
from typing import Callable, Dict, List, TypeVar

#: First calls of a function that are measured.
MEASURED_CALLS = 3

#: CPU seconds over which a call is too dear for each tick: one GPU and second may take 0.3 ms, everything included.
DEAR_S = 0.0001

#: Seconds between two calls of a dear function that nothing cheaper replaces.
DEAR_PERIOD_S = 120.0

_Result = TypeVar("_Result")


class CallPrices:
    """CPU times of the first calls of each function, by its name."""

    def __init__(self) -> None:
        self._times: Dict[str, List[float]] = {}
        self._dear: Dict[str, bool] = {}

    def timed(self, name: str, call: Callable[[], _Result]) -> _Result:
        """Call a function, and measure the call if it is one of the first."""
        if name in self._dear:
            return call()
        begin = time.thread_time()  # the calls keep their thread busy; the rest of the machine does not count
        result = call()
        times = self._times.setdefault(name, [])
        times.append(time.thread_time() - begin)
        if len(times) == MEASURED_CALLS:
            self._dear[name] = sorted(times)[MEASURED_CALLS // 2] > DEAR_S
        return result

    def is_dear(self, name: str) -> bool:
        """Whether a function has turned out to be dear; False while it is not known."""
        return self._dear.get(name, False)
