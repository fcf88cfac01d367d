"""Runs of the widths of a measurement, one after another: side by side they would slow each other down.

The kernel submits the next width when the one before has ended, so that this works on every target. If the kernel
ends, the width that runs goes on, and the others are not submitted. Loop thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import msgspec

from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.backends.provisioner import ProvisionState
from jupyter_amltrain.errors import AmlTrainError, CommandError
from jupyter_amltrain.jobs.scaling import ScalingPlan, slice_limits
from jupyter_amltrain.kernel.store import Entry, RunStore
from jupyter_amltrain.kernel.submit_queue import SubmitQueue
from jupyter_amltrain.kernel.target_status import TargetEntry
from jupyter_amltrain.kernel.throughput import is_whole, measure
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import RunHandle, RunState

#: Seconds after the end of a slice by which its agent must have ended the run; then the kernel cancels it.
OVERDUE_S = 30.0
#: Seconds between two looks at a run that should have ended.
_CHECK_INTERVAL_S = 1.0


class MeasuredMachine(NamedTuple):
    """What a measurement must know of a target; ``None`` for what is not known.

    Attributes
    ----------
    name
        Of the target.
    price
        Of one machine per hour.
    busy
        Number of runs that are there already.
    """

    name: str
    cpus: int | None = None
    gpus: int | None = None
    price: float | None = None
    currency: str = ""
    busy: int = 0

    def check(self, plan: ScalingPlan, spec: JobSpec) -> None:
        """Raise :class:`CommandError` if there are fewer GPUs than processes that need one each."""
        if plan.unit != "processes" or not self.gpus or spec.resources.gpus == 0 or plan.widths[-1] <= self.gpus:
            return
        fitting = [str(width) for width in plan.widths if width <= self.gpus]
        raise CommandError(
            f"--scaling: {plan.widths[-1]} processes need {plan.widths[-1]} GPUs, and {self.name!r} has {self.gpus}.",
            hint=f"Try: --scaling {','.join(fitting)}" if len(fitting) > 1 else "On its processors: --gpus 0",
            code="scaling.width",
            field="scaling",
        )

    def notes(self, plan: ScalingPlan) -> tuple[str, ...]:
        """Return what may distort the measurement, one sentence each."""
        notes = []
        widest = plan.widths[-1]
        if plan.unit == "processes" and not self.gpus and self.cpus and widest > self.cpus:
            cpus = "1 CPU" if self.cpus == 1 else f"{self.cpus} CPUs"
            notes.append(f"{widest} processes share the {cpus} of {self.name!r}.")
        if self.busy:
            others = "1 other run is" if self.busy == 1 else f"{self.busy} other runs are"
            notes.append(f"{others} on {self.name!r} and may slow down the measurement.")
        return tuple(notes)


def machine_of(name: str, target: TargetEntry | None) -> MeasuredMachine:
    """Return what is known of a target."""
    if target is None:
        return MeasuredMachine(name)
    info, state = target.info, target.state or ProvisionState()
    cpus, gpus, busy = state.cpus, state.gpus, 0
    if info is not None:
        cpus, gpus = cpus or info.cpus, len(info.gpus) if gpus is None else gpus
        # Runs elsewhere in a cluster do not share the machine.
        busy = info.running if state.max_nodes is None else 0
    return MeasuredMachine(name, cpus, gpus, state.price_node or None, state.currency, busy)


class ScalingDriver:
    """Submits the widths of measurements in turn.

    Parameters
    ----------
    ended
        Waits until a run has ended and its streams are read.
    on_ended
        Called with a run that has ended without being submitted.
    cancel
        Requests the cancellation of a run.
    """

    def __init__(
        self,
        loop: LoopThread,
        store: RunStore,
        queue: SubmitQueue,
        ended: Callable[[RunHandle], Awaitable[None]],
        on_ended: Callable[[RunHandle], None],
        cancel: Callable[[RunHandle], Awaitable[object]],
    ) -> None:
        self._loop, self._store, self._queue = loop, store, queue
        self._ended, self._on_ended, self._cancel = ended, on_ended, cancel
        self._waiting: dict[RunHandle, Sequence[RunHandle]] = {}  #: the run itself, and those after it

    def begin(
        self, backend: Backend, specs: Sequence[JobSpec], environ: dict[str, str], secrets: dict[str, str]
    ) -> tuple[RunHandle, ...]:
        """Reserve the runs of checked jobs, start the first, and return the handles in the same order."""
        handles: list[RunHandle] = []
        for spec in specs:
            detail = f"starts when {handles[-1]} has ended" if handles else ""
            handles.append(self._queue.reserve(backend, spec, secrets, detail).handle)
        self._waiting |= {handle: handles[k:] for k, handle in enumerate(handles)}
        self._loop.start(self._drive(backend, handles, environ, secrets), f"scaling {handles[0]}")
        return tuple(handles)

    def skip(self, handle: RunHandle) -> bool:
        """End a run that waits for its turn, and those after it; return whether it did wait."""
        if handle not in self._waiting:
            return False
        for one in self._waiting[handle]:
            if self._waiting.pop(one, None) is not None:
                self._end(one, "canceled before its turn")
        return True

    async def _drive(
        self, backend: Backend, handles: Sequence[RunHandle], environ: dict[str, str], secrets: dict[str, str]
    ) -> None:
        for k, handle in enumerate(handles):
            entry = self._store.get(handle)
            if self._waiting.pop(handle, None) is None or entry is None:  # canceled, or its target was deleted
                return
            self._store.amend(handle, status=msgspec.structs.replace(entry.run.status, detail=""))
            self._queue.start(backend, entry.run, environ, secrets)
            is_ended_here = await self._until_end(entry)
            if reason := self._reason_to_stop(entry, is_ended_here):
                for rest in handles[k + 1 :]:
                    if self._waiting.pop(rest, None) is not None:
                        self._end(rest, reason)
                return

    async def _until_end(self, entry: Entry) -> bool:
        """Wait for the end of a run, or end it if no agent does, as on several machines; return whether that was so."""
        run, limits = entry.run, entry.run.spec.scaling
        assert limits is not None
        margin = OVERDUE_S if slice_limits(run.spec) else 0.0
        waiting = asyncio.ensure_future(self._ended(run.handle))
        end_by, is_ended_here = math.inf, False
        try:
            while not waiting.done():
                await asyncio.wait({waiting}, timeout=_CHECK_INTERVAL_S)
                metrics, now = entry.metrics.metrics, time.monotonic()
                if end_by == math.inf and any(len(metric.times) > 1 for metric in metrics.values()):
                    end_by = now + limits.seconds + margin  # by our clock, which a machine's may differ from
                is_due = now >= end_by or (not margin and is_whole(metrics, limits))
                if is_due and not waiting.done() and not entry.run.status.cancel_requested:
                    with contextlib.suppress(AmlTrainError):  # tried again
                        await self._cancel(run.handle)
                        is_ended_here = True
            waiting.result()
        finally:
            waiting.cancel()
        return is_ended_here

    @staticmethod
    def _reason_to_stop(entry: Entry, is_ended_here: bool) -> str:
        """Return why the further widths would show nothing; empty if they are to be measured."""
        run, limits = entry.run, entry.run.spec.scaling
        assert limits is not None
        state = run.status.state
        if state is RunState.COMPLETED or (state is RunState.CANCELED and is_ended_here):
            found = measure(entry.metrics.metrics, limits)
            return f"{run.handle} logged no metric with steps" if found.problem == "none" else ""
        return f"{run.handle} {'was canceled' if state is RunState.CANCELED else 'failed'}"

    def _end(self, handle: RunHandle, reason: str) -> None:
        entry = self._store.get(handle)
        if entry is None:
            return
        status = msgspec.structs.replace(
            entry.run.status, state=RunState.CANCELED, reason="canceled", detail=f"not measured: {reason}", version=1
        )
        self._store.amend(handle, status=status)
        self._on_ended(handle)
