from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_amltrain.jobs import left_out
from jupyter_amltrain.jobs.snapshot import take_snapshot
from jupyter_amltrain.schema.job import JobSpec


def file(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as new:
        new.truncate(size)


def test_ignored_data_is_named_largest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("x = 1")
    (tmp_path / ".gitignore").write_text("data/\n*.csv\nbuild/\n*.pyc\nsmall/\n")
    file(tmp_path / "data" / "raw" / "a.bin", 3 << 20)
    file(tmp_path / "table.csv", 1 << 20)
    file(tmp_path / "build" / "x.bin", 9 << 20)
    file(tmp_path / "m.pyc", 1 << 20)
    file(tmp_path / "small" / "x", 10)
    made = take_snapshot("train.py", "", root="/", source=tmp_path)
    assert set(made.left_out) == {"data/", "table.csv", "build/", "m.pyc", "small/"}
    note = left_out.note_of(str(tmp_path), made.left_out)
    assert ".gitignore: data/ (3.0 MiB), table.csv (1.0 MiB)." in note and "build" not in note
    monkeypatch.setattr(left_out, "MAX_ENTRIES", 0)
    assert left_out.note_of(str(tmp_path), ["data/"]) == ""  # nothing of it was counted


def test_folder_without_ignored_data_has_no_note(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x = 1")
    assert left_out.note_of(str(tmp_path), take_snapshot("train.py", "", root="/", source=tmp_path).left_out) == ""


def absent(path: object) -> str:
    return f"FileNotFoundError: [Errno 2] No such file or directory: {str(path)!r}"


def test_missed_path_names_what_the_ignore_file_excludes(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("data/\n")
    file(tmp_path / "data" / "raw" / "a.csv", 10)
    file(tmp_path / "sent.csv", 10)
    spec = JobSpec(name="t", script_name="train.py", source=str(tmp_path))
    for missed in ("data/raw/a.csv", "/home/u/.amltrain/runs/r-1/source/data/raw/a.csv"):
        for is_here in (True, False):
            note = left_out.missed_note(spec, absent(missed), is_here)
            assert ".gitignore" in note and f"--input data={tmp_path}/data,upload" in note
    assert ".gitignore" not in left_out.missed_note(spec, absent("sent.csv"), False)
    assert left_out.missed_note(spec, absent("elsewhere.csv"), False) == ""
    assert left_out.missed_note(spec, "ValueError: line 3 of 'data/raw/a.csv'", False) == ""


@pytest.mark.parametrize(
    "error",
    [
        absent("../data/x.csv"),
        "lightgbm.basic.LightGBMError: Could not open data file ../data/x.csv",
        "OSError: ../data/x.csv not found.",
        absent("/mnt/azureml/cr/j/0/exe/wd/data/x.csv"),
    ],
)
def test_missed_path_of_project_without_source_is_found_from_its_places(tmp_path: Path, error: str) -> None:
    file(tmp_path / "data" / "x.csv", 10)
    (tmp_path / "notebooks").mkdir()
    spec = JobSpec(name="t", script_name="train.py", root=str(tmp_path), notebook_dir=str(tmp_path / "notebooks"))
    assert f"--input data={tmp_path}/data/x.csv,upload" in left_out.missed_note(spec, error, False)
    assert left_out.missed_note(spec, error, True) == ""  # a script in place finds it


def test_missed_secret_is_not_to_be_sent(tmp_path: Path) -> None:
    file(tmp_path / "conf" / ".env", 10)
    spec = JobSpec(name="t", script_name="train.py", root=str(tmp_path), notebook_dir=str(tmp_path))
    note = left_out.missed_note(spec, absent("conf/.env"), False)
    assert "--secret" in note and "--input" not in note


def test_missed_module_beside_the_script_is_no_package_to_install(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").write_text("")
    spec = JobSpec(name="t", script_name="train.py", root=str(tmp_path), notebook_dir=str(tmp_path))
    assert "--source" in left_out.missed_note(spec, "ModuleNotFoundError: No module named 'models'", False)
    assert left_out.missed_note(spec, "ModuleNotFoundError: No module named 'rich'", False) == ""
