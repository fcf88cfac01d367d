from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tools.openssh import Sshd

from ..contracts.failed_values import CELL, check_failed_values
from ..contracts.kept_files import check_example_output, check_kept_files
from ..contracts.notebook_values import check_cell_as_it_stands, check_kept_values, check_round_trip
from .test_ssh_runs import attach


@pytest.mark.thorough
def test_every_value_comes_back(api: Any, sshd: Sshd) -> None:
    attach(api, sshd)
    check_round_trip("box", 180)


@pytest.mark.thorough
def test_cell_is_submitted_as_it_stands(api: Any, sshd: Sshd) -> None:
    attach(api, sshd)
    check_cell_as_it_stands("box", 120)


@pytest.mark.thorough
def test_values_are_kept_without_being_named(api: Any, sshd: Sshd) -> None:
    attach(api, sshd)
    check_kept_values("box", 120)


@pytest.mark.thorough
def test_note_on_a_path_stays_with_the_run(api: Any, sshd: Sshd) -> None:
    attach(api, sshd)
    with open("table.csv", "wb") as file:
        file.truncate(20 << 20)  # too large to travel by itself
    run = api.submit("try:\n    open('table.csv')\nexcept OSError: pass", target="box", gpus=0).wait(60)
    assert any("table.csv" in note for note in run.record().notes)


@pytest.mark.thorough
def test_outputs_and_logs_are_kept(api: Any, sshd: Sshd, tmp_path: Path) -> None:
    attach(api, sshd)
    check_kept_files("box", tmp_path, 120)
    check_example_output("box", tmp_path, 120)


@pytest.mark.thorough
def test_value_that_returns_as_pickle_is_noted_before_the_run(api: Any, sshd: Sshd) -> None:
    attach(api, sshd)
    cell = "class Net:\n    pass\nnet, count = Net(), 1\nnet = Net()"
    run = api.submit(cell, target="box", gpus=0, out=["net", "count"])
    assert any("--out net" in note for note in run.run.spec.notes)
    assert run.wait(60).result("count") == 1
    assert "pickle" in repr(run.result("net", lazy=True))


@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_module_of_pytorch_returns_without_consent(api: Any, sshd: Sshd) -> None:
    attach(api, sshd)
    cell = "import torch\nnet = torch.nn.Sequential(torch.nn.Linear(2, 1))\nnet[0].bias.data.fill_(7)"
    run = api.submit(cell, target="box", gpus=0, out=["net"]).wait(120)
    assert not any("--out net" in note for note in run.run.spec.notes)
    assert run.result("net")[0].bias.item() == 7


def test_failed_run_shows_its_values(api: Any, sshd: Sshd) -> None:
    attach(api, sshd)
    check_failed_values(api.submit(CELL, target="box", gpus=0), 120)


@pytest.mark.thorough
def test_lines_of_a_run_are_in_its_record(api: Any, sshd: Sshd) -> None:
    attach(api, sshd)
    cell = "import time\nfor _ in range(30):\n    time.sleep(0.1)\n"
    run = api.submit(cell, target="box", gpus=0).wait(60)
    found = run.record().lines
    assert found is not None and 3 in {mark.line for mark in found.marks}
