"""The monitor, dashboards and exports as one types them; what a page shows is tested in ``tests/kernel`` and ``ui``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jupyter_amltrain.errors import AmlTrainError, CommandError, UnknownTarget

from .conftest import Cell

Fails = Callable[[str], AmlTrainError]


def test_monitor_in_terminal_prints_one_table(cell: Cell, home: Path, capsys: Any) -> None:
    cell("%aml_monitor local --rate 5")
    assert "host: cpu " in capsys.readouterr().out
    cell("%aml_monitor --help")
    assert "usage: %aml_monitor" in capsys.readouterr().out


def test_monitor_line_invalid_is_refused(fails: Fails) -> None:
    error = fails("%aml_monitor locl")
    assert isinstance(error, UnknownTarget) and "Did you mean local?" in str(error)
    error = fails("%aml_monitor --gpus 999")
    assert isinstance(error, CommandError) and "no GPU 999" in str(error)
    for line, text in {
        "%aml_monitor --rat 2": "Did you mean --rate",
        "%aml_monitor --rate 20": "from 0.1 to 10",
        "%aml_monitor local remote": "unexpected argument",
        "%aml_runs dashbord": "Did you mean dashboard",
        "%aml_runs export last": "required: file",
        "%aml_runs export last run.cvs": "example run.csv",
    }.items():
        assert text in str(fails(line)), line


@pytest.mark.thorough
def test_monitors_of_the_notebook_are_stopped(cell: Cell, capsys: Any) -> None:
    from jupyter_amltrain import api

    for line in ("%aml_monitor --stop", "%aml_monitor stop", "%aml_monitor local --stop"):
        view = api.monitor(rate=5)
        view.snapshot()
        cell(line)
        assert view.handle in capsys.readouterr().out
        assert api.stop_monitors() == []
    cell("%aml_monitor stop")
    assert "No monitor" in capsys.readouterr().out


@pytest.fixture
def ended(ip: InteractiveShell, cell: Cell) -> str:
    cell("%%aml_submit --wait --name digits --as run\nimport time; time.sleep(0.5)")
    return str(ip.user_ns["run"].handle)


@pytest.mark.thorough
def test_export_writes_telemetry_file(cell: Cell, fails: Fails, ended: str, capsys: Any) -> None:
    capsys.readouterr()
    cell("%aml_runs export last run.csv")
    assert f"telemetry of {ended} to " in capsys.readouterr().out
    head, *rows = Path("run.csv").read_text().splitlines()
    assert "seq" in head.split(",") and rows
    cell("%aml_runs export digits run.parquet\n%aml_runs export digits run.png")
    assert Path("run.parquet").read_bytes()[:4] == b"PAR1" and Path("run.png").read_bytes()[1:4] == b"PNG"
    assert "does not exist" in str(fails("%aml_runs export last nowhere/run.csv"))


def test_require_gpu_flags_reach_job(ip: InteractiveShell, cell: Cell, fails: Fails) -> None:
    cell("%%aml_submit --require-gpu warn --gpu-grace 2m --gpus 0 --wait --as run\npass")
    spec = ip.user_ns["run"].spec
    assert (spec.require_gpu, spec.gpu_grace) == ("warn", 120.0)
    assert "stop" in str(fails("%%aml_submit --require-gpu maybe\npass"))
    assert "no GPU to use" in str(fails("%%aml_submit --require-gpu stop --gpus 0\npass"))
