"""What happens when a run ends: waiters are woken, values are read, the MLflow record is written."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from jupyter_amltrain.agent import failpoints
from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.runs.imports import Imports
from jupyter_amltrain.runs.kept import KeptStreams
from jupyter_amltrain.runs.painters import Painters
from jupyter_amltrain.runs.settling import outcome
from jupyter_amltrain.runs.store import Entry, RunStore
from jupyter_amltrain.spec.run import RunHandle, RunStatus

log = logging.getLogger(__name__)


class Endings:
    """Finalizes ended runs, and wakes whoever waits for one. Loop thread only.

    Parameters
    ----------
    backend
        Gives the live backend of a target.
    """

    def __init__(
        self,
        loop: LoopThread,
        store: RunStore,
        imports: Imports,
        painters: Painters,
        kept: KeptStreams,
        backend: Callable[[str], Backend],
    ) -> None:
        self._loop, self._store, self._imports, self._painters = loop, store, imports, painters
        self._kept, self._backend = kept, backend
        self._events: dict[RunHandle, asyncio.Event] = {}

    async def wait(self, entry: Entry) -> None:
        """Wait until a run has ended; meanwhile it counts as viewed, so that its target polls it closely."""
        if entry.run.status.state.terminal:
            return
        event = self._event(entry.run.handle)
        event.clear()  # it may be of a submit that seemed to have failed
        entry.lookers += 1
        try:
            await event.wait()
        finally:
            entry.lookers -= 1

    def ended(self, handle: RunHandle) -> None:
        """Wake the waiters of a run."""
        self._event(handle).set()

    def gone(self, handle: RunHandle) -> None:
        """Wake the waiters of a run that was removed with its target."""
        self.ended(handle)
        self.forget(handle)  # waiters hold the event

    def forget(self, handle: RunHandle) -> None:
        """Drop the event of a run that was deleted."""
        self._events.pop(handle, None)

    def _event(self, handle: RunHandle) -> asyncio.Event:
        return self._events.setdefault(handle, asyncio.Event())

    async def outcome(self, entry: Entry, status: RunStatus) -> dict[str, Any]:
        """Fields that an ended run gets beside its last status."""
        failpoints.hit("kernel_before_finish")
        try:
            return await outcome(self._backend(entry.run.target), entry, status)
        except AmlTrainError as error:
            return {"error": str(error)}
        except Exception as error:  # waiters must not wait forever because of the files of a run
            log.exception("the outcome of %s", entry.run.handle)
            return {"error": f"{entry.run.handle} has ended, and what it left cannot be read: {error}."}

    def over(self, handle: RunHandle) -> None:
        """The store has the end of a run."""
        self._loop.start(self._finish(handle), f"finish {handle}")

    async def _finish(self, handle: RunHandle) -> None:
        """After the store has the end: wake who waits, write the MLflow record."""
        self.ended(handle)
        failpoints.hit("kernel_before_import")
        entry = self._store.get(handle)
        if entry is None:  # deleted at once
            return
        if self._imports.ask(entry.run):
            # The worker does one thing at a time: first what somebody looks at.
            await self._painters.painted(entry.run)
            await self._imports.run(handle)
        self._kept.read(handle)
