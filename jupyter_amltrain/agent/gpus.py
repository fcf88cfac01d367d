"""The dispatcher's knowledge of the GPUs: asked in a child, never waited for."""

from __future__ import annotations

import os
import selectors
import signal
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import clock, nvml
from .forked import drain


class GpuWatch:
    """The last reading of the GPUs, and the probe that is under way.

    Parameters
    ----------
    selector
        The dispatcher's.
    on_read
        Called after each reading.
    """

    def __init__(self, selector: selectors.BaseSelector, on_read: Callable[[], None]) -> None:
        self.selector = selector
        self.on_read = on_read
        self.found: List[Dict[str, Any]] = []
        self.note = ""
        self.known = False
        self.expired = False  #: something changed since the last reading
        self._at = 0.0
        self._child: Optional[Tuple[int, int]] = None
        self._data = b""
        self._began = 0.0
        self._cost = 0.0  # seconds that the last reading took

    @property
    def probing(self) -> bool:
        """Whether a reading is under way."""
        return self._child is not None

    def refresh(self, older_than: float = 0.0) -> None:
        """Start a reading unless the last is younger than `older_than` seconds."""
        # Where there is no GPU none will appear in seconds; where NVML is slow
        # to start (no persistence mode) it may not be asked all the time.
        limit = max(older_than, 10 * self._cost) if self.found else older_than * 12
        if self._child is not None or (self.known and not self.expired and clock.mono() - self._at < limit):
            return
        self.expired = False
        self._child = nvml.start_probe()
        self._data = b""
        self._began = clock.mono()
        self.selector.register(self._child[1], selectors.EVENT_READ, self._readable)

    def _readable(self) -> None:
        if self._child is None:
            return
        handle = self._child[1]
        try:
            piece = os.read(handle, 1 << 16)
        except BlockingIOError:
            return
        if piece:
            self._data += piece
            return
        self._finish()

    def _finish(self) -> None:
        if self._child is None:
            return
        _, handle = self._child
        drain(handle)
        self.selector.unregister(handle)
        os.close(handle)
        self._child = None
        value = nvml.parse_probe(self._data)
        self.found, self.note = value["gpus"], value["note"]
        self.known = True
        self._at = clock.mono()
        self._cost = self._at - self._began
        if self.found:
            nvml.preload()
        self.on_read()

    def expire(self) -> None:
        """Give up a probe that hangs in the driver."""
        if self._child is not None and clock.mono() - self._began > nvml.PATIENCE:
            try:
                os.kill(self._child[0], signal.SIGKILL)
            except OSError:
                pass
            self._finish()
