"""A file that grows is read on, whoever removed, replaced or flooded it meanwhile."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_amltrain.backends import transport
from jupyter_amltrain.backends.transport import LocalTransport
from jupyter_amltrain.loop import LoopThread

DEADLINE = 60.0


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread("test-loop")
    yield thread
    thread.close()


def test_tail_of_growing_file_reads_every_byte(loop: LoopThread, tmp_path: Path) -> None:
    local, path = LocalTransport(loop, tmp_path), tmp_path / "node-0.jsonl"
    parts = [b"header\n", b"", b"[0]\n", b"x" * (3 * transport.READ_BYTES), b"", b"[1]\n"]

    async def story() -> bytes:
        seen = b""
        for part in parts:
            with path.open("ab") as file:
                file.write(part)
            while data := await local.read_from(str(path), len(seen), 1 << 20):
                seen += data
        path.unlink()
        assert await local.read_from(str(path), len(seen), 10) == b""
        assert await local.read_from(str(path), len(seen), 10) == b""
        await local.close()
        return seen

    assert loop.call(story(), DEADLINE) == b"".join(parts)


def test_tail_of_replaced_file_reads_new_content(loop: LoopThread, tmp_path: Path) -> None:
    local, path = LocalTransport(loop, tmp_path), tmp_path / "summary.json"

    async def story() -> list[bytes]:
        found = []
        for text in (b"first", b"second"):
            (tmp_path / "new").write_bytes(text)
            os.replace(tmp_path / "new", path)
            found.append(await local.read_from(str(path), 0, 100))
            await local.read_from(str(path), len(text), 100)
        return found

    assert loop.call(story(), DEADLINE) == [b"first", b"second"]


def test_tails_open_files_are_limited(tmp_path: Path) -> None:
    kept = transport.OpenFileCache()

    def opened() -> int:
        """Descriptors of files of this test; other threads open and close files of theirs."""
        count = 0
        for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
            with contextlib.suppress(OSError):
                count += os.readlink(f"/proc/self/fd/{name}").startswith(f"{tmp_path}/")
        return count

    for number in range(transport.MAX_OPEN_FILES + 10):
        path = tmp_path / str(number)
        path.write_bytes(b"abc")
        data, fd = transport.read(str(path), 1, 10, True)
        assert data == b"bc"
        kept.keep(str(path), fd)
    assert kept.read(str(tmp_path / "0"), 1, 10) is None
    newest = kept.read(str(path), 1, 10)
    assert newest in (b"bc", None)  # None where the system has no such call, or the file system does not know it
    assert opened() <= transport.MAX_OPEN_FILES
    kept.close()
    assert opened() == 0
    assert kept.read(str(path), 1, 10) is None


@pytest.mark.skipif(transport._NOWAIT is None, reason="needs Linux")
def test_tail_of_deleted_file_is_closed(loop: LoopThread, tmp_path: Path) -> None:
    """A log of gigabytes that a kernel has read, and that was deleted: here, or by somebody else."""
    local = LocalTransport(loop, tmp_path)
    paths = [tmp_path / f"{number}.txt" for number in range(3)]

    def held() -> set[str]:
        links = [os.readlink(f"/proc/self/fd/{fd}") for fd in local._tails._open.values()]
        return {Path(link.removesuffix(" (deleted)")).name for link in links}

    async def story() -> None:
        for path in paths:
            path.write_text("text")
        for path in paths[:2]:
            await local.read_from(str(path), 2, 10)
        assert held() == {"0.txt", "1.txt"}
        paths[0].unlink()
        await local.call("list", {})
        assert held() == {"1.txt"}
        paths[1].unlink()
        await local.read_from(str(paths[2]), 2, 10)
        assert held() == {"2.txt"}
        await local.close()

    loop.call(story(), DEADLINE)
