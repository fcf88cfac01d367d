"""A watcher goes on whatever its target answers, and two readers feed a stream once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.backends.run_placement import RunPlacement
from jupyter_amltrain.backends.streams import Chunk, RunEvents, StreamChanges
from jupyter_amltrain.demo import FakeTarget
from jupyter_amltrain.demo.fake_backend import FakeBackend
from jupyter_amltrain.errors import StateError, TargetUnreachable
from jupyter_amltrain.jobs.snapshot import Snapshot
from jupyter_amltrain.kernel.shown_reader import ShownFilesReader
from jupyter_amltrain.kernel.store import Entry, RunStore
from jupyter_amltrain.kernel.watcher import MAX_NODES_AT_ONCE, Watcher, of_nodes, read_streams
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunStatus
from jupyter_amltrain.state_dir import StateRoot

DEADLINE = 60.0


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread("test-loop")
    yield thread
    thread.close()


class Moody(FakeBackend):
    """Raises what is in `moods` before it answers; its answers take a moment."""

    moods: list[tuple[str, Exception]]

    def _mood(self, call: str) -> None:
        if self.moods and self.moods[0][0] == call:
            raise self.moods.pop(0)[1]

    async def poll(self, run_ids: Sequence[str]) -> Mapping[str, RunStatus]:
        self._mood("poll")
        return await super().poll(run_ids)

    async def read(self, run_id: str, stream: str, offset: int, limit: int = 1 << 20) -> Chunk:
        self._mood("read")
        chunk = await super().read(run_id, stream, offset, limit)
        await asyncio.sleep(0.001)
        return chunk

    def _stream(self, run_id: str, stream: str) -> bytes:
        if stream == "telemetry":
            head: dict[str, Any] = {"schema": 1, "columns": ["seq", "t", "cpu"], "units": ["", "s", "%"]}
            return b"\n".join(json.dumps(row).encode() for row in [head, [0, 1.0, 5], [1, 2.0, 7]]) + b"\n"
        return super()._stream(run_id, stream)


def backend_of(loop: LoopThread, root: Path, **life: Any) -> Moody:
    made = Moody(FakeTarget(name="fake", **life), loop, StateRoot(root))
    made.moods = []
    return made


async def launched(backend: FakeBackend) -> Run:
    plan = await backend.plan(JobSpec(name="r", script="pass"), Snapshot(files={}, digest="0", bytes=0), "r-22222")
    return await backend.launch(plan, {}, {})


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("call", "error", "seen"),
    [
        ("poll", TargetUnreachable("gone"), [False]),
        ("read", TargetUnreachable("gone between poll and read"), [False]),
        ("poll", StateError("disk full"), []),
        ("poll", OSError(30, "read-only"), []),
    ],
)
def test_watcher_after_target_errors_continues(
    loop: LoopThread, tmp_path: Path, call: str, error: Exception, seen: list[bool]
) -> None:
    backend = backend_of(loop, tmp_path, queued=0.0, running=0.2)
    backend.moods = [(call, error), (call, error)]
    unreachable: list[bool] = []

    async def story() -> Run:
        store = RunStore(loop)
        done = asyncio.Event()

        async def outcome(entry: Entry, status: RunStatus) -> dict[str, Any]:
            return {"outputs": {"n": 1}}

        run = await launched(backend)
        store.put(run)
        entry = store.get(run.handle)
        assert entry is not None
        entry.viewers = 1
        store.subscribe(lambda run: None if run.reachable else unreachable.append(run.reachable))
        shown = ShownFilesReader(loop, lambda name: backend, lambda handle: None)
        watcher = Watcher(backend, "fake", store, loop, outcome, lambda handle: done.set(), shown)
        task = loop.start(watcher.run(), "watch")
        await asyncio.wait_for(done.wait(), DEADLINE)
        task.cancel()
        return entry.run

    run = loop.call(story(), DEADLINE)
    assert not backend.moods  # both were met
    assert run.status.state.value == "completed" and run.reachable and run.outputs == {"n": 1}
    assert unreachable[:1] == seen


def test_concurrent_stream_reads_feed_every_byte_once(loop: LoopThread, tmp_path: Path) -> None:
    backend = backend_of(loop, tmp_path, queued=0.0, running=600.0)

    async def story() -> Entry:
        entry = Entry(await launched(backend))
        await asyncio.gather(*(read_streams(backend, entry, entry.run.status) for _ in range(4)))
        return entry

    entry = loop.call(story(), DEADLINE)
    assert entry.telemetry.node(0).ticks == 2 and entry.telemetry.node(0).since(0)[1].tolist() == [[5, 7]]
    assert list(entry.metrics.metrics["loss"].values) == [0.5]
    assert entry.log.tail()[0] == "fake: started\n" and entry.log.bytes == len("fake: started\n")


class Sampled(Moody):
    """Tells of new ticks and of nothing else; counts the polls."""

    polls = 0

    async def poll(self, run_ids: Sequence[str]) -> Mapping[str, RunStatus]:
        self.polls += 1
        return await super().poll(run_ids)

    def events(self) -> RunEvents:
        return _Ticks()


class _Ticks(RunEvents):
    async def wait(self, run_ids: Sequence[str], viewed: Sequence[str], timeout: float) -> StreamChanges:
        await asyncio.sleep(0.001)
        return {run_id: ["telemetry", "minutes", "summary"] for run_id in viewed}

    def close(self) -> None:
        pass


def test_telemetry_is_read_without_poll(loop: LoopThread, tmp_path: Path) -> None:
    backend = Sampled(FakeTarget(name="fake", queued=0.0, running=600.0), loop, StateRoot(tmp_path))
    backend.moods = []

    async def story() -> None:
        store = RunStore(loop)
        run = await launched(backend)
        store.put(run)
        entry = store.get(run.handle)
        assert entry is not None
        entry.viewers = 1
        came = asyncio.Event()
        entry.telemetry.listen(lambda node, first: came.set())

        async def outcome(entry: Entry, status: RunStatus) -> dict[str, Any]:
            return {}

        shown = ShownFilesReader(loop, lambda name: backend, lambda handle: None)
        watcher = Watcher(backend, "fake", store, loop, outcome, lambda handle: None, shown)
        task = loop.start(watcher._read_grown(entry, {"telemetry"}), "ticks")
        await asyncio.wait_for(came.wait(), DEADLINE)
        await task
        assert backend.polls == 0
        # A watcher that receives nothing but ticks still asks for the status.
        task = loop.start(watcher.run(), "watch")
        while backend.polls < 2:
            await asyncio.sleep(0.01)
        task.cancel()

    loop.call(story(), DEADLINE)


def test_log_is_read_without_poll(loop: LoopThread, tmp_path: Path) -> None:
    backend = FakeBackend(FakeTarget(name="fake", queued=0.0, running=600.0), loop, StateRoot(tmp_path))
    polls: list[list[str]] = []

    async def story() -> None:
        store = RunStore(loop)
        run = await launched(backend)
        store.put(run)
        entry = store.get(run.handle)
        assert entry is not None
        read = backend.read

        async def line(run_id: str, stream: str, offset: int, limit: int = 1 << 20) -> Chunk:
            return Chunk(b"one line\n"[offset:], 9) if stream == "log" else await read(run_id, stream, offset, limit)

        async def poll(run_ids: Sequence[str]) -> dict[str, RunStatus]:
            polls.append(list(run_ids))
            return {}

        backend.read, backend.poll = line, poll  # type: ignore[method-assign,assignment]

        async def outcome(entry: Entry, status: RunStatus) -> dict[str, Any]:
            return {}

        shown = ShownFilesReader(loop, lambda name: backend, lambda handle: None)
        watcher = Watcher(backend, "fake", store, loop, outcome, lambda handle: None, shown)
        await watcher._read_grown(entry, {"log"})
        assert b"one line" in entry.log.last(20)
        assert not polls

    loop.call(story(), DEADLINE)


def test_samples_of_nodes_are_read_several_at_a_time(loop: LoopThread) -> None:
    reading, most = 0, 0

    async def read(number: int) -> int:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        await asyncio.sleep(0.01)
        reading -= 1
        if number in (0, 5):
            raise TargetUnreachable("no answer")
        return number

    found = loop.call(of_nodes(20, read))
    assert sorted(found) == [number for number in range(20) if number not in (0, 5)]
    assert most == MAX_NODES_AT_ONCE


@pytest.mark.parametrize("error", [TargetUnreachable("no answer"), StateError("disk full")])
def test_error_of_all_nodes_is_raised(loop: LoopThread, error: Exception) -> None:
    async def read(number: int) -> None:
        raise error

    for nodes in (1, 3):
        with pytest.raises(type(error)):
            loop.call(of_nodes(nodes, read))


class Apart(Moody):
    """A target of two machines, of which the second one does not answer."""

    machines = 2

    async def poll(self, run_ids: Sequence[str]) -> Mapping[str, RunStatus]:
        if any(run_id.endswith("1") for run_id in run_ids):
            await asyncio.sleep(DEADLINE)
        return await super().poll(run_ids)


def test_machine_that_does_not_answer_delays_no_run_of_another(loop: LoopThread, tmp_path: Path) -> None:
    backend = Apart(FakeTarget(name="fake", queued=0.0, running=0.2), loop, StateRoot(tmp_path))
    backend.moods, backend.placement = [], RunPlacement()

    async def story() -> list[str]:
        store = RunStore(loop)
        ended: list[str] = []
        done = asyncio.Event()
        for machine, run_id in enumerate(("r-22220", "r-22221")):
            backend.placement.keep(run_id, machine)
            plan = await backend.plan(JobSpec(name="r", script="pass"), Snapshot(files={}, digest="0", bytes=0), run_id)
            store.put(await backend.launch(plan, {}, {}))

        async def outcome(entry: Entry, status: RunStatus) -> dict[str, Any]:
            return {}

        def over(handle: str) -> None:
            ended.append(handle)
            done.set()

        shown = ShownFilesReader(loop, lambda name: backend, lambda handle: None)
        watchers = [
            Watcher(backend, "fake", store, loop, outcome, over, shown, machine) for machine in range(backend.machines)
        ]
        tasks = [loop.start(watcher.run(), "watch") for watcher in watchers]
        await asyncio.wait_for(done.wait(), DEADLINE / 2)
        for task in tasks:
            task.cancel()
        return ended

    assert loop.call(story(), DEADLINE) == ["fake/r-22220"]
