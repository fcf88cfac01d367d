from __future__ import annotations

import os
import subprocess
from pathlib import Path

from jupyter_amltrain.backends.file_copy import FileCopy


def test_interrupted_copy_continues_and_gets_the_original_time(tmp_path: Path) -> None:
    to = tmp_path / "new" / "file[1].bin"
    first = FileCopy(to, 6, 1000.5)
    assert first.begin() == 0 and not first.is_current
    first.append(b"abc")
    again = FileCopy(to, 6, 1000.5)
    assert again.begin() == 3 and not to.exists()
    again.append(b"def")
    again.complete()
    assert to.read_bytes() == b"abcdef" and to.stat().st_mtime == 1000.5
    assert FileCopy(to, 6, 1000.5).is_current and os.listdir(to.parent) == [to.name]


def test_other_version_starts_over(tmp_path: Path) -> None:
    to = tmp_path / "file"
    old = FileCopy(to, 6, 1000.0)
    old.begin()
    old.append(b"abc")
    new = FileCopy(to, 6, 2000.0)
    assert new.begin() == 0
    new.append(b"uvwxyz")
    new.complete()
    assert to.read_bytes() == b"uvwxyz" and os.listdir(tmp_path) == ["file"]


def test_part_of_living_process_is_left_alone(tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "60"])
    try:
        theirs = tmp_path / f".file.6-1000000.{other.pid}.part"
        theirs.write_bytes(b"abc")
        mine = FileCopy(tmp_path / "file", 6, 1000.0)
        assert mine.begin() == 0
        mine.append(b"uvwxyz")
        mine.complete()
        assert theirs.read_bytes() == b"abc" and (tmp_path / "file").read_bytes() == b"uvwxyz"
    finally:
        other.kill()
        other.wait()
    assert FileCopy(tmp_path / "file", 6, 1000.0).begin() == 3  # it has ended: taken over


def test_grown_file_is_continued_in_place(tmp_path: Path) -> None:
    to = tmp_path / "log.jsonl"
    to.write_bytes(b"one\n")
    with to.open("rb") as reader:
        assert reader.read() == b"one\n"
        copy = FileCopy(to, 8, 1000.0, grows=True)
        assert copy.begin() == 4
        copy.append(b"two\n")
        copy.complete()
        assert reader.read() == b"two\n"
    assert to.read_bytes() == b"one\ntwo\n" and os.listdir(tmp_path) == ["log.jsonl"]


def test_restarted_copy_of_grown_file_leaves_nothing_of_the_old(tmp_path: Path) -> None:
    to = tmp_path / "log.jsonl"
    to.write_bytes(b"old\n")
    copy = FileCopy(to, 8, 1000.0, grows=True)
    assert copy.begin() == 4
    copy.restart()
    assert copy.begin() == 0
    copy.append(b"new1new2")
    copy.complete()
    assert to.read_bytes() == b"new1new2" and os.listdir(tmp_path) == ["log.jsonl"]
