"""Poll intervals, coalescing of concurrent requests, and the events of runs that polling finds. Loop thread only."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

#: Poll interval multiplier for runs without viewers.
UNVIEWED_POLL_FACTOR = 5.0


def poll_interval() -> float:
    """Return the seconds between two polls of a run with viewers: ``$AMLTRAIN_AZURE_POLL``, else 1."""
    try:
        return max(0.01, float(os.environ.get("AMLTRAIN_AZURE_POLL") or 1.0))
    except ValueError:
        return 1.0


#: Poll interval of a growing log, as a fraction of the run's interval; at most ten polls per second.
LOG_POLL_FACTOR, MIN_LOG_POLL_INTERVAL_S = 0.2, 0.1

#: After this many polls without a new line, each interval is longer than the one before by this factor.
_QUIET_POLLS, _SLOWDOWN = 20, 1.3


class LogPollInterval:
    """Adaptive poll interval of a run's log: short while the log grows, then longer, up to the run's interval.

    One poll is one request to the storage for each process of the job, and none to the service. A slow poll
    (many processes, a slow network) is followed by a longer pause.

    Attributes
    ----------
    pause
        Seconds from one poll to the next.
    """

    def __init__(self) -> None:
        self.pause = poll_interval()
        self._quiet = 0
        self._next = 0.0

    def due(self) -> float:
        """Return the seconds until the next poll; 0 if it is due now."""
        return max(0.0, self._next - time.monotonic())

    def record_poll(self, grown: bool, took: float = 0.0) -> None:
        """Record a poll, which took `took` seconds and found new lines if `grown`."""
        if grown:
            self._quiet, self.pause = 0, max(MIN_LOG_POLL_INTERVAL_S, LOG_POLL_FACTOR * poll_interval())
        else:
            self._quiet += 1
            self.pause *= _SLOWDOWN if self._quiet > _QUIET_POLLS else 1.0
        self.pause = min(self.pause, poll_interval())
        self._next = time.monotonic() + max(self.pause, min(2 * took, poll_interval()))


#: A resource is gone if all answers report that for this time, and there are at least this many.
GONE_AFTER_S, GONE_MIN_ANSWERS = 10.0, 4


class GoneDetector:
    """Decides whether a resource is gone for good: a single answer may come from a replica that lags behind."""

    def __init__(self) -> None:
        self._since, self._times = 0.0, 0

    def record_missing(self) -> bool:
        """Record an answer without the resource; return whether it is gone for good."""
        self._since = self._since if self._times else time.monotonic()
        self._times += 1
        return self.is_gone

    @property
    def is_gone(self) -> bool:
        """Whether enough answers reported the resource missing, for long enough."""
        return self._times >= GONE_MIN_ANSWERS and time.monotonic() - self._since >= GONE_AFTER_S

    def record_found(self) -> None:
        """Record an answer that the resource exists."""
        self._times = 0


class SingleFlight:
    """Coalesces concurrent calls with the same key (single flight)."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[Any]] = {}

    async def run(self, key: str, work: Callable[[], Awaitable[Any]]) -> Any:
        """Return the result of `work`, which continues if its caller is canceled."""
        task = self._tasks.get(key)
        if task is None:

            async def run() -> Any:
                return await work()

            task = self._tasks[key] = asyncio.get_running_loop().create_task(run(), name=key)
            task.add_done_callback(lambda done: self._finish(key, done))
        return await asyncio.shield(task)

    def _finish(self, key: str, task: asyncio.Task[Any]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if not task.cancelled():
            task.exception()  # mark as retrieved: there may be no waiter left
