from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_amltrain.backends.process import LocalBackend, status_of
from jupyter_amltrain.errors import ProtocolError, SpecError
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.naming import new_run_id
from jupyter_amltrain.snapshot import Snapshot, take
from jupyter_amltrain.spec.job import JobSpec, Resources
from jupyter_amltrain.spec.target import LocalTarget
from jupyter_amltrain.state import StateRoot, write_json

from ..contracts.backend import BackendContract


@pytest.fixture
def loop(home: Path) -> Iterator[LoopThread]:
    thread = LoopThread("test-loop")
    yield thread
    thread.close()


@pytest.fixture
def backend(loop: LoopThread, home: Path) -> Iterator[LocalBackend]:
    made = LocalBackend(LocalTarget(name="local"), loop, StateRoot(home))
    yield made
    loop.call(made.close())


class TestLocalBackend(BackendContract):
    def _job(self, name: str, text: str) -> tuple[JobSpec, Snapshot]:
        spec = JobSpec(name=name, script=text, python=sys.executable, resources=Resources(gpus=0), secrets=("TOKEN",))
        return spec, take(spec.script_name, text, notebook_dir=Path.cwd())

    def short(self) -> tuple[JobSpec, Snapshot]:
        return self._job("short", "print('one line')\nprint('and the end')\n")

    def long(self) -> tuple[JobSpec, Snapshot]:
        return self._job("long", "import time\nprint('here')\ntime.sleep(600)\n")


def test_a_folder_of_a_newer_schema_is_refused_in_one_sentence(
    loop: LoopThread, backend: LocalBackend, home: Path
) -> None:
    folder = home / "runs" / "future-22222"
    folder.mkdir(parents=True)
    write_json(folder / "job.json", {"schema": 99, "run": "future-22222"})
    write_json(folder / "state.json", {"schema": 99, "state": "completed"})
    with pytest.raises(ProtocolError) as caught:
        loop.call(backend.find("future-22222"))
    text = str(caught.value)
    assert "schema 99" in text and "pip install -U jupyter_amltrain" in text and "\n" not in text
    assert loop.call(backend.list()) == []


def test_a_status_holds_the_truth_about_gpus_and_the_number_of_nodes() -> None:
    assert (status_of({"state": "running"}).truth, status_of({"state": "running"}).nodes) == ({}, 1)
    truth = {"verdict": "not used", "detail": "idle", "cause": "cpu wheel"}
    found = status_of({"state": "running", "truth": truth, "nodes": 4, "of_a_newer_agent": 1})
    assert found.truth == truth and found.nodes == 4


def test_the_gate_is_in_the_request(loop: LoopThread, backend: LocalBackend) -> None:
    spec, snapshot = TestLocalBackend().short()
    asked = msgspec.structs.replace(spec, require_gpu="stop", gpu_grace=5.0)
    request = loop.call(backend.plan(asked, snapshot, "planned-1")).request
    assert (request["require_gpu"], request["gpu_grace"]) == ("stop", 5.0)


@pytest.mark.parametrize("old", [False, True])
def test_a_list_but_what_is_known_also_of_an_agent_that_cannot_leave_out(
    loop: LoopThread, backend: LocalBackend, monkeypatch: pytest.MonkeyPatch, old: bool
) -> None:
    made = TestLocalBackend()
    names = []
    for _ in range(2):
        spec, snapshot = made.short()
        plan = loop.call(backend.plan(spec, snapshot, new_run_id("r")))
        loop.call(backend.launch(plan, {}, {"TOKEN": "x"}))
        names.append(plan.run_id)
    if old:
        call = backend._transport.call

        async def older(op: str, payload: dict[str, Any], *rest: Any) -> Any:
            payload.pop("but")
            answer = await call(op, payload, *rest)
            del answer["ids"]
            return answer

        monkeypatch.setattr(backend._transport, "call", older)
    ids, runs = loop.call(backend.roster({names[0], "gone-22222"}))
    assert set(ids) == set(names) and [run.run_id for run in runs] == [names[1]]


@pytest.mark.parametrize("odd", ["state root", "notebook's folder"])
def test_plan_for_a_folder_that_is_not_utf8_is_refused_in_one_sentence(
    loop: LoopThread, tmp_path: Path, odd: str
) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        pytest.skip(f"this file system takes no such name: {error}")
    home, project = (folder, tmp_path) if odd == "state root" else (tmp_path / "home", folder)
    backend = LocalBackend(LocalTarget(name="local"), loop, StateRoot(home))
    spec = JobSpec(name="x", script="pass\n", python=sys.executable, project=str(project))
    with pytest.raises(SpecError, match="UTF-8") as caught:
        loop.call(backend.plan(spec, take("x.py", "pass\n", notebook_dir=tmp_path), "x"))
    loop.call(backend.close())
    str(caught.value).encode()  # it can be shown
    assert odd in str(caught.value) and "\n" not in str(caught.value)
