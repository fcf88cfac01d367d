"""CONNECT proxy: forwards Azure's host names to the emulator and rejects all others.

It wants a password, and the emulator listens on a private socket behind it: some of its answers, like a sign-in by
browser, are given to whoever asks.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import re
import socket
from collections.abc import Callable
from typing import Any

from azureml_emulator import peers
from azureml_emulator.routing import kind_of

#: User name that goes with the password.
USER = "sandbox"
_CREDENTIALS = re.compile(rb"(?im)^proxy-authorization:\s*basic\s+(\S+)\s*$")


class Proxy:
    """Listens on loopback.

    Parameters
    ----------
    place_of
        Kind of host (a key of `routing.HOSTS`) -> what answers for it: a port on 127.0.0.1, or a Unix socket.
    password
        What clients have to send, with the user name :data:`USER`.

    Attributes
    ----------
    refused : list of str
        Requested hosts that were rejected.
    """

    def __init__(self, place_of: Callable[[str], int | str], password: str) -> None:
        self._place_of = place_of
        self._credentials = base64.b64encode(f"{USER}:{password}".encode())
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self.refused: list[str] = []
        self.port = 0
        #: Nobody gets through: as a proxy of a network that is cut off.
        self.down = False

    async def start(self) -> None:
        """Listen on a free port, then in `port`."""
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and break what is open."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._open):
            writer.close()

    def break_all(self) -> int:
        """Cut every open connection, as a lost network does; how many there were."""
        found = list(self._open)
        for writer in found:
            writer.transport.abort()
        return len(found)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if peers.is_foreign(writer.transport):
            return
        head = await reader.readuntil(b"\r\n\r\n")
        given = _CREDENTIALS.search(head)
        if given is None or not hmac.compare_digest(given[1], self._credentials):
            challenge = b'Proxy-Authenticate: Basic realm="sandbox"\r\n'
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n" + challenge)
            writer.write(b"Content-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
            return
        method, _, rest = head.split(b"\r\n", 1)[0].decode("latin-1").partition(" ")
        target = rest.split(" ")[0]
        host = target.rpartition(":")[0] if method == "CONNECT" else target
        if self.down:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
            return
        kind = kind_of(host) if method == "CONNECT" else None
        if kind is None:
            self.refused.append(host)
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
            return
        place = self._place_of(kind)
        if isinstance(place, str):
            there, out = await asyncio.open_unix_connection(place)
        else:
            there, out = await asyncio.open_connection("127.0.0.1", place)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(_pipe(reader, out, writer.get_extra_info("socket")), _pipe(there, writer))


async def _pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter, come: Any = None) -> None:
    """Copy until the end; `come` is the socket of `source` where its sender waits for acknowledgements.

    urllib3 leaves Nagle's algorithm on for connections through a proxy: a request of two segments (headers, body)
    would wait 40 ms for Linux's delayed acknowledgement each time.
    """
    quick = getattr(socket, "TCP_QUICKACK", None)
    with contextlib.suppress(OSError):
        while data := await source.read(65_536):
            if come is not None and quick is not None:
                come.setsockopt(socket.IPPROTO_TCP, quick, 1)
            sink.write(data)
            await sink.drain()
    with contextlib.suppress(OSError, RuntimeError):
        sink.close()
