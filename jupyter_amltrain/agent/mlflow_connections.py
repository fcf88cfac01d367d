"""The open connections of the sink: who may connect, and how many may stay."""

import os
import socket
import struct
import threading
import time
from typing import Callable, Dict, Optional

from .tcp_owner import OwnerLookup

#: Connections that the kernel completes while the sink is busy or is forked anew; it takes less where
#: ``net.core.somaxconn`` is less.
BACKLOG = 4096
#: Open connections, each with a thread. A job has one or a few for each of its processes.
MAX_CONNECTIONS = 512
#: Of these, connections that have not shown the token.
MAX_UNTRUSTED = 64
#: Seconds in which a connection has to send a request with the token, and between two pieces of one.
REQUEST_TIMEOUT_S = 10.0
#: Seconds after which an unused connection is closed; the client opens another when it needs one.
IDLE_TIMEOUT_S = 600.0


class _Connection:
    def __init__(self, now: float) -> None:
        self.trusted = False
        self.busy = True
        self.since = now


class Connections:
    """Keeps the sink's connections few, and other users' out.

    Parameters
    ----------
    on_note
        Called with one sentence when a connection was refused or closed.
    """

    def __init__(self, on_note: Callable[[str], None]) -> None:
        self._note = on_note
        self._lookup = OwnerLookup()
        self._uid = os.geteuid() if hasattr(os, "geteuid") else -1
        self._lock = threading.Lock()
        self._open: Dict[socket.socket, _Connection] = {}
        self._limit = min(MAX_CONNECTIONS, _descriptors() // 2)

    def admit(self, connection: socket.socket) -> bool:
        """Whether an accepted connection may stay; one that may not is reset.

        Another user's is known by its owner on Linux. Elsewhere, and for other
        programs of the same user, the token and the limits have to do.
        """
        owner = self._lookup.owner(connection)
        # root may do anything anyway, and jobs use sudo
        if owner is not None and (owner.uid not in (self._uid, 0) or not owner.inode):
            if owner.inode:
                self._note("connections of Unix user %d were refused" % owner.uid)
            try:  # no TIME_WAIT entry for each of them
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            except OSError:
                pass
            return False
        with self._lock:
            self._open[connection] = _Connection(time.monotonic())
            untrusted = [key for key, value in self._open.items() if not value.trusted]
            if len(untrusted) > MAX_UNTRUSTED:
                self._close(untrusted[0])
            elif len(self._open) > self._limit:
                self._close(self._least_used(connection))
        return True

    def make_room(self) -> None:
        """Close the connection that is missed least; the process has no descriptor left."""
        with self._lock:
            if self._open:
                self._close(self._least_used(None))

    def _least_used(self, new: Optional[socket.socket]) -> socket.socket:
        """An old connection without the token, else the one that has been idle longest, else the oldest."""

        def order(item: socket.socket) -> object:
            state = self._open[item]
            return item is new, state.trusted, state.busy, state.since

        return min(self._open, key=order)  # type: ignore[arg-type]

    def _close(self, connection: socket.socket) -> None:
        """Wake the thread of a connection, which then closes it."""
        del self._open[connection]
        self._note("there were too many connections; the least used ones were closed")
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def trust(self, connection: socket.socket) -> None:
        """Note that a connection has shown the token, and works on a request."""
        with self._lock:
            state = self._open.get(connection)
            if state is not None:
                state.trusted = state.busy = True

    def rest(self, connection: socket.socket) -> None:
        """Note that a connection waits for its next request."""
        with self._lock:
            state = self._open.get(connection)
            if state is not None:
                state.busy, state.since = False, time.monotonic()

    def remove(self, connection: socket.socket) -> None:
        """Forget a connection that is closed."""
        with self._lock:
            self._open.pop(connection, None)


def _descriptors() -> int:
    """Files that this process may open."""
    try:
        import resource

        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except (ImportError, OSError, ValueError):
        return 256
