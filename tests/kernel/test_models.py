"""Models of runs of this machine: registered in the project's MLflow store, listed, copied out."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.commands.registry import Context
from jupyter_amltrain.commands.registry import run as run_command
from jupyter_amltrain.errors import CommandError, UnknownModel
from jupyter_amltrain.kernel.models import checked_name, name_and_version

from ..helpers import api_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

OUTPUT = """
import os
with open(os.path.join(os.environ["AML_OUTPUT_MODEL"], "weights.bin"), "wb") as file:
    file.write(b"12345")
"""
LOGGED = """
import mlflow, os, pathlib
pathlib.Path("logged").mkdir(exist_ok=True)
pathlib.Path("logged/MLmodel").write_text("flavors: {}")
mlflow.log_artifacts("logged", "net")
"""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with api_of(tmp_path_factory.mktemp("models")) as module:
        yield module


@pytest.fixture(scope="module")
def run(api: Any) -> Any:
    return api.submit(OUTPUT, name="output", gpus=0, outputs=["model"]).wait(60)


def line(text: str) -> str:
    return run_command("model", shlex.split(text), Context(prog="%aml_model")).text


@pytest.mark.thorough
def test_output_model_is_registered_listed_and_downloaded(api: Any, run: Any, tmp_path: Path) -> None:
    message = line(f"register digits --run {run.handle} --description 'the first' --tag stage=trial")
    assert message.startswith(f"Registered digits:1 from {run.handle}.")
    row = api.register_model("digits", run=run.handle, path="outputs/model", type="custom_model")
    assert (row.version, row.type, row.run) == ("2", "custom_model", run.handle)
    # It outlives the run's folder.
    assert Path(run.run.folder) not in Path(row.path).parents
    rows = [r for r in api.models() if r.name == "digits"]
    assert [(r.version, r.description, r.tags) for r in rows] == [
        ("2", "", {}),
        ("1", "the first", {"stage": "trial"}),
    ]
    assert "digits:2" in line("list") and "the first" in line("list --workspace local")
    assert "(1 file, 0.0 kB)" in line(f"download digits:1 --to {tmp_path / 'here'}")
    assert (tmp_path / "here" / "weights.bin").read_bytes() == b"12345"
    with pytest.raises(CommandError, match="not empty"):
        line(f"download digits --to {tmp_path / 'here'}")
    assert "Downloaded digits:2 to" in line("download digits")
    assert Path("digits-2/weights.bin").read_bytes() == b"12345" and not list(Path.cwd().glob(".*.part"))


@pytest.mark.thorough
def test_logged_model_is_registered_as_mlflow_model(api: Any) -> None:
    run = api.submit(LOGGED, name="logged", gpus=0).wait(60)
    row = api.register_model("net", run=run.handle)
    assert (row.type, row.version) == ("mlflow_model", "1") and (Path(row.path) / "MLmodel").is_file()
    again = api.register_model("net", run=run.handle, path="outputs/net")
    assert again.path == row.path and again.version == "2"
    with pytest.raises(CommandError, match="outputs/other"):
        api.register_model("net", run=run.handle, path="outputs/other")


@pytest.mark.thorough
def test_registry_is_readable_by_mlflow(api: Any, run: Any) -> None:
    api.register_model("shared", run=run.handle)
    code = (
        "import json, mlflow\n"
        f"client = mlflow.MlflowClient('sqlite:///{Path.cwd()}/.amltrain/mlflow.db')\n"
        "(found,) = client.search_model_versions(\"name='shared'\")\n"
        "print(json.dumps([found.version, found.run_id, dict(found.tags)]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    version, run_id, tags = json.loads(done.stdout.splitlines()[-1])
    assert str(version) == "1" and run_id == run.run.tracking_id and tags["amltrain.handle"] == run.handle


@pytest.mark.thorough
def test_invalid_model_request_is_refused(api: Any, run: Any, tmp_path: Path) -> None:
    nothing = api.submit("x = 1", name="nothing", gpus=0).wait(60)
    for text, message in {
        f"register a --run {nothing.handle}": "No model found",
        f"register a --run {run.handle} --type mlflow_model": "no MLmodel file",
        f"register a --run {run.handle} --path ../../x": "a path within the run",
        f"register a/b --run {run.handle}": "valid model name",
        f"register a --run {run.handle} --type onnx": "custom_model or mlflow_model",
        f"download digit --to {tmp_path / 'x'}": "no model 'digit'",
        f"download x --to {tmp_path / 'no' / 'x'}": "folder",
        "download a:b:c": "version",
        "list --workspace nowhere": "No Azure ML workspace is connected",
    }.items():
        with pytest.raises(CommandError) as caught:
            line(text)
        assert message in str(caught.value) and "\n" not in str(caught.value), text
    api.register_model("digits", run=run.handle)
    with pytest.raises(UnknownModel, match="Did you mean digits"):
        line(f"download digit --to {tmp_path / 'x'}")
    with pytest.raises(UnknownModel, match="has no version 99"):
        line(f"download digits:99 --to {tmp_path / 'x'}")


def test_register_of_live_run_is_refused(api: Any) -> None:
    live = api.submit("import time; time.sleep(60)", name="live", gpus=0)
    try:
        with pytest.raises(CommandError, match="has not ended"):
            api.register_model("live", run=live.handle)
    finally:
        live.cancel()


def test_model_name_and_version_are_parsed() -> None:
    assert name_and_version("digits") == ("digits", "") == name_and_version("digits@latest")
    assert name_and_version("digits:3") == ("digits", "3")
    with pytest.raises(CommandError, match="Try: my-model"):
        checked_name("my model")


LOOP = """
import mlflow, pathlib
for c in (0.1, 1):
    with mlflow.start_run(run_name=f"C={c}"):
        mlflow.log_param("C", c)
        pathlib.Path("logged").mkdir(exist_ok=True)
        pathlib.Path("logged/MLmodel").write_text(f"flavors: {{}} # {c}")
        mlflow.log_artifacts("logged", "net")
"""
ALONE = """
import mlflow
class Doubled(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        return model_input
mlflow.pyfunc.log_model(name="alone", python_model=Doubled(), pip_requirements=["mlflow"])
"""


@pytest.mark.thorough
def test_models_of_child_runs_are_found_by_name(api: Any) -> None:
    run = api.submit(LOOP, name="loop", gpus=0).wait(60)
    with pytest.raises(CommandError, match="2 models") as caught:
        api.register_model("loop", run=run.handle)
    assert "outputs/C=1/net" in str(caught.value)
    row = api.register_model("loop", run=run.handle, path="outputs/C=1/net")
    assert (Path(row.path) / "MLmodel").read_text().endswith("# 1")
    client = run_of_registry("loop")
    assert client["tags"]["mlflow.parentRunId"] == run.run.tracking_id and client["name"] == "C=1"


@pytest.mark.thorough
def test_model_logged_first_is_found(api: Any) -> None:
    run = api.submit(ALONE, name="alone", gpus=0).wait(120)
    row = api.register_model("alone", run=run.handle)
    assert (row.type, row.run) == ("mlflow_model", run.handle)
    assert run_of_registry("alone")["id"] == run.run.tracking_id


def run_of_registry(name: str) -> dict[str, Any]:
    """The run that MLflow names for the newest version of a model."""
    code = (
        "import json, mlflow\n"
        f"client = mlflow.MlflowClient('sqlite:///{Path.cwd()}/.amltrain/mlflow.db')\n"
        f"(found,) = client.search_model_versions(\"name='{name}'\")\n"
        "run = client.get_run(found.run_id)\n"
        "print(json.dumps({'id': found.run_id, 'name': run.info.run_name, 'tags': run.data.tags}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer
