"""Sweeps as job arrays, and their drivers: here, killed, and as a job of the cluster."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.slurm.conftest import Kernel, until

pytestmark = pytest.mark.thorough

#: A trial that says its parameter and where it ran.
TRIAL = """
import argparse, os, time
parser = argparse.ArgumentParser()
parser.add_argument('--x', type=float)
parser.add_argument('--wait', type=float, default=0)
args = parser.parse_args()
print(f"task={os.environ.get('SLURM_ARRAY_TASK_ID', '')}", flush=True)
time.sleep(args.wait)
print(f'loss={args.x * args.x}', flush=True)
"""
#: Reports 100 values; those of large `x` are bad from the start.
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
    values = ",".join(map(str, range(count)))
    given = {"goal": "minimize loss", "params": {"x": f"choice({values})"}, "sampler": "grid", "target": "cluster"}
    return kernel.api.sweep(str(file), metrics=["loss=loss={value}"], **{**given, **fields})


def check_each_once(kernel: Kernel, run: Any, count: int) -> None:
    """Each point has one run, one row, and the loss of its own parameter."""
    children = run.children()
    assert len(children) == count and len({child.id for child in children}) == count
    assert sorted(child.value for child in children) == [float(x * x) for x in range(count)]
    folders = [path for path in kernel.runs_folder.iterdir() if path.name in {child.id for child in children}]
    assert len(folders) == count
    for child in children:
        log = (kernel.runs_folder / child.id / "log" / "rank-0.txt").read_text()
        assert len(re.findall("loss=", log)) == 1, log


def records(kernel: Kernel, run: Any) -> list[dict[str, Any]]:
    return [json.loads((kernel.runs_folder / child.id / "slurm.json").read_text()) for child in run.children()]


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
    check_each_once(kernel, run, 40)
    jobs = {record["job"].partition("_")[0] for record in records(kernel, run)}
    assert len(jobs) == 1 and len({record["job"] for record in records(kernel, run)}) == 40
    until(kernel.cluster.jobs, lambda left: not left)
    script = (kernel.runs_folder / run.children()[0].id / "slurm.sh").read_text()
    assert run.run_id in script and "SLURM_ARRAY_TASK_ID" in script


@pytest.fixture
def without_arrays(kernel: Kernel) -> Iterator[None]:
    """The cluster takes no arrays."""
    conf = kernel.cluster.conf
    text = conf.read_text()
    conf.write_text(f"{text}MaxArraySize=1\n")
    kernel.cluster.stop_controller()
    kernel.cluster.start_controller()
    kernel.cluster.wait_ready()
    yield
    conf.write_text(text)
    kernel.cluster.stop_controller()
    kernel.cluster.start_controller()
    kernel.cluster.wait_ready()


@pytest.mark.usefixtures("without_arrays")
def test_forty_trials_are_submitted_one_by_one_where_there_are_no_arrays(kernel: Kernel, trial: Path) -> None:
    run = sweep(kernel, trial, 40, max_concurrent=4, name="single").wait()
    check_each_once(kernel, run, 40)
    assert not any("_" in record["job"] for record in records(kernel, run))
    until(kernel.cluster.jobs, lambda left: not left)


def test_array_has_no_more_trials_at_a_time_than_allowed(kernel: Kernel, trial: Path) -> None:
    run = sweep(kernel, trial, 4, max_concurrent=2, args=["--wait", "2"], name="throttled")
    until(lambda: kernel.cluster.command("squeue", "-hr", "-t", "R").stdout.splitlines(), lambda rows: len(rows) == 2)
    seen = 0
    while run.record().state not in ENDS:
        seen = max(seen, len(kernel.cluster.command("squeue", "-hr", "-t", "R").stdout.splitlines()))
        time.sleep(0.2)
    assert seen == 2 and run.record().state == "completed"
    check_each_once(kernel, run, 4)


def test_killed_driver_finds_its_array_again(kernel: Kernel, trial: Path) -> None:
    run = sweep(kernel, trial, 12, max_concurrent=2, args=["--wait", "1"], name="orphaned")
    until(run.children, lambda rows: any(row.state == "completed" for row in rows))
    os.kill(driver_pid(run), signal.SIGKILL)
    run.wait()
    check_each_once(kernel, run, 12)
    assert len({record["job"].partition("_")[0] for record in records(kernel, run)}) == 1
    assert "started again" in run.logs()


@pytest.mark.parametrize("moment", ["sweep_before_array", "sweep_after_array", "sweep_before_sent"])
def test_driver_killed_at_the_start_doubles_nothing(
    kernel: Kernel, trial: Path, moment: str, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    (home / "hit").mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv("AMLTRAIN_FAILPOINT", moment)
    monkeypatch.setenv("AMLTRAIN_FAILPOINT_ONCE", str(home / "hit"))
    run = sweep(kernel, trial, 6, max_concurrent=3, name="early").wait()
    check_each_once(kernel, run, 6)
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
    check_each_once(kernel, run, 4)
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
    check_each_once(kernel, run, 8)
    assert run.run.status.attempt == 2
