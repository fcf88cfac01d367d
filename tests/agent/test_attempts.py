"""Runs that start again: after a failure, a pre-emption, the death of their supervisor, a reboot."""

from __future__ import annotations

import os
import signal

import pytest

from .conftest import Agent, alive, until

#: Counts its attempts in the checkpoint folder, as `attempt`.
COUNT = """
import os, signal, sys, time
folder = os.environ["AML_CHECKPOINT_DIR"]
attempt = len(os.listdir(folder)) + 1
open(os.path.join(folder, str(attempt)), "w").close()
print("attempt", attempt, os.environ.get("TOKEN", "-"), os.environ.get("PLAIN", "-"))
"""


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMLTRAIN_RESTART_PAUSE", "0.05")


def lines(agent: Agent, run: str) -> list[str]:
    return agent.log(run).splitlines()


def test_failed_job_starts_again_with_environment_secrets_and_checkpoints(agent: Agent) -> None:
    code = COUNT + "sys.stdout.write('torn'); sys.stdout.flush()\nsys.exit(3 if attempt < 3 else 0)"
    environ = {**os.environ, "PLAIN": "plain"}
    run = agent.submit(code, restarts={"max": 2}, environ=environ, secrets={"TOKEN": "hidden"})
    state = agent.wait(run)
    assert (state["state"], state["attempt"]) == ("completed", 3)
    assert [row["exit_code"] for row in state["attempts"]] == [3, 3]
    names = [phase["name"] for phase in state["phases"]]
    assert names == ["queued", "running", "queued", "running", "queued", "running", "finalizing"]
    log = lines(agent, run)
    assert [line for line in log if line.startswith("attempt")] == [f"attempt {n} hidden plain" for n in (1, 2, 3)]
    assert len([line for line in log if line.startswith("[restart] ")]) == 2  # on lines of their own
    assert not agent.left()


def test_exhausted_restarts_fail_with_last_error(agent: Agent) -> None:
    run = agent.submit(COUNT + "sys.exit(attempt)", restarts={"max": 2})
    state = agent.wait(run)
    assert (state["state"], state["reason"], state["exit_code"], state["attempt"]) == ("failed", "exit", 3, 3)
    assert "after 3 attempts" in state["detail"]


def test_killed_supervisor_starts_again(agent: Agent) -> None:
    run = agent.gated(COUNT, restarts={"max": 1}, secrets={"TOKEN": "hidden"})
    before = agent.running(run, "up")
    os.kill(before["supervisor"]["pid"], signal.SIGKILL)
    until(lambda: agent.state(run).get("attempt") == 2 and agent.state(run).get("rank"), "attempt 2")
    assert not alive(before["rank"]["pid"])
    agent.open_gate()
    state = agent.wait(run)
    assert (state["state"], state["attempt"]) == ("completed", 2)
    assert "hidden" in agent.log(run)
