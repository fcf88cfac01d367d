"""Who is at the other end of a connection."""

from __future__ import annotations

import os
import socket

import pytest

from jupyter_amltrain.agent import tcp_owner
from jupyter_amltrain.agent.tcp_owner import OwnerLookup, is_other_user
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
        pytest.skip(f"needs the address {host}: {error}")
    server.listen()
    server.settimeout(60)
    return server


@pytest.fixture(params=["netlink", "proc"])
def lookup(request, monkeypatch):
    """Both ways to ask the system; ``is_other_user`` of this thread goes the same one."""
    lookup = OwnerLookup()
    if request.param == "netlink" and lookup.method != "netlink":
        pytest.skip("needs netlink")
    if request.param == "proc":
        lookup._netlink, lookup.method = None, "proc"
    monkeypatch.setattr(tcp_owner._thread_local, "lookup", lookup, raising=False)
    return lookup


@pytest.mark.parametrize(
    ("family", "host", "dialed"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
        (socket.AF_INET6, "::1", "::1"),
        (socket.AF_INET6, "::", "127.0.0.1"),
    ],
)
def test_tcp_owner_is_known_on_both_sides(lookup, family, host, dialed):
    with listener(family, host) as server:
        with socket.create_connection((dialed, server.getsockname()[1])) as client, server.accept()[0] as accepted:
            assert lookup.owner(accepted).uid == lookup.owner(client).uid == os.geteuid()
            assert lookup.owner(accepted).inode == os.fstat(client.fileno()).st_ino
            assert not is_other_user(accepted)


def test_unix_socket_owner_is_known():
    one, other = socket.socketpair()
    with one, other:
        assert not is_other_user(one)


@needs_root
def test_tcp_owner_other_user_is_detected(lookup):
    from concurrent.futures import ThreadPoolExecutor

    with listener(socket.AF_INET, "127.0.0.1") as server, ThreadPoolExecutor(1) as pool:
        done = pool.submit(run_as_other_user, CONNECT, "127.0.0.1", str(server.getsockname()[1]), "wait")
        with server.accept()[0] as accepted:
            assert lookup.owner(accepted).uid == OTHER_UID and is_other_user(accepted)
        assert done.result(60).returncode == 0


@needs_root
def test_tcp_owner_of_closed_connection_is_not_root(lookup):
    with listener(socket.AF_INET, "127.0.0.1") as server:
        done = run_as_other_user(CONNECT, "127.0.0.1", str(server.getsockname()[1]), "close")
        assert done.returncode == 0, done.stderr
        with server.accept()[0] as accepted:
            until(lambda: lookup.owner(accepted).inode == 0, "nobody holds the other end")
            assert is_other_user(accepted)


def test_tcp_owner_without_system_support_is_unknown(lookup):
    lookup._netlink, lookup.method = None, ""
    with listener(socket.AF_INET, "127.0.0.1") as server:
        with socket.create_connection(server.getsockname()) as client, server.accept()[0] as accepted:
            assert client and lookup.owner(accepted) is None and not is_other_user(accepted)
