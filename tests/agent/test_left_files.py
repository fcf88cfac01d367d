"""Files that a job has left in its working folder."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from jupyter_amltrain.agent.protocol import LEFT_LINK
from jupyter_amltrain.agent.supervise.left_files import left_now, list_left, note_left

LONG_AGO = 1_000_000_000


def make(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(cwd: Path, since: float) -> list[str]:
    return [row["path"] for row in list_left(str(cwd), since)]


def test_files_made_or_changed_since_start_are_listed(tmp_path: Path) -> None:
    for name in ("old.csv", "data/old.csv", "changed.csv"):
        make(tmp_path / name)
    time.sleep(0.3)  # times of files are coarse
    since = time.time()
    make(tmp_path / "model.pt", "model")
    make(tmp_path / "runs/1/out.txt")
    (tmp_path / "changed.csv").write_text("more")
    shutil.copy2(tmp_path / "old.csv", tmp_path / "copy.csv")  # with the time of the original
    assert names(tmp_path, since) == ["changed.csv", "copy.csv", "model.pt", "runs/1/out.txt"]
    (row,) = [row for row in list_left(str(tmp_path), since) if row["path"] == "model.pt"]
    assert row["size"] == 5 and abs(row["modified"] - time.time()) < 60


def test_files_that_nobody_has_written_for_the_user_are_not_listed(tmp_path: Path) -> None:
    for name in (
        *(".git/index", ".hidden", "a.ipynb", ".ipynb_checkpoints/a.ipynb", "__pycache__/a.pyc", "b.pyc"),
        *("outputs/kept.json", "logs/kept.txt", "node_modules/a.js", "mlruns/0/meta.yaml"),
    ):
        make(tmp_path / name)
    os.symlink("/etc/passwd", tmp_path / "link.txt")
    os.symlink("/etc", tmp_path / "folder")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / b"bad\xff.csv".decode("utf-8", "surrogateescape")).write_text("x")
    assert names(tmp_path, LONG_AGO) == []


def test_search_of_many_files_is_bounded_and_begins_near_the_working_folder(tmp_path: Path) -> None:
    folder = tmp_path / "deep"
    folder.mkdir()
    for number in range(1200):
        (folder / f"{number:04}").touch()
    make(tmp_path / "a.csv")
    found = names(tmp_path, LONG_AGO)
    assert len(found) == 1000 and "a.csv" in found
    assert list_left(str(tmp_path / "absent"), LONG_AGO) == []


def test_folders_of_the_agent_in_the_working_folder_are_left_out(tmp_path: Path) -> None:
    run = tmp_path / "home" / "runs" / "a"
    for path in (run / "log" / "rank-0.txt", tmp_path / "queue" / "slots" / "1", tmp_path / "a.csv"):
        make(path)
    note_left(str(run), str(tmp_path), LONG_AGO, str(tmp_path / "queue"))
    assert [row["path"] for row in left_now(str(run))] == ["a.csv"]


@pytest.mark.parametrize("inside", [True, False])
def test_noted_files_are_read_by_the_link_as_they_are_now(tmp_path: Path, inside: bool) -> None:
    run = tmp_path / "run"
    cwd = run / "source" if inside else tmp_path / "project"
    for name in ("a.csv", "gone.csv"):
        make(cwd / name)
    run.mkdir(exist_ok=True)
    note_left(str(run), str(cwd), LONG_AGO)
    (cwd / "gone.csv").unlink()
    (cwd / "a.csv").write_text("longer")
    assert [(row["path"], row["size"]) for row in left_now(str(run))] == [("a.csv", 6)]
    assert (run / LEFT_LINK / "a.csv").read_text() == "longer"
    assert os.path.isabs(os.readlink(run / LEFT_LINK)) != inside


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"files": 3}', '{"files": [1, {}, {"path": 7}]}',
        '{"files": [{"path": "../secret"}, {"path": "/etc/passwd"}, {"path": "a/../../secret"}]}',
    ],
)  # fmt: skip
def test_list_that_a_job_has_damaged_leads_nowhere(tmp_path: Path, text: str) -> None:
    make(tmp_path / "secret")
    run = tmp_path / "run"
    (run / LEFT_LINK).mkdir(parents=True)
    (run / "left.json").write_text(text)
    assert left_now(str(run)) == []


def test_run_that_leaves_nothing_has_no_list(tmp_path: Path) -> None:
    run, cwd = tmp_path / "run", tmp_path / "cwd"
    for folder in (run, cwd):
        folder.mkdir()
    note_left(str(run), str(cwd), LONG_AGO)
    note_left(str(run), str(cwd), None)
    assert os.listdir(run) == [] and left_now(str(run)) == []
