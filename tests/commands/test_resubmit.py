from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_amltrain.commands.registry import Context, Result, run
from jupyter_amltrain.commands.runs import wait_recorded
from jupyter_amltrain.errors import AmlTrainError, CommandError

from ..helpers import DEADLINE, api_of

SEEDED = """import csv, random, model
random.seed(7)
with open("data.csv") as file:
    rows = [float(row[0]) for row in csv.reader(file)]
score = model.scaled(sum(rows), lr) + random.random()
"""
LOGGED = SEEDED + "import mlflow\nmlflow.log_metric('score', score)\n"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with api_of(tmp_path_factory.mktemp("again")) as api:
        yield api


def again(*words: str) -> Any:
    """The run that ``%aml_runs again`` submits, when it has ended."""
    runs = []

    def submitted(run: Any, submission: Any) -> Result:
        runs.append(run)
        return Result(value=run)

    run("runs", ["again", *words], Context(prog="%aml_runs", submitted=submitted))
    return runs[0].wait(DEADLINE)


def git(folder: Path, *words: str) -> None:
    settings = ("-c", "user.email=a@example.org", "-c", "user.name=a", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *settings, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "first" / "notebooks"
    folder.mkdir(parents=True)
    (folder / "data.csv").write_text("1\n2\n")
    (folder / "model.py").write_text("def scaled(x, lr):\n    return x * lr\n")
    git(folder.parent, "init", "-q")
    git(folder.parent, "add", ".")
    git(folder.parent, "commit", "-qm", "first")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.thorough
def test_again_in_clean_clone_gives_same_metrics(
    api: Any, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = api.submit(LOGGED, params={"lr": 0.5}, gpus=0, out=["score"]).wait(DEADLINE)
    git(tmp_path, "clone", "-q", str(project.parent), "clone")
    # The original changes afterwards: neither its code nor its data may be used.
    (project / "model.py").write_text("def scaled(x, lr):\n    return -1\n")
    (project / "data.csv").write_text("9\n")
    clone = tmp_path / "clone" / "notebooks"
    monkeypatch.chdir(clone)
    second = again(first.handle)
    assert second.result("score") == first.result("score")
    assert second.metrics()["score"][-1][2] == first.metrics()["score"][-1][2]
    assert second.spec.notebook_dir == second.spec.project == str(clone) and second.spec.repeats == first.handle
    assert not any("git" in note for note in second.run.notes)


@pytest.mark.thorough
def test_again_uses_code_of_run_after_a_change_and_names_it(api: Any, project: Path) -> None:
    first = api.submit(SEEDED, params={"lr": 0.5}, gpus=0, out=["score"]).wait(DEADLINE)
    (project / "model.py").write_text("def scaled(x, lr):\n    return -1\n")
    second = again(first.handle, "--param", "lr=0.25")
    assert second.result("score") == pytest.approx(first.result("score") - 0.75)
    assert second.params == {"lr": 0.25} and any("git" in note for note in second.spec.notes)
    third = again(second.handle, "--param", "lr=0.5", "--name", "third")
    assert third.result("score") == first.result("score") and third.name == "third"
    data = run("runs", ["compare", first.handle, second.handle, third.handle], Context(prog="%aml_runs")).data
    rows = {(row["group"], row["name"]): row["values"] for row in data["rows"] if row["differs"]}
    assert rows["git", "uncommitted changes"] == [None, "yes", "yes"] and rows["params", "lr"] == [0.5, 0.25, 0.5]


@pytest.mark.thorough
def test_again_after_folder_was_removed_runs_here(
    api: Any, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = api.submit("import os, model\nwhere = os.getcwd()\n", gpus=0, out=["where"]).wait(DEADLINE)
    assert first.result("where") == str(project)
    assert wait_recorded(first, DEADLINE)  # the record in MLflow would create the folder again
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    project.rename(tmp_path / "gone")
    assert again(first.handle).result("where") == str(tmp_path / "elsewhere")


def test_again_of_file_changes_its_arguments(api: Any, project: Path) -> None:
    (project / "train.py").write_text("import sys, model\nprint(sys.argv[1:])\n")
    first = api.submit("train.py", params={"lr": 1, "depth": 2}, gpus=0).wait(DEADLINE)
    (project / "train.py").unlink()
    assert again(first.handle, "--param", "lr=3").logs().strip() == "['--lr', '3', '--depth', '2']"


def test_again_of_job_file_changes_its_inputs(api: Any, project: Path) -> None:
    (project / "job.yml").write_text("command: echo rate ${{inputs.rate}}\ninputs: {rate: 1}\n")
    from jupyter_amltrain.commands.submit import parse_submit, send

    first = send(parse_submit(["job.yml"])).wait(DEADLINE)
    second = again(first.handle, "--param", "rate=5")
    assert (first.logs().strip(), second.logs().strip()) == ("rate 1", "rate 5")


def test_files_that_a_run_wrote_into_its_code_are_not_repeated(api: Any, project: Path) -> None:
    code = "import os, model\nopen('written.txt', 'w').close()\nprint(sorted(os.listdir('.')))\n"
    (project / "train.py").write_text(code)
    first = api.submit("train.py", source=".", gpus=0).wait(DEADLINE)
    (project / "model.py").write_text("\n")
    assert again(first.handle).logs().replace(", '__pycache__'", "") == first.logs().replace(", '__pycache__'", "")


def test_changed_package_is_named_by_note_and_compare(api: Any, tmp_path: Path) -> None:
    place = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    (site,) = place.glob("lib/python*/site-packages")
    (site / "widget-1.0.dist-info").mkdir()
    spec = api.submit("pass", gpus=0).wait(DEADLINE).spec
    python = str(place / "bin" / "python")
    first = api.submit_spec(msgspec.structs.replace(spec, python=python)).wait(DEADLINE)
    (site / "widget-1.0.dist-info").rename(site / "widget-2.0.dist-info")
    (site / "gadget-3.0.dist-info").mkdir()
    second = again(first.handle)
    (note,) = second.spec.notes
    assert "widget" in note and "gadget" in note
    result = run("runs", ["compare", first.handle, second.handle], Context(prog="%aml_runs"))
    rows = {(row["group"], row["name"]): row["values"] for row in result.data["rows"]}
    assert rows["packages", "widget"] == ["1.0", "2.0"] and rows["packages", "gadget"] == [None, "3.0"]
    assert "widget" in result.text and ("python", "version") in rows and ("hardware", "cpus") in rows


@pytest.mark.parametrize("words", [["--param", "2x=1"], ["--param", "lr=1"], ["--target", "nowhere"]])
def test_again_with_wrong_flag_submits_nothing(api: Any, words: list[str]) -> None:
    first = api.submit("lr = compute = 1 + 1\n", gpus=0).wait(DEADLINE)
    before = len(api.runs())
    with pytest.raises(AmlTrainError) as caught:
        again(first.handle, *words)
    assert "\n" not in str(caught.value) and len(api.runs()) == before


def test_again_of_run_without_code_is_refused(api: Any, project: Path) -> None:
    (project / "train.py").write_text("import model\n")
    first = api.submit("train.py", gpus=0).wait(DEADLINE)
    (project / "model.py").write_text("x = 1\n")
    for file in (Path(first.run.folder) / "source").iterdir():
        if file.is_file():
            file.unlink()
    with pytest.raises(CommandError) as caught:
        again(first.handle)
    assert caught.value.code == "resubmit.changed"
