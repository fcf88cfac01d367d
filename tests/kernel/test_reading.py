"""A long run is attached to by its minutes; ticks alone redraw a record seldom."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_amltrain.backends.streams import Chunk
from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.kernel.watcher import needs_frame, read_streams
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunState, RunStatus, make_handle
from tests import telemetry_files as files

_FILES = {"telemetry": "node-0.jsonl", "minutes": "minutes-0.jsonl", "summary": "summary-0.json"}


class Folder:
    """A backend that reads a folder and counts."""

    log_may_shrink = True

    def __init__(self, folder: Path) -> None:
        self.folder, self.bytes = folder, 0
        self.files = self

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


@pytest.mark.thorough
@pytest.mark.parametrize("hours", [0.1, 12])
def test_long_telemetry_end_is_exact_without_full_read(hours: float, tmp_path: Path, loop: LoopThread) -> None:
    files.write_node(tmp_path, gpus=4, seconds=hours * 3600)
    summary = tmp_path / "telemetry" / "summary-0.json"
    content = {**json.loads(summary.read_text()), "notes": [[files.START + 9, "GPU 1 fell off the bus"]]}
    summary.write_text(json.dumps(content))
    backend, entry = Folder(tmp_path), entry_of(RunState.COMPLETED)
    changes = loop.call(read_streams(backend, entry, entry.run.status))  # type: ignore[arg-type]
    node = entry.telemetry.node(0)
    size = (tmp_path / "telemetry" / "node-0.jsonl").stat().st_size
    assert changes == {"telemetry"} and node.offset == size and node.seq == hours * 3600 - 1
    assert node.history.t[0] == files.START
    if hours > 1:
        assert entry.telemetry.summaries[0]["gpus"][3]["memory_peak"] == 43_000
        # Notes of hours whose ticks were not read are still shown.
        assert "GPU 1 fell off the bus" in entry.telemetry.node(0).note
        assert backend.bytes < size / 3
    assert not loop.call(read_streams(backend, entry, entry.run.status))  # type: ignore[arg-type]


def looks(loop: LoopThread, folder: Path, entry: Entry, *logs: bytes) -> list[str]:
    """Tails of a log whose file is each of `logs` in turn, with a look between."""
    backend, found = Folder(folder), []
    (folder / "telemetry").mkdir(exist_ok=True)
    for log in logs:
        (folder / "telemetry" / "log").write_bytes(log)
        loop.call(read_streams(backend, entry, entry.run.status))  # type: ignore[arg-type]
        found.append(entry.log.tail()[0])
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("after", [b"new\n", b"new\n" * 100, b"new\n" * 100_000], ids=["shorter", "longer", "long"])
def test_rewritten_log_is_shown_from_start(after: bytes, tmp_path: Path, loop: LoopThread) -> None:
    entry = entry_of()
    old = b"".join(b"old %d\n" % i for i in range(20))
    first, second, third = looks(loop, tmp_path, entry, old, after, after + b"more\n")
    assert first == old.decode() and "old" not in second + third
    assert third.endswith("more\n") and entry.log.bytes == len(after) + 5
    assert entry.log.restarts == 1
    if len(after) < 1000:
        marker, *rest = third.splitlines()
        assert "new" not in marker or "emptied" in marker
        assert rest == [*after.decode().splitlines(), "more"]
        assert entry.log.tail()[1] == 0


def test_repeatedly_emptied_log_keeps_last_text(tmp_path: Path, loop: LoopThread) -> None:
    entry = entry_of()
    tails = looks(loop, tmp_path, entry, b"one " * 30, b"two " * 20, b"", b"three\n", b"three\nfour\n")
    assert tails[2] == tails[1] and tails[3].endswith("three\n") and "two" not in tails[3]
    assert tails[4].endswith("three\nfour\n") and entry.log.restarts == 2


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_growing_log_is_never_restarted(parts: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        loop, entry = LoopThread("test-loop"), entry_of()
        try:
            looks(loop, Path(folder), entry, *(b"".join(parts[:i]) for i in range(len(parts) + 1)))
        finally:
            loop.close()
    assert entry.log.restarts == 0 and entry.log.bytes == len(b"".join(parts))


def test_telemetry_redraw_interval_is_tenth_of_run_age() -> None:
    young, old = entry_of(age=0.0), entry_of(age=1000.0)
    assert needs_frame(young, {"log"}) and needs_frame(young, {"telemetry", "metrics"})
    assert not needs_frame(young, set())
    for entry in (young, old):
        entry.telemetry.last_frame_at = time.monotonic() - 1.5
    assert needs_frame(young, {"telemetry"}) and not needs_frame(young, {"telemetry"})
    assert not needs_frame(old, {"telemetry"}) and needs_frame(old, {"log"})
