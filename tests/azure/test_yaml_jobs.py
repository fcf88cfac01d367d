"""Files of the az ml schema on the emulated Azure, and on this machine where they can."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain._version import __version__
from jupyter_amltrain.commands.resubmit import repeated_spec
from jupyter_amltrain.errors import AmlTrainError, CommandError, RunCanceled, SpecError
from jupyter_amltrain.schema import az_yaml, az_yaml_job
from tests.azure import yaml_files
from tests.azure.conftest import Azure
from tests.azure.connected_api import carry_out, lab, log, plan, submit
from tests.helpers import DEADLINE, until

AUTOLOG = """\
import mlflow
from sklearn.tree import DecisionTreeClassifier

mlflow.sklearn.autolog()
DecisionTreeClassifier().fit([[0], [1], [2], [3]], [0, 0, 1, 1])
"""


@pytest.fixture(scope="module")
def api(azure: Azure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with lab(azure, tmp_path_factory.mktemp("yaml")) as module:
        yield module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that is not the working one, with one file of each type."""
    return yaml_files.write(tmp_path, "hello", "command", "sweep", "pipeline", "spark", "automl", "long")


def bodies(azure: Azure) -> dict[str, Any]:
    """Jobs that were sent, by name."""
    found = {}
    for one in azure.control("/wire"):
        if one["method"] == "PUT" and re.search(r"/jobs/[^/]+$", one["path"]):
            body = one["body"] if isinstance(one["body"], dict) else json.loads(one["body"])
            found[one["path"].rpartition("/")[2]] = body["properties"]
    return found


def refused(line: str) -> str:
    with pytest.raises(AmlTrainError) as error:
        submit(line).accepted(DEADLINE)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.thorough
def test_yaml_hello_world_completes(api: Any, azure: Azure, folder: Path) -> None:
    run = submit(f"{folder}/hello.yml --target cpu --tag team=x --name greeting").wait(DEADLINE)
    assert log(run) == "hello world\n" and run.handle.startswith("cpu/greeting-")
    body = bodies(azure)[run.handle.partition("/")[2]]
    assert body["computeId"].endswith("/computes/cpu") and body["displayName"] == "greeting"
    ours = {"amltrain.name": "greeting", "amltrain.target": "cpu", "amltrain.version": __version__}
    assert body["tags"] == {"team": "x", **ours}
    # Another kernel knows of it what this one does.
    found = api.attach(run.handle)
    assert (found.state, found.spec.cell, found.spec.job_type) == ("completed", yaml_files.HELLO, "command")


def test_yaml_invalid_file_error_is_one_line(api: Any, folder: Path) -> None:
    (folder / "bad.yml").write_text("command: echo\nenviroment: azureml:mine:1\n")
    with pytest.raises(SpecError) as error:
        plan(f"{folder}/bad.yml --target cpu")
    message = str(error.value)
    assert message.startswith("bad.yml line 2, enviroment: ") and "environment?" in message
    assert message in refused(f"{folder}/bad.yml --target cpu")


def test_yaml_target_precedence(api: Any, folder: Path) -> None:
    """The one that is named, the one whose compute the file names, else the one in use."""
    (folder / "there.yml").write_text(f"{yaml_files.HELLO}compute: azureml:cpu\n")
    assert '"compute": "azureml:cpu"' in plan(f"{folder}/there.yml")
    assert '"instance_type": "Standard_DS2_v2"' in plan(f"{folder}/there.yml --target free")
    assert '"argv": [' in plan(f"{folder}/hello.yml")
    (folder / "nowhere.yml").write_text(f"{yaml_files.HELLO}compute: azureml:nowhere\n")
    with pytest.raises(CommandError, match="compute 'nowhere'"):
        plan(f"{folder}/nowhere.yml")


@pytest.mark.thorough
@pytest.mark.parametrize("file", ["sweep", "command"])
def test_yaml_job_on_deleted_compute_is_refused(api: Any, azure: Azure, folder: Path, file: str) -> None:
    carry_out("create short --kind amlcompute --size Standard_DS2_v2")
    azure.control("/gone", below="/computes/short")
    try:
        assert "There is no compute 'short'" in refused(f"{folder}/{file}.yml --target short")
    finally:
        carry_out("delete short")


def test_yaml_job_with_conflicting_flag_is_refused(api: Any, folder: Path) -> None:
    assert "as resources.instance_count:" in refused(f"{folder}/hello.yml --nodes 2")
    assert "no arguments after '--'" in refused(f"{folder}/hello.yml -- --fast")
    assert "--dry-run --yaml" in refused(f"{folder}/hello.yml --yaml")


def test_yaml_command_job_runs_locally(api: Any, folder: Path) -> None:
    run = submit(f"{folder}/command.yml --param word=there --target local").wait(DEADLINE)
    assert log(run) == "args True\na,b\n1,2\n"
    assert next(Path(run.run.folder).rglob("word.txt")).read_text() == "there\n"
    assert "is data of a workspace" in refused(f"{folder}/automl.yml --target local")
    for name in ("sweep", "spark"):
        assert "A local computer cannot run" in refused(f"{folder}/{name}.yml --target local")
    (folder / "ray.yml").write_text(f"{yaml_files.HELLO}distribution:\n  type: ray\n")
    assert "ray.yml line 5, distribution: 'local'" in refused(f"{folder}/ray.yml --target local")
    (folder / "shm.yml").write_text(f"{yaml_files.HELLO}resources:\n  shm_size: 2g\n")
    assert "without a container" in refused(f"{folder}/shm.yml --target local")


def test_input_of_line_replaces_that_of_file_locally(api: Any, folder: Path) -> None:
    """Data of the file is replaced as that of a cell; what the line does not name stays, also in a resubmit."""
    (folder / "other.csv").write_text("c\n3\n")
    run = submit(f"{folder}/command.yml --input data={folder}/other.csv --target local").wait(DEADLINE)
    assert log(run) == "args True\nc\n3\n"
    again = api.submit_spec(repeated_spec(run, {"word": "there"}), target="local").wait(DEADLINE)
    assert log(again) == "args True\nc\n3\n"
    assert next(Path(again.run.folder).rglob("word.txt")).read_text() == "there\n"
    assert "no such input" in refused(f"{folder}/command.yml --input dat={folder}/other.csv --target local")
    twice = f"{folder}/command.yml --input word=a,literal --param word=b --target local"
    assert "--param and by --input" in refused(twice)


def test_input_of_line_replaces_that_of_file_in_request(api: Any, folder: Path) -> None:
    """An address has the type of the file, the mode of the file stays, and other types of jobs have inputs, too."""
    text = yaml_files.COMMAND.replace("    path: data.csv\n", "    path: data.csv\n    mode: download\n")
    (folder / "mode.yml").write_text(text)
    job = json.loads(plan(f"{folder}/mode.yml --input data=azureml:digits:1 --input word=there,literal --target cpu"))
    assert job["job"]["inputs"] == {
        "data": {"type": "uri_file", "path": "azureml:digits:1", "mode": "download"},
        "word": "there",
    }
    for file in ("sweep.yml --input rate=0.25,literal", "pipeline.yml --input word=there,literal"):
        inputs = json.loads(plan(f"{folder}/{file} --target cpu"))["job"]["inputs"]
        assert inputs in ({"rate": 0.25}, {"word": "there"})


@pytest.mark.thorough
def test_input_of_line_replaces_that_of_file_on_azure(api: Any, folder: Path) -> None:
    (folder / "other.csv").write_text("c\n3\n")
    run = submit(f"{folder}/command.yml --input data={folder}/other.csv --target cpu").wait(DEADLINE)
    assert log(run) == "args True\nc\n3\n"


@pytest.mark.thorough
def test_job_file_that_cannot_log_model_has_note(api: Any, folder: Path) -> None:
    """The service's MLflow has no logged models; autologging stops there, without its metrics and without an error."""
    refused_model = "API request to endpoint /api/2.0/mlflow/logged-models failed with error code 404 != 200."
    (folder / "auto.yml").write_text(f"command: echo '{refused_model}'\nenvironment: {yaml_files.ENVIRONMENT}\n")
    run = submit(f"{folder}/auto.yml --target cpu").wait(DEADLINE)
    assert any("log_models=False" in note for note in run.status.notes)
    assert any("log_models=False" in note for note in run.record().notes)
    assert not submit(f"{folder}/hello.yml --target cpu").wait(DEADLINE).status.notes


@pytest.mark.thorough
def test_autologging_script_has_metrics_and_model(api: Any, folder: Path) -> None:
    """As a script it runs under the agent, which has logged models; as a job file it has the note."""
    (folder / "src" / "fit.py").write_text(AUTOLOG)
    run = submit(f"{folder}/src/fit.py --target cpu").wait(DEADLINE)
    assert run.metrics()["training_score"][-1][2] == 1.0 and not run.status.notes
    assert any(file.path.endswith("MLmodel") for file in run.files())
    (folder / "fit.yml").write_text(f"command: python fit.py\ncode: src\nenvironment: {yaml_files.ENVIRONMENT}\n")
    run = submit(f"{folder}/fit.yml --target cpu").wait(DEADLINE)
    assert any("log_models=False" in note for note in run.status.notes)
    (folder / "src" / "fit.py").write_text(AUTOLOG.replace("autolog()", "autolog(log_models=False)"))
    run = submit(f"{folder}/fit.yml --target cpu").wait(DEADLINE)
    assert run.metrics()["training_score"][-1][2] == 1.0 and not run.status.notes


def test_cell_as_yaml_file_runs_equally(api: Any, folder: Path, tmp_path: Path) -> None:
    """The printed file is submitted, and does what the cell says."""
    line = "--target cpu --yaml --param n=3 --input rate=0.5,literal --output model --tag team=x --timeout 1h"
    text = plan(
        line, "import os\nprint(n, os.environ['AML_INPUT_RATE'], os.path.isdir(os.environ['AML_OUTPUT_MODEL']))\n"
    )
    (folder / "cell.yml").write_text(text)
    spec = az_yaml_job.spec_of(az_yaml.load(folder / "cell.yml"))
    assert (spec.timeout, spec.tags, sorted(spec.inputs)) == (3600.0, {"team": "x"}, ["rate"])
    run = submit(f"{folder}/cell.yml").wait(DEADLINE)  # it names the compute
    assert run.handle.startswith("cpu/") and log(run) == "3 0.5 True\n"


@pytest.mark.thorough
def test_yaml_job_uses_code_and_data_beside_file(api: Any, folder: Path) -> None:
    run = submit(f"{folder}/command.yml --param word=there --target cpu").wait(DEADLINE)
    assert log(run) == "args True\na,b\n1,2\n"


@pytest.mark.thorough
def test_yaml_sweep_runs_trials(api: Any, azure: Azure, folder: Path) -> None:
    run = submit(f"{folder}/sweep.yml --target cpu --param rate=0.25").wait(DEADLINE)
    name = run.handle.partition("/")[2]
    lines = log(run).splitlines()
    for number in range(3):
        ours = [line for line in lines if f" {name}_{number}: " in line]
        assert ours and ours[-1].endswith("Completed ---")
    assert bodies(azure)[name]["inputs"]["rate"]["value"] == "0.25"
    assert api.attach(run.handle).spec.job_type == "sweep"


def test_yaml_automl_on_serverless_sends_instance_type(api: Any, azure: Azure, folder: Path) -> None:
    (folder / "spot.yml").write_text(f"{yaml_files.AUTOML}queue_settings: {{job_tier: spot}}\n")
    run = submit(f"{folder}/spot.yml --target free").accepted(DEADLINE)
    body = bodies(azure)[run.handle.partition("/")[2]]
    assert body["resources"] == {"instanceType": "Standard_DS2_v2"} | {
        key: value for key, value in body["resources"].items() if key in ("instanceCount", "properties", "shmSize")
    }
    assert body["queueSettings"]["jobTier"] == "Spot" and "instance_type" not in str(body)
    run.cancel()


@pytest.mark.thorough
def test_yaml_spark_runs_on_serverless_and_pool(api: Any, azure: Azure, folder: Path) -> None:
    run = submit(f"{folder}/spark.yml --target free").wait(DEADLINE)
    assert log(run) == "args --rows 3 True\n"
    assert api.attach(run.handle).spec.cell == yaml_files.SPARK
    assert run.handle in [one.handle for one in api.runs("free")]
    assert "Spark job" in refused(f"{folder}/spark.yml --target cpu")
    pool = (
        f"/subscriptions/{azure.subscription}/resourceGroups/{azure.resource_group}"
        "/providers/Microsoft.Synapse/workspaces/syn/bigDataPools/pool"
    )
    carry_out(f"attach pool --kind synapse-spark --resource-id {pool}")
    text = yaml_files.SPARK.partition("resources:")[0]
    (folder / "pool.yml").write_text(f"{text}compute: azureml:pool\n")
    run = submit(f"{folder}/pool.yml").wait(DEADLINE)
    assert run.handle.startswith("pool/") and log(run) == "args --rows 3 True\n"
    assert "runs jobs of type: spark" in refused(f"{folder}/hello.yml --target pool")


@pytest.mark.thorough
def test_yaml_job_is_canceled(api: Any, folder: Path) -> None:
    run = submit(f"{folder}/long.yml --target cpu")
    until(lambda: run.state == "running", "the job to run")
    run.cancel()
    with pytest.raises(RunCanceled):
        run.wait(DEADLINE)


@pytest.mark.thorough
def test_printed_yaml_is_read_by_sdk(api: Any, folder: Path) -> None:
    line = (
        "--target cpu --yaml --nodes 2 --processes 2 --service jupyterlab --service tensorboard:logs --priority low"
        " --out a"
        " --identity managed --env-var A=1 --input d=azureml:digits:1,download --output m,mlflow_model --shm-size 4g"
    )
    text = plan(line, "a = 1\n")
    read = (
        "import io, sys; from azure.ai.ml import load_job; j = load_job(io.StringIO(sys.stdin.read()));"
        "v = j._validate(); assert v.passed, v.error_messages;"
        "print(j.resources.instance_count, j.distribution.process_count_per_instance, j.compute, sorted(j.services))"
    )
    done = subprocess.run([sys.executable, "-c", read], input=text, capture_output=True, text=True, timeout=DEADLINE)
    assert done.stdout.split() == ["2", "2", "cpu", "['jupyterlab',", "'tensorboard']"], done.stderr
    assert io.StringIO(text).readline().startswith("# Send it with: az ml job create")
