"""The contract of backends on a real cluster, from its login node and over SSH to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.jobs.snapshot import Snapshot, take_snapshot
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.slurm.backend import SlurmBackend
from jupyter_amltrain.slurm.ssh_backend import SlurmLoginBackend
from jupyter_amltrain.slurm.target import SlurmTarget
from jupyter_amltrain.state_dir import StateRoot
from tools.openssh import Sshd
from tools.slurm_cluster import Cluster

from ..contracts.backend import BackendContract


@pytest.fixture
def loop(home: Path) -> Iterator[LoopThread]:
    thread = LoopThread("test-loop")
    yield thread
    thread.close()


@pytest.fixture
def backend(cluster: Cluster, loop: LoopThread, home: Path) -> Iterator[Backend]:
    made = SlurmBackend(SlurmTarget(name="cluster"), loop, StateRoot(home))
    yield made
    loop.call(made.close())


class ClusterContract(BackendContract):
    """The contract with jobs for a cluster."""

    def _job(self, name: str, text: str) -> tuple[JobSpec, Snapshot]:
        spec = JobSpec(name=name, script=text, python=sys.executable, secrets=("TOKEN",))
        return spec, take_snapshot(spec.script_name, text, root=Path.cwd())

    def short(self) -> tuple[JobSpec, Snapshot]:
        return self._job("short", "print('one line')\nprint('and the end')\n")

    def long(self) -> tuple[JobSpec, Snapshot]:
        return self._job("long", "import time\nprint('here')\ntime.sleep(600)\n")


class TestSlurmBackend(ClusterContract):
    pass


@pytest.mark.thorough
class TestSlurmLoginBackend(ClusterContract):
    @pytest.fixture
    def backend(self, login: Sshd, loop: LoopThread, home: Path) -> Iterator[Backend]:
        target = SlurmTarget(
            name="cluster", host="127.0.0.1", port=login.port, identity_file=str(login.key), python=sys.executable,
            accept_host_key=login.fingerprint,
        )  # fmt: skip
        made = SlurmLoginBackend(target, loop, StateRoot(home))
        loop.call(made.check(), 60)  # as attach does
        yield made
        loop.call(made.close())
