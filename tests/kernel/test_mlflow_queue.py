"""The queue of imports into MLflow's store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_amltrain.kernel import mlflow_queue
from jupyter_amltrain.kernel.mlflow_queue import MlflowImportQueue
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunState, RunStatus, make_handle
from jupyter_amltrain.state_dir import StateRoot


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread("test-loop")
    yield thread
    thread.close()


def run_of(number: int) -> Run:
    return Run(
        handle=make_handle("local", f"r-{number}"), spec=JobSpec(name="r"), created=1.0, folder="/none",
        status=RunStatus(state=RunState.COMPLETED), project="/none",
    )  # fmt: skip


def test_close_takes_runs_that_end_meanwhile(loop: LoopThread, tmp_path: Path) -> None:
    copied: list[str] = []

    async def local_copy(run: Run, name: str) -> str | None:
        copied.append(run.run_id)
        queue.request(run_of(len(copied) + 1))  # another run ends while this one is copied
        return None

    async def made() -> MlflowImportQueue:
        return MlflowImportQueue(loop, StateRoot(tmp_path), lambda handle, state: None, local_copy)

    queue = loop.call(made())

    async def close() -> None:
        queue.request(run_of(0))
        queue.request(run_of(1))
        await queue.close()

    loop.call(close())
    assert copied[:2] == ["r-0", "r-1"]


@pytest.mark.parametrize(("starts", "waits"), [(0, True), (3, True), (10_000, False)])
def test_work_for_ended_runs_waits_for_starts_but_not_forever(
    loop: LoopThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: int, waits: bool
) -> None:
    monkeypatch.setattr(mlflow_queue, "QUIET_S", 0.1)
    monkeypatch.setattr(mlflow_queue, "MAX_WAIT_S", 60.0 if waits else 0.3)

    async def local_copy(run: Run, name: str) -> str | None:
        return None

    async def story() -> None:
        queue = MlflowImportQueue(loop, StateRoot(tmp_path), lambda handle, state: None, local_copy)
        quiet, last = asyncio.ensure_future(queue.quiet()), time.monotonic()
        for _ in range(starts):
            if quiet.done():
                break
            queue.postpone()
            last = time.monotonic()
            await asyncio.sleep(0.02)
        await asyncio.wait_for(quiet, 60)
        if waits:
            assert time.monotonic() - last >= 0.1

    loop.call(story(), 90)
