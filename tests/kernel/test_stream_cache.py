from __future__ import annotations

from collections.abc import Iterator

import pytest

from jupyter_amltrain.kernel.finish import StreamCache
from jupyter_amltrain.kernel.run_row import row_of
from jupyter_amltrain.kernel.store import Entry, RunStore
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunHandle, RunState, RunStatus, make_handle

METRIC = b'{"seq": 1, "op": "runs/log-metric", "b": {"key": "loss", "value": 0.5, "timestamp": 1, "step": 1}}\n'


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread("test-loop")
    yield thread
    thread.close()


def _ended(number: int, state: RunState = RunState.COMPLETED) -> Run:
    return Run(handle=make_handle("t", f"r-{number}"), spec=JobSpec(name="r"), status=RunStatus(state=state), created=1)


def test_stream_cache_over_limit_keeps_newest_and_row_values(loop: LoopThread) -> None:
    async def go() -> None:
        store = RunStore(loop)
        kept = StreamCache(store, most=2)
        entries: list[Entry] = []

        def read(number: int) -> None:
            handle = RunHandle(f"t/r-{number}")
            with kept.reading(handle):
                entry = store.get(handle)
                assert entry is not None
                entry.metrics.feed(METRIC)
                entry.log.feed(b"hello", 5)
                entry.read = True

        for number in range(6):
            run = _ended(number, RunState.RUNNING if number == 1 else RunState.COMPLETED)
            store.put(run)
            entry = store.get(run.handle)
            assert entry is not None
            entries.append(entry)
            if number == 2:
                entry.telemetry.listen(lambda node, first: None)  # a dashboard
            if number == 3:
                entry.viewers = 1
            row = row_of(entry)
            assert not row.known
            read(number)
        # The first was let go of; of the next one runs, one is listened to, one is looked at.
        assert [entry.read for entry in entries] == [False, True, True, True, True, True]
        assert not entries[0].metrics.metrics and entries[0].offsets == {"log": 0, "metrics": 0}
        row = row_of(entries[0])
        assert row.known and (row.metric, row.value, row.log_bytes) == ("loss", 0.5, 5)
        entries[3].viewers = 0
        read(0)
        assert [entry.read for entry in entries] == [True, True, True, False, False, True]
        store.remove(entries[1].run.handle)
        read(4)
        assert [entry.read for entry in entries] == [True, True, True, False, True, False]

    loop.call(go())


def test_stream_cache_while_reading_keeps_entry(loop: LoopThread) -> None:
    async def go() -> None:
        store = RunStore(loop)
        kept = StreamCache(store, most=0)
        run = _ended(0)
        store.put(run)
        entry = store.get(run.handle)
        assert entry is not None
        with kept.reading(run.handle):
            kept.read(run.handle)
            telemetry = entry.telemetry
            entry.read = True
        assert entry.telemetry is not telemetry and not entry.viewers

    loop.call(go())
