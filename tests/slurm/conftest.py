"""A real cluster of two nodes for the tests of a module; skipped where there is no Slurm, or no root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_amltrain import plugins
from jupyter_amltrain.agent import guests
from jupyter_amltrain.slurm.agent.cluster import forget
from jupyter_amltrain.slurm.agent.jobs import JOBS
from tests.conftest import SETTINGS
from tools import openssh, slurm_cluster
from tools.openssh import Sshd
from tools.slurm_cluster import Cluster


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster of a module."""
    if reason := slurm_cluster.missing_reason():
        pytest.skip(reason)
    cluster = Cluster(tmp_path_factory.mktemp("slurm"), min_job_age=60, slurmd_timeout=10)
    yield cluster
    cluster.stop()


@pytest.fixture
def cluster(shared_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[Cluster]:
    """The cluster, in the environment of a test, without jobs before and after it."""
    monkeypatch.setenv("SLURM_CONF", str(shared_cluster.conf))
    # The installed package may be older than these sources: its entry points are not read.
    monkeypatch.setattr(plugins, "_OWN_PLUGINS", (*plugins._OWN_PLUGINS, "jupyter_amltrain.slurm.plugin:KIND"))
    monkeypatch.setattr(plugins, "_entry_points", lambda: iter(()))
    for cache in (plugins.kinds, plugins.agent_parts):
        cache.cache_clear()
    forget()
    JOBS.forget()
    yield shared_cluster
    shared_cluster.cancel_all()
    for cache in (plugins.kinds, plugins.agent_parts):
        cache.cache_clear()
    guests.clear()


@pytest.fixture
def login(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sshd]:
    """An SSH server of the login node; the kernel itself has no Slurm."""
    if openssh.find() is None:
        pytest.skip("no OpenSSH server on this machine")
    user = tmp_path / "user"
    (user / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(user))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.delenv("SLURM_CONF")
    environ = {
        **SETTINGS, **cluster.environ, "PATH": os.environ["PATH"], "HOME": str(user),
        "AMLTRAIN_QUEUE": str(tmp_path / "remote-queue"),
    }  # fmt: skip
    server = Sshd(tmp_path / "sshd", environ)
    yield server
    server.stop()
