"""Jobs in containers on a machine over SSH, with a Docker engine of the test there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.commands.registry import Context, Result
from jupyter_amltrain.commands.registry import run as run_command
from tests.fakes.docker_engine import DockerEngine, docker_engine
from tools.openssh import Sshd

from .test_ssh_runs import attach

IMAGE = "test/python:1"


@pytest.fixture
def engine(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DockerEngine]:
    """An engine on the PATH of the server that `sshd` starts afterwards."""
    with docker_engine(home.parent / "engine") as engine:
        monkeypatch.setenv("PATH", f"{engine.bin}{os.pathsep}{os.environ['PATH']}")
        yield engine


@pytest.mark.thorough
def test_run_over_ssh_uses_image_of_that_machine(
    api: Any, engine: DockerEngine, sshd: Sshd, remote_home: Path, tmp_path: Path
) -> None:
    engine.set(images=[])
    (tmp_path / "data").mkdir()
    attach(api, sshd)
    script = "import os\nprint('in', os.getcwd(), os.environ['OF_THE_IMAGE'])\nanswer = 42\n"
    run = api.submit(
        script, target="box", environment=IMAGE, gpus=0, out=["answer"], inputs={"data": str(tmp_path / "data")}
    ).wait(120)
    folder = remote_home / "runs" / run.run_id
    assert f"in {folder}/source 1" in run.logs() and "[image] pulled in" in run.logs() and run.result("answer") == 42
    argv = engine.calls("run")[0]["argv"]
    mounts = [value for name, value in zip(argv, argv[1:], strict=False) if name == "--mount"]
    data = f"{tmp_path}/data"
    assert f"type=bind,source={folder},target={folder}" in mounts
    assert f"type=bind,source={data},target={data},readonly" in mounts
    assert engine.containers() == []


@pytest.mark.thorough
def test_run_in_image_is_repeated_in_image_of_other_machine(api: Any, engine: DockerEngine, sshd: Sshd) -> None:
    attach(api, sshd)
    script = "import os\nprint('in', os.environ['OF_THE_IMAGE'])\n"
    first = api.submit(script, target="local", environment=IMAGE, gpus=0).wait(120)
    runs: list[Any] = []

    def submitted(run: Any, submission: Any) -> Result:
        runs.append(run)
        return Result(value=run)

    line = ["again", str(first.handle), "--target", "box"]
    run_command("runs", line, Context(prog="%aml_runs", submitted=submitted))
    assert "in 1" in runs[0].wait(120).logs() and runs[0].run.spec.environment.image == IMAGE
    assert len(engine.calls("run")) == 2
