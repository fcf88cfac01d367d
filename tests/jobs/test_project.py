from __future__ import annotations

import sys
from pathlib import Path

import pytest

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.jobs import project
from jupyter_amltrain.jobs.snapshot import of_script
from jupyter_amltrain.schema.job import JobSpec


def tree(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return root


@pytest.mark.parametrize(
    ("script", "working", "text", "root", "name", "search"),
    [
        ("train.py", ".", "", ".", "train.py", ()),
        ("a/train.py", ".", "", ".", "a/train.py", ()),
        ("a/train.py", "nb", "", ".", "a/train.py", ()),
        ("a/b/train.py", "a", "", "a", "b/train.py", ()),
        ("a/train.py", "a", "import sys; sys.path.append('..'); import pkg", ".", "a/train.py", ()),
        ("a/train.py", "a", "import sys; sys.path.append('..')", "a", "train.py", ()),
        ("a/train.py", "a", "import sys; sys.path.insert(0, __file__ + '/../../src'); import lib", ".", "a/train.py",
         ()),
        ("a/b/train.py", ".", "from pathlib import Path; top = Path(__file__).parents[2]", ".", "a/b/train.py", ()),
        ("a/train.py", "a", "import os; top = os.path.dirname(os.path.dirname(__file__))", ".", "a/train.py", ()),
    ],
)  # fmt: skip
def test_place_has_script_working_folder_and_modules(
    tmp_path: Path, script: str, working: str, text: str, root: str, name: str, search: tuple[str, ...]
) -> None:
    tree(tmp_path, "pyproject.toml", "nb/x", "a/b/train.py", "a/train.py", "train.py", "pkg/m.py", "src/lib/m.py")
    place = project.place_of(tmp_path / script, text.encode(), (tmp_path / working).resolve())
    assert place == (str((tmp_path / root).resolve()), name, search)


def test_script_finds_what_the_kernel_finds_and_not_what_it_adds_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path, "pyproject.toml", "a/train.py", "src/lib.py", "own/mine.py")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "src")])
    text = "import sys; sys.path.append('../own'); import lib, mine"
    (tmp_path / "a" / "train.py").write_text(text)
    place = project.place_of(tmp_path / "a" / "train.py", text.encode(), tmp_path / "a")
    assert place == (str(tmp_path), "a/train.py", ("src",))
    spec = JobSpec(
        name="t", script_name=place.name, root=place.root, search=place.search, notebook_dir=str(tmp_path / "a")
    )
    assert set(of_script(spec).files) == {"a/train.py", "own/mine.py", "src/lib.py"}


def test_working_folder_of_another_project_is_no_part(tmp_path: Path) -> None:
    tree(tmp_path, "one/pyproject.toml", "one/train.py", "two/setup.py")
    place = project.place_of(tmp_path / "one" / "train.py", b"", tmp_path / "two")
    assert place == (str(tmp_path / "one"), "train.py", ())


def test_cell_has_modules_that_the_kernel_finds_in_its_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, "setup.py", "nb/x", "src/lib/m.py", "other/own.py")
    cell = JobSpec(name="cell", script="import lib", notebook_dir=str(tmp_path / "nb"))
    assert project.place_of_cell(cell) == {}
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "src"), str(tmp_path / "other")])
    place = project.place_of_cell(cell)
    assert place == {"root": str(tmp_path), "search": ("nb", "src")}
    found = project.project_modules(b"import lib.m", tmp_path, "script.py", place["search"])
    assert list(found) == ["src/lib/m.py"]


def test_module_is_found_as_python_finds_it(tmp_path: Path) -> None:
    tree(tmp_path, "pkg/train.py", "pkg/app/__main__.py")
    assert project.module_file("pkg.train", tmp_path) == (tmp_path / "pkg" / "train.py", tmp_path)
    assert project.module_file("pkg.app", tmp_path)[0].name == "__main__.py"
    assert project.module_file("json.tool", tmp_path)[0].name == "tool.py"
    for name in ("pkg.absent", "pkg/train.py", "pkg.train.py"):
        with pytest.raises(CommandError):
            project.module_file(name, tmp_path)


def test_modules_of_several_folders_import_each_other(tmp_path: Path) -> None:
    tree(tmp_path, "a/train.py", "a/one.py", "src/lib/__init__.py", "src/three.py", "src/unused.py")
    (tmp_path / "a" / "one.py").write_text("import lib")
    (tmp_path / "src" / "lib" / "__init__.py").write_text("import three")
    found = project.project_modules(b"import one", tmp_path, "a/train.py", ("src",))
    assert sorted(found) == ["a/one.py", "src/lib/__init__.py", "src/three.py"]
