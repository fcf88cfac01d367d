"""Run folder -> MLflow store: complete, repeatable, whole after a kill at any point."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from jupyter_amltrain.tracking import importer, ui
from tests.agent import mlflow2
from tests.agent.mlflow_jobs import ROOT, RUN_ID, everything, finish_folder

#: MLflow is imported twice here: 30 s and more.
pytestmark = pytest.mark.thorough

KILLED = -signal.SIGKILL


def python(*arguments: str, interpreter: str = sys.executable, timeout: float = 280.0) -> dict:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_DISABLE_TELEMETRY": "true"}
    done = subprocess.run([interpreter, *arguments], env=env, cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    run = tmp_path_factory.mktemp("run") / "digits-k3f9"
    shutil.copytree(everything()[0], run)
    artifacts = run / "artifacts/runs" / RUN_ID / "artifacts"
    (artifacts / ".artifact.uploading.abc").write_text("half")
    (artifacts / "gone").symlink_to("nowhere")
    os.mkfifo(artifacts / "pipe")
    return python("-m", "tests.tracking.killed_imports", str(run), str(tmp_path_factory.mktemp("work")))


@pytest.mark.parametrize(
    "point",
    ["import_before_commit", "import_after_commit", "import_between_copies", "import_after_model", "import_new_store"],
)
def test_import_killed_at_failpoint_equals_clean_import(killed, point):
    case = killed["cases"][point]
    assert case["codes"][0] == KILLED
    assert case["final"] == [0, 0]
    assert case["differing"] == []
    assert case["files_equal"]
    assert case["left"] == []


def test_import_has_all_records(killed):
    assert killed["clean"] == killed["one_chunk"] == 0 and killed["one_chunk_equal"]
    rows = killed["rows"]
    assert rows["runs"] == 2
    assert rows["metrics"] > 5 and rows["latest_metrics"] > 3 and rows["params"] > 3
    assert rows["logged_models"] == rows["model_versions"] == 2 and rows["logged_model_metrics"] >= 1
    assert rows["datasets"] >= 1 and rows["inputs"] >= 2
    assert rows["trace_info"] >= 1
    assert killed["files"] >= 5  # the model's, two artifacts, the trace
    result = killed["result"]
    assert (result["state"], result["rejects"], result["run_id"]) == ("imported", [], RUN_ID)
    assert any("pipe is not a regular file" in note for note in result["notes"])


READ = """
import json, sys
from pathlib import Path
from jupyter_amltrain.tracking import importer
from tests.agent import mlflow2
from tests.agent.mlflow_jobs import RUN_ID, finish_folder, records

run, project, mode = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
import mlflow
out = {}
journal = run / "metrics/rank-0.jsonl"
whole = journal.read_bytes()
lines = whole.splitlines(keepends=True)
finish_folder(run, "running")
journal.write_bytes(b"".join(lines[:10]) + lines[10][:20])              # a live run, torn last line
out["partial"] = importer.import_run(str(run), project)
journal.write_bytes(whole)
finish_folder(run, mode)
mlflow.set_tracking_uri("sqlite:///" + project + "/.amltrain/mlflow.db")
mlflow.MlflowClient().create_registered_model("shop")                    # the project has a version already
mlflow.MlflowClient().create_model_version("shop", "s3://bucket/older")
out["final"] = importer.import_run(str(run), project, handle="gpubox/digits-k3f9")
mlflow.MlflowClient().delete_registered_model_alias("shop", "best")      # what is changed later stays
mlflow.MlflowClient().set_registered_model_alias("shop", "best", "3")
import errno, fcntl
def no_locks(*args, **kwargs):
    raise OSError(errno.ENOLCK, "No locks available")
fcntl.flock = no_locks
out["again"] = importer.import_run(str(run), project, handle="gpubox/digits-k3f9")
mlflow.set_tracking_uri("sqlite:///" + project + "/.amltrain/mlflow.db")
client = mlflow.MlflowClient()
got = client.get_run(RUN_ID)
out["run"] = {"status": got.info.status, "name": got.info.run_name, "end": got.info.end_time,
              "params": got.data.params, "tags": got.data.tags, "metrics": got.data.metrics,
              "experiment": client.get_experiment(got.info.experiment_id).name}
out["loss"] = sorted((m.step, m.value) for m in client.get_metric_history(RUN_ID, "loss"))
out["kids"] = [r.info.status for r in client.search_runs(
    [got.info.experiment_id], f"tags.`mlflow.parentRunId` = '{RUN_ID}'")]
out["artifacts"] = sorted(f.path for f in client.list_artifacts(RUN_ID))
models = client.search_logged_models([got.info.experiment_id])
out["models"] = [(m.model_id, str(m.status), bool(m.metrics)) for m in models]
out["loaded"] = type(mlflow.sklearn.load_model("models:/" + models[0].model_id)).__name__
shop = client.get_registered_model("shop")
out["shop"] = [shop.description, shop.aliases, sorted([str(v.version), v.run_id, v.tags]
               for v in client.search_model_versions("name = 'shop'"))]
out["by_alias"] = type(mlflow.sklearn.load_model("models:/shop@best")).__name__
out["traces"] = len(client.search_traces([got.info.experiment_id]))
print(json.dumps(out, default=str))
"""


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    run = tmp_path_factory.mktemp("live") / "digits-k3f9"
    shutil.copytree(everything()[0], run)
    script = tmp_path_factory.mktemp("script") / "read.py"
    script.write_text(READ)
    project = tmp_path_factory.mktemp("project")
    return project, python(str(script), str(run), str(project), "failed")


def test_import_of_live_run_is_partial(read):
    _, out = read
    assert (out["partial"]["state"], out["partial"]["records"]) == ("partial", 10)
    assert out["final"]["state"] == "imported"
    assert out["final"]["records"] == out["final"]["seq"] - 10
    assert (out["again"]["records"], out["again"]["files"]) == (0, 0)


def test_import_without_locks_has_note(read):
    assert "without locks" in read[1]["again"]["notes"][-1]
    assert not list((read[0] / ".amltrain").glob("*.soft"))


def test_imported_run_is_readable_by_mlflow(read):
    _, out = read
    run = out["run"]
    assert (run["status"], run["end"]) == ("FAILED", 1_700_000_009_500)  # by the exit code
    assert run["experiment"] == "numbers" and run["name"] == "second"
    assert run["params"]["seed"] == "7" and run["params"]["lr"] == "0.1"  # the script's value stays
    tags = run["tags"]
    assert tags["amltrain.handle"] == "gpubox/digits-k3f9" and tags["amltrain.state"] == "failed"
    assert tags["mlflow.amltrain.source_sha256"] == "ab" * 32 and tags["team"] == "blue" and tags["kind"] == "demo"
    assert out["loss"] == [[0, 1.0], [1, 0.5], [2, 0.25]]
    assert out["kids"] == ["FINISHED"]
    assert {"notes.txt", "plots"} <= set(out["artifacts"])
    assert [m[1:] for m in out["models"]] == [["LoggedModelStatus.READY", True]] or out["models"][0][2]
    assert out["loaded"] == "LogisticRegression" and out["traces"] >= 1


def test_models_of_job_are_registered_once(read):
    _, out = read
    description, aliases, versions = out["shop"]
    assert description == "of a job" and aliases == {"best": 3} and out["by_alias"] == "LogisticRegression"
    assert [[number, run or ""] for number, run, _ in versions] == [["1", ""], ["2", RUN_ID], ["3", RUN_ID]]
    assert versions[1][2]["stage"] == "trial" and versions[2][2]["checked"] == "yes"
    assert versions[1][2]["amltrain.handle"] == "gpubox/digits-k3f9"
    assert any("shop version 3" in note for note in out["final"]["notes"])


def test_mlflow_ui_is_reused_and_ends_with_parent(read, monkeypatch):
    project, _ = read
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    started = ui.start(str(project))
    try:
        assert ui.start(str(project)) == {**started, "reused": True}
        with urllib.request.urlopen(started["url"], timeout=30) as page:
            assert b"MLflow" in page.read()
    finally:
        assert ui.stop(str(project)) == {"stopped": True}
    with pytest.raises(OSError):
        urllib.request.urlopen(started["url"], timeout=5)


TAGS = """
import json, sys
from pathlib import Path
import mlflow
from jupyter_amltrain.tracking import importer
from tests.agent.mlflow_jobs import RUN_ID, finish_folder

run, project = Path(sys.argv[1]), sys.argv[2]
(run / "metrics").mkdir(parents=True)
init = {"id": RUN_ID, "exp_id": "0", "exp_name": "numbers", "name": "digits"}
changes = [("init", {}, init)]
for key in ("kept", "gone"):
    changes.append(("experiments/set-experiment-tag", {"experiment_id": "0", "key": key, "value": "1"}, {}))
for key in ("gone", "never"):
    changes.append(("experiments/delete-experiment-tag", {"experiment_id": "0", "key": key}, {}))
lines = [json.dumps({"seq": at + 1, "t": 5, "op": op, "b": b, "a": a}) for at, (op, b, a) in enumerate(changes)]
(run / "metrics/rank-0.jsonl").write_text("\\n".join(lines) + "\\n")
finish_folder(run)
result = importer.import_run(str(run), project)
mlflow.set_tracking_uri("sqlite:///" + project + "/.amltrain/mlflow.db")
tags = mlflow.MlflowClient().get_experiment_by_name("numbers").tags
print(json.dumps([result["state"], result["rejects"], sorted(tags)]))
"""


def test_deleted_tag_of_experiment_is_not_imported(tmp_path):
    script = tmp_path / "tags.py"
    script.write_text(TAGS)
    state, rejects, tags = python(str(script), str(tmp_path / "run"), str(tmp_path))
    assert (state, rejects) == ("imported", [])
    assert "kept" in tags and "gone" not in tags


MOVED = """
import json, sys
from pathlib import Path
import mlflow
from jupyter_amltrain.tracking import importer
from tests.agent.mlflow_jobs import RUN_ID, finish_folder

run, project = Path(sys.argv[1]), sys.argv[2]
(run / "metrics").mkdir(parents=True)
changes = [("init", {}, {"id": RUN_ID, "exp_id": "0", "exp_name": "numbers", "name": "digits"})]
for name, key in (("used", "7"), ("tagged", "8"), ("traced", "9"), ("seen", "10")):
    changes.append(("experiments/create", {"name": name}, {"id": key, "t": 5, "looked_up": True}))
started = {"run_id": RUN_ID, "status": "RUNNING", "experiment_id": "7"}
changes.append(("runs/update", started, {"joined": ["script", ""]}))
changes.append(("experiments/set-experiment-tag", {"experiment_id": "8", "key": "a", "value": "1"}, {}))
place = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": "9"}}
info = {"trace_id": "tr-1", "trace_location": place, "request_time": "2026-01-01T00:00:00Z", "state": "OK",
        "trace_metadata": {}, "tags": {}, "execution_duration": "1s"}
changes.append(("traces", {"trace": {"trace_info": info}}, {"id": "tr-1", "t": 5}))
changes.append(("runs/log-metric", {"run_id": RUN_ID, "key": "loss", "value": 1, "timestamp": 5, "step": 0}, {}))
lines = [json.dumps({"seq": at + 1, "t": 5, "op": op, "b": b, "a": a}) for at, (op, b, a) in enumerate(changes)]
journal = run / "metrics/rank-0.jsonl"
journal.write_text("\\n".join(lines[:4]) + "\\n")
finish_folder(run)
importer.import_run(str(run), project)
journal.write_text("\\n".join(lines) + "\\n")
result = importer.import_run(str(run), project)
mlflow.set_tracking_uri("sqlite:///" + project + "/.amltrain/mlflow.db")
client = mlflow.MlflowClient()
names = sorted(one.name for one in client.search_experiments())
got = client.get_run(RUN_ID)
print(json.dumps([result["state"], result["rejects"], names, client.get_experiment(got.info.experiment_id).name,
                  got.data.metrics, result["experiment_id"] == got.info.experiment_id]))
"""


def test_run_moves_into_experiment_that_it_was_begun_in(tmp_path):
    script = tmp_path / "moved.py"
    script.write_text(MOVED)
    state, rejects, names, experiment, metrics, same = python(str(script), str(tmp_path / "run"), str(tmp_path))
    assert (state, rejects, experiment, metrics, same) == ("imported", [], "used", {"loss": 1.0}, True)
    assert set(names) == {"Default", "numbers", "tagged", "traced", "used"}  # a name that is only looked up makes none


OLD = """
import json, sys
import mlflow
assert mlflow.__version__.startswith("2."), mlflow.__version__
from jupyter_amltrain.tracking import importer
RUN_ID = sys.argv[3]
out = {"first": importer.import_run(sys.argv[1], sys.argv[2]), "again": importer.import_run(sys.argv[1], sys.argv[2])}
mlflow.set_tracking_uri("sqlite:///" + sys.argv[2] + "/.amltrain/mlflow.db")
run = mlflow.MlflowClient().get_run(RUN_ID)
out["run"] = {"status": run.info.status, "loss": run.data.metrics["loss"], "params": run.data.params}
out["inputs"] = len(run.inputs.dataset_inputs)
print(json.dumps(out))
"""


def test_import_into_mlflow_2_store_succeeds(tmp_path):
    try:
        old = mlflow2.interpreter()
    except RuntimeError as error:
        pytest.skip(str(error))
    run = tmp_path / "digits-k3f9"
    shutil.copytree(everything()[0], run)  # logged by a client of MLflow 3
    script = tmp_path / "old.py"
    script.write_text(OLD)
    out = python(str(script), str(run), str(tmp_path / "project"), RUN_ID, interpreter=old)
    assert out["first"]["state"] == "imported" and out["first"]["rejects"] == []
    assert out["again"]["records"] == 0
    assert (out["run"]["status"], out["run"]["loss"]) == ("FINISHED", 0.25)
    assert out["run"]["params"]["lr"] == "0.1" and out["inputs"] >= 1
    assert any("models logged by MLflow 3" in note for note in out["first"]["notes"])


def test_import_of_direct_run_is_skipped(tmp_path):
    finish_folder(tmp_path, tracking={"run_id": RUN_ID, "mode": "direct"})
    result = importer.import_run(str(tmp_path), str(tmp_path / "project"))
    assert result["state"] == "direct" and "own tracking server" in result["notes"][0]
    assert not (tmp_path / "project").exists()
    assert json.loads((tmp_path / "tracking.json").read_text())["state"] == "direct"


def test_tracking_modules_do_not_import_mlflow():
    code = (
        "import sys, json\n"
        "import jupyter_amltrain.tracking.worker, jupyter_amltrain.rpc.client, jupyter_amltrain.tracking.importer\n"
        "import jupyter_amltrain.tracking.journal_replay, jupyter_amltrain.tracking.copies\n"
        "import jupyter_amltrain.tracking.ui, jupyter_amltrain.tracking.mlflow_private\n"
        "import jupyter_amltrain.output.picture\n"
        "print(json.dumps([m for m in ('mlflow', 'sqlalchemy', 'matplotlib', 'IPython') if m in sys.modules]))"
    )
    assert python("-c", code) == []


def test_import_of_newer_schema_is_refused(tmp_path):
    from jupyter_amltrain.errors import StateError

    finish_folder(tmp_path, schema=99)
    with pytest.raises(StateError, match="newer jupyter_amltrain"):
        importer.import_run(str(tmp_path), str(tmp_path))


def test_store_paths_are_private(read):
    place: Path = read[0] / ".amltrain"
    assert oct(place.stat().st_mode & 0o777) == "0o700"
    assert oct((place / "mlflow.db").stat().st_mode & 0o777) == "0o600"
    assert (place / ".gitignore").read_text() == "*\n"
