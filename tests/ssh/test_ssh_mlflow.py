"""A job of another machine asks MLflow for what is not its own: it travels over the connection."""

from __future__ import annotations

import os
from typing import Any

import pytest

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
