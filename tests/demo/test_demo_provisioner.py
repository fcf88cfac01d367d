from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from jupyter_amltrain.demo import FakeTarget
from jupyter_amltrain.demo.fake_backend import FakeBackend
from jupyter_amltrain.demo.machines import SIZES
from jupyter_amltrain.errors import CapacityError, QuotaExceeded, TargetError, TargetUnreachable
from jupyter_amltrain.jobs.snapshot import Snapshot
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import RunState
from jupyter_amltrain.state_dir import StateRoot

from ..contracts.lifecycle import LifecycleContract


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread("test-loop")
    yield thread
    thread.close()


def fake(loop: LoopThread, folder: Path, **fields: Any) -> FakeBackend:
    return FakeBackend(FakeTarget(name="big", **{"size": "gpu-v100", **fields}), loop, StateRoot(folder))


class TestFakeLifecycle(LifecycleContract):
    @pytest.fixture
    def single(self, loop: LoopThread, tmp_path: Path) -> FakeBackend:
        return fake(loop, tmp_path, provisioning=0.05)

    @pytest.fixture
    def cluster(self, loop: LoopThread, tmp_path: Path) -> FakeBackend:
        return fake(loop, tmp_path, max_nodes=4, provisioning=0.05)

    @pytest.fixture
    def refused(self, loop: LoopThread, tmp_path: Path) -> FakeBackend:
        return fake(loop, tmp_path, fails="create", provisioning=0.05)


def ignore(text: str) -> None:
    """Nobody listens to the progress."""


def test_demo_sizes_have_data() -> None:
    assert set(SIZES) | {""} == set(get_args(get_type_hints(FakeTarget)["size"]))


def test_demo_cluster_prompts_name_cost(loop: LoopThread, tmp_path: Path) -> None:
    cluster = fake(loop, tmp_path, max_nodes=4)
    text = cluster.confirmation("create", {}, running=0)
    assert "4 x 3.06 = 12.24 USD" in text and "15 min" in text
    cheap = fake(loop, tmp_path, max_nodes=4, min_nodes=1, low_priority=True, idle_minutes=1.5)
    assert "1 of them stay on (0.61 USD" in cheap.confirmation("create", {}, running=0)
    assert "1 queued run " in cheap.confirmation("stop", {}, running=0, queued=1)
    text = cheap.confirmation("delete", {}, running=2)
    assert "2 running runs" in text and "logs" in text


@pytest.mark.parametrize(
    ("verb", "error"),
    [
        ("create", QuotaExceeded),
        ("start", CapacityError),
        ("stop", TargetError),
        ("scale", QuotaExceeded),
        ("delete", TargetError),
        ("test", CapacityError),
    ],
)
def test_demo_scripted_failure_fails(loop: LoopThread, tmp_path: Path, verb: str, error: type[Exception]) -> None:
    target = fake(loop, tmp_path, max_nodes=4 if verb == "scale" else 1)
    if verb == "start":
        loop.call(target.stop(ignore))
    target.rescript(fails=verb)
    does: dict[str, Any] = {
        "scale": lambda: target.scale({"min_nodes": 3}, ignore),
        "delete": lambda: target.remove(ignore),
    }
    does["test"] = target.check
    with pytest.raises(error) as caught:
        loop.call(does[verb]() if verb in does else getattr(target, verb)(ignore))
    assert "\n" not in str(caught.value) and "big" in str(caught.value)
    state = loop.call(target.state())
    assert state.state == ("stopped" if verb == "start" else "ready") and not state.nodes


def test_demo_quota_counts_cores(loop: LoopThread, tmp_path: Path) -> None:
    with pytest.raises(QuotaExceeded, match="24 cores.*20"):
        loop.call(fake(loop, tmp_path, max_nodes=4, quota=20).create(ignore))
    there = fake(loop, tmp_path, max_nodes=4, quota=24)
    loop.call(there.create(ignore))
    loop.call(there.scale({"min_nodes": 2}, ignore))
    assert loop.call(there.state()).quota == "12 of 24 cores"
    assert isinstance(there.target, FakeTarget) and there.target.min_nodes == 2  # to be stored


def test_demo_idle_nodes_are_released(loop: LoopThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = fake(loop, tmp_path, max_nodes=4, min_nodes=1, idle_minutes=1, running=600.0, queued=0.0)
    assert loop.call(cluster.state()).nodes == 1
    plan = loop.call(cluster.plan(JobSpec(name="x", script="pass"), Snapshot(files={}, digest="0", bytes=0), "x-1"))
    cluster.rescript(nodes=3)
    loop.call(cluster.launch(plan, {}, {}))
    assert loop.call(cluster.state()).nodes == 3
    loop.call(cluster.cancel("x-1"))
    assert loop.call(cluster.state()).nodes == 3  # not yet
    now = time.monotonic()
    monkeypatch.setattr("jupyter_amltrain.demo.machines.time.monotonic", lambda: now + 61)
    assert loop.call(cluster.state()).nodes == 1


def test_demo_runs_end_with_machine(loop: LoopThread, tmp_path: Path) -> None:
    single = fake(loop, tmp_path, running=600.0, queued=0.0)
    spec, snapshot = JobSpec(name="x", script="pass"), Snapshot(files={}, digest="0", bytes=0)
    plan = loop.call(single.plan(spec, snapshot, "x-1"))
    loop.call(single.launch(plan, {}, {}))
    info = loop.call(single.check())
    assert (info.running, info.queued, len(info.gpus), info.cpus) == (1, 0, 1, 6)
    assert info.gpus[0]["name"] == "Fake V100 16GB"
    loop.call(single.stop(ignore))
    assert loop.call(single.poll(["x-1"]))["x-1"].state is RunState.CANCELED
    again = msgspec.structs.replace(plan, run_id="x-2")
    with pytest.raises(TargetError, match=r"%aml_compute start big"):
        loop.call(single.launch(again, {}, {}))


def test_demo_stopped_machine_is_not_monitored(loop: LoopThread, tmp_path: Path) -> None:
    single = fake(loop, tmp_path)
    loop.call(single.monitors.start("m-1", None, 1.0))
    loop.call(single.stop(ignore))
    with pytest.raises(TargetError, match=r"%aml_compute start big"):
        loop.call(single.monitors.start("m-1", None, 1.0))


def test_demo_target_without_size_has_no_lifecycle(loop: LoopThread, tmp_path: Path) -> None:
    plain = fake(loop, tmp_path, size="", gpus=2)
    state = loop.call(plain.state())
    assert (state.state, state.size, state.price, state.gpus) == ("ready", "", None, 2)
    assert [act.verb for act in plain.actions(state)] == ["delete"]
    assert plain.confirmation("create", {}, running=0) == ""
    info = loop.call(plain.check())
    assert info.cpus == 8 and [gpu["name"] for gpu in info.gpus] == ["Fake H100 80GB"] * 2
    plain.rescript(unreachable=True)
    with pytest.raises(TargetUnreachable):
        loop.call(plain.state())
