"""MLflow's private parts are where ``tracking/mlflow_private.py`` expects them, in both versions that are tested."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import jupyter_amltrain
from jupyter_amltrain.tracking import mlflow_private
from tests.agent import mlflow2

PACKAGE = Path(jupyter_amltrain.__file__).parent

#: Prints what has moved; run in each version of MLflow.
PROBE = """
import inspect, sys
sys.path.insert(0, sys.argv[1])
import mlflow
from mlflow.store.artifact import artifact_repository_registry as registry
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
from mlflow.store.model_registry import sqlalchemy_store as models
from mlflow.store.tracking import sqlalchemy_store as runs
from jupyter_amltrain.tracking import mlflow_private as private

def expect(what, true):
    if not true:
        print(f"MLflow {mlflow.__version__} has moved: {what}")

three = mlflow.__version__.split(".")[0] != "2"
maps = [name for name in ("_engine_map", "_db_uri_sql_alchemy_engine_map") if hasattr(runs.SqlAlchemyStore, name)]
expect("the map of the tracking store's engines", len(maps) == 1)
expect("logged models, in MLflow 3 only", private.has_logged_models() == three)
expect("the registry of artifact repositories", "file" in registry._artifact_repository_registry._registry)
for store, names in ((runs, "artifact_root_uri"), (models, "")):
    parameters = list(inspect.signature(store.SqlAlchemyStore.__init__).parameters)
    expect(f"parameters of {store.__name__}: {parameters}", parameters[1] == "db_uri")

# Each method that reads or writes files is confined to the project's artifacts.
own = {n for n, f in vars(LocalArtifactRepository).items() if inspect.isfunction(f) and not n.startswith("_")}
expect(f"methods of the local repository: {own - set(private._METHODS)}", own <= set(private._METHODS))

# Primary keys by which rows are read and replaced, and columns that an insert must have.
KEYS = {
    "SqlRun": "run_uuid", "SqlTag": "key run_uuid", "SqlParam": "key run_uuid", "SqlExperimentTag": "key experiment_id",
    "SqlDataset": "experiment_id name digest", "SqlInputTag": "input_uuid name", "SqlLatestMetric": "key run_uuid",
    "SqlInput": "source_type source_id destination_type destination_id",
    "SqlMetric": "key timestamp step run_uuid value is_nan",
}
MODEL_KEYS = {
    "SqlLoggedModel": "model_id", "SqlLoggedModelTag": "model_id tag_key", "SqlLoggedModelParam": "model_id param_key",
    "SqlLoggedModelMetric": "model_id metric_name metric_timestamp_ms metric_step run_id",
}
NEEDED = {
    "SqlDataset": "dataset_uuid dataset_source_type dataset_source", "SqlInput": "input_uuid", "SqlInputTag": "value",
    "SqlParam": "value", "SqlLatestMetric": "value", "SqlLoggedModelMetric": "experiment_id",
    "SqlLoggedModel": "experiment_id name artifact_location creation_timestamp_ms last_updated_timestamp_ms status",
    "SqlLoggedModelTag": "experiment_id tag_value", "SqlLoggedModelParam": "experiment_id param_value",
}
for name, key in {**KEYS, **(MODEL_KEYS if three else {})}.items():
    table = getattr(private._tables(), name).__table__
    expect(f"key of {name}", [column.name for column in table.primary_key.columns] == key.split())
    free = [c.name for c in table.columns if not c.nullable and c.default is None and c.server_default is None]
    known = {*key.split(), *NEEDED.get(name, "").split()}
    expect(f"columns of {name}: {set(free) - known}", set(free) <= known)

if sys.argv[2:] == ["server"]:  # the small package of MLflow 2 has none
    from mlflow import server
    from mlflow.server import handlers
    expect("the server's variables", server.BACKEND_STORE_URI_ENV_VAR and server.ARTIFACT_ROOT_ENV_VAR)
    names = list(inspect.signature(handlers.initialize_backend_stores).parameters)
    expect(f"parameters of the handlers: {names}", names[:3] == [
        "backend_store_uri", "registry_store_uri", "default_artifact_root"])
    from mlflow.protos import databricks_pb2, service_pb2
    from mlflow.utils.proto_json_utils import parse_dict
    expect("protocol buffers", hasattr(service_pb2, "TraceInfoV3") and hasattr(databricks_pb2, "PERMISSION_DENIED"))
"""


def moved(python: str, *words: str) -> list[str]:
    command = [python, "-W", "ignore", "-c", PROBE, str(PACKAGE.parent), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.thorough
def test_private_parts_of_installed_mlflow_are_where_expected() -> None:
    assert moved(sys.executable, "server") == []


@pytest.mark.thorough
def test_private_parts_of_oldest_mlflow_are_where_expected() -> None:
    try:
        python = mlflow2.interpreter()
    except RuntimeError as error:
        pytest.skip(str(error))
    assert moved(python) == []


def test_tested_versions_begin_with_the_required_one() -> None:
    text = (PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"mlflow>={mlflow_private.TESTED[0]}"' in text


def test_only_one_module_names_private_parts_of_mlflow() -> None:
    private = re.compile(r"\bmlflow\.(store|server|protos|utils)\b|\bSql[A-Z]|sqlalchemy(?!\.exc)|_engine_map")
    tracking = [path for path in (PACKAGE / "tracking").glob("*.py") if path.name != "mlflow_private.py"]
    found = [
        f"{path.name}: {line}"
        for path in tracking
        for line in path.read_text(encoding="utf-8").splitlines()
        if private.search(line)
    ]
    assert found == []
