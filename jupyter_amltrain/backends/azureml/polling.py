"""Poll intervals, coalescing of concurrent requests, and the events of runs that polling finds. Loop thread only."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.backends.base import STATUS, News, RunChanges

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.job_tracker import JobTracker

#: Of a run that nobody looks at the service is asked so much less often.
SELDOM = 5.0


def poll_interval() -> float:
    """Seconds between looks at a run that somebody looks at: ``$AMLTRAIN_AZURE_POLL``, else 1."""
    try:
        return max(0.01, float(os.environ.get("AMLTRAIN_AZURE_POLL") or 1.0))
    except ValueError:
        return 1.0


#: A log that grows is looked at so much more often than the service is asked, but not more than ten times a second.
QUICK, FLOOR = 0.2, 0.1
#: A log that has said nothing for so many quick looks is looked at less and less often.
_STEADY, _SLOWER = 20, 1.3


class LogPollInterval:
    """When a run's log is looked at again: soon while lines come, then by and by as seldom as all else.

    One such look is one request to the storage for each process of the job; the service itself is not asked. Of a
    job of many processes, or by a slow line, a look takes long, and is followed by a pause that is longer.

    Attributes
    ----------
    pause
        Seconds from the last look to the next.
    """

    def __init__(self) -> None:
        self.pause = poll_interval()
        self._quiet = 0
        self._next = 0.0

    def due(self) -> float:
        """Seconds until the next look; 0 when it is due."""
        return max(0.0, self._next - time.monotonic())

    def looked(self, grown: bool, took: float = 0.0) -> None:
        """A look is over; `took`: its seconds."""
        if grown:
            self._quiet, self.pause = 0, max(FLOOR, QUICK * poll_interval())
        else:
            self._quiet += 1
            self.pause *= _SLOWER if self._quiet > _STEADY else 1.0
        self.pause = min(self.pause, poll_interval())
        self._next = time.monotonic() + max(self.pause, min(2 * took, poll_interval()))


#: Who answers that a workspace is not there is asked again for so long (seconds), and so many times at least.
GONE, TIMES = 10.0, 4


class GoneDetector:
    """Whether something is gone for good: one answer may be of a server that lags behind the others."""

    def __init__(self) -> None:
        self._since, self._times = 0.0, 0

    def seen(self) -> bool:
        """The service says again that there is no such thing; whether that is to be believed."""
        self._since = self._since if self._times else time.monotonic()
        self._times += 1
        return self.sure

    @property
    def sure(self) -> bool:
        """Whether it was said for long, and of late by every answer."""
        return self._times >= TIMES and time.monotonic() - self._since >= GONE

    def refuted(self) -> None:
        """It is there."""
        self._times = 0


class SingleFlight:
    """Runs one piece of work for each key at a time; who comes meanwhile gets the same answer."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[Any]] = {}

    async def of(self, key: str, work: Callable[[], Awaitable[Any]]) -> Any:
        """The answer of `work`, which goes on when its caller gives up."""
        task = self._tasks.get(key)
        if task is None:

            async def run() -> Any:
                return await work()

            task = self._tasks[key] = asyncio.get_running_loop().create_task(run(), name=key)
            task.add_done_callback(lambda done: self._over(key, done))
        return await asyncio.shield(task)

    def _over(self, key: str, task: asyncio.Task[Any]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if not task.cancelled():
            task.exception()  # nobody may wait for it any more


class AzureEvents(RunChanges):
    """Asks the service at its pace, and tells what has changed."""

    def __init__(self, tracker: JobTracker) -> None:
        self._tracker = tracker
        self._told: dict[str, Any] = {}
        self._seen: dict[str, dict[str, int]] = {}

    async def wait(self, run_ids: Sequence[str], looked_at: Sequence[str], timeout: float) -> News:
        """See :meth:`RunChanges.wait`."""
        until = time.monotonic() + timeout
        tracker = self._tracker
        tracker.watched[id(self)] = frozenset(looked_at)
        while True:
            news: dict[str, set[str]] = {}
            # Side by side: a line that is there does not wait for what the service says.
            rows, *_ = await asyncio.gather(tracker.rows(run_ids), *(tracker.fresh(run_id) for run_id in looked_at))
            for run_id, row in rows.items():
                if self._told.get(run_id) != row:
                    self._told[run_id] = row
                    news.setdefault(run_id, set()).add(STATUS)
            for run_id in looked_at:
                # Counted, because whoever else looks may have brought the news home.
                now = tracker.grown(run_id)
                seen = self._seen.get(run_id, {})
                if grown := {stream for stream, times in now.items() if times != seen.get(stream, 0)}:
                    self._seen[run_id] = dict(now)
                    news.setdefault(run_id, set()).update(grown)
            if news:
                return news
            left = until - time.monotonic()
            if left <= 0:
                return {}
            await asyncio.sleep(min(left, tracker.due(looked_at)))

    def close(self) -> None:
        """See :meth:`RunChanges.close`."""
        self._tracker.watched.pop(id(self), None)
