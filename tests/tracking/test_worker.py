"""The worker process and its client, on a loop in a thread that is not the main one."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from jupyter_amltrain.errors import StateError
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.rpc import framing
from jupyter_amltrain.state_dir import StateRoot
from jupyter_amltrain.tracking.worker import TrackingWorker, WorkerError
from tests.agent.mlflow_jobs import ROOT, finish_folder, until

DEADLINE = 60.0


@pytest.fixture(scope="module")
def loop():
    return LoopThread("test-worker")


@pytest.fixture
def root(tmp_path):
    return StateRoot(tmp_path / "home")


@pytest.fixture
def client(loop, root):
    client = TrackingWorker(root)
    yield client
    loop.call(client.close(), DEADLINE)


@pytest.fixture
def ask(loop, client):
    def ask(op, payload=None, timeout=DEADLINE):
        return loop.call(client.request(op, payload or {}, timeout), 2 * DEADLINE)

    return ask


def alive(pid):
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_worker_starts_at_first_request_and_stays(client, ask, root):
    assert client.pid is None
    first = ask("ping")
    assert first["pid"] == ask("ping")["pid"] == client.pid != os.getpid()
    assert oct((root.logs / "worker.txt").stat().st_mode & 0o777) == "0o600"


def test_worker_error_is_one_line_and_worker_continues(ask, tmp_path):
    pid = ask("ping")["pid"]
    with pytest.raises(WorkerError, match="unknown operation 'nope'") as caught:
        ask("nope")
    assert caught.value.kind == "ValueError" and "\n" not in str(caught.value)
    with pytest.raises(StateError, match=r"Cannot read .*job\.json"):
        ask("import_run", {"run_dir": str(tmp_path), "project": str(tmp_path)})
    assert ask("ping")["pid"] == pid


def test_worker_crash_fails_current_request_only(client, ask):
    first = ask("ping")["pid"]
    os.kill(first, signal.SIGKILL)
    until(lambda: client.pid is None, "the end of the worker")
    assert ask("ping")["pid"] != first


def test_worker_crash_in_request_raises(client, ask, loop):
    pid = ask("ping")["pid"]
    os.kill(pid, signal.SIGSTOP)  # so that the request is surely under way
    future = loop.post(client.request("ping", {}, DEADLINE))
    until(lambda: client._rpc._last_id == 2, "the second request")
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match=r"'ping'.*signal 9"):
        future.result(DEADLINE)
    assert ask("ping")["pid"] != pid


def test_hung_worker_is_replaced(client, ask):
    pid = ask("ping")["pid"]
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(WorkerError, match=r"'ping' within"):
        ask("ping", timeout=0.2)
    assert not alive(pid)
    assert ask("ping")["pid"] != pid


def test_canceled_request_does_not_mix_answers(client, ask, loop):
    pid = ask("ping")["pid"]

    async def give_up():
        task = asyncio.ensure_future(client.request("nope", {}, DEADLINE))
        await asyncio.sleep(0)
        task.cancel()
        return await client.request("ping", {}, DEADLINE)

    assert loop.call(give_up(), DEADLINE)["pid"] == pid


def test_concurrent_requests_are_answered_in_order(client, loop):
    async def many():
        return await asyncio.gather(*(client.request("ping", {}, DEADLINE) for _ in range(50)))

    assert len({answer["pid"] for answer in loop.call(many(), DEADLINE)}) == 1


def test_worker_ends_with_close(client, ask, loop):
    pid = ask("ping")["pid"]
    loop.call(client.close(), DEADLINE)
    until(lambda: not alive(pid), "the end of the worker")
    with pytest.raises(WorkerError, match="closed"):
        ask("ping")


def test_close_while_busy_does_not_wait(client, ask, loop, monkeypatch):
    pid = ask("ping")["pid"]
    os.kill(pid, signal.SIGSTOP)
    future = loop.post(client.request("ping", {}, DEADLINE))
    until(lambda: client._rpc._pending, "the second request")
    process, waits = client._rpc._process, []
    monkeypatch.setattr(process, "wait", waits.append)
    loop.call(client.close(), DEADLINE)
    assert not waits
    os.kill(pid, signal.SIGCONT)
    until(lambda: process.poll() is not None, "the end of the worker")
    assert future.exception(DEADLINE)


@pytest.mark.thorough
def test_worker_draws_picture_and_imports_run(ask, tmp_path):
    answer = ask("picture", {"record": {"name": "digits", "state": "completed"}})
    assert answer["png"].startswith(b"\x89PNG")
    run = tmp_path / "digits-k3f9"
    run.mkdir()
    finish_folder(run)
    result = ask("import_run", {"run_dir": str(run), "project": str(tmp_path), "handle": "local/digits-k3f9"})
    assert result["state"] == "imported" and result["notes"] == ["the script logged nothing to MLflow"]


def test_worker_stdout_of_libraries_stays_out_of_frames():
    code = (
        "import os, sys\n"
        "from jupyter_amltrain.tracking import worker\n"
        "worker.run_operation = lambda op, payload: (print('noise'), os.write(1, b'more noise'), {})[2]\n"
        "worker.main()"
    )
    frame = framing.pack({"id": 1, "op": "ping", "payload": {}})
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=frame,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert done.stdout == framing.pack({"id": 1, "result": {}})
    assert b"noise" in done.stderr and done.returncode == 0


def test_close_while_starting_raises_worker_error(loop, root):
    async def story():
        client = TrackingWorker(root)
        request = asyncio.ensure_future(client.request("ping", {}, DEADLINE))
        while client._rpc._process is None:  # it is being connected
            await asyncio.sleep(0)
        await client.close()
        with pytest.raises(WorkerError, match="closed|ended"):
            await request

    loop.call(story(), 2 * DEADLINE)


def test_idle_worker_leaves_and_returns(client, ask, monkeypatch):
    monkeypatch.setenv("AMLTRAIN_HELPER_IDLE", "0.5")
    first = ask("ping")["pid"]
    until(lambda: client.pid is None, "the end of the idle worker")
    until(lambda: not alive(first), "the end of its process")
    second = ask("ping")["pid"]
    assert second != first and alive(second)
    until(lambda: client.pid is None, "its end as well")


@pytest.mark.thorough
def test_worker_finishes_request_that_takes_longer_than_idle_time(ask, monkeypatch):
    monkeypatch.setenv("AMLTRAIN_HELPER_IDLE", "0.1")
    assert ask("warm")["mlflow"] and ask("warm")["mlflow"]


def test_worker_stays_while_it_serves_mlflows_page(client, ask, monkeypatch, tmp_path):
    from jupyter_amltrain.tracking import worker

    monkeypatch.setenv("AMLTRAIN_HELPER_IDLE", "0.2")
    requests = []
    original = client._request

    async def busy(op, payload, timeout):
        if op == "busy":
            requests.append(op)
            return True
        return await original(op, payload, timeout)

    monkeypatch.setattr(client, "_request", busy)
    assert worker.OPERATIONS["busy"]
    pid = ask("ping")["pid"]
    until(lambda: len(requests) >= 3, "three questions")
    assert client.pid == pid
