"""What a script logs reaches the service's MLflow, whatever that answers; the real client, a real server."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from jupyter_amltrain.agent.azure import forward, mlflow_batches
from jupyter_amltrain.agent.azure.forward import service_uri
from tests.agent import local_service
from tests.agent.conftest import until
from tests.agent.local_service import RUN, TRACKED, WORKSPACE, Job, Service, ended, helper, one_line, pythons
from tests.agent.test_service_rank_nodes import gpus

no_leftovers = local_service.no_leftovers

#: Logs by MLflow's REST as its client does, without its four seconds of import.
LOGS = """
import json, os, sys, time, urllib.request
def call(op, **body):
    request = urllib.request.Request(
        os.environ["MLFLOW_TRACKING_URI"] + "/api/2.0/mlflow/" + op, json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["MLFLOW_TRACKING_TOKEN"]})
    return json.load(urllib.request.urlopen(request))
run = call("runs/create", experiment_id="0", user_id="u", start_time=1, tags=[])["run"]["info"]["run_id"]
def log(key, *values, first=0):
    now = int(time.time() * 1000)
    points = [{"key": key, "value": v, "timestamp": now, "step": first + n} for n, v in enumerate(values)]
    call("runs/log-batch", run_id=run, metrics=points)
def wait(name):
    while not os.path.exists(os.path.join(os.environ["PLACE"], name)):
        time.sleep(0.01)
"""


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    try:
        yield made
    finally:
        made.close()


@pytest.mark.thorough
def test_forwarder_sends_records_of_real_client(tmp_path, zipapp, service):
    script = """
import os, time, mlflow
mlflow.set_experiment("anything")
with mlflow.start_run(run_name="mine"):
    mlflow.log_params({"p%d" % n: n for n in range(150)})
    mlflow.log_param("long", "x" * 3000)
    mlflow.set_tag("kind", "test")
    mlflow.log_metric("bad", float("nan"))
    for first in range(0, 1200, 600):
        mlflow.log_metrics({"m%d" % n: n / 2 for n in range(600)}, step=first)
    mlflow.log_text("hello", "notes.txt")
    with mlflow.start_run(nested=True):
        mlflow.log_metric("child", 1)
print(mlflow.active_run(), os.environ.get("MLFLOW_RUN_ID"), os.environ["AZUREML_RUN_ID"])
"""
    job = Job(tmp_path, zipapp, script, argv=["@python", "script.py"])
    code, out, errors = job.run(**service.environ)
    assert (code, out.decode().split()) == (0, ["None", "None", RUN]), errors
    assert len(service.of("metrics", "m599")) == 2 and len(service.of("params")) == 151
    assert service.of("params", "p149") == ["149"] and service.of("params", "long") == ["x" * 500]
    assert service.of("tags", "kind") == ["test"] and service.of("metrics", "bad") == ["NaN"]
    assert not service.of("metrics", "child")
    assert all(not tag["key"].startswith("mlflow.") for tag in service.of("tags"))
    assert (job.code / "outputs/runs" / TRACKED / "artifacts/notes.txt").read_text() == "hello"
    assert any(record["op"] == "init" for record in job.lines("metrics/rank-0.jsonl"))


def test_forwarder_ignores_other_ranks(tmp_path, zipapp, service):
    job = Job(tmp_path, zipapp, LOGS + "log('loss', 1.0, 2.0); print(run)")
    environ = {**service.environ, "RANK": "1", "LOCAL_RANK": "0", "NODE_RANK": "1", "WORLD_SIZE": "2"}
    code, out, errors = job.run(**environ)
    assert (code, out.decode().strip(), errors) == (0, TRACKED, b"")
    assert not service.of("metrics", "loss") and service.of("metrics")
    assert all(one["key"].startswith("system/node_1/") for one in service.of("metrics"))
    assert job.lines("metrics/rank-1.jsonl")[-1]["b"]["metrics"][-1]["value"] == 2.0


@pytest.mark.thorough
def test_forwarder_sends_telemetry(tmp_path, zipapp, service):
    job = Job(tmp_path, zipapp, LOGS + "wait('go')")
    gpus(job, "* 0 70 1000 200")
    process = job.start(PLACE=str(tmp_path), python=pythons()[-1], **service.environ)
    key = "system/gpu_1_utilization_percentage"
    until(lambda: len(service.of("metrics", key)) > 2, "telemetry at the service")
    (tmp_path / "go").touch()
    [(code, _, errors)] = ended([process])
    assert code == 0 and not errors
    assert set(service.of("metrics", key)) == {70}
    assert service.of("metrics", "system/gpu_0_memory_usage_megabytes")[0] == pytest.approx(1000 * 1.048576, abs=0.01)
    assert 0 < service.of("metrics", "system/system_memory_usage_megabytes")[0] < 10**8
    steps = [one["step"] for one in service.of("metrics") if one["key"] == key]
    assert steps == list(range(len(steps)))


@pytest.mark.thorough
def test_forwarder_after_service_errors_sends_once(tmp_path, zipapp, service):
    service.faults = [500, (429, 0.3), "cut", 503, 404]
    service.version = "v2.0"  # the other of the two APIs
    job = Job(tmp_path, zipapp, LOGS + "log('loss', *range(300))\nwait('go')\nlog('last', 1)", gpus=0)
    process = job.start(PLACE=str(tmp_path), AMLTRAIN_FORWARD_PERIOD="0.05", **service.environ)
    until(lambda: len(service.of("metrics", "loss")) == 300, "all points")
    # killed in its sleep, it goes on where it was
    until(lambda: json.loads((job.logs / "telemetry/forwarded-0.json").read_text())["ticks"] > 0, "a cursor")
    os.kill(helper(process.pid, 2), signal.SIGKILL)
    (tmp_path / "go").touch()
    [(code, _, errors)] = ended([process])
    assert code == 0 and service.requests > 5
    one_line(errors, "trying again")
    assert service.of("metrics", "loss") == list(range(300)) and service.of("metrics", "last") == [1]


@pytest.mark.thorough
@pytest.mark.parametrize(("status", "word"), [(401, "token"), (403, "token"), (302, "302")])
def test_forwarder_refused_stops_with_note(tmp_path, zipapp, service, status, word):
    service.faults = [status] * 100
    job = Job(tmp_path, zipapp, LOGS + "log('loss', 1)\nwait('go')\nlog('loss', 2)")
    process = job.start(PLACE=str(tmp_path), **service.environ)
    until(lambda: service.requests, "a request")
    (tmp_path / "go").touch()
    [(code, _, errors)] = ended([process])
    assert code == 0 and service.requests == 1
    one_line(errors, word)
    assert "the-job" not in errors.decode()


def test_forwarder_refused_record_does_not_block_others(tmp_path, zipapp, service):
    service.refuses = lambda batch: any(one["key"] == "bad name" for one in batch["metrics"])
    job = Job(
        tmp_path, zipapp, LOGS + "log('loss', *range(20)); log('bad name', *range(20)); log('loss', 20, first=20)"
    )
    code, _, errors = job.run(**service.environ)
    assert code == 0
    one_line(errors, "bad name")
    assert service.of("metrics", "loss") == list(range(21)) and not service.of("metrics", "bad name")


@pytest.mark.thorough
def test_forwarder_without_service_ends_in_seconds(tmp_path, zipapp):
    environ = {**Service().environ, "MLFLOW_TRACKING_URI": f"http://127.0.0.1:9/mlflow/v1.0{WORKSPACE}"}
    job = Job(tmp_path, zipapp, LOGS + "log('loss', 1)")
    code, _, errors = job.run(AMLTRAIN_FORWARD_LAST="0.5", **environ)
    assert code == 0
    one_line(errors, "logs/amltrain")
    (job.code / "script.py").write_text("import time; time.sleep(3)")
    code, _, errors = job.run(AMLTRAIN_FORWARD_LAST="0.5", AMLTRAIN_FORWARD_PERIOD="0.05", **environ)
    assert code == 0
    one_line(errors, "trying again")


def test_forwarder_keeps_own_tracking_server(tmp_path, zipapp, service):
    script = "import os; print(os.environ['MLFLOW_TRACKING_URI'])"
    job = Job(
        tmp_path,
        zipapp,
        script,
        tracking={"run_id": TRACKED, "mode": "direct"},
        env={"MLFLOW_TRACKING_URI": "http://u"},
    )
    code, out, _ = job.run(**service.environ)
    assert (code, out, service.requests) == (0, b"http://u\n", 0)


# -- parts


def test_forwarder_sends_token_to_azure_only():
    host = "eastus.api.azureml.ms"
    assert service_uri(f"azureml://{host}/mlflow/v1.0{WORKSPACE}?x=y") == f"https://{host}/mlflow/v1.0{WORKSPACE}"
    assert service_uri(f"https://{host}/mlflow/v2.0{WORKSPACE}/") == f"https://{host}/mlflow/v2.0{WORKSPACE}"
    for text in (
        "",
        "file:///x",
        "databricks",
        f"http://{host}/mlflow/v1.0{WORKSPACE}",
        "https://mine.org",
        "azureml://",
    ):
        assert service_uri(text) == "", text
    assert forward.endpoint_of({"MLFLOW_TRACKING_URI": f"azureml://{host}/mlflow/v1.0{WORKSPACE}"}) is None


def header(count: int) -> dict[str, Any]:
    return {
        "columns": ["seq", "t", "host_cpu", "host_memory", "net_rx", "net_tx"],
        "gpu_columns": ["util", "peak", "memory", "power"],
        "gpus": [{"index": index} for index in range(count)],
    }


@pytest.mark.parametrize(("count", "nodes", "names"), [(0, 1, 4), (4, 1, 16), (8, 2, 18), (64, 1, 1), (8, 4, 9)])
def test_forwarder_metric_names_are_limited(tmp_path, count, nodes, names):
    path = tmp_path / "node-1.jsonl"
    row = [0, 100.0, 50.0, 10**9, 1, 2] + [70, 80, 1000, 200.0] * count
    path.write_text(json.dumps(header(count)) + "\n" + json.dumps(row) + "\n")
    telemetry = mlflow_batches.TelemetryReader(str(path), 1, nodes, 10.0)
    telemetry.read(last=True)
    items = telemetry.waiting[0].items
    assert len(items) == names and all(item.body["key"].startswith("system/node_1/") for item in items)


def test_forwarder_telemetry_points_of_torn_file_are_complete(tmp_path):
    path = tmp_path / "node-0.jsonl"
    rows = [[n, 100.0 + n, 10.0 * (n % 10), 10**9, n * 10**6, 0] for n in range(25)]
    text = json.dumps(header(0)) + "\n" + "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(text + "[25,1")
    telemetry = mlflow_batches.TelemetryReader(str(path), 0, 1, 10.0)
    telemetry.read()
    first, second = telemetry.waiting
    values = {
        item.body["key"]: (item.body["value"], item.body["timestamp"], item.body["step"]) for item in second.items
    }
    assert values["system/cpu_utilization_percentage"] == (45.0, 119000, 1)
    assert values["system/network_receive_megabytes"] == (19.0, 119000, 1)
    again = mlflow_batches.TelemetryReader(str(path), 0, 1, 10.0, first.end, 1)
    again.read(last=True)
    assert [bucket.items[0].body["step"] for bucket in again.waiting] == [1, 2]


def test_forwarder_reads_every_journal_record(tmp_path):
    path = tmp_path / "rank-0.jsonl"
    linked = {"run_id": "r", "key": "loss", "value": 1.5, "timestamp": 5, "step": 1, "model_id": "m"}
    records = [
        ("init", {}),
        ("runs/log-metric", {"run_uuid": "r", "key": "loss", "value": "1.5", "timestamp": "5", "step": "1"}),
        ("runs/log-metric", linked),
        ("runs/log-metric", {"run_id": "child", "key": "loss", "value": 9}),
        ("runs/log-parameter", {"run_id": "r", "key": "p", "value": "1"}),
        ("runs/set-tag", {"run_id": "r", "key": "mlflow.user", "value": "1"}),
        ("runs/set-tag", {"run_id": "r", "key": "t", "value": "y" * 2000}),
        ("runs/log-metric", {"run_id": "r", "key": "inf", "value": "Infinity", "timestamp": 6}),
    ]
    path.write_text("".join(json.dumps({"seq": n, "op": op, "b": b}) + "\n" for n, (op, b) in enumerate(records)) + "{")
    journal = mlflow_batches.JournalReader(str(path), "r")
    items = journal.read()
    assert [(item.kind, item.body["key"]) for item in items] == [
        ("metrics", "loss"), ("params", "p"), ("tags", "t"), ("metrics", "inf"),
    ]  # fmt: skip
    assert items[0].body == {"key": "loss", "value": 1.5, "timestamp": 5, "step": 1}
    assert len(items[2].body["value"]) == 1000 and math.isfinite(items[3].body["value"])
    assert items[3].body["value"] == sys.float_info.max and journal.read() == []
