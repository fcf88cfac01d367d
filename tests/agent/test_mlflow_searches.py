"""Searches for logged models and traces in a job, by the REST interface, without MLflow: fast."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from jupyter_amltrain.agent.mlflow.sink_traces import COLUMNS, change_traces, matching_traces
from tests.agent.mlflow_jobs import RUN_ID, Host

PLACE = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": "0"}}
DIGITS = {"dataset_name": "digits", "dataset_digest": "abc"}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A job with four models, each with its accuracy at two times; the last one has none."""
    with Host(tmp_path_factory.mktemp("run")) as host:
        for number, name in enumerate("abcd"):
            body = {"name": name, "experiment_id": "0", "model_type": "big" if number < 2 else ""}
            model = host.call("POST", "logged-models", body)[1]["model"]["info"]["model_id"]
            # the later point has the lower step, and is sent first
            for step, time, value in ((1, 2000, 0.1 * number), (5, 1000, 9.0)) if name != "d" else ():
                point = {"run_id": RUN_ID, "key": "acc", "value": value, "timestamp": time, "step": step}
                host.call("POST", "runs/log-metric", dict(point, model_id=model))
                if name == "b":
                    host.call(
                        "POST", "runs/log-metric", dict(point, model_id=model, value=7.0, timestamp=500, **DIGITS)
                    )
        for number in range(4):
            info = {"trace_id": f"tr-{number}", "trace_location": PLACE, "tags": {"mlflow.traceName": f"t{number % 2}"}}
            info["request_time"] = f"2026-01-01T00:00:0{number}.5Z"
            info.update(state="ERROR" if number == 3 else "OK", execution_duration=f"{number}.25s")
            info["trace_metadata"] = {"mlflow.sourceRun": "r" if number < 2 else "s"}
            if number:
                info["client_request_id"] = f"c{number}"
            assert host.call("POST", "traces", {"trace": {"trace_info": info}})[0] == 200
        yield host


def models(host: Any, **body: Any) -> str:
    code, answer = host.call("POST", "logged-models/search", {"experiment_ids": ["0"], **body})
    assert code == 200, answer
    return "".join(model["info"]["name"] for model in answer["models"])


def traces(host: Any, **body: Any) -> str:
    code, answer = host.call("POST", "traces/search", {"locations": [PLACE], **body})
    assert code == 200, answer
    return "".join(trace["trace_id"][3:] for trace in answer["traces"])


def by(field: str, ascending: bool = True, **more: str) -> list[dict[str, Any]]:
    return [{"field_name": field, "ascending": ascending, **more}]


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ([], "dcba"),
        (by("creation_timestamp"), "abcd"),
        (by("name", False), "dcba"),
        (by("metrics.acc"), "abcd"),
        (by("metrics.acc", False), "cbad"),
        (by("metrics.acc", False, **DIGITS), "bdca"),
        (by("metrics.acc", False, dataset_name="other"), "dcba"),
        ([*by("model_type"), *by("name")], "cdab"),
    ],
)
def test_models_have_order_of_request(host: Any, order: list[dict[str, Any]], names: str) -> None:
    assert models(host, order_by=order) == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("name != 'a'", "dcb"),
        ("metrics.acc < 0.15 AND attributes.name LIKE '%'", "ba"),
        ("metrics.acc > 6", "b"),
        ("model_type = 'big'", "ba"),
        ("status = 'PENDING' AND creation_timestamp > 5", "dcba"),
    ],
)
def test_filter_selects_models(host: Any, text: str, names: str) -> None:
    assert models(host, filter=text) == names


def test_datasets_limit_models_and_metrics(host: Any) -> None:
    assert models(host, datasets=[DIGITS]) == models(host, datasets=[{"dataset_name": "digits"}]) == "b"
    assert models(host, datasets=[DIGITS], filter="metrics.acc < 1") == ""
    assert models(host, datasets=[{"dataset_name": "other"}]) == ""


@pytest.mark.parametrize(
    "body",
    [
        {"order_by": by("params.x")},
        {"order_by": by("color")},
        {"order_by": [{"ascending": True}]},
        {"filter": "color = 'red'"},
        {"filter": "metrics.acc > 'high'"},
        {"filter": "name ="},
        {"datasets": [{"dataset_digest": "abc"}]},
        {"page_token": "next"},
    ],
)
def test_search_for_models_with_unknown_column_is_refused(host: Any, body: dict[str, Any]) -> None:
    code, answer = host.call("POST", "logged-models/search", {"experiment_ids": ["0"], **body})
    assert (code, answer["error_code"]) == (400, "INVALID_PARAMETER_VALUE")


@pytest.mark.parametrize(("search", "key"), [("logged-models/search", "models"), ("traces/search", "traces")])
def test_pages_follow_each_other(host: Any, search: str, key: str) -> None:
    body: dict[str, Any] = {"experiment_ids": ["0"], "locations": [PLACE]}
    whole, paged, sizes = host.call("POST", search, body)[1][key], [], []
    body["max_results"] = 3
    while True:
        answer = host.call("POST", search, body)[1]
        paged += answer[key]
        sizes.append(len(answer[key]))
        if "next_page_token" not in answer:
            break
        body["page_token"] = answer["next_page_token"]
    assert (paged, sizes) == (whole, [3, 1])


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("timestamp_ms > 1767225601500", "32"),
        ("trace.timestamp <= 1767225601500", "10"),
        ("attributes.status = 'ERROR'", "3"),
        ("status IN ('OK')", "210"),
        ("name = 't1'", "31"),
        ("tags.`mlflow.traceName` RLIKE '^t[1-9]$'", "31"),
        ("run_id = 'r'", "10"),
        ("metadata.`mlflow.sourceRun` = 's' AND trace.name = 't0'", "2"),
        ("request_metadata.mlflow.sourceRun ILIKE 'S'", "32"),
        ("execution_time_ms >= 2250", "32"),
        ("trace.end_time < 1767225602000", "0"),
        ("request_id = 'tr-1'", "1"),
        ("client_request_id != 'c1'", "32"),
        ("tags.missing IS NULL", "3210"),
    ],
)
def test_filter_selects_traces(host: Any, text: str, numbers: str) -> None:
    assert traces(host, filter=text) == numbers


@pytest.mark.parametrize(
    ("order", "numbers"),
    [
        (["timestamp_ms ASC"], "0123"),
        (["execution_time DESC"], "3210"),
        (["name", "timestamp_ms ASC"], "0213"),
        (["metadata.`mlflow.sourceRun` DESC"], "3210"),
        (["status"], "3210"),
        (["request_id"], "0123"),
        (["client_request_id DESC"], "3210"),
    ],
)
def test_traces_have_order_of_request(host: Any, order: list[str], numbers: str) -> None:
    assert traces(host, order_by=order) == numbers


@pytest.mark.parametrize(
    "body",
    [
        {"filter": "span.name = 'x'"},
        {"filter": "feedback.rating = 'good'"},
        {"filter": "color = 'red'"},
        {"filter": "name RLIKE '('"},
        {"filter": "nonsense ==== 3"},
        {"order_by": ["color"]},
        {"order_by": ["span.name"]},
    ],
)
def test_search_for_traces_by_unknown_column_is_refused(host: Any, body: dict[str, Any]) -> None:
    code, answer = host.call("POST", "traces/search", {"locations": [PLACE], **body})
    assert (code, answer["error_code"]) == (400, "INVALID_PARAMETER_VALUE")


def test_refusal_of_column_names_those_that_are_supported(host: Any) -> None:
    answer = host.call("POST", "traces/search", {"locations": [PLACE], "filter": "span.name = 'x'"})[1]
    assert (
        "'span.name'" in answer["message"] and "timestamp_ms" in answer["message"] and "tags.KEY" in answer["message"]
    )
    assert set(COLUMNS.attributes) >= {"status", "run_id"}


def test_client_of_mlflow_2_searches_traces(host: Any) -> None:
    query = f"traces?experiment_ids=0&filter={quote('timestamp < 1767225602000')}&order_by={quote('timestamp_ms ASC')}"
    found = host.call("GET", query + "&max_results=1")[1]
    assert [trace["trace_id"] for trace in found["traces"]] == ["tr-0"]
    found = host.call("GET", query + "&max_results=1&page_token=" + found["next_page_token"])[1]
    assert [trace["trace_id"] for trace in found["traces"]] == ["tr-1"] and "next_page_token" not in found


def test_end_of_trace_of_mlflow_2_keeps_start_and_tags() -> None:
    pair = {"key": "mlflow.sourceRun", "value": "r"}
    trace = {"request_id": "t", "experiment_id": "0", "timestamp_ms": 1000, "request_metadata": [pair]}
    traces = {"t": dict(trace, tags=[{"key": "a", "value": "1"}])}
    end = {"request_id": "t", "timestamp_ms": 1500, "status": "OK", "tags": [{"key": "b", "value": "2"}]}
    change_traces(traces, "traces/t", end)
    text = "timestamp = 1000 AND execution_time = 500 AND tags.a = '1' AND tags.b = '2' AND run_id = 'r'"
    found = matching_traces(traces, {"experiment_ids": ["0"], "filter": text + " AND status = 'OK'"})
    assert [one["request_id"] for one in found["traces"]] == ["t"]
