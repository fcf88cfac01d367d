from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_amltrain.agent.protocol import AgentError
from jupyter_amltrain.agent.supervise import code_place


@pytest.fixture
def task(tmp_path: Path) -> Any:
    """A job whose script, in a folder of a project, is as it was submitted."""
    root, copy = tmp_path / "project", tmp_path / "run" / "source"
    for folder in (root, copy):
        (folder / "a").mkdir(parents=True)
        (folder / "a" / "train.py").write_text("x = 1\n")
        (folder / "a" / "helper.py").write_text("A = 1\n")
    (root / "a" / "data.csv").write_text("1")
    (root / ".env").write_text("A=1")
    job = {
        "argv": ["python", "-u", str(root / "a" / "train.py"), str(root / "a" / "data.csv")],
        "code": {"root": str(root), "search": ["."], "made": ["made.json"]},
        "snapshot": {"names": ["a/train.py", "a/helper.py", "made.json"]},
        "spec": {"script_name": "a/train.py"},
    }
    return SimpleNamespace(folder=str(tmp_path / "run"), job=job)


def test_unchanged_script_runs_where_it_is(task: Any, tmp_path: Path) -> None:
    assert code_place.place_of(task) == (task.job["argv"], [str(tmp_path / "project")], "")


@pytest.mark.parametrize("change", ["edit", "delete"])
def test_changed_module_leads_to_the_copy_with_its_neighbors(task: Any, tmp_path: Path, change: str) -> None:
    helper = tmp_path / "project" / "a" / "helper.py"
    helper.write_text("A = 2\n") if change == "edit" else helper.unlink()
    place = code_place.place_of(task)
    copy = tmp_path / "run" / "source"
    assert place.argv[2:] == [str(copy / "a" / "train.py"), task.job["argv"][3]]  # arguments stay
    assert place.search == [str(copy)] and "a/helper.py" in place.note
    assert (copy / "a" / "data.csv").read_text() == "1" and (copy / ".env").is_symlink()
    assert (copy / "a" / "helper.py").read_text() == "A = 1\n" and not (copy / "a" / "helper.py").is_symlink()


def test_job_without_a_root_gets_its_folders_of_modules(task: Any, tmp_path: Path) -> None:
    task.job["code"] = {"root": "", "search": ["nb", "/other"]}
    assert code_place.place_of(task).search == [str(tmp_path / "run" / "source" / "nb"), "/other"]
    env = {"PYTHONPATH": "/mine"}
    code_place.add_search(env, ["/a", "/b"])
    assert env["PYTHONPATH"].split(os.pathsep) == ["/a", "/b", "/mine"]


def test_working_folder_is_made_inside_the_code_alone(tmp_path: Path) -> None:
    code_place.make_working_folder(str(tmp_path / "source" / "a" / "b"), str(tmp_path / "source"))
    assert (tmp_path / "source" / "a" / "b").is_dir()
    code_place.make_working_folder(str(tmp_path / "other"), str(tmp_path / "source"))
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    "code", [{"root": "relative"}, {"root": 3}, {"search": "x"}, {"search": ["a:b"]}, {"made": [1]}, {"root": "/a\0"}]
)
def test_invalid_place_is_refused(code: dict[str, Any]) -> None:
    with pytest.raises(AgentError):
        code_place.check(code)
