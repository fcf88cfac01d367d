"""Parts of the agent are killed: nothing is lost without a word, and no process is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from .conftest import Agent, alive, processes_of, until

LONG = "import time; print('up'); time.sleep(600)"


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def helpers(agent: Agent, state: dict) -> list[int]:
    """Pids of sampler and sink."""
    from jupyter_amltrain.agent.processes import process_table

    return [
        p.pid
        for p in process_table().values()
        if p.parent == state["supervisor"]["pid"] and p.pid != state["rank"]["pid"]
    ]


@pytest.mark.thorough
def test_supervisor_killed_marks_run_lost(agent: Agent) -> None:
    run = agent.submit(
        "import os\nif os.fork() == 0: os.setsid()\n" + LONG, tracking={"run_id": "ab" * 16, "mode": "sink"}
    )
    state = agent.running(run, "up\nup")
    all_of_it = [state["rank"]["pid"], *until(lambda: helpers(agent, state) if len(helpers(agent, state)) == 2 else [])]
    kill(state["supervisor"]["pid"])
    state = agent.wait(run)
    assert (state["state"], state["reason"]) == ("lost", "lost")
    assert "supervisor was killed" in state["detail"]
    until(lambda: not any(alive(pid) for pid in all_of_it) and not agent.left(), "the last process")
    assert agent.wait(agent.submit("pass"))["state"] == "completed"


def test_guardian_killed_keeps_run(agent: Agent) -> None:
    run = agent.submit(LONG + "\n")
    state = agent.running(run, "up")
    kill(state["guardian"]["pid"])
    other = agent.submit("import time; time.sleep(0.2)")
    assert agent.wait(other)["state"] == "completed"
    until(lambda: agent.good("info")["running"] == 1, "the other's end")  # its slot is still its own
    assert agent.state(run)["state"] == "running"
    agent.good("cancel", run=run)
    state = agent.wait(run)
    assert state["state"] == "canceled"
    until(lambda: agent.good("info")["running"] == 0 and not agent.left(), "the freed slot")


def test_guardian_killed_then_job_completes(agent: Agent) -> None:
    run = agent.gated("if os.fork() == 0: os.setsid(); time.sleep(600)")
    kill(agent.running(run, "up")["guardian"]["pid"])
    agent.open_gate()
    assert agent.wait(run)["state"] == "completed"
    until(lambda: not agent.left(), "the last process")


@pytest.mark.thorough
def test_guardian_and_supervisor_killed_during_helper_start_leave_nothing(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A helper that does not know yet that it shall end with its parent ends with it."""
    monkeypatch.setenv("AMLTRAIN_FAILPOINT", "after_helper_fork:sleep=5")
    state = agent.running(agent.submit(LONG), "up")
    ours = until(lambda: helpers(agent, state))
    kill(state["guardian"]["pid"], state["supervisor"]["pid"])
    assert all(alive(pid) for pid in ours)  # in the sleep
    until(lambda: not agent.left() and not any(alive(pid) for pid in ours), "the last process")


@pytest.mark.thorough
@pytest.mark.parametrize("dispatcher_too", [False, True])
def test_guardian_and_supervisor_killed_mark_run_lost(agent: Agent, dispatcher_too: bool) -> None:
    run = agent.submit(
        "import os\nif os.fork() == 0: os.setsid()\n" + LONG, tracking={"run_id": "ab" * 16, "mode": "sink"}
    )
    state = agent.running(run, "up\nup")
    ours = until(lambda: helpers(agent, state) if len(helpers(agent, state)) == 2 else [])
    if dispatcher_too:
        agent.kill_dispatcher()
    kill(state["guardian"]["pid"], state["supervisor"]["pid"])
    state = agent.wait(run)
    assert state["state"] == "lost" and "were killed" in state["detail"]
    until(lambda: not agent.left() and not any(alive(pid) for pid in ours), "the last process")
    assert agent.wait(agent.submit("pass"))["state"] == "completed"


@pytest.mark.thorough
def test_helpers_killed_are_restarted(agent: Agent) -> None:
    run = agent.submit(LONG, tracking={"run_id": "ab" * 16, "mode": "sink"})
    state = agent.running(run, "up")
    for _ in range(3):
        until(lambda: len(agent.telemetry(run)) > 2 and len(helpers(agent, state)) == 2, "sampler and sink")
        path = agent.run_folder(run) / "telemetry" / "node-0.jsonl"
        ours = [psutil.Process(pid) for pid in helpers(agent, state)]
        for helper in ours:
            helper.suspend()
        until(lambda ours=ours: all(helper.status() == psutil.STATUS_STOPPED for helper in ours), "both stand still")
        count = len(agent.telemetry(run))
        with path.open("ab") as file:  # a torn line, as of a kill in the middle of a write
            file.write(b"[99,17")
        kill(*[helper.pid for helper in ours])
        until(lambda count=count: len(agent.telemetry(run)) > count + 1, "the next samples")
    agent.good("cancel", run=run)
    assert agent.wait(run)["state"] == "canceled"
    rows = agent.ticks(run)
    assert [row[0] for row in rows] == list(range(len(rows)))


@pytest.mark.thorough
def test_dispatcher_killed_keeps_running_and_waiting_jobs(agent: Agent) -> None:
    gate = agent.folder / "gate"
    code = f"import os, time\nprint('up')\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n"
    code += "print(os.environ['X'])"
    busy = [agent.submit(code, environ={"X": "mine"}) for _ in range(2)]
    plain = agent.submit("import os; print(os.environ.get('X'))", environ={"X": "mine"})
    secret = agent.submit("pass", secrets={"TOKEN": "xyzzy"})
    for run in busy:
        agent.running(run, "up")
    first = agent.kill_dispatcher()
    # Its spare pair goes with it, running jobs do not.
    assert agent.state(plain)["state"] == "queued"  # this poll starts the next one
    assert agent.dispatcher() != first
    assert agent.good("info")["running"] == 2
    gate.touch()
    for run in busy:
        assert agent.wait(run)["state"] == "completed"
        assert agent.log(run) == "up\nmine\n"
    for run in (plain, secret):  # never with another environment than the submitter's
        state = agent.wait(run)
        assert (state["state"], state["reason"]) == ("failed", "launch")
        assert "environment" in state["detail"] and "Submit it again" in state["detail"]
        assert agent.log(run) == "" and state["rank"] is None


def test_cancel_of_waiting_job_without_dispatcher_succeeds(agent: Agent) -> None:
    busy = [agent.submit(LONG) for _ in range(2)]
    waiting = agent.submit("pass")
    agent.kill_dispatcher()
    agent.good("cancel", run=waiting)
    assert agent.wait(waiting)["state"] == "canceled"
    for run in busy:
        agent.good("cancel", run=run)
        assert agent.wait(run)["state"] == "canceled"


@pytest.mark.parametrize(
    "name",
    [
        "after_run_folder",
        "after_job_json",
        "after_state_write",
        "after_ticket",
        "after_slot_record",
        "after_go",
    ],
)
def test_dispatcher_killed_at_failpoint_loses_nothing(
    agent: Agent, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    once = tmp_path / "once"
    once.mkdir()
    monkeypatch.setenv("AMLTRAIN_FAILPOINT", name)
    monkeypatch.setenv("AMLTRAIN_FAILPOINT_ONCE", str(once))
    staged = Path(agent.home, "staging", "mine")
    staged.mkdir(parents=True)
    (staged / "script.py").write_text("print('once')")
    script = str(agent.run_folder("mine") / "source" / "script.py")
    agent.submit("", run="mine", argv=[sys.executable, "-u", script], secrets={"S": "1"})
    state = agent.wait("mine")
    assert list(once.iterdir()), "the failpoint was not reached"
    if name in ("after_slot_record", "after_go") and state["state"] == "failed":
        assert "Submit it again" in state["detail"]  # the answer had been given, the secret is lost
        assert agent.log("mine") == ""
    else:
        assert state["state"] == "completed", state
        assert agent.log("mine") == "once\n"
    assert [p.name for p in Path(agent.home, "runs").iterdir()] == ["mine"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("after_guardian_fork", {"lost", "completed"}),
        ("before_start", {"lost"}),
        ("after_rank_start", {"lost"}),
        ("before_final_state", {"lost"}),
        ("after_final_state", {"completed"}),
        ("sampler_tick", {"completed"}),
    ],
)
def test_run_killed_at_failpoint_ends(
    agent: Agent, name: str, ends: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    once = tmp_path / "once"
    once.mkdir()
    monkeypatch.setenv("AMLTRAIN_FAILPOINT", name)
    monkeypatch.setenv("AMLTRAIN_FAILPOINT_ONCE", str(once))
    run = agent.submit("import time; time.sleep(0.7)")
    assert agent.wait(run)["state"] in ends
    until(lambda: list(once.iterdir()), "the failpoint")
    until(lambda: not agent.left() and agent.good("info")["running"] == 0, "the last process")
    assert agent.wait(agent.submit("pass"))["state"] == "completed"


@pytest.mark.thorough
def test_run_folder_removed_during_run_frees_slot(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    monkeypatch.setenv("AMLTRAIN_FOLDER_RETURN_TIMEOUT", "2")
    run = agent.gated()
    agent.running(run, "up")
    shutil.rmtree(agent.run_folder(run), ignore_errors=True)
    shutil.rmtree(agent.run_folder(run), ignore_errors=True)
    agent.open_gate()
    until(lambda: agent.good("info")["running"] == 0 and not agent.left(), "the end")


def test_full_disk_keeps_job_running(agent: Agent, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount")
    try:
        small = Agent(tmp_path, Path(agent.zipapp))
        small.home, small.queue = str(disk), agent.queue
        run = small.gated()
        small.running(run, "up")
        until(lambda: len(small.telemetry(run)) > 2, "samples")
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 4096)
            except OSError:
                pass
        small.open_gate()  # on another disk
        until(lambda: not processes_of(f"AMLTRAIN_RUN={run}:"), "the job's end")
        assert small.state(run)["state"] in ("running", "finalizing")
        filler.unlink()
        assert small.wait(run)["state"] == "completed"
        rows = small.ticks(run)
        assert [row[0] for row in rows] == list(range(len(rows)))
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)
