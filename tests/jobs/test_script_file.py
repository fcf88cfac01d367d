from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_amltrain.errors import CommandError, PreflightError
from jupyter_amltrain.jobs import script_file
from jupyter_amltrain.jobs.snapshot import take_snapshot


def test_unmentioned_out_of_file_adds_note(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("x = 1")
    assert "acc.json" in script_file.from_file(path, out=["acc"])["notes"][0]
    path.write_text("open(os.environ['AML_OUTPUT_DIR'] + '/acc.json', 'w')")
    assert script_file.from_file(path, out=["acc"])["notes"] == ()


def test_script_file_is_taken_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes("# -*- coding: latin-1 -*-\nprint('ü')\n".encode("latin-1"))
    found = script_file.from_file(path)
    assert (found["script_name"], found["root"]) == ("train.py", str(tmp_path))


def test_script_file_of_source_folder_is_relative(tmp_path: Path) -> None:
    (tmp_path / "src" / "sub").mkdir(parents=True)
    (tmp_path / "src" / "sub" / "train.py").write_text("x = 1")
    (tmp_path / "other.py").write_text("x = 1")
    assert script_file.from_file("sub/train.py", source=tmp_path / "src")["script_name"] == "sub/train.py"
    inside = tmp_path / "src" / "sub" / "train.py"
    assert script_file.from_file(inside, source=tmp_path / "src")["script_name"] == "sub/train.py"
    with pytest.raises(CommandError, match="is not in the source folder"):
        script_file.from_file(tmp_path / "other.py", source=tmp_path / "src")


def test_script_file_syntax_error_names_line(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("x = 1\ny = = 2\n")
    with pytest.raises(PreflightError, match=r"train\.py line 2, 'y = = 2'"):
        script_file.from_file(path)


def test_missing_script_file_error_suggests_similar(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x = 1")
    with pytest.raises(CommandError, match=r"Did you mean train\.py"):
        script_file.from_file(tmp_path / "trian.py")
    with pytest.raises(CommandError, match=r"Cannot read"):
        script_file.from_file(tmp_path)


def test_module_of_an_editable_install_is_searched_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("setup.py", "nb/x", "src/lib/__init__.py", "src/lib/train.py", "src/lib/core.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "src" / "lib" / "train.py").write_text("from . import core\n")
    monkeypatch.syspath_prepend(str(tmp_path / "src"))
    monkeypatch.chdir(tmp_path / "nb")
    job = script_file.from_file("", module="lib.train")
    assert (job["root"], job["script_name"], job["search"]) == (str(tmp_path), "src/lib/train.py", ("src",))
    made = take_snapshot(job["script_name"], "", root=job["root"], search=job["search"], module="lib.train")
    assert sorted(made.files) == ["src/lib/__init__.py", "src/lib/core.py", "src/lib/train.py"]
    assert script_file.from_file("", module="json.tool")["script_name"] == "tool.py"
