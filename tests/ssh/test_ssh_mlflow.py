"""A job of another machine asks MLflow for what is not its own: it travels over the connection."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.helpers import until
from tools.openssh import Sshd

from ..tracking.test_job_project import EARLIER
from .test_ssh_runs import attach

LATER = """
import mlflow
from mlflow import MlflowClient
client, found = MlflowClient(), {}
found["model"] = list(mlflow.pyfunc.load_model("models:/clf/1").predict([1]))
found["of run"] = mlflow.artifacts.load_text(f"runs:/{earlier}/notes/a.txt")
run = client.get_run(earlier)
found["metric"], found["scheme"] = run.data.metrics["loss"], run.info.artifact_uri.split(":")[0]
mlflow.log_metric("loss", 0.7)
found["best"] = [run.info.run_id for run in client.search_runs(["0"], order_by=["metrics.loss DESC"])][-1] == earlier
client.set_registered_model_alias("clf", "champion", "1")
client.log_text(earlier, "later", "notes/b.txt")
client.log_text(earlier, "x" * 3_000_000, "notes/long.txt")
found["long"] = len(mlflow.artifacts.load_text(f"runs:/{earlier}/notes/long.txt"))
"""


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_job_reads_and_changes_runs_and_models_of_this_computer(api: Any, sshd: Sshd) -> None:
    earlier = api.submit(EARLIER, name="earlier", experiment="mine", out=["run_id"]).wait().result("run_id")
    api.controller().loop.call(api.controller().imports.settle(), 120)
    attach(api, sshd)
    later = api.submit(LATER, target="box", gpus=0, experiment="mine", params={"earlier": earlier}, out=["found"])
    found = later.wait(200).result("found")
    assert found == {
        "model": [42], "of run": "hello", "metric": 0.5, "scheme": "mlflow-artifacts", "best": True, "long": 3_000_000
    }  # fmt: skip
    from mlflow import MlflowClient, artifacts

    from jupyter_amltrain.tracking.mlflow_store import database_uri

    client = MlflowClient(database_uri(os.getcwd()))
    assert str(client.get_model_version_by_alias("clf", "champion").version) == "1"
    uri = client.get_run(earlier).info.artifact_uri
    assert uri.startswith("file:")
    assert artifacts.load_text(f"{uri}/notes/b.txt") == "later"


@pytest.mark.thorough
@pytest.mark.timeout(120)
def test_job_without_a_connected_notebook_is_refused_and_goes_on(api: Any, sshd: Sshd, monkeypatch: Any) -> None:
    from jupyter_amltrain.backends import ssh_mlflow

    async def nothing(self: Any, projects: Any) -> None:
        """A kernel that has ended."""

    monkeypatch.setattr(ssh_mlflow.ProjectTunnels, "lead_to", nothing)
    attach(api, sshd)
    code = (
        "import mlflow\ntry: mlflow.MlflowClient().get_run('0' * 32)\n"
        "except mlflow.exceptions.MlflowException as error: why = str(error)\nmlflow.log_metric('loss', 1)"
    )
    run = api.submit(code, target="box", gpus=0, out=["why"]).wait(100)
    assert "connected" in run.result("why")
    assert run.metrics()["loss"][-1][-1] == 1


ASKING = """
import mlflow, os, time
client = mlflow.MlflowClient()
for number in range(3000):
    try:
        print("has", client.get_run(earlier).data.metrics["loss"], flush=True)
    except mlflow.exceptions.MlflowException as error:
        print("no:", str(error)[:99], flush=True)
    if os.path.exists(stop):
        break
    time.sleep(0.1)
"""


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_calls_go_on_after_the_connection_was_cut(api: Any, sshd: Sshd, tmp_path: Path) -> None:
    code = "import mlflow\nmlflow.log_metric('loss', 0.5)\nrun_id = mlflow.active_run().info.run_id"
    earlier = api.submit(code, name="earlier", out=["run_id"]).wait().result("run_id")
    api.controller().loop.call(api.controller().imports.settle(), 120)
    attach(api, sshd)
    stop = tmp_path / "stop"
    given = {"earlier": earlier, "stop": str(stop)}
    run = api.submit(ASKING, target="box", name="asking", gpus=0, params=given)
    until(lambda: "has 0.5" in run.logs(), "it is answered")
    assert sshd.process is not None
    for process in psutil.Process(sshd.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.kill()
    before = run.logs().count("has 0.5")
    until(lambda: run.logs().count("has 0.5") > before + 3, "it is answered again")
    stop.touch()
    assert run.wait(120).run.status.state.value == "completed"
