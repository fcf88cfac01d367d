"""Who is at the other end of a connection."""

from __future__ import annotations

import os
import socket

import pytest

from jupyter_amltrain.agent import peer_uid
from jupyter_amltrain.agent.peer_uid import is_other_user
from tests.agent.conftest import until
from tests.other_user import OTHER_UID, needs_root, run_as_other_user

CONNECT = """
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 20)
if sys.argv[3] == "close":
    s.close()
else:
    s.recv(1)
"""


def listener(family: int, host: str) -> socket.socket:
    server = socket.socket(family)
    try:
        server.bind((host, 0))
    except OSError as error:
        pytest.skip(f"no {host} here: {error}")
    server.listen()
    server.settimeout(60)
    return server


@pytest.mark.parametrize(
    ("family", "host", "dialed"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
        (socket.AF_INET6, "::1", "::1"),
        (socket.AF_INET6, "::", "127.0.0.1"),
    ],
)
def test_peer_of_a_tcp_connection_is_known_on_both_sides(family, host, dialed):
    with listener(family, host) as server:
        with socket.create_connection((dialed, server.getsockname()[1])) as client, server.accept()[0] as accepted:
            assert peer_uid.peer_uid(accepted) == peer_uid.peer_uid(client) == os.getuid()
            assert not is_other_user(accepted)


def test_peer_of_a_unix_connection_is_known():
    one, other = socket.socketpair()
    with one, other:
        assert peer_uid.peer_uid(one) == os.getuid()


@needs_root
def test_connection_of_another_user_is_told(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    with listener(socket.AF_INET, "127.0.0.1") as server, ThreadPoolExecutor(1) as pool:
        done = pool.submit(run_as_other_user, CONNECT, "127.0.0.1", str(server.getsockname()[1]), "wait")
        with server.accept()[0] as accepted:
            assert peer_uid.peer_uid(accepted) == OTHER_UID and is_other_user(accepted)
        assert done.result(60).returncode == 0


@needs_root
def test_connection_that_its_owner_has_closed_is_not_taken_for_roots():
    with listener(socket.AF_INET, "127.0.0.1") as server:
        done = run_as_other_user(CONNECT, "127.0.0.1", str(server.getsockname()[1]), "close")
        assert done.returncode == 0, done.stderr
        with server.accept()[0] as accepted:
            until(lambda: peer_uid.peer_uid(accepted) in (None, OTHER_UID), "an answer")
            assert peer_uid.peer_uid(accepted) != 0


def test_peer_is_unknown_where_there_is_no_table(monkeypatch):
    monkeypatch.setattr(peer_uid, "_TABLES", ("/nonexistent",))
    with listener(socket.AF_INET, "127.0.0.1") as server:
        with socket.create_connection(server.getsockname()) as client, server.accept()[0] as accepted:
            assert client and peer_uid.peer_uid(accepted) is None and not is_other_user(accepted)
