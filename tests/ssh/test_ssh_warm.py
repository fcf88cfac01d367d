"""Runs over SSH that start in an interpreter that has waited there."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.waiting_python import ready, start_of, waiting
from tests.wheels import make_wheel
from tools.openssh import Sshd

from .test_ssh_runs import attach

CODE = "import mlflow\nimport os\nprint('in', os.path.basename(os.getcwd()))\nmlflow.log_metric('loss', 0.5)\n"


@pytest.mark.thorough
def test_second_run_over_ssh_starts_warm(
    api: Any, sshd: Sshd, remote_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMLTRAIN_WARM", "600")
    attach(api, sshd)
    runs = [api.submit(CODE, target="box", gpus=0).wait(120)]
    ready(remote_home)
    runs.append(api.submit(CODE + "print('more')", target="box", gpus=0).wait(120))
    assert [start_of(remote_home / "runs" / run.run_id) for run in runs] == ["", "warm"]
    assert [run.logs().split("\n")[0] for run in runs] == ["in source"] * 2
    assert all(run.metrics()["loss"][0][2] == 0.5 for run in runs) and not runs[1].run.spec.env
    monkeypatch.setenv("AMLTRAIN_WARM", "0")
    api.submit(CODE, target="box", gpus=0).wait(120)
    assert not waiting(remote_home)


@pytest.mark.thorough
def test_run_in_built_environment_over_ssh_starts_warm(
    api: Any, sshd: Sshd, remote_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shutil.which("uv"):
        pytest.skip("no uv")
    monkeypatch.setenv("AMLTRAIN_WARM", "600")
    attach(api, sshd, python=sys.executable)
    make_wheel(tmp_path / "wheels", "alpha", "1.0")
    Path("requirements.txt").write_text(f"--no-index\n--find-links {tmp_path}/wheels\nalpha\n")
    code = "import alpha\nimport sys\nprint(alpha.version, sys.prefix)\n"
    runs = [api.submit(code, target="box", environment="requirements.txt", gpus=0).wait(120)]
    ready(remote_home)
    runs.append(api.submit(code, target="box", environment="requirements.txt", gpus=0).wait(120))
    assert [start_of(remote_home / "runs" / run.run_id) for run in runs] == ["", "warm"]
    assert runs[0].logs().split()[-2:] == runs[1].logs().split()[-2:] and runs[1].logs().split()[-2] == "1.0"
    ready(remote_home)
    other = api.submit(code.replace("alpha", "mlflow").replace("version", "__version__"), target="box", gpus=0).wait(
        120
    )
    assert start_of(remote_home / "runs" / other.run_id) not in ("", "warm")
