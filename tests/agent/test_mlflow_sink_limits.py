"""The sink under callers without its token: other users of the machine, half requests, large bodies."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import os
import resource
import socket
import sys
import threading
import time

import pytest

from jupyter_amltrain.agent import tcp_owner
from jupyter_amltrain.agent.mlflow import sink_server as mlflow_connections
from jupyter_amltrain.agent.mlflow import sink_server as mlflow_sink
from jupyter_amltrain.agent.mlflow.sink_state import Recorder
from tests.agent.mlflow_jobs import RUN_ID, TOKEN, Host, points, until
from tests.other_user import OTHER_UID, needs_root, run_as_other_user

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: finds the owner of a connection")
FLOOD = 1500

HALF_OPEN = """
port, held, failed = int(sys.argv[1]), [], 0
deadline = time.monotonic() + float(sys.argv[3])
while time.monotonic() < deadline:
    s = socket.socket()
    s.settimeout(2)
    try:
        s.connect(("127.0.0.1", port))
        s.sendall(b"POST /api/2.0/mlflow/runs/log-batch HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nContent-Length: 1")
    except OSError:
        failed += 1
    held.append(s)
    if len(held) > int(sys.argv[2]):
        held.pop(0).close()
print(len(held), failed)
"""
BODIES = """
port, refused = int(sys.argv[1]), 0
def send():
    global refused
    s = socket.create_connection(("127.0.0.1", port), timeout=20)
    try:
        s.sendall(b"POST /api/2.0/mlflow/runs/log-batch HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n"
                  b"Content-Length: 60000000\\r\\nAuthorization: Bearer guessed\\r\\n\\r\\n")
        for _ in range(59):
            s.sendall(bytes(1000000))
    except OSError:
        refused += 1
    time.sleep(3)
threads = [threading.Thread(target=send) for _ in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(refused)
"""


def status(pid: int, name: str) -> int:
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return int(next(line.split()[1] for line in file if line.startswith(name + ":")))


def largest(pid: int, attack: concurrent.futures.Future, log) -> dict[str, float]:
    """Log while an attack goes on: the calls made, and the most that the sink held."""
    seen = {"calls": 0, "slowest": 0.0, "threads": 0, "files": 0, "memory": 0}
    while not attack.done():
        started = time.monotonic()
        log(seen["calls"])
        seen["slowest"] = max(seen["slowest"], time.monotonic() - started)
        seen["calls"] += 1
        seen["threads"] = max(seen["threads"], status(pid, "Threads"))
        seen["memory"] = max(seen["memory"], status(pid, "VmRSS"))
        seen["files"] = max(seen["files"], len(os.listdir(f"/proc/{pid}/fd")))
    return seen


@pytest.mark.thorough
@linux
@needs_root
@pytest.mark.parametrize(("script", "arguments"), [(HALF_OPEN, (str(FLOOD), "8")), (BODIES, ())])
def test_sink_under_attack_of_other_user_serves_job(tmp_path, script, arguments):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))  # the usual limit, for the sink
    try:
        host = Host(tmp_path)
        resource.setrlimit(resource.RLIMIT_NOFILE, (4 * FLOOD, hard))
        attacked(host, script, arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def attacked(host: Host, script: str, arguments: tuple[str, ...]) -> None:
    with host, concurrent.futures.ThreadPoolExecutor() as pool:
        assert host.call("GET", "/health") == (200, "OK")
        before = status(host.pid, "VmRSS")

        def log(step: int) -> None:  # a connection of its own each time, as a new process of the job has
            body = {"run_id": RUN_ID, "key": "loss", "value": 1.0, "timestamp": 1, "step": step}
            assert host.call("POST", "runs/log-metric", body)[0] == 200

        attack = pool.submit(run_as_other_user, script, str(host.port), *arguments)
        seen = largest(host.pid, attack, log)
        done = attack.result()
        print(seen, done.stdout)
        assert done.returncode == 0, done.stderr
        assert seen["calls"] > 10 and seen["slowest"] < 8
        assert seen["threads"] < 20 and seen["files"] < 100 and seen["memory"] - before < 32_000  # kB
        assert host.stop() == 0
        assert [step for step, _ in points(host.records(), "loss")] == list(range(int(seen["calls"])))
        assert f"Unix user {OTHER_UID}" in host.notes()


@linux
def test_socket_owner_of_mapped_ipv4_is_found():
    try:
        near = socket.socket(socket.AF_INET6)
        near.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    except OSError:
        pytest.skip("needs IPv6")
    with near, socket.create_server(("127.0.0.1", 0)) as server:
        near.connect(("::ffff:127.0.0.1", server.getsockname()[1]))
        far, _ = server.accept()
        with far:
            lookup = tcp_owner.OwnerLookup()
            found = [lookup.owner(far)]
            lookup._netlink, lookup.method = None, "proc"
            found.append(lookup.owner(far))
        assert {owner.inode for owner in found} == {os.fstat(near.fileno()).st_ino}


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A sink of this process on a system that does not tell owners."""
    monkeypatch.setattr(tcp_owner.OwnerLookup, "owner", lambda self, connection: None)
    recorder = Recorder(
        journal=str(tmp_path / "metrics/rank-0.jsonl"),
        artifacts=str(tmp_path / "artifacts"),
        run_id=RUN_ID,
        run_name="digits",
        experiment_name="numbers",
        on_note=lambda text: None,
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = mlflow_sink._Server(listening, recorder, TOKEN)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def call(server, connection=None, path="/api/2.0/mlflow/runs/log-metric", **headers):
    connection = connection or http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    body = json.dumps({"run_id": RUN_ID, "key": "x", "value": 1.0, "timestamp": 1})
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", **headers}
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def half(server, text=b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Le"):
    connection = socket.create_connection(server.server_address, timeout=30)
    with contextlib.suppress(OSError):
        connection.sendall(text)
    return connection


def test_untrusted_half_requests_are_limited(server):
    trusted = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    assert call(server, trusted)[0] == 200
    kept = trusted.sock
    held = [half(server) for _ in range(4 * mlflow_connections.MAX_UNTRUSTED)]
    assert call(server)[0] == 200
    assert call(server, trusted)[0] == 200 and trusted.sock is kept
    limit = mlflow_connections.MAX_UNTRUSTED + 2
    until(lambda: len(server.connections._open) <= limit, "the oldest were closed")
    for connection in held:
        connection.close()


def test_half_request_is_closed_after_timeout(server, monkeypatch):
    monkeypatch.setattr(mlflow_sink._Handler, "timeout", 0.2)
    for text in (
        b"",
        b"POST / HTTP/1.1\r\nHo",
        b"GET /version HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n",
    ):
        with half(server, text) as connection:
            assert connection.recv(100) == b"", text
    assert call(server)[0] == 200


def test_body_without_token_is_not_read(server):
    head = b"POST /api/2.0/mlflow/runs/log-batch HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000000\r\n"
    with half(server, head + b"Authorization: Bearer guessed\r\n\r\n") as connection:
        answer = connection.recv(1000)
    assert b" 413 " in answer.split(b"\r\n")[0]
    assert call(server, Authorization="Bearer guessed")[0] == 403  # a short one is answered in words


def test_endless_request_head_is_refused(server):
    line = b"X-A: " + b"a" * 1000 + b"\r\n"
    with half(server, b"POST / HTTP/1.1\r\nHost: localhost\r\n" + line * 90) as connection:
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(100) == b""
    assert call(server)[0] == 200


def test_sink_connections_are_bounded(server, monkeypatch):
    monkeypatch.setattr(server.connections, "_limit", 8)
    connections = []
    for _ in range(20):
        connections.append(http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30))
        assert call(server, connections[-1])[0] == 200
    until(lambda: len(server.connections._open) <= 9, "the idle ones were closed")
    for connection in connections:  # the client opens another
        try:
            assert call(server, connection)[0] == 200
        except (http.client.RemoteDisconnected, ConnectionError):
            connection.close()
            assert call(server, connection)[0] == 200
        connection.close()


def test_first_run_of_each_attempt_is_the_run_of_the_job(server, tmp_path):
    def created(start):
        body = {"experiment_id": "0", "start_time": start, "tags": []}
        return server.sink.handle("POST", "/api/2.0/mlflow/runs/create", body)["run"]["info"]["run_id"]

    assert created(1) == RUN_ID != created(2)
    (tmp_path / "state.json").write_text('{"schema": 1, "attempt": 2}')
    assert created(3) == RUN_ID != created(4)
    (tmp_path / "state.json").write_text("no JSON")
    assert created(5) != RUN_ID
