"""Runs on a real cluster whose login node SSH reaches."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.errors import SpecError
from tests.slurm.conftest import until
from tests.slurm.trials import TRIAL, check_each_once, grid, jobs_of
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


@pytest.fixture
def trial(attached: Any, home: Path) -> Path:
    """Script of a trial in the working folder of the kernel."""
    file = home.parent / "work" / "trial.py"
    file.write_text(TRIAL)
    return file


@pytest.fixture
def far_runs(tmp_path: Path) -> Path:
    """Folder of the runs on the login node."""
    return tmp_path / "user" / ".local" / "state" / "amltrain" / "slurm" / "far" / "runs"


def test_sweep_over_ssh_is_one_array_and_each_trial_runs_once(
    attached: Any, cluster: Cluster, trial: Path, far_runs: Path
) -> None:
    run = grid(attached, "far", trial, 12, max_concurrent=3, args=["--wait", "1"], name="swept").wait()
    check_each_once(far_runs, run, 12)
    jobs = jobs_of(far_runs, run)
    assert len({job.partition("_")[0] for job in jobs}) == 1 and len(set(jobs)) == 12
    until(cluster.jobs, lambda left: not left)


def test_canceled_sweep_over_ssh_leaves_nothing_in_the_queue(attached: Any, cluster: Cluster, trial: Path) -> None:
    run = grid(attached, "far", trial, 8, max_concurrent=2, args=["--wait", "60"], name="ended")
    until(run.children, lambda rows: any(row.state == "running" for row in rows))
    run.cancel()
    assert until(run.record, lambda record: record.state in ("completed", "failed", "canceled")).state == "canceled"
    until(cluster.jobs, lambda left: not left)


def test_driver_as_a_job_over_ssh_is_refused_in_one_sentence(attached: Any, cluster: Cluster, trial: Path) -> None:
    with pytest.raises(SpecError) as error:
        grid(attached, "far", trial, 2, driver="far")
    assert error.value.code == "sweep.driver" and "--driver far" in str(error.value)
    assert error.value.hint and "\n" not in str(error.value) and not cluster.jobs()


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
