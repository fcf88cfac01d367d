"""Starts that are held up: a pair that hangs or dies, and no process to be had."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from jupyter_amltrain.agent.processes import process_table
from tests.other_user import OTHER_UID, needs_root, run_as_other_user
from tests.tiers import thorough

from .conftest import Agent, alive, until

STEADY = 60.0
#: A user of this file only: the limit counts all processes of a user.
LIMITED_UID = OTHER_UID + 7


def spare_pair(agent: Agent) -> tuple[int, int]:
    """Pids of the waiting guardian and its supervisor."""
    dispatcher = agent.dispatcher()

    def found() -> tuple[int, int] | None:
        rows = process_table()
        for guardian in (row.pid for row in rows.values() if row.parent == dispatcher):
            for row in rows.values():
                if row.parent == guardian and row.state == "S":
                    return guardian, row.pid
        return None

    return until(found, "the waiting pair", STEADY)


def once(agent: Agent, monkeypatch: pytest.MonkeyPatch, failpoint: str) -> Path:
    folder = agent.folder / "once"
    folder.mkdir()
    monkeypatch.setenv("AMLTRAIN_FAILPOINT", failpoint)
    monkeypatch.setenv("AMLTRAIN_FAILPOINT_ONCE", str(folder))
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize("size", [10, 300_000], ids=["small", "more-than-a-pipe-holds"])
@pytest.mark.parametrize("who", ["guardian", "supervisor", "both"])
def test_run_given_to_stopped_processes_starts(agent: Agent, who: str, size: int) -> None:
    pair = spare_pair(agent)
    for pid in {"guardian": pair[:1], "supervisor": pair[1:], "both": pair}[who]:
        os.kill(pid, signal.SIGSTOP)
    # No string of an environment may be longer than 128 KiB.
    environ = {**os.environ, **{f"BIG_{i}": "x" * 100_000 for i in range(size // 100_000)}}
    run = agent.submit("print('ran')", environ=environ)
    assert agent.wait(run, STEADY)["state"] == "completed"
    assert agent.log(run) == "ran\n"


@pytest.mark.thorough
@pytest.mark.parametrize("point", ["before_started", *thorough("after_guardian_fork")])
def test_run_given_to_hanging_processes_is_started_by_others(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    reached = once(agent, monkeypatch, f"{point}:sleep=600")
    run = agent.submit("print('ran')")
    assert agent.wait(run, STEADY)["state"] == "completed"
    assert agent.log(run) == "ran\n"
    assert list(reached.iterdir()), "the failpoint was not reached"
    until(lambda: not agent.left(), "the end of the pair that hung")


def test_run_with_dying_supervisors_fails_with_detail(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMLTRAIN_FAILPOINT", "before_started")
    state = agent.wait(agent.submit("print('ran')"), STEADY)
    assert (state["state"], state["reason"]) == ("failed", "launch"), state
    until(lambda: agent.good("info")["running"] == 0, "the freed slot")


@pytest.mark.thorough
@pytest.mark.parametrize("point", ["before_guardian_fork", "before_supervisor_fork", "before_rank_fork"])
def test_run_without_forkable_process_waits_with_detail(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    # The failpoint stands in for RLIMIT_NPROC, which does not bind root; the file's absence is the limit's end.
    gate = agent.folder / "may-fork"
    monkeypatch.setenv("AMLTRAIN_FAILPOINT", f"{point}:raise-without={gate}")
    runs = [agent.submit(f"print('ran {number}')") for number in range(3)]
    for run in runs[:2]:
        until(lambda run=run: "process" in agent.state(run)["detail"], f"{run} says why it waits", STEADY)
        assert agent.state(run)["state"] in ("queued", "running")
    gate.touch()
    for number, run in enumerate(runs):
        assert agent.wait(run, STEADY)["state"] == "completed"
        assert agent.log(run) == f"ran {number}\n"


@pytest.mark.thorough
@pytest.mark.parametrize("point", ["before_supervisor_fork", "before_rank_fork"])
def test_run_waiting_for_process_can_be_canceled(agent: Agent, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    monkeypatch.setenv("AMLTRAIN_FAILPOINT", f"{point}:raise")
    run = agent.submit("print('ran')")
    until(lambda: "process" in agent.state(run)["detail"], "why it waits", STEADY)
    agent.good("cancel", run=run)
    assert agent.wait(run, STEADY)["state"] == "canceled"
    assert agent.log(run) == ""
    until(lambda: agent.good("info")["running"] == 0, "the freed slot")


FEW_PROCESSES = """
import json, os, resource, signal, sys, time
pyz, home = sys.argv[1], sys.argv[2]
sys.path.insert(0, pyz)
from amltrain_agent.calls import call
os.environ.update(AMLTRAIN_CPU_SLOTS="8", AMLTRAIN_DISPATCHER_IDLE="60")
queue = home + "/queue"
def ask(op, **payload):
    return call(op, payload, home + "/state", queue, pyz)
assert "error" not in ask("ping")
time.sleep(0.5)
count = sum(os.stat("/proc/" + p).st_uid == os.getuid() for p in os.listdir("/proc") if p.isdigit())
resource.setrlimit(resource.RLIMIT_NPROC, (count + 6, count + 6))
# The dispatcher's limit is its own: this one gets ours.
os.kill(ask("ping")["pid"], signal.SIGKILL)
time.sleep(0.2)
for number in range(6):
    code = "import time; time.sleep(1)"
    answer = ask("submit", run="run-%d" % number, argv=["/usr/bin/python3", "-S", "-c", code], environ={})
    assert "error" not in answer, answer
runs, why, until = ["run-%d" % n for n in range(6)], set(), time.monotonic() + 100
while time.monotonic() < until:
    states = ask("poll", run_ids=runs)["runs"]
    why |= {state["detail"] for state in states.values()}
    if all(state["state"] in ("completed", "failed", "lost", "canceled") for state in states.values()):
        break
    time.sleep(0.05)
print(json.dumps({"states": {run: (s["state"], s["detail"]) for run, s in states.items()}, "why": sorted(why)}))
try:
    os.kill(ask("ping")["pid"], signal.SIGTERM)
except (KeyError, OSError):
    pass
"""


@pytest.mark.thorough
@needs_root
@pytest.mark.skipif(not os.access("/usr/bin/python3", os.X_OK), reason="needs /usr/bin/python3 for another user")
@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="needs Linux: RLIMIT_NPROC counts the threads of a user"
)
def test_runs_under_process_limit_complete(tmp_path: Path, zipapp: Path) -> None:
    """The real limit, which binds a user who is not root."""
    home = tmp_path / "theirs"
    home.mkdir()
    os.chown(home, LIMITED_UID, LIMITED_UID)
    for folder in [home, *home.parents]:
        if str(folder).startswith("/tmp/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    copy = home / "agent.pyz"
    copy.write_bytes(zipapp.read_bytes())
    copy.chmod(0o644)
    # An interpreter that another user may start; ours may lie in a folder that is closed to him.
    script = "raise SystemExit(subprocess.run(['/usr/bin/python3', '-I', '-S', '-c', *sys.argv[1:]]).returncode)"
    done = run_as_other_user(script, FEW_PROCESSES, str(copy), str(home), timeout_s=150, uid=LIMITED_UID)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert {state for state, _ in result["states"].values()} == {"completed"}, result
    assert any("process" in text for text in result["why"]), result


def test_guardian_death_after_start_keeps_run(agent: Agent) -> None:
    run = agent.submit("import time; print('up'); time.sleep(600)")
    state = agent.running(run, "up")
    os.kill(state["guardian"]["pid"], signal.SIGKILL)
    agent.good("cancel", run=run)
    assert agent.wait(run)["state"] == "canceled"
    assert not alive(state["supervisor"]["pid"]) or until(lambda: not alive(state["supervisor"]["pid"]))
