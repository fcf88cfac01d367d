"""Which user is at the other end of a connection from this machine."""

from __future__ import annotations

import os
import socket
import struct
import sys
from typing import Iterator, List, Optional, Tuple

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
#: States in which a row still tells its owner: established, syn sent, close wait. Later ones show uid 0 for everybody.
_OWNED = (1, 2, 8)


def peer_uid(connection: socket.socket) -> Optional[int]:
    """Return the user id of the process at the other end of `connection`.

    Parameters
    ----------
    connection
        A connected TCP or Unix socket.

    Returns
    -------
    int or None
        ``None`` where it cannot be told: another machine or network namespace, a socket that its
        owner has closed, or a system without ``SO_PEERCRED`` or ``/proc/net/tcp``.
    """
    try:
        if connection.family == getattr(socket, "AF_UNIX", None):
            return _of_unix(connection)
        ours, theirs = connection.getsockname()[:2], connection.getpeername()[:2]
        ends = (_hexed(theirs), _hexed(ours))
    except (OSError, ValueError):
        return None
    for local, remote, state, uid, inode in _rows():
        if (local, remote) == ends:
            return uid if state in _OWNED and inode else None
    return None


def is_other_user(connection: socket.socket) -> bool:
    """Whether `connection` surely comes from a user of this machine who is neither we nor root."""
    uid = peer_uid(connection)
    return uid is not None and uid not in (0, os.getuid())


def _of_unix(connection: socket.socket) -> Optional[int]:
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", data)[1])


def _hexed(address: Tuple[str, int]) -> Tuple[bytes, int]:
    """IPv6 form (IPv4 as ``::ffff:a.b.c.d``), so that both tables can be compared."""
    host, port = address
    host = host.partition("%")[0]
    if ":" in host:
        return socket.inet_pton(socket.AF_INET6, host), port
    return _mapped(socket.inet_aton(host)), port


def _mapped(packed: bytes) -> bytes:
    return b"\0" * 10 + b"\xff\xff" + packed


def _address(text: str) -> Tuple[bytes, int]:
    """``0100007F:1F90`` -> packed address and port: 32-bit words in the order of this machine."""
    host, _, port = text.partition(":")
    raw = bytes.fromhex(host)
    if sys.byteorder == "little":
        raw = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    return (_mapped(raw) if len(raw) == 4 else raw), int(port, 16)


def _rows() -> Iterator[Tuple[Tuple[bytes, int], Tuple[bytes, int], int, int, int]]:
    for table in _TABLES:
        try:
            with open(table) as file:
                lines = file.read().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words: List[str] = line.split()
            try:
                yield _address(words[1]), _address(words[2]), int(words[3], 16), int(words[7]), int(words[9])
            except (IndexError, ValueError):
                continue
