"""Recorder of living runs: keeps their records in MLflow's store a few seconds behind what their scripts log.

The worker process does the work; this module only notices that a journal has grown.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.kernel.mlflow_queue import MlflowImportQueue
from jupyter_amltrain.kernel.store import Entry, RunStore
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.run import Run, RunHandle

log = logging.getLogger(__name__)

#: Seconds between two looks at the journals of living runs.
INTERVAL_S = 1.5
#: A recording took at most this part of the time since the last one of its run.
SHARE = 0.1
#: Seconds after a failed recording; the import after the end does not depend on it.
RETRY_S = 30.0
#: Seconds after which a kernel records a run of another kernel that does not: that one has ended.
TAKE_OVER_S = 10.0

_JOURNAL = os.path.join("metrics", "rank-0.jsonl")
_WORD = "tracking-live.json"


class _Journal(NamedTuple):
    size: int
    changed: float  #: unix seconds
    recorded: float  #: unix seconds of the last recording, by any kernel; 0 if there was none


class LiveRecorder:
    """Records the living runs that this kernel has submitted, or shows. Loop thread only.

    Parameters
    ----------
    backend
        Returns the live backend of a target.
    """

    def __init__(
        self, loop: LoopThread, store: RunStore, imports: MlflowImportQueue, backend: Callable[[str], Backend]
    ) -> None:
        self._loop, self._store, self._imports, self._backend = loop, store, imports, backend
        self._own: set[RunHandle] = set()
        self._followed: set[str] = set()  #: targets whose journals are followed
        self._waiting: dict[RunHandle, str] = {}  #: folders whose journal may be ahead of the record
        self._sizes: dict[RunHandle, int] = {}  #: size of the journal at the last recording
        self._due: dict[RunHandle, float] = {}  #: monotonic time of the next recording
        self._unrecorded: dict[RunHandle, float] = {}  #: since when (monotonic) the journal is ahead of the record
        self._running = False

    def follow(self, handle: RunHandle) -> None:
        """Record a run while it lives: this kernel has submitted it, or opens its page in MLflow."""
        self._own.add(handle)
        self.wake()

    def wake(self) -> None:
        """Look for runs to record: there may be a new viewer."""
        if not self._running and self._entries():
            self._running = True
            self._loop.start(self._run(), "record living runs in MLflow")

    def _entries(self) -> list[Entry]:
        """Return the living runs whose files this kernel may record."""
        return [
            entry
            for entry in self._store.live()
            if (entry.run.handle in self._own or entry.viewers) and self.records(entry.run)
        ]

    def records(self, run: Run) -> bool:
        """Whether the store gets what this run logs while it lives."""
        return bool(
            run.folder
            and run.project
            and not run.damaged
            and run.spec.tracking != "direct"
            and self._backend(run.target).files.has_live_copies
        )

    async def _run(self) -> None:
        try:
            while True:
                # First a pause: the start of a run comes first, and many runs end before anything is to be recorded.
                await asyncio.sleep(INTERVAL_S)
                if not (entries := self._entries()):
                    break
                by_target: dict[str, list[Entry]] = {}
                for entry in entries:
                    by_target.setdefault(entry.target, []).append(entry)
                for target in self._followed - by_target.keys():
                    await self._live_copies(target, ())
                self._followed = set(by_target)
                for target, living in by_target.items():
                    copies = await self._live_copies(target, [entry.run.run_id for entry in living])
                    for entry in living:
                        folder = copies.get(entry.run.run_id) or self._waiting.get(entry.run.handle)
                        if folder is not None:
                            await self._record(entry, folder)
        finally:
            for target in self._followed:
                await self._live_copies(target, ())
            self._followed = set()
            self._running = False
            live = {entry.run.handle for entry in self._store.live()}
            self._own &= live
            for known in (self._sizes, self._due, self._unrecorded, self._waiting):
                for handle in known.keys() - live:
                    del known[handle]

    async def _live_copies(self, target: str, run_ids: Sequence[str]) -> Mapping[str, str]:
        """Return the folders with the journals that may have grown; none while the target does not answer."""
        try:
            return await self._backend(target).files.live_copies(run_ids)
        except (AmlTrainError, OSError) as error:
            log.info("journals of %s: %s", target, error)
            return {}

    async def _record(self, entry: Entry, folder: str) -> None:
        """Record one run if its journal has grown."""
        handle = entry.run.handle
        self._waiting[handle] = folder
        if time.monotonic() < self._due.get(handle, 0.0):
            return
        try:
            journal = await asyncio.to_thread(_journal, folder)
            if self._sizes.get(handle) == journal.size:
                self._waiting.pop(handle, None)
                return
            if not self._is_ours(handle, journal):
                return
            if entry.run.status.state.terminal:
                return
            request = {"run_dir": folder, "project": entry.run.project, "handle": handle}
            reply = await self._imports.worker.request("record_live", request)
        except AmlTrainError as error:
            self._due[handle] = time.monotonic() + RETRY_S
            log.info("recording %s: %s", handle, error)
            return
        self._sizes[handle] = journal.size
        self._due[handle] = time.monotonic() + min(float(reply.get("seconds") or 0.0) / SHARE, RETRY_S)

    def _is_ours(self, handle: RunHandle, journal: _Journal) -> bool:
        """Whether this kernel submitted the run, or found that no other kernel keeps its record up to date."""
        if handle in self._own:
            return True
        if journal.changed <= journal.recorded:
            self._unrecorded.pop(handle, None)
        elif time.monotonic() - self._unrecorded.setdefault(handle, time.monotonic()) >= TAKE_OVER_S:
            self._own.add(handle)
        return handle in self._own


def _journal(folder: str) -> _Journal:
    size, changed, recorded = 0, 0.0, 0.0
    try:
        status = os.stat(os.path.join(folder, _JOURNAL))
        size, changed = status.st_size, status.st_mtime
        recorded = os.stat(os.path.join(folder, _WORD)).st_mtime
    except OSError:
        pass  # a run that has logged nothing, or is not recorded, does not have the file
    return _Journal(size, changed, recorded)
