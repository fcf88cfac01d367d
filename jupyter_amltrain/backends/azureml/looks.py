"""How often the service is asked about a backend's runs, and what it said last. Runs on the loop."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.backends.base import STATUS, News, RunChanges

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.backend import AzureBackend

#: Of a run that nobody looks at the service is asked so much less often.
SELDOM = 5.0


def pace() -> float:
    """Seconds between looks at a run that somebody looks at: ``$AMLTRAIN_AZURE_POLL``, else 1."""
    try:
        return max(0.01, float(os.environ.get("AMLTRAIN_AZURE_POLL") or 1.0))
    except ValueError:
        return 1.0


class Shared:
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


class AzureNews(RunChanges):
    """Asks the service at its pace, and tells what has changed."""

    def __init__(self, backend: AzureBackend) -> None:
        self._backend = backend
        self._told: dict[str, Any] = {}

    async def wait(self, run_ids: Sequence[str], looked_at: Sequence[str], timeout: float) -> News:
        """See :meth:`RunChanges.wait`."""
        until = time.monotonic() + timeout
        backend = self._backend
        backend.watched[id(self)] = frozenset(looked_at)
        while True:
            news: dict[str, set[str]] = {}
            rows = await backend.rows(run_ids)
            for run_id, row in rows.items():
                if self._told.get(run_id) != row:
                    self._told[run_id] = row
                    news.setdefault(run_id, set()).add(STATUS)
            for run_id in looked_at:
                if grown := await backend.fresh(run_id):
                    news.setdefault(run_id, set()).update(grown)
            if news:
                return news
            left = until - time.monotonic()
            if left <= 0:
                return {}
            await asyncio.sleep(min(left, pace() / 2))

    def close(self) -> None:
        """See :meth:`RunChanges.close`."""
        self._backend.watched.pop(id(self), None)
