from __future__ import annotations

from pathlib import Path

import pytest

from ..contracts.script_projects import FEW, check_projects, travelling
from .conftest import Azure
from .connected_api import lab


def test_projects_run_as_with_python(azure: Azure, tmp_path: Path) -> None:
    with lab(azure, tmp_path):
        check_projects(FEW, tmp_path, "cpu", 240)


@pytest.mark.thorough
def test_all_projects_run_as_with_python(azure: Azure, tmp_path: Path) -> None:
    with lab(azure, tmp_path):
        check_projects([name for name in travelling() if name not in FEW], tmp_path, "cpu", 240)
