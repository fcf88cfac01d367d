"""A long run is attached to by its minutes; ticks alone redraw a record seldom."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_amltrain.backends.base import Chunk
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.runs.reading import read_streams, worth_a_frame
from jupyter_amltrain.runs.store import Entry
from jupyter_amltrain.spec.job import JobSpec
from jupyter_amltrain.spec.run import Run, RunState, RunStatus, make_handle
from tests import telemetry_files as files

_FILES = {"telemetry": "node-0.jsonl", "minutes": "minutes-0.jsonl", "summary": "summary-0.json"}


class Folder:
    """A backend that reads a folder and counts."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bytes = folder, 0

    async def log_path(self, run_id: str) -> str:
        return "log"

    async def read(self, run_id: str, stream: str, offset: int, limit: int = 1 << 20) -> Chunk:
        path = self.folder / "telemetry" / _FILES.get(stream, stream)
        data = path.read_bytes() if path.exists() else b""
        offset = max(0, len(data) + offset) if offset < 0 else offset
        piece = data[offset : offset + limit]
        self.bytes += len(piece)
        return Chunk(piece, offset + len(piece))


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread("test-loop")
    yield thread
    thread.close()


def entry_of(state: RunState = RunState.RUNNING, age: float = 0.0) -> Entry:
    status = RunStatus(state=state)
    run = Run(handle=make_handle("t", "r-22222"), spec=JobSpec(name="r"), status=status, created=time.time() - age)
    return Entry(run)


@pytest.mark.parametrize("hours", [0.1, 12])
def test_the_end_of_a_long_file_is_exact_and_most_of_it_is_not_read(
    hours: float, tmp_path: Path, loop: LoopThread
) -> None:
    files.write_node(tmp_path, gpus=4, seconds=hours * 3600)
    backend, entry = Folder(tmp_path), entry_of(RunState.COMPLETED)
    news = loop.call(read_streams(backend, entry, entry.run.status))  # type: ignore[arg-type]
    node = entry.telemetry.node(0)
    size = (tmp_path / "telemetry" / "node-0.jsonl").stat().st_size
    assert news == {"telemetry"} and node.offset == size and node.seq == hours * 3600 - 1
    assert node.pyramid.t[0] == files.START
    if hours > 1:
        assert entry.telemetry.summaries[0]["gpus"][3]["memory_peak"] == 43_000
        assert backend.bytes < size / 3
    assert not loop.call(read_streams(backend, entry, entry.run.status))  # type: ignore[arg-type]


def test_ticks_redraw_a_record_at_a_tenth_of_its_age() -> None:
    young, old = entry_of(age=0.0), entry_of(age=1000.0)
    assert worth_a_frame(young, {"log"}) and worth_a_frame(young, {"telemetry", "metrics"})
    assert not worth_a_frame(young, set())
    for entry in (young, old):
        entry.telemetry.told = time.monotonic() - 1.5
    assert worth_a_frame(young, {"telemetry"}) and not worth_a_frame(young, {"telemetry"})
    assert not worth_a_frame(old, {"telemetry"}) and worth_a_frame(old, {"log"})
