"""Files of the az ml schema: their keys and lines, their job specs, and back."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.jobs import flag_values
from jupyter_amltrain.schema import az_yaml, az_yaml_job
from jupyter_amltrain.schema.environment import Environment
from jupyter_amltrain.schema.inputs import JobInput, JobOutput
from jupyter_amltrain.schema.job import Distribution, JobSpec, Resources, validated

ENV = "environment: azureml:mine:1\n"


def job(text: str, folder: str = "/home/user") -> az_yaml.JobFile:
    return az_yaml.parse(text, "job.yml", folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("command: echo\n\tfoo: 1\n", "job.yml line 2: "),
        ("command: echo: hi\n", "job.yml line 1: "),
        ("command: a\nname: b\ncommand: c\n", "job.yml line 3, command: "),
        ("- a\n", "job.yml "),
        ("", "job.yml "),
        ("command: a\ntype: nonsense\n", "job.yml line 2, type: 'nonsense'"),
        ("type: parallel\n", "job.yml line 1, type: parallel"),
        ("type: command\n" + ENV, "command: "),
        ("command: echo ${{inputs.q}}\n" + ENV, "job.yml line 1, command: inputs.q"),
        ("command: a\nresources:\n  instance_count: two\n", "line 3, resources.instance_count: 'two'"),
        ("command: a\nresources:\n  shm_size: 2gb\n", "line 3, resources.shm_size: "),
        ("command: a\ninputs:\n  x:\n    path: a\n    mode: fast\n", "line 3, inputs.x: "),
        ("command: a\ncode: nowhere\n", "line 2, code: "),
        ("type: pipeline\njobs:\n  a:\n    code: b\n", "line 4, jobs.a.code: "),
        ("command: a\nenvironment_variables: 3\n", "line 2, environment_variables: "),
    ],
)
def test_yaml_error_names_line_and_key(text: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        az_yaml_job.spec_of(job(text))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_command_yaml_becomes_job_spec(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    text = """\
$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json
command: python train.py ${{inputs.data}} ${{inputs.lr}} ${{outputs.model}}
code: src
display_name: a/b
experiment_name: digits
tags: {team: 7}
environment: {image: python, conda_file: conda.yml}
environment_variables: {A: 1, B: true}
inputs:
  data: {type: uri_file, path: data.csv, mode: download}
  far: {path: azureml://datastores/x/paths/y}
  lr: 0.1
outputs:
  model:
distribution: {type: ray}
services: {my_vs: {type: vs_code}}
resources: {instance_count: 2, instance_type: Standard_NC6s_v3, shm_size: 8g}
limits: {timeout: 60}
queue_settings: {job_tier: Spot, priority: Medium}
identity: {type: managed, client_id: 00000000-0000-0000-0000-000000000000}
"""
    spec = validated(az_yaml_job.spec_of(az_yaml.parse(text, "job.yml", str(tmp_path))))
    assert (spec.name, spec.experiment, spec.tags) == ("a-b", "digits", {"team": "7"})
    assert spec.source == str(tmp_path / "src") and not spec.script and spec.cell == text
    assert spec.environment == Environment(image="python", conda=str(tmp_path / "conda.yml"))
    assert spec.env == {"A": "1", "B": "true"}
    assert spec.inputs == {
        "data": JobInput(type="uri_file", path=str(tmp_path / "data.csv"), mode="download"),
        "far": JobInput(path="azureml://datastores/x/paths/y"),
        "lr": JobInput(type="literal", value=0.1),
    }
    assert spec.outputs == {"model": JobOutput()}
    assert spec.resources == Resources(nodes=2, instance_type="Standard_NC6s_v3", shm_size="8g")
    assert spec.distribution == Distribution()  # of Ray only the service knows
    assert (spec.services, spec.timeout, spec.tier, spec.priority) == (("vscode",), 60.0, "spot", "medium")
    assert spec.identity == "managed:00000000-0000-0000-0000-000000000000"


def test_yaml_compute_is_replaced_by_target() -> None:
    command = job("command: a\ncompute: azureml:old\n" + ENV)
    assert command.compute == "old" and az_yaml.with_compute(command, "new")["compute"] == "azureml:new"
    free = az_yaml.with_compute(command, "", "Standard_DS3_v2")
    assert "compute" not in free and free["resources"] == {"instance_type": "Standard_DS3_v2"}
    own = job("command: a\nresources: {instance_type: Big}\n")
    assert az_yaml.with_compute(own, "", "Small")["resources"] == {"instance_type": "Big"}
    pipe = job("type: pipeline\nsettings: {default_compute: azureml:old, x: 1}\njobs: {}\n")
    assert pipe.compute == "old"
    assert az_yaml.with_compute(pipe, "new")["settings"] == {"default_compute": "azureml:new", "x": 1}
    assert az_yaml.with_compute(pipe, "")["settings"]["default_compute"] == "azureml:serverless"
    assert "compute" not in az_yaml.with_compute(job("type: import\n"), "new")


def test_yaml_parameters_become_inputs() -> None:
    file = job("command: a\ninputs:\n  lr: 0.1\n  data: {type: uri_file, path: a.csv}\n")
    doc = az_yaml.with_params(file, {"lr": 0.5, "data": "azureml:digits:1"}).doc
    assert doc["inputs"] == {"lr": 0.5, "data": {"type": "uri_file", "path": "azureml:digits:1"}}
    assert file.doc["inputs"]["lr"] == 0.1
    with pytest.raises(SpecError, match=r"line 2, inputs: --param rate: .*lr, data"):
        az_yaml.with_params(file, {"rate": 1})
    with pytest.raises(SpecError, match=r"line 3, inputs.lr"):
        az_yaml.with_params(file, {"lr": [1]})


def test_inputs_of_line_replace_those_of_file() -> None:
    file = job("command: a\ninputs:\n  lr: 0.1\n  data: {type: uri_file, path: a.csv, mode: download}\n")
    line = {"data": JobInput(type="mltable", path="azureml:t:1"), "lr": JobInput(type="literal", value=2)}
    spec = az_yaml_job.spec_of_line(file, {}, line)
    assert spec.inputs == {"data": JobInput(type="mltable", path="azureml:t:1", mode="download"), "lr": line["lr"]}
    assert az_yaml_job.file_of(spec).doc["inputs"] == {
        "lr": 2,
        "data": {"type": "mltable", "path": "azureml:t:1", "mode": "download"},
    }
    other = az_yaml_job.with_line_params(spec, {"lr": 3})
    assert (other.inputs["data"], other.inputs["lr"].value) == (spec.inputs["data"], 3)
    with pytest.raises(SpecError, match=r"line 2, inputs: --input rate: .*lr, data"):
        az_yaml_job.spec_of_line(file, {}, {"rate": line["lr"]})
    with pytest.raises(SpecError) as error:
        az_yaml_job.spec_of_line(file, {"lr": 1}, line)
    assert error.value.code == "flag.twice"


def test_address_has_type_of_file_unless_line_names_another() -> None:
    declared = {"table": {"type": "mltable", "path": "azureml:t:1"}, "word": "here"}

    def kind(text: str) -> str:
        return flag_values.inputs_of_file(dict([flag_values.input_pair(text)]), declared).popitem()[1].type

    assert kind("table=azureml:t:2") == "mltable"
    assert kind("table=azureml:t:2,uri_file") == "uri_file"
    assert kind("table=/nowhere/a.csv") == "uri_file"  # a path of this machine tells what it is
    assert kind("word=azureml:t:2") == "uri_folder"


SPECS: tuple[dict[str, Any], ...] = (
    {},
    {"env": {"A": "1"}, "tags": {"team": "x"}, "timeout": 3600.0, "identity": "user", "tier": "spot"},
    {"environment": Environment(image="python", conda="/home/user/conda.yml")},
    {"environment": Environment(build="/home/user/docker")},
    {"environment": Environment(image="library/python:3.12")},
    {
        "inputs": {"lr": JobInput(type="literal", value=0.1), "d": JobInput(path="azureml:digits:1", mode="download")},
        "outputs": {"m": JobOutput(type="mlflow_model"), "o": JobOutput(path="azureml://datastores/x/paths/y")},
    },
    {
        "resources": Resources(nodes=2, instance_type="Standard_NC6s_v3", shm_size="8g", docker_args="--ipc=host"),
        "distribution": Distribution(kind="pytorch", processes=4),
        "services": ("jupyterlab", "tensorboard:logs"),
    },
    {"distribution": Distribution(kind="tensorflow", processes=3, parameter_servers=1), "priority": "high"},
    {"distribution": Distribution(kind="mpi", processes=2), "identity": "aml"},
)


@pytest.mark.parametrize("more", SPECS)
def test_job_spec_yaml_round_trip_is_equal(more: dict[str, Any], tmp_path: Path) -> None:
    given = {"environment": Environment(name="azureml:mine:1"), **more}
    spec = validated(JobSpec(name="digits", script="print('é')\n", experiment="exp", source=str(tmp_path), **given))
    doc = az_yaml_job.doc_of(spec, argv=["python", "-u", "script.py"], script=spec.script, code=str(tmp_path))
    text = az_yaml_job.text_of(doc, ["a remark"])
    back = validated(az_yaml_job.spec_of(az_yaml.parse(text, "job.yml", "/elsewhere")))
    kept = (
        "name", "experiment", "tags", "source", "env", "environment", "inputs", "outputs", "resources", "distribution",
        "identity", "services", "timeout", "priority", "tier",
    )  # fmt: skip
    assert {field: getattr(back, field) for field in kept} == {field: getattr(spec, field) for field in kept}
    again = az_yaml_job.doc_of(
        msgspec.structs.replace(back, script=spec.script, script_name="script.py"),
        argv=["python", "-u", "script.py"],
        script=spec.script,
        code=str(tmp_path),
    )
    assert again == doc


@pytest.mark.parametrize(
    "script",
    ["print('plain')\n", "print('no end')", "x = '${{inputs.y}}'\nprint(x)\n", "print('AMLTRAIN_SCRIPT')\n",
     "x = '''\nAMLTRAIN_SCRIPT\n'''\nprint(x)\n", "print('a\\tb', '$HOME `x` \\\\')  \n", "print('é€')\n",
     "\n\nprint(1)\n\n"],
)  # fmt: skip
def test_yaml_command_writes_script_byte_for_byte(script: str, tmp_path: Path) -> None:
    spec = JobSpec(name="a", script=script, environment=Environment(name="azureml:mine:1"))
    doc = az_yaml_job.doc_of(spec, argv=["cat", "script.py"], script=script)
    text = az_yaml_job.text_of(doc)
    command = az_yaml.parse(text).doc["command"]
    assert "${{" not in command
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout == script.encode()


STEPS = {
    "component": ("jobs:\n  step:\n    type: command\n    component: {}\n", "line 4, jobs.step.component: "),
    "trial": ("jobs:\n  hunt:\n    type: sweep\n    trial: file:{}\n", "line 4, jobs.hunt.trial: "),
}


@pytest.mark.parametrize("key", STEPS)
def test_missing_component_file_error_names_key(tmp_path: Path, key: str) -> None:
    text, where = STEPS[key]
    file = job(f"{text.format('./parts/train.yml')}type: pipeline\n", str(tmp_path))
    with pytest.raises(SpecError) as caught:
        az_yaml_job.spec_of(file)
    assert where in str(caught.value) and f"{tmp_path}/parts/train.yml" in str(caught.value)
    (tmp_path / "parts").mkdir()
    component = tmp_path / "parts" / "train.yml"
    component.write_text("command: echo 1\ncode: ./src\n")
    with pytest.raises(SpecError) as caught:
        az_yaml_job.spec_of(file)
    assert where in str(caught.value) and f"{tmp_path}/parts/src" in str(caught.value)
    (tmp_path / "parts" / "src").mkdir()
    assert az_yaml_job.spec_of(file).job_type == "pipeline"
    component.write_text("type: pipeline\njobs: {inner: {component: ./gone.yml}}\n")
    with pytest.raises(SpecError, match="train.yml: jobs.inner.component: .*gone.yml"):
        az_yaml_job.spec_of(file)
    component.write_text("type: pipeline\njobs: {inner: {component: ./train.yml}}\n")
    assert az_yaml_job.spec_of(file)  # a circle is the service's to refuse


@pytest.mark.parametrize("text", ["file:./env.yml", "file:env"])
def test_missing_environment_file_error_names_key(tmp_path: Path, text: str) -> None:
    file = job(f"command: echo 1\nenvironment: {text}\n", str(tmp_path))
    with pytest.raises(SpecError) as caught:
        az_yaml_job.spec_of(file)
    assert "line 2, environment: " in str(caught.value) and f"{tmp_path}/env" in str(caught.value)
    for name in ("env", "env.yml"):
        (tmp_path / name).write_text("name: e\nimage: i\n")
    assert az_yaml_job.spec_of(file)


REGISTERED = "azureml://registries/azureml/environments/e/labels/latest"


@pytest.mark.parametrize("name", ["azureml:env:1", REGISTERED, "e@latest"])
def test_asset_name_is_not_read_as_file(name: str) -> None:
    assert az_yaml_job.spec_of(job(f"command: echo 1\nenvironment: {name}\n"))
