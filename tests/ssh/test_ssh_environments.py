"""Environments on a machine over SSH: built by its agent, with its own uv."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.errors import SpecError
from tests.wheels import make_wheel
from tools.openssh import Sshd

from .test_ssh_runs import attach


@pytest.mark.thorough
def test_run_over_ssh_builds_environment_on_that_machine(
    api: Any, sshd: Sshd, home: Path, remote_home: Path, tmp_path: Path
) -> None:
    attach(api, sshd, python=sys.executable)  # uv is installed beside this interpreter
    make_wheel(tmp_path / "wheels", "alpha", "1.0")
    Path("requirements.txt").write_text(f"--no-index\n--find-links {tmp_path}/wheels\nalpha\n")
    script = "import alpha, sys\nprint(alpha.version, sys.prefix)\n"
    run = api.submit(script, target="box", environment="requirements.txt", gpus=0).wait(120)
    assert f"1.0 {remote_home}/envs/" in run.logs() and "alpha==1.0" in run.logs()
    row = api.environment("requirements.txt", target="box")
    assert row.path.startswith(str(remote_home)) and row.target == "box"
    second = api.submit(script, target="box", environment="requirements.txt", gpus=0).wait(120)
    assert any("built already" in note for note in second.record().notes)
    assert api.delete_environment(row.key, target="box", confirmed=True).key == row.key
    assert not (home / "envs").exists() and api.environments(target="box") == []


@pytest.mark.thorough
def test_path_of_this_machine_is_refused(api: Any, sshd: Sshd) -> None:
    attach(api, sshd)
    Path("requirements.txt").write_text("--find-links ./wheels\nalpha\n")
    with pytest.raises(SpecError, match="line 1") as caught:
        api.submit("x = 1", target="box", environment="requirements.txt", gpus=0)
    assert caught.value.code == "environment.requirements"


def test_show_has_uv_that_builds_use(api: Any, sshd: Sshd, tmp_path: Path) -> None:
    venv = tmp_path / "own" / "bin"  # uv is installed there only
    venv.mkdir(parents=True)
    (venv / "python").symlink_to(sys.executable)
    (venv / "uv").write_text("#!/bin/sh\n")
    (venv / "uv").chmod(0o755)
    attach(api, sshd, python=str(venv / "python"))
    assert api.compute("box").programs["uv"] in (str(venv / "uv"), shutil.which("uv") or str(venv / "uv"))
