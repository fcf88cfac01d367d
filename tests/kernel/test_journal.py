"""The journal of a driver."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from jupyter_amltrain.kernel.journal import Journal

#: The line of one.
ONE = b'{"text":"one","op":"note"}\n'


class Note(msgspec.Struct, frozen=True):
    text: str
    op: str = "note"


def opened(path: Path) -> tuple[Journal[Note], list[Note]]:
    journal = Journal(path, Note, "test")
    return journal, journal.open()


def test_events_are_read_again_in_order(tmp_path: Path) -> None:
    journal, events = opened(tmp_path / "j")
    assert events == []
    for text in ("one", "two"):
        journal.add(Note(text))
    journal.close()
    assert opened(tmp_path / "j")[1] == [Note("one"), Note("two")]


@pytest.mark.parametrize("damage", [b'{"text":"tw', b"\0\0\0\n", b'{"other":1}\n{"text":"late"}\n'])
def test_line_that_was_not_written_whole_is_dropped_and_overwritten(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "j"
    path.write_bytes(ONE + damage)
    journal, events = opened(path)
    assert events == [Note("one")]
    journal.add(Note("two"))
    journal.close()
    assert path.read_bytes() == ONE + ONE.replace(b"one", b"two")


def test_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, _ = opened(tmp_path / "j")
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
    with pytest.raises(OSError, match="space"):
        journal.add(Note("one"))
    assert (tmp_path / "j").read_bytes() == b""
