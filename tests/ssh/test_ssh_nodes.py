"""Runs on several machines over SSH: two servers with a state root and a queue each."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SETTINGS, end_all
from tests.distributed.scripts import ALL_REDUCE, TRAINING, needs_torch
from tests.helpers import api_of, until
from tools import openssh
from tools.openssh import Sshd

WAIT_S = 150.0


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
def api(folder: Path, homes: list[Path]) -> Iterator[Any]:
    """The API with the target ``gpus`` of two machines with one CPU slot each."""
    if openssh.find() is None:
        pytest.skip("no OpenSSH server on this machine")
    user = folder / "user"
    (user / ".ssh").mkdir(parents=True)
    servers = []
    with api_of(folder, HOME=str(user), SSH_AUTH_SOCK="") as module:
        try:
            for home in homes:
                environ = {
                    "PATH": os.environ["PATH"],
                    **SETTINGS,
                    "AMLTRAIN_HOME": str(home),
                    "AMLTRAIN_QUEUE": f"{home}-queue",
                    "AMLTRAIN_CPU_SLOTS": "1",
                    "HOME": str(user),
                }
                servers.append(Sshd(Path(f"{home}-sshd"), environ))
                (user / ".ssh" / "config").open("a").write(
                    f"Host {home.name}\n  HostName 127.0.0.1\n  Port {servers[-1].port}\n  IdentityFile {servers[-1].key}\n"
                )
            attach(module, servers)
            yield module
        finally:
            for server in servers:
                server.stop()


def attach(api: Any, servers: list[Sshd], name: str = "gpus") -> None:
    values = {
        "host": "first,second",
        "python": sys.executable,
        "accept_host_key": ",".join(server.fingerprint for server in servers),
    }
    assert not api.act("attach", name, kind="ssh", values=values, confirmed=True).errors
    manager = api.controller().target_manager
    until(lambda: api.controller().loop.call(manager.finished(name, 30.0)) is not None, "attached")


@needs_torch
def test_pytorch_processes_of_two_machines_connect(api: Any) -> None:
    run = api.submit(ALL_REDUCE, target="gpus", nodes=2, processes=2, gpus=0, out=["total"], name="two").wait(WAIT_S)
    assert [run.logs(rank=rank).strip() for rank in range(4)] == [f"rank {rank} of 4 sum 10" for rank in range(4)]
    assert run.result("total") == 10 and (run.status.nodes, run.status.ranks) == (2, 4)
