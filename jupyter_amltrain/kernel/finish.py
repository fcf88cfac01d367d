"""Finalization of ended runs: last streams, output values, and the message about the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from jupyter_amltrain.agent import testing
from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.backends.streams import Chunk
from jupyter_amltrain.errors import AmlTrainError, ResultMissing
from jupyter_amltrain.jobs import left_out
from jupyter_amltrain.jobs.launch import FINAL_EXIT_CODE
from jupyter_amltrain.kernel.failures import read_failure
from jupyter_amltrain.kernel.log_errors import last_line
from jupyter_amltrain.kernel.mlflow_queue import MlflowImportQueue
from jupyter_amltrain.kernel.observers import RunObservers
from jupyter_amltrain.kernel.outcome_text import failure_reason
from jupyter_amltrain.kernel.result_files import result_files, result_models
from jupyter_amltrain.kernel.run_row import stream_summary_of
from jupyter_amltrain.kernel.store import Entry, RunStore
from jupyter_amltrain.kernel.streams import MetricLog
from jupyter_amltrain.kernel.watcher import read_streams
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.failure import FailedFrame
from jupyter_amltrain.schema.run import Run, RunHandle, RunState, RunStatus
from jupyter_amltrain.schema.run_file import OutValue

log = logging.getLogger(__name__)


async def refresh_run(backend: Backend, entry: Entry) -> dict[str, Any]:
    """Read the streams of a run, and return the fields that an ended run gets besides its status."""
    try:
        await read_streams(backend, entry, entry.run.status)
    except AmlTrainError:
        raise
    except Exception:  # a job can write anything into its streams; the rest of the run is still shown
        if "streams" not in entry.faults:
            entry.faults.add("streams")
            log.warning("reading %s", entry.run.handle, exc_info=True)
    return await outcome_fields(backend, entry, entry.run.status)


async def outcome_fields(backend: Backend, entry: Entry, status: RunStatus) -> dict[str, Any]:
    """Return the fields of an ended run: models among its files, ``--out`` values, and the error, if any."""
    run = entry.run
    if not status.state.terminal or run.damaged:
        return {}
    fields: dict[str, Any] = {}
    if run.models is None:
        fields = {"models": await _models(backend, run)}
    if status.state is not RunState.COMPLETED:
        ended = msgspec.structs.replace(run, status=status)
        if entry.frames is None:
            entry.frames = await _frames(backend, run, status)
        shown, missed = entry.shown_log.tail()[0], ""
        if status.state is RunState.FAILED and not run.partial:
            missed = await asyncio.to_thread(left_out.missed_note, run.spec, last_line(shown), backend.files.are_local)
        error = failure_reason(ended, shown, missed)
        has_reason = run.spec.is_driver or run.spec.own_trials is not None
        if has_reason and status.exit_code == FINAL_EXIT_CODE:  # it says why
            error = (await backend.children.list(run.run_id)).message or error
        return {**fields, "error": error}
    absent = [name for name in run.spec.out_names if name not in run.outputs and name not in run.saved]
    if not absent:
        return fields
    found = await backend.files.outputs(run.run_id, absent)
    given = {k: v for k, v in found.items() if isinstance(v, OutValue)}
    missing = [v for v in found.values() if isinstance(v, AmlTrainError)]
    missing_error: AmlTrainError | None = missing[0] if missing else None
    known = [v for v in missing if isinstance(v, ResultMissing)]
    if missing and len(known) == len(missing):
        missing_error = ResultMissing.of_all(run.handle, known)
    return {
        **fields,
        "outputs": {**entry.run.outputs, **{k: v.value for k, v in given.items() if v.value is not msgspec.UNSET}},
        "saved": {**entry.run.saved, **{k: v.saved for k, v in given.items() if v.saved is not None}},
        "graphs": {**entry.run.graphs, **{k: v.graph for k, v in given.items() if v.graph}},
        "error": None if missing_error is None else str(missing_error),
    }


async def _frames(backend: Backend, run: Run, status: RunStatus) -> tuple[FailedFrame, ...] | None:
    try:
        return await read_failure(backend, run, status)
    except (AmlTrainError, OSError) as error:  # the rest of the run is still shown
        log.info("values at the failure of %s: %s", run.handle, error)
        return None


async def _models(backend: Backend, run: Run) -> tuple[str, ...]:
    if backend.files.lists_by_service:
        return ()
    try:
        return tuple(await result_models(backend, run, await result_files(backend, run)))
    except (AmlTrainError, OSError) as error:  # the rest of the run is still shown
        log.info("files of %s: %s", run.handle, error)
        return ()


async def read_all_metrics(backend: Backend, run_id: str) -> MetricLog:
    """Return all metrics of a run, without caching them."""
    metrics, offset = MetricLog(), 0
    while (chunk := await backend.read(run_id, "metrics", offset)).data:
        await asyncio.to_thread(metrics.feed, chunk.data)
        offset = chunk.offset
    return metrics


async def read_log(
    backend: Backend, run_id: str, tail_bytes: int | None = None, child: str = "", rank: int = 0
) -> bytes:
    """Return the log of one process of a run or of a child run: all of it, or the last `tail_bytes` bytes."""

    async def read(offset: int, limit: int = 1 << 20) -> Chunk:
        if child:
            return await backend.children.read_log(run_id, child, offset, limit)
        return await backend.read(run_id, f"log/{rank}", offset, limit)

    if tail_bytes is not None:
        return (await read(-tail_bytes, tail_bytes)).data
    parts, offset = [], 0
    while (chunk := await read(offset)).data:
        parts.append(chunk.data)
        offset = chunk.offset
    return b"".join(parts)


#: Maximum ended runs without viewers whose streams are cached; a run with 64 GPUs takes about 11 MB.
MAX_CACHED_RUNS = 16


class StreamCache:
    """Cache of the streams of ended runs; releases those read least recently. Loop thread only.

    Parameters
    ----------
    most
        Maximum ended runs whose streams are kept.
    """

    def __init__(self, store: RunStore, most: int = MAX_CACHED_RUNS) -> None:
        self._store, self._max_runs = store, most
        self._read: dict[RunHandle, None] = {}  #: in the order of reading

    @contextmanager
    def reading(self, handle: RunHandle) -> Iterator[None]:
        """Keep the streams of a run while they are being read; afterwards the streams of others may be released."""
        entry = self._store.get(handle)
        if entry is not None:
            entry.viewers += 1
        try:
            yield
        finally:
            if entry is not None:
                entry.viewers -= 1
                self.read(handle)

    def read(self, handle: RunHandle) -> None:
        """Note that the streams of a run were read, and release older ones."""
        self._read.pop(handle, None)
        self._read[handle] = None
        for handle in list(self._read)[: max(0, len(self._read) - self._max_runs)]:
            entry = self._store.get(handle)
            if entry is None:
                del self._read[handle]
            elif entry.run.status.state.terminal and not entry.viewers and not entry.telemetry.has_listeners:
                del self._read[handle]
                release_streams(entry)


def release_streams(entry: Entry) -> None:
    """Release the streams of an entry, whose row keeps their summary."""
    if entry.read:
        entry.stream_summary = stream_summary_of(entry)
    entry.release()


class RunFinalizer:
    """Finalizes ended runs and wakes their waiters. Loop thread only.

    Parameters
    ----------
    backend
        Returns the live backend of a target.
    """

    def __init__(
        self,
        loop: LoopThread,
        store: RunStore,
        imports: MlflowImportQueue,
        painters: RunObservers,
        kept: StreamCache,
        backend: Callable[[str], Backend],
    ) -> None:
        self._loop, self._store, self._imports, self._observers = loop, store, imports, painters
        self._stream_cache, self._backend = kept, backend
        self._events: dict[RunHandle, asyncio.Event] = {}

    async def wait(self, entry: Entry) -> None:
        """Wait until a run has ended; meanwhile it counts as viewed, so that its target polls it closely."""
        if entry.run.status.state.terminal:
            return
        event = self._event(entry.run.handle)
        event.clear()  # it may be set by a submit that seemed to have failed
        entry.viewers += 1
        try:
            await event.wait()
        finally:
            entry.viewers -= 1

    def ended(self, handle: RunHandle) -> None:
        """Wake the waiters of a run."""
        self._event(handle).set()

    def on_removed(self, handle: RunHandle) -> None:
        """Wake the waiters of a run that was removed with its target."""
        self.ended(handle)
        self.forget(handle)  # waiters hold the event

    def forget(self, handle: RunHandle) -> None:
        """Drop the event of a run that was deleted."""
        self._events.pop(handle, None)

    def _event(self, handle: RunHandle) -> asyncio.Event:
        return self._events.setdefault(handle, asyncio.Event())

    async def outcome(self, entry: Entry, status: RunStatus) -> dict[str, Any]:
        """Return the fields that an ended run gets besides its last status."""
        testing.hit("kernel_before_finish")
        try:
            return await outcome_fields(self._backend(entry.run.target), entry, status)
        except AmlTrainError as error:
            return {"error": str(error)}
        except Exception as error:  # waiters must not wait forever because of the files of a run
            log.exception("the outcome of %s", entry.run.handle)
            return {"error": f"{entry.run.handle} has ended, but its output values cannot be read: {error}."}

    def on_ended(self, handle: RunHandle) -> None:
        """Finalize a run whose end is in the store."""
        self._loop.start(self._finish(handle), f"finish {handle}")

    async def _finish(self, handle: RunHandle) -> None:
        """Wake the waiters of a run and write its MLflow record."""
        self.ended(handle)
        testing.hit("kernel_before_import")
        entry = self._store.get(handle)
        if entry is None:  # deleted in the meantime
            return
        if self._imports.request(entry.run):
            # The worker handles one request at a time: pictures for viewers come first.
            await self._observers.wait_drawn(entry.run)
            await self._imports.quiet()
            await self._imports.run(handle)
        self._stream_cache.read(handle)
