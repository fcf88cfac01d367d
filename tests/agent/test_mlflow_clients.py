"""The sink under the real MLflow clients, as jobs in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest

from tests.agent import mlflow2
from tests.agent.mlflow_jobs import RUN_ID, Host, everything, points, records, until

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def logged():
    folder, out = everything()
    return folder, out, records(folder)


def test_mlflow_client_resumed_run_is_job_run(logged):
    _, out, journal = logged
    assert set(out["ids"]) == {RUN_ID}
    assert out["child"] != RUN_ID
    children = [r for r in journal if r["op"] == "runs/create"]
    assert [r["a"]["id"] for r in children] == [out["child"]]


def test_mlflow_client_points_arrive_once_in_order(logged):
    _, out, journal = logged
    loss = [point for point in points(journal, "loss") if point[0] != 2]
    # log_model links the last points to the model by logging them again; the importer
    # and MLflow's own store keep an equal point once
    assert sorted(set(loss)) == [(0, 1.0), (1, 0.5)]
    assert [0, 1.0] in out["history"] and [1, 0.5] in out["history"]
    assert points(journal, "forked") == [(0, 1.0)]
    assert points(journal, "async") == [(1, 5.0)]
    assert [r["seq"] for r in journal] == list(range(1, len(journal) + 1))


def test_mlflow_client_model_round_trip_in_job(logged):
    folder, out, journal = logged
    assert out["same"] is True
    assert (folder / "artifacts/models" / out["model"] / "artifacts/MLmodel").is_file()
    assert any(r["op"] == f"logged-models/{out['model']}" for r in journal)


def test_mlflow_client_registers_models_in_job(logged):
    _, out, journal = logged
    assert out["shop"] == ["of a job", {"best": "1"}, [["2", "READY"]]]
    assert out["versions"] == [["2", {"checked": "yes"}], ["1", {"stage": "trial"}]]
    assert out["by_alias"] == out["by_version"] == "LogisticRegression"
    assert [record["op"] for record in journal if record["op"].startswith("registered-models/")] == [
        "registered-models/create", "registered-models/alias", "registered-models/update",
    ]  # fmt: skip


def test_mlflow_client_autolog_is_recorded(logged):
    _, _, journal = logged
    params = {p["key"] for r in journal if r["op"] == "runs/log-batch" for p in r["b"].get("params") or []}
    assert {"C", "solver"} <= params
    metrics = {m["key"] for r in journal if r["op"] == "runs/log-batch" for m in r["b"].get("metrics") or []}
    assert "training_accuracy_score" in metrics


def test_mlflow_client_artifacts_are_in_run_folder(logged):
    folder, out, _ = logged
    base = folder / "artifacts/runs" / RUN_ID / "artifacts"
    assert (base / "notes.txt").read_text() == "hello"
    assert (base / "plots/line.png").read_bytes().startswith(b"\x89PNG")
    assert {"notes.txt", "plots"} <= set(out["artifacts"])


def test_mlflow_client_inputs_and_traces_are_recorded(logged):
    folder, _, journal = logged
    names = [
        d["dataset"]["name"] for r in journal if r["op"] == "runs/log-inputs" for d in r["b"].get("datasets") or []
    ]
    assert "points" in names
    traces = [r["b"]["trace"]["trace_info"]["trace_id"] for r in journal if r["op"] == "traces"]
    assert traces
    assert (folder / "artifacts/traces" / traces[0] / "artifacts/traces.json").is_file()


def test_mlflow_client_limit_errors_keep_run(logged):
    folder, out, journal = logged
    errors = out["errors"]
    assert "'Metric name' exceeds the maximum length of 250 characters" in errors["long_metric"]
    assert "'Param key' exceeds the maximum length of 250 characters" in errors["long_param"]
    assert "Changing param values is not allowed" in errors["changed_param"]
    assert "version=7" in errors["missing_version"]
    assert "not available inside an amltrain job" in errors["webhook"]
    assert (2, 0.25) in points(journal, "loss")  # logged after all of them
    notes = (folder / "log/agent.txt").read_text()
    assert "unknown MLflow call" in notes


def test_mlflow_client_search_runs_finds_child(logged):
    assert logged[1]["searched"] == ["child"]


def test_mlflow_client_own_server_is_used(logged):
    _, out, journal = logged
    assert out["own"] == [[0, 9.0]] or out["own"] == [(0, 9.0)]
    assert points(journal, "elsewhere") == []


KILLED = """
import json, sys, time
import mlflow
from mlflow.tracking import MlflowClient

slowest = 0.0
with mlflow.start_run() as run:
    for step in range(150):
        started = time.monotonic()
        mlflow.log_metric("x", float(step), step=step)
        slowest = max(slowest, time.monotonic() - started)
        if step % 50 == 25:
            with mlflow.start_run(nested=True, run_name=f"child-{step}"):
                mlflow.log_metric("c", 1.0)
        print(step, flush=True)
print(json.dumps({"slowest": slowest}))
"""


def test_killed_sink_keeps_job_and_doubles_nothing(tmp_path):
    with Host(tmp_path) as host:
        job = host.start(KILLED)
        assert job.stdout is not None
        lines = []
        for line in job.stdout:
            lines.append(line)
            if line.strip() in {"20", "60", "61", "120"}:
                os.kill(host.pid, signal.SIGKILL)
                host.restarted()
        assert job.wait(60) == 0, "".join(lines)
        assert host.stop() == 0
        journal = host.records()
    assert points(journal, "x") == [(step, float(step)) for step in range(150)]
    assert [r["b"]["run_name"] for r in journal if r["op"] == "runs/create"] == ["child-25", "child-75", "child-125"]
    assert [r["seq"] for r in journal] == list(range(1, len(journal) + 1))
    assert json.loads(lines[-1])["slowest"] < 8.0


def test_sink_killed_before_answer_doubles_nothing(tmp_path):
    once = tmp_path / "once"
    once.mkdir()
    env = {"AMLTRAIN_FAILPOINT": "sink_after_write,sink_before_answer", "AMLTRAIN_FAILPOINT_ONCE": str(once)}
    with Host(tmp_path / "run", **env) as host:
        out = host.run(KILLED)
        assert sorted(path.name for path in once.iterdir()) == ["sink_after_write", "sink_before_answer"]
        assert host.stop() == 0
        journal = host.records()
    assert points(journal, "x") == [(step, float(step)) for step in range(150)]
    assert len([r for r in journal if r["op"] == "runs/create"]) == 3
    assert out["slowest"] < 8.0


def test_missing_sink_ends_script_in_seconds(tmp_path):
    script = """
import json, time
import mlflow
mlflow.log_metric("x", 1.0)
print("logged", flush=True)
input_ = open("gone"); input_.read()
started = time.monotonic()
try:
    mlflow.log_metric("x", 2.0)
    error = ""
except mlflow.exceptions.MlflowException as caught:
    error = str(caught)
print(json.dumps({"seconds": time.monotonic() - started, "error": error}), flush=True)
import os; os._exit(0)
"""
    os.mkfifo(tmp_path / "gone")
    with Host(tmp_path) as host:
        job = host.start(script)
        assert job.stdout is not None
        until(lambda: "logged" in job.stdout.readline(), "the first point")
        assert host.stop() == 0  # the socket is closed with the host
        with (tmp_path / "gone").open("w"):
            pass
        # MLflow's own retries would take minutes: seven of them, with doubling pauses, for each call.
        out, _ = job.communicate(timeout=120)
        result = json.loads(out.splitlines()[-1])
    assert result["error"]


LOOP = """
import json
import mlflow
out = {"ids": [], "names": []}
for number, c in enumerate((0.1, 1, 10)):
    with mlflow.start_run(run_name=f"C={c}", nested=NESTED) as run:
        mlflow.log_param("C", c)
        mlflow.log_metric("acc", c / 10)
        out["ids"].append(run.info.run_id)
        out["names"].append(mlflow.active_run().info.run_name)
        with mlflow.start_run(run_name="inner", nested=True) as inner:
            out["inner"] = inner.info.run_id
with mlflow.start_run(run_id=out["ids"][0]):
    mlflow.log_metric("resumed", 1.0)
runs = mlflow.MlflowClient().search_runs([run.info.experiment_id])
out["found"] = {run.info.run_id: run.data.tags.get("mlflow.parentRunId") for run in runs}
out["mlflow"] = mlflow.__version__
print(json.dumps(out))
"""


@pytest.mark.parametrize("client", [3, 2])
@pytest.mark.parametrize("nested", [False, True])
def test_runs_started_in_loop_are_children(tmp_path, client, nested):
    python = sys.executable if client == 3 else _mlflow2()
    with Host(tmp_path) as host:
        out = host.run(LOOP.replace("NESTED", str(nested)), python)
        assert host.stop() == 0
        journal = host.records()
    assert out["mlflow"].startswith(f"{client}.")
    first, *later = out["ids"]
    assert first == RUN_ID and len({*out["ids"]}) == 3
    assert out["names"] == ["C=0.1", "C=1", "C=10"]
    assert out["found"][RUN_ID] is None
    assert [out["found"][run_id] for run_id in later] == [RUN_ID, RUN_ID]
    assert out["found"][out["inner"]] == later[-1]  # nested below its own parent
    acc = [(r["b"]["run_id"], r["b"]["value"]) for r in journal if r["b"].get("key") == "acc"]
    assert acc == list(zip(out["ids"], (0.01, 0.1, 1.0), strict=True))
    resumed = [r["b"]["run_id"] for r in journal if r["b"].get("key") == "resumed"]
    assert resumed == [RUN_ID]


def test_logging_after_autolog_stays_in_job_run(tmp_path):
    script = """
import json
import mlflow
import numpy as np
from sklearn.linear_model import LogisticRegression
mlflow.sklearn.autolog(log_models=False, silent=True)
x = np.arange(40.0).reshape(20, 2); y = np.arange(20) % 2
LogisticRegression(C=0.5).fit(x, y)
mlflow.log_metric("test", 0.5)
print(json.dumps({"run": mlflow.active_run().info.run_id}))
"""
    with Host(tmp_path) as host:
        assert host.run(script)["run"] == RUN_ID
        assert host.stop() == 0
        journal = host.records()
    assert {r["b"]["run_id"] for r in journal if r["b"].get("params") or r["b"].get("key") == "test"} == {RUN_ID}


def _mlflow2():
    try:
        return mlflow2.interpreter()
    except RuntimeError as error:
        pytest.skip(str(error))


MLFLOW2 = """
import json, os
import mlflow
assert mlflow.__version__.startswith("2."), mlflow.__version__
out = {"ids": []}
mlflow.log_metric("loss", 1.0, step=0)
mlflow.log_params({"lr": 0.1})
out["ids"].append(mlflow.active_run().info.run_id)
mlflow.end_run()
with mlflow.start_run(run_id=out["ids"][0], run_name="second") as run:
    out["ids"].append(run.info.run_id)
    mlflow.log_metrics({"loss": 0.5, "acc": 0.9}, step=1)
    mlflow.log_dict({"a": 1}, "d.json")
    with mlflow.start_run(nested=True):
        mlflow.log_metric("inner", 1.0)
    from mlflow.models import Model  # log_model itself wants numpy; this is the call that it makes
    mlflow.MlflowClient()._record_logged_model(run.info.run_id, Model(artifact_path="model", run_id=run.info.run_id))
    try:
        mlflow.log_metric("m" * 251, 1.0); out["error"] = ""
    except Exception as error:
        out["error"] = str(error)
    out["history"] = len(mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss"))
print(json.dumps(out))
"""


def test_mlflow_2_client_is_supported(tmp_path):
    with Host(tmp_path) as host:
        out = host.run(MLFLOW2, _mlflow2())
        assert host.stop() == 0
        journal = host.records()
    assert set(out["ids"]) == {RUN_ID}
    assert points(journal, "loss") == [(0, 1.0), (1, 0.5)] and out["history"] == 2
    assert "exceeds the maximum length" in out["error"]
    assert (tmp_path / "artifacts/runs" / RUN_ID / "artifacts/d.json").is_file()
    assert len([r for r in journal if r["op"] == "runs/create"]) == 1
    assert len([r for r in journal if r["op"] == "runs/log-model"]) == 1
