"""Monitors: targets that are sampled without a run. Loop thread only.

A monitor looks like a run that never ends: an entry with telemetry and nothing else, so
that records, charts and dashboards need not know the difference. The target's sampler ends
by itself when nobody keeps it alive, so a kernel that dies leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from jupyter_amltrain.backends.base import MONITORS, Backend
from jupyter_amltrain.errors import AmlTrainError, TargetUnreachable, UnknownRun
from jupyter_amltrain.kernel.observers import FrameCallback
from jupyter_amltrain.kernel.record import record_of
from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.kernel.watcher import read_anew, read_ticks
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunState, RunStatus, make_handle
from jupyter_amltrain.text import new_run_id

log = logging.getLogger(__name__)

#: The target is told this often that somebody still looks (seconds; it waits for 30).
KEEP_ALIVE_INTERVAL_S = 8.0
#: A monitor that nobody has looked at for so long is closed (seconds).
FORGET_AFTER_S = 600.0
#: Ended monitors whose charts can still be asked for.
MAX_ENDED_MONITORS = 8
#: Seconds between frames of a monitor's record: its charts have their own way.
FRAME_INTERVAL_S = 10.0


class _Watch:
    def __init__(self, entry: Entry, backend: Backend, gpus: Sequence[int] | None, period: float) -> None:
        self.entry, self.backend, self.gpus, self.period = entry, backend, gpus, period
        self.stopped, self.ended, self.sampled = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.seen = time.monotonic()


class Monitors:
    """The monitors of this kernel.

    Parameters
    ----------
    backend
        Gives the backend of a target.
    """

    def __init__(self, loop: LoopThread, backend: Callable[[str], Backend]) -> None:
        self._loop, self._backend = loop, backend
        self._all: dict[str, _Watch] = {}

    async def open(self, target: str, gpus: Sequence[int] | None, period: float) -> str:
        """Begin to sample `target` every `period` seconds; returns the monitor's handle.

        Raises
        ------
        CommandError
            There is no such GPU, or the target cannot be monitored.
        TargetUnreachable
            It does not answer.
        """
        self._loop.check()
        backend = self._backend(target)
        monitor = new_run_id("monitor")
        await backend.monitor(monitor, gpus, period)
        now = time.time()
        run = Run(
            handle=make_handle(target, monitor),
            spec=JobSpec(name=f"GPUs of {target}"),
            status=RunStatus(state=RunState.RUNNING),
            created=now,
            seen_at=now,
        )
        entry = Entry(run)
        entry.kind = "monitor"
        for old in [handle for handle, watch in self._all.items() if watch.ended.is_set()][:-MAX_ENDED_MONITORS]:
            del self._all[old]
        self._all[run.handle] = watch = _Watch(entry, backend, gpus, period)
        self._loop.start(self._read(watch), f"monitor {target}")
        return run.handle

    def entry(self, handle: str) -> Entry | None:
        """The entry of a monitor, if `handle` is one of this kernel's."""
        watch = self._all.get(handle)
        return None if watch is None else watch.entry

    def running(self, target: str) -> str:
        """Handle of a monitor of all GPUs of `target`, at least once a second; empty when there is none."""
        for handle, watch in self._all.items():
            whole = watch.gpus is None and watch.period <= 1.0
            if whole and watch.entry.run.target == target and not watch.stopped.is_set():
                return handle
        return ""

    def shown(self, handle: str, more: int) -> bool:
        """Somebody looks at a monitor (1) or has stopped to (-1); whether it is one."""
        watch = self._all.get(handle)
        if watch is not None:
            watch.entry.lookers += more
            watch.seen = time.monotonic()
        return watch is not None

    async def _read(self, watch: _Watch) -> None:
        entry, backend = watch.entry, watch.backend
        name = entry.run.run_id
        changes = backend.changes()
        kept = time.monotonic()
        try:
            while not watch.stopped.is_set():
                now = time.monotonic()
                if entry.lookers:
                    watch.seen = now
                elif now - watch.seen > FORGET_AFTER_S:
                    break
                try:
                    if now - kept > KEEP_ALIVE_INTERVAL_S:
                        await backend.monitor(name, watch.gpus, watch.period)
                        kept = now
                        # We may have slept (a cell that keeps the interpreter, a stopped container) until it
                        # had given us up: then this has started another.
                        await read_anew(backend, MONITORS + name, entry.telemetry.node(0))
                    if await read_ticks(backend, MONITORS + name, entry):
                        watch.sampled.set()
                    self._amend(entry, reachable=True, seen_at=time.time())
                    await changes.wait((), (MONITORS + name,), min(1.0, KEEP_ALIVE_INTERVAL_S / 2))
                except TargetUnreachable:
                    self._amend(entry, reachable=False)
                    await asyncio.sleep(1.0)
                except (AmlTrainError, OSError) as error:
                    log.warning("monitor of %s: %s", entry.run.target, error)
                    self._amend(entry, error=str(error))
                    break
        finally:
            changes.close()
            watch.stopped.set()
            status = msgspec.structs.replace(entry.run.status, state=RunState.COMPLETED)
            self._amend(entry, status=status, seen_at=time.time())
            watch.ended.set()
            watch.sampled.set()

    @staticmethod
    def _amend(entry: Entry, **changes: Any) -> None:
        entry.run = msgspec.structs.replace(entry.run, **changes)

    async def close(self, handle: str) -> None:
        """End a monitor, here and on its target; idempotent."""
        watch = self._all.get(handle)
        if watch is None or watch.stopped.is_set():
            return
        watch.stopped.set()
        try:
            await watch.backend.stop_monitor(watch.entry.run.run_id)
        except TargetUnreachable:  # it ends by itself
            pass

    async def watch(self, handle: str, paint: FrameCallback) -> None:
        """Call `paint` with the record now, from time to time, and at the end."""
        watch = self._all.get(handle)
        if watch is None:
            raise UnknownRun(f"No monitor {handle!r} in this kernel.", hint="Start one: %aml_monitor")
        while True:
            record = record_of(watch.entry)
            paint(record, None)
            if record.done:
                return
            # The first frames come soon, so that a saved notebook shows something.
            pause = FRAME_INTERVAL_S if watch.entry.telemetry.node(0).ticks > 3 else 1.0
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(watch.ended.wait(), pause)

    async def first_sample(self, handle: str, patience: float) -> None:
        """Wait for the first sample of a monitor, `patience` seconds at most."""
        watch = self._all.get(handle)
        if watch is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(watch.sampled.wait(), patience)

    async def close_of(self, target: str) -> None:
        """End those of a target that is gone."""
        for handle, watch in list(self._all.items()):
            if watch.entry.run.target == target:
                with contextlib.suppress(AmlTrainError):  # it ends by itself
                    await self.close(handle)

    async def close_all(self) -> None:
        """End all of them, at the same time: whoever closes us does not wait for long."""
        found = await asyncio.gather(*(self.close(handle) for handle in list(self._all)), return_exceptions=True)
        for error in found:
            if isinstance(error, Exception):
                log.warning("closing monitors: %s", error)
