"""The sink by its REST interface, without MLflow: fast."""

from __future__ import annotations

import errno
import http.client
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from jupyter_amltrain.agent.mlflow import journal as mlflow_journal
from jupyter_amltrain.agent.mlflow import search, sink_server
from tests.agent.mlflow_jobs import ROOT, RUN_ID, Host, points

POINT = {"run_id": RUN_ID, "key": "loss", "value": 0.5, "timestamp": 1700000000000, "step": 1}
CHILD = {
    "experiment_id": "0",
    "start_time": 1700000000000,
    "tags": [{"key": "mlflow.parentRunId", "value": RUN_ID}],
    "run_name": "child",
}


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    with Host(tmp_path_factory.mktemp("run")) as host:
        assert host.call("GET", "/health") == (200, "OK")  # it has written its first line
        yield host


def start(host, **more):
    """Start a run without a parent: its `info`, and its tags."""
    body = {"experiment_id": "0", "start_time": 1700000000000, **more}
    code, answer = host.call("POST", "runs/create", body)
    assert code == 200
    return answer["run"]["info"], {tag["key"]: tag["value"] for tag in answer["run"]["data"]["tags"]}


def test_first_started_run_is_job_run(tmp_path):
    with Host(tmp_path) as host:
        info, _ = start(host, run_name="C=1", tags=[{"key": "a", "value": "1"}])
        assert info["run_id"] == RUN_ID and info["run_name"] == "C=1"
        code, answer = host.call("GET", f"runs/get?run_id={RUN_ID}")
        assert {"key": "a", "value": "1"} in answer["run"]["data"]["tags"]
        assert answer["run"]["info"]["artifact_uri"].startswith("file:///")
        assert host.stop() == 0


@pytest.mark.parametrize("ended", [False, True])
def test_later_started_run_is_child(tmp_path, ended):
    with Host(tmp_path) as host:
        start(host)
        if ended:
            host.call("POST", "runs/update", {"run_id": RUN_ID, "status": "FINISHED", "end_time": 1700000000001})
        children = [start(host, run_name=name) for name in ("C=2", "C=3")]
        assert len({RUN_ID, *(info["run_id"] for info, _ in children)}) == 3
        assert [info["run_name"] for info, _ in children] == ["C=2", "C=3"]
        assert {tags["mlflow.parentRunId"] for _, tags in children} == {RUN_ID}
        assert host.stop() == 0


def test_autolog_run_keeps_first_run_as_job_run(tmp_path):
    autolog = [{"key": "mlflow.autologging", "value": "sklearn"}]
    with Host(tmp_path) as host:
        assert start(host, tags=autolog)[0]["run_id"] == RUN_ID
        assert start(host)[0]["run_id"] == RUN_ID  # log_metric behind fit()
        assert start(host, tags=autolog)[0]["run_id"] != RUN_ID
        assert start(host)[0]["run_id"] != RUN_ID
        assert host.stop() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: finds the process at the other end of a connection")
def test_run_of_each_rank_is_job_run(tmp_path):
    script = """
import json, os, subprocess, sys, urllib.request

def start():
    request = urllib.request.Request(os.environ["MLFLOW_TRACKING_URI"] + "/api/2.0/mlflow/runs/create", data=b"{}")
    request.add_header("Authorization", "Bearer " + os.environ["MLFLOW_TRACKING_TOKEN"])
    request.add_header("Content-Type", "application/json")
    return json.load(urllib.request.urlopen(request))["run"]["info"]["run_id"]

if "RANK" in os.environ:
    print(start(), start())
else:
    ranks = [subprocess.check_output([sys.executable, __file__], env={**os.environ, "RANK": n}) for n in "01"]
    print(json.dumps([rank.decode().split() for rank in ranks]))
"""
    with Host(tmp_path) as host:
        ranks = host.run(script)
        assert [first for first, _ in ranks] == [RUN_ID, RUN_ID]
        assert len({RUN_ID, *(second for _, second in ranks)}) == 3
        assert host.stop() == 0


def test_first_run_with_unsent_answer_stays_first(tmp_path):
    once = tmp_path / "once"
    once.mkdir()
    env = {"AMLTRAIN_FAILPOINT": "sink_after_write", "AMLTRAIN_FAILPOINT_ONCE": str(once)}
    with Host(tmp_path / "run", **env) as host:
        with pytest.raises((OSError, http.client.HTTPException)):
            start(host, run_name="first")
        host.restarted()
        assert start(host, run_name="first")[0]["run_id"] == RUN_ID
        assert start(host, run_name="second")[0]["run_id"] != RUN_ID
        assert host.stop() == 0


def test_restarted_sink_knows_first_run(tmp_path):
    with Host(tmp_path) as host:
        start(host, run_name="first")
        os.kill(host.pid, signal.SIGKILL)
        host.restarted()
        assert start(host, run_name="second")[0]["run_id"] != RUN_ID
        assert host.stop() == 0


def test_model_without_run_belongs_to_job_run(host):
    code, answer = host.call("POST", "logged-models", {"experiment_id": "0", "name": "alone"})
    assert code == 200 and answer["model"]["info"]["source_run_id"] == RUN_ID
    code, run = host.call("GET", f"runs/get?run_id={RUN_ID}")
    outputs = [model["model_id"] for model in run["run"]["outputs"]["model_outputs"]]
    assert answer["model"]["info"]["model_id"] in outputs


@pytest.mark.parametrize(
    ("op", "body", "message"),
    [
        (
            "runs/log-metric",
            {**POINT, "key": "k" * 251},
            "'Metric name' exceeds the maximum length of 250 characters",
        ),
        (
            "runs/log-parameter",
            {"run_id": RUN_ID, "key": "k" * 251, "value": "1"},
            "'Param key' exceeds the maximum length of 250",
        ),
        ("runs/set-tag", {"run_id": RUN_ID, "key": "k" * 251, "value": "1"}, "'key' exceeds the maximum length of 250"),
        ("runs/log-metric", {**POINT, "key": "a;b"}, "Names may only contain alphanumerics"),
        ("runs/log-metric", {**POINT, "key": "../up"}, "must not resolve to other names"),
        ("runs/log-metric", {**POINT, "value": "much"}, "valid double (64-bit floating point)"),
        ("runs/log-metric", {**POINT, "step": 1 << 63}, "9223372036854775808 for parameter 'step' supplied: metric"),
        ("runs/log-metric", {**POINT, "step": -(1 << 63) - 1}, "valid long (64-bit integer)"),
        ("runs/log-metric", {**POINT, "step": float("inf")}, "for parameter 'step' supplied: metric 'loss'"),
        ("runs/log-metric", {**POINT, "step": 10**4000}, "0... for parameter 'step'"),
        ("runs/log-metric", {**POINT, "value": 10**400}, "valid double (64-bit floating point)"),
        ("runs/log-metric", {**POINT, "timestamp": 1e19}, "for parameter 'timestamp' supplied"),
        (
            "runs/log-batch",
            {"run_id": RUN_ID, "metrics": [POINT, {**POINT, "step": 1 << 64}]},
            "for parameter 'metrics[1].step' supplied",
        ),
        ("runs/create", {**CHILD, "start_time": 1 << 63}, "for parameter 'start_time' supplied"),
        ("runs/update", {"run_id": RUN_ID, "end_time": 1 << 63}, "for parameter 'end_time' supplied"),
        (
            "runs/outputs",
            {"run_id": RUN_ID, "models": [{"model_id": "m-1", "step": 1 << 63}]},
            "for parameter 'models[0].step' supplied",
        ),
        ("runs/log-metric", {"run_id": RUN_ID, "key": "x"}, "Missing value for required parameter 'value'"),
        (
            "runs/log-batch",
            {"run_id": RUN_ID, "metrics": [POINT] * 1001},
            "at most 1000 metrics. Got 1001 metrics. Please split up",
        ),
        (
            "runs/log-batch",
            {"run_id": RUN_ID, "params": [{"key": str(i), "value": ""} for i in range(101)]},
            "at most 100 params",
        ),
        (
            "runs/log-batch",
            {"run_id": RUN_ID, "params": [{"key": "p", "value": "1"}, {"key": "p", "value": "2"}]},
            "Duplicate parameter keys have been submitted: ['p']",
        ),
        ("runs/log-batch", [1, 2], "cannot read this request"),
    ],
)
def test_sink_limits_are_refused_like_mlflow(host, op, body, message):
    before = len(host.records())
    code, answer = host.call("POST", op, body)
    assert code == 400
    assert answer["error_code"] == "INVALID_PARAMETER_VALUE"
    assert message in answer["message"]
    assert len(host.records()) == before


def test_sink_accepts_int64_limits(host):
    for step in ((1 << 63) - 1, -(1 << 63)):
        assert host.call("POST", "runs/log-metric", {**POINT, "key": "ends", "step": step})[0] == 200
    assert [step for step, _ in points(host.records(), "ends")] == [(1 << 63) - 1, -(1 << 63)]


def test_sink_truncates_long_values(host):
    assert host.call("POST", "runs/log-parameter", {"run_id": RUN_ID, "key": "long", "value": "v" * 7000})[0] == 200
    assert host.call("POST", "runs/set-tag", {"run_id": RUN_ID, "key": "long", "value": "v" * 9000})[0] == 200
    data = host.call("GET", f"runs/get?run_id={RUN_ID}")[1]["run"]["data"]
    assert [len(p["value"]) for p in data["params"] if p["key"] == "long"] == [6000]
    assert [len(t["value"]) for t in data["tags"] if t["key"] == "long"] == [8000]
    assert "it was cut to 6000" in host.notes()


def test_sink_unknown_call_is_refused_with_one_note(host):
    for _ in range(3):
        code, answer = host.call("POST", "webhooks", {})
        assert (code, answer["error_code"]) == (404, "ENDPOINT_NOT_FOUND")
        assert "from the notebook after the run" in answer["message"]
    assert host.notes().count("unknown MLflow call POST") == 1
    assert host.call("POST", "/v1/traces", {})[0] == 404
    assert host.call("GET", "runs/get?run_id=nope")[1]["error_code"] == "RESOURCE_DOES_NOT_EXIST"
    assert host.call("DELETE", "registered-models/delete", {"name": "shop"})[1]["error_code"] == "ENDPOINT_NOT_FOUND"


def test_sink_registry_refuses_as_mlflow(host):
    def refusal(op, **body):
        code, answer = host.call("POST", op, body)
        return (code, answer["error_code"])

    assert host.call("POST", "registered-models/create", {"name": "taken"})[0] == 200
    assert refusal("registered-models/create", name="taken") == (400, "RESOURCE_ALREADY_EXISTS")
    assert refusal("registered-models/create", name="a/b") == (400, "INVALID_PARAMETER_VALUE")
    assert refusal("registered-models/create", name="  ") == (400, "INVALID_PARAMETER_VALUE")
    assert refusal("model-versions/create", name="none", source="s") == (404, "RESOURCE_DOES_NOT_EXIST")
    assert refusal("model-versions/create", name="taken") == (400, "INVALID_PARAMETER_VALUE")
    assert refusal("registered-models/alias", name="taken", alias="x", version="1") == (404, "RESOURCE_DOES_NOT_EXIST")
    code, answer = host.call("GET", "registered-models/alias?name=taken&alias=x")
    assert (code, answer["error_code"]) == (400, "INVALID_PARAMETER_VALUE")


def test_registered_version_has_the_run_of_its_logged_model(host):
    logged = {"experiment_id": "0", "name": "m", "source_run_id": RUN_ID}
    model = host.call("POST", "logged-models", logged)[1]["model"]["info"]["model_id"]
    host.call("POST", "registered-models/create", {"name": "shop"})

    def run_of(**body):
        return host.call("POST", "model-versions/create", {"name": "shop", **body})[1]["model_version"]["run_id"]

    assert run_of(source=f"models:/{model}") == run_of(source="s3://bucket/m", model_id=model) == RUN_ID
    assert run_of(source=f"models:/{model}", run_id="other") == "other"
    assert run_of(source="models:/m-of-the-project") == run_of(source="models:/name/1") == ""
    found = host.call("GET", f"model-versions/search?filter=run_id%3D'{RUN_ID}'")[1]["model_versions"]
    assert [version["version"] for version in found] == ["2", "1"]


def test_restarted_sink_knows_registered_versions(tmp_path):
    with Host(tmp_path / "run") as host:
        host.call("POST", "registered-models/create", {"name": "kept"})
        body = {"name": "kept", "source": "s3://bucket/model", "tags": [{"key": "a", "value": "b"}]}
        assert host.call("POST", "model-versions/create", body)[1]["model_version"]["version"] == "1"
        os.kill(host.pid, signal.SIGKILL)
        host.restarted()
        versions = host.call("GET", "model-versions/search?filter=name%3D'kept'")[1]["model_versions"]
        assert [(v["version"], v["source"]) for v in versions] == [("1", "s3://bucket/model")]
        other = dict(body, source="s3://bucket/other")
        assert host.call("POST", "model-versions/create", other)[1]["model_version"]["version"] == "2"


def test_sink_refuses_foreign_token_and_host(host):
    assert host.call("GET", f"runs/get?run_id={RUN_ID}", Authorization="Bearer other")[0] == 403
    assert host.call("GET", f"runs/get?run_id={RUN_ID}", Host="evil.example:80")[0] == 403
    assert host.call("GET", "/version", Authorization="") == (200, sink_server.VERSION)


def test_sink_refuses_huge_request(host):
    connection = http.client.HTTPConnection("127.0.0.1", host.port, timeout=30)
    connection.putrequest("POST", "/api/2.0/mlflow/runs/log-batch")
    connection.putheader("Content-Length", str(1 << 40))
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == 413 and b"at most" in answer.read()
    connection.close()


def test_sink_connection_is_reused(host):
    connection = http.client.HTTPConnection("127.0.0.1", host.port, timeout=30)
    headers = {"Authorization": "Bearer test-token"}
    for _ in range(3):
        connection.request("GET", f"/api/2.0/mlflow/runs/get?run_id={RUN_ID}", headers=headers)
        sock = connection.sock
        assert connection.getresponse().read()
        assert connection.sock is sock
    connection.close()


def test_sink_history_and_search_return_logged(host):
    for step, value in enumerate([3.0, "NaN", 1.0]):
        body = {"run_id": RUN_ID, "key": "back", "value": value, "timestamp": 1700000000000 + step, "step": step}
        assert host.call("POST", "runs/log-metric", body)[0] == 200
    answer = host.call("GET", f"metrics/get-history?run_id={RUN_ID}&metric_key=back")[1]
    assert [p["value"] for p in answer["metrics"]] == [3.0, "NaN", 1.0]
    page = host.call("GET", f"metrics/get-history?run_id={RUN_ID}&metric_key=back&max_results=2")[1]
    assert [p["step"] for p in page["metrics"]] == [0, 1] and page["next_page_token"] == "2"
    search = {"experiment_ids": ["0"], "filter": "metrics.back <= 1 AND params.none IS NULL"}
    assert [r["info"]["run_id"] for r in host.call("POST", "runs/search", search)[1]["runs"]] == [RUN_ID]
    assert host.call("POST", "runs/search", {"experiment_ids": ["0"], "filter": "metrics.back > 1"})[1]["runs"] == []
    assert host.call("POST", "runs/search", {"experiment_ids": ["0"], "filter": "oh no"})[0] == 400


def test_sink_history_page_asked_twice_is_same(host):
    for step in (0, 1, 2, 1, 3, 4):
        point = {"key": "paged", "value": step / 2, "timestamp": 1700000000000, "step": step}
        assert host.call("POST", "runs/log-batch", {"run_id": RUN_ID, "metrics": [point]})[0] == 200

    def page(token):
        query = f"run_id={RUN_ID}&metric_key=paged&max_results=2&page_token={token}"
        answer = host.call("GET", "metrics/get-history?" + query)[1]
        return [point["step"] for point in answer["metrics"]], answer.get("next_page_token")

    assert [page(0), page(2), page(4)] == [([0, 1], "2"), ([2, 3], "4"), ([4], None)]
    assert [page(2), page(2), page(4), page(4)] == [([2, 3], "4")] * 2 + [([4], None)] * 2


def test_sink_equal_point_is_stored_once(host):
    for _ in range(2):
        assert host.call("POST", "runs/log-metric", {**POINT, "key": "twice"})[0] == 200
    assert points(host.records(), "twice") == [(1, 0.5)]


def test_sink_points_sent_again_change_neither_value_nor_history(tmp_path):
    with Host(tmp_path) as host:
        losses = [dict(POINT, value=3.0 - step, step=step, timestamp=POINT["timestamp"] + step) for step in range(3)]
        model = [dict(point, model_id="m-1") for point in losses]
        for sent in (losses, model, model[:1]):
            for point in sent:
                assert host.call("POST", "runs/log-metric", point)[0] == 200
        run = host.call("GET", f"runs/get?run_id={RUN_ID}")[1]["run"]
        assert [(point["value"], point["step"]) for point in run["data"]["metrics"]] == [(1.0, 2)]
        history = host.call("GET", f"metrics/get-history?run_id={RUN_ID}&metric_key=loss")[1]["metrics"]
        assert [point["value"] for point in history] == [3.0, 2.0, 1.0]
        assert host.stop() == 0


def test_sink_value_that_is_not_finite_is_text(tmp_path):
    with Host(tmp_path) as host:
        for name in ("NaN", "Infinity", "-Infinity"):
            host.call("POST", "runs/log-metric", dict(POINT, key=name, value=name))
        metrics = host.call("GET", f"runs/get?run_id={RUN_ID}")[1]["run"]["data"]["metrics"]
        assert [point["value"] for point in metrics] == ["NaN", "Infinity", "-Infinity"]
        assert host.stop() == 0


def test_run_in_unknown_experiment_is_refused(tmp_path):
    with Host(tmp_path) as host:
        start(host)
        code, answer = host.call("POST", "runs/create", {"experiment_id": "98765", "start_time": 1})
        assert (code, answer["error_code"]) == (404, "RESOURCE_DOES_NOT_EXIST")


def test_deleted_run_takes_no_values_until_restored(tmp_path):
    with Host(tmp_path) as host:
        start(host)
        run_id = host.call("POST", "runs/create", CHILD)[1]["run"]["info"]["run_id"]
        assert host.call("POST", "runs/delete", {"run_id": run_id})[0] == 200
        code, answer = host.call("POST", "runs/log-metric", {**POINT, "run_id": run_id})
        assert (code, answer["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
        assert host.call("POST", "runs/restore", {"run_id": run_id})[0] == 200
        assert host.call("POST", "runs/log-metric", {**POINT, "run_id": run_id})[0] == 200


def test_deleted_model_and_tag_are_gone_also_after_restart(tmp_path):
    with Host(tmp_path) as host:
        tags = [{"key": "a", "value": "1"}, {"key": "b", "value": "2"}]
        models = [
            host.call("POST", "logged-models", {"name": name, "experiment_id": "0", "tags": tags})[1]["model"]["info"]
            for name in ("kept", "gone")
        ]
        kept, gone = (model["model_id"] for model in models)
        assert host.call("DELETE", f"logged-models/{kept}/tags/a")[0] == 200
        assert host.call("DELETE", f"logged-models/{gone}")[0] == 200
        os.kill(host.pid, signal.SIGKILL)
        host.restarted()
        found = host.call("POST", "logged-models/search", {"experiment_ids": ["0"]})[1]["models"]
        assert [(model["info"]["name"], [tag["key"] for tag in model["info"]["tags"]]) for model in found] == [
            ("kept", ["b"])
        ]


def test_traces_of_job_are_found_tagged_and_deleted(tmp_path):
    with Host(tmp_path) as host:
        place = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": "0"}}
        for number in range(3):
            info = {"trace_id": f"tr-{number}", "trace_location": place, "tags": {}}
            info["request_time"] = f"2026-01-01T00:00:0{number}.5Z"
            assert host.call("POST", "traces", {"trace": {"trace_info": info}})[0] == 200
        host.call("PATCH", "traces/tr-1/tags", {"key": "k", "value": "v"})
        request = {"locations": [place], "max_results": 2}
        found = host.call("POST", "traces/search", request)[1]["traces"]
        assert [trace["trace_id"] for trace in found] == ["tr-2", "tr-1"] and found[1]["tags"]["k"] == "v"
        answer = host.call("POST", "traces/delete-traces", {"experiment_id": "0", "request_ids": ["tr-1", "tr-2"]})
        assert answer == (200, {"traces_deleted": 2})
        assert [trace["trace_id"] for trace in host.call("POST", "traces/search", request)[1]["traces"]] == ["tr-0"]


def test_search_for_models_without_prompts_finds_models(tmp_path):
    with Host(tmp_path) as host:
        host.call("POST", "registered-models/create", {"name": "clf"})
        text = "name LIKE '%c%' AND tag.`mlflow.prompt.is_prompt` != 'true'"
        found = host.call("GET", "registered-models/search?filter=" + quote(text))[1]["registered_models"]
        assert [model["name"] for model in found] == ["clf"]
        code, answer = host.call("POST", "registered-models/rename", {"name": "clf", "new_name": "other"})
        assert (code, answer["error_code"]) == (400, "INVALID_STATE")


def test_search_by_dataset_finds_run(tmp_path):
    with Host(tmp_path) as host:
        dataset = {"name": "digits", "digest": "abc", "source_type": "local", "source": "here"}
        host.call("POST", "runs/log-inputs", {"run_id": RUN_ID, "datasets": [{"dataset": dataset, "tags": []}]})
        for text, count in (("dataset.name = 'digits'", 1), ("datasets.digest = 'other'", 0)):
            found = host.call("POST", "runs/search", {"experiment_ids": ["0"], "filter": text})[1]["runs"]
            assert len(found) == count


def test_sink_filter_matches_expressions():
    row = {("metric", "loss"): 0.5, ("tag", "kind of"): "Big", ("attribute", "status"): "FINISHED"}

    def holds(text):
        return search.matches(search.parse(text), lambda kind, key: row.get((kind, key)))

    assert holds("") and holds("metrics.loss < 1 AND status = 'FINISHED'")
    assert holds("tags.`kind of` LIKE 'B%' and tag.\"kind of\" ILIKE 'big'") and holds(
        "status IN ('FAILED', 'FINISHED')"
    )
    assert not holds("metrics.loss >= 0.6") and not holds("metrics.other != 3") and holds("metrics.other IS NULL")
    assert search.order("metrics.loss DESC") == ("metric", "loss", True)
    assert search.order("start_time") == ("attribute", "start_time", False)


@pytest.mark.thorough
@pytest.mark.parametrize("op", ["runs/create", "runs/log-metric", "runs/log-batch", "logged-models"])
def test_sink_written_request_is_not_repeated(tmp_path, op):
    body = {
        "runs/create": CHILD,
        "runs/log-metric": {**POINT, "model_id": "m-1"},
        "runs/log-batch": {"run_id": RUN_ID, "metrics": [POINT]},
        "logged-models": {"experiment_id": "0", "name": "model"},
    }[op]
    once = tmp_path / "once"
    once.mkdir()
    env = {"AMLTRAIN_FAILPOINT": "sink_after_write", "AMLTRAIN_FAILPOINT_ONCE": str(once)}
    with Host(tmp_path / "run", **env) as host:
        with pytest.raises((OSError, http.client.HTTPException)):
            host.call("POST", op, body)
        host.restarted()
        code, answer = host.call("POST", op, body)
        assert code == 200
        made = [record for record in host.records() if record["op"] == op]
        assert len(made) == 1
        if op == "runs/create":
            assert answer["run"]["info"]["run_id"] == made[0]["a"]["id"]
            # a script that wants a second, equal child gets one
            assert host.call("POST", op, body)[1]["run"]["info"]["run_id"] != made[0]["a"]["id"]
        assert host.stop() == 0


def test_sink_torn_journal_tail_is_cut(tmp_path):
    with Host(tmp_path) as host:
        assert host.call("POST", "runs/log-metric", POINT)[0] == 200
        os.kill(host.pid, signal.SIGSTOP)  # nobody writes while the tail is torn
        with (tmp_path / "metrics/rank-0.jsonl").open("ab") as file:
            file.write(b'{"seq":3,"t":1,"op":"runs/lo')
        os.kill(host.pid, signal.SIGKILL)
        host.restarted()
        assert host.call("POST", "runs/log-metric", {**POINT, "step": 2})[0] == 200
        assert host.stop() == 0
        assert [record["seq"] for record in host.records()] == [1, 2, 3]
        assert "torn last line" in host.notes()
        assert oct((tmp_path / "metrics/rank-0.jsonl").stat().st_mode & 0o777) == "0o600"


def test_sink_full_disk_keeps_records_in_memory(tmp_path, monkeypatch):
    notes: list[str] = []
    journal = mlflow_journal.SinkJournal(str(tmp_path / "j.jsonl"), notes.append)
    journal.recover(lambda record: None)
    journal.append("a", {}, {}, 1)
    real, room = os.pwrite, [5]

    def full(fd, data, offset):
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken, room[0] = min(room[0], len(data)), 0
        return real(fd, data[:taken], offset)

    monkeypatch.setattr(os, "pwrite", full)
    for number in range(100):
        journal.append("b", {"n": number}, {}, 1)
    assert (tmp_path / "j.jsonl").read_bytes().count(b"\n") == 1  # and no torn line behind it
    assert (tmp_path / "j.jsonl").read_bytes().endswith(b"\n")
    assert any("No space left" in note for note in notes)
    monkeypatch.setattr(os, "pwrite", real)
    journal.flush()
    journal.close()
    seen: list[int] = []
    again = mlflow_journal.SinkJournal(str(tmp_path / "j.jsonl"), notes.append)
    again.recover(lambda record: seen.append(record["seq"]))
    again.close()
    assert seen == list(range(1, 102)) and journal.dropped == 0


def test_sink_records_waiting_for_disk_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(mlflow_journal, "MAX_HELD_BYTES", 1000)
    journal = mlflow_journal.SinkJournal(str(tmp_path / "j.jsonl"), lambda note: None)

    def full(fd, data, offset):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    for number in range(100):
        journal.append("b", {"n": number}, {}, 1)
    assert 0 < journal.dropped < 100
    monkeypatch.undo()
    journal.close()


def test_sink_client_environment_keeps_proxies():
    env = sink_server.client_env(1234, "t", {"no_proxy": "corp.example"})
    assert env["MLFLOW_TRACKING_URI"] == "http://127.0.0.1:1234"
    assert env["no_proxy"] == "corp.example,127.0.0.1" and env["NO_PROXY"] == "127.0.0.1"
    assert not set(env) & set(sink_server.CLEARED)


def test_sink_modules_are_python_3_8():
    modules = sorted(str(p) for p in (ROOT / "jupyter_amltrain/agent/mlflow").glob("*.py"))
    vermin = Path(sys.executable).with_name("vermin")
    done = subprocess.run(
        [str(vermin), "-q", "-t=3.8-", "--no-tips", *modules], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout
