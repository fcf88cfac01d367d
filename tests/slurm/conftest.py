"""A real cluster of two nodes for the tests of a module; skipped where there is no Slurm, or no root."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain import plugins
from jupyter_amltrain.agent import guests
from jupyter_amltrain.slurm.agent.cluster import forget
from jupyter_amltrain.slurm.agent.jobs import JOBS
from jupyter_amltrain.state_dir import StateRoot
from tests.conftest import SETTINGS
from tools import openssh, slurm_cluster
from tools.openssh import Sshd
from tools.slurm_cluster import Cluster


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster of a module."""
    if reason := slurm_cluster.missing_reason():
        pytest.skip(reason)
    cluster = Cluster(tmp_path_factory.mktemp("slurm"), min_job_age=60)
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


@contextlib.contextmanager
def configured(cluster: Cluster, **settings: int) -> Iterator[None]:
    """Other settings of the cluster, for a time: its controller starts again with them."""
    text = cluster.conf.read_text()
    kept = [line for line in text.splitlines() if line.partition("=")[0] not in settings]

    def use(content: str) -> None:
        cluster.conf.write_text(content)
        cluster.stop_controller()
        cluster.start_controller()
        cluster.wait_ready()

    use("\n".join([*kept, *(f"{name}={value}" for name, value in settings.items()), ""]))
    try:
        yield
    finally:
        use(text)


class Kernel:
    """A kernel with the target ``cluster``.

    Parameters
    ----------
    api
        :mod:`jupyter_amltrain.api` with a controller of this test.
    """

    def __init__(self, api: Any, cluster: Cluster, home: Path) -> None:
        self.api, self.cluster = api, cluster
        self.runs_folder = home / "slurm" / "cluster" / "runs"

    def attach(self, name: str = "cluster", **values: Any) -> Any:
        """Attach a target; return its row when that has ended."""
        found = self.api.act("attach", name, kind="slurm", values=values)
        assert not found.errors, found.errors
        return until(lambda: self.row(name), lambda row: row.state in ("ready", "failed"))

    def row(self, name: str = "cluster") -> Any:
        """Return the row of a target in the list."""
        return next(row for row in self.api.compute_rows(60) if row.name == name)

    def submit(self, code: str, **fields: Any) -> Any:
        """Submit a cell to the cluster."""
        return self.api.submit(code, target="cluster", **fields)

    def folder(self, run: Any) -> Path:
        """Return the folder of a run."""
        return self.runs_folder / run.handle.partition("/")[2]

    def job(self, run: Any) -> str:
        """Return the id of a run's job, once Slurm has it."""
        file = self.folder(run) / "slurm.json"
        until(file.exists, bool)
        return str(json.loads(file.read_text())["job"])

    def ended(self, run: Any) -> Any:
        """Return the last record of a run; nothing of it is left in Slurm."""
        record = until(run.record, lambda found: found.state in ("completed", "failed", "canceled", "lost"))
        until(lambda: self.job(run) in self.cluster.jobs(), lambda listed: not listed)
        return record


def until(read: Callable[[], Any], is_enough: Callable[[Any], Any], seconds: float = 280.0) -> Any:
    """Return what `read` returns as soon as that is enough."""
    deadline = time.monotonic() + seconds
    while not is_enough(found := read()):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


@pytest.fixture
def kernel(cluster: Cluster, api: Any, home: Path) -> Kernel:
    """A kernel that has attached the cluster without a test job."""
    made = Kernel(api, cluster, home)
    proven = f"main:{home}/slurm/cluster"
    StateRoot(home).path.mkdir(parents=True, exist_ok=True)
    found = made.attach(partition="main", proven=proven)
    assert found.state == "ready", found
    return made
