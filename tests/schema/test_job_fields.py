"""Nodes, packages, data and links of a job: what may be asked for, and what an older record says of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.schema.environment import Environment
from jupyter_amltrain.schema.inputs import JobInput, JobOutput
from jupyter_amltrain.schema.job import Distribution, JobSpec, Resources, distribution_of, validated

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJqZ me@here"


def full() -> JobSpec:
    return JobSpec(
        name="x",
        resources=Resources(gpus=4, nodes=2, instance_type="Standard_NC6s_v3", shm_size="8g", docker_args="--ipc=host"),
        distribution=Distribution(kind="tensorflow", processes=2, parameter_servers=1),
        environment=Environment(name="AzureML-sklearn@latest", derive=True),
        inputs={
            "data": JobInput(path="azureml:digits:1", mode="download"),
            "rate": JobInput(type="literal", value=0.5),
        },
        outputs={"model": JobOutput(type="mlflow_model", mode="upload"), "data": JobOutput()},
        identity="managed:00000000-0000-0000-0000-000000000000",
        services=("jupyterlab", "tensorboard:logs/tb", f"ssh:{KEY}"),
        priority="low",
        tier="spot",
    )


def test_full_job_spec_json_round_trip_is_valid() -> None:
    spec = validated(full())
    assert msgspec.json.decode(msgspec.json.encode(spec), type=JobSpec) == spec


def test_old_job_record_without_fields_has_defaults() -> None:
    old = {"name": "x", "resources": {"gpus": 1}, "source_sha256": "00"}
    spec = msgspec.convert(old, JobSpec)
    assert spec == JobSpec(name="x", resources=Resources(gpus=1), source_sha256="00")
    assert not spec.environment and spec.resources.nodes == 1 and not spec.distribution.kind


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"resources": Resources(nodes=0)}, "--nodes 0"),
        ({"resources": Resources(nodes=10**6)}, "--nodes 1000000"),
        ({"resources": Resources(instance_type="a b")}, "--instance-type 'a b'"),
        ({"resources": Resources(shm_size="2 GB")}, "--shm-size '2 GB'"),
        ({"resources": Resources(memory="64 GB")}, "--mem '64 GB'"),
        ({"resources": Resources(cpus=5000)}, "--cpus 5000"),
        ({"options": ("-p gpu",)}, "--option '-p gpu'"),
        ({"resources": Resources(docker_args="a\nb")}, "--docker-args"),
        ({"distribution": Distribution(kind="slurm")}, "--distribution 'slurm'"),
        ({"distribution": Distribution(kind="mpi", processes=0)}, "--processes 0"),
        ({"distribution": Distribution(kind="mpi", parameter_servers=1)}, "only TensorFlow"),
        ({"environment": Environment(name="e:1", image="i/j")}, "--env i/j,e:1"),
        ({"environment": Environment(conda="/c.yml", build="/b")}, "--env"),
        ({"environment": Environment(name="no version")}, "noversion@latest"),
        ({"environment": Environment(image="UPPER/Case space")}, "name of a Docker image"),
        ({"environment": Environment(derive=True)}, "--derive-env"),
        ({"environment": Environment(conda="/c.yml", derive=True)}, "--derive-env"),
        ({"inputs": {"a-b": JobInput(path="/x")}}, "--input 'a-b'"),
        ({"inputs": {"a": JobInput(path="/x"), "A": JobInput(path="/y")}}, "$AML_INPUT_A"),
        ({"inputs": {"a": JobInput()}}, "path is missing"),
        ({"inputs": {"a": JobInput(type="blob", path="/x")}}, "type 'blob'"),
        ({"inputs": {"a": JobInput(mode="mount", path="/x")}}, "mode 'mount'"),
        ({"inputs": {"a": JobInput(mode="direct", path="/x")}}, "mode direct does not support"),
        ({"inputs": {"a": JobInput(type="literal", value=[1])}}, "a literal must be"),
        ({"inputs": {"a": JobInput(type="literal", value=1, path="/x")}}, "no path or mode"),
        ({"inputs": {"a": JobInput(path="/x", value=1)}}, "both a path and a value"),
        ({"outputs": {"dir": JobOutput()}}, "$AML_OUTPUT_DIR"),
        ({"outputs": {"a": JobOutput(path="/x")}}, "on a datastore"),
        ({"outputs": {"a": JobOutput(mode="download")}}, "mode 'download'"),
        ({"outputs": {"a": JobOutput(type="literal")}}, "type 'literal'"),
        ({"identity": "me"}, "--identity 'me'"),
        ({"identity": "user:me"}, "a client id"),
        ({"identity": "managed:me"}, "a client id"),
        ({"services": ("emacs",)}, "--service 'emacs'"),
        ({"services": ("ssh",)}, "public key"),
        ({"services": ("vscode:x",)}, "takes no value"),
        ({"services": ("tensorboard:../x",)}, "--service tensorboard"),
        ({"services": ("tensorboard:a", "tensorboard:b")}, "given twice"),
        ({"priority": "urgent"}, "--priority 'urgent'"),
        ({"tier": "gold"}, "--tier 'gold'"),
    ],
)
def test_job_field_invalid_error_names_flag(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        validated(JobSpec(name="x", **fields))
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "https://a.blob.core.windows.net/c/x.csv?sv=1&sig=TELLTALE",
        "https://me:TELLTALE@host/x",
        "wasbs://x;AccountKey=TELLTALE",
    ],
)
def test_data_address_with_key_is_refused_and_not_repeated(address: str) -> None:
    for fields in ({"inputs": {"a": JobInput(path=address)}}, {"outputs": {"a": JobOutput(path=address)}}):
        with pytest.raises(SpecError) as caught:
            validated(JobSpec(name="x", **fields))
        assert "TELLTALE" not in str(caught.value) and "datastores" in str(caught.value)


def test_private_key_in_service_is_refused_and_not_repeated() -> None:
    with pytest.raises(SpecError) as caught:
        validated(JobSpec(name="x", services=("ssh:-----BEGIN OPENSSH PRIVATE KEY-----\nTELLTALE",)))
    assert "TELLTALE" not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "image",
    [
        "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu20.04:latest",
        "docker.io/library/python:3.11",
        "localhost:5000/x",
        "pytorch/pytorch:2.4.0-cuda12.1-cudnn9-runtime",
        f"docker.io/library/python@sha256:{'a' * 64}",
    ],
)
def test_environment_image_valid_is_accepted(image: str) -> None:
    validated(JobSpec(name="x", environment=Environment(image=image)))
    validated(JobSpec(name="x", environment=Environment(image=image, conda="/c.yml")))


@pytest.mark.parametrize(
    "name",
    [
        "e:3",
        "e@latest",
        "azureml:e:3",
        "azureml://registries/azureml/environments/e/versions/3",
        "azureml://registries/azureml/environments/e/labels/latest",
        "/subscriptions/s/resourceGroups/r/providers/p/workspaces/w/environments/e/versions/3",
    ],
)
def test_environment_name_valid_is_accepted(name: str) -> None:
    validated(JobSpec(name="x", environment=Environment(name=name)))


def test_distribution_without_kind_defaults_to_pytorch() -> None:
    assert distribution_of("", None, 1) == Distribution()
    assert distribution_of("", 1, 1) == Distribution(processes=1)
    assert distribution_of("", 2, 1) == Distribution(kind="pytorch", processes=2)
    assert distribution_of("", None, 2) == Distribution(kind="pytorch")
    assert distribution_of("mpi", None, 2) == Distribution(kind="mpi")
