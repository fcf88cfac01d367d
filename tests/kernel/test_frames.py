"""Frames of a run's record: after every change, and rarely for samples that a page draws itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest

from jupyter_amltrain.kernel import observers
from jupyter_amltrain.kernel.store import Entry, RunStore
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.record import RunRecord
from tests.output.test_feed import entry_of

DEADLINE = 60.0


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread("test-loop")
    yield thread
    thread.close()


@pytest.mark.parametrize("live", [True, False])
def test_samples_drawn_by_page_bring_no_frame(loop: LoopThread, live: bool) -> None:
    async def story() -> tuple[int, int]:
        store = RunStore(loop)
        run = entry_of().run
        store.put(run)
        entry = store.get(run.handle)
        assert entry is not None
        if live:
            entry.telemetry.listen(lambda node, first: None)
        drawn: list[RunRecord] = []

        async def draw() -> None:
            async for record in observers.frames(store, run.handle, rate=1000.0):
                drawn.append(record)

        task = asyncio.ensure_future(draw())
        await _until(lambda: len(drawn) == 1)
        store.touch(run.handle, samples_only=True)
        if not live:
            await _until(lambda: len(drawn) == 2)
        for _ in range(20):
            await asyncio.sleep(0)
        after_samples = len(drawn)
        store.touch(run.handle)
        await _until(lambda: len(drawn) > after_samples)
        task.cancel()
        return after_samples, len(drawn)

    assert loop.call(story(), DEADLINE) == ((1, 2) if live else (2, 3))


def test_saved_record_of_live_run_is_renewed_after_interval() -> None:
    entry: Entry = entry_of()
    entry.telemetry.listen(lambda node, first: None)
    now = time.monotonic()
    assert observers._is_drawn_live(entry, now, entry.changed_at)
    assert not observers._is_drawn_live(entry, now - 301, entry.changed_at)
    assert not observers._is_drawn_live(entry, now, entry.changed_at - 1)


async def _until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < end
        await asyncio.sleep(0.001)
