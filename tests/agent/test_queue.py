"""The queue, its calls, and what they refuse."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jupyter_amltrain.agent.calls import call
from jupyter_amltrain.agent.processes import identity
from jupyter_amltrain.agent.protocol import PROTOCOL
from jupyter_amltrain.agent.queue import dispatcher_client

from .conftest import Agent, alive, until


@pytest.mark.thorough
def test_concurrent_submitters_keep_order(agent: Agent) -> None:
    order = agent.folder / "order"
    code = f"import os; f = os.open({str(order)!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT);"
    code += "os.write(f, (os.environ['N'] + '\\n').encode())"
    submitter = f"""
import json, os, subprocess, sys
for n in range(25):
    name = sys.argv[1] + "-%02d" % n
    payload = {{"run": name, "argv": [{sys.executable!r}, "-S", "-c", {code!r}], "environ": {{"N": name}}}}
    from jupyter_amltrain.agent.calls import call
    answer = call("submit", payload, {agent.home!r}, {agent.queue!r}, {agent.zipapp!r})
    assert "error" not in answer, answer
"""
    # Both find no dispatcher and start one: only one may come to serve.
    both = [subprocess.Popen([sys.executable, "-c", submitter, name]) for name in "ab"]
    assert [p.wait(60) for p in both] == [0, 0]
    runs = [f"{name}-{n:02}" for name in "ab" for n in range(25)]
    until(lambda: {s["state"] for s in agent.good("poll", run_ids=runs)["runs"].values()} == {"completed"}, "all runs")
    done = order.read_text().split()
    assert sorted(done) == runs
    # Two run at a time: a job may end before the next one, never far out of order.
    for name in "ab":
        own = [int(x[2:]) for x in done if x[0] == name]
        assert all(abs(at - n) <= 2 for at, n in enumerate(own)), own
    listed = [row["run"] for row in agent.good("list")["runs"]]
    assert sorted(listed) == runs
    for name in "ab":
        assert [x for x in listed if x[0] == name] == [x for x in runs if x[0] == name]


def test_submit_with_used_run_id_is_refused(agent: Agent) -> None:
    agent.submit("pass", run="same")
    answer = agent("submit", run="same", argv=["x"])
    assert answer["error"]["type"] == "RunExists" and "'same'" in answer["error"]["message"]
    assert agent.wait("same")["state"] == "completed"
    Path(agent.home, "runs", "folder").mkdir()
    assert agent("submit", run="folder", argv=["x"])["error"]["type"] == "RunExists"


def test_repeated_submit_is_one_run(agent: Agent) -> None:
    payload = {"run": "one", "argv": [sys.executable, "-S", "-c", "print('x')"], "submission": "abc"}
    answers = [agent.good("submit", **payload) for _ in range(2)]
    assert answers[0]["folder"] == answers[1]["folder"]
    assert agent.wait("one")["state"] == "completed"
    assert "error" not in agent("submit", **payload)
    time.sleep(0.1)
    assert agent.log("one") == "x\n"


def test_queue_stores_no_secret(agent: Agent) -> None:
    busy = [agent.submit("import time; time.sleep(600)") for _ in range(2)]
    waiting = agent.submit(
        "import os; print(len(os.environ['TOKEN']), len(os.environ['PRIVATE']))",
        secrets={"TOKEN": "s3cr3t-value"},
        environ={"PRIVATE": "pr1vate-value"},
        tracking={"run_id": "ab" * 16, "mode": "sink"},
    )
    until(lambda: agent.state(waiting)["detail"], "its place")

    def search() -> None:
        for root in (agent.home, agent.queue):
            for path in Path(root).rglob("*"):
                assert path.stat().st_mode & 0o077 == 0, path
                if path.is_file():
                    data = path.read_bytes()
                    assert b"s3cr3t-value" not in data and b"pr1vate-value" not in data, path

    search()
    for run in busy:
        agent.good("cancel", run=run)
    assert agent.wait(waiting)["state"] == "completed"
    assert agent.log(waiting) == "12 13\n"
    search()
    job = json.loads((agent.run_folder(waiting) / "job.json").read_text())
    assert job["secrets"] == ["TOKEN"] and "environ" not in job


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ({}, "is not a run id"),
        ({"run": "../x", "argv": ["x"]}, "is not a run id"),
        ({"run": "x" * 101, "argv": ["x"]}, "at most 100"),
        ({"run": "x", "argv": []}, "argv"),
        ({"run": "x", "argv": "ls"}, "field 'argv'"),
        ({"run": "x", "argv": ["x"], "gpus": True}, "field 'gpus'"),
        ({"run": "x", "argv": ["x"], "gpus": -1}, "gpus"),
        ({"run": "x", "argv": ["x"], "timeout": 0}, "timeout"),
        ({"run": "x", "argv": ["x"], "env": {"A": 1}}, "env: 'A'"),
        ({"run": "x", "argv": ["x"], "secrets": {"A=B": "hidden"}}, "secrets: 'A=B'"),
        ({"run": "x", "argv": ["x"], "wat": 1}, "unknown field 'wat'"),
    ],
)
def test_submit_payload_invalid_is_refused(agent: Agent, payload: dict[str, object], words: str) -> None:
    error = agent("submit", **payload)["error"]
    assert error["type"] == "SubmitError" and words in error["message"]
    assert "hidden" not in error["message"]


def test_unknown_operation_or_run_is_refused(agent: Agent) -> None:
    assert agent("dance")["error"]["type"] == "ProtocolError"
    for op in ("cancel", "delete"):
        assert agent(op, run="nothing")["error"]["type"] == "UnknownRun"
        assert agent(op, run="../home")["error"]["type"] == "UnknownRun"
    assert agent.good("poll", run_ids=["nothing", "../x"]) == {"runs": {}, "errors": {}}
    assert agent.good("list") == {"runs": [], "errors": {}, "ids": []}


def test_list_omits_known_runs(agent: Agent) -> None:
    known, new = agent.submit("pass"), agent.submit("pass")
    for run in (known, new):
        agent.wait(run)
    answer = agent.good("list", full=True, but=[known, "gone-22222"])
    assert [row["run"] for row in answer["runs"]] == [new] and sorted(answer["ids"]) == sorted([known, new])


def test_delete_of_ended_run_removes_folder(agent: Agent) -> None:
    run = agent.submit("import time; time.sleep(600)")
    agent.running(run)
    assert agent("delete", run=run)["error"]["type"] == "CommandError"
    agent.good("cancel", run=run)
    agent.wait(run)
    assert agent.good("delete", run=run)["deleted"]
    assert agent.state(run) == {} and list(Path(agent.home, "runs").iterdir()) == []


def test_run_state_of_newer_schema_is_refused(agent: Agent) -> None:
    run = agent.submit("pass")
    agent.wait(run)
    path = agent.run_folder(run) / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 99}))
    answer = agent.good("poll", run_ids=[run])
    assert answer["runs"] == {}
    error = answer["errors"][run]
    assert error["type"] == "StateError"
    assert error["message"].startswith(f"Run folder {path.parent} was written by a newer jupyter_amltrain (schema 99,")
    assert "Upgrade" in error["message"]
    assert agent.good("list")["errors"][run] == error
    assert agent("cancel", run=run)["error"] == error


def test_state_of_earlier_boot_is_lost(agent: Agent) -> None:
    run = agent.submit("pass")
    done = agent.wait(run)
    path = agent.run_folder(run) / "state.json"
    path.write_text(json.dumps({**done, "state": "running", "node": "elsewhere", "boot": "older"}))
    assert agent.state(run)["state"] == "running"  # only its own machine may say lost
    path.write_text(json.dumps({**done, "state": "running", "boot": "older"}))
    state = agent.state(run)
    assert state["state"] == "lost" and "restarted" in state["detail"]


def test_queued_run_without_queue_is_lost(agent: Agent) -> None:
    import shutil

    busy = [agent.submit("import time; time.sleep(600)") for _ in range(2)]
    run = agent.submit("pass")
    for one in busy:
        agent.running(one)
    agent.kill_dispatcher()
    shutil.rmtree(agent.queue)
    path = agent.run_folder(run) / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "changed": 0}))
    state = agent.state(run)
    assert state["state"] == "lost" and "ticket" in state["detail"]


@pytest.mark.parametrize("home", ["/proc/amltrain", "/dev/null/amltrain"])
def test_submit_with_unwritable_home_is_refused(agent: Agent, home: str) -> None:
    answer = call("submit", {"run": "x", "argv": ["x"]}, home, agent.queue, agent.zipapp)
    assert answer["error"]["type"] == "StateError"
    message = answer["error"]["message"]
    assert message.startswith(f"Cannot write {home}") and "AMLTRAIN_HOME" in message


def test_call_with_unusable_queue_is_refused(agent: Agent) -> None:
    answer = call("ping", {}, agent.home, "/proc/queue", agent.zipapp)
    assert answer["error"]["type"] == "StateError" and "AMLTRAIN_QUEUE" in answer["error"]["message"]


def test_queue_without_file_locks_is_refused(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def no_locks(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    error = agent("ping")["error"]
    assert error["type"] == "StateError" and "file system without locks" in error["message"]


def test_queue_with_long_path_works(agent: Agent) -> None:
    agent.queue = str(agent.folder / ("q" * 120) / ("r" * 120))
    assert agent.wait(agent.submit("print('far')"))["state"] == "completed"


@pytest.mark.thorough
def test_idle_dispatcher_exit_loses_no_job(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMLTRAIN_DISPATCHER_IDLE", "0.05")
    seen = set()
    end = time.monotonic() + 3
    while time.monotonic() < end:
        run = agent.submit("pass")
        assert agent.wait(run)["state"] == "completed"
        record = json.loads(Path(agent.queue, "dispatcher.lock").read_text())
        seen.add(record["pid"])
        time.sleep(0.04 + (agent.count % 5) * 0.005)
    assert len(seen) > 1, "it never left"
    until(lambda: not any(alive(pid) for pid in seen), "the last dispatcher's end")
    assert not Path(agent.queue, "agent.sock").exists()


def test_dispatcher_whose_socket_was_removed_serves_again(agent: Agent) -> None:
    agent.good("info")
    pid = agent.dispatcher()
    Path(agent.queue, "agent.sock").unlink()
    assert agent.wait(agent.submit("print('on')"))["state"] == "completed"
    assert agent.dispatcher() == pid and "listens again" in Path(agent.queue, "dispatcher.txt").read_text()


def test_dispatcher_with_running_job_stays(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMLTRAIN_DISPATCHER_IDLE", "0.05")
    run = agent.gated()
    pid = json.loads(Path(agent.queue, "dispatcher.lock").read_text())["pid"]
    agent.running(run)
    time.sleep(0.2)
    assert alive(pid)
    agent.open_gate()
    assert agent.wait(run)["state"] == "completed"


def test_older_dispatcher_is_retired_and_newer_refused(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    first = agent.dispatcher()
    run = agent.gated()
    agent.running(run, "up")
    lock = Path(agent.queue, "dispatcher.lock")
    record = json.loads(lock.read_text())
    lock.write_text(json.dumps({**record, "protocol": PROTOCOL + 1}))
    error = agent("submit", run="x", argv=["x"])["error"]
    assert error["type"] == "ProtocolError" and "newer" in error["message"]
    lock.write_text(json.dumps({**record, "protocol": 0}))
    second = agent.submit("pass")
    assert agent.wait(second)["state"] == "completed"
    assert agent.dispatcher() != first and not alive(first)
    agent.open_gate()
    assert agent.wait(run)["state"] == "completed"  # it went on meanwhile


def test_older_dispatcher_with_waiting_jobs_stays(agent: Agent) -> None:
    runs = [agent.submit("import time; time.sleep(600)") for _ in range(3)]
    lock = Path(agent.queue, "dispatcher.lock")
    lock.write_text(json.dumps({**json.loads(lock.read_text()), "protocol": 0}))
    error = agent("submit", run="x", argv=["x"])["error"]
    assert error["type"] == "ProtocolError" and "1 waiting jobs" in error["message"]
    for run in reversed(runs):
        agent.good("cancel", run=run)


@pytest.mark.thorough
def test_hundred_concurrent_calls_share_dispatcher(agent: Agent) -> None:
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: agent("ping"), range(100)))
    assert len({a["pid"] for a in answers}) == 1


def test_dispatcher_lock_with_reused_pid_is_ignored(agent: Agent) -> None:
    agent.kill_dispatcher()
    lock = Path(agent.queue, "dispatcher.lock")
    mine = identity(os.getpid())
    assert mine is not None
    lock.write_text(json.dumps({"schema": 1, "protocol": 1, "pid": os.getpid(), "start": mine["start"] - 1}))
    assert not dispatcher_client.running(agent.queue)
    assert agent.wait(agent.submit("pass"))["state"] == "completed"


def test_dispatcher_ignores_garbage_requests(agent: Agent) -> None:
    import socket

    agent.dispatcher()
    wrong = b'{"op":"submit","payload":{"run":1},"home":"x"}\n'
    for line in (b"\n", b"[1]\n", b"\xff\xfe\n", b'{"op":"submit"}\n', wrong):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(60)
            client.connect(agent.queue + "/agent.sock")
            client.sendall(line)
            assert b'"error"' in client.recv(1 << 16)
    assert agent.wait(agent.submit("pass"))["state"] == "completed"


@pytest.mark.thorough
def test_agent_command_line_answers_json(agent: Agent) -> None:
    def ask(op: str, payload: str) -> tuple[int, dict[str, object]]:
        done = subprocess.run(
            [sys.executable, "-I", "-S", agent.zipapp, "call", op, agent.home, agent.queue],
            input=payload.encode(), capture_output=True, timeout=60,
        )  # fmt: skip
        return done.returncode, json.loads(done.stdout)

    payload = {"run": "cli", "argv": [sys.executable, "-S", "-c", "print('by hand')"]}
    assert ask("submit", json.dumps(payload))[0] == 0
    assert agent.wait("cli")["state"] == "completed"
    assert ask("ping", "")[1]["protocol"] == PROTOCOL
    code, answer = ask("submit", json.dumps(payload))
    assert code == 1 and answer["error"]["type"] == "RunExists"  # type: ignore[index]
    assert ask("poll", "not json")[0] == 1


def test_info_describes_machine(agent: Agent) -> None:
    info = agent.good("info")
    assert info["cpus"] >= 1 and info["memory"] > 1 << 20 and info["slots"]["cpu"] == {"total": 2, "free": 2}
    assert set(info["survives"]) == {"kernel", "server", "logout", "container"}
    assert all(x["answer"] in ("yes", "no", "unknown") and x["why"] for x in info["survives"].values())
