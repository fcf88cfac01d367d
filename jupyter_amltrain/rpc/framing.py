"""Framing of messages on the pipe between the kernel and a helper process.

A frame is a length (four bytes, big-endian) followed by a msgpack body.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import Any

import msgspec

#: Maximum size of a frame in bytes; a larger length means that the stream is corrupt.
MAX_FRAME = 64 << 20

_LENGTH = struct.Struct(">I")


def pack(message: dict[str, Any]) -> bytes:
    """Return a message as one frame."""
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


def unpack_length(head: bytes) -> int:
    """Return the length of the body from the four bytes before it.

    Raises
    ------
    ValueError
        The four bytes are not the head of a frame.
    """
    length = int(_LENGTH.unpack(head)[0])
    if length > MAX_FRAME:
        raise ValueError(f"frame too large: {length} bytes, at most {MAX_FRAME}")
    return length


def read(take: Callable[[int], bytes]) -> dict[str, Any]:
    """Read the next message.

    Parameters
    ----------
    take
        Reads at most the given number of bytes, blocking; returns an empty result at the end of the stream.

    Raises
    ------
    EOFError
        The stream has ended.
    ValueError
        The four bytes are not the head of a frame.
    """
    message: dict[str, Any] = msgspec.msgpack.decode(_exactly(take, unpack_length(_exactly(take, _LENGTH.size))))
    return message


def _exactly(take: Callable[[int], bytes], size: int) -> bytes:
    parts = []
    while size:
        more = take(min(size, 1 << 20))
        if not more:
            raise EOFError
        parts.append(more)
        size -= len(more)
    return b"".join(parts)


def write(put: Callable[[memoryview], int], frame: bytes) -> None:
    """Write a whole frame with `put`, which returns the number of bytes that it accepted."""
    view = memoryview(frame)
    while view:
        view = view[put(view) :]


def own_standard_pipes() -> tuple[int, int]:
    """Return private descriptors of standard input and output, which nothing else in this process uses."""
    source, sink = os.dup(0), os.dup(1)
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    os.close(devnull)
    os.dup2(2, 1)
    return source, sink
