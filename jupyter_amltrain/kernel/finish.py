"""The end of a run: its last streams, its values, the sentence that says how it ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from jupyter_amltrain.agent import testing
from jupyter_amltrain.backends.base import Backend, Chunk
from jupyter_amltrain.errors import AmlTrainError, ResultMissing
from jupyter_amltrain.kernel.mlflow_queue import MlflowImportQueue
from jupyter_amltrain.kernel.observers import RunObservers
from jupyter_amltrain.kernel.outcome_text import failure_sentence
from jupyter_amltrain.kernel.run_row import stream_summary_of
from jupyter_amltrain.kernel.store import Entry, RunStore
from jupyter_amltrain.kernel.watcher import read_streams
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.run import RunHandle, RunState, RunStatus

log = logging.getLogger(__name__)


async def refresh_run(backend: Backend, entry: Entry) -> dict[str, Any]:
    """Read what the streams have; the fields that an ended run gets beside its status."""
    try:
        await read_streams(backend, entry, entry.run.status)
    except AmlTrainError:
        raise
    except Exception:  # a job can write anything into them: what else is known of the run is shown
        if "streams" not in entry.faults:
            entry.faults.add("streams")
            log.warning("reading %s", entry.run.handle, exc_info=True)
    return await outcome_fields(backend, entry, entry.run.status)


async def outcome_fields(backend: Backend, entry: Entry, status: RunStatus) -> dict[str, Any]:
    """Values of ``--out`` and, unless all is well, one sentence why. Fields of a run."""
    run = entry.run
    if not status.state.terminal or run.damaged:
        return {}
    if status.state is not RunState.COMPLETED:
        ended = msgspec.structs.replace(run, status=status)
        return {"error": failure_sentence(ended, entry.log.tail()[0])}
    absent = [name for name in run.spec.out if name not in run.outputs]
    if not absent:
        return {}
    found = await backend.outputs(run.run_id, absent)
    values = {k: v for k, v in found.items() if not isinstance(v, AmlTrainError)}
    missing = [v for v in found.values() if isinstance(v, AmlTrainError)]
    error: AmlTrainError | None = missing[0] if missing else None
    known = [v for v in missing if isinstance(v, ResultMissing)]
    if missing and len(known) == len(missing):
        error = ResultMissing.of_all(run.handle, known)
    return {"outputs": {**entry.run.outputs, **values}, "error": None if error is None else str(error)}


async def read_log(
    backend: Backend, run_id: str, tail_bytes: int | None = None, child: str = "", rank: int = 0
) -> bytes:
    """The log of one process of a run, or of its child of that id: all of it, or its last `tail_bytes` bytes."""

    async def read(offset: int, limit: int = 1 << 20) -> Chunk:
        if child:
            return await backend.read_child(run_id, child, offset, limit)
        return await backend.read(run_id, f"log/{rank}", offset, limit)

    if tail_bytes is not None:
        return (await read(-tail_bytes, tail_bytes)).data
    parts, offset = [], 0
    while (chunk := await read(offset)).data:
        parts.append(chunk.data)
        offset = chunk.offset
    return b"".join(parts)


#: Ended runs whose streams are kept although nobody looks: one of 64 GPUs has some 11 MB.
MAX_CACHED_RUNS = 16


class StreamCache:
    """Releases streams that can be read again from the target. Loop thread only.

    Parameters
    ----------
    most
        Ended runs whose streams are kept.
    """

    def __init__(self, store: RunStore, most: int = MAX_CACHED_RUNS) -> None:
        self._store, self._most = store, most
        self._read: dict[RunHandle, None] = {}  #: the one that was read last is the last

    @contextmanager
    def reading(self, handle: RunHandle) -> Iterator[None]:
        """The streams of a run are being read: they are not let go of meanwhile, and others may be after it."""
        entry = self._store.get(handle)
        if entry is not None:
            entry.lookers += 1
        try:
            yield
        finally:
            if entry is not None:
                entry.lookers -= 1
                self.read(handle)

    def read(self, handle: RunHandle) -> None:
        """The streams of a run were read."""
        self._read.pop(handle, None)
        self._read[handle] = None
        for handle in list(self._read)[: max(0, len(self._read) - self._most)]:
            entry = self._store.get(handle)
            if entry is None:
                del self._read[handle]
            elif entry.run.status.state.terminal and not entry.lookers and not entry.telemetry.heard:
                del self._read[handle]
                release_streams(entry)


def release_streams(entry: Entry) -> None:
    """Forget the streams of an entry; its row goes on saying what they said."""
    if entry.read:
        entry.brief = stream_summary_of(entry)
    entry.release()


class RunFinalizer:
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
        imports: MlflowImportQueue,
        painters: RunObservers,
        kept: StreamCache,
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
        testing.hit("kernel_before_finish")
        try:
            return await outcome_fields(self._backend(entry.run.target), entry, status)
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
        testing.hit("kernel_before_import")
        entry = self._store.get(handle)
        if entry is None:  # deleted at once
            return
        if self._imports.ask(entry.run):
            # The worker does one thing at a time: first what somebody looks at.
            await self._painters.painted(entry.run)
            await self._imports.run(handle)
        self._kept.read(handle)
