"""Frames of one run for somebody who looks: on change, at most so many a second, to the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import msgspec

from jupyter_amltrain.runs.pace import Pace
from jupyter_amltrain.runs.record import record_of
from jupyter_amltrain.runs.store import RunStore
from jupyter_amltrain.spec.record import RunRecord
from jupyter_amltrain.spec.run import Run, RunHandle

#: Frames that may come at once after a quiet time.
BURST = 6
#: A record goes out whole: a large one goes out less often, at most so many bytes a second.
BYTES = 40_000


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
    pace = Pace(rate, BURST)
    try:
        while True:
            changed.clear()
            entry = store.get(handle)
            if entry is None:
                return
            record = record_of(entry)
            yield record
            rested = time.monotonic() + len(msgspec.json.encode(record)) / BYTES
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
