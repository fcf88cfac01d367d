"""The processes that connect the nodes of a run, without machines: what strangers send, and lost ends."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent.distributed import node_connector
from jupyter_amltrain.agent.distributed.node_connector import Connector, connect
from jupyter_amltrain.agent.json_dir import Address, open_queue
from jupyter_amltrain.agent.protocol import JOB, STATE, run_folder, write_json
from jupyter_amltrain.agent.queue.submission import first_state
from tests.helpers import until

TOKEN = "secret"


def connector_of(folder: Path, node: int, listener: socket.socket) -> Connector:
    """The connector of a node, with a run of two nodes that waits."""
    home, queue = folder / f"home-{node}", open_queue(str(folder / f"queue-{node}"))
    run = Path(run_folder(str(home), "r"))
    run.mkdir(parents=True)
    nodes = {
        "node": node, "names": ["first", "second"], "order": [0, 1], "address": "127.0.0.1",
        "port": listener.getsockname()[1],
    }  # fmt: skip
    write_json(str(run / JOB), {"nodes": nodes})
    write_json(str(run / STATE), first_state("r", queue, 0.0))
    return Connector(str(home), queue, "r", node, TOKEN, None if node else listener)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Connector]]:
    """Start the connector of a node."""
    listener, threads = socket.create_server(("127.0.0.1", 0)), []

    def start(node: int) -> Connector:
        connector = connector_of(tmp_path, node, listener)
        threads.append((connector, threading.Thread(target=connector.serve, daemon=True)))
        threads[-1][1].start()
        return connector

    with listener:
        yield start
        for connector, _ in threads:
            monkeypatch.setattr(connector, "_is_done", lambda: True)
        for _, thread in threads:
            thread.join(30)


def line_of(connection: socket.socket) -> dict[str, Any]:
    with connection.makefile() as file:
        message: dict[str, Any] = json.loads(file.readline())
    return message


STRANGE = [
    '{"proof": "é"}\n'.encode(),
    b'{"proof": "\\ud800", "nonce": "\\ud800"}\n',
    b'{"proof": {}}\n',
    b"[" * 4000 + b"\n",
    b"[" * 100_000 + b"\n",
    b"x" * 3_000_000,
]


def test_what_strangers_send_closes_their_connection_only(served: Callable[[int], Connector]) -> None:
    connector = served(0)
    assert connector._listener is not None
    port = connector._listener.getsockname()[1]
    for data in STRANGE:
        with socket.create_connection(("127.0.0.1", port), 30) as stranger:
            line_of(stranger)
            with contextlib.suppress(ConnectionError):
                stranger.sendall(data)
                assert stranger.recv(1) == b""
    with connect("127.0.0.1", port, TOKEN, 1) as node:
        node.settimeout(30)
        assert "second" in line_of(node)["waiting"]


@pytest.mark.parametrize(
    "data", [b'{"nonce": "\\ud800"}\n' + STRANGE[0], STRANGE[3], b"[]\n"], ids=["proof", "nested", "list"]
)
def test_another_program_at_the_port_of_node_0_is_an_error_of_the_connection(data: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            connection.sendall(data)
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(OSError):
            connect("127.0.0.1", listener.getsockname()[1], TOKEN, 1)


def supervised(connector: Connector, orders: list[dict[str, Any]]) -> None:
    """A supervisor that is ready at once, and ends its node on order; `orders` gets what it hears."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with Address(connector.folder) as path:
        until(lambda: connection.connect_ex(path) == 0, "the connector")

    def send(**status: Any) -> None:
        connection.sendall(json.dumps(status).encode() + b"\n")

    def follow() -> None:
        send(phase="ready", ready={"processes": 1, "ports": []})
        has_ended = False
        with connection, connection.makefile() as lines:
            for line in lines:
                orders.append(json.loads(line))
                if orders[-1].get("end") and not has_ended:
                    has_ended = True
                    send(phase="ended", outcome={"state": "canceled", "reason": "canceled", "detail": ""})
                if orders[-1].get("verdict"):
                    break

    threading.Thread(target=follow, daemon=True).start()


@pytest.mark.thorough
def test_node_that_has_given_up_node_0_is_not_overruled_by_it(
    served: Callable[[int], Connector], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_connector, "SILENCE_S", 3.0)
    monkeypatch.setattr(node_connector, "_BEAT_S", 0.2)
    heard: list[list[dict[str, Any]]] = [[], []]
    connectors = [served(node) for node in range(2)]
    for connector, orders in zip(connectors, heard, strict=True):
        supervised(connector, orders)
    until(lambda: heard[1] and heard[1][-1].get("start"), "the start")
    with monkeypatch.context() as frozen:
        frozen.setattr(connectors[0], "_lead", lambda now: None)
        until(lambda: heard[1][-1].get("verdict"), "the end of the second node")
    until(lambda: heard[0][-1].get("verdict"), "the end of the run")
    assert heard[1][-1]["verdict"]["state"] == heard[0][-1]["verdict"]["state"] == "lost"
    assert connectors[1]._orders["verdict"] == heard[1][-1]["verdict"]


def test_supervisor_that_dies_while_it_gets_orders_is_lost(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connector = connector_of(tmp_path, 1, listener)
    connector._nodes = {"names": ["first", "second"], "address": "127.0.0.1", "port": 9}
    near, far = socket.socketpair()
    connector._supervisor = node_connector.NodeChannel(near)
    far.close()
    connector._order({"open": True})
    assert not connector._supervisor.is_open
    connector._step()
    assert connector._supervisor is None and connector._status["ending"]["state"] == "lost"
