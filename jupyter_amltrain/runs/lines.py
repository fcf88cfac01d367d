"""A byte stream that comes in pieces, cut into whole lines: a torn last one waits for its rest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

#: A longer line is left out: nobody of ours writes one, and it would be kept in memory until its end (bytes).
MAX_LINE = 16 << 20


class Lines:
    """Cuts a byte stream into whole lines."""

    def __init__(self) -> None:
        self._rest = b""
        self._too_long = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The lines that `data` completes, without empty ones."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if self._too_long and lines:
            lines[0], self._too_long = b"", False
        if self._too_long or len(self._rest) > MAX_LINE:
            self._rest, self._too_long = b"", True
        for line in lines:
            if line.strip() and len(line) <= MAX_LINE:
                yield line

    def restart(self) -> None:
        """Forget a torn line: the next bytes come from elsewhere in the file."""
        self._rest, self._too_long = b"", False


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
