from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_amltrain.demo import FakeTarget
from jupyter_amltrain.demo.fake_backend import FakeBackend
from jupyter_amltrain.demo.fake_node import FakeNode
from jupyter_amltrain.errors import TargetUnreachable
from jupyter_amltrain.jobs.snapshot import Snapshot
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import RunStatus
from jupyter_amltrain.state_dir import StateRoot

from ..contracts.backend import BackendContract


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread("test-loop")
    yield thread
    thread.close()


class TestFakeBackend(BackendContract):
    seconds = 0.1

    def short(self) -> tuple[JobSpec, Snapshot]:
        return JobSpec(name="short", script="pass"), Snapshot(files={}, digest="0", bytes=0)

    def long(self) -> tuple[JobSpec, Snapshot]:
        return JobSpec(name="long", script="pass"), Snapshot(files={}, digest="0", bytes=0)

    @pytest.fixture
    def backend(self, loop: LoopThread, tmp_path: Path, request: pytest.FixtureRequest) -> FakeBackend:
        endless = "cancel" in request.node.name or "live" in request.node.name
        target = FakeTarget(name="fake", queued=0.02, running=600.0 if endless else self.seconds)
        return FakeBackend(target, loop, StateRoot(tmp_path))


def test_demo_telemetry_follows_clock(loop: LoopThread, tmp_path: Path) -> None:
    target = FakeTarget(name="fake", queued=0.0, running=0.5, nodes=2, gpus=3, period=0.001)
    backend = FakeBackend(target, loop, StateRoot(tmp_path))
    spec, snapshot = JobSpec(name="x", script="pass"), Snapshot(files={}, digest="0", bytes=0)
    loop.call(backend.launch(loop.call(backend.plan(spec, snapshot, "x")), {}, {}))

    def ended() -> RunStatus:
        while not (status := loop.call(backend.poll(("x",)))["x"]).state.terminal:
            time.sleep(0.01)
        return status

    status = ended()
    assert status.nodes == 2 and len(status.devices) == 6
    seen = []
    for number in range(2):
        head, *lines = [json.loads(x) for x in loop.call(backend.read("x", f"telemetry/{number}", 0)).data.splitlines()]
        rows = [line for line in lines if isinstance(line, list)]
        assert [row[0] for row in rows] == list(range(501))
        assert {len(row) for row in rows} == {len(head["columns"]) + 3 * len(head["gpu_columns"])}
        assert len(head["units"]) == len(head["columns"]) and len(head["gpu_units"]) == len(head["gpu_columns"])
        assert head["node"] == number and [gpu["index"] for gpu in head["gpus"]] == [0, 1, 2]
        assert lines[0]["seq"] == 0 and [i for i, _ in lines[0]["gpu"]] == [0, 1, 2]
        summary = json.loads(loop.call(backend.read("x", f"summary/{number}", 0)).data)
        assert summary["seq"] == 500 and len(summary["gpus"]) == 3
        seen.append(head["gpus"][0]["uuid"])
    assert status.devices[0] == seen[0] and status.devices[3] == seen[1]


def test_demo_minutes_index_samples() -> None:
    node = FakeNode(0, [0], 1_700_000_039.0, 1.0).upto(200)
    head, *rows = [json.loads(line) for line in node.minutes.splitlines()]
    assert [row[0] for row in rows] == [0, 60, 120, 180] and rows[1][1] == 1_700_000_040.0
    for last, _, _, count, offset, least, mean, most in rows:
        ticks = [x for x in map(json.loads, node.raw[:offset].splitlines()) if isinstance(x, list)][-count:]
        assert ticks[-1][0] == last and len(least) == len(mean) == len(most) == len(head["columns"])
        util = [tick[2 + head["columns"].index("gpu0.util")] for tick in ticks]
        assert (min(util), max(util)) == tuple(x[head["columns"].index("gpu0.util")] for x in (least, most))


@pytest.mark.thorough
@pytest.mark.parametrize(("idle", "verdict"), [(False, "used"), (True, "not used")])
def test_demo_gpu_usage_verdict_follows_idle(loop: LoopThread, tmp_path: Path, idle: bool, verdict: str) -> None:
    target = FakeTarget(name="fake", queued=0.0, running=2.2, gpus=1, idle=idle)
    backend = FakeBackend(target, loop, StateRoot(tmp_path))
    spec, snapshot = JobSpec(name="x", script="pass", gpu_grace=1.0), Snapshot(files={}, digest="0", bytes=0)
    loop.call(backend.launch(loop.call(backend.plan(spec, snapshot, "x")), {}, {}))
    while not (status := loop.call(backend.poll(("x",)))["x"]).state.terminal:
        time.sleep(0.05)
    assert status.truth["verdict"] == verdict and bool(status.truth["cause"]) == idle


def test_demo_unreachable_target_is_refused(loop: LoopThread, tmp_path: Path) -> None:
    backend = FakeBackend(FakeTarget(name="far", unreachable=True), loop, StateRoot(tmp_path))
    with pytest.raises(TargetUnreachable, match=r"far.*%aml_compute test far"):
        loop.call(backend.check())


def test_demo_events_name_only_what_has_changed(loop: LoopThread, tmp_path: Path) -> None:
    target = FakeTarget(name="fake", queued=0.0, running=600.0, gpus=1, period=0.2)
    backend = FakeBackend(target, loop, StateRoot(tmp_path))
    spec, snapshot = JobSpec(name="x", script="pass"), Snapshot(files={}, digest="0", bytes=0)
    loop.call(backend.launch(loop.call(backend.plan(spec, snapshot, "x")), {}, {}))
    events = backend.events()

    def changes(*viewed: str) -> set[str]:
        return set(loop.call(events.wait(["x"], viewed, 1.0)).get("x", ()))

    def until(wanted: set[str], *viewed: str) -> None:
        end = time.monotonic() + 60
        while (found := changes(*viewed)) != wanted:
            assert time.monotonic() < end, found

    assert "status" in changes("x")  # the first answer names everything
    until({"telemetry", "minutes", "summary"}, "x")
    until(set(), "x")
    loop.call(backend.cancel("x"))
    assert {"status", "log"} <= changes()
