"""Who is at the other end of a TCP connection on this machine: its Unix user, and its process.

TCP has no ``SO_PEERCRED``. Linux tells the owner of a socket over netlink (``sock_diag(7)``: one
lookup of about 30 microseconds, whatever the number of sockets), and in ``/proc/net/tcp`` (a table
of all sockets, milliseconds), which is read where a container does not offer the former.
"""

import glob
import os
import socket
import struct
import sys
from typing import Dict, NamedTuple, Optional, Tuple

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 4, 20, 1
#: Seconds that the kernel gets to answer; it does so within the system call.
_NETLINK_TIMEOUT_S = 1.0
#: Variables that launchers (torchrun, Open MPI, MPICH, Slurm) set for each process of a job.
RANK_VARIABLES = (b"RANK", b"OMPI_COMM_WORLD_RANK", b"PMI_RANK", b"SLURM_PROCID")

Address = Tuple[str, int]


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
                    owner = self._by_netlink(near.getsockname(), near.getpeername())
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
            here, there = connection.getsockname(), connection.getpeername()
        except OSError:
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
        ends = struct.pack(
            "!HH16s16s", local[1], remote[1], socket.inet_aton(local[0]), socket.inet_aton(remote[0])
        ) + struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
        body = struct.pack("=BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + ends
        link.sendto(struct.pack("=IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0) + body, (0, 0))
        answer = link.recv(4096)
        if struct.unpack_from("=H", answer, 4)[0] != _SOCK_DIAG_BY_FAMILY:
            return Owner(-1, 0)  # an error message: there is no such socket
        uid, inode = struct.unpack_from("=II", answer, 16 + 4 + 48 + 12)
        return Owner(uid, inode)


def _table() -> Dict[Tuple[Address, Address], Owner]:
    """Every IPv4 connection of this machine: (local, remote) -> owner."""
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
    """``0100007F:1F90`` -> ``("127.0.0.1", 8080)``; of an IPv6 address the last four bytes."""
    host, port = text.split(b":")
    packed = struct.pack("=I", int(host[-8:], 16))
    return socket.inet_ntoa(packed), int(port, 16)


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
