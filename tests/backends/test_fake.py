from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_amltrain.backends.fake import FakeBackend
from jupyter_amltrain.errors import TargetUnreachable
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.snapshot import Snapshot
from jupyter_amltrain.spec.job import JobSpec
from jupyter_amltrain.spec.target import FakeTarget
from jupyter_amltrain.state import StateRoot

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


def test_a_target_that_does_not_answer(loop: LoopThread, tmp_path: Path) -> None:
    backend = FakeBackend(FakeTarget(name="far", unreachable=True), loop, StateRoot(tmp_path))
    with pytest.raises(TargetUnreachable, match=r"far.*%aml_compute test far"):
        loop.call(backend.check())
