"""CONNECT proxy: Azure's host names lead to the emulator, every other host is refused."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

from tests.azure.emulator.routing import kind_of


class Proxy:
    """Listens on loopback.

    Parameters
    ----------
    port_of
        Kind of host (a key of `routing.HOSTS`) -> port on 127.0.0.1 that answers for it.

    Attributes
    ----------
    refused : list of str
        Hosts that somebody asked for and did not get.
    """

    def __init__(self, port_of: Callable[[str], int]) -> None:
        self._port_of = port_of
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
        head = await reader.readuntil(b"\r\n\r\n")
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
        there, out = await asyncio.open_connection("127.0.0.1", self._port_of(kind))
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
