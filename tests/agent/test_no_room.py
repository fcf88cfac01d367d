"""A failure for want of room names what was full; other failures name nothing."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from jupyter_amltrain.agent.supervise import no_room
from jupyter_amltrain.agent.supervise.outcome import Outcome

EXIT = Outcome("failed", "exit", "exited with code 1", 1, None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "log").mkdir()
    (tmp_path / "telemetry").mkdir()
    return tmp_path


def cause(folder: Path, log: str = "", outcome: Outcome = EXIT) -> dict[str, str]:
    (folder / "log" / "rank-0.txt").write_text(log)
    return no_room.cause_of(str(folder), outcome, str(folder)) or {}


def disks(monkeypatch: pytest.MonkeyPatch, **free: int) -> None:
    """Give file systems a gigabyte each, of which so much is free."""
    spaces = {f"/{name}": (1 << 30, count) for name, count in free.items()}
    monkeypatch.setattr(
        no_room, "_space", lambda path: next((s for p, s in spaces.items() if path.startswith(p)), None)
    )
    monkeypatch.setattr(no_room, "_existing", lambda path: path)


def test_full_disk_is_named_by_the_path_of_the_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disks(monkeypatch, data=4096)
    found = cause(folder, "Traceback\nOSError: [Errno 28] No space left on device: '/data/model.pt'\n")
    assert found["kind"] == no_room.DISK and "/data/model.pt" in found["text"] and "4.0 KiB of 1.0 GiB" in found["text"]
    disks(monkeypatch, data=1 << 29)
    assert "again" in cause(folder, "OSError: [Errno 28] No space left on device: '/data/model.pt'\n")["text"]


def test_full_disk_without_a_path_is_looked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/small")
    disks(monkeypatch, small=0)
    assert "/small" in cause(folder, "OSError: [Errno 28] No space left on device\n")["text"]
    disks(monkeypatch)
    assert cause(folder, "sqlite3.OperationalError: database or disk is full\n")["kind"] == no_room.DISK


def test_quota_is_named(folder: Path) -> None:
    found = cause(folder, "OSError: [Errno 122] Disk quota exceeded: '/home/u/x'\n")
    assert "quota of /home/u/x" in found["text"]


@pytest.mark.parametrize(
    "log",
    [
        "RuntimeError: DataLoader worker (pid 9) is killed by signal: Bus error. It is possible that ...",
        "OSError: [Errno 28] No space left on device: '/dev/shm/torch_1'",
    ],
)
def test_error_for_want_of_shared_memory_names_it(folder: Path, log: str) -> None:
    assert cause(folder, log)["kind"] == no_room.SHARED_MEMORY


def test_bus_error_names_small_shared_memory_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = Outcome("failed", "signal", "killed by SIGBUS", None, int(signal.SIGBUS))
    monkeypatch.setattr(no_room, "memory_total", lambda: 64 << 30)
    monkeypatch.setattr(no_room, "_space", lambda path: (64 << 20, 64 << 20))
    assert cause(folder, "", killed)["kind"] == no_room.SHARED_MEMORY
    monkeypatch.setattr(no_room, "_space", lambda path: (32 << 30, 32 << 30))
    assert cause(folder, "", killed) == {}


def test_end_for_want_of_memory_has_use_and_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [json.dumps({"columns": []}), *(json.dumps([i, i, 5.0, i << 30, 1]) for i in range(1, 4)), "[4, 4, "]
    (folder / "telemetry" / "node-0.jsonl").write_text("\n".join(lines))
    monkeypatch.setattr(no_room, "memory_total", lambda: 4 << 30)
    killed = Outcome("failed", "oom", "killed by the kernel", None, 9)
    found = cause(folder, "", killed)
    assert found["kind"] == no_room.HOST_MEMORY and "3.0 GiB of 4.0 GiB" in found["text"]


@pytest.mark.parametrize(
    ("log", "outcome"),
    [
        ("ValueError: no\n", EXIT),
        ("OSError: [Errno 28] No space left on device\n", Outcome("completed", "exit", "", 0, None)),
        ("OSError: [Errno 28] No space left on device\n" + "x" * 5000, EXIT),
        ("", Outcome("failed", "oom", "killed by the kernel", None, 9)),
    ],
)
def test_other_end_has_no_cause(folder: Path, log: str, outcome: Outcome) -> None:
    assert cause(folder, log, outcome) == {}
