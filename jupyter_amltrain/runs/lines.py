"""A byte stream that comes in pieces, cut into whole lines: a torn last one waits for its rest."""

from __future__ import annotations

from collections.abc import Iterator


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
