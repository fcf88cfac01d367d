"""Runs that start again: after a failure, a pre-emption, the death of their supervisor, a reboot."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

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


def test_killed_supervisor_and_guardian_start_again(agent: Agent) -> None:
    run = agent.gated(COUNT, restarts={"max": 1})
    before = agent.running(run, "up")
    for name in ("guardian", "supervisor"):
        os.kill(before[name]["pid"], signal.SIGKILL)
    agent.open_gate()
    state = agent.wait(run)
    assert (state["state"], state["attempt"]) == ("completed", 2)
    assert not agent.left()


@pytest.mark.thorough
def test_restart_that_was_not_recorded_is_not_doubled(agent: Agent) -> None:
    run = agent.gated(COUNT, restarts={"max": 2})
    os.kill(agent.running(run, "up")["supervisor"]["pid"], signal.SIGKILL)
    state = until(lambda: agent.state(run).get("attempt") == 2 and agent.state(run).get("rank") and agent.state(run))
    agent.kill_dispatcher()
    for name in ("guardian", "supervisor"):
        os.kill(state[name]["pid"], signal.SIGKILL)
        until(lambda name=name: not alive(state[name]["pid"]), "its end")
    # As if both had been killed between the start of the process and the write of the state.
    file = agent.run_folder(run) / "state.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "state": "queued", "rank": None}))
    assert alive(state["rank"]["pid"])
    until(lambda: agent.state(run) and not alive(state["rank"]["pid"]), "the end of the first process")
    agent.open_gate()
    assert (agent.wait(run)["state"], agent.state(run)["attempt"]) == ("completed", 2)
    assert [line for line in lines(agent, run) if line.startswith("attempt")] == ["attempt 1 - -"]


def test_killed_supervisor_without_restarts_left_is_lost(agent: Agent) -> None:
    run = agent.gated(COUNT, restarts={"max": 1})
    for attempt in (1, 2):
        until(lambda n=attempt: agent.state(run).get("attempt", 1) == n and agent.state(run).get("rank"), "its start")
        os.kill(agent.state(run)["supervisor"]["pid"], signal.SIGKILL)
    assert agent.wait(run)["state"] == "lost"
    assert not agent.left()


@pytest.mark.thorough
def test_terminated_supervisor_goes_back_to_queue(agent: Agent) -> None:
    """SIGTERM to all processes, as when a machine shuts down."""
    run = agent.gated(COUNT, restarts={"max": 1}, secrets={"TOKEN": "hidden"})
    before = agent.running(run, "up")
    os.kill(before["supervisor"]["pid"], signal.SIGTERM)
    until(lambda: agent.state(run).get("attempt") == 2, "the queue")
    agent.open_gate()
    state = agent.wait(run)
    assert (state["state"], state["attempts"][0]["reason"]) == ("completed", "preempted")
    assert state["supervisor"] != before["supervisor"] and "hidden" in agent.log(run)


def reboot(agent: Agent, run: str) -> None:
    """Kill all processes of the agent and change the boot in its files, as after a restart of the machine."""
    state = agent.running(run, "up")
    agent.kill_dispatcher()
    for name in ("guardian", "supervisor", "rank"):
        os.kill(state[name]["pid"], signal.SIGKILL)
        until(lambda pid=state[name]["pid"]: not alive(pid), "its end")
    files = [agent.run_folder(run) / "state.json", *Path(agent.queue, "slots").glob("*.json")]
    for file in files:
        file.write_text(json.dumps({**json.loads(file.read_text()), "boot": "an earlier boot"}))


@pytest.mark.thorough
def test_rebooted_machine_starts_run_again_with_public_environment(agent: Agent) -> None:
    environ = {**os.environ, "PLAIN": "from the notebook"}
    run = agent.gated(COUNT, restarts={"max": 1}, environ=environ, env={"TOKEN": "public"})
    reboot(agent, run)
    agent.open_gate()
    state = agent.wait(run)
    assert (state["state"], state["attempt"]) == ("completed", 2)
    assert "attempt 1 public -" in agent.log(run)  # the first one had waited at the gate
    assert len(state["notes"]) == 1


@pytest.mark.thorough
def test_rebooted_run_with_secrets_is_lost(agent: Agent) -> None:
    run = agent.gated(COUNT, restarts={"max": 1}, secrets={"TOKEN": "hidden"})
    reboot(agent, run)
    state = agent.wait(run)
    assert state["state"] == "lost" and "secrets" in state["detail"]


def test_cancel_during_pause_ends_run(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMLTRAIN_RESTART_PAUSE", "600")
    run = agent.submit("raise SystemExit(1)", restarts={"max": 5})
    until(lambda: agent.state(run).get("attempt") == 2, "the pause")
    assert agent.state(run)["state"] == "queued"
    agent.good("cancel", run=run)
    state = agent.wait(run)
    assert (state["state"], state["attempt"]) == ("canceled", 2)
    assert not agent.left()


@pytest.mark.thorough
def test_simulated_preemption_spares_last_attempt(agent: Agent) -> None:
    code = COUNT + "signal.signal(15, lambda *_: print('saves', flush=True))\ntime.sleep(1 if attempt == 3 else 600)"
    run = agent.submit(code, restarts={"max": 2, "preempt_after": 0.7}, grace=0.2)
    state = agent.wait(run)
    assert (state["state"], state["attempt"]) == ("completed", 3)
    assert [row["reason"] for row in state["attempts"]] == ["preempted", "preempted"]
    assert agent.log(run).count("saves") >= 1


@pytest.mark.thorough
def test_time_limit_counts_all_attempts(agent: Agent) -> None:
    code = "import sys, time; time.sleep(0.6); sys.exit(1)"
    state = agent.wait(agent.submit(code, restarts={"max": 50}, timeout=1.5))
    assert (state["state"], state["reason"]) == ("failed", "timeout") and 2 <= state["attempt"] <= 4


@pytest.mark.parametrize("argv", [["/nowhere/python"], ["sh", "-c", "sleep 600"]], ids=["no program", "time limit"])
def test_end_that_would_repeat_starts_nothing_again(agent: Agent, argv: list[str]) -> None:
    state = agent.wait(agent.submit("", argv=argv, restarts={"max": 3}, timeout=0.5))
    assert state["state"] == "failed" and state.get("attempt", 1) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("restarts", [{"max": -1}, {"max": "2"}, {"max": 1000}, {"max": 1, "preempt_after": "soon"}])
def test_invalid_restarts_are_refused(agent: Agent, restarts: dict[str, Any]) -> None:
    answer = agent("submit", run="bad", argv=["true"], restarts=restarts)
    assert answer["error"]["type"] == "SubmitError"


#: A seeded training in 60 steps with a checkpoint after every `EVERY`; it is killed at the steps in `kills`.
TRAINING = """
import json, os, random, signal, sys, time
every, seed, kills = {every}, {seed}, {kills}
folder = os.environ["AML_CHECKPOINT_DIR"]
place = os.path.join(folder, "last.json")
step, weights, rng = 0, [0.0] * 4, random.Random(seed)
if os.path.exists(place):
    step, weights, state = json.load(open(place))
    rng.setstate((state[0], tuple(state[1]), state[2]))
print("from", step, flush=True)
while step < 60:
    weights = [0.9 * weight + rng.gauss(0, 1) for weight in weights]
    step += 1
    mark = os.path.join(folder, "killed-%d" % step)
    if step in kills and not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    if step % every == 0:
        json.dump([step, weights, rng.getstate()], open(place + ".part", "w"))
        os.replace(place + ".part", place)
    print("step", step, flush=True)
json.dump(weights, open(os.path.join(os.environ["AML_OUTPUT_DIR"], "weights.json"), "w"))
"""
EVERY = 5


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, 2, 3, *(pytest.param(n, marks=pytest.mark.soak) for n in range(4, 14))])
def test_training_killed_at_random_steps_ends_with_same_weights(agent: Agent, seed: int) -> None:
    kills = random.Random(seed).sample(range(1, 61), 10)
    texts = [TRAINING.format(every=EVERY, seed=seed, kills=steps) for steps in (kills, [])]
    runs = [agent.submit(text, restarts={"max": 10}) for text in texts]
    states = [agent.wait(run) for run in runs]
    assert [(state["state"], state.get("attempt", 1)) for state in states] == [("completed", 11), ("completed", 1)]
    weights = [(agent.run_folder(run) / "outputs" / "weights.json").read_text() for run in runs]
    assert weights[0] == weights[1]
    begins = [int(line.split()[1]) for line in lines(agent, runs[0]) if line.startswith("from ")]
    assert begins == [0, *((step - 1) // EVERY * EVERY for step in sorted(kills))]  # at the last checkpoint


def test_processes_of_distributed_job_restart_together(agent: Agent) -> None:
    code = COUNT.replace("len(os.listdir(folder)) + 1", "0") + (
        "rank = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
        "mark = os.path.join(folder, 'rank-%d' % rank)\n"
        "first = not os.path.exists(mark)\nopen(mark, 'w').close()\nprint('first', first, flush=True)\n"
        "while len(os.listdir(folder)) < 3: time.sleep(0.01)\n"
        "if first and rank == 1: sys.exit(4)\n"
        "if first: time.sleep(600)\n"
    )
    ranks = {"kind": "tensorflow", "processes": 2, "servers": 0, "restarts": 0, "python": sys.executable}
    run = agent.submit("import json\n" + code, ranks=ranks, restarts={"max": 1}, grace=0.5)
    state = agent.wait(run)
    assert (state["state"], state["attempt"]) == ("completed", 2)
    assert state["attempts"][0]["failed_rank"] == 1 and "failed_rank" not in state
    for rank in range(2):
        log = (agent.run_folder(run) / "log" / f"rank-{rank}.txt").read_text()
        assert log.index("first True") < log.index("[restart] ") < log.index("first False")
