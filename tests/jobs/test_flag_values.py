"""Words for data, environments and services, and what they become."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.jobs import flag_values
from jupyter_amltrain.jobs.flag_values import (
    environment_of,
    input_pair,
    inputs_of,
    output_pair,
    outputs_of,
    parse_distribution,
    parse_environment,
    parse_service,
)
from jupyter_amltrain.schema.environment import Environment
from jupyter_amltrain.schema.inputs import JobInput, JobOutput
from jupyter_amltrain.schema.job import Distribution


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "MLTable").write_text("paths: []\n")
    (tmp_path / "a,b.csv").write_text("1\n")
    (tmp_path / "image").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("azureml:digits:1", JobInput(path="azureml:digits:1")),
        ("azureml:digits@latest,download", JobInput(path="azureml:digits@latest", mode="download")),
        ("azureml:digits.v2:1.5", JobInput(path="azureml:digits.v2:1.5")),
        (
            "azureml://datastores/s/paths/x.csv,uri_file,direct",
            JobInput(type="uri_file", path="azureml://datastores/s/paths/x.csv", mode="direct"),
        ),
        ("azureml://datastores/s/paths/x.csv", JobInput(type="uri_file", path="azureml://datastores/s/paths/x.csv")),
        ("azureml://datastores/s/paths/x/", JobInput(path="azureml://datastores/s/paths/x/")),
        ("https://h/x.csv?a=b", JobInput(type="uri_file", path="https://h/x.csv?a=b")),
        ("0.5,literal", JobInput(type="literal", value=0.5)),
        ("true,literal", JobInput(type="literal", value=True)),
        ("a b,literal", JobInput(type="literal", value="a b")),
        ("[1],literal", JobInput(type="literal", value="[1]")),
    ],
)
def test_input_text_is_parsed(text: str, expected: JobInput) -> None:
    assert input_pair(f"x={text}") == ("x", expected)


def test_local_input_path_is_absolute_and_typed(here: Path) -> None:
    assert input_pair("x=data")[1] == JobInput(path=str(here / "data"))
    assert input_pair("x=data/,ro_mount")[1] == JobInput(path=str(here / "data"), mode="ro_mount")
    assert input_pair("x=table")[1] == JobInput(type="mltable", path=str(here / "table"))
    assert input_pair("x=a,b.csv")[1] == JobInput(type="uri_file", path=str(here / "a,b.csv"))
    assert input_pair("x=not-there.csv")[1].path == str(here / "not-there.csv")
    assert input_pair("x=not-there.csv")[1].local and not input_pair("x=azureml:d:1")[1].local


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model", JobOutput()),
        ("model,upload", JobOutput(mode="upload")),
        ("model,mlflow_model,upload", JobOutput(type="mlflow_model", mode="upload")),
        ("model=azureml://datastores/s/paths/m", JobOutput(path="azureml://datastores/s/paths/m")),
        ("model=azureml://x,rw_mount", JobOutput(path="azureml://x", mode="rw_mount")),
    ],
)
def test_output_text_is_parsed(text: str, expected: JobOutput) -> None:
    assert output_pair(text) == ("model", expected)


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (input_pair, "data", "has no '='"),
        (input_pair, "data=", "path is missing"),
        (input_pair, "data=x,downlaod", "Did you mean download?"),
        (input_pair, "data=x,uri_fil", "Did you mean uri_file?"),
        (input_pair, "data=x,download,direct", "two values for its mode"),
        (output_pair, "model,uplod", "Did you mean upload?"),
        (parse_distribution, "pytorch:2", "tensorflow:"),
        (parse_distribution, "tensorflow:x", "tensorflow:"),
        (parse_environment, "TOKEN=TELLTALE", "--env-var TOKEN=..."),
        (environment_of, "a.yml,b.yml", "the image to build on"),
        (parse_service, "ssh:not-there.pub", "ssh-keygen"),
    ],
)
def test_invalid_flag_value_is_named(read: object, text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(text)  # type: ignore[operator]
    assert message in str(caught.value) and "TELLTALE" not in str(caught.value)


def test_environment_text_is_parsed(here: Path) -> None:
    for text, expected in {
        "": Environment(),
        "e": Environment(name="e@latest"),
        "e:3": Environment(name="e:3"),
        "AzureML-sklearn-1.5@latest": Environment(name="AzureML-sklearn-1.5@latest"),
        "azureml:e:3": Environment(name="azureml:e:3"),
        "azureml://registries/azureml/environments/e/versions/3": Environment(
            name="azureml://registries/azureml/environments/e/versions/3"
        ),
        "mcr.microsoft.com/azureml/x:1": Environment(image="mcr.microsoft.com/azureml/x:1"),
        "kernel": Environment(kernel=True),
        "kernel,team/x:1": Environment(kernel=True, image="team/x:1"),
        "kernel@latest": Environment(name="kernel@latest"),
        "conda.yml": Environment(conda=str(here / "conda.yml")),
        "conda.yaml,team/x:1": Environment(conda=str(here / "conda.yaml"), image="team/x:1"),
        "team/x,conda.yaml": Environment(conda=str(here / "conda.yaml"), image="team/x"),
        "image": Environment(build=str(here / "image")),
        "./not-there": Environment(build=str(here / "not-there")),
    }.items():
        assert environment_of(text) == expected, text
        assert parse_environment(text) == text
    assert environment_of("e", derive=True) == Environment(name="e@latest", derive=True)


def test_ssh_key_is_read_from_file(here: Path) -> None:
    (here / "id.pub").write_text("ssh-ed25519 AAAA me@here\n")
    key = "ssh:ssh-ed25519 AAAA me@here"
    assert parse_service("ssh:id.pub") == key == parse_service(key)
    assert parse_service("jupyterlab") == "jupyterlab"


def test_input_function_values_are_converted() -> None:
    given = JobInput(path="azureml:d:1")
    assert inputs_of({"a": "azureml:d:1", "b": 0.5, "c": given, "d": True}) == {
        "a": given,
        "b": JobInput(type="literal", value=0.5),
        "c": given,
        "d": JobInput(type="literal", value=True),
    }
    assert outputs_of(["a", "b"]) == {"a": JobOutput(), "b": JobOutput()}
    assert outputs_of({"a": "", "b": "azureml://x,upload", "c": JobOutput()}) == {
        "a": JobOutput(), "b": JobOutput(path="azureml://x", mode="upload"), "c": JobOutput(),
    }  # fmt: skip
    assert parse_distribution("tensorflow:2") == Distribution(kind="tensorflow", parameter_servers=2)


def test_deepspeed_file_is_read_and_name_is_left_to_the_notebook(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text('{"zero_optimization": {"stage": 2}}')
    assert flag_values.deepspeed_config(str(file)) == {"zero_optimization": {"stage": 2}}
    assert flag_values.deepspeed_config("config") == "config"


@pytest.mark.parametrize("content", ["[1]", "{", None])
def test_deepspeed_file_that_holds_no_object_is_refused(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "ds.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SpecError) as raised:
        flag_values.deepspeed_config(str(file))
    assert raised.value.field == "distribution.config" and "\n" not in str(raised.value)


@pytest.mark.parametrize("value", [{"a": object()}, 3, "not_there"])
def test_deepspeed_configuration_that_is_no_dict_of_json_is_refused(value: object) -> None:
    with pytest.raises(SpecError):
        flag_values.deepspeed_dict(value)
