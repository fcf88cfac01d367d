"""Import of whatever a job may have logged, and where the project's disk or store does not work."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent.mlflow import journal
from jupyter_amltrain.tracking import copies
from tests.agent.mlflow_jobs import RUN_ID, Host, finish_folder, points
from tests.tracking.test_importer import python

pytestmark = pytest.mark.thorough

INIT = {"seq": 1, "t": 1, "op": "init", "b": {}, "a": {"id": RUN_ID, "exp_id": "0", "exp_name": "n", "name": "digits"}}


def metric(seq: int, key: str = "loss", **more: Any) -> dict[str, Any]:
    point = {"run_id": RUN_ID, "key": key, "value": seq / 10, "timestamp": 1, "step": seq, **more}
    return {"seq": seq, "t": seq, "op": "runs/log-metric", "b": point}


def tag(seq: int, key: Any, value: Any) -> dict[str, Any]:
    return {"seq": seq, "t": seq, "op": "runs/set-tag", "b": {"run_id": RUN_ID, "key": key, "value": value}}


def run_folder(folder: Path, lines: list[Any], **job: Any) -> Path:
    """A run folder that has ended; a line that is no record stands as it is."""
    (folder / "metrics").mkdir(parents=True)
    with (folder / "metrics/rank-0.jsonl").open("wb") as file:
        for line in lines:
            file.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
    finish_folder(folder, **job)
    return folder


IMPORT = """
import json, sys, time
from pathlib import Path
from jupyter_amltrain.errors import StateError
from jupyter_amltrain.tracking import importer
from tests.agent.mlflow_jobs import RUN_ID
run, project, prepare = sys.argv[1], sys.argv[2], sys.argv[3]
out = {"tries": []}
def go():
    started = time.monotonic()
    try:
        out["result"] = importer.import_run(run, project)
        error = ""
    except StateError as caught:
        error = str(caught)
    out["tries"].append([error, time.monotonic() - started])
exec(prepare)
go()
import mlflow
if Path(project, ".amltrain/mlflow.db").is_file():
    mlflow.set_tracking_uri("sqlite:///" + project + "/.amltrain/mlflow.db")
    client = mlflow.MlflowClient()
    got = client.get_run(RUN_ID)
    out["metrics"], out["tags"], out["params"] = got.data.metrics, got.data.tags, got.data.params
    out["name"], out["status"] = got.info.run_name, got.info.status
    out["experiment"] = client.get_experiment(got.info.experiment_id).name
    out["loss"] = sorted(m.step for m in client.get_metric_history(RUN_ID, "loss"))
    kids = client.search_runs([got.info.experiment_id], f"tags.`mlflow.parentRunId` = '{RUN_ID}'")
    out["kids"] = sorted(kid.info.run_name for kid in kids)
print(json.dumps(out))
"""


def imported(folder: Path, project: Path, prepare: str = "") -> dict[str, Any]:
    """Import in a process of its own: its tries, and what MLflow reads back."""
    return python("-c", IMPORT, str(folder), str(project), prepare)


def test_import_of_hostile_journal_keeps_valid_records(tmp_path):
    bad = [
        tag(2, "surrogate", "a\ud800b"),
        tag(3, "\udfff", "key"),
        {"seq": 4, "t": 4, "op": "runs/update", "b": {"run_id": RUN_ID, "status": "ON FIRE"}},
        {"seq": 5, "t": 5, "op": "runs/update", "b": {"run_id": RUN_ID, "status": ["RUNNING"]}},
        {"seq": 6, "t": 6, "op": "experiments/create", "b": {"name": ["a", "list"]}, "a": {"id": "7", "t": 6}},
        {"seq": 7, "t": 7, "op": "experiments/create", "b": {"name": "x" * 9000}, "a": {"id": "8", "t": 7}},
        {
            "seq": 8,
            "t": 8,
            "op": "runs/create",
            "b": {"experiment_id": "7", "tags": [{"key": "mlflow.parentRunId", "value": RUN_ID}]},
            "a": {"id": "c" * 32, "name": "child", "t": 8},
        },
        {"seq": 9, "t": 9, "op": "runs/create", "b": {"user_id": ["who"]}, "a": {"id": "d" * 32, "name": "e", "t": 9}},
        metric(10, step=1 << 80),
        metric(11, value="much"),
        tag(12, ["a", "list"], "x"),
        {"seq": 13, "t": 13, "op": "runs/log-batch", "b": {"run_id": RUN_ID, "metrics": "no list"}},
        {"seq": 14, "t": 14, "op": "runs/set-tag", "b": {"run_id": "f" * 32, "key": "of", "value": "no run"}},
        b"\xff\xfe broken \n",
        b"[1, 2]\n",
        b'{"seq": "16", "t": 1, "op": 3, "b": null}\n',
        b'{"seq": 17, "t": 1, "op": "runs/set-tag", "b": ' + b"[" * 20000 + b"]" * 20000 + b"}\n",
    ]
    good = [metric(seq) for seq in range(20, 40)]
    folder = run_folder(
        tmp_path / "digits-k3f9",
        [INIT, *good[:10], *bad, *good[10:]],
        experiment="num\ud800bers",
        spec={"params": {"p\ud800": "v\udfff"}, "tags": {"t": "\ud800"}},
    )
    out = imported(folder, tmp_path / "project")
    assert out["tries"][0][0] == "" and out["result"]["state"] == "imported"
    assert out["loss"] == list(range(20, 40)) and out["status"] == "FINISHED"
    assert out["tags"]["surrogate"] == "a\ufffdb" and out["params"]["p\ufffd"] == "v\ufffd"
    assert out["experiment"] == "num\ufffdbers" and out["kids"] == ["child"]
    assert out["result"]["damaged"] == 4
    assert any("4 damaged lines" in note for note in out["result"]["notes"])
    assert {reject["seq"] for reject in out["result"]["rejects"]} >= {4, 5, 6, 7, 9, 10, 11, 12, 13, 14}
    json.dumps(out["result"]).encode()  # it travels


@pytest.mark.parametrize("first", [b"\0\0\0\n", b'{"seq":1,"t":1,"op":"init","b":{},"a":{}}\n'])
def test_import_without_first_line_creates_run(tmp_path, first):
    folder = run_folder(tmp_path / "digits-k3f9", [first, metric(2), metric(3)])
    out = imported(folder, tmp_path / "project")
    assert (out["loss"], out["name"], out["experiment"]) == ([2, 3], "digits", "numbers")


def test_import_with_invalid_state_file_fails(tmp_path):
    folder = run_folder(tmp_path / "digits-k3f9", [INIT, metric(2)])
    damage = """
state = Path(run, "state.json")
good = state.read_bytes()
state.write_text("[]")
go()
state.write_bytes(good)
"""
    out = imported(folder, tmp_path / "project", damage)
    (bad, _), (last, _) = out["tries"]
    assert "state.json is damaged" in bad and last == "" and out["loss"] == [2]


FULL = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
for size in (20_000, 200_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))     # writes fail as on a full disk
    go()
    go()
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
out["left"] = [path.name for path in Path(project, ".amltrain").glob("mlflow.db?*")]
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_import_after_full_disk_succeeds(tmp_path):
    folder = run_folder(tmp_path / "digits-k3f9", [INIT, metric(2)])
    out = imported(folder, tmp_path / "project", FULL)
    *failed, last = out["tries"]
    assert all("full" in error and "\n" not in error for error, _ in failed), failed
    assert last[0] == "" and out["loss"] == [2] and out["left"] == []


@pytest.mark.parametrize("case", ["folder", "long path", "no database"])
def test_import_into_unusable_store_fails_fast(tmp_path, case):
    project = tmp_path / "project"
    if case == "long path":
        project = tmp_path.joinpath(*["d" * 100] * 5)
    project.joinpath(".amltrain").mkdir(parents=True)
    if case == "folder":
        project.joinpath(".amltrain/mlflow.db").mkdir()
    if case == "no database":
        project.joinpath(".amltrain/mlflow.db").write_bytes(b"what?" * 1000)
    folder = run_folder(tmp_path / "digits-k3f9", [INIT, metric(2)])
    code = IMPORT.replace("import mlflow\nif Path", "if 0 and Path")
    ((error, seconds),) = python("-c", code, str(folder), str(project), "import mlflow, sqlalchemy")["tries"]
    assert "cannot be opened" in error and "\n" not in error
    assert seconds < 30  # MLflow itself tries for 100 s
    assert json.loads((folder / "tracking.json").read_text())["state"] == "failed"


def test_sink_replaces_surrogates_and_refuses_invalid_values(tmp_path):
    with Host(tmp_path) as host:
        body = {"run_id": RUN_ID, "key": "odd", "value": "a\ud800"}
        assert host.call("POST", "runs/set-tag", body)[0] == 200
        for op, wrong in [
            ("runs/update", {"run_id": RUN_ID, "status": "ON FIRE"}),
            ("runs/update", {"run_id": RUN_ID, "status": ["RUNNING"]}),
            ("experiments/create", {"name": ["list"]}),
            ("runs/create", {"run_name": {"a": 1}}),
        ]:
            code, answer = host.call("POST", op, wrong)
            assert (code, answer["error_code"]) == (400, "INVALID_PARAMETER_VALUE"), op
        assert host.stop() == 0
        assert [r["b"]["value"] for r in host.records() if r["op"] == "runs/set-tag"] == ["a\ufffd"]


def test_sink_keeps_records_after_damaged_line(tmp_path):
    run_folder(tmp_path / "run", [INIT, metric(2), b"\0\0\0\n", b"[]\n", metric(5)])
    with Host(tmp_path / "run") as host:
        code, answer = host.call("GET", f"metrics/get-history?run_id={RUN_ID}&metric_key=loss")
        assert [point["step"] for point in answer["metrics"]] == [2, 5]
        assert host.call("POST", "runs/log-metric", metric(6)["b"])[0] == 200
        assert host.stop() == 0
        assert "2 damaged lines" in host.notes()
    lines = (tmp_path / "run/metrics/rank-0.jsonl").read_bytes().splitlines(keepends=True)
    parsed = [record for record in map(journal.parse, lines) if record]
    assert [step for step, _ in points(parsed, "loss")] == [2, 5, 6]
    assert [record["seq"] for record in parsed] == sorted({record["seq"] for record in parsed})


# ---- artifacts


@pytest.mark.skipif(sys.platform == "win32", reason="needs symbolic links without privileges (not Windows)")
def test_import_does_not_follow_outside_links(tmp_path):
    run, secret = tmp_path / "run", tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("secret")
    source = run / "artifacts"
    source.mkdir(parents=True)
    (run / "inside.txt").write_text("inside")
    (source / "in").symlink_to(run / "inside.txt")
    (source / "out").symlink_to(secret / "key")
    (source / "folder").symlink_to(secret)
    (source / "circle").symlink_to("circle")
    notes: list[str] = []
    assert copies.copy_tree(source, tmp_path / "to", notes.append, within=run)[0] == 1
    assert sorted(path.name for path in (tmp_path / "to").iterdir()) == ["in"]
    assert (tmp_path / "to/in").read_text() == "inside" and not (tmp_path / "to/in").is_symlink()
    assert len(notes) == 3


@pytest.mark.skipif(not hasattr(os, "SEEK_DATA"), reason="needs SEEK_DATA, to find holes of a file")
def test_copy_of_sparse_file_is_sparse(tmp_path):
    source = tmp_path / "source"
    with source.open("wb") as file:
        file.write(b"begin")
        file.seek(8 << 20)
        file.write(b"middle")
        file.truncate(64 << 20)
    if source.stat().st_blocks * 512 >= 1 << 20:
        pytest.skip("needs a file system with sparse files")
    copies.copy_file(source, tmp_path / "target")
    with source.open("rb") as one, (tmp_path / "target").open("rb") as two:
        assert one.read() == two.read()
    status = (tmp_path / "target").stat()
    assert status.st_blocks * 512 < 1 << 20
    assert status.st_mtime_ns == source.stat().st_mtime_ns


def test_import_of_random_journal_ends():
    assert python("-m", "tests.tracking.import_fuzz", timeout=170) == "held"
