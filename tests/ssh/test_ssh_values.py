from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tools.openssh import Sshd

from ..contracts.kept_files import check_example_output, check_kept_files
from ..contracts.notebook_values import check_round_trip
from .test_ssh_runs import attach


@pytest.mark.thorough
def test_every_value_comes_back(api: Any, sshd: Sshd) -> None:
    attach(api, sshd)
    check_round_trip("box", 180)


def test_note_on_a_path_stays_with_the_run(api: Any, sshd: Sshd) -> None:
    attach(api, sshd)
    Path("table.csv").touch()
    run = api.submit("try:\n    open('table.csv')\nexcept OSError: pass", target="box", gpus=0).wait(60)
    assert any("table.csv" in note for note in run.record().notes)


@pytest.mark.thorough
def test_outputs_and_logs_are_kept(api: Any, sshd: Sshd, tmp_path: Path) -> None:
    attach(api, sshd)
    check_kept_files("box", tmp_path, 120)
    check_example_output("box", tmp_path, 120)
