"""A byte stream that comes in pieces, cut into whole lines: a torn last one waits for its rest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec


class Lines:
    """Cuts a byte stream into whole lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The lines that `data` completes, without empty ones."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.strip():
                yield line

    def restart(self) -> None:
        """Forget a torn line: the next bytes come from elsewhere in the file."""
        self._rest = b""


def decode_line(line: bytes) -> Any:
    """The JSON value of a line; ``None`` for what is not JSON, whatever a job wrote there."""
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def decode_object(data: bytes) -> dict[str, Any] | None:
    """The JSON object in a whole file; ``None`` for anything else. Python's JSON: ``NaN`` is taken."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
