"""Frames over a pipe: whole, torn, too long."""

from __future__ import annotations

import io

import pytest

from jupyter_amltrain.rpc import framing


def pieces(data: bytes, most: int):
    """Reads like a pipe: never more than `most` bytes at once."""
    stream = io.BytesIO(data)
    return lambda size: stream.read(min(size, most))


def test_frames_in_pieces_are_read_whole() -> None:
    messages = [{"id": 1, "text": "x" * 5000}, {"id": 2}]
    take = pieces(b"".join(map(framing.pack, messages)), 7)
    assert [framing.read(take), framing.read(take)] == messages
    with pytest.raises(EOFError):
        framing.read(take)


def test_torn_frame_raises_eof() -> None:
    with pytest.raises(EOFError):
        framing.read(pieces(framing.pack({"id": 1})[:-1], 100))


def test_what_is_no_frame_is_refused_before_it_is_read() -> None:
    with pytest.raises(ValueError, match="1751477356"):
        framing.read(pieces(b"hello", 100))


def test_frame_partial_writes_are_completed() -> None:
    got = bytearray()

    def put(view: memoryview) -> int:
        got.extend(view[:3])
        return len(view[:3])

    framing.write(put, b"0123456789")
    assert got == b"0123456789"
