"""GPU streams of pages: of runs, and of targets that are sampled as long as a page looks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.monitors import Monitors
from jupyter_amltrain.panel.gpu_ticks import GpuTicks, note_of
from jupyter_amltrain.panel.page import RATE, Page
from jupyter_amltrain.panel.protocol import Gpus
from jupyter_amltrain.runs.pace import Pace
from jupyter_amltrain.runs.store import Entry

log = logging.getLogger(__name__)

#: What stands before a target's name where a run's handle could stand.
TARGET = "target:"
#: An answer waits so long for a target to begin (seconds); what comes later is said by an event.
PATIENCE = 1.5
#: Seconds between two looks at what no tick tells: the driver's note, the end.
LOOK = 2.0
#: A monitor of ours that ended is not begun again sooner than this after its begin (seconds).
AGAIN = 30.0


class Sources(Protocol):
    """Who knows runs and monitors; the controller is one."""

    monitors: Monitors

    @property
    def loop(self) -> LoopThread:
        """The loop."""

    async def source(self, handle: str) -> Entry:
        """The entry of a run or monitor, with its streams up to date."""

    def shown(self, handle: str, more: int) -> None:
        """Somebody looks at a run or monitor (1) or has stopped to (-1)."""


class _Stream:
    """One source for any number of pages and meters."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.since = time.monotonic()
        self.entry: Entry | None = None
        self.why = ""
        self.pages: dict[Page, _Reader] = {}
        self.meters = 0
        self.opened = ""  #: the monitor that was begun for it
        self.opening: asyncio.Task[None] | None = None
        self.stop: Callable[[], None] = lambda: None


class _Reader:
    """What one page has of a stream."""

    def __init__(self) -> None:
        self.ticks: GpuTicks | None = None
        self.pace = Pace(RATE, 1)
        self.timer: Any = None
        self.note = ""
        self.ended = False


class Streams:
    """See the module's docstring. Everything here runs on the loop."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._all: dict[str, _Stream] = {}
        self._looking: asyncio.Task[None] | None = None

    async def follow(self, page: Page, source: str) -> str:
        """Let a page have the ticks of `source` and of no other; returns why there will be none."""
        for other in list(self._all.values()):
            if other.source != source or not source:
                self._drop(other, page)
        if not source:
            return ""
        stream = self._stream(source)
        if page not in stream.pages:
            stream.pages[page] = _Reader()
        why = await self._opened(stream)
        self._kick(stream, page)
        return why

    def again(self, page: Page) -> None:
        """The page has lost what it had, or shows it again: it gets the past anew."""
        for stream in self._all.values():
            reader = stream.pages.get(page)
            if reader is not None:
                reader.ticks, reader.note, reader.ended = None, "", False
                self._kick(stream, page)

    async def meter(self, source: str) -> str:
        """Sample `source` for a meter until :meth:`unmeter`; returns why it cannot."""
        stream = self._stream(source)
        stream.meters += 1
        return await self._opened(stream)

    def unmeter(self, source: str) -> None:
        """The other end of :meth:`meter`."""
        stream = self._all.get(source)
        if stream is not None:
            stream.meters -= 1
            self._unused(stream)

    def mean(self, source: str) -> tuple[int, float | None]:
        """Number of GPUs of a followed source and their mean utilization now."""
        stream = self._all.get(source)
        if stream is None or stream.entry is None:
            return 0, None
        ticks = GpuTicks(stream.entry)
        return ticks.count, ticks.mean()

    def _stream(self, source: str) -> _Stream:
        stream = self._all.get(source)
        if stream is None or (stream.why and (stream.opening is None or stream.opening.done())):
            fresh = _Stream(source)  # what failed once may work now
            if stream is not None:
                fresh.pages, fresh.meters = stream.pages, stream.meters
            stream = self._all[source] = fresh
            stream.opening = self._sources.loop.start(self._open(stream), f"GPUs of {source}")
        return stream

    async def _opened(self, stream: _Stream) -> str:
        if stream.opening is not None:
            await asyncio.wait({stream.opening}, timeout=PATIENCE)
        return stream.why

    async def _open(self, stream: _Stream) -> None:
        try:
            if stream.source.startswith(TARGET):
                entry = await self._sampled(stream, stream.source[len(TARGET) :])
            else:
                entry = await self._sources.source(stream.source)
        except (AmlTrainError, OSError) as error:
            stream.why = str(error)
            self._tell(stream)
            return
        if self._all.get(stream.source) is not stream:
            if stream.opened:
                await self._sources.monitors.close(stream.opened)
            return
        stream.entry = entry
        self._sources.shown(entry.run.handle, 1)
        stop = entry.telemetry.listen(lambda node, first: self._tell(stream))

        def stopped() -> None:
            stop()
            self._sources.shown(entry.run.handle, -1)

        stream.stop = stopped
        self._tell(stream)
        if self._looking is None or self._looking.done():
            self._looking = self._sources.loop.start(self._look(), "GPU streams")

    async def _sampled(self, stream: _Stream, target: str) -> Entry:
        """The entry of a monitor of a target: one that there is, else a new one."""
        monitors = self._sources.monitors
        handle = monitors.running(target)
        if not handle:
            handle = stream.opened = await monitors.open(target, None, 1.0)
        entry = monitors.entry(handle)
        assert entry is not None
        return entry

    async def _look(self) -> None:
        """Notes and ends come without a tick."""
        while any(stream.entry is not None for stream in self._all.values()):
            await asyncio.sleep(LOOK)
            for stream in list(self._all.values()):
                entry = stream.entry
                over = entry is not None and entry.kind == "monitor" and entry.run.status.state.terminal
                lasted = not stream.opened or time.monotonic() - stream.since > AGAIN
                if over and lasted and (stream.pages or stream.meters):
                    # Somebody closed the monitor that we shared: begin one of our own.
                    self._replace(stream)
                else:
                    self._tell(stream)

    def _replace(self, stream: _Stream) -> None:
        stream.stop()
        fresh = _Stream(stream.source)
        fresh.pages = {page: _Reader() for page in stream.pages}
        fresh.meters = stream.meters
        self._all[stream.source] = fresh
        fresh.opening = self._sources.loop.start(self._open(fresh), f"GPUs of {stream.source}")

    def _tell(self, stream: _Stream) -> None:
        for page in list(stream.pages):
            self._kick(stream, page)

    def _kick(self, stream: _Stream, page: Page) -> None:
        reader = stream.pages.get(page)
        if reader is not None and reader.timer is None:
            loop = asyncio.get_running_loop()
            reader.timer = loop.call_later(reader.pace.due(), self._flush, stream.source, page)

    def _flush(self, source: str, page: Page) -> None:
        stream = self._all.get(source)
        reader = stream.pages.get(page) if stream is not None else None
        if stream is None or reader is None:
            return
        reader.timer = None
        if not page.listens or not page.seen or reader.ended:
            return
        if reader.pace.due():
            self._kick(stream, page)
            return
        entry = stream.entry
        if entry is None:
            if stream.why and stream.why != reader.note:
                reader.note = stream.why
                reader.pace.wait()
                page.send(Gpus, source=source, first=True, note=stream.why, ended=True)
            return
        if reader.ticks is None:
            reader.ticks = GpuTicks(entry)
        found, note = reader.ticks.next(), note_of(entry)
        ended = entry.run.status.state.terminal
        if found is None and note == reader.note and not ended:
            return
        fields, buffers = found or ({}, [])
        reader.note, reader.ended = note, ended
        reader.pace.wait()
        page.send(Gpus, buffers, source=source, note=note, ended=ended, **fields)

    def forget(self, page: Page) -> None:
        """A page is gone or hidden."""
        for stream in list(self._all.values()):
            self._drop(stream, page)

    def _drop(self, stream: _Stream, page: Page) -> None:
        reader = stream.pages.pop(page, None)
        if reader is not None:
            if reader.timer is not None:
                reader.timer.cancel()
            self._unused(stream)

    def _unused(self, stream: _Stream) -> None:
        if stream.pages or stream.meters > 0:
            return
        if self._all.get(stream.source) is stream:
            del self._all[stream.source]
        stream.stop()
        stream.stop = lambda: None
        if stream.entry is not None and stream.opened:
            self._sources.loop.start(self._sources.monitors.close(stream.opened), f"end of {stream.opened}")

    def close(self) -> None:
        """End all of them."""
        if self._looking is not None:
            self._looking.cancel()
        for stream in list(self._all.values()):
            for reader in stream.pages.values():
                if reader.timer is not None:
                    reader.timer.cancel()
            stream.pages.clear()
            stream.meters = 0
            self._unused(stream)
