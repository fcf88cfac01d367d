"""One line of a cell's output that shows the progress of something that takes more than a second."""

from __future__ import annotations

import time
from types import TracebackType

#: Seconds between two updates.
INTERVAL_S = 0.5


class ProgressLine:
    """A line that replaces itself; a context manager. A front end that keeps ``\\r`` shows the last state."""

    def __init__(self) -> None:
        self._shown_at, self._width = 0.0, 0

    def show(self, text: str) -> None:
        """Show `text` unless the last one was shown just before; empty text shows nothing."""
        now = time.monotonic()
        if not text or now - self._shown_at < INTERVAL_S:
            return
        self._shown_at = now
        print(f"\r{text.ljust(self._width)}", end="", flush=True)
        self._width = len(text)

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._width:
            print("\r" + " " * self._width + "\r", end="", flush=True)
