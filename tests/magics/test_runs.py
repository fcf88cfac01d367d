from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jupyter_amltrain.errors import AmlTrainError, CommandError, RunCanceled, RunError, RunFailed, UnknownRun
from jupyter_amltrain.kernel.session import controller

from .conftest import Cell

Fails = Callable[[str], AmlTrainError]


@pytest.fixture
def ended(ip: InteractiveShell, cell: Cell) -> str:
    cell("%%aml_submit --wait --name digits --param lr=0.1 --as run\nfor i in range(5): print('line', i)")
    return str(ip.user_ns["run"].handle)


@pytest.mark.thorough
def test_runs_list_follows_run_lifecycle(ip: InteractiveShell, cell: Cell, ended: str, capsys: Any) -> None:
    capsys.readouterr()
    cell("%aml_runs")
    head, row = capsys.readouterr().out.splitlines()
    assert head.startswith("run ") and ended in row and "completed" in row and "lr" in head and "0.1" in row
    cell("%aml_runs show")
    shown = capsys.readouterr().out
    assert ended in shown and "line 4" in shown and "folder" in shown
    cell("%aml_runs logs --tail 2")
    assert capsys.readouterr().out == "line 3\nline 4\n"
    cell("%aml_runs logs last --follow")
    assert capsys.readouterr().out == "".join(f"line {i}\n" for i in range(5))
    cell("%config AMLTrain.log_lines = 1")
    cell("%aml_runs logs")
    assert capsys.readouterr().out == "line 4\n"
    assert cell("again = %aml_runs attach digits").result is None
    assert ip.user_ns["again"].handle == ended
    assert cell("%aml_runs last").result.handle == ended
    assert cell(f"%aml_runs wait {ended}").result.handle == ended
    cell(f"%aml_runs cancel {ended}")
    assert "has already ended (completed)" in capsys.readouterr().out


def test_runs_delete_without_force_names_loss(cell: Cell, fails: Fails, ended: str, capsys: Any) -> None:
    error = fails(f"%aml_runs delete {ended}")
    assert "permanently deletes" in str(error) and f"%aml_runs delete --force {ended}" in str(error)
    cell(f"%aml_runs delete -f {ended}")
    cell("%aml_runs")
    assert "No runs yet" in capsys.readouterr().out


def test_runs_delete_of_live_run_is_refused(ip: InteractiveShell, cell: Cell, fails: Fails, capsys: Any) -> None:
    cell("%%aml_submit --as run\nimport time\ntime.sleep(600)")
    handle = ip.user_ns["run"].handle
    error = fails(f"%aml_runs delete -f {handle}")
    assert isinstance(error, CommandError) and f"%aml_runs cancel {handle}" in str(error)
    error = fails("%aml_runs wait last --timeout 0.2")
    assert f"{handle} is still running after 0.2 s" in str(error)
    cell("%aml_runs cancel last")
    assert f"{handle}: cancel requested." in capsys.readouterr().out
    assert isinstance(fails("%aml_runs wait"), RunCanceled)


@pytest.mark.thorough
def test_runs_wait_of_several_waits_for_all(ip: InteractiveShell, cell: Cell, fails: Fails, ended: str) -> None:
    for name, code in (("bad", "raise ValueError('no')"), ("slow", "import time\ntime.sleep(1)")):
        cell(f"%%aml_submit --as {name} --name {name}\n{code}")
    bad, slow = (ip.user_ns[name].handle for name in ("bad", "slow"))
    assert [run.handle for run in cell(f"%aml_runs wait {slow} {ended}").result] == [slow, ended]
    assert isinstance(fails(f"%aml_runs wait {bad} {ended}"), RunFailed)
    cell("%%aml_submit --as worse --name worse\nraise SystemExit(3)")
    worse = ip.user_ns["worse"].handle
    error = fails(f"%aml_runs wait {bad} {worse} {ended}")
    assert isinstance(error, RunError) and error.code == "run.several"
    assert bad in str(error) and worse in str(error) and ended not in str(error)
    assert isinstance(fails(f"%aml_runs wait {ended} nobody"), UnknownRun)


@pytest.mark.thorough
def test_runs_logs_of_long_log_is_cut_in_middle(ip: InteractiveShell, cell: Cell, capsys: Any) -> None:
    cell("%%aml_submit --wait --as run\nfor i in range(40_000): print('line', i)")
    capsys.readouterr()
    cell("%aml_runs logs")
    out = capsys.readouterr().out
    assert len(out) < 250_000 and out.startswith("line 0\n") and out.endswith("line 39999\n")
    assert f"the whole log: {ip.user_ns['run'].log_path}" in out


def test_runs_download_copies_files_here(cell: Cell, fails: Fails, capsys: Any) -> None:
    cell(
        "%%aml_submit --wait --name written\nimport os\n"
        "with open(os.environ['AML_OUTPUT_DIR'] + '/a.txt', 'w') as file:\n    file.write('a')"
    )
    cell("%aml_runs download last outputs/a.txt")
    assert Path("a.txt").read_text() == "a" and "a.txt" in capsys.readouterr().out
    cell("%aml_runs download written --to all")
    assert Path("all/outputs/a.txt").exists() and Path("all/log/rank-0.txt").exists()
    assert fails("%aml_runs download last outputs/b.txt").code == "files.path"


BAD_LINES: list[tuple[str, type[AmlTrainError], str]] = [
    ("%aml_runs show digitz", UnknownRun, "Did you mean local/digits-"),
    ("%aml_runs attach elsewhere/x", AmlTrainError, "elsewhere"),
    ("%aml_runs lst", CommandError, "Did you mean list"),
    ("%aml_runs list --target locl", CommandError, "Did you mean local"),
    ("%aml_runs logs --tail x", CommandError, "whole number"),
    ("%aml_compute show locl", CommandError, "Did you mean local"),
    ("%aml_compute use locl", CommandError, "Did you mean local"),
]


def test_runs_line_invalid_is_refused(fails: Fails, ended: str) -> None:
    for line, kind, text in BAD_LINES:
        error = fails(line)
        assert isinstance(error, kind) and text in str(error), line


def test_runs_without_runs_shows_hint(cell: Cell, fails: Fails, capsys: Any) -> None:
    cell("%aml_runs")
    assert "Start a cell with %%aml_submit" in capsys.readouterr().out
    assert isinstance(fails("%aml_runs logs"), UnknownRun)


def test_compute_create_without_yes_prints_question(cell: Cell, capsys: Any) -> None:
    cell("%aml_compute create big --kind fake --size gpu-v100")
    assert "3.06 USD" in (output := capsys.readouterr().out) and "--yes" in output
    cell("%aml_compute list")
    assert "big" not in capsys.readouterr().out


def test_compute_magic_lists_tests_and_shows_targets(cell: Cell, capsys: Any) -> None:
    cell("%aml_compute test local")  # waits for the answer, as the list does for a moment only
    assert capsys.readouterr().out.startswith("local: ready")
    cell("%aml_compute")
    head, row = capsys.readouterr().out.splitlines()
    assert "CPUs" in head and row.startswith("*") and "local" in row and "GiB" in row
    cell("%aml_compute show")
    shown = capsys.readouterr().out
    assert "cpu slots" in shown and "Will a run keep going?" in shown and "If the kernel stops:" in shown
    cell("%aml_compute use local")
    assert "go to local" in capsys.readouterr().out
    cell("%aml_compute use local --default")
    assert "no target" in capsys.readouterr().out


@pytest.mark.parametrize("path", ["/base/amltrain/mlflow/1/", ""])
def test_runs_ui_link_uses_server_path(
    ip: InteractiveShell, cell: Cell, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    url = "http://localhost:8888/base/amltrain/mlflow/1/"

    async def open_ui(project: str) -> dict[str, Any]:
        return {"url": url, "path": path, "pid": 1, "reused": False}

    monkeypatch.setattr(controller(), "open_ui", open_ui)
    shown: list[dict[str, str]] = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    cell("%aml_runs ui")
    (output,) = shown
    assert f'href="{path or url}"' in output["text/html"]
    assert url in output["text/plain"]
