"""Scripts with their projects on the real local target, beside ``python``."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.commands.submit import parse_submit, send
from jupyter_amltrain.errors import AmlTrainError

from .contracts.script_projects import (
    PROJECTS,
    Project,
    check_project,
    check_searched_switch,
    check_sweeps,
    shown,
    write,
)


@pytest.mark.thorough
@pytest.mark.parametrize("name", PROJECTS)
def test_project_runs_as_with_python(api: Any, tmp_path: Path, name: str) -> None:
    project = PROJECTS[name]
    if any(importlib.util.find_spec(module) is None for module in project.needs):
        pytest.skip(f"{project.needs[0]} is not installed")
    check_project(project, tmp_path, "local", 60)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a script that shows where it is and what a neighbor has."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "code" / "train.py"
    path.parent.mkdir()
    text = "import helper, os\nhere = os.path.dirname(__file__)\n"
    path.write_text(text + "print('<<<', __file__, helper.A, open(os.path.join(here, 'd.txt')).read(), '>>>')\n")
    (path.parent / "helper.py").write_text("A = 1\n")
    (path.parent / "d.txt").write_text("data")
    return path


def test_script_runs_where_it_is(api: Any, script: Path) -> None:
    run = api.submit(Path("code/train.py")).wait(60)
    assert shown(run.logs()) == [f" {script} 1 data "]


def test_script_finds_modules_that_the_kernel_finds(api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"setup.py": "", "lib/__init__.py": "A = 5\n", "run/train.py": "import lib\nprint('<<<', lib.A, '>>>')\n"}
    monkeypatch.chdir(write(Project(files, "", folder="run"), tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert shown(send(parse_submit(["train.py", "--gpus", "0"])).wait(60).logs()) == [" 5 "]


def test_edit_before_the_start_changes_nothing(api: Any, script: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    wait = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.05)"
    first = [api.submit(wait, gpus=0) for _ in range(os.cpu_count() or 1)]
    run = api.submit(Path("code/train.py"))
    run.accepted()
    (script.parent / "helper.py").write_text("A = 2\n")
    gate.touch()
    log = run.wait(120).logs()
    ((path, value, data),) = [one.split() for one in shown(log)]
    # What was submitted ran: in place if it started before the edit, else from the copy, which finds the data.
    assert (value, data) == ("1", "data") and os.path.basename(path) == "train.py"
    for one in first:
        one.wait(60)


def test_again_runs_what_ran(api: Any, script: Path) -> None:
    from jupyter_amltrain.commands.resubmit import resubmit

    run = api.submit(Path("code/train.py")).wait(60)
    (script.parent / "helper.py").write_text("A = 2\n")
    spec, _ = resubmit(run.run, run.reader)
    again = api.submit_spec(spec).wait(60)
    assert [one.split()[1:] for one in shown(again.logs())] == [["1", "data"]]
    assert any("helper.py" in note for note in again.run.status.notes)
    (script.parent / "helper.py").write_text("A = 1\n")
    spec, _ = resubmit(run.run, run.reader)
    assert shown(api.submit_spec(spec).wait(60).logs()) == [f" {script} 1 data "]


def test_complaint_of_a_parser_stands_in_the_headline(
    api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(PROJECTS["argparse"], tmp_path)
    run = send(parse_submit(["train.py", "--gpus", "0", "--", "--typo"]))
    with pytest.raises(AmlTrainError, match="unrecognized arguments: --typo"):
        run.wait(60)


def test_unknown_parameter_is_found_before_the_run(api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(PROJECTS["argparse"], tmp_path)
    with pytest.raises(AmlTrainError) as caught:
        parse_submit(["train.py", "--param", "learning_rat=1"])
    assert caught.value.code == "submit.unknown_param" and "learning_rate" in caught.value.hint


def test_module_that_does_not_exist_is_refused(api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AmlTrainError) as caught:
        parse_submit(["-m", "absent.module"])
    assert caught.value.code == "submit.no_module"


def notebook(path: Path, *sources: str) -> None:
    """Write a notebook whose first cell has default values of parameters."""
    from nbformat import write
    from nbformat.v4 import new_code_cell, new_notebook

    cells = [new_code_cell(source) for source in sources]
    cells[0].metadata["tags"] = ["parameters"]
    write(new_notebook(cells=cells), str(path))


def executed(run: Any, name: str) -> Any:
    """Return the executed notebook among the files of a run."""
    from nbformat import read

    return read(os.path.join(run.run.folder, "outputs", name), 4)


def test_notebook_runs_as_one_job(api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nb").mkdir()
    (tmp_path / "nb" / "helper.py").write_text("A = 1\n")
    cells = ("lr = 0.1", "import helper\n!echo shell\nprint('<<<', lr, helper.A, '>>>')", "[lr] * 2")
    notebook(tmp_path / "nb" / "train.ipynb", *cells)
    run = send(parse_submit(["nb/train.ipynb", "--gpus", "0", "--param", "lr=0.5"])).wait(120)
    log = run.logs()
    assert shown(log) == [" 0.5 1 "] and "shell" in log and "[0.5, 0.5]" in log
    made = executed(run, "train.ipynb")
    assert [cell.execution_count for cell in made.cells] == [1, 2, 3, 4]
    assert made.cells[1].metadata.tags == ["injected-parameters"]
    assert made.cells[-1].outputs[0].data["text/plain"] == "[0.5, 0.5]"


@pytest.mark.thorough
def test_notebook_with_an_error_fails_and_is_kept(api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notebook(tmp_path / "train.ipynb", "x = 1", "x / 0", "x")
    run = send(parse_submit(["train.ipynb", "--gpus", "0"]))
    with pytest.raises(AmlTrainError, match="ZeroDivisionError"):
        run.wait(120)
    counts = [cell.execution_count for cell in executed(run, "train.ipynb").cells]
    assert counts == [1, 2, None]


@pytest.mark.parametrize("text", ["{}", '{"cells": []}', "no JSON"])
def test_damaged_notebook_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.ipynb").write_text(text)
    with pytest.raises(AmlTrainError):
        parse_submit([str(tmp_path / "a.ipynb")])
    notebook(tmp_path / "b.ipynb", "1")
    with pytest.raises(AmlTrainError) as caught:
        parse_submit([str(tmp_path / "b.ipynb"), "--", "--flag"])
    assert caught.value.code == "submit.notebook_arguments"


def test_ignored_data_of_source_is_named(api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"data/a.bin": "0" * 200_000, ".gitignore": "data/\n", "train.py": "print(1)\n"}
    monkeypatch.chdir(write(Project(files, ""), tmp_path / "project"))  # the queue beside it changes meanwhile
    run = send(parse_submit(["train.py", "--source", ".", "--gpus", "0"])).wait(60)
    assert any("data/" in note for note in run.record().notes)


def test_run_that_misses_ignored_data_says_so(api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {".gitignore": "*.csv\n", "data/a.csv": "1", "train.py": "open('data/a.csv')"}
    project = write(Project(files, ""), tmp_path / "project")
    monkeypatch.chdir(project)
    run = send(parse_submit(["train.py", "--source", ".", "--gpus", "0"]))
    with pytest.raises(AmlTrainError) as caught:
        run.wait(60)
    remedy = f"--input data={project}/data/a.csv,upload"
    assert ".gitignore" in str(caught.value) and remedy in str(caught.value)
    (project / "train.py").write_text("import os\nprint('<<<', open(os.environ['AML_INPUT_DATA']).read(), '>>>')")
    again = send(parse_submit(["train.py", "--source", ".", "--gpus", "0", *remedy.split()]))
    assert shown(again.wait(60).logs()) == [" 1 "]


@pytest.mark.thorough
def test_sweeps_over_projects_have_values_of_python(api: Any, tmp_path: Path) -> None:
    check_sweeps(tmp_path, "local", 180)
    check_searched_switch(tmp_path, "local", 180)
