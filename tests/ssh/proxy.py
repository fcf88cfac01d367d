"""A proxy in front of a server that cuts, freezes, delays and slows down connections, and counts their bytes."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time


class Proxy:
    """Forwards a port; can cut, freeze and delay the connections.

    Attributes
    ----------
    delay
        Seconds from one end to the other, in both directions; blocks on their way do not wait for each other.
    delay_back
        Further seconds for what the server sends.
    rate
        Maximum bytes per second in each direction; 0 for no limit.
    sent, received
        Number of bytes to and from the server.
    drops
        Number of the next connections that are closed at once.
    heard
        All bytes that have passed, in both directions, if it `keeps_bytes`.
    """

    def __init__(self, port: int, keeps_bytes: bool = False) -> None:
        self._to, self.keeps_bytes = port, keeps_bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.delay, self.delay_back, self.rate = 0.0, 0.0, 0.0
        self.sent, self.received = 0, 0
        self.drops = 0
        self.heard = bytearray()
        self._open = threading.Event()  # bytes pass
        self._open.set()
        self._refusing = False
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:
                return
            if self._refusing or self.drops > 0:
                self.drops -= not self._refusing
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self._to))
                far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:
                near.close()
                continue
            self._sockets += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(one, other, one is far), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket, back: bool) -> None:
        waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        threading.Thread(target=self._deliver, args=(waiting, one, other), daemon=True).start()
        free = 0.0  # monotonic second at which the link has room
        with contextlib.suppress(OSError):
            while block := one.recv(1 << 16):
                if self.keeps_bytes:
                    self.heard += block
                if back:
                    self.received += len(block)
                else:
                    self.sent += len(block)
                now = time.monotonic()
                if self.rate:
                    free = max(free, now) + len(block) / self.rate
                    time.sleep(free - now)
                    now = free
                waiting.put((now + self.delay + (self.delay_back if back else 0.0), block))
        waiting.put((0.0, b""))

    def _deliver(
        self, waiting: queue.SimpleQueue[tuple[float, bytes]], one: socket.socket, other: socket.socket
    ) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, block = waiting.get()
                if not block:
                    break
                if (left := due - time.monotonic()) > 0:
                    time.sleep(left)
                self._open.wait()
                other.sendall(block)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.close()

    def freeze(self) -> None:
        """Let no byte pass, without closing anything."""
        self._open.clear()

    def thaw(self) -> None:
        self._open.set()

    def cut(self) -> None:
        """Close every connection and refuse new ones."""
        self._refusing = True
        for end in self._sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._sockets.clear()

    def mend(self) -> None:
        self._refusing, self.delay_back = False, 0.0

    def close(self) -> None:
        self.cut()
        self._listener.close()
