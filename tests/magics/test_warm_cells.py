"""A cell that takes values of its notebook, in an interpreter that has waited."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

from tests.waiting_python import ready, start_of

from .conftest import Cell

NOTEBOOK = """import numpy as np
X = np.ones((3, 3))
def mean(data, axis=0):
    return np.mean(data, axis)"""


@pytest.mark.thorough
def test_cell_that_takes_values_starts_warm(ip: InteractiveShell, cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMLTRAIN_WARM", "600")
    home = Path(os.environ["AMLTRAIN_HOME"])
    cell(NOTEBOOK)
    starts = []
    for number in range(2):
        cell(f"%%aml_submit --as run --wait\nimport re\n\nprint('mean', mean(X).sum(), re.sub('a', 'b', 'a{number}'))")
        run = ip.user_ns["run"]
        assert f"mean 3.0 b{number}" in run.logs()
        starts.append(start_of(run.run.folder))
        ready(home)
    assert starts == ["", "warm"]
