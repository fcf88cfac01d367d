"""Whole small files: as they were at one moment, or left out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent import whole_files
from jupyter_amltrain.agent.whole_files import read_all, read_whole


def test_file_is_read_with_its_time(tmp_path: Path) -> None:
    name = os.fsdecode(b"odd \xff\n.bin")
    (tmp_path / name).write_bytes(b"abc")
    (tmp_path / "empty").touch()
    os.utime(tmp_path / name, (1000.5, 1000.5))
    found, empty = read_all(str(tmp_path), [name, "empty"], 10)
    assert found == (b"abc", 1000.5) and empty is not None and empty.data == b""


def test_absent_long_and_special_files_are_left_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "long").write_bytes(b"x" * 11)
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    names = ["pipe", "folder", "long", "nowhere", "absent", "a\0b", "long/x"]
    assert read_all(str(tmp_path), names, 10) == [None] * len(names)


def test_files_together_stay_below_the_limit(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / str(number)).write_bytes(b"x" * 4)
    assert [file is not None for file in read_all(str(tmp_path), list("0123"), 10)] == [True, True, False, False]


@pytest.mark.parametrize("changes", [1, 100])
def test_file_that_changes_is_read_again_or_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: int
) -> None:
    path, read, reads = tmp_path / "rows", whole_files.read_up_to, []
    path.write_bytes(b"old")

    def changed(*args: Any) -> bytes:
        data = read(*args)
        reads.append(data)
        if len(reads) <= changes:
            path.write_bytes(b"new" * len(reads))
            os.utime(path, (1000 + len(reads), 1000 + len(reads)))
        return data

    monkeypatch.setattr(whole_files, "read_up_to", changed)
    assert read_whole(str(path), 1000) == ((b"new", 1001.0) if changes == 1 else None)
