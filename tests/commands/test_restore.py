from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.commands.registry import Context, run
from jupyter_amltrain.errors import CommandError

from ..helpers import DEADLINE, api_of


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with api_of(tmp_path_factory.mktemp("restore")) as api:
        yield api


def restore(handle: str, folder: Path) -> Any:
    return run("runs", ["restore", handle, str(folder)], Context(prog="%aml_runs")).data


@pytest.fixture
def cell_run(api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("x = 1\n")
    return api.submit("import package\nprint(package.x * lr)\n", params={"lr": 2}, gpus=0).wait(DEADLINE)


def test_restore_writes_code_and_cell_of_run(cell_run: Any, tmp_path: Path) -> None:
    (tmp_path / "package" / "__init__.py").write_text("x = 2\n")
    found = restore(cell_run.handle, tmp_path / "code" / "below")
    assert found["written"] == ["cell.py", "package/__init__.py", "script.py"] and found["exact"]
    folder = tmp_path / "code" / "below"
    assert (folder / "package" / "__init__.py").read_text() == "x = 1\n"
    assert (folder / "cell.py").read_text() == "import package\nprint(package.x * lr)\n"
    assert "lr = 2" in (folder / "script.py").read_text()


def test_restore_twice_changes_nothing(cell_run: Any, tmp_path: Path) -> None:
    restore(cell_run.handle, tmp_path / "code")
    found = restore(cell_run.handle, tmp_path / "code")
    assert found["written"] == [] and len(found["same"]) == 3


@pytest.mark.parametrize("kind", ["other file", "folder", "link", "no folder", "link out"])
def test_restore_overwrites_nothing(cell_run: Any, tmp_path: Path, kind: str) -> None:
    code = tmp_path / "code"
    other = code / "script.py"
    if kind == "no folder":
        code.write_text("mine")
    else:
        code.mkdir()
    if kind == "other file":
        other.write_text("mine")
    elif kind == "folder":
        other.mkdir()
    elif kind == "link":
        (tmp_path / "mine.py").write_text("mine")
        other.symlink_to(tmp_path / "mine.py")
    elif kind == "link out":
        (tmp_path / "elsewhere").mkdir()
        (code / "package").symlink_to(tmp_path / "elsewhere")
    before = sorted(path.name for path in [*tmp_path.glob("*.py"), *code.rglob("*")])
    with pytest.raises(CommandError) as caught:
        restore(cell_run.handle, code)
    assert caught.value.code == "files.exists" and "\n" not in str(caught.value)
    assert sorted(path.name for path in [*tmp_path.glob("*.py"), *code.rglob("*")]) == before
    if kind == "link out":
        assert not list((tmp_path / "elsewhere").iterdir())


def test_restore_of_folder_leaves_out_files_that_the_run_wrote(api: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.py").write_text("open('written.txt', 'w').close()\n")
    (source / "start.sh").write_text("#!/bin/sh\n")
    (source / "start.sh").chmod(0o755)
    ended = api.submit("train.py", source=source, gpus=0).wait(DEADLINE)
    assert restore(ended.handle, tmp_path / "code")["written"] == ["start.sh", "train.py"]
    assert (tmp_path / "code" / "start.sh").stat().st_mode & 0o111


def test_restore_writes_uncommitted_changes_of_project(api: Any, tmp_path: Path) -> None:
    identity = ("-c", "user.email=a@example.org", "-c", "user.name=a")
    for words in (("init", "-q"), ("add", "train.py"), (*identity, "commit", "-qm", "first")):
        (tmp_path / "train.py").write_text("print(1)\n")
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    (tmp_path / "train.py").write_text("print(2)\n")
    ended = api.submit(str(tmp_path / "train.py"), gpus=0).wait(DEADLINE)
    assert restore(ended.handle, tmp_path / "code")["written"] == ["git.diff", "train.py"]
    assert "+print(2)" in (tmp_path / "code" / "git.diff").read_text()


def test_restore_says_that_a_run_has_changed_its_code(cell_run: Any, tmp_path: Path) -> None:
    (Path(cell_run.run.folder) / "source" / "script.py").write_text("changed\n")
    assert not restore(cell_run.handle, tmp_path / "code")["exact"]


def test_restore_without_copy_is_refused(api: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("pass\n")
    ended = api.submit(str(tmp_path / "train.py"), gpus=0).wait(DEADLINE)
    (Path(ended.run.folder) / "source" / "train.py").unlink()
    with pytest.raises(CommandError) as caught:
        restore(ended.handle, tmp_path / "code")
    assert caught.value.code == "restore.unavailable" and not (tmp_path / "code").exists()
