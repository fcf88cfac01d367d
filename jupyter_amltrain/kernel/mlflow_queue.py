"""The queue of MLflow imports: ended runs become records of their project's store.

The work is done by the one worker process; here is only who waits for what.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import msgspec

from jupyter_amltrain.errors import AmlTrainError, CommandError
from jupyter_amltrain.kernel.observers import Picture
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.record import RunRecord
from jupyter_amltrain.schema.run import Run, RunHandle
from jupyter_amltrain.state_dir import StateRoot
from jupyter_amltrain.tracking.worker import Worker

log = logging.getLogger(__name__)

#: A model of many gigabytes is copied file by file (seconds).
WORKER_TIMEOUT_S = 6 * 3600.0
PICTURE_REQUEST_TIMEOUT_S = 60.0
#: A failed import is tried again when somebody looks at the run after this (seconds).
IMPORT_RETRY_S = 300.0


class MlflowImportQueue:
    """Imports one run after the other; a run that was imported once stays so.

    Parameters
    ----------
    told
        Called on the loop with a handle and ``imported``, ``direct`` or ``failed: <why>``.
    local_copy
        Gives the path on this machine of a run's folder, or ``None``: the worker reads files.
    """

    def __init__(
        self,
        loop: LoopThread,
        root: StateRoot,
        told: Callable[[RunHandle, str], None],
        local_copy: Callable[[Run], Awaitable[str | None]],
    ) -> None:
        self._loop, self._root, self._told, self._local_copy = loop, root, told, local_copy
        self._worker: Worker | None = None
        self._waiting: dict[RunHandle, Run] = {}
        self._current: RunHandle | None = None
        self._tried: dict[RunHandle, float] = {}
        self._closed = False
        self._one = asyncio.Lock()
        self._warmed = False

    @property
    def worker(self) -> Worker:
        """The worker process' client, made at first use."""
        self._loop.check()
        if self._worker is None:
            self._worker = Worker(self._root)
        return self._worker

    def warm(self) -> None:
        """Start the worker early, so that MLflow is imported while the first job runs."""
        if not self._warmed:
            self._warmed = True
            self._loop.start(self._warm(), "warm the worker")

    async def _warm(self) -> None:
        try:
            await self.worker.request("warm", {}, timeout=WORKER_TIMEOUT_S)
        except AmlTrainError as error:
            log.info("%s", error)

    def ask(self, run: Run, now: bool = False) -> bool:
        """Note that `run` has to be imported; False when that is done or under way, or it belongs to no project.

        Parameters
        ----------
        now
            Try again also right after a failure.
        """
        failed = run.tracking.startswith("failed")
        rest = time.monotonic() - self._tried.get(run.handle, -IMPORT_RETRY_S)
        if run.handle in self._waiting or not (
            run.tracking == "pending" or (failed and (now or rest >= IMPORT_RETRY_S))
        ):
            return False
        if not run.folder or not run.project:
            return False
        self._waiting[run.handle] = run
        return True

    async def run(self, handle: RunHandle) -> None:
        """Import a run that waits for it now; nothing happens where its files are gone."""
        async with self._one:
            if self._ending() or handle not in self._waiting:
                return
            self._current = handle
            self._tried[handle] = time.monotonic()
            try:
                payload = await self._payload(self._waiting[handle])
                if payload is None:
                    self._waiting.pop(handle, None)
                    return
                answer = await self.worker.request("import_run", payload, timeout=WORKER_TIMEOUT_S)
                state = str(answer.get("state", "imported"))
            except AmlTrainError as error:
                if self._ending():
                    return
                state = f"failed: {error}"
                log.warning("MLflow import of %s failed: %s", handle, error)
            finally:
                self._current = None
            self._waiting.pop(handle, None)
        self._told(handle, state)

    async def _payload(self, run: Run) -> dict[str, str] | None:
        """The worker's request to import a run; ``None`` where its files are gone."""
        folder = await self._local_copy(run)
        return None if folder is None else {"run_dir": folder, "project": run.project, "handle": run.handle}

    async def model_request(self, run: Run) -> dict[str, str]:
        """The part of a worker's request that says where the files of a run are.

        Raises
        ------
        CommandError
            It has none.
        """
        payload = await self._payload(run) if run.folder else None
        if payload is None:
            raise CommandError(f"{run.handle} left no files.", hint="%aml_runs show tells what is known of it.")
        return payload

    def _ending(self) -> bool:
        return self._closed

    async def picture(self, record: RunRecord) -> Picture | None:
        """The record drawn by the worker; ``None`` when it cannot."""
        try:
            payload = {"record": msgspec.to_builtins(record)}
            drawn = await self.worker.request("picture", payload, timeout=PICTURE_REQUEST_TIMEOUT_S)
        except AmlTrainError as error:
            log.info("no picture of %s: %s", record.handle, error)
            return None
        return msgspec.convert(drawn, Picture)

    async def close(self) -> None:
        """Let go of the worker; it does what it was asked for and ends by itself."""
        self._closed = True
        waiting = [await self._payload(run) for handle, run in self._waiting.items() if handle != self._current]
        last = [("import_run", payload) for payload in waiting if payload is not None]
        if self._worker is not None or last:
            await self.worker.close(last)
