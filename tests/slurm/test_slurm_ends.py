"""Ends of runs as Slurm ends them: canceled, requeued, out of time, killed, forgotten; and a silent controller."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent.protocol import write_json
from jupyter_amltrain.commands.runs import show_text
from jupyter_amltrain.slurm.agent import runs
from jupyter_amltrain.slurm.agent.jobs import Jobs, parse
from tests.slurm.conftest import Kernel, until

pytestmark = pytest.mark.thorough

SLEEPS = "import time\nprint('up', flush=True)\ntime.sleep(600)"
#: Counts its starts in the folder for checkpoints; the third one ends.
STARTS = """
import os, time
path = os.path.join(os.environ["AML_CHECKPOINT_DIR"], "starts")
starts = int(open(path).read()) if os.path.exists(path) else 0
open(path, "w").write(str(starts + 1))
print("start", starts, flush=True)
if starts < 2:
    time.sleep(600)
"""
#: Ends when a file exists.
WAITS = "import os, time\nprint('up', flush=True)\nwhile not os.path.exists('{}'):\n    time.sleep(0.1)\nprint('end')"
#: Saves a checkpoint at SIGTERM.
SAVES = """
import os, signal, sys, time
def save(*_):
    open(os.path.join(os.environ["AML_CHECKPOINT_DIR"], "saved"), "w").close()
    print("saved", flush=True)
    sys.exit(1)
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
time.sleep(600)
"""


def started(run: Any, word: str = "up") -> None:
    until(run.logs, lambda text: word in text)


def state_of(kernel: Kernel, run: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((kernel.folder(run) / "state.json").read_text())
    return found


def test_cancel_ends_running_job(kernel: Kernel) -> None:
    run = kernel.submit(SLEEPS)
    started(run)
    run.cancel()
    assert kernel.ended(run).state == "canceled"


def test_scancel_is_cancel_of_run(kernel: Kernel) -> None:
    run = kernel.submit(SLEEPS)
    started(run)
    kernel.cluster.command("scancel", kernel.job(run))
    record = kernel.ended(run)
    assert record.state == "canceled" and "scancel" in state_of(kernel, run)["detail"]


def test_job_requeued_twice_is_one_run_with_three_attempts(kernel: Kernel) -> None:
    run = kernel.submit(STARTS)
    for number in range(2):
        started(run, f"start {number}")
        job = kernel.job(run)
        kernel.cluster.command("scontrol", "requeue", job)
        until(run.record, lambda found: found.state == "queued")
        until(lambda job=job: kernel.cluster.command("scontrol", "show", "job", job).stdout, lambda t: "BeginTime" in t)
        kernel.cluster.command("scontrol", "update", f"JobId={job}", "StartTime=now")
    assert kernel.ended(run).state == "completed"
    lines = run.logs().splitlines()
    assert [line for line in lines if line.startswith("start")] == ["start 0", "start 1", "start 2"]
    assert state_of(kernel, run)["attempt"] == 3 and len(state_of(kernel, run)["attempts"]) == 2
    assert "2, by the target" in show_text(run)


def test_own_time_limit_lets_the_job_save(kernel: Kernel) -> None:
    run = kernel.submit(SAVES, timeout=15)  # a busy machine needs seconds until the script knows what to do
    record = kernel.ended(run)
    assert record.state == "failed" and "time limit" in (record.error or "").lower()
    assert (kernel.folder(run) / "checkpoints" / "saved").exists()


def test_time_limit_of_slurm_lets_the_job_save(kernel: Kernel) -> None:
    run = kernel.submit(SAVES, options=["--time=1"])
    record = kernel.ended(run)
    assert record.state == "failed" and state_of(kernel, run)["reason"] == "timeout"
    assert "saved" in run.logs()


def test_killed_supervisor_ends_the_run(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "WRITTEN_TIMEOUT_S", 2.0)
    run = kernel.submit(SLEEPS)
    started(run)
    os.kill(state_of(kernel, run)["supervisor"]["pid"], signal.SIGKILL)
    record = kernel.ended(run)
    assert record.state in ("failed", "lost") and record.error


def test_failed_setup_line_is_shown_with_its_text(kernel: Kernel, home: Path) -> None:
    marker = home / "works-at-first"
    marker.touch()
    kernel.attach(
        "broken", partition="main", setup=f"test -e {marker} -o -e /nowhere/env", proven=f"main:{home}/slurm/broken"
    )
    marker.unlink()
    run = kernel.api.submit("print(1)", target="broken")
    until(run.record, lambda found: found.state == "failed")
    assert "/nowhere/env" in run.record().error and "failed" in run.record().error


def test_controller_stopped_for_a_minute_leaves_runs_alone(kernel: Kernel, home: Path) -> None:
    ends, outlives = (kernel.submit(WAITS.format(home / name), name=name) for name in ("ends", "outlives"))
    started(ends), started(outlives)
    kernel.cluster.stop_controller()
    stopped = time.monotonic()
    try:
        record = until(ends.record, lambda found: "does not answer" in (found.detail or ""))
        assert record.state == "running"
        (home / "ends").touch()
        assert until(ends.record, lambda found: found.state == "completed").state == "completed"
        while time.monotonic() - stopped < 60:
            assert outlives.record().state == "running"
            time.sleep(1)
        (home / "outlives").touch()
    finally:
        kernel.cluster.start_controller()
        kernel.cluster.wait_ready()
    for run in (ends, outlives):
        assert kernel.ended(run).state == "completed" and run.logs().split() == ["up", "end"]


def test_run_continues_without_kernel_and_is_found_by_the_next(kernel: Kernel) -> None:
    run = kernel.submit("import time\nprint('up', flush=True)\ntime.sleep(3)\nprint('end')")
    started(run)
    handle = run.handle
    kernel.api.close()
    again = kernel.api.attach(handle)
    assert until(again.record, lambda found: found.state == "completed")
    assert again.logs().split() == ["up", "end"]


def test_job_that_slurm_has_forgotten_is_lost(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "WRITTEN_TIMEOUT_S", 0.5)
    run = kernel.submit("print(1)", options=["--hold"])
    job = kernel.job(run)
    record = {"job": "999999", "submitted": time.time() - 60, "schema": 1}
    write_json(str(kernel.folder(run) / "slurm.json"), record)
    found = until(run.record, lambda record: record.state == "lost")
    assert "does not know its job" in found.error
    kernel.cluster.command("scancel", job)


def test_dead_node_lets_the_run_start_on_the_other_one(kernel: Kernel) -> None:
    run = kernel.submit(STARTS.replace("starts < 2", "starts < 1"), options=["--nodelist=n2"], name="moved")
    started(run, "start 0")
    job = kernel.job(run)
    kernel.cluster.kill_node("n2")
    # As the controller does it after SlurmdTimeout, within which a busy machine does not answer for n1 either.
    kernel.cluster.command("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=dead")
    try:
        shown = lambda: kernel.cluster.command("scontrol", "show", "job", job).stdout  # noqa: E731
        until(shown, lambda text: "Restarts=1" in text)
        kernel.cluster.command("scontrol", "update", f"JobId={job}", "ReqNodeList=", "StartTime=now")
        record = until(run.record, lambda found: found.state == "completed")
        assert record.state == "completed" and "start 1" in run.logs()
        assert state_of(kernel, run)["attempt"] == 2
    finally:
        kernel.cluster.start_node("n2")
        kernel.cluster.command("scontrol", "update", "NodeName=n2", "State=RESUME")
        kernel.cluster.wait_ready()


def test_second_job_of_a_run_starts_nothing(kernel: Kernel) -> None:
    run = kernel.submit("print('once')", options=["--hold"], name="once")
    kernel.job(run)
    script = kernel.folder(run) / "again.sh"
    script.write_text((kernel.folder(run) / "slurm.sh").read_text().replace("#SBATCH --hold\n", ""))
    other = kernel.cluster.command("sbatch", "--parsable", str(script)).stdout.strip()
    until(kernel.cluster.jobs, lambda jobs: other not in jobs)
    assert run.record().state == "queued" and run.logs() == ""
    kernel.cluster.command("scontrol", "release", kernel.job(run))
    assert kernel.ended(run).state == "completed" and run.logs() == "once\n"


def test_out_of_memory_is_the_reason_of_a_run_whose_job_was_killed(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_last_facts", lambda job: ("OUT_OF_MEMORY", "0:125"))
    monkeypatch.setattr(runs, "RESULT_TIMEOUT_S", 0.5)
    run = kernel.submit("print(1)", options=["--hold"])
    job = kernel.job(run)
    kernel.cluster.command("scancel", job)
    record = until(run.record, lambda found: found.state == "failed")
    assert "out of memory" in record.error.lower() and "--mem" in record.error


def test_question_reaches_the_run_as_a_step_of_its_job(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    from jupyter_amltrain.slurm.agent import calls

    run = kernel.submit(SLEEPS)
    started(run)
    monkeypatch.setattr(calls, "pid_scope", lambda: "another machine")
    controller = kernel.api.controller()

    async def answers() -> Any:
        questions = controller.backend("cluster").questions
        return await questions.ask(run.handle.partition("/")[2], {"kind": "stack"})

    answer = controller.loop.call(answers(), 60)
    (process,) = answer["answers"]
    assert process["threads"][0]["calls"][-1][0].endswith("script.py")
    run.cancel()


def test_started_job_without_a_sign_of_life_says_so(home: Path) -> None:
    folder = home / "runs" / "quiet"
    folder.mkdir(parents=True)
    write_json(str(folder / "slurm.json"), {"job": "5", "submitted": 1.0, "schema": 1})
    listed = Jobs(parse("5|5|RUNNING|1|1:00:00|2:00|1|n1|main|None|x\n"), None, 0.0, time.time())
    state = {"state": "queued", "detail": "", "changed": 1.0, "phases": []}
    found = runs.current(str(home), "quiet", state, listed)
    assert found["state"] == "queued" and "no sign of life for 120 s" in found["detail"]
    state = {"state": "running", "detail": "", "changed": 1.0, "phases": []}
    (folder / "slurm-alive").touch()
    os.utime(folder / "slurm-alive", (time.time() - 100, time.time() - 100))
    found = runs.current(str(home), "quiet", state, listed)
    assert found["state"] == "running" and "RUNNING on n1" in found["detail"]
