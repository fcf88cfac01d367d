"""The registry, the experiments and other objects of a job, by the REST interface, without MLflow: fast."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from jupyter_amltrain.agent.mlflow.project_server import MlflowCall
from jupyter_amltrain.agent.mlflow.routes import Sink
from jupyter_amltrain.agent.mlflow.sink_state import Recorder
from jupyter_amltrain.agent.mlflow.validation import Refusal
from jupyter_amltrain.agent.sink_notes import SinkNotes
from tests.agent.mlflow_jobs import RUN_ID, Host

API = "/api/2.0/mlflow/"
#: A call as it came.
CALL = MlflowCall("POST", "/", "", b"")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with Host(tmp_path / "run") as host:
        yield host


def register(host: Host, *names: str) -> None:
    """A version of each name, in this order, at different times."""
    for name in names:
        host.call("POST", "registered-models/create", {"name": name})
        code, answer = host.call("POST", "model-versions/create", {"name": name, "source": f"s3://{name}"})
        assert code == 200, answer
        made = answer["model_version"]["creation_timestamp"]
        while host.call("POST", "experiments/create", {"name": f"{name}{os.urandom(4).hex()}"}) and now(host) <= made:
            pass


def now(host: Host) -> int:
    return int(max(record["t"] for record in host.records()))


def found(host: Host, op: str, key: str, **query: Any) -> list[str]:
    """All pages of a search: the names, versions with their number."""
    names, token = list[str](), ""
    while True:
        more = {"page_token": token} if token else {}
        code, answer = host.call("GET", f"{op}?{urlencode({**query, **more}, doseq=True)}")
        assert code == 200, answer
        names += [item["name"] + item.get("version", "") for item in answer[key]]
        token = answer.get("next_page_token") or ""
        if not token:
            return names


@pytest.mark.thorough
@pytest.mark.parametrize("size", [{}, {"max_results": 1}, {"max_results": 2}])
def test_registry_search_has_order_and_pages_of_request(host: Host, size: dict[str, int]) -> None:
    register(host, "b", "c", "a")
    register(host, "b")

    def models(**query: Any) -> list[str]:
        return found(host, "registered-models/search", "registered_models", **size, **query)

    def versions(**query: Any) -> list[str]:
        return found(host, "model-versions/search", "model_versions", **size, **query)

    assert models() == ["a", "b", "c"]
    assert models(order_by="name DESC") == ["c", "b", "a"]
    assert models(order_by=["timestamp DESC", "name"]) == ["b", "a", "c"]
    assert versions() == ["b2", "a1", "c1", "b1"]
    assert versions(order_by=["name", "version_number ASC"]) == ["a1", "b1", "b2", "c1"]
    assert versions(filter="source_path = 's3://b'", order_by="creation_timestamp") == ["b1", "b2"]


@pytest.mark.parametrize(
    "query", [{"filter": "stage = 'x'"}, {"filter": "params.a = 'x'"}, {"order_by": "tags.a"}, {"order_by": "run_id"}]
)
def test_registry_search_with_unknown_column_is_refused(host: Host, query: dict[str, str]) -> None:
    register(host, "a")
    code, answer = host.call("GET", "model-versions/search?" + urlencode(query))
    assert (code, answer["error_code"]) == (400, "INVALID_PARAMETER_VALUE")


def test_order_of_models_by_creation_is_refused_as_by_the_database_store(host: Host) -> None:
    register(host, "a")
    query = urlencode({"order_by": "creation_timestamp"})
    code, answer = host.call("GET", f"registered-models/search?{query}")
    assert (code, answer["error_code"]) == (400, "INVALID_PARAMETER_VALUE")


def test_change_of_version_is_its_latest_update(host: Host) -> None:
    register(host, "a", "b")

    def version(name: str) -> dict[str, Any]:
        answer: dict[str, Any] = host.call("GET", f"model-versions/get?name={name}&version=1")[1]["model_version"]
        return answer

    body = {"name": "a", "version": "1"}
    host.call("PATCH", "model-versions/update", {**body, "description": "better"})
    assert version("a")["last_updated_timestamp"] > version("a")["creation_timestamp"]
    host.call("POST", "model-versions/transition-stage", {"name": "b", "version": "1", "stage": "Staging"})
    model = host.call("GET", "registered-models/get?name=b")[1]["registered_model"]
    assert model["last_updated_timestamp"] == version("b")["last_updated_timestamp"]
    assert model["last_updated_timestamp"] > version("b")["creation_timestamp"]


def test_copy_of_version_has_files_of_first(host: Host) -> None:
    register(host, "a")
    for name, source in (("copy", "models:/a/1"), ("again", "models:/copy/1"), ("own", "models:/own/1")):
        host.call("POST", "registered-models/create", {"name": name})
        host.call("POST", "model-versions/create", {"name": name, "source": source})
    places = [
        host.call("GET", f"model-versions/get-download-uri?name={name}&version=1")[1]["artifact_uri"]
        for name in ("copy", "again", "own")
    ]
    assert places == ["s3://a", "s3://a", "models:/own/1"]


def test_experiments_have_order_and_pages_of_request(host: Host) -> None:
    for name in ("x", "z", "y"):
        tags = [{"key": "kind", "value": name}]
        host.call("POST", "experiments/create", {"name": name, "tags": tags})

    def experiments(**body: Any) -> list[str]:
        names, token = list[str](), ""
        while True:
            answer = host.call("POST", "experiments/search", {**body, "page_token": token})[1]
            names += [item["name"] for item in answer["experiments"]]
            token = answer.get("next_page_token") or ""
            if not token:
                return names

    assert experiments(order_by=["name DESC"], filter="tags.kind != 'none'", max_results=2) == ["z", "y", "x"]
    assert experiments(view_type="DELETED_ONLY") == []
    assert len(experiments(view_type="ALL", max_results=1)) == 4
    assert host.call("POST", "experiments/search", {"filter": "params.a = '1'"})[0] == 400
    own = host.call("GET", "experiments/get?experiment_id=0")[1]["experiment"]
    assert own["creation_time"] == own["last_update_time"] > 0


def test_deleted_tag_of_experiment_is_gone_also_after_restart(host: Host) -> None:
    for key in ("kept", "gone"):
        host.call("POST", "experiments/set-experiment-tag", {"experiment_id": "0", "key": key, "value": "1"})
    gone = {"experiment_id": "0", "key": "gone"}
    assert host.call("POST", "experiments/delete-experiment-tag", gone) == (200, {})
    os.kill(host.pid, signal.SIGKILL)
    host.restarted()
    tags = host.call("GET", "experiments/get?experiment_id=0")[1]["experiment"]["tags"]
    assert [tag["key"] for tag in tags] == ["kept"]
    code, answer = host.call("POST", "experiments/delete-experiment-tag", gone)
    assert (code, answer["error_code"]) == (404, "RESOURCE_DOES_NOT_EXIST")


class AnsweringProject:
    """A project that answers everything."""

    def forward(self, *call: Any) -> str:
        return "of the project"

    def name_of(self, experiment_id: str) -> str | None:
        return {"3": "theirs"}.get(experiment_id)


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    """A job's routes beside such a project."""
    names = {"run_id": RUN_ID, "run_name": "r", "experiment_name": "e"}
    journal, artifacts = str(tmp_path / "metrics" / "j"), str(tmp_path / "artifacts")
    recorder = Recorder(journal=journal, artifacts=artifacts, **names, on_note=lambda note: None)
    return Sink(recorder, AnsweringProject())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "op", "body", "text"),
    [
        ("POST", "runs/delete-tag", {"run_id": RUN_ID, "key": "none"}, "No tag with name: none"),
        ("GET", "model-versions/get", {"name": "own", "version": "7"}, r"Model Version \(name=own, version=7\)"),
        ("POST", "experiments/delete-experiment-tag", {"experiment_id": "0", "key": "none"}, "No tag with name"),
    ],
)
def test_missing_part_of_own_object_is_not_sought_in_project(
    sink: Sink, method: str, op: str, body: dict[str, Any], text: str
) -> None:
    path = "/api/2.0/mlflow/"
    sink.handle("POST", path + "registered-models/create", {"name": "own"})
    request = MlflowCall(method, path + op, "application/json", b"")
    with pytest.raises(Refusal, match=text):
        sink.handle(method, path + op, body, request=request)
    other = {**body, **{key: "77" for key in ("run_id", "name", "experiment_id") if key in body}}
    assert sink.handle(method, path + op, other, request=request) == "of the project"


@pytest.mark.parametrize(
    ("method", "op", "body", "kind"),
    [
        ("GET", "metrics/get-history-bulk", {"run_id": RUN_ID}, "run"),
    ],
)
def test_call_of_project_for_own_object_is_refused_with_reason(
    sink: Sink, method: str, op: str, body: Any, kind: str
) -> None:
    path = "/api/3.0/mlflow/"
    made = sink.handle("POST", path + "experiments/create", {"name": "made"})["experiment_id"]
    body = json.loads(json.dumps(body).replace("made", made))
    request = MlflowCall(method, path + op, "application/json", b"")
    with pytest.raises(Refusal, match=f"This {kind} is of the running job") as caught:
        sink.handle(method, path + op, body, request=request)
    assert caught.value.code == "INVALID_STATE"
    for other in ({"experiment_id": "0"}, {"experiment_ids": ["0", "77"]}):
        assert sink.handle(method, path + op, other, request=request) == "of the project"


def test_experiment_of_the_job_cannot_be_deleted_in_it(sink: Sink) -> None:
    made = sink.handle("POST", API + "experiments/create", {"name": "made"})["experiment_id"]
    for own in (made, "0"):
        with pytest.raises(Refusal) as refusal:
            sink.handle("POST", API + "experiments/delete", {"experiment_id": own}, request=CALL)
        assert refusal.value.code == "INVALID_STATE"
    assert sink.handle("POST", API + "experiments/delete", {"experiment_id": "77"}, request=CALL) == "of the project"


def test_change_in_project_may_name_own_run(sink: Sink) -> None:
    path = "/api/3.0/mlflow/traces/link-to-run"
    request = MlflowCall("POST", path, "application/json", b"")
    assert sink.handle("POST", path, {"run_id": RUN_ID, "trace_ids": ["tr-1"]}, request=request) == "of the project"


def test_assessment_of_own_trace_is_refused_with_reason(host: Host) -> None:
    place = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": "0"}}
    info = {"trace_id": "tr-1", "trace_location": place, "request_time": "2026-01-01T00:00:00Z", "state": "OK"}
    assert host.call("POST", "traces", {"trace": {"trace_info": info}})[0] == 200
    code, answer = host.call("POST", "traces/tr-1/assessments", {"assessment": {"assessment_name": "good"}})
    assert (code, answer["error_code"]) == (400, "INVALID_STATE")
    assert "This trace is of the running job" in answer["message"]
    assert host.call("GET", "traces/tr-1")[0] == 200


def test_trace_of_mlflow_2_is_in_progress_until_its_end(host: Host) -> None:
    body = {"experiment_id": "0", "timestamp_ms": 1000, "tags": [], "request_metadata": []}
    trace = host.call("POST", "traces", body)[1]["trace_info"]
    assert trace["status"] == "IN_PROGRESS"
    host.call("PATCH", "traces/" + trace["request_id"], {"timestamp_ms": 1500, "status": "OK"})
    assert host.call("GET", f"traces/{trace['request_id']}/info")[1]["trace_info"]["status"] == "OK"


def test_logged_models_without_name_have_names_of_their_own(host: Host) -> None:
    models = [host.call("POST", "logged-models", {"experiment_id": "0"})[1]["model"]["info"] for _ in range(2)]
    assert len({model["name"] for model in models}) == 2
    code, answer = host.call("DELETE", f"logged-models/{models[0]['model_id']}/tags/none")
    assert (code, answer["error_code"]) == (404, "RESOURCE_DOES_NOT_EXIST")


def test_version_that_is_no_number_is_refused(host: Host) -> None:
    register(host, "a")
    code, answer = host.call("GET", "model-versions/get?name=a&version=latest")
    assert (code, answer["error_code"]) == (400, "INVALID_PARAMETER_VALUE")


def test_alias_latest_is_newest_version(host: Host) -> None:
    register(host, "a", "a")
    for alias in ("latest", "Latest"):
        answer = host.call("GET", f"registered-models/alias?name=a&alias={alias}")[1]
        assert answer["model_version"]["version"] == "2"


@pytest.mark.thorough
@pytest.mark.parametrize("alias", ["latest", "v1", "a b", "a" * 256, ""])
def test_alias_that_mlflow_refuses_is_refused(host: Host, alias: str) -> None:
    register(host, "a")
    code, answer = host.call("POST", "registered-models/alias", {"name": "a", "alias": alias, "version": "1"})
    assert (code, answer["error_code"]) == (400, "INVALID_PARAMETER_VALUE")


@pytest.mark.parametrize(("length", "code"), [(100_000, 200), (100_001, 400)])
def test_registry_takes_tags_up_to_limit_of_mlflow(host: Host, length: int, code: int) -> None:
    tag = {"key": "mlflow.prompt.text", "value": "x" * length}
    assert host.call("POST", "registered-models/create", {"name": "a", "tags": [tag]})[0] == code
    register(host, "b")
    assert host.call("POST", "model-versions/create", {"name": "b", "source": "s3://b", "tags": [tag]})[0] == code
    assert host.call("POST", "model-versions/set-tag", {"name": "b", "version": "1", **tag})[0] == code


def test_list_of_artifacts_above_those_of_run_is_refused(host: Host) -> None:
    code, answer = host.call("GET", f"artifacts/list?run_id={RUN_ID}&path=../models")
    assert (code, answer["error_code"], answer["message"]) == (400, "INVALID_PARAMETER_VALUE", "Invalid path")
    assert host.call("GET", f"artifacts/list?run_id={RUN_ID}&path=a..b")[0] == 200


def experiment_named(sink: Sink, name: str) -> str:
    """The id of an experiment, as ``set_experiment`` asks for it."""
    answer = sink.handle("GET", API + "experiments/get-by-name", {"experiment_name": name})
    return str(answer["experiment"]["experiment_id"])


def test_experiment_that_is_only_looked_up_is_not_listed_and_can_be_created(sink: Sink) -> None:
    looked_up = experiment_named(sink, "mine")
    assert experiment_named(sink, "mine") == looked_up
    assert [one["name"] for one in sink.recorder.state.used_experiments()] == ["e"]
    created = sink.handle("POST", API + "experiments/create", {"name": "mine"})
    assert created == {"experiment_id": looked_up}
    assert [one["name"] for one in sink.recorder.state.used_experiments()] == ["e", "mine"]
    with pytest.raises(Refusal, match="exists"):
        sink.handle("POST", API + "experiments/create", {"name": "mine"})


def test_first_run_moves_into_experiment_that_script_has_set(sink: Sink, tmp_path: Path) -> None:
    mine, state = experiment_named(sink, "my experiment"), dict[str, Any]()
    run = sink.handle("POST", API + "runs/create", {"experiment_id": mine, "start_time": 1}, request=CALL)["run"]
    assert (run["info"]["run_id"], run["info"]["experiment_id"]) == (RUN_ID, mine)
    found = sink.recorder.state.used_experiments()
    assert [one["name"] for one in found] == ["e", "my experiment"]
    notes = SinkNotes(str(tmp_path))
    assert notes.take(state) and state == {"experiment": "my experiment"}
    assert not notes.take(state)


def test_run_in_experiment_of_project_is_recorded_by_the_job(sink: Sink) -> None:
    """The client has found the id in a search: the run is one of the job, and not of the project's server."""
    for _ in range(2):  # the job's own run, and a child
        answer = sink.handle("POST", API + "runs/create", {"experiment_id": "3", "start_time": 1}, request=CALL)
        assert answer["run"]["info"]["experiment_id"] == "3"
    assert sink.recorder.state.experiment("3")["name"] == "theirs" and len(sink.recorder.state.runs) == 2


def test_run_in_experiment_that_nobody_has_stays_in_that_of_the_job(sink: Sink) -> None:
    first = sink.handle("POST", API + "runs/create", {"experiment_id": "99", "start_time": 1}, request=CALL)
    assert first["run"]["info"]["experiment_id"] == "0"
    with pytest.raises(Refusal) as refusal:
        sink.handle("POST", API + "runs/create", {"experiment_id": "99", "start_time": 2})
    assert refusal.value.code == "RESOURCE_DOES_NOT_EXIST"


def test_search_of_too_many_runs_is_refused(sink: Sink) -> None:
    with pytest.raises(Refusal, match="max_results"):
        sink.handle("POST", API + "runs/search", {"experiment_ids": ["0"], "max_results": 123456789})
