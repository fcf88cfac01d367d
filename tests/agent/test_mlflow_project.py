"""What a job asks of its project: searches over its own runs and the store's, and a server that starts when asked."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from jupyter_amltrain.agent.mlflow import experiment_search, project_sockets
from jupyter_amltrain.agent.mlflow.model_search import ordered_models
from jupyter_amltrain.agent.mlflow.project_search import ProjectSearch
from jupyter_amltrain.agent.mlflow.project_server import MlflowCall, MlflowResponse, ProjectServer, ServerProcess
from jupyter_amltrain.agent.mlflow.registry_search import ordered_versions
from jupyter_amltrain.agent.mlflow.validation import Refusal

PROJECT = "0123456789abcdef"
OWN, REAL = "0", "7"
JOB = {OWN: {"name": "job"}}
WITHOUT_MLFLOW = [sys.executable, "-c", "raise SystemExit('No module named mlflow')"]


def run_of(number: int, loss: float, experiment: str = REAL, run_id: str = "") -> dict[str, Any]:
    info = {"run_id": run_id or f"{number:032x}", "experiment_id": experiment, "start_time": number}
    return {"info": info, "data": {"metrics": [{"key": "loss", "value": loss}], "params": [], "tags": []}}


class Store:
    """A server whose experiment ``job`` has the id 7, in pages as MLflow's."""

    def __init__(self, *runs: dict[str, Any]) -> None:
        self.stored, self.asked = runs, list[tuple[str, Any]]()

    def json(self, method: str, op: str, body: Any) -> Any:
        self.asked.append((op, body))
        if op.startswith("experiments/get-by-name"):
            return {"experiment": {"experiment_id": REAL}}
        found = [
            json.loads(json.dumps(run)) for run in self.stored if run["info"]["experiment_id"] in body["experiment_ids"]
        ]
        if body.get("order_by"):
            found.sort(key=lambda run: (run["data"]["metrics"][0]["value"], -run["info"]["start_time"]))
        else:
            found.sort(key=lambda run: -run["info"]["start_time"])
        at, count = int(body["page_token"] or 0), body["max_results"]
        more = {"next_page_token": str(at + count)} if at + count < len(found) else {}
        return {"runs": found[at : at + count], **more}

    def ask(self, request: MlflowCall) -> MlflowResponse:
        self.asked.append((request.target, request.data))
        return MlflowResponse(200, "application/json", b"{}")


def pages(search: ProjectSearch, own: list[dict[str, Any]], **body: Any) -> list[list[str]]:
    """All pages of a search, by the runs' numbers."""
    found, token, ids = [], "", {run["info"]["run_id"] for run in own}
    while True:
        request = {"experiment_ids": [OWN], **body, **({"page_token": token} if token else {})}
        answer = search.runs(request, own, ids)
        found.append([str(run["info"]["start_time"]) for run in answer["runs"]])
        assert {run["info"]["experiment_id"] for run in answer["runs"]} <= {OWN}
        token = answer.get("next_page_token")
        if not token:
            return found


@pytest.mark.parametrize("count", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("order", [[], ["metrics.loss ASC"]])
def test_pages_of_own_and_stored_runs_are_one_order(count: int, order: list[str]) -> None:
    own = [run_of(5, 0.3, OWN), run_of(2, 0.9, OWN), run_of(7, 0.1, OWN)]
    own.sort(key=lambda run: -run["info"]["start_time"])
    recorded = run_of(5, 0.3)  # the store has a run of the job already
    search = ProjectSearch(Store(*(run_of(n, n % 4 / 4) for n in (1, 3, 4, 6, 8, 9)), recorded), JOB)  # type: ignore[arg-type]
    if order:
        own.sort(key=lambda run: run["data"]["metrics"][0]["value"])
    found = pages(search, own, max_results=count, order_by=order)
    flat = [number for page in found for number in page]
    everything = [*own, *(run_of(n, n % 4 / 4) for n in (1, 3, 4, 6, 8, 9))]
    everything.sort(key=lambda run: -run["info"]["start_time"])
    if order:
        everything.sort(key=lambda run: run["data"]["metrics"][0]["value"])
    assert flat == [str(run["info"]["start_time"]) for run in everything]
    assert all(len(page) == count for page in found[:-1]) and len(found[-1]) <= count


def model_of(number: int, experiment: str, acc: float | None) -> dict[str, Any]:
    info = {"model_id": f"m-{number}", "name": str(number), "experiment_id": experiment}
    info["creation_timestamp_ms"] = number  # type: ignore[assignment]
    metrics = [] if acc is None else [{"key": "acc", "value": acc, "timestamp": 1, "step": 0}]
    return {"info": info, "data": {"metrics": metrics}}


class ModelStore(Store):
    """A store of models whose token is opaque, as MLflow's."""

    def json(self, method: str, op: str, body: Any) -> Any:
        if op != "logged-models/search":
            return super().json(method, op, body)
        assert body["experiment_ids"] == [REAL] and (method, body.get("datasets")) == ("POST", None)
        self.asked.append((op, body))
        found = ordered_models([json.loads(json.dumps(model)) for model in self.stored], body.get("order_by") or [])
        at, count = len(body["page_token"]), body["max_results"]
        return {
            "models": found[at : at + count],
            "next_page_token": "x" * (at + count) if at + count < len(found) else "",
        }


@pytest.mark.parametrize("count", [1, 2, 3, 100])
@pytest.mark.parametrize("ascending", [None, True, False])
def test_pages_of_own_and_stored_models_are_one_order(count: int, ascending: bool | None) -> None:
    order = [] if ascending is None else [{"field_name": "metrics.acc", "ascending": ascending}]
    own = ordered_models([model_of(n, OWN, n % 3 / 3 if n > 2 else None) for n in (2, 5, 7)], order)
    theirs = [model_of(n, REAL, n % 5 / 5 if n > 1 else None) for n in (1, 3, 4, 6, 8)]
    search = ProjectSearch(ModelStore(*theirs, model_of(5, REAL, 0.9)), JOB)  # type: ignore[arg-type]
    found, token = [], ""
    while True:
        request = {"experiment_ids": [OWN], "max_results": count, "order_by": order, "page_token": token}
        answer = search.models(request, own, {model["info"]["model_id"] for model in own}, set())
        found += answer["models"]
        token = answer.get("next_page_token") or ""
        if not token:
            break
    expected = ordered_models([*own, *theirs], order)
    assert [model["info"]["name"] for model in found] == [model["info"]["name"] for model in expected]
    assert {model["info"]["experiment_id"] for model in found} == {OWN}


@pytest.mark.parametrize("text", ["source_run_id = 'r'", "name = 'x' AND attributes.model_id = 'm-2'"])
def test_search_for_models_of_own_run_starts_no_server(text: str) -> None:
    store, own = ModelStore(model_of(1, REAL, 0.5)), [model_of(2, OWN, 0.5)]
    answer = ProjectSearch(store, JOB).models({"experiment_ids": [OWN], "filter": text}, own, {"m-2"}, {"r"})  # type: ignore[arg-type]
    assert answer == {"models": own} and store.asked == []


class RegistryStore:
    """A store of versions and experiments, in pages by the tokens of MLflow's."""

    def __init__(self, key: str, items: list[dict[str, Any]], ordered: Any) -> None:
        self._key, self._items, self._ordered = key, items, ordered

    def json(self, method: str, op: str, body: Any) -> Any:
        query = parse_qs(op.partition("?")[2])
        body = body or {**query, "page_token": query.get("page_token", [""])[0]}
        found = self._ordered([dict(item) for item in self._items], body)
        at = int(body.get("page_token") or 0)
        count = int(body["max_results"][0] if method == "GET" else body["max_results"])
        more = {"next_page_token": str(at + count)} if at + count < len(found) else {}
        return {self._key: found[at : at + count], **more}


@pytest.mark.parametrize("count", [1, 2, 3, 100])
@pytest.mark.parametrize("order", [[], ["name"], ["version_number", "name DESC"]])
def test_pages_of_own_and_stored_versions_are_one_order(count: int, order: list[str]) -> None:
    def version(name: str, number: int) -> dict[str, Any]:
        return {"name": name, "version": str(number), "last_updated_timestamp": number}

    own = ordered_versions([version("b", 1), version("d", 2), version("d", 9)], {"order_by": order})
    theirs = [version("a", 1), version("a", 5), version("c", 2), version("e", 3)]
    store = RegistryStore("model_versions", [*theirs, version("d", 4)], ordered_versions)  # d is a name of the job
    search, found, token = ProjectSearch(store, JOB), [], ""  # type: ignore[arg-type]
    while True:
        request = {"max_results": str(count), "order_by": order, "page_token": token}
        answer = search.registry("model-versions/search", request, own, {"b", "d"})
        found += answer["model_versions"]
        token = answer.get("next_page_token") or ""
        if not token:
            break
    assert found == ordered_versions([*own, *theirs], {"order_by": order})


def test_experiments_of_job_hide_those_of_store_with_their_name_or_id() -> None:
    def experiment(number: int, name: str) -> dict[str, Any]:
        return {"experiment_id": str(number), "name": name, "creation_time": number}

    theirs = [experiment(0, "Default"), experiment(1, "job"), experiment(2, "other"), experiment(3, "made")]
    own = [experiment(99, "made"), experiment(0, "job")]
    search = ProjectSearch(RegistryStore("experiments", theirs, experiment_search.ordered), JOB)  # type: ignore[arg-type]
    answer = search.experiments({"max_results": 5}, own, {"made", "job"})
    assert [item["name"] for item in answer["experiments"]] == ["made", "other", "job"]


def test_search_without_server_finds_own_runs() -> None:
    server = ProjectServer(ServerProcess(WITHOUT_MLFLOW, lambda note: None))
    search, own = ProjectSearch(server, JOB), [run_of(5, 0.3, OWN), run_of(2, 0.9, OWN)]
    assert pages(search, own, max_results=1) == [["5"], ["2"]]
    models = [{"name": "clf"}]
    assert search.registry("registered-models/search", {}, models, {"clf"}) == {"registered_models": models}


def test_search_below_own_run_starts_no_server() -> None:
    store, own = Store(run_of(1, 0.5)), [run_of(5, 0.3, OWN)]
    parent = own[0]["info"]["run_id"]
    found = pages(ProjectSearch(store, JOB), own, filter=f"tags.mlflow.parentRunId = '{parent}'")  # type: ignore[arg-type]
    assert found == [["5"]] and store.asked == []


def test_forwarded_call_names_experiment_of_store() -> None:
    store = Store()
    search = ProjectSearch(store, JOB)  # type: ignore[arg-type]
    search.forward(
        MlflowCall("POST", "/x", "application/json", b"{}"), "/api/2.0/mlflow/x", {"experiment_ids": [OWN, "3"]}
    )
    search.forward(MlflowCall("GET", "/y?experiment_id=0", "", b""), "/api/2.0/mlflow/y", {"experiment_id": OWN})
    assert ("/api/2.0/mlflow/x", json.dumps({"experiment_ids": [REAL, "3"]}).encode()) in store.asked
    assert ("/api/2.0/mlflow/y?experiment_id=7", b"") in store.asked


def test_experiment_in_forwarded_response_has_id_of_job() -> None:
    class Answering(Store):
        def ask(self, request: MlflowCall) -> MlflowResponse:
            infos = [{"experiment_id": one} for one in (REAL, "3")]
            return MlflowResponse(200, "application/json", json.dumps({"runs": infos}).encode())

    search = ProjectSearch(Answering(), JOB)  # type: ignore[arg-type]
    call = MlflowCall("GET", "/x", "", b"")
    answer = json.loads(search.forward(call, "/api/2.0/mlflow/runs/get", {}).data)
    assert answer == {"runs": [{"experiment_id": OWN}, {"experiment_id": "3"}]}
    file = search.forward(call, "/api/2.0/mlflow-artifacts/artifacts/a.json", {}).data
    assert json.loads(file)["runs"][0] == {"experiment_id": REAL}  # a file stays as it is


def test_experiment_that_store_lacks_is_not_searched_and_not_named_there() -> None:
    class Empty(Store):
        def json(self, method: str, op: str, body: Any) -> Any:
            if op.startswith("experiments/get-by-name"):
                raise Refusal("RESOURCE_DOES_NOT_EXIST", "no")
            raise AssertionError(op)

    search = ProjectSearch(Empty(), JOB)  # type: ignore[arg-type]
    assert search.runs({"experiment_ids": [OWN]}, [], set()) == {"runs": []}
    with pytest.raises(Refusal) as refusal:
        search.forward(MlflowCall("POST", "/x", "", b"{}"), "/api/2.0/mlflow/x", {"experiment_id": OWN})
    assert refusal.value.code == "INVALID_STATE"
    made = Store()
    experiments = {OWN: {"name": "job"}, "99": {"name": "made"}}
    made.json = Empty().json  # type: ignore[method-assign]
    ProjectSearch(made, experiments).forward(  # type: ignore[arg-type]
        MlflowCall("POST", "/x", "", b"{}"), "/api/2.0/mlflow/x", {"experiment_ids": ["99", "3"]}
    )
    assert json.loads(made.asked[-1][1]) == {"experiment_ids": ["99", "3"]}


def test_server_that_cannot_start_is_refused_soon_and_once() -> None:
    notes: list[str] = []
    server = ProjectServer(ServerProcess(WITHOUT_MLFLOW, notes.append))
    for _ in range(3):
        with pytest.raises(Refusal, match="No module named mlflow"):
            server.ask(MlflowCall("GET", "/", "", b""))
    assert len(notes) == 1
    server.close()


#: Prints an address after other lines, and answers each call with its target.
SERVER = """
import http.server, json, sys, threading
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        code = 503 if "broken" in self.path else 200
        data = json.dumps({"at": self.path, "secret": self.headers["X-Amltrain-Secret"]}).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def log_message(self, *what): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print("creating tables")
print(json.dumps({"address": {"port": server.server_address[1]}, "secret": "s"}), flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
"""


def test_server_answers_ends_and_starts_again() -> None:
    notes: list[str] = []
    place = ServerProcess([sys.executable, "-c", SERVER], notes.append)
    server = ProjectServer(place)
    assert json.loads(server.ask(MlflowCall("GET", "/a", "", b"")).data) == {"at": "/a", "secret": "s"}
    assert server.ask(MlflowCall("GET", "/broken", "", b"")).status == 400  # no client repeats it for minutes
    process = place._process
    assert process is not None
    process.kill()
    process.wait()
    assert server.ask(MlflowCall("GET", "/b", "", b"")).status == 200
    process = place._process
    server.close()
    assert process is not None and process.wait(30) is not None
    assert not notes


# ---- on another machine than the server


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[str]:
    """A queue folder whose path is too long for a socket."""
    yield str(tmp_path / ("q" * 90))
    shutil.rmtree(project_sockets._base(str(tmp_path / ("q" * 90))), ignore_errors=True)


def served(folder: str, name: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"{folder}/{name}.sock")
    listener.listen()
    return listener


def test_newest_socket_that_is_served_is_used(queue: str) -> None:
    folder = project_sockets.open_folder(queue, PROJECT)
    assert os.stat(folder).st_mode & 0o077 == 0
    old, dead = served(folder, "old"), served(folder, "dead")
    os.utime(f"{folder}/old.sock", (1, 1))
    dead.close()
    connection, secret = project_sockets.ProjectSockets(queue, PROJECT).connect()
    assert (connection.getpeername(), secret) == (f"{folder}/old.sock", "")
    connection.close()
    assert project_sockets.open_folder(queue, PROJECT) == folder
    assert os.listdir(folder) == ["old.sock"]  # what nobody serves is removed
    old.close()


def test_socket_that_comes_while_a_call_waits_is_used(queue: str) -> None:
    found = []
    thread = threading.Thread(target=lambda: found.append(project_sockets.ProjectSockets(queue, PROJECT).connect()))
    thread.start()
    with served(project_sockets.open_folder(queue, PROJECT), "new"):
        thread.join(30)
        assert len(found) == 1
        found[0][0].close()


def test_machine_without_socket_is_refused(queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project_sockets, "WAIT_S", 0.0)
    with pytest.raises(Refusal, match="connected"):
        project_sockets.ProjectSockets(queue, PROJECT).connect()


@pytest.mark.parametrize("project", ["", "../" * 6, "0123456789ABCDEF", "x" * 16])
def test_folder_of_something_else_than_a_project_is_refused(queue: str, project: str) -> None:
    with pytest.raises(ValueError):
        project_sockets.open_folder(queue, project)
