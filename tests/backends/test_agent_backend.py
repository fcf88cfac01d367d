from __future__ import annotations

import json
import os
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_amltrain.backends.agent_backend import AgentBackend, LocalBackend
from jupyter_amltrain.backends.run_files import status_of
from jupyter_amltrain.errors import PreflightError, ProtocolError, SpecError, SubmitError
from jupyter_amltrain.jobs.snapshot import Snapshot, digest_of, of_yaml, take_snapshot
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.job import JobSpec, Resources
from jupyter_amltrain.schema.run import RunStatus
from jupyter_amltrain.schema.target import LocalTarget
from jupyter_amltrain.state_dir import StateRoot, write_json
from jupyter_amltrain.text import new_run_id

from ..contracts.backend import BackendContract
from ..helpers import until


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
        return spec, take_snapshot(spec.script_name, text, root=Path.cwd())

    def short(self) -> tuple[JobSpec, Snapshot]:
        return self._job("short", "print('one line')\nprint('and the end')\n")

    def long(self) -> tuple[JobSpec, Snapshot]:
        return self._job("long", "import time\nprint('here')\ntime.sleep(600)\n")


def test_run_folder_of_newer_schema_is_refused(loop: LoopThread, backend: LocalBackend, home: Path) -> None:
    folder = home / "runs" / "future-22222"
    folder.mkdir(parents=True)
    write_json(folder / "job.json", {"schema": 99, "run": "future-22222"})
    write_json(folder / "state.json", {"schema": 99, "state": "completed"})
    with pytest.raises(ProtocolError) as caught:
        loop.call(backend.find("future-22222"))
    text = str(caught.value)
    assert "schema 99" in text and "pip install -U" in text and "\n" not in text
    assert loop.call(backend.list())[1] == []


def test_status_has_gpu_usage_and_node_count() -> None:
    assert (status_of({"state": "running"}).truth, status_of({"state": "running"}).nodes) == ({}, 1)
    truth = {"verdict": "not used", "detail": "idle", "cause": "cpu wheel"}
    found = status_of({"state": "running", "truth": truth, "nodes": 4, "of_a_newer_agent": 1})
    assert found.truth == truth and found.nodes == 4


def test_request_has_gpu_gate(loop: LoopThread, backend: LocalBackend) -> None:
    spec, snapshot = TestLocalBackend().short()
    guarded = msgspec.structs.replace(spec, require_gpu="stop", gpu_grace=5.0, gpu_ids="index")
    request = loop.call(backend.plan(guarded, snapshot, "planned-1")).request
    assert (request["require_gpu"], request["gpu_grace"], request["gpu_ids"]) == ("stop", 5.0, "index")


def test_request_has_gpu_sharing(loop: LoopThread, backend: LocalBackend) -> None:
    spec, snapshot = TestLocalBackend().short()
    for share in (False, True):
        request = loop.call(
            backend.plan(msgspec.structs.replace(spec, share_gpus=share), snapshot, "planned-1")
        ).request
        assert request["share_gpus"] is share


@pytest.mark.parametrize("notes", [None, [], "text", ["a", 3, "\ud800", {}], [["x"]] * 100])
def test_status_notes_are_sanitized(notes: object) -> None:
    found = status_of({"state": "running", "notes": notes}).notes
    assert len(found) <= 8 and all(isinstance(note, str) and note.encode() for note in found)


@pytest.mark.parametrize("old", [False, True])
def test_list_without_known_runs_works_with_old_agent(
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
    ids, runs = loop.call(AgentBackend.list(backend, {names[0], "gone-22222"}))
    assert set(ids) == set(names) and [run.run_id for run in runs] == [names[1]]


def test_changed_file_digest_is_of_copy(loop: LoopThread, backend: LocalBackend, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.py").write_text("print(1)")
    spec = JobSpec(name="r", script_name="train.py", source=str(source), python=sys.executable)
    made = take_snapshot("train.py", "", root=tmp_path, source=source)
    plan = loop.call(backend.plan(spec, made, new_run_id("r")))
    (source / "train.py").write_text("print(2)")
    run = loop.call(backend.launch(plan, {}, {}))
    digest = json.loads((Path(run.folder) / "job.json").read_text())["snapshot"]["digest"]
    assert digest == digest_of(Path(run.folder) / "source", ["train.py"]) != made.digest


@pytest.mark.parametrize("other", [True, False])
def test_job_of_other_interpreter_gets_no_variables_of_kernels(
    loop: LoopThread, backend: LocalBackend, tmp_path: Path, other: bool
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    code = "import os\nprint(sorted(set(os.environ) & {'VIRTUAL_ENV', 'CONDA_PREFIX', 'KEPT'}))"
    spec = JobSpec(name="r", script=code, script_name="script.py", python=str(python) if other else sys.executable)
    made = take_snapshot("script.py", code, root=tmp_path)
    plan = loop.call(backend.plan(spec, made, new_run_id("r")))
    environ = {**os.environ, "VIRTUAL_ENV": "/x", "CONDA_PREFIX": "/y", "KEPT": "1"}
    loop.call(backend.launch(plan, environ, {}))
    text = until(lambda: loop.call(backend.read(plan.run_id, "log", 0)).data.decode())
    assert text == ("['KEPT']\n" if other else "['CONDA_PREFIX', 'KEPT', 'VIRTUAL_ENV']\n")


def test_yaml_job_outputs_are_in_run_folder(loop: LoopThread, backend: LocalBackend, tmp_path: Path) -> None:
    text = "command: python -c \"open('outputs/model.txt', 'w').write('m')\"\n"
    spec = JobSpec(
        name="y", job_type="command", command="echo m > outputs/model.txt", cell=text, script_name="job.yml",
        notebook_dir=str(tmp_path), python=sys.executable, resources=Resources(gpus=0),
    )  # fmt: skip
    plan = loop.call(backend.plan(spec, of_yaml(spec, code=True), new_run_id("y")))
    run = loop.call(backend.launch(plan, {"PATH": "/usr/bin:/bin"}, {}))
    until(lambda: loop.call(backend.poll([run.run_id]))[run.run_id].state.terminal)
    assert (Path(run.folder) / "outputs" / "model.txt").read_text() == "m\n"


def test_live_run_on_full_disk_has_detail(
    loop: LoopThread, backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, made = TestLocalBackend().long()
    plan = loop.call(backend.plan(spec, made, new_run_id("r")))
    loop.call(backend.launch(plan, {"PATH": "/usr/bin:/bin"}, {"TOKEN": "x"}))

    def status() -> RunStatus:
        return loop.call(backend.poll([plan.run_id]))[plan.run_id]

    until(lambda: status().state.value == "running")
    assert status().reason is None
    monkeypatch.setattr("jupyter_amltrain.agent.calls.MIN_FREE_BYTES", 1 << 62)
    full = status()
    assert (full.state.value, full.reason) == ("running", "not-written") and "no space" in full.detail
    monkeypatch.undo()
    loop.call(backend.cancel(plan.run_id))


@pytest.mark.parametrize("odd", ["state root", "notebook's folder"])
def test_plan_with_non_utf8_folder_is_refused(loop: LoopThread, tmp_path: Path, odd: str) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        pytest.skip(f"needs a file system that accepts the name: {error}")
    home, project = (folder, tmp_path) if odd == "state root" else (tmp_path / "home", folder)
    backend = LocalBackend(LocalTarget(name="local"), loop, StateRoot(home))
    spec = JobSpec(name="x", script="pass\n", python=sys.executable, project=str(project))
    with pytest.raises(SpecError, match="UTF-8") as caught:
        loop.call(backend.plan(spec, take_snapshot("x.py", "pass\n", root=tmp_path), "x"))
    loop.call(backend.close())
    str(caught.value).encode()  # it can be shown
    assert odd in str(caught.value) and "\n" not in str(caught.value)


def test_files_of_a_run_are_read_through_the_backend(loop: LoopThread, backend: LocalBackend, home: Path) -> None:
    run = home / "runs" / "done-22222"
    (run / "artifacts" / "model").mkdir(parents=True)
    (run / "job.json").write_bytes(b'{"run": "done-22222"}')
    (run / "artifacts" / "model" / "weights").write_bytes(b"123")
    write_json(run / "tracking.json", {"state": "imported"})
    assert loop.call(backend.files.local_copy("done-22222")) == str(run)
    assert loop.call(backend.files.local_copy("done-22222", "source")) is None
    assert loop.call(backend.files.read("done-22222", "job.json")) == b'{"run": "done-22222"}'
    assert loop.call(backend.files.read("done-22222", "job.json", 3)) == b""
    (file,) = loop.call(backend.files.list("done-22222", "artifacts"))
    assert (file.path, file.size) == ("model/weights", 3) and file.modified > 0
    assert loop.call(backend.files.read_part("done-22222", "artifacts/model/weights", 1, 8)) == b"23"
    assert loop.call(backend.files.import_states(["done-22222", "gone-22222"])) == ["imported", ""]


def test_log_of_every_rank_is_a_stream_of_the_run(loop: LoopThread, backend: LocalBackend, home: Path) -> None:
    logs = home / "runs" / "ranks-22222" / "log"
    logs.mkdir(parents=True)
    for rank in range(3):
        (logs / f"rank-{rank}.txt").write_text(f"this is {rank}\n")
    read = [loop.call(backend.read("ranks-22222", stream, 0)).data for stream in ("log", "log/0", "log/1", "log/2")]
    assert read == [b"this is 0\n", b"this is 0\n", b"this is 1\n", b"this is 2\n"]
    assert (status_of({"state": "running"}).ranks, status_of({"state": "running", "ranks": 3}).ranks) == (1, 3)
    assert status_of({"state": "running", "ranks": 10**9}).ranks <= 4096


def test_named_interpreter_of_notebook_folder_runs_job(loop: LoopThread, backend: LocalBackend, tmp_path: Path) -> None:
    venv.create(tmp_path / ".venv", with_pip=False)
    code = "import sys\nprint(sys.prefix)\n"
    spec = JobSpec(
        name="r", script=code, script_name="script.py", python=".venv/bin/python", notebook_dir=str(tmp_path),
        resources=Resources(gpus=0),
    )  # fmt: skip
    spec = backend.complete_spec(spec)
    made = take_snapshot("script.py", code, root=tmp_path)
    plan = loop.call(backend.plan(spec, made, new_run_id("r")))
    loop.call(backend.launch(plan, os.environ, {}))
    text = until(lambda: loop.call(backend.read(plan.run_id, "log", 0)).data.decode())
    assert text.strip() == str(tmp_path / ".venv")


def test_missing_interpreter_is_refused_with_its_path(backend: LocalBackend, tmp_path: Path) -> None:
    spec = JobSpec(name="r", script="pass\n", python="no/such/python", notebook_dir=str(tmp_path))
    with pytest.raises(SpecError, match="no/such/python") as caught:
        backend.complete_spec(spec)
    assert caught.value.code == "interpreter.unusable"


def test_import_that_named_interpreter_does_not_have_is_named(
    loop: LoopThread, backend: LocalBackend, tmp_path: Path
) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    code = "import numpy\nimport json\n"
    spec = JobSpec(name="r", script=code, script_name="script.py", python=str(tmp_path / "venv" / "bin" / "python"))
    made = take_snapshot("script.py", code, root=tmp_path)
    with pytest.raises(PreflightError) as caught:
        loop.call(backend.plan(spec, made, new_run_id("r")))
    assert caught.value.details == {"modules": ["numpy"]}


def test_refused_submit_leaves_no_files(loop: LoopThread, backend: LocalBackend, home: Path) -> None:
    interrupted = home / "staging" / "old-22222"
    interrupted.mkdir(parents=True)
    os.utime(interrupted, (1e9, 1e9))
    plan = loop.call(backend.plan(*TestLocalBackend().short(), "large-22222"), 60)
    large = msgspec.structs.replace(plan, request={**plan.request, "argv": ["x" * (17 << 20)]})
    with pytest.raises(SubmitError):
        loop.call(backend.launch(large, {}, {}), 60)
    assert list((home / "staging").iterdir()) == [] and list((home / "runs").iterdir()) == []
