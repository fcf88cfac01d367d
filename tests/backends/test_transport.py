from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_amltrain import errors
from jupyter_amltrain.backends.transport import FileEvents, LocalTransport, agent_error
from jupyter_amltrain.jobs.snapshot import digest_of, take_snapshot
from jupyter_amltrain.loop import LoopThread

from ..contracts.transport import TransportContract

DEADLINE = 60.0


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread("test-loop")
    yield thread
    thread.close()


@pytest.fixture
def local(loop: LoopThread, home: Path) -> LocalTransport:
    return LocalTransport(loop, home)


class TestLocalTransport(TransportContract):
    @pytest.fixture
    def transport(self, local: LocalTransport) -> LocalTransport:
        return local

    @pytest.fixture
    def there(self, tmp_path: Path) -> Path:
        (tmp_path / "there").mkdir()
        return tmp_path / "there"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# ---- files


def test_put_copies_files_with_private_rights(loop: LoopThread, local: LocalTransport, tmp_path: Path) -> None:
    plain, tool = tmp_path / "plain.txt", tmp_path / "tool.sh"
    plain.write_text("text")
    tool.write_text("#!/bin/sh\n")
    plain.chmod(0o664)
    tool.chmod(0o775)
    folder = tmp_path / "home" / "staging" / "r-22222"
    files: dict[str, bytes | str] = {
        "script.py": b"pass\n",
        "a/b/data": b"",
        "plain.txt": str(plain),
        "tool": str(tool),
    }
    old = os.umask(0)
    try:
        loop.call(local.put(files, str(folder)), DEADLINE)
    finally:
        os.umask(old)
    assert (folder / "script.py").read_bytes() == b"pass\n" and (folder / "plain.txt").read_text() == "text"
    assert mode(folder) == mode(folder / "a") == mode(folder / "a" / "b") == 0o700
    assert mode(folder / "script.py") == mode(folder / "plain.txt") == mode(folder / "a/b/data") == 0o600
    assert mode(folder / "tool") == 0o700


@pytest.mark.parametrize("rights", [0o611, 0o644, 0o655, 0o700, 0o755])
def test_put_of_any_rights_keeps_snapshot_digest(
    loop: LoopThread, local: LocalTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rights: int
) -> None:
    """A copy that seems to differ would never be submitted again: its code counts as changed."""
    script = tmp_path / "code" / "train.py"
    script.parent.mkdir()
    script.write_text("pass\n")
    script.chmod(rights)
    taken = take_snapshot("train.py", "", root=script.parent, source=script.parent)
    # On a file system that is mounted without `exec` nothing may be executed, whatever its rights.
    monkeypatch.setattr(os, "access", lambda path, mode, **how: not mode & os.X_OK)
    loop.call(local.put(taken.files, str(tmp_path / "copy")))
    assert digest_of(tmp_path / "copy", taken.files) == taken.digest


def test_read_from_offset_returns_bytes(loop: LoopThread, local: LocalTransport, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(bytes(range(10)))

    def read(offset: int, limit: int) -> bytes:
        return loop.call(local.read_from(str(path), offset, limit), DEADLINE)

    assert read(0, 100) == bytes(range(10)) and read(4, 3) == b"\x04\x05\x06"
    assert read(10, 5) == read(500, 5) == b""
    assert loop.call(local.size(str(path)), DEADLINE) == 10


@pytest.mark.parametrize("below", ["absent", "log/below-a-file", "x" * 300])
def test_read_from_missing_file_is_empty(loop: LoopThread, local: LocalTransport, tmp_path: Path, below: str) -> None:
    (tmp_path / "log").write_text("")
    assert loop.call(local.read_from(str(tmp_path / below), 0, 10), DEADLINE) == b""
    assert loop.call(local.size(str(tmp_path / below)), DEADLINE) == 0


# ---- calls


def test_agent_call_returns_answer_or_error(loop: LoopThread, local: LocalTransport, home: Path) -> None:
    assert loop.call(local.call("info", {}), DEADLINE)["cpus"] >= 1
    with pytest.raises(errors.UnknownRun, match="nobody-22222"):
        loop.call(local.call("cancel", {"run": "nobody-22222"}), DEADLINE)
    (pyz,) = (home / "agent").glob("*.pyz")
    assert mode(pyz) == 0o600


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("CapacityError", errors.CapacityError),
        ("StateError", errors.StateError),
        ("RunExists", errors.SubmitError),
        ("Exception", errors.SubmitError),
        ("annotations", errors.SubmitError),
    ],
)
def test_agent_error_becomes_our_class(kind: str, found: type[Exception]) -> None:
    error = agent_error({"type": kind, "message": "no"})
    assert type(error) is found and str(error) == "no"


def test_agent_call_with_unusable_home_is_refused(loop: LoopThread, home: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    local = LocalTransport(loop, tmp_path / "file" / "home")
    with pytest.raises(errors.StateError, match=r"Cannot write .*AMLTRAIN_HOME"):
        loop.call(local.call("info", {}), DEADLINE)
    with pytest.raises(errors.StateError, match=r"Cannot write .*AMLTRAIN_HOME"):
        loop.call(local.put({"a": b""}, str(tmp_path / "file" / "home" / "staging" / "x")), DEADLINE)


# ---- news


def news(loop: LoopThread, changes: FileEvents, folders: list[Path], timeout: float) -> set[str]:
    async def wait() -> set[str]:
        return {os.path.basename(path) for path in await changes.wait([str(f) for f in folders], timeout)}

    return loop.call(wait(), DEADLINE)


@pytest.fixture
def changes(loop: LoopThread, local: LocalTransport) -> Iterator[FileEvents]:
    async def make() -> FileEvents:
        return local.events()

    async def close(made: FileEvents) -> None:
        made.close()

    made = loop.call(make())
    yield made
    loop.call(close(made))


def folders(root: Path, count: int) -> list[Path]:
    made = [root / f"f{i}" for i in range(count)]
    for folder in made:
        folder.mkdir()
    return made


def test_file_events_first_wait_reports_folder_then_none(loop: LoopThread, changes: FileEvents, tmp_path: Path) -> None:
    both = folders(tmp_path, 2)
    assert news(loop, changes, both, 30) == {"f0", "f1"}
    start = time.monotonic()
    assert news(loop, changes, both, 0.2) == set()
    assert time.monotonic() - start > 0.15


@pytest.mark.parametrize("act", ["append", "create", "replace"])
def test_file_events_write_wakes_waiter(loop: LoopThread, changes: FileEvents, tmp_path: Path, act: str) -> None:
    both = folders(tmp_path, 2)
    target, other = both[1] / "state.json", tmp_path / "new"
    target.write_text("old")
    other.write_text("new")
    news(loop, changes, both, 30)
    news(loop, changes, both, 0)

    async def story() -> set[str]:
        waiting = asyncio.ensure_future(changes.wait([str(f) for f in both], 10 * DEADLINE))
        await asyncio.sleep(0.05)  # it waits by now; were it not, the write would still be an event
        if act == "append":
            with target.open("a") as file:
                file.write("more")
        elif act == "create":
            (both[1] / "cancel").touch()
        else:
            os.replace(other, target)
        return {os.path.basename(path) for path in await waiting}

    assert loop.call(story(), DEADLINE) == {"f1"}


def test_file_events_between_waits_are_kept(loop: LoopThread, changes: FileEvents, tmp_path: Path) -> None:
    (folder,) = folders(tmp_path, 1)
    news(loop, changes, [folder], 30)
    (folder / "a").touch()
    assert news(loop, changes, [folder], 30) == {"f0"}


def test_file_events_of_one_in_many_folders_are_reported(loop: LoopThread, changes: FileEvents, tmp_path: Path) -> None:
    many = folders(tmp_path, 400)
    assert len(news(loop, changes, many, 30)) == 400
    news(loop, changes, many, 0)
    (many[313] / "a").touch()
    assert news(loop, changes, many, 30) == {"f313"}


def test_file_events_of_created_and_removed_folder_are_handled(
    loop: LoopThread, changes: FileEvents, tmp_path: Path
) -> None:
    (above,) = folders(tmp_path, 1)
    log = above / "log"
    assert news(loop, changes, [above, log], 30) == {"f0"}
    log.mkdir()
    assert "f0" in news(loop, changes, [above, log], 30)
    (log / "rank-0.txt").write_text("x")
    seen: set[str] = set()
    while "log" not in seen:
        found = news(loop, changes, [above, log], 30)
        assert found, "no news of the new folder"
        seen |= found
    (log / "rank-0.txt").unlink()
    log.rmdir()
    above.rmdir()
    news(loop, changes, [above, log], 0.2)
    assert news(loop, changes, [above, log], 0.1) == set()


def test_file_events_reach_two_consumers(loop: LoopThread, local: LocalTransport, tmp_path: Path) -> None:
    (folder,) = folders(tmp_path, 1)

    async def story() -> list[set[str]]:
        both = [local.events(), local.events()]
        for one in both:
            await one.wait([str(folder)], 30)
        (folder / "a").touch()
        found = [set(await one.wait([str(folder)], 30)) for one in both]
        for one in both:
            one.close()
        return found

    assert loop.call(story(), DEADLINE) == [{str(folder)}] * 2
