"""Subscriptions to streams of runs: selects the runs that are read because clients show them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.frontend.clients import FrontendClient
from jupyter_amltrain.kernel.run_provider import RunProvider
from jupyter_amltrain.kernel.run_row import StreamSummary
from jupyter_amltrain.schema.run import Run, RunHandle

log = logging.getLogger(__name__)

#: Maximum number of live runs (the newest) that are read while a panel is shown.
MAX_LIVE_RUNS = 16
#: Maximum number of runs per request whose summaries are read.
MAX_DETAILS = 30
#: Maximum number of cached summaries.
MAX_SUMMARIES = 2000


class StreamInterest:
    """Viewers of live runs. Loop thread only.

    Parameters
    ----------
    clients
        Returns the current clients.
    """

    def __init__(self, runs: RunProvider, clients: Callable[[], Iterable[FrontendClient]]) -> None:
        self._runs, self._clients = runs, clients
        self._viewed: set[str] = set()
        self._live: set[str] = set()
        self._due = False

    def on_changed(self, run: Run) -> None:
        """Update whether a run is live."""
        live = not run.status.state.terminal
        if live != (run.handle in self._live):
            (self._live.add if live else self._live.discard)(run.handle)
            if not self._due:
                self._due = True
                asyncio.get_running_loop().call_soon(self.update)

    def on_removed(self, handle: str) -> None:
        """Forget a run."""
        self._live.discard(handle)
        self._viewed.discard(handle)

    def update(self) -> None:
        """View the runs that clients follow, and the newest live runs while a panel is shown."""
        self._due = False
        store, clients = self._runs.store, list(self._clients())
        requested = {handle for client in clients if client.subscription.shown for handle in client.subscription.looks}
        if any(client.is_shown for client in clients):
            live = [entry.run for entry in store.live() if entry.run.handle in self._live]
            live.sort(key=lambda run: run.created)
            requested |= {run.handle for run in live[-MAX_LIVE_RUNS:]}
        requested = {handle for handle in requested if store.get(RunHandle(handle)) is not None}
        for handle in requested - self._viewed:
            self._runs.change_viewers(RunHandle(handle), 1)
        for handle in self._viewed - requested:
            if store.get(RunHandle(handle)) is not None:
                self._runs.change_viewers(RunHandle(handle), -1)
        self._viewed = requested


class RunDetails:
    """Summaries of the streams of past runs, read one at a time when their rows are in view.

    Parameters
    ----------
    on_read
        Called with the handle of every run whose summary was read.
    """

    def __init__(self, runs: RunProvider, on_read: Callable[[str], None]) -> None:
        self._runs, self._on_read = runs, on_read
        self._summaries: dict[str, StreamSummary] = {}
        self._requested: dict[str, None] = {}
        self._task: asyncio.Task[None] | None = None

    def of(self, handle: str) -> StreamSummary | None:
        """Return the summary of a run if it was read."""
        return self._summaries.get(handle)

    def request(self, handles: Iterable[str]) -> None:
        """Read the summaries of ended runs; the most recent request first."""
        for handle in list(handles)[:MAX_DETAILS]:
            entry = self._runs.store.get(RunHandle(handle))
            ended = entry is not None and entry.run.status.state.terminal
            known = entry is None or entry.read or entry.stream_summary is not None or handle in self._summaries
            if ended and not known:
                self._requested.pop(handle, None)
                self._requested[handle] = None
        for old in list(self._requested)[: -2 * MAX_DETAILS]:
            del self._requested[old]
        if self._requested and (self._task is None or self._task.done()):
            self._task = self._runs.loop.start(self._read(), "details for the panel")

    async def _read(self) -> None:
        while self._requested:
            handle, _ = self._requested.popitem()
            try:
                self._summaries[handle] = await self._runs.stream_summary(RunHandle(handle))
            except (AmlTrainError, OSError) as error:
                log.info("%s", error)
                self._summaries[handle] = StreamSummary()  # unreadable: another attempt would fail too
            for old in list(self._summaries)[:-MAX_SUMMARIES]:
                del self._summaries[old]
            self._on_read(handle)

    def forget(self, handle: str) -> None:
        """Forget a run that was removed."""
        self._summaries.pop(handle, None)
        self._requested.pop(handle, None)

    def close(self) -> None:
        """Stop reading."""
        self._requested.clear()
        if self._task is not None:
            self._task.cancel()
