from __future__ import annotations

from pathlib import Path

import pytest

from ..contracts.script_projects import (
    FEW,
    check_missed_data,
    check_projects,
    check_searched_switch,
    check_sweeps,
    travelling,
)
from .conftest import Azure
from .connected_api import lab


@pytest.mark.thorough
def test_projects_run_as_with_python(azure: Azure, tmp_path: Path) -> None:
    with lab(azure, tmp_path):
        check_projects(FEW, tmp_path, "cpu", 240)


@pytest.mark.thorough
def test_all_projects_run_as_with_python(azure: Azure, tmp_path: Path) -> None:
    with lab(azure, tmp_path):
        check_projects([name for name in travelling() if name not in FEW], tmp_path, "cpu", 240)


@pytest.mark.thorough
def test_run_that_misses_data_of_this_computer_says_so(
    azure: Azure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with lab(azure, tmp_path):
        check_missed_data(tmp_path, "cpu", 240)


@pytest.mark.thorough
def test_sweeps_over_projects_have_values_of_python(azure: Azure, tmp_path: Path) -> None:
    with lab(azure, tmp_path):
        check_sweeps(tmp_path, "cpu", 300)
        check_searched_switch(tmp_path, "cpu", 300)
