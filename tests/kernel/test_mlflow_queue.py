"""The queue of imports into MLflow's store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

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
