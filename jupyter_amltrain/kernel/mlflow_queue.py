"""Queue of MLflow imports, which copy ended runs into their project's store.

A single worker process does the imports; this module only queues them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import msgspec

from jupyter_amltrain.errors import AmlTrainError, CommandError
from jupyter_amltrain.kernel.observers import RecordPicture
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.record import RunRecord
from jupyter_amltrain.schema.run import Run, RunHandle
from jupyter_amltrain.state_dir import StateRoot
from jupyter_amltrain.tracking.worker import TrackingWorker

log = logging.getLogger(__name__)

#: Long enough to copy a model of many gigabytes file by file.
WORKER_TIMEOUT_S = 6 * 3600.0
PICTURE_REQUEST_TIMEOUT_S = 60.0
#: Seconds after a start or an end of a run until work for ended runs begins by itself, and the longest time it waits.
QUIET_S, MAX_WAIT_S = 0.4, 5.0
#: A failed import is retried when the run is viewed after this time.
IMPORT_RETRY_S = 300.0


class MlflowImportQueue:
    """Imports one run after the other, each run once.

    Parameters
    ----------
    on_imported
        Called on the loop with a handle and ``imported``, ``direct`` or ``failed: <why>``.
    local_copy
        Returns the local path of a run's folder, which the worker reads, or of a folder in it; or ``None``.
    """

    def __init__(
        self,
        loop: LoopThread,
        root: StateRoot,
        on_imported: Callable[[RunHandle, str], None],
        local_copy: Callable[[Run, str], Awaitable[str | None]],
    ) -> None:
        self._loop, self._root, self._on_imported, self._local_copy = loop, root, on_imported, local_copy
        self._worker: TrackingWorker | None = None
        self._waiting: dict[RunHandle, Run] = {}
        self._current: RunHandle | None = None
        self._tried: dict[RunHandle, float] = {}
        self._closed = False
        self._quiet_at = 0.0  #: monotonic
        self._lock = asyncio.Lock()
        self._warming = False
        self._warm_pid: int | None = None

    @property
    def worker(self) -> TrackingWorker:
        """Client of the worker process, created at first use."""
        self._loop.check()
        if self._worker is None:
            self._worker = TrackingWorker(self._root)
        return self._worker

    def warm(self) -> None:
        """Start the worker early, so that MLflow is imported while the job runs."""
        if not self._warming and (self.worker.pid is None or self.worker.pid != self._warm_pid):
            self._warming = True
            self._loop.start(self._warm(), "warm the worker")

    async def _warm(self) -> None:
        try:
            await self.worker.request("warm", {}, timeout=WORKER_TIMEOUT_S)
            self._warm_pid = self.worker.pid
        except AmlTrainError as error:
            log.info("%s", error)
        finally:
            self._warming = False

    def request(self, run: Run, now: bool = False) -> bool:
        """Queue the import of `run`; return False if it is imported, queued or without a project.

        Parameters
        ----------
        now
            Retry immediately after a failure.
        """
        failed = run.tracking_state == "failed"
        rest = time.monotonic() - self._tried.get(run.handle, -IMPORT_RETRY_S)
        if run.handle in self._waiting or not (
            run.tracking_state == "pending" or (failed and (now or rest >= IMPORT_RETRY_S))
        ):
            return False
        if not run.folder or not run.project:
            return False
        self._waiting[run.handle] = run
        return True

    async def run(self, handle: RunHandle) -> None:
        """Import a queued run now; does nothing if its files no longer exist."""
        async with self._lock:
            if self._ending() or handle not in self._waiting:
                return
            self._current = handle
            self._tried[handle] = time.monotonic()
            try:
                payload = await self._payload(self._waiting[handle])
                if payload is None:
                    self._waiting.pop(handle, None)
                    return
                reply = await self.worker.request("import_run", payload, timeout=WORKER_TIMEOUT_S)
                state = str(reply.get("state", "imported"))
            except AmlTrainError as error:
                if self._ending():
                    return
                state = f"failed: {error}"
                log.warning("MLflow import of %s failed: %s", handle, error)
            finally:
                self._current = None
            self._waiting.pop(handle, None)
        self._on_imported(handle, state)

    def postpone(self) -> None:
        """Let work for ended runs wait a moment: a run starts, or may start now that another has ended."""
        self._quiet_at = time.monotonic() + QUIET_S

    async def quiet(self) -> None:
        """Wait until no run starts: beside other work of this machine a job takes twice as long to its first line."""
        self.postpone()
        until = time.monotonic() + MAX_WAIT_S
        while (pause := min(self._quiet_at, until) - time.monotonic()) > 0 and not self._ending():
            await asyncio.sleep(pause)

    async def settle(self) -> None:
        """Return when every import that is queued now was tried."""
        for handle in [*self._waiting]:
            await self.run(handle)

    async def _payload(self, run: Run) -> dict[str, str] | None:
        """Return the worker's request to import a run; ``None`` if its files no longer exist."""
        folder = await self._local_copy(run, "")
        return None if folder is None else {"run_dir": folder, "project": run.project, "handle": run.handle}

    async def model_request(self, run: Run, *folders: str) -> dict[str, str]:
        """Return the part of a worker's request that locates the files of a run.

        Parameters
        ----------
        *folders
            Folders of the run that the worker reads besides, such as ``outputs``.

        Raises
        ------
        CommandError
            The run has no files.
        """
        payload = await self._payload(run) if run.folder else None
        if payload is None:
            raise CommandError(f"{run.handle} has no files.", hint=f"For its details: %aml_runs show {run.handle}")
        for name in folders:
            await self._local_copy(run, name)
        return payload

    def _ending(self) -> bool:
        return self._closed

    async def picture(self, record: RunRecord, now: bool = True) -> RecordPicture | None:
        """Return a picture of the record, drawn by the worker; ``None`` if that fails.

        Parameters
        ----------
        now
            Somebody waits for it; otherwise it is drawn when no run starts.
        """
        try:
            if not now:
                await self.quiet()
            payload = {"record": msgspec.to_builtins(record)}
            drawn = await self.worker.request("picture", payload, timeout=PICTURE_REQUEST_TIMEOUT_S)
        except AmlTrainError as error:
            log.info("no picture of %s: %s", record.handle, error)
            return None
        return msgspec.convert(drawn, RecordPicture)

    async def close(self) -> None:
        """Close the connection to the worker, which finishes its requests and exits."""
        self._closed = True
        waiting = [await self._payload(run) for handle, run in list(self._waiting.items()) if handle != self._current]
        last = [("import_run", payload) for payload in waiting if payload is not None]
        if self._worker is not None or last:
            await self.worker.close(last)
