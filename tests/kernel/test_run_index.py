from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from jupyter_amltrain.kernel.run_index import TargetRunReader
from jupyter_amltrain.kernel.store import RunStore
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunState, RunStatus, make_handle

RUN = Run(
    handle=make_handle("t", "r-22222"),
    spec=JobSpec(name="r"),
    status=RunStatus(state=RunState.COMPLETED),
    created=1.0,
    folder="fake:r",
)


class Slow:
    """A target that answers when it is let go."""

    target = SimpleNamespace(name="t")

    def __init__(self) -> None:
        self.requested, self.go = asyncio.Event(), asyncio.Event()
        self.files = self

    async def list(self, known: Collection[str]) -> tuple[Collection[str], Sequence[Run]]:
        self.requested.set()
        await self.go.wait()
        return {RUN.run_id}, [RUN]

    async def import_states(self, run_ids: Sequence[str]) -> Sequence[str]:
        return [""] * len(run_ids)


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread("test-loop")
    yield thread
    thread.close()


@pytest.mark.parametrize("what", ["nothing", "the run is deleted", "the target is deleted"])
def test_run_list_during_delete_does_not_restore_run(loop: LoopThread, what: str) -> None:
    async def go() -> bool:
        store, there = RunStore(loop), [True]
        directory = TargetRunReader(store)
        if what != "the target is deleted":
            store.put(msgspec.structs.replace(RUN, status=RunStatus(state=RunState.RUNNING)))
        slow: Any = Slow()
        check: Callable[[], bool] = lambda: there[0]  # noqa: E731
        reading = asyncio.ensure_future(directory.read(slow, check))
        await slow.requested.wait()
        if what == "the run is deleted":
            store.remove(RUN.handle)
        there[0] = what != "the target is deleted"
        slow.go.set()
        await reading
        found = store.get(RUN.handle) is not None
        there[0] = True
        await directory.read(slow, check)  # asked afterwards it is believed
        assert store.get(RUN.handle) is not None
        return found

    assert loop.call(go()) == (what == "nothing")
