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


def test_store_write_off_loop_is_refused(loop: LoopThread) -> None:
    store = RunStore(loop)
    with pytest.raises(RuntimeError):
        store.put(_run(RunState.QUEUED))


def test_store_state_never_goes_back(loop: LoopThread) -> None:
    store = RunStore(loop)
    states: list[RunState] = []

    def story() -> None:
        store.subscribe(lambda run: states.append(run.status.state))
        for state in (RunState.QUEUED, RunState.FINALIZING, RunState.RUNNING, RunState.COMPLETED, RunState.LOST):
            store.put(_run(state))

    _on(loop, story)
    assert states == [RunState.QUEUED, RunState.FINALIZING, RunState.COMPLETED]


def test_preempted_run_may_return_to_queued() -> None:
    assert advances(RunState.RUNNING, RunState.QUEUED)
    assert not advances(RunState.FINALIZING, RunState.QUEUED)
    assert not any(advances(RunState.FAILED, state) for state in RunState)


def test_late_subscriber_gets_current_runs(loop: LoopThread) -> None:
    store, seen = RunStore(loop), []

    def story() -> None:
        store.put(_run(RunState.RUNNING))
        stop = store.subscribe(lambda run: seen.append(run.status.state))
        stop()
        stop()
        store.put(_run(RunState.COMPLETED))

    _on(loop, story)
    assert seen == [RunState.RUNNING]


def test_unchanged_run_is_not_published(loop: LoopThread) -> None:
    store, seen = RunStore(loop), []

    def story() -> None:
        store.subscribe(seen.append)
        run = _run(RunState.RUNNING)
        assert store.put(run)
        assert not store.put(msgspec.structs.replace(run, seen_at=99.0))
        assert store.put(msgspec.structs.replace(run, reachable=False))

    _on(loop, story)
    assert [run.reachable for run in seen] == [True, False]


def test_late_update_of_ended_run_keeps_status(loop: LoopThread) -> None:
    store = RunStore(loop)

    def story() -> tuple[RunState, str]:
        store.put(_run(RunState.COMPLETED, version=5))
        store.put(_run(RunState.RUNNING, version=4, tracking="imported"))
        entry = store.get(make_handle("t", "r-22222"))
        assert entry is not None
        return entry.run.status.state, entry.run.tracking

    assert _on(loop, story) == (RunState.COMPLETED, "imported")
