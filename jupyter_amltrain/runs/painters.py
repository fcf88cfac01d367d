"""Who watches runs: their frames, and the promise that an end was drawn."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import msgspec

from jupyter_amltrain.runs.follow import frames
from jupyter_amltrain.runs.record import record_of
from jupyter_amltrain.runs.store import RunStore
from jupyter_amltrain.spec.record import RunRecord
from jupyter_amltrain.spec.run import Run, RunHandle

log = logging.getLogger(__name__)

#: A run of this length has earned its picture before the waiting for it ends (seconds).
LONG = 5.0
#: How long an end waits for being drawn (seconds).
PATIENCE = 3.0


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """A record as PNG; `width` and `height` in CSS pixels (the picture has more)."""

    png: bytes
    width: int
    height: int


Paint = Callable[[RunRecord, "Picture | None"], None]


class _Painter:
    """Has drawn the end of its run; has drawn the picture too, or there is none."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.drawn = asyncio.Event()


class Painters:
    """Everybody who watches a run, by its handle.

    Parameters
    ----------
    picture
        Draws a record; ``None`` when it cannot.
    """

    def __init__(self, store: RunStore, picture: Callable[[RunRecord], Awaitable[Picture | None]]) -> None:
        self._store, self._picture = store, picture
        self._painters: dict[RunHandle, set[_Painter]] = {}

    async def watch(self, handle: RunHandle, paint: Paint, rate: float) -> None:
        """Call `paint(record, picture)` for every frame of a run until all is said of it."""
        painter = _Painter()
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

    async def _draw(self, handle: RunHandle, paint: Paint, rate: float, painter: _Painter) -> None:
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
        long = sum(phase.seconds or 0.0 for phase in run.status.phases) > LONG
        for painter in list(self._painters.get(run.handle, ())):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(painter.ended.wait(), PATIENCE)
                if long:
                    await asyncio.wait_for(painter.drawn.wait(), PATIENCE)
