from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_amltrain.jobs import left_out
from jupyter_amltrain.jobs.snapshot import take_snapshot


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
