from __future__ import annotations

from pathlib import Path

import pytest

from ..contracts.kept_files import check_example_output, check_kept_files
from ..contracts.notebook_values import check_cell_as_it_stands, check_kept_values, check_round_trip
from .conftest import Azure
from .connected_api import lab


@pytest.mark.thorough
def test_every_value_comes_back(azure: Azure, tmp_path: Path) -> None:
    with lab(azure, tmp_path):
        check_round_trip("cpu", 240)


@pytest.mark.thorough
def test_files_of_a_job_are_kept_listed_and_read(azure: Azure, tmp_path: Path) -> None:
    with lab(azure, tmp_path):
        check_kept_files("cpu", tmp_path, 240, keeps_working_folder=False)
        check_example_output("cpu", tmp_path, 240)


@pytest.mark.thorough
def test_cell_is_submitted_as_it_stands(azure: Azure, tmp_path: Path) -> None:
    with lab(azure, tmp_path):
        check_cell_as_it_stands("cpu", 240)


@pytest.mark.thorough
def test_values_are_kept_without_being_named(azure: Azure, tmp_path: Path) -> None:
    with lab(azure, tmp_path):
        check_kept_values("cpu", 240)
