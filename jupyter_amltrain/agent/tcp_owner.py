"""Who is at the other end of a connection on this machine: its Unix user, and its process.

TCP has no ``SO_PEERCRED``. Linux tells the owner of a socket over netlink (``sock_diag(7)``: one
lookup of about 30 microseconds, whatever the number of sockets), and in ``/proc/net/tcp`` (a table
of all sockets, milliseconds), which is read where a container does not offer the former.
"""

import glob
import os
import socket
import struct
import sys
import threading
from typing import Any, Dict, NamedTuple, Optional, Tuple

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 4, 20, 1
#: Seconds that the kernel gets to answer; it does so within the system call.
_NETLINK_TIMEOUT_S = 1.0
#: Variables that launchers (torchrun, Open MPI, MPICH, Slurm) set for each process of a job.
RANK_VARIABLES = (b"RANK", b"OMPI_COMM_WORLD_RANK", b"PMI_RANK", b"SLURM_PROCID")

#: Packed IPv4 or IPv6 address (``::ffff:a.b.c.d`` as IPv4), and port.
Address = Tuple[bytes, int]
_MAPPED = b"\0" * 10 + b"\xff\xff"
_OF_THREAD = threading.local()


class Owner(NamedTuple):
    """The owner of a socket."""

    uid: int
    inode: int  #: 0: no process holds the socket any more


class OwnerLookup:
    """Finds the owner of the far end of an accepted loopback connection.

    Use from one thread.
    """

    def __init__(self) -> None:
        self._netlink: Optional[socket.socket] = None
        self.method = ""
        if not sys.platform.startswith("linux"):
            return
        if os.access("/proc/net/tcp", os.R_OK):
            self.method = "proc"
        try:
            self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG)
            self._netlink.settimeout(_NETLINK_TIMEOUT_S)
        except OSError:
            return
        if self._probe():
            self.method = "netlink"
        else:
            self._netlink.close()
            self._netlink = None

    def _probe(self) -> bool:
        """Whether netlink answers rightly for a connection of our own."""
        with socket.socket() as listening:
            try:
                listening.bind(("127.0.0.1", 0))
                listening.listen(1)
                with socket.create_connection(listening.getsockname(), timeout=1) as near:
                    owner = self._by_netlink(_packed(near.getsockname()), _packed(near.getpeername()))
                    return owner == Owner(os.geteuid(), os.fstat(near.fileno()).st_ino)
            except (OSError, struct.error):
                return False

    def owner(self, connection: socket.socket) -> Optional[Owner]:
        """The owner of the far end.

        Returns
        -------
        Owner or None
            ``Owner(-1, 0)`` where the far end is closed already; ``None`` where this
            system does not tell owners.
        """
        if not self.method:
            return None
        try:
            here, there = _packed(connection.getsockname()), _packed(connection.getpeername())
        except (OSError, ValueError):
            return Owner(-1, 0)
        if self._netlink is not None:
            try:
                return self._by_netlink(there, here)
            except (OSError, struct.error):
                pass
        try:
            return _table().get((there, here), Owner(-1, 0))
        except (OSError, ValueError):
            return None

    def _by_netlink(self, local: Address, remote: Address) -> Owner:
        """Ask for the one socket with these two addresses (struct inet_diag_req_v2).

        Raises
        ------
        OSError
            There is no answer.
        """
        link = self._netlink
        assert link is not None
        family = socket.AF_INET if len(local[0]) == 4 else socket.AF_INET6
        ends = struct.pack("!HH16s16s", local[1], remote[1], local[0], remote[0])
        ends += struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)  # any interface, no cookie
        body = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + ends
        link.sendto(struct.pack("=IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0) + body, (0, 0))
        answer = link.recv(4096)
        if struct.unpack_from("=H", answer, 4)[0] != _SOCK_DIAG_BY_FAMILY:
            return Owner(-1, 0)  # an error message: there is no such socket
        uid, inode = struct.unpack_from("=II", answer, 16 + 4 + 48 + 12)
        return Owner(uid, inode)


def _table() -> Dict[Tuple[Address, Address], Owner]:
    """Every TCP connection of this machine: (local, remote) -> owner."""
    found = {}
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(name, "rb") as file:
                lines = file.read().split(b"\n")[1:]
        except OSError:
            if name.endswith("6"):
                continue
            raise
        for line in lines:
            words = line.split()
            if len(words) > 9:
                found[_address(words[1]), _address(words[2])] = Owner(int(words[7]), int(words[9]))
    return found


def _address(text: bytes) -> Address:
    """``0100007F:1F90`` -> packed 127.0.0.1 and 8080: 32-bit words in the order of this machine."""
    host, port = text.split(b":")
    words = [int(host[at : at + 8], 16) for at in range(0, len(host), 8)]
    return _plain(struct.pack("=%dI" % len(words), *words)), int(port, 16)


def _packed(address: Tuple[Any, ...]) -> Address:
    """An address of a socket in the form of the tables."""
    host = address[0].partition("%")[0]
    return _plain(socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)), address[1]


def _plain(packed: bytes) -> bytes:
    return packed[12:] if packed.startswith(_MAPPED) else packed


def is_other_user(connection: socket.socket) -> bool:
    """Whether neither we nor root hold the other end of a connection.

    Parameters
    ----------
    connection
        A connected TCP or Unix socket of this machine.

    Returns
    -------
    bool
        True also where nobody holds the other end any more: who closed it cannot be told.
        False where this system does not tell owners.
    """
    if connection.family == getattr(socket, "AF_UNIX", None):
        if not hasattr(socket, "SO_PEERCRED"):
            return False
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return struct.unpack("3i", data)[1] not in (0, os.geteuid())
    lookup: Optional[OwnerLookup] = getattr(_OF_THREAD, "lookup", None)
    if lookup is None:
        lookup = _OF_THREAD.lookup = OwnerLookup()
    owner = lookup.owner(connection)
    return owner is not None and (not owner.inode or owner.uid not in (0, os.geteuid()))


def rank_of(owner: Optional[Owner]) -> str:
    """The rank that a launcher gave to the process that holds a socket; empty where there is none.

    It looks through the open files of this user's processes: for rare calls.
    """
    if owner is None or not owner.inode:
        return ""
    wanted = "socket:[%d]" % owner.inode
    for path in glob.iglob("/proc/[0-9]*/fd/*"):
        try:
            if os.readlink(path) != wanted:
                continue
            with open(os.path.dirname(os.path.dirname(path)) + "/environ", "rb") as file:
                environ = dict(item.split(b"=", 1) for item in file.read().split(b"\0") if b"=" in item)
        except (OSError, ValueError):
            continue
        for name in RANK_VARIABLES:
            if environ.get(name):
                return environ[name].decode("ascii", "replace")
        return ""
    return ""
