"""Changes of folders that other machines write: seen without inotify. No cluster is needed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.slurm.transports import SharedFolderEvents


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Events on a file system of which inotify tells nothing."""
    loop = LoopThread("test-loop")
    made = SharedFolderEvents(loop)

    async def silent(paths: Sequence[str], timeout: float) -> Collection[str]:
        await asyncio.sleep(timeout)
        return ()

    monkeypatch.setattr(made._local, "wait", silent)
    yield lambda paths, timeout: loop.call(made.wait(paths, timeout), 30)
    loop.close()


def test_growing_file_is_seen_without_inotify(events: Any, tmp_path: Path) -> None:
    file = tmp_path / "rank-0.txt"
    file.write_text("one\n")
    assert not events([str(tmp_path)], 0.1)
    file.write_text("one\ntwo\n")
    assert list(events([str(tmp_path)], 5.0)) == [str(tmp_path)]
    assert not events([str(tmp_path)], 0.1)


def test_folder_that_appears_is_seen(events: Any, tmp_path: Path) -> None:
    folder = tmp_path / "later"
    assert not events([str(folder)], 0.1)
    folder.mkdir()
    (folder / "state.json").write_text("{}")
    assert list(events([str(folder)], 5.0)) == [str(folder)]


def test_many_folders_are_looked_at_less_often(events: Any, tmp_path: Path) -> None:
    begin = time.monotonic()
    assert not events([str(tmp_path / str(n)) for n in range(400)], 1.0)
    assert time.monotonic() - begin >= 1.0
