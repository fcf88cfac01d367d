"""The queue of MLflow imports: ended runs become records of their project's store.

The work is done by the one worker process; here is only who waits for what.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from jupyter_amltrain.agent.protocol import open_regular
from jupyter_amltrain.backends.run_index import tracking_of
from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.runs.painters import Picture
from jupyter_amltrain.spec.record import RunRecord
from jupyter_amltrain.spec.run import Run, RunHandle
from jupyter_amltrain.state import StateRoot
from jupyter_amltrain.tracking.worker import Worker

log = logging.getLogger(__name__)

#: A model of many gigabytes is copied file by file (seconds).
TIMEOUT = 6 * 3600.0
PICTURE = 60.0
#: A failed import is tried again when somebody looks at the run after this (seconds).
AGAIN = 300.0


class Imports:
    """Imports one run after the other; a run that was imported once stays so.

    Parameters
    ----------
    told
        Called on the loop with a handle and ``imported``, ``direct`` or ``failed: <why>``.
    """

    def __init__(self, loop: LoopThread, root: StateRoot, told: Callable[[RunHandle, str], None]) -> None:
        self._loop, self._root, self._told = loop, root, told
        self._worker: Worker | None = None
        self._asked: dict[RunHandle, dict[str, str]] = {}
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
            await self.worker.request("warm", {}, timeout=TIMEOUT)
        except AmlTrainError as error:
            log.info("%s", error)

    def ask(self, run: Run, now: bool = False) -> bool:
        """Note that `run` has to be imported; False when that is done, under way, or not ours.

        Parameters
        ----------
        now
            Try again also right after a failure.
        """
        failed = run.tracking.startswith("failed")
        rest = time.monotonic() - self._tried.get(run.handle, -AGAIN)
        if run.handle in self._asked or not (run.tracking == "pending" or (failed and (now or rest >= AGAIN))):
            return False
        if not run.folder or not run.project or not Path(run.folder).is_dir():
            return False
        self._asked[run.handle] = {"run_dir": run.folder, "project": run.project, "handle": run.handle}
        return True

    async def run(self, handle: RunHandle) -> None:
        """Have a run that was asked for imported now."""
        async with self._one:
            if self._ending() or handle not in self._asked:
                return
            self._current = handle
            self._tried[handle] = time.monotonic()
            try:
                answer = await self.worker.request("import_run", self._asked[handle], timeout=TIMEOUT)
                state = str(answer.get("state", "imported"))
            except AmlTrainError as error:
                if self._ending():
                    return
                state = f"failed: {error}"
                log.warning("MLflow import of %s failed: %s", handle, error)
            finally:
                self._current = None
            self._asked.pop(handle, None)
        self._told(handle, state)

    def _ending(self) -> bool:
        return self._closed

    async def picture(self, record: RunRecord) -> Picture | None:
        """The record drawn by the worker; ``None`` when it cannot."""
        try:
            payload = {"record": msgspec.to_builtins(record)}
            drawn = await self.worker.request("picture", payload, timeout=PICTURE)
        except AmlTrainError as error:
            log.info("no picture of %s: %s", record.handle, error)
            return None
        return msgspec.convert(drawn, Picture)

    async def known(self, runs: Sequence[Run]) -> list[Run]:
        """`runs` with the state of their import, as the importer left it in the run folders."""
        states = await self._loop.offload(_states, tuple(run.folder for run in runs))
        return [
            msgspec.structs.replace(run, tracking=state) if state else run
            for run, state in zip(runs, states, strict=True)
        ]

    async def close(self) -> None:
        """Let go of the worker; it does what it was asked for and ends by itself."""
        self._closed = True
        last = [("import_run", payload) for handle, payload in self._asked.items() if handle != self._current]
        if self._worker is not None or last:
            await self.worker.close(last)


def _states(folders: Sequence[str]) -> list[str]:
    """What the importer left in run folders; empty where there is nothing."""
    return [tracking_of(folder) for folder in folders]


def only_in_folder(folder: str) -> bool:
    """Whether a run folder holds what a script logged to MLflow."""
    place = Path(folder)
    try:
        with os.fdopen(open_regular(str(place / "metrics" / "rank-0.jsonl")), "rb") as journal:
            journal.readline()  # the run itself
            if journal.readline():
                return True
    except OSError:
        pass
    return any(names for _, _, names in os.walk(place / "artifacts"))
