from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from jupyter_amltrain.commands import magic_line
from jupyter_amltrain.commands.registry import Context, Result, run
from jupyter_amltrain.errors import AmlTrainError, CommandError

from ..helpers import DEADLINE, api_of

CELL = """import os, model
with open(os.environ["AML_INPUT_DATA"]) as file:
    score = model.scaled(float(file.read()), lr)
print("score", score, os.environ["DEPTH"])
"""
FLAGS = (
    "--gpus 0 --param lr=0.5 --input data=data.txt --env-var DEPTH=3 --name digits --experiment trees --tag team=blue"
)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with api_of(tmp_path_factory.mktemp("save")) as api:
        yield api


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model.py").write_text("def scaled(x, lr):\n    return x * lr\n")
    (tmp_path / "data.txt").write_text("8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def submit(line: str, cell: str | None = None) -> Any:
    """The result of a line, or the run that it submits when it has ended."""
    context = Context(prog="%aml_submit" if cell is None else "%%aml_submit", cell=cell)
    context.submitted = lambda run, submission: Result(value=run.wait(DEADLINE))
    result = run("submit", magic_line.split(line), context)
    return result.value or result.text


def test_saved_file_submits_the_same_job(api: Any, project: Path) -> None:
    before = len(api.runs())
    text = submit(f"{FLAGS} --save jobs/trees.yml", CELL)
    assert len(api.runs()) == before and "trees.yml" in text
    code = project / "jobs" / "trees-code"
    assert sorted(path.name for path in code.iterdir()) == ["model.py", "script.py"]
    doc = yaml.safe_load((project / "jobs" / "trees.yml").read_text())
    assert doc["code"] == "./trees-code" and doc["tags"] == {"team": "blue"}
    direct, saved = submit(FLAGS, CELL), submit("jobs/trees.yml")
    assert direct.logs().strip() == saved.logs().strip() == "score 4.0 3"
    assert (saved.name, saved.spec.experiment, saved.tags) == (direct.name, direct.spec.experiment, direct.tags)


def test_saved_folder_can_be_moved(api: Any, project: Path, tmp_path: Path) -> None:
    submit(f"{FLAGS} --save job.yml", CELL)
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("job.yml", "job-code", "data.txt"):
        (project / name).rename(moved / name)
    assert submit("moved/job.yml").logs().strip() == "score 4.0 3"


def test_saved_source_folder_is_named_not_copied(api: Any, project: Path) -> None:
    (project / "train.py").write_text("print('trained')\n")
    submit("train.py --source . --gpus 0 --save job.yml")
    assert not (project / "job-code").exists()
    assert submit("job.yml").logs().strip() == "trained"


def test_save_twice_changes_nothing_and_other_content_stays(api: Any, project: Path) -> None:
    submit(f"{FLAGS} --save job.yml", CELL)
    before = (project / "job.yml").read_bytes()
    submit(f"{FLAGS} --save job.yml", CELL)
    assert (project / "job.yml").read_bytes() == before
    with pytest.raises(CommandError) as caught:
        submit(f"{FLAGS} --save job.yml", CELL + "print(2)\n")
    assert caught.value.code == "files.exists" and (project / "job.yml").read_bytes() == before
    assert "print(2)" not in (project / "job-code" / "script.py").read_text()


def test_save_with_wrong_suffix_writes_nothing(api: Any, project: Path) -> None:
    before = sorted(project.iterdir())
    with pytest.raises(CommandError) as caught:
        submit("--save job.txt", "print(1)")
    assert sorted(project.iterdir()) == before and caught.value.code == "save.suffix"


def test_save_of_job_file_is_refused(api: Any, project: Path) -> None:
    (project / "job.yml").write_text("command: echo hi\n")
    with pytest.raises(CommandError) as caught:
        submit("job.yml --save other.yml")
    assert caught.value.code == "save.job_file"


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("command: echo\ntags: {a: b}\ncomand: x\n", "line 3", "comand"),
        ("command: echo\nlimits:\n  timeout: 3\n  timout: 3\n", "line 4", "timout"),
        ("command: echo\nresources: {instances: 2}\n", "line 2", "instances"),
    ],
)
def test_unknown_key_of_job_file_is_refused_with_its_line(
    api: Any, project: Path, text: str, line: str, key: str
) -> None:
    (project / "job.yml").write_text(text)
    with pytest.raises(AmlTrainError) as caught:
        submit("job.yml")
    assert line in str(caught.value) and key in str(caught.value) and "\n" not in str(caught.value)


def test_runconfig_is_answered_with_a_line_to_type(api: Any, project: Path) -> None:
    (project / "old.runconfig").write_text(
        "script: train_it.py\ntarget: cpu-cluster\nnodeCount: 2\nframework: Python\n"
    )
    with pytest.raises(CommandError) as caught:
        submit("old.runconfig")
    for word in ("train_it.py", "--target cpu-cluster", "--nodes 2", "--save job.yml"):
        assert word in caught.value.hint


def test_reference_to_input_in_a_parameter_is_its_path(api: Any, project: Path) -> None:
    line = "--gpus 0 --input data=data.txt --param data_dir='${{inputs.data}}'"
    assert submit(line, "print(data_dir)").logs().strip() == str(project / "data.txt")


def test_saved_project_keeps_its_places(api: Any, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jupyter_amltrain.commands.saved_job import save
    from jupyter_amltrain.commands.submit import parse_submit, send

    for name in ("setup.py", "nb/x", "src/lib/__init__.py", "a/data.csv"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("7" if name.endswith("csv") else "")
    text = "import os, sys\nhere = os.path.dirname(__file__)\nsys.path.append(here + '/../src')\nimport lib\n"
    text += "print(open(here + '/data.csv').read(), os.path.basename(os.getcwd()))\n"
    (project / "a" / "train.py").write_text(text)
    monkeypatch.chdir(project / "nb")
    submission = parse_submit(["../a/train.py", "--gpus", "0"])
    save(submission.spec, submission.target_name, "job.yml")
    assert send(parse_submit(["job.yml"])).wait(60).logs().strip() == "7 nb"
