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
