"""The status bar's meter: how busy the GPUs of the target in use are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.panel.page import Page
from jupyter_amltrain.panel.protocol import Meter
from jupyter_amltrain.panel.streams import TARGET, Streams

#: A meter is told no more often (seconds).
LEAST = 1.0
#: A target that could not be sampled is tried again after this (seconds).
RETRY = 30.0


class Sources(Protocol):
    """As much of a controller as is needed here."""

    @property
    def loop(self) -> LoopThread:
        """The loop."""


class Meters:
    """Meters of pages. Runs on the loop.

    Parameters
    ----------
    current
        Name of the target in use.
    """

    def __init__(self, streams: Streams, sources: Sources, current: Callable[[], str]) -> None:
        self._streams, self._sources, self._current = streams, sources, current
        self._all: dict[Page, asyncio.Task[None]] = {}

    async def want(self, page: Page) -> None:
        """Let a page have the meter that it wants now: it may have spoken again while it was answered."""
        task = self._all.get(page)
        there = task is not None and not task.done()
        if not page.wants.meter:
            self.forget(page)
        elif not there:
            self._all[page] = self._sources.loop.start(self._tell(page), f"meter of {page.comm}")

    async def _tell(self, page: Page) -> None:
        source = ""
        last: tuple[str, int, float | None] | None = None
        failed = 0.0  # monotonic seconds when the target last could not be sampled
        try:
            while page.wants.meter:
                wanted = f"{TARGET}{self._current()}" if self._current() else ""
                if wanted != source or (failed and time.monotonic() - failed > RETRY):
                    if source:
                        self._streams.unmeter(source)
                    source, failed = wanted, 0.0
                    if source and await self._streams.meter(source):
                        failed = time.monotonic()
                gpus, util = self._streams.mean(source)
                told = (source[len(TARGET) :], gpus, util)
                # Nothing new of a target that cannot tell is not worth a message.
                if source and page.listens and (util is not None or told != last):
                    last = told
                    page.send(Meter, target=told[0], gpus=gpus, util=util)
                await asyncio.sleep(max(LEAST, page.wants.meter) if gpus else LEAST)
        finally:
            if source:
                self._streams.unmeter(source)

    def forget(self, page: Page) -> None:
        """A page is gone."""
        task = self._all.pop(page, None)
        if task is not None:
            task.cancel()

    def close(self) -> None:
        """End all of them."""
        for page in list(self._all):
            self.forget(page)
