"""Framing of messages on the pipe between the kernel and a helper process.

A frame is four bytes big-endian length and msgpack.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import Any

import msgspec

#: Longest frame, bytes; a longer length is a broken stream.
MAX_FRAME = 64 << 20

_LENGTH = struct.Struct(">I")


def pack(message: dict[str, Any]) -> bytes:
    """One frame."""
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


def unpack_length(head: bytes) -> int:
    """Length of the body from the four bytes before it.

    Raises
    ------
    ValueError
        The four bytes are not the head of a frame.
    """
    length = int(_LENGTH.unpack(head)[0])
    if length > MAX_FRAME:
        raise ValueError(f"a frame of {length} bytes")
    return length


def read(take: Callable[[int], bytes]) -> dict[str, Any]:
    """The next message.

    Parameters
    ----------
    take
        Waits for some bytes, at most the number given; empty at the end of the stream.

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
    """Write a whole frame by `put`, which returns how many bytes it took."""
    view = memoryview(frame)
    while view:
        view = view[put(view) :]


def own_standard_pipes() -> tuple[int, int]:
    """Return descriptors of standard input and output that nothing else in this process reads or writes."""
    source, sink = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return source, sink
