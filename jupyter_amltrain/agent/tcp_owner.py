"""Owner (Unix user and process) of the other end of a connection on this machine.

TCP has no ``SO_PEERCRED``. Linux reports the owner of a socket over netlink (``sock_diag(7)``: one
lookup of about 30 microseconds for any number of sockets) and in ``/proc/net/tcp`` (a table of all
sockets, milliseconds). The table is the fallback for containers without netlink.
"""

import glob
import os
import socket
import struct
import sys
import threading
from typing import Any, Dict, NamedTuple, Optional, Tuple

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 4, 20, 1
#: Seconds to wait for a reply of the kernel, which normally comes within the system call.
_NETLINK_TIMEOUT_S = 1.0
#: Variables that launchers (torchrun, Open MPI, MPICH, Slurm) set for each process of a job.
RANK_VARIABLES = (b"RANK", b"OMPI_COMM_WORLD_RANK", b"PMI_RANK", b"SLURM_PROCID", b"AMLTRAIN_RANK")

#: Packed IPv4 or IPv6 address (``::ffff:a.b.c.d`` as IPv4), and port.
Address = Tuple[bytes, int]
_MAPPED = b"\0" * 10 + b"\xff\xff"
_thread_local = threading.local()


class Owner(NamedTuple):
    """The owner of a socket."""

    uid: int
    inode: int  #: 0: the socket is no longer open in any process


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
        """Whether netlink reports the correct owner for a connection of our own."""
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
        """Return the owner of the far end.

        Returns
        -------
        Owner or None
            ``Owner(-1, 0)`` if the far end is already closed; ``None`` if this
            system does not report owners.
        """
        if not self.method:
            return None
        try:
            near, far = _packed(connection.getsockname()), _packed(connection.getpeername())
        except (OSError, ValueError):
            return Owner(-1, 0)
        if self._netlink is not None:
            try:
                return self._by_netlink(far, near)
            except (OSError, struct.error):  # a kernel without it: read /proc instead
                pass
        try:
            return _table().get((far, near), Owner(-1, 0))
        except (OSError, ValueError):
            return None

    def _by_netlink(self, local: Address, remote: Address) -> Owner:
        """Query the socket with these two addresses (struct inet_diag_req_v2).

        Raises
        ------
        OSError
            The kernel does not reply.
        """
        link = self._netlink
        assert link is not None
        family = socket.AF_INET if len(local[0]) == 4 else socket.AF_INET6
        ends = struct.pack("!HH16s16s", local[1], remote[1], local[0], remote[0])
        ends += struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)  # any interface, no cookie
        body = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + ends
        link.sendto(struct.pack("=IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0) + body, (0, 0))
        reply = link.recv(4096)
        if struct.unpack_from("=H", reply, 4)[0] != _SOCK_DIAG_BY_FAMILY:
            return Owner(-1, 0)  # an error message: there is no such socket
        uid, inode = struct.unpack_from("=II", reply, 16 + 4 + 48 + 12)
        return Owner(uid, inode)


def _table() -> Dict[Tuple[Address, Address], Owner]:
    """Return every TCP connection of this machine: (local, remote) -> owner."""
    owners = {}
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
                owners[_address(words[1]), _address(words[2])] = Owner(int(words[7]), int(words[9]))
    return owners


def _address(text: bytes) -> Address:
    """Parse ``0100007F:1F90`` into packed 127.0.0.1 and 8080: 32-bit words in native byte order."""
    host, port = text.split(b":")
    words = [int(host[offset : offset + 8], 16) for offset in range(0, len(host), 8)]
    return _plain(struct.pack("=%dI" % len(words), *words)), int(port, 16)


def _packed(address: Tuple[Any, ...]) -> Address:
    """Return a socket address in the form of the tables."""
    host = address[0].partition("%")[0]
    return _plain(socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)), address[1]


def _plain(packed: bytes) -> bytes:
    return packed[12:] if packed.startswith(_MAPPED) else packed


def is_other_user(connection: socket.socket) -> bool:
    """Whether the other end of a connection belongs to neither this user nor root.

    Parameters
    ----------
    connection
        A connected TCP or Unix socket of this machine.

    Returns
    -------
    bool
        True also if the other end is already closed, because its owner is then unknown.
        False if this system does not report owners.
    """
    if connection.family == getattr(socket, "AF_UNIX", None):
        if not hasattr(socket, "SO_PEERCRED"):
            return False
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return struct.unpack("3i", data)[1] not in (0, os.geteuid())
    lookup: Optional[OwnerLookup] = getattr(_thread_local, "lookup", None)
    if lookup is None:
        lookup = _thread_local.lookup = OwnerLookup()
    owner = lookup.owner(connection)
    return owner is not None and (not owner.inode or owner.uid not in (0, os.geteuid()))


def rank_of(owner: Optional[Owner]) -> str:
    """Return the rank that a launcher assigned to the process with a socket; empty if there is none.

    Searches the open files of all processes of this user: only for rare calls.
    """
    if owner is None or not owner.inode:
        return ""
    link = "socket:[%d]" % owner.inode
    for path in glob.iglob("/proc/[0-9]*/fd/*"):
        try:
            if os.readlink(path) != link:
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
