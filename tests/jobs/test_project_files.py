from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from jupyter_amltrain.jobs import project_files as under_test
from jupyter_amltrain.jobs.project_files import project_files
from jupyter_amltrain.schema.job import JobSpec


def write(root: Path, *names: str, size: int = 1) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x" * size)


def script(root: Path, text: str = "x = 1", name: str = "train.py") -> JobSpec:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)
    return JobSpec(name="t", script_name=name, root=str(root), notebook_dir=str(root))


def test_small_project_travels_whole_without_what_is_no_code(tmp_path: Path) -> None:
    write(tmp_path, "conf/a.yaml", "data/x.csv", "models/m.py", "README")
    write(tmp_path, ".env", "my.key", "DB_Password.txt", "wandb/run", "build/lib.py", ".git/HEAD", "a.pyc", "n.ipynb")
    (tmp_path / ".gitignore").write_text("big/\n")
    write(tmp_path, "big/x.bin", "big/y.bin")
    sent = project_files(script(tmp_path))
    assert set(sent) == {".gitignore", "README", "conf/a.yaml", "data/x.csv", "models/m.py"}


def test_large_file_of_small_project_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "MAX_BYTES", 100)
    write(tmp_path, "weights.bin", size=101)
    write(tmp_path, "a.csv")
    assert project_files(script(tmp_path)) == ("a.csv",)


def test_large_project_sends_the_folder_of_the_script_and_what_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_test, "MAX_FILES", 5)
    write(tmp_path, *(f"many/{n}" for n in range(7)), "conf/base.yaml", "conf/other.yaml", "app/near.txt")
    sent = project_files(script(tmp_path, "open('conf/base.yaml')", "app/train.py"))
    assert set(sent) == {"conf/base.yaml", "app/near.txt"}


@pytest.mark.parametrize("count", [60, 600])
def test_script_beside_many_files_sends_what_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(under_test, "MAX_FILES", 5)  # a folder of ten times as many is not read to its end
    write(tmp_path, *(f"{n}.txt" for n in range(count)))
    assert project_files(script(tmp_path, "open('3.txt')")) == ("3.txt",)


def test_cell_sends_what_it_names(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", "b.csv")
    spec = JobSpec(name="t", script="open('a.csv')", notebook_dir=str(tmp_path))
    assert project_files(spec) == ("a.csv",)


def test_home_folder_is_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test.project, "NO_PROJECT", frozenset({str(tmp_path)}))
    write(tmp_path, "letters.txt")
    assert project_files(script(tmp_path)) == ()


def test_odd_entries_of_a_project_stay(tmp_path: Path) -> None:
    root = tmp_path / "p"
    write(root, "a.txt")
    write(tmp_path, "outside/secret-less.txt")
    (root / "out").symlink_to(tmp_path / "outside")
    (root / "up").symlink_to(root)
    (root / "gone").symlink_to(root / "nothing")
    (root / "inner").symlink_to(root / "a.txt")
    os.mkfifo(root / "pipe")
    Path(os.fsdecode(os.fsencode(root) + b"/caf\xe9.txt")).write_text("x")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(root)
        try:
            server.bind("s")
        finally:
            os.chdir(here)
        assert project_files(script(root)) == ("a.txt", "inner")
