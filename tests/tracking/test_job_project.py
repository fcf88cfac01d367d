"""A job asks MLflow for what is not its own: other runs, models and searches of its project."""

from __future__ import annotations

import json
import os
import shutil
from typing import Any

import psutil
import pytest

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.tracking.stored_run import stored_run

EARLIER = """
import mlflow
mlflow.log_metric("loss", 0.5)
mlflow.log_text("hello", "notes/a.txt")
class Model(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        return [42 for _ in model_input]
mlflow.pyfunc.log_model(name="model", python_model=Model(), registered_model_name="clf", pip_requirements=[])
run_id = mlflow.active_run().info.run_id
"""

LATER = """
import mlflow
from mlflow import MlflowClient
client, found = MlflowClient(), {}
found["model"] = list(mlflow.pyfunc.load_model("models:/clf/1").predict([1]))
found["of run"] = mlflow.artifacts.load_text(f"runs:/{earlier}/notes/a.txt")
found["metric"] = client.get_run(earlier).data.metrics["loss"]
found["history"] = [point.value for point in client.get_metric_history(earlier, "loss")]
mlflow.log_metric("loss", 0.7)
own = mlflow.active_run().info.run_id
found["best"] = [run.info.run_id for run in client.search_runs(["0"], order_by=["metrics.loss DESC"])]
found["frame"] = len(mlflow.search_runs())
found["registered"] = [model.name for model in client.search_registered_models()]
client.set_registered_model_alias("clf", "champion", "1")
found["alias"] = client.get_model_version_by_alias("clf", "champion").version
mlflow.end_run()
with mlflow.start_run(run_id=earlier):
    mlflow.log_metric("later", 3)
try:
    client.get_run("0" * 32)
except mlflow.exceptions.MlflowException as error:
    found["missing"] = error.error_code
"""


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_job_reads_and_changes_earlier_run_and_models(api: Any) -> None:
    earlier = api.submit(EARLIER, name="earlier", experiment="mine", out=["run_id"]).wait().result("run_id")
    api.controller().loop.call(api.controller().imports.settle(), 120)
    later = api.submit(LATER, name="later", experiment="mine", params={"earlier": earlier}, out=["found", "own"]).wait()
    found = later.result("found")
    assert found == {
        "model": [42], "of run": "hello", "metric": 0.5, "history": [0.5], "best": [later.result("own"), earlier],
        "frame": 2, "registered": ["clf"], "alias": "1", "missing": "RESOURCE_DOES_NOT_EXIST",
    }, json.dumps(found)  # fmt: skip
    api.controller().loop.call(api.controller().imports.settle(), 120)
    from mlflow import MlflowClient

    from jupyter_amltrain.tracking.mlflow_store import database_uri

    client = MlflowClient(database_uri(os.getcwd()))
    assert client.get_run(earlier).data.metrics["later"] == 3
    assert str(client.get_model_version_by_alias("clf", "champion").version) == "1"


@pytest.mark.thorough
def test_job_that_asks_nothing_starts_no_server(api: Any) -> None:
    code = (
        "import mlflow, psutil\nmlflow.set_experiment('x')\nmlflow.log_metric('a', 1)\n"
        "with mlflow.start_run(nested=True): mlflow.log_param('b', 2)\n"
        "family = psutil.Process().parent().children(recursive=True)\n"
        "servers = [one.pid for one in family if 'page_server' in ' '.join(one.cmdline())]\n"
    )
    assert api.submit(code, out=["servers"]).wait().result("servers") == []


CHOSEN = """
import mlflow
assert mlflow.get_experiment_by_name("only looked up") is not None
mlflow.set_experiment("chosen")
with mlflow.start_run(run_name="mine") as run:
    mlflow.log_metric("loss", 1)
    with mlflow.start_run(nested=True):
        mlflow.log_metric("part", 2)
found = {
    "same": run.info.experiment_id == mlflow.get_experiment_by_name("chosen").experiment_id,
    "chosen": sorted(mlflow.search_runs(experiment_names=["chosen"])["tags.mlflow.runName"])[:2],
    "other": list(mlflow.search_runs(experiment_names=["other"])["tags.mlflow.runName"]),
}
earlier = mlflow.search_runs(experiment_names=["chosen"], filter_string="run_name = 'earlier'").run_id[0]
with mlflow.start_run(run_id=earlier):
    mlflow.log_metric("later", 3)
"""


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_experiment_that_script_sets_is_that_of_the_run(api: Any) -> None:
    for name, experiment in (("earlier", "chosen"), ("elsewhere", "other")):
        api.submit("import mlflow\nmlflow.log_metric('a', 1)", name=name, experiment=experiment).wait()
    run = api.submit(CHOSEN, name="cell", experiment="notebook", out=["found"]).wait()
    assert run.result("found") == {"same": True, "chosen": ["earlier", "mine"], "other": ["elsewhere"]}
    assert run.run.experiment == "chosen" and run.record().experiment == "chosen"
    api.controller().loop.call(api.controller().imports.settle(), 120)
    assert {one.run.run_id: one.run.experiment for one in api.runs()}[run.run.run_id] == "chosen"
    from mlflow import MlflowClient

    from jupyter_amltrain.tracking.mlflow_store import database_uri

    client = MlflowClient(database_uri(os.getcwd()))
    chosen = client.get_experiment_by_name("chosen")
    assert {one.info.run_name for one in client.search_runs([chosen.experiment_id])} >= {"mine", "earlier"}
    assert client.get_experiment_by_name("only looked up") is None
    assert client.get_run(run.run.tracking_id).info.experiment_id == chosen.experiment_id


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_server_ends_with_the_run(api: Any) -> None:
    code = (
        "import mlflow, psutil\nmlflow.search_runs()\n"
        "family = psutil.Process().parent().children(recursive=True)\n"
        "servers = [one.pid for one in family if 'page_server' in ' '.join(one.cmdline())]\n"
    )
    run = api.submit(code, out=["servers"]).wait()
    (pid,) = run.result("servers")
    assert not psutil.pid_exists(pid) or "page_server" not in " ".join(psutil.Process(pid).cmdline())
    assert run.run.status.detail == ""


def test_run_has_its_mlflow_record_as_soon_as_it_has_ended(api: Any) -> None:
    run = api.submit("import mlflow\nmlflow.log_metric('a', 2)", params={"lr": 0.5}).wait()
    found = run.mlflow
    assert (found.info.status, found.data.metrics["a"], found.data.params["lr"]) == ("FINISHED", 2.0, "0.5")


@pytest.mark.thorough
def test_run_without_record_says_so(api: Any) -> None:
    run = api.submit("x = 1").wait()
    run.mlflow  # noqa: B018  # recorded before its record is lost
    shutil.rmtree(".amltrain")
    assert stored_run(".", run.run.tracking_id) is None
    with pytest.raises(CommandError, match="no record"):
        run.mlflow  # noqa: B018
