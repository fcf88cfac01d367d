"""Observers of runs: their frames, and the promise that an end was drawn."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from jupyter_amltrain.kernel.record import record_of
from jupyter_amltrain.kernel.store import RunStore
from jupyter_amltrain.loop import Pace
from jupyter_amltrain.schema.record import RunRecord
from jupyter_amltrain.schema.run import Run, RunHandle

#: Frames that may come at once after a quiet time.
MAX_FRAME_BURST = 6

#: A record goes out whole: a large one goes out less often, at most so many bytes a second.
FRAME_BYTES_PER_S = 40_000


async def frames(
    store: RunStore, handle: RunHandle, rate: float = 2.0, linger: float = 120.0
) -> AsyncIterator[RunRecord]:
    """Records of a run: one now, one after every change, the last one when all is said.

    Parameters
    ----------
    rate
        Frames a second at most, on average; a few after a quiet time come at once, so
        that the first line of a log is not held back. The end is always drawn at once.
    linger
        Seconds to go on after the end, for the news that the MLflow record is written.
    """
    changed = asyncio.Event()

    def tell(run: Run) -> None:
        if run.handle == handle:
            changed.set()

    stop = store.subscribe(tell)
    ended = 0.0
    pace = Pace(rate, MAX_FRAME_BURST)
    try:
        while True:
            changed.clear()
            entry = store.get(handle)
            if entry is None:
                return
            record = record_of(entry)
            yield record
            rested = time.monotonic() + len(msgspec.json.encode(record)) / FRAME_BYTES_PER_S
            if record.done:
                ended = ended or time.monotonic()
                left = linger - (time.monotonic() - ended)
                if record.tracking.get("state") != "pending" or left <= 0:
                    return
                try:
                    await asyncio.wait_for(changed.wait(), left)
                except asyncio.TimeoutError:
                    return
                continue
            await changed.wait()
            while not _ended(store, handle):
                pause = rested - time.monotonic()
                if pause <= 0 and (pause := pace.wait()) == 0:
                    break
                await asyncio.sleep(min(pause, 0.05))
    finally:
        stop()


def _ended(store: RunStore, handle: RunHandle) -> bool:
    entry = store.get(handle)
    return entry is None or entry.run.status.state.terminal


log = logging.getLogger(__name__)

#: A run of this length has earned its picture before the waiting for it ends (seconds).
LONG_RUN_S = 5.0

#: How long an end waits for being drawn (seconds).
PICTURE_TIMEOUT_S = 3.0


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """A record as PNG; `width` and `height` in CSS pixels (the picture has more)."""

    png: bytes
    width: int
    height: int


FrameCallback = Callable[[RunRecord, "Picture | None"], None]


class _Observer:
    """Has drawn the end of its run; has drawn the picture too, or there is none."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.drawn = asyncio.Event()


class RunObservers:
    """Everybody who watches a run, by its handle.

    Parameters
    ----------
    picture
        Draws a record; ``None`` when it cannot.
    """

    def __init__(self, store: RunStore, picture: Callable[[RunRecord], Awaitable[Picture | None]]) -> None:
        self._store, self._picture = store, picture
        self._painters: dict[RunHandle, set[_Observer]] = {}

    async def watch(self, handle: RunHandle, paint: FrameCallback, rate: float) -> None:
        """Call `paint(record, picture)` for every frame of a run until all is said of it."""
        painter = _Observer()
        self._painters.setdefault(handle, set()).add(painter)
        try:
            await self._draw(handle, paint, rate, painter)
        except Exception:
            log.exception("watching %s ended", handle)
            raise
        finally:
            painter.ended.set()
            painter.drawn.set()
            self._painters[handle].discard(painter)
            if not self._painters[handle]:
                del self._painters[handle]

    async def _draw(self, handle: RunHandle, paint: FrameCallback, rate: float, painter: _Observer) -> None:
        picture: Picture | None = None
        async for record in frames(self._store, handle, rate):
            paint(record, picture)
            if record.done and not painter.ended.is_set():
                painter.ended.set()
                picture = await self._picture(record)
                entry = self._store.get(handle)
                if picture is not None and entry is not None:
                    paint(record_of(entry), picture)
                painter.drawn.set()

    async def painted(self, run: Run) -> None:
        """Wait until who watches `run` has drawn its end and, after a long run, its picture.

        A cell that waited for its run must not be over before its output is right: what
        executes notebooks without a page reads no further.
        """
        long = sum(phase.seconds or 0.0 for phase in run.status.phases) > LONG_RUN_S
        for painter in list(self._painters.get(run.handle, ())):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(painter.ended.wait(), PICTURE_TIMEOUT_S)
                if long:
                    await asyncio.wait_for(painter.drawn.wait(), PICTURE_TIMEOUT_S)
