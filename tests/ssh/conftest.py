from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import SETTINGS, end_all
from tools import openssh
from tools.openssh import Sshd


@pytest.fixture
def remote_home(tmp_path: Path) -> Iterator[Path]:
    """State root on the other side of the connection."""
    folder = tmp_path / "remote"
    yield folder
    end_all(folder)


@pytest.fixture
def sshd(tmp_path: Path, remote_home: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sshd]:
    """A server whose sessions have a state root and a queue of their own; the user's own SSH files are out of sight."""
    if openssh.find() is None:
        pytest.skip("no OpenSSH server on this machine")
    user = tmp_path / "user"
    (user / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(user))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    kept = {name: os.environ[name] for name in ("PATH", "AMLTRAIN_GPU_LOCK_SCOPE") if name in os.environ}
    environ = {**kept, **SETTINGS, "AMLTRAIN_HOME": str(remote_home), "AMLTRAIN_QUEUE": str(tmp_path / "remote-queue")}
    server = Sshd(tmp_path / "sshd", environ)
    yield server
    server.stop()


# ---- two machines, for the tests of a module


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nodes")


@pytest.fixture(scope="module")
def homes(folder: Path) -> Iterator[list[Path]]:
    """State roots of the machines."""
    homes = [folder / "first", folder / "second"]
    yield homes
    for home in homes:
        end_all(home)


@pytest.fixture(scope="module")
def servers(folder: Path, homes: list[Path]) -> Iterator[list[Sshd]]:
    """SSH servers of the machines, which have one CPU slot each."""
    if openssh.find() is None:
        pytest.skip("no OpenSSH server on this machine")
    made = []
    for home in homes:
        environ = {
            **SETTINGS,
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "AMLTRAIN_HOME": str(home),
            "AMLTRAIN_QUEUE": f"{home}-queue",
            "AMLTRAIN_CPU_SLOTS": "1",
        }
        made.append(Sshd(Path(f"{home}-sshd"), environ))
    yield made
    for server in made:
        server.stop()
