from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tools.openssh import Sshd

from ..contracts.script_projects import FEW, Project, check_missed_data, check_projects, check_sweeps, travelling, write
from .test_ssh_runs import attach


@pytest.mark.thorough
def test_projects_run_as_with_python(api: Any, sshd: Sshd, tmp_path: Path) -> None:
    attach(api, sshd)
    check_projects(FEW, tmp_path, "box", 120)


@pytest.mark.thorough
def test_all_projects_run_as_with_python(api: Any, sshd: Sshd, tmp_path: Path) -> None:
    attach(api, sshd)
    check_projects([name for name in travelling() if name not in FEW], tmp_path, "box", 120)


@pytest.mark.thorough
def test_secret_file_stays_here_with_a_note(api: Any, sshd: Sshd, tmp_path: Path, monkeypatch: Any) -> None:
    attach(api, sshd)
    text = "import os\nprint('has', os.path.exists(os.path.dirname(__file__) + '/.env'))\n"
    monkeypatch.chdir(write(Project({".env": "A=1", "train.py": text}, ""), tmp_path / "project"))
    run = api.submit(Path("train.py"), target="box", gpus=0).wait(60)
    assert "has False" in run.logs() and any(".env" in note for note in run.record().notes)


@pytest.mark.thorough
def test_run_that_misses_data_of_this_computer_says_so(api: Any, sshd: Sshd, tmp_path: Path, monkeypatch: Any) -> None:
    attach(api, sshd)
    monkeypatch.chdir(tmp_path)
    check_missed_data(tmp_path, "box", 60)


@pytest.mark.thorough
def test_sweeps_over_projects_have_values_of_python(api: Any, sshd: Sshd, tmp_path: Path) -> None:
    attach(api, sshd)
    check_sweeps(tmp_path, "box", 180)
