"""A submit ends in one way: the job runs, or its submitter learns that it was not submitted."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jupyter_amltrain.agent import processes
from jupyter_amltrain.agent.queue import claims, dispatcher_client
from tests.tiers import thorough

from .conftest import Agent, alive, until

STEADY = 60.0


def ran(agent: Agent, run: str) -> Path:
    return agent.folder / f"ran-{run}"


def submit(agent: Agent, run: str) -> dict:
    code = f"import os; os.close(os.open({str(ran(agent, run))!r}, os.O_CREAT | os.O_EXCL))"
    environ = dict(os.environ)
    return agent("submit", run=run, argv=["/usr/bin/env", "python3", "-I", "-S", "-c", code], environ=environ)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that gives up soon and does nothing for a dispatcher that was stopped."""
    monkeypatch.setattr(dispatcher_client, "ANSWER_TIMEOUT_S", 0.3)
    monkeypatch.setattr(dispatcher_client, "SILENCE_INTERVAL_S", 0.05)
    monkeypatch.setattr(dispatcher_client, "SilenceWatch", lambda queue: lambda: None)


def test_abandoned_submit_never_runs(agent: Agent, impatient: None) -> None:
    pid = agent.dispatcher()
    os.kill(pid, signal.SIGSTOP)
    answer = submit(agent, "given-up")
    assert "error" in answer, answer
    assert answer["error"]["type"] != "SubmitUnsure"
    os.kill(pid, signal.SIGCONT)
    submit_patiently(agent, "later")
    assert agent.wait("later")["state"] == "completed"
    assert not agent.run_folder("given-up").exists() and not ran(agent, "given-up").exists()
    assert not list(Path(agent.queue, "tickets").iterdir())
    # The name is free again.
    submit_patiently(agent, "given-up")
    assert agent.wait("given-up")["state"] == "completed"


def submit_patiently(agent: Agent, run: str) -> None:
    before, dispatcher_client.ANSWER_TIMEOUT_S = dispatcher_client.ANSWER_TIMEOUT_S, STEADY
    try:
        answer = submit(agent, run)
    finally:
        dispatcher_client.ANSWER_TIMEOUT_S = before
    assert "error" not in answer, answer


@pytest.mark.thorough
@pytest.mark.parametrize("point", ["before_claim", "after_claim"])
@pytest.mark.parametrize("end", ["goes-on", "dies"])
def test_dispatcher_stopped_at_claim_runs_claimed(
    agent: Agent, impatient: None, monkeypatch: pytest.MonkeyPatch, point: str, end: str
) -> None:
    once = agent.folder / "once"
    once.mkdir()
    monkeypatch.setenv("AMLTRAIN_FAILPOINT", f"{point}:sleep={600 if end == 'dies' else 3}")
    monkeypatch.setenv("AMLTRAIN_FAILPOINT_ONCE", str(once))
    monkeypatch.setattr(dispatcher_client, "ANSWER_TIMEOUT_S", STEADY)
    pid = agent.dispatcher()
    monkeypatch.setattr(dispatcher_client, "ANSWER_TIMEOUT_S", 1.0)
    answer = submit(agent, "mine")
    assert list(once.iterdir()), "the failpoint was not reached"
    assert ("error" not in answer) == (point == "after_claim"), answer
    monkeypatch.setattr(dispatcher_client, "ANSWER_TIMEOUT_S", STEADY)
    if end == "dies":
        os.kill(pid, signal.SIGKILL)
    agent.good("ping")
    if point == "before_claim":
        submit_patiently(agent, "other")
        assert agent.wait("other")["state"] == "completed"
        assert not agent.run_folder("mine").exists() and not ran(agent, "mine").exists()
    elif end == "goes-on":
        assert agent.wait("mine")["state"] == "completed" and ran(agent, "mine").exists()
    else:  # its environment died with the dispatcher: the error names that, and the run is there
        state = agent.wait("mine")
        assert (state["state"], state["reason"]) == ("failed", "launch"), state
        assert not ran(agent, "mine").exists()
    assert not [p for p in Path(agent.home, "runs").iterdir() if p.name.startswith(".new-")]


def test_submit_not_revocable_is_unconfirmed(agent: Agent, impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = agent.dispatcher()
    os.kill(pid, signal.SIGSTOP)

    def full(queue: str, submission: str, decision: str) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(claims, "decide", full)
    answer = submit(agent, "unknown")
    assert answer["error"]["type"] == "SubmitUnsure", answer
    os.kill(pid, signal.SIGCONT)
    until(lambda: ran(agent, "unknown").exists(), "the job that nobody could revoke", STEADY)


def test_concurrent_claims_have_one_winner(tmp_path: Path) -> None:
    rounds, both = 200, (claims.ACCEPTED, claims.REVOKED)
    gate = threading.Barrier(8)

    def decide(mine: str) -> list[str]:
        found = []
        for number in range(rounds):
            gate.wait(STEADY)
            found.append(claims.decide(str(tmp_path), f"s{number}", mine))
        return found

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(decide, both * 4))
    for answers in zip(*results, strict=True):
        assert len(set(answers)) == 1
    claims.sweep_claims(str(tmp_path))
    assert not list((tmp_path / claims.CLAIMS).iterdir())


@pytest.mark.parametrize("name", ["../../x", "a/b", "", "caf\udce9", "x" * 300])
def test_claim_name_stays_in_folder(tmp_path: Path, name: str) -> None:
    assert claims.decide(str(tmp_path), name, claims.REVOKED) == claims.REVOKED
    assert claims.decide(str(tmp_path), name, claims.ACCEPTED) == claims.REVOKED
    assert [p.name for p in tmp_path.iterdir()] == [claims.CLAIMS]
    assert len(list((tmp_path / claims.CLAIMS).iterdir())) == 1
    claims.forget(str(tmp_path), name)
    assert claims.decide(str(tmp_path), name, claims.ACCEPTED) == claims.ACCEPTED


def test_completed_submits_leave_no_claim(agent: Agent) -> None:
    for number in range(3):
        agent.wait(agent.submit("pass", f"run-{number}"))
    assert not list(Path(agent.queue, claims.CLAIMS).iterdir())


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_submit_to_randomly_stopped_dispatcher_runs_once(agent: Agent, impatient: None) -> None:
    """Two hundred submits with a short timeout: never both, never neither."""
    seed = int(os.environ.get("AMLTRAIN_SOAK_SEED", "20261121"))
    source = random.Random(seed)
    agent.folder.joinpath("home").mkdir(exist_ok=True)
    accepted: dict[str, bool] = {}
    for number in range(200):
        run = f"run-{number}"
        dispatcher_client.ANSWER_TIMEOUT_S = STEADY
        pid = agent.dispatcher()
        dispatcher_client.ANSWER_TIMEOUT_S = source.uniform(0.02, 0.3)
        stop, go_on, dies = source.uniform(0, 0.03), source.uniform(0.01, 0.5), source.random() < 0.1

        def disturb(pid: int = pid, stop: float = stop, go_on: float = go_on, dies: bool = dies) -> None:
            time.sleep(stop)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(go_on)
            os.kill(pid, signal.SIGKILL if dies else signal.SIGCONT)

        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(disturb)
            answer = submit(agent, run)
            waiting.result(STEADY)
        assert answer.get("error", {}).get("type") != "SubmitUnsure", answer
        accepted[run] = "error" not in answer
    dispatcher_client.ANSWER_TIMEOUT_S = STEADY
    agent.wait(agent.submit("pass", "last"), 2 * STEADY)
    lost = 0
    for run, was_accepted in accepted.items():
        if not was_accepted:
            assert not agent.run_folder(run).exists() and not ran(agent, run).exists(), f"both: {run} (seed {seed})"
            continue
        state = agent.wait(run, 2 * STEADY)
        if state["state"] == "completed":
            assert ran(agent, run).exists(), run
        else:  # a dispatcher died with its environment: said, and not run
            lost += 1
            assert state["reason"] == "launch" and not ran(agent, run).exists(), f"{run}: {state} (seed {seed})"
    print(f"seed {seed}: {sum(accepted.values())} of {len(accepted)} accepted, {lost} of them lost their environment")
    assert 0 < sum(accepted.values()) < len(accepted), "the disturbances reach both ends"


def test_submit_to_stopped_dispatcher_continues_it(agent: Agent) -> None:
    pid = agent.dispatcher()
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    answer = submit(agent, "mine")
    assert "error" not in answer, answer
    assert time.monotonic() - began < STEADY / 2
    assert agent.wait("mine")["state"] == "completed" and agent.dispatcher() == pid


@pytest.mark.thorough
@pytest.mark.parametrize("point", ["before_claim", *thorough("dispatcher_turn", "after_claim")])
def test_submit_to_hanging_dispatcher_starts_another(agent: Agent, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    once = agent.folder / "hangs"
    once.mkdir()
    monkeypatch.setattr(dispatcher_client, "HANG_TIMEOUT_S", 2.0)
    monkeypatch.setenv("AMLTRAIN_FAILPOINT", f"{point}:sleep=600")
    monkeypatch.setenv("AMLTRAIN_FAILPOINT_ONCE", str(once))
    assert "error" not in submit(agent, "mine")
    assert list(once.iterdir()), "the failpoint was not reached"
    assert agent.wait("mine")["state"] == "completed" and ran(agent, "mine").exists()
    ends = Path(agent.queue, "dispatcher.txt").read_text()
    first, second = (int(line.split()[2]) for line in ends.splitlines() if " serves " in line)
    assert first != second == agent.dispatcher() and not alive(first)


@pytest.mark.thorough
def test_submit_to_hanging_dispatcher_with_waiting_runs_is_refused(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.good("ping")
    busy = [agent.submit("import time; print('up'); time.sleep(600)") for _ in range(2)]
    for run in busy:
        agent.running(run, "up")
    waiting = agent.submit("pass", secrets={"TOKEN": "x"})
    record = json.loads(Path(agent.queue, "dispatcher.lock").read_text())
    # A process that hangs and is ours: the test stands in for a dispatcher that waits for ever.
    monkeypatch.setattr(dispatcher_client, "HANG_TIMEOUT_S", 1.0)
    monkeypatch.setattr(dispatcher_client, "resume", lambda who: False)
    os.kill(record["pid"], signal.SIGSTOP)
    answer = submit(agent, "mine")
    assert answer["error"]["type"] == "StateError" and "1 waiting run" in answer["error"]["message"], answer
    assert alive(record["pid"])
    os.kill(record["pid"], signal.SIGCONT)
    for run in busy:
        agent.good("cancel", run=run)
    assert agent.wait(waiting)["state"] == "completed"  # it kept its secret
    assert not agent.run_folder("mine").exists()


@pytest.mark.thorough
def test_slow_dispatcher_is_not_taken_for_hanging(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that runs, but answers late, is waited for."""
    monkeypatch.setattr(dispatcher_client, "HANG_TIMEOUT_S", 0.5)
    monkeypatch.setattr(dispatcher_client, "SILENCE_INTERVAL_S", 0.1)
    monkeypatch.setattr(dispatcher_client, "find_process", lambda pid: processes.Process(pid, "R", 1, 1, 1, 0, 1, 1, 1))
    pid = agent.dispatcher()
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(dispatcher_client, "resume", lambda who: False)
    timer = threading.Timer(4.0, lambda: os.kill(pid, signal.SIGCONT))
    timer.start()
    assert "error" not in submit(agent, "mine")
    timer.join()
    assert agent.wait("mine")["state"] == "completed" and agent.dispatcher() == pid
