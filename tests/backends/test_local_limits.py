"""What a single machine cannot do for a job is refused, with the flag, before anything is sent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.backends.honored import check_honored
from jupyter_amltrain.backends.local_limits import check_machine
from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.jobs.launch import TargetMachine, launch_plan
from jupyter_amltrain.kernel.controller import Controller
from jupyter_amltrain.schema import az_yaml, az_yaml_job
from jupyter_amltrain.schema.environment import Environment
from jupyter_amltrain.schema.inputs import JobInput, JobOutput
from jupyter_amltrain.schema.job import Distribution, JobSpec, Resources
from jupyter_amltrain.schema.target import LocalTarget
from jupyter_amltrain.state_dir import StateRoot


def unsupported(spec: JobSpec, target: str) -> str:
    """Why a machine without an agent cannot run a job."""
    try:
        check_honored(spec, LocalTarget(name=target))
        check_machine(spec, target, has_agent=False)
    except SpecError as error:
        return str(error)
    return ""


CASES: list[tuple[dict[str, Any], str]] = [
    ({"resources": Resources(nodes=2)}, "--nodes 2: 'local' is one machine."),
    ({"distribution": Distribution(kind="pytorch", processes=2)}, "--processes 2: a run on 'local' is one process."),
    ({"distribution": Distribution(kind="mpi")}, "--distribution: "),
    ({"distribution": Distribution(kind="tensorflow", processes=1, parameter_servers=1)}, "--processes 1: "),
    ({"resources": Resources(instance_type="S")}, "--instance-type S: 'local' is a single machine of fixed size."),
    ({"resources": Resources(shm_size="2g")}, "--shm-size 2g: 'local' runs jobs without a container unless"),
    ({"resources": Resources(docker_args="--ipc=host")}, "--docker-args --ipc=host"),
    ({"environment": Environment(image="i/j")}, "--env i/j: 'local' runs jobs with the kernel's own Python"),
    ({"environment": Environment(conda="/c.yml")}, "--env /c.yml"),
    ({"environment": Environment(name="e:1")}, "--env e:1"),
    ({"identity": "user"}, "--identity user"),
    ({"services": ("ssh:ssh-rsa AAAA",)}, "--service ssh: 'local' opens no services"),
    ({"priority": "low"}, "--priority low"),
    ({"tier": "spot"}, "--tier spot"),
    ({"inputs": {"d": JobInput(path="azureml:d:1")}}, "--input d=azureml:d:1: 'local' reads files and folders"),
    ({"inputs": {"d": JobInput(path="/not/there")}}, "--input d=/not/there: there is no such file or folder."),
    ({"outputs": {"m": JobOutput(path="azureml://x")}}, "--output m=azureml://x"),
]


@pytest.mark.parametrize(("fields", "message"), CASES)
def test_local_unsupported_field_error_has_action(fields: dict[str, Any], message: str) -> None:
    sentence = unsupported(JobSpec(name="x", **fields), "local")
    assert sentence.startswith(message) and "\n" not in sentence and sentence.endswith(".")


def test_local_supported_job_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("1")
    spec = JobSpec(
        name="x",
        resources=Resources(gpus=2),
        environment=Environment(kernel=True),
        distribution=Distribution(processes=1),
        inputs={
            "file": JobInput(type="uri_file", path=str(tmp_path / "x.csv"), mode="download"),
            "folder": JobInput(path=str(tmp_path)),
            "rate": JobInput(type="literal", value=0.5),
        },
        outputs={"model": JobOutput(mode="upload")},
    )
    assert unsupported(spec, "local") == ""
    assert unsupported(JobSpec(name="x", environment=Environment(name="e:1", chosen="%config")), "local") == ""
    for name, type_ in (("x.csv", "uri_folder"), (".", "uri_file")):
        wrong = JobSpec(name="x", inputs={"d": JobInput(type=type_, path=str(tmp_path / name))})
        assert "leave the type out" in unsupported(wrong, "local")


FILE = """\
command: python train.py
inputs:
  data:
    path: {path}
    type: uri_file
resources: {{instance_count: {nodes}}}
distribution: {{type: {kind}, process_count_per_instance: {each}}}
"""


def of_file(path: str = "here.csv", nodes: int = 1, kind: str = "pytorch", each: str = "1", **params: Any) -> JobSpec:
    text = FILE.format(path=path, nodes=nodes, kind=kind, each=each)
    return az_yaml_job.spec_of(az_yaml.with_params(az_yaml.parse(text, "job.yml", os.getcwd()), params))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("command: echo ${{inputs.a}}\ninputs:\n  a: ${{inputs.b}}\n  b: ${{inputs.a}}\n", ("line 3", "another one")),
        ("command: echo ${{input.a}}\ninputs: {a: 1}\n", ("line 1", "${{input.a}}")),
    ],
    ids=["cyclic", "unknown"],
)
def test_placeholder_that_nothing_fills_is_refused_with_its_line(text: str, words: tuple[str, ...]) -> None:
    sentence = unsupported(az_yaml_job.spec_of(az_yaml.parse(text, "job.yml", os.getcwd())), "local")
    assert all(word in sentence for word in words) and "\n" not in sentence


def test_local_yaml_job_with_one_process_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here.csv").write_text("1")
    for each in ("1", "null"):
        spec = of_file(each=each)
        assert unsupported(spec, "local") == ""
        env = launch_plan(spec, "/runs/x/source", TargetMachine(python="python3", has_our_disk=True)).env
        assert (env["RANK"], env["WORLD_SIZE"]) == ("0", "1") and int(env["MASTER_PORT"]) > 1024
    assert unsupported(of_file(kind="mpi"), "local") == ""
    given = of_file(path="https://example.org/iris.csv", data=str(tmp_path / "here.csv"))
    assert given.inputs["data"].path == str(tmp_path / "here.csv") and unsupported(given, "local") == ""


@pytest.mark.parametrize(
    ("fields", "where", "cure"),
    [
        ({"path": "https://example.org/iris.csv"}, "job.yml line 4, inputs.data.path: ", "--input data="),
        ({"path": "nowhere.csv"}, "job.yml line 4, inputs.data.path: ", "--input data="),
        ({"nodes": 2}, "job.yml line 6, resources.instance_count: ", "%aml_compute"),
        ({"each": "4"}, "job.yml line 7, distribution: ", "Azure"),
    ],
)
def test_local_yaml_job_unsupported_error_names_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], where: str, cure: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here.csv").write_text("1")
    sentence = unsupported(of_file(**fields), "local")
    assert sentence.startswith(where) and cure in sentence and "\n" not in sentence


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    made = Controller(StateRoot(tmp_path / "state"))
    yield made
    made.close()


@pytest.mark.parametrize("target", ["local", "lab"])
def test_local_unsupported_submit_creates_no_run(controller: Controller, target: str) -> None:
    controller.loop.call(_lab(controller), 10)
    for ask in (controller.jobs.submit, controller.jobs.plan):
        with pytest.raises(SpecError, match=f"--nodes 2: '{target}'"):
            controller.loop.call(ask(JobSpec(name="x", script="pass", resources=Resources(nodes=2)), target), 10)
    assert controller.loop.call(_handles(controller), 10) == []


async def _lab(controller: Controller) -> None:
    await controller.target_manager.run_action("create", "lab", kind="fake", confirmed=True)


async def _handles(controller: Controller) -> list[str]:
    return [entry.run.handle for entry in controller.store.entries()]
