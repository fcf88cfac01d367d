"""Runs on a real cluster whose login node SSH reaches."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.conftest import until
from tools.openssh import Sshd
from tools.slurm_cluster import Cluster

pytestmark = pytest.mark.thorough


@pytest.fixture
def attached(login: Sshd, api: Any) -> Any:
    """:mod:`jupyter_amltrain.api` with the target ``far``, attached by a test job on a node."""
    values = {
        "host": "127.0.0.1", "port": login.port, "identity_file": str(login.key), "python": sys.executable,
        "accept_host_key": login.fingerprint, "partition": "main",
    }  # fmt: skip
    found = api.act("attach", "far", kind="slurm", values=values)
    assert not found.errors, found.errors

    def row() -> Any:
        return next(row for row in api.compute_rows(60) if row.name == "far")

    assert until(row, lambda one: one.state in ("ready", "failed")).state == "ready", row()
    return api


def test_cell_returns_value_and_metrics_over_ssh(attached: Any, cluster: Cluster) -> None:
    code = "import os\nprint('loss=0.5')\nx = os.environ['SLURM_JOB_ID']"
    run = attached.submit(code, target="far", out=["x"], metrics=["loss=loss={value}"], name="far")
    assert run.wait().result("x").isdigit()
    until(run.metrics, lambda found: found.get("loss"))
    assert "loss=0.5" in run.logs()
    until(cluster.jobs, lambda jobs: not jobs)


def test_run_goes_on_while_the_link_is_cut_for_a_minute(attached: Any, login: Sshd) -> None:
    code = "import time\nfor i in range(150):\n    print('line', i, flush=True)\n    time.sleep(0.5)"
    run = attached.submit(code, target="far", name="cut")
    until(run.logs, lambda text: "line 3" in text)
    login.stop()
    time.sleep(60)
    login.start()
    record = until(run.record, lambda found: found.state == "completed")
    assert record.state == "completed"
    assert run.logs().splitlines()[:150] == [f"line {i}" for i in range(150)]


def test_cancel_and_waiting_reason_travel(attached: Any, cluster: Cluster) -> None:
    run = attached.submit("print(1)", target="far", options=["--hold"], name="held")
    until(run.record, lambda found: "JobHeldUser" in (found.detail or ""))
    run.cancel()
    assert until(run.record, lambda found: found.state == "canceled")
    assert not cluster.jobs()
    text, rows = attached.target_overview("far")
    assert "main" in text and json.dumps(rows)


def test_login_that_is_refused_is_one_sentence(login: Sshd, api: Any, tmp_path: Path) -> None:
    from tools.openssh import make_key

    values = {
        "host": "127.0.0.1", "port": login.port, "identity_file": str(make_key(tmp_path / "other")),
        "accept_host_key": login.fingerprint,
    }  # fmt: skip
    api.act("attach", "far", kind="slurm", values=values)
    row = until(
        lambda: next(row for row in api.compute_rows(60) if row.name == "far"), lambda one: one.state == "failed"
    )
    assert row.detail and "\n" not in row.detail


def test_machine_without_slurm_is_one_sentence(
    login: Sshd, api: Any, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    from jupyter_amltrain.slurm.agent import commands

    monkeypatch.setattr(commands, "_FOLDERS", ())
    api.act("attach", "near", kind="slurm", values={})
    row = until(
        lambda: next(row for row in api.compute_rows(60) if row.name == "near"), lambda one: one.state == "failed"
    )
    assert "was not found" in row.detail and "login node" in row.detail
