from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from jupyter_amltrain.backends.file_copy import FileCopy, adopt_parts


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


def test_whole_file_is_written_with_its_time(tmp_path: Path) -> None:
    to = tmp_path / "new" / "deep" / "file"
    copy = FileCopy(to, 3, 1000.5)
    copy.write(b"longer", 2000.5)
    assert to.read_bytes() == b"longer" and copy.is_current and os.listdir(to.parent) == ["file"]


def test_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "utime", full)
    with pytest.raises(OSError, match="No space"):
        FileCopy(tmp_path / "file", 3, 1000.0).write(b"abc", 1000.0)
    assert os.listdir(tmp_path) == []


def test_name_of_many_bytes_is_copied(tmp_path: Path) -> None:
    name = "ü" * 120
    for number, copy in enumerate((FileCopy(tmp_path / name, 3, 1000.0), FileCopy(tmp_path / "also", 3, 1000.0))):
        assert copy.begin() == 0
        copy.append(b"abc")
        copy.complete()
        assert len(os.listdir(tmp_path)) == number + 1
    FileCopy(tmp_path / name, 3, 2000.0).write(b"def", 2000.0)
    assert (tmp_path / name).read_bytes() == b"def"


def test_parts_of_ended_processes_are_gone_after_whole_files(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    copies = [FileCopy(tmp_path / name, 6, 1000.0) for name in ("a.b", "c")]
    for name in (f".a.b.6-1000000.{ended.pid}.part", f".c.5-1000000.{ended.pid}.part", ".other.part"):
        (tmp_path / name).write_bytes(b"abc")
    adopt_parts([*copies, FileCopy(tmp_path / "absent" / "d", 1, 1.0)])
    for copy in copies:
        copy.write(b"abcdef", 1000.0)
    assert sorted(os.listdir(tmp_path)) == [".other.part", "a.b", "c"]


def test_whole_file_over_a_link_of_its_part_keeps_readers_content(tmp_path: Path) -> None:
    to = tmp_path / "log.jsonl"
    to.write_bytes(b"one\n")
    copy = FileCopy(to, 8, 1000.0, grows=True)
    assert copy.begin() == 4  # the part is a second name of the copy
    with to.open("rb") as reader:
        copy.write(b"one\ntwo\n", 1000.0)
        assert reader.read() == b"one\n"
    assert to.read_bytes() == b"one\ntwo\n" and os.listdir(tmp_path) == ["log.jsonl"]
