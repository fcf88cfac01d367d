"""Sweeps as job arrays, and their drivers: here, killed, and as a job of the cluster."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.slurm.conftest import Kernel, configured, until
from tests.slurm.trials import TRIAL, check_each_once, grid, jobs_of

pytestmark = pytest.mark.thorough

#: Reports 40 values; those of large `x` are bad from the start.
SLOW = """
import argparse, time
parser = argparse.ArgumentParser()
parser.add_argument('--x', type=float)
x = parser.parse_args().x
for step in range(40):
    print(f'loss={x}', flush=True)
    time.sleep(0.25)
"""
ENDS = ("completed", "failed", "canceled", "lost")


@pytest.fixture
def trial(kernel: Kernel) -> Path:
    file = kernel.runs_folder.parents[3] / "work" / "trial.py"
    file.write_text(TRIAL)
    return file


def sweep(kernel: Kernel, file: Path, count: int, **fields: Any) -> Any:
    return grid(kernel.api, "cluster", file, count, **fields)


def driver_pid(run: Any) -> int:
    """Process of the driver of a sweep on this machine."""

    def find() -> int:
        for process in psutil.process_iter():
            try:
                mark = process.environ().get("AMLTRAIN_RUN", "")
                if mark.startswith(f"{run.run_id}:") and any("aml_sweep_driver" in word for word in process.cmdline()):
                    return process.pid
            except (psutil.Error, OSError):
                continue
        return 0

    return int(until(find, bool))


def test_forty_trials_are_one_array_and_each_runs_once(kernel: Kernel, trial: Path) -> None:
    run = sweep(kernel, trial, 40, max_concurrent=4, name="many").wait()
    check_each_once(kernel.runs_folder, run, 40)
    jobs = jobs_of(kernel.runs_folder, run)
    assert len({job.partition("_")[0] for job in jobs}) == 1 and len(set(jobs)) == 40
    until(kernel.cluster.jobs, lambda left: not left)
    script = (kernel.runs_folder / run.children()[0].id / "slurm.sh").read_text()
    assert run.run_id in script and "SLURM_ARRAY_TASK_ID" in script


@pytest.fixture
def without_arrays(kernel: Kernel) -> Iterator[None]:
    """The cluster takes no arrays."""
    with configured(kernel.cluster, MaxArraySize=1):
        yield


@pytest.mark.usefixtures("without_arrays")
def test_forty_trials_are_submitted_one_by_one_where_there_are_no_arrays(kernel: Kernel, trial: Path) -> None:
    run = sweep(kernel, trial, 40, max_concurrent=4, name="single").wait()
    check_each_once(kernel.runs_folder, run, 40)
    assert not any("_" in job for job in jobs_of(kernel.runs_folder, run))
    until(kernel.cluster.jobs, lambda left: not left)


def test_array_has_no_more_trials_at_a_time_than_allowed(kernel: Kernel, trial: Path) -> None:
    run = sweep(kernel, trial, 4, max_concurrent=2, args=["--wait", "2"], name="throttled")
    until(lambda: kernel.cluster.command("squeue", "-hr", "-t", "R").stdout.splitlines(), lambda rows: len(rows) == 2)
    seen = 0
    while run.record().state not in ENDS:
        seen = max(seen, len(kernel.cluster.command("squeue", "-hr", "-t", "R").stdout.splitlines()))
        time.sleep(0.2)
    assert seen == 2 and run.record().state == "completed"
    check_each_once(kernel.runs_folder, run, 4)


def test_killed_driver_finds_its_array_again(kernel: Kernel, trial: Path) -> None:
    run = sweep(kernel, trial, 12, max_concurrent=2, args=["--wait", "1"], name="orphaned")
    until(run.children, lambda rows: any(row.state == "completed" for row in rows))
    os.kill(driver_pid(run), signal.SIGKILL)
    run.wait()
    check_each_once(kernel.runs_folder, run, 12)
    assert len({job.partition("_")[0] for job in jobs_of(kernel.runs_folder, run)}) == 1
    assert "started again" in run.logs()


@pytest.mark.parametrize("moment", ["sweep_before_array", "sweep_after_array", "sweep_before_sent"])
def test_driver_killed_at_the_start_doubles_nothing(
    kernel: Kernel, trial: Path, moment: str, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    (home / "hit").mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv("AMLTRAIN_FAILPOINT", moment)
    monkeypatch.setenv("AMLTRAIN_FAILPOINT_ONCE", str(home / "hit"))
    run = sweep(kernel, trial, 6, max_concurrent=3, name="early").wait()
    check_each_once(kernel.runs_folder, run, 6)
    until(kernel.cluster.jobs, lambda left: not left)


def test_policy_cancels_tasks_of_the_array(kernel: Kernel) -> None:
    file = kernel.runs_folder.parents[3] / "work" / "slow.py"
    file.write_text(SLOW)
    run = sweep(kernel, file, 4, max_concurrent=4, policy="bandit(slack_amount=0.5)", name="stopped").wait()
    states = {child.params["x"]: (child.state, child.early) for child in run.children()}
    assert states[0] == ("completed", False)
    assert [states[x] for x in (1, 2, 3)] == [("canceled", True)] * 3, states
    until(kernel.cluster.jobs, lambda left: not left)


def test_canceled_sweep_leaves_nothing_in_the_queue(kernel: Kernel, trial: Path) -> None:
    run = sweep(kernel, trial, 30, max_concurrent=2, args=["--wait", "60"], name="ended")
    until(run.children, lambda rows: sum(row.state == "running" for row in rows) == 2)
    run.cancel()
    assert until(run.record, lambda record: record.state in ENDS).state == "canceled"
    until(kernel.cluster.jobs, lambda left: not left)
    runs = [kernel.api.attach(child.handle) for child in run.children()]
    until(lambda: {one.record().state for one in runs}, lambda states: states == {"canceled"})


def test_driver_is_a_job_of_the_cluster(kernel: Kernel, trial: Path) -> None:
    run = sweep(kernel, trial, 4, max_concurrent=2, driver="cluster", name="remote")
    assert run.handle.startswith("cluster/")
    run.wait()
    check_each_once(kernel.runs_folder, run, 4)
    assert "--time=60" in (kernel.folder(run) / "slurm.sh").read_text()
    until(kernel.cluster.jobs, lambda left: not left)


def test_driver_in_the_cluster_is_requeued_and_goes_on(kernel: Kernel, trial: Path) -> None:
    run = sweep(kernel, trial, 8, max_concurrent=1, driver="cluster", args=["--wait", "1"], name="moved")
    until(run.children, lambda rows: any(row.state == "completed" for row in rows))
    job = kernel.job(run)
    kernel.cluster.command("scontrol", "requeue", job)
    until(lambda: kernel.cluster.command("scontrol", "show", "job", job).stdout, lambda text: "BeginTime" in text)
    kernel.cluster.command("scontrol", "update", f"JobId={job}", "StartTime=now")
    run.wait()
    check_each_once(kernel.runs_folder, run, 8)
    assert run.run.status.attempt == 2
