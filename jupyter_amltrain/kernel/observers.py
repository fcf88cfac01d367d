"""Observers of runs: the frames of a run, and waiting until its end is drawn."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from jupyter_amltrain.kernel.run_record import record_of
from jupyter_amltrain.kernel.store import Entry, RunStore
from jupyter_amltrain.loop import TokenBucket
from jupyter_amltrain.schema.record import RunRecord
from jupyter_amltrain.schema.run import Run, RunHandle

#: Maximum frames without a pause after a quiet time.
MAX_FRAME_BURST = 6

#: Maximum rate of record data: each frame has the whole record, so large records are sent less often.
FRAME_BYTES_PER_S = 40_000
#: Seconds of that rate that a run may have sent at once after a quiet time, as the first lines of its log.
FRAME_BURST_S = 0.5
#: The rate for records over so many bytes, such as those of 1,024 GPUs: to make one takes 0.2 s.
LARGE_FRAME_BYTES, LARGE_FRAME_BYTES_PER_S = 150_000, 10_000

#: Shortest and longest interval of frames for new samples alone while a page draws the samples itself: then only the
#: saved notebook needs them.
_MIN_LIVE_INTERVAL_S, _MAX_LIVE_INTERVAL_S = 10.0, 300.0


async def frames(
    store: RunStore, handle: RunHandle, rate: float = 2.0, linger: float = 120.0
) -> AsyncIterator[RunRecord]:
    """Yield records of a run: one now, one after every change, and a last one after its end.

    Parameters
    ----------
    rate
        Maximum average frames per second; after a quiet time a few frames are not delayed, so
        that the first line of a log appears immediately. The end is never delayed.
    linger
        Seconds to continue after the end, until the MLflow record is written.
    """
    changed = asyncio.Event()

    def on_change(run: Run) -> None:
        if run.handle == handle:
            changed.set()

    stop = store.subscribe(on_change)
    linger_until, next_frame_at = 0.0, 0.0
    pace = TokenBucket(rate, MAX_FRAME_BURST)
    try:
        while True:
            changed.clear()
            entry = store.get(handle)
            if entry is None:
                return
            drawn_at, drawn_change = time.monotonic(), entry.changed_at
            record = record_of(entry)
            yield record
            next_frame_at = max(next_frame_at, time.monotonic()) + _sending_s(record)
            if record.done:
                linger_until = linger_until or time.monotonic() + linger
                left = linger_until - time.monotonic()
                if record.tracking.get("state") != "pending" or not await _is_set(changed, left):
                    return
                continue
            await changed.wait()
            while _is_drawn_live(store.get(handle), drawn_at, drawn_change):
                changed.clear()
                await changed.wait()
            while not _ended(store, handle):
                pause = next_frame_at - FRAME_BURST_S - time.monotonic()
                if pause <= 0 and (pause := pace.wait()) == 0:
                    break
                await asyncio.sleep(min(pause, 0.05))
    finally:
        stop()


async def _is_set(event: asyncio.Event, timeout: float) -> bool:
    """Wait for an event for some seconds."""
    if timeout <= 0:
        return False
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(event.wait(), timeout)
    return event.is_set()


def _sending_s(record: RunRecord) -> float:
    """Return the seconds that a frame takes at the maximum rate of record data."""
    # Thumbnails and displays change rarely, so a page that gets them again has nothing to draw.
    images = sum(len(picture.thumbnail) for picture in record.pictures)
    images += len(msgspec.json.encode(record.displays))
    size = len(msgspec.json.encode(record)) - images
    return size / (FRAME_BYTES_PER_S if size <= LARGE_FRAME_BYTES else LARGE_FRAME_BYTES_PER_S)


def _is_drawn_live(entry: Entry | None, drawn_at: float, drawn_change: float) -> bool:
    """Whether a page already shows what is new since `drawn_at`, and the saved record is not too old."""
    if entry is None or entry.changed_at != drawn_change or not entry.telemetry.has_listeners:
        return False
    age = max(0.0, time.time() - entry.run.created)
    interval = min(_MAX_LIVE_INTERVAL_S, max(_MIN_LIVE_INTERVAL_S, age / 2))
    return time.monotonic() - drawn_at < interval


def _ended(store: RunStore, handle: RunHandle) -> bool:
    entry = store.get(handle)
    return entry is None or entry.run.status.state.terminal


log = logging.getLogger(__name__)

#: Minimum duration of a run for which waiting includes its picture.
LONG_RUN_S = 5.0

#: Maximum wait for the end of a run to be drawn.
PICTURE_TIMEOUT_S = 3.0


class RecordPicture(msgspec.Struct, frozen=True, kw_only=True):
    """A record as PNG; `width` and `height` in CSS pixels (the picture has more)."""

    png: bytes
    width: int
    height: int


FrameCallback = Callable[[RunRecord, "RecordPicture | None"], None]


class _Observer:
    """Events of an observer: the end of its run was drawn; the picture was drawn or does not exist."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.drawn = asyncio.Event()


def _is_long(run: Run) -> bool:
    """Return whether waiting for a run includes its picture."""
    return sum(phase.seconds or 0.0 for phase in run.status.phases) > LONG_RUN_S


class RunObservers:
    """Observers of runs, by handle.

    Parameters
    ----------
    picture
        Draws a record, now or when no run starts; returns ``None`` if that fails.
    """

    def __init__(self, store: RunStore, picture: Callable[[RunRecord, bool], Awaitable[RecordPicture | None]]) -> None:
        self._store, self._picture = store, picture
        self._observers: dict[RunHandle, set[_Observer]] = {}

    async def watch(self, handle: RunHandle, on_frame: FrameCallback, rate: float) -> None:
        """Call `on_frame(record, picture)` for every frame of a run until its last one."""
        observer = _Observer()
        self._observers.setdefault(handle, set()).add(observer)
        try:
            await self._draw(handle, on_frame, rate, observer)
        except Exception:  # nobody may read the future of this coroutine: the log gets the error
            log.exception("watching %s ended", handle)
            raise
        finally:
            observer.ended.set()
            observer.drawn.set()
            self._observers[handle].discard(observer)
            if not self._observers[handle]:
                del self._observers[handle]

    async def _draw(self, handle: RunHandle, on_frame: FrameCallback, rate: float, observer: _Observer) -> None:
        picture: RecordPicture | None = None
        async for record in frames(self._store, handle, rate):
            on_frame(record, picture)
            if record.done and not observer.ended.is_set():
                observer.ended.set()
                entry = self._store.get(handle)
                picture = await self._picture(record, entry is not None and _is_long(entry.run))
                entry = self._store.get(handle)
                if picture is not None and entry is not None:
                    on_frame(record_of(entry), picture)
                observer.drawn.set()

    async def wait_drawn(self, run: Run) -> None:
        """Wait until the observers of `run` have drawn its end and, after a long run, its picture.

        A cell that waits for its run must not end before its output is complete, because tools that
        execute notebooks without a page read no later output.
        """
        long = _is_long(run)
        for observer in list(self._observers.get(run.handle, ())):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(observer.ended.wait(), PICTURE_TIMEOUT_S)
                if long:
                    await asyncio.wait_for(observer.drawn.wait(), PICTURE_TIMEOUT_S)
