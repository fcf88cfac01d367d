"""A team's MLflow server has every run once, with all that the project's store has."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.tracking import importer, team_ledger, team_sender

from .team_server import PASSWORD, TeamServer

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("flask_wtf") is None, reason="no Flask-WTF for MLflow's authentication"
    ),
]

SEND = (
    "import json, sys; from jupyter_amltrain.tracking.team_sender import send; print(json.dumps(send(*sys.argv[1:])))"
)
POINTS = 2300


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TeamServer]:
    server = TeamServer(tmp_path_factory.mktemp("team")).start()
    yield server
    server.stop()


@pytest.fixture
def there(team: TeamServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    """MLflow's client of the server, in this process."""
    from mlflow import MlflowClient

    for name, value in team.credentials.items():
        monkeypatch.setenv(name, value)
    return MlflowClient(team.uri, team.uri)


@pytest.fixture
def project(tmp_path: Path) -> str:
    folder = tmp_path / "project"
    folder.mkdir()
    importer.create_store(str(folder))
    return str(folder)


def recorded(project: str, experiment: str, points: int = POINTS) -> str:
    """Make a run of a project's store with a bit of everything; return its id."""
    import mlflow
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    from jupyter_amltrain.tracking.mlflow_store import artifact_root, database_uri

    class Model(mlflow.pyfunc.PythonModel):  # type: ignore[misc,name-defined]
        def predict(self, context: Any, model_input: Any, params: Any = None) -> list[int]:
            return [42 for _ in model_input]

    uri = database_uri(project)
    before = mlflow.get_tracking_uri(), mlflow.get_registry_uri()
    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(uri)
    try:
        place = artifact_root(project) / experiment
        experiment_id = mlflow.create_experiment(experiment, place.as_uri())
        with mlflow.start_run(experiment_id=experiment_id, run_name="parent") as run:
            client, run_id = MlflowClient(uri, uri), run.info.run_id
            for at in range(0, points, 1000):
                part = range(at, min(at + 1000, points))
                client.log_batch(run_id, metrics=[Metric("loss", 1 / (step + 1), 1000 + step, step) for step in part])
            mlflow.log_metric("odd", math.nan)
            mlflow.log_params({f"p{number}": number for number in range(130)})
            mlflow.set_tag("team", "blue")
            mlflow.log_text("hello", "notes/a.txt")
            mlflow.pyfunc.log_model(
                name="model", python_model=Model(), registered_model_name=f"clf-{experiment}", pip_requirements=[]
            )
            with mlflow.start_run(nested=True, run_name="child"):
                mlflow.log_metric("k", 1)
    finally:
        mlflow.set_tracking_uri(before[0])
        mlflow.set_registry_uri(before[1])
    return str(run_id)


def send(project: str, run_id: str, credentials: dict[str, str], **more: str) -> subprocess.CompletedProcess[str]:
    env = team_sender.environment({**os.environ, **credentials, **more})
    return subprocess.run(
        [sys.executable, "-c", SEND, project, run_id], env=env, capture_output=True, text=True, check=False
    )


def picture(client: Any, experiment_id: str) -> dict[str, Any]:
    """What a server has of an experiment, without ids."""
    found = {}
    for run in client.search_runs([experiment_id]):
        run_id = run.info.run_id
        history = {key: client.get_metric_history(run_id, key) for key in run.data.metrics}
        found[run.info.run_name] = {
            "status": run.info.status, "times": (run.info.start_time, run.info.end_time), "params": run.data.params,
            "metrics": {
                key: [(point.step, point.timestamp, repr(point.value)) for point in points]
                for key, points in history.items()
            },
            "child": "mlflow.parentRunId" in run.data.tags, "tag": run.data.tags.get("team"),
            "notes": [(file.path, file.file_size) for file in client.list_artifacts(run_id, "notes")],
            "models": len(run.outputs.model_outputs),
        }  # fmt: skip
    return found


def test_killed_sender_leaves_nothing_twice_and_nothing_out(
    team: TeamServer, there: Any, project: str, tmp_path: Path
) -> None:
    from mlflow import MlflowClient

    from jupyter_amltrain.tracking.mlflow_store import database_uri

    run_id = recorded(project, "killed")
    team_ledger.add(project, run_id, "local/x", team.uri, 1.0)
    once = tmp_path / "once"
    once.mkdir()
    points = ("team_after_create", "team_after_batch", "team_before_end")
    for _ in points:
        killed = {"AMLTRAIN_FAILPOINT": ",".join(points), "AMLTRAIN_FAILPOINT_ONCE": str(once)}
        assert send(project, run_id, team.credentials, **killed).returncode == -9
    done = send(project, run_id, team.credentials)
    assert done.returncode == 0, done.stderr[-2000:]
    entry = json.loads(done.stdout)
    assert entry["state"] == team_ledger.SENT and entry["there"] in team_ledger.page_of(entry)
    here = MlflowClient(database_uri(project))
    expected = picture(here, here.get_run(run_id).info.experiment_id)
    assert len(expected["parent"]["metrics"]["loss"]) == POINTS and expected["parent"]["models"] == 1
    assert picture(there, entry["experiment"]) == expected
    versions = there.search_model_versions("name = 'clf-killed'")
    assert [version.run_id for version in versions] == [entry["there"]]
    env = {**os.environ, **team.credentials, "MLFLOW_TRACKING_URI": team.uri, "MLFLOW_REGISTRY_URI": team.uri}
    load = "import mlflow; print(mlflow.pyfunc.load_model('models:/clf-killed/1').predict([1]))"
    assert "[42]" in subprocess.run([sys.executable, "-c", load], env=env, capture_output=True, text=True).stdout
    assert PASSWORD not in "".join(path.read_text() for path in Path(project).rglob("*.json"))


def test_two_kernels_that_send_at_once_send_each_run_once(team: TeamServer, there: Any, project: str) -> None:
    runs = [recorded(project, f"both{number}", points=1) for number in range(2)]
    for number, run_id in enumerate(runs):
        team_ledger.add(project, run_id, f"local/both{number}", team.uri, float(number))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda run_id: send(project, run_id, team.credentials), [*runs, *runs]))
    assert [one.returncode for one in done] == [0] * 4, done[0].stderr[-2000:]
    assert team_ledger.waiting(project) == []
    for run_id in runs:
        experiment = team_ledger.entry_of(project, run_id)["experiment"]
        assert [run.info.run_name for run in there.search_runs([experiment])].count("parent") == 1


def test_wrong_password_is_named_and_the_run_waits(team: TeamServer, project: str) -> None:
    run_id = recorded(project, "denied", points=1)
    team_ledger.add(project, run_id, "local/x", team.uri, 1.0)
    refused = send(project, run_id, {**team.credentials, "MLFLOW_TRACKING_PASSWORD": "no-such-password"})
    assert refused.returncode and "AuthenticationError" in refused.stderr
    assert team_ledger.waiting(project)[0]["run"] == run_id
    assert "no-such-password" not in refused.stderr


def test_runs_of_an_outage_arrive_in_order(
    api: Any, team: TeamServer, there: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jupyter_amltrain.kernel import team_queue

    monkeypatch.setattr(team_queue, "MIN_PAUSE_S", 0.5)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", team.uri)
    team.stop()
    runs = [
        api.submit(f"import mlflow; mlflow.log_metric('number', {n})", name=f"r{n}", experiment="outage").wait()
        for n in range(2)
    ]
    project = runs[0].run.project
    until = time.monotonic() + 120
    while not any(entry.get("error") for entry in team_ledger.waiting(project)):
        assert time.monotonic() < until
        time.sleep(0.2)
    team.start()
    while team_ledger.waiting(project):
        assert time.monotonic() < until + 120
        time.sleep(0.2)
    found = there.search_runs([there.get_experiment_by_name("outage").experiment_id], order_by=["created ASC"])
    assert [run.data.tags["amltrain.handle"] for run in found] == [run.handle for run in runs]
    assert [run.data.metrics["number"] for run in found] == [0, 1]
