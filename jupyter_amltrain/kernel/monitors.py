"""Monitors sample targets without a run. Loop thread only.

A monitor looks like a run that never ends: an entry that has only telemetry, so that records,
charts and dashboards handle both alike. The target's sampler stops without keep-alive
requests, so a kernel that dies leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.backends.capabilities import TargetMonitors
from jupyter_amltrain.backends.streams import MONITORS
from jupyter_amltrain.errors import AmlTrainError, CommandError, TargetUnreachable, UnknownRun
from jupyter_amltrain.kernel.observers import FrameCallback
from jupyter_amltrain.kernel.run_record import record_of
from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.kernel.watcher import of_nodes, read_samples, restart_if_truncated
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunState, RunStatus, make_handle
from jupyter_amltrain.text import new_run_id

log = logging.getLogger(__name__)

#: Interval of the keep-alive requests; the target's sampler stops 30 s after the last one.
KEEP_ALIVE_INTERVAL_S = 8.0
#: Time without viewers after which a monitor is closed.
FORGET_AFTER_S = 600.0
#: Maximum ended monitors whose charts are renewed_at.
MAX_ENDED_MONITORS = 8
#: Seconds between frames of a monitor's record; live charts are updated separately.
FRAME_INTERVAL_S = 10.0


class _Watch:
    def __init__(
        self, entry: Entry, backend: Backend, monitors: TargetMonitors, gpus: Sequence[int] | None, period: float
    ) -> None:
        self.entry, self.backend, self.monitors, self.gpus, self.period = entry, backend, monitors, gpus, period
        self.stopped, self.ended, self.sampled = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.seen = time.monotonic()


class Monitors:
    """The monitors of this kernel.

    Parameters
    ----------
    backend
        Returns the backend of a target.
    """

    def __init__(self, loop: LoopThread, backend: Callable[[str], Backend]) -> None:
        self._loop, self._backend = loop, backend
        self._all: dict[str, _Watch] = {}

    async def open(self, target: str, gpus: Sequence[int] | None, period: float) -> str:
        """Start to sample `target` every `period` seconds, and return the monitor's handle.

        Raises
        ------
        CommandError
            The GPU does not exist, or the target cannot be monitored.
        TargetUnreachable
            The target does not answer.
        """
        self._loop.check()
        backend = self._backend(target)
        monitor = new_run_id("monitor")
        monitors = backend.monitors
        if monitors is None:
            raise CommandError(
                f"Target {target!r} does not support monitoring.",
                hint="Try: %aml_monitor local, or a run's dashboard.",
                code="monitor.unsupported",
            )
        await monitors.start(monitor, gpus, period)
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
        self._all[run.handle] = watch = _Watch(entry, backend, monitors, gpus, period)
        self._loop.start(self._read(watch), f"monitor {target}")
        return run.handle

    def entry(self, handle: str) -> Entry | None:
        """Return the entry of a monitor of this kernel, or ``None``."""
        watch = self._all.get(handle)
        return None if watch is None else watch.entry

    def running(self, target: str) -> str:
        """Return the handle of a monitor of all GPUs of `target` with a period of at most 1 s, or an empty string."""
        for handle, watch in self._all.items():
            whole = watch.gpus is None and watch.period <= 1.0
            if whole and watch.entry.run.target == target and not watch.stopped.is_set():
                return handle
        return ""

    def change_viewers(self, handle: str, more: int) -> bool:
        """Add (1) or remove (-1) a viewer of a monitor; return whether `handle` is a monitor."""
        watch = self._all.get(handle)
        if watch is not None:
            watch.entry.viewers += more
            watch.seen = time.monotonic()
        return watch is not None

    async def _read(self, watch: _Watch) -> None:
        entry, backend = watch.entry, watch.backend
        name = entry.run.run_id
        changes = backend.events()
        renewed_at = time.monotonic()
        try:
            while not watch.stopped.is_set():
                now = time.monotonic()
                if entry.viewers:
                    watch.seen = now
                elif now - watch.seen > FORGET_AFTER_S:
                    break
                try:
                    if now - renewed_at > KEEP_ALIVE_INTERVAL_S:
                        await watch.monitors.start(name, watch.gpus, watch.period)
                        renewed_at = now
                        # This process may have been paused (a cell that holds the interpreter, a stopped container)
                        # until the sampler stopped: then this request has started another sampler.
                        await of_nodes(
                            backend.machines,
                            lambda number: restart_if_truncated(backend, MONITORS + name, entry.telemetry.node(number)),
                        )
                    if await read_samples(backend, MONITORS + name, entry, backend.machines):
                        watch.sampled.set()
                    self._explain(watch)
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

    def _explain(self, watch: _Watch) -> None:
        """Show why there are no samples yet, until the first one."""
        run = watch.entry.run
        reason = watch.monitors.no_samples_reason(run.run_id) if watch.entry.telemetry.last_t is None else ""
        if reason:
            watch.sampled.set()
        if reason != run.status.detail:
            self._amend(watch.entry, status=msgspec.structs.replace(run.status, detail=reason))

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
            await watch.monitors.stop(watch.entry.run.run_id)
        except TargetUnreachable:  # it ends by itself
            pass

    async def watch(self, handle: str, on_frame: FrameCallback) -> None:
        """Call `on_frame` with the record now, periodically, and at the end."""
        watch = self._all.get(handle)
        if watch is None:
            raise UnknownRun(f"No monitor {handle!r} in this kernel.", hint="Start one: %aml_monitor")
        while True:
            record = record_of(watch.entry)
            on_frame(record, None)
            if record.done:
                return
            # The first frames come quickly, so that a saved notebook shows something.
            pause = FRAME_INTERVAL_S if watch.entry.telemetry.node(0).ticks > 3 else 1.0
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(watch.ended.wait(), pause)

    async def first_sample(self, handle: str, timeout_s: float) -> None:
        """Wait up to `timeout_s` seconds for the first sample of a monitor, or the reason why there is none."""
        watch = self._all.get(handle)
        if watch is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(watch.sampled.wait(), timeout_s)

    async def stop(self, target: str) -> list[str]:
        """End the running monitors of a target, or of all for an empty name; return their handles.

        Raises
        ------
        AmlTrainError
            A target refuses to end one.
        """
        running = [
            handle
            for handle, watch in self._all.items()
            if not watch.stopped.is_set() and target in ("", watch.entry.run.target)
        ]
        for handle in running:
            await self.close(handle)
        return running

    async def close_of(self, target: str) -> None:
        """Close the monitors of a removed target."""
        for handle, watch in list(self._all.items()):
            if watch.entry.run.target == target:
                with contextlib.suppress(AmlTrainError):  # it ends by itself
                    await self.close(handle)

    async def close_all(self) -> None:
        """Close all monitors concurrently, so that closing the kernel is quick."""
        results = await asyncio.gather(*(self.close(handle) for handle in list(self._all)), return_exceptions=True)
        for error in results:
            if isinstance(error, Exception):
                log.warning("closing monitors: %s", error)
