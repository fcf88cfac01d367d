from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from jupyter_amltrain.kernel.store import RunStore
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunState, RunStatus, advances, make_handle


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread("test-loop")
    yield thread
    thread.close()


def _run(state: RunState, version: int = 0, **more: Any) -> Run:
    status = RunStatus(state=state, version=version)
    return Run(handle=make_handle("t", "r-22222"), spec=JobSpec(name="r"), status=status, created=1.0, **more)


def _on(loop: LoopThread, fn: Callable[[], Any]) -> Any:
    async def go() -> Any:
        return fn()

    return loop.call(go())


def test_only_the_loop_may_write(loop: LoopThread) -> None:
    store = RunStore(loop)
    with pytest.raises(RuntimeError):
        store.put(_run(RunState.QUEUED))


def test_time_never_runs_backwards(loop: LoopThread) -> None:
    store = RunStore(loop)
    states: list[RunState] = []

    def story() -> None:
        store.subscribe(lambda run: states.append(run.status.state))
        for state in (RunState.QUEUED, RunState.FINALIZING, RunState.RUNNING, RunState.COMPLETED, RunState.LOST):
            store.put(_run(state))

    _on(loop, story)
    assert states == [RunState.QUEUED, RunState.FINALIZING, RunState.COMPLETED]


def test_a_preempted_run_may_queue_again() -> None:
    assert advances(RunState.RUNNING, RunState.QUEUED)
    assert not advances(RunState.FINALIZING, RunState.QUEUED)
    assert not any(advances(RunState.FAILED, state) for state in RunState)


def test_a_late_subscriber_is_told_what_is(loop: LoopThread) -> None:
    store, seen = RunStore(loop), []

    def story() -> None:
        store.put(_run(RunState.RUNNING))
        stop = store.subscribe(lambda run: seen.append(run.status.state))
        stop()
        stop()
        store.put(_run(RunState.COMPLETED))

    _on(loop, story)
    assert seen == [RunState.RUNNING]


def test_what_did_not_change_is_not_told_again(loop: LoopThread) -> None:
    store, seen = RunStore(loop), []

    def story() -> None:
        store.subscribe(seen.append)
        run = _run(RunState.RUNNING)
        assert store.put(run)
        assert not store.put(msgspec.structs.replace(run, seen_at=99.0))
        assert store.put(msgspec.structs.replace(run, reachable=False))

    _on(loop, story)
    assert [run.reachable for run in seen] == [True, False]


def test_news_of_an_ended_run_keep_its_status(loop: LoopThread) -> None:
    store = RunStore(loop)

    def story() -> tuple[RunState, str]:
        store.put(_run(RunState.COMPLETED, version=5))
        store.put(_run(RunState.RUNNING, version=4, tracking="imported"))
        entry = store.get(make_handle("t", "r-22222"))
        assert entry is not None
        return entry.run.status.state, entry.run.tracking

    assert _on(loop, story) == (RunState.COMPLETED, "imported")
