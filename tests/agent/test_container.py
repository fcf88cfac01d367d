"""Command line of a job in a container: its GPUs, folders, variables and start."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent.environments.docker import Layers, check, failure_in
from jupyter_amltrain.agent.protocol import AgentError
from jupyter_amltrain.agent.supervise.assignment import Assignment
from jupyter_amltrain.agent.supervise.container import Container, ContainerError, command, inherited
from tests.helpers import until

GPUS = ["GPU-aa", "GPU-bb"]


def assignment(folder: Path, **values: Any) -> Assignment:
    run = folder / "home" / "runs" / "r-1"
    run.mkdir(parents=True, exist_ok=True)
    fields = {name: values.pop(name) for name in ("secrets", "devices") if name in values}
    job = {
        "run": "r-1", "argv": ["python", "x.py"], "cwd": str(folder), "env": {}, "notebook_dir": "",
        "container": check({"image": "a/b:1", **values.pop("container", {})}), **values,
    }  # fmt: skip
    task = Assignment(str(folder / "home"), str(run), job, {"mark": "f00"}, {}, {}, [], None, True, 0.0, 0.0, "", 0)
    return task._replace(**fields)


def argv_of(task: Assignment, env: dict[str, str], hook: str = "") -> list[str]:
    return command(task, env, hook, Container(task.mark, {"PATH": "/usr/bin"}), 0o27)


def values(argv: list[str], option: str) -> list[str]:
    return [value for name, value in zip(argv, argv[1:], strict=False) if name == option]


def test_gpus_of_slot_are_passed_by_their_uuids(tmp_path: Path) -> None:
    argv = argv_of(assignment(tmp_path, devices=GPUS), {"CUDA_VISIBLE_DEVICES": "GPU-aa,GPU-bb"})
    assert values(argv, "--gpus") == ['"device=GPU-aa,GPU-bb"'] and values(argv, "--name") == ["amltrain-r-1-f00"]


def test_gpu_indices_count_inside_the_container(tmp_path: Path) -> None:
    env = {"CUDA_VISIBLE_DEVICES": "4,7"}
    argv_of(assignment(tmp_path, devices=GPUS, gpu_ids="index"), env)
    assert env["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_job_without_gpus_sees_none_in_image_that_wants_all(tmp_path: Path) -> None:
    env: dict[str, str] = {}
    assert "--gpus" not in argv_of(assignment(tmp_path), env) and env["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_shared_memory_of_the_machine_replaces_size(tmp_path: Path) -> None:
    task = assignment(tmp_path, container={"args": ["--ipc=host"]})
    assert "--shm-size" not in argv_of(task, {})


@pytest.mark.parametrize(
    ("job", "word"),
    [
        ({"cwd": "/etc"}, "/etc"),
        ({"cwd": "/not/there"}, "/not/there does not exist"),
        ({"container": {"inputs": ["/not/here"]}}, "/not/here"),
        ({"secrets": {"DOCKER_HOST": "s3cr3t"}}, "DOCKER_HOST"),
    ],
)
def test_job_that_cannot_run_in_container_is_refused(tmp_path: Path, job: dict[str, Any], word: str) -> None:
    task = assignment(tmp_path, **job)
    with pytest.raises(ContainerError, match=word) as caught:
        argv_of(task, dict(task.secrets))
    assert "s3cr3t" not in str(caught.value)


def test_variables_that_docker_reads_reach_the_job_and_not_docker(tmp_path: Path) -> None:
    task = assignment(tmp_path, env={"PATH": "/of/the/job", "HOME": "/of/the/job"})
    env = {**task.job["env"], "A": "1"}
    argv = argv_of(task, env)
    assert {"PATH=/of/the/job", "HOME=/of/the/job", "A"} <= set(values(argv, "--env"))
    assert env["PATH"] == "/usr/bin" and "HOME" not in env and env["A"] == "1"


def test_few_variables_of_submitter_are_inherited() -> None:
    environ = {"MLFLOW_TRACKING_URI": "u", "https_proxy": "p", "LD_LIBRARY_PATH": "x", "PYTHONPATH": "y", "TZ": "UTC"}
    assert set(inherited(environ)) == {"MLFLOW_TRACKING_URI", "https_proxy", "TZ"}


@pytest.mark.parametrize(("own", "expected"), [({}, "/of/image"), ({"PYTHONPATH": "/of/job"}, "/of/job")])
def test_start_puts_hook_before_python_path_of_image_or_job(tmp_path: Path, own: dict[str, str], expected: str) -> None:
    hook = tmp_path / "hook"
    hook.mkdir()
    task = assignment(tmp_path, env=own, argv=["python", "-c", "import os; print(os.environ['PYTHONPATH'])"])
    env = {"PYTHONPATH": os.pathsep.join([str(hook), *own.values()])}
    argv = argv_of(task, env, str(hook))
    start = argv[argv.index("a/b:1") + 1 :]
    inside = {"PATH": os.environ["PATH"], "PYTHONPATH": env.get("PYTHONPATH", "/of/image")}
    output = subprocess.run(["/bin/sh", *start], env=inside, capture_output=True, text=True, check=True).stdout
    assert output.strip() == f"{hook}:{expected}"


def test_start_in_image_without_python_says_so(tmp_path: Path) -> None:
    argv = argv_of(assignment(tmp_path), {})
    done = subprocess.run(
        ["/bin/sh", *argv[argv.index("a/b:1") + 1 :]], env={"PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 127 and "no python" in done.stderr


def test_stop_is_repeated_until_container_has_its_name(tmp_path: Path) -> None:
    program, calls = tmp_path / "docker", tmp_path / "calls"
    program.write_text(f'#!/bin/sh\necho "$@" >> {calls}\ntest "$(wc -l < {calls})" -ge 2\n')
    program.chmod(0o755)
    Container("r-1:f00", {"PATH": f"{tmp_path}:/usr/bin:/bin"}).stop(0.5)
    until(lambda: calls.exists() and len(calls.read_text().splitlines()) == 2, "the second try")
    assert set(calls.read_text().splitlines()) == {"stop -t 1 amltrain-r-1-f00"}


def test_engine_that_does_not_answer_is_named_with_the_container(tmp_path: Path) -> None:
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\necho 'Error response from daemon: odd'\nexit 1\n")
    program.chmod(0o755)
    left = Container("r-1:f00", {"PATH": f"{tmp_path}:/usr/bin:/bin"}).remove()
    assert "odd" in left and "docker rm -f amltrain-r-1-f00" in left


@pytest.mark.parametrize("value", [{"image": "-v"}, {"image": "a/b", "args": "x"}, {"image": "a/b", "more": ""}])
def test_invalid_container_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises(AgentError):
        check(value)


def test_progress_of_pull_counts_layers() -> None:
    layers = Layers()
    lines = ["latest: Pulling from x", "0123456789ab: Pulling fs layer", "ba9876543210: Already exists"]
    assert [layers.read(line) for line in lines] == ["", "0 of 1 layers", "1 of 2 layers"]
    assert layers.read("0123456789ab: Verifying Checksum") == "" and layers.is_layer("0123456789ab: Verifying Checksum")


def test_output_of_unknown_kind_has_no_meaning() -> None:
    assert failure_in("something else") is None
    failure = failure_in("Error response from daemon: pull access denied for x, repository does not exist")
    assert failure is not None and failure.code == "docker.image"
