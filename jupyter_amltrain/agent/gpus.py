"""The dispatcher's knowledge of the GPUs: asked in a child, never waited for."""

from __future__ import annotations

import os
import selectors
import signal
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import clock, driver_state, nvml
from .forked import drain
from .known_gpus import KnownGpus

#: How much rarer GPUs are looked for where the last reading found a CPU machine, or nothing that can be given.
ABSENT_FACTOR, BROKEN_FACTOR = 12.0, 2.5


class GpuWatch:
    """The last reading of the GPUs, and the probe that is under way.

    Parameters
    ----------
    selector
        The dispatcher's.
    on_read
        Called after each reading.
    known
        The GPUs of this boot.
    """

    def __init__(self, selector: selectors.BaseSelector, on_read: Callable[[], None], known: KnownGpus) -> None:
        self.selector = selector
        self.on_read = on_read
        self.history = known
        self.found: List[Dict[str, Any]] = []
        self.lost: List[Dict[str, Any]] = []  #: GPUs that cannot be used, see `KnownGpus.lost`
        self.driver = driver_state.ABSENT
        self.code: Optional[int] = None  #: NVML's, where the driver is broken
        self.note = ""
        self.known = False
        self.expired = False  #: something changed since the last reading
        self.began = 0.0  #: when the last reading began, or the one that is under way
        self._at = 0.0
        self._child: Optional[Tuple[int, int]] = None
        self._data = b""
        self._cost = 0.0  # seconds that the last reading took

    @property
    def probing(self) -> bool:
        """Whether a reading is under way."""
        return self._child is not None

    @property
    def doubtful(self) -> bool:
        """Whether another reading may find more than the last one did."""
        return self.driver != driver_state.WORKS or bool(self.note or self.lost)

    @property
    def trouble(self) -> str:
        """Why no GPU can be given although the machine has or had some; empty where it can, or never had one."""
        if self.driver == driver_state.BROKEN:
            return self.note
        return driver_state.lost_text(self.lost) if self.lost and not self.found else ""

    def refresh(self, older_than: float = 0.0) -> None:
        """Start a reading unless one is under way or the last is younger than `older_than` seconds."""
        # Where there is no GPU none will appear in seconds; where NVML is slow
        # to start (no persistence mode) it may not be asked all the time.
        factor = 1.0 if self.found else ABSENT_FACTOR if self.driver == driver_state.ABSENT else BROKEN_FACTOR
        limit = max(older_than * factor, 10 * self._cost)
        if self._child is not None or (self.known and not self.expired and clock.mono() - self._at < limit):
            return
        self.probe()

    def probe(self) -> None:
        """Start a reading now, unless one is under way or no process can be forked: then the last one stands."""
        if self._child is not None:
            return
        try:
            self._child = nvml.start_probe()
        except OSError:
            self.expired = True
            return
        self.expired = False
        self._data = b""
        self.began = clock.mono()
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
        self._at = clock.mono()
        self._cost = self._at - self.began
        self._take(nvml.parse_probe(self._data, self._cost))
        self.known = True
        if self.found:
            nvml.preload()
        self.on_read()

    def _take(self, value: Dict[str, Any]) -> None:
        """Make a reading the last one."""
        self.found, self.note, self.driver, self.code = value["gpus"], value["note"], value["driver"], value["code"]
        self.lost = []
        if self.driver == driver_state.WORKS:
            self.history.remember(value["present"])
            self.lost = self.history.lost([gpu["uuid"] for gpu in value["present"]], value["lost"])
            if self.lost and not self.found:
                self.note = driver_state.lost_text(self.lost)
        elif self.driver == driver_state.ABSENT and self.history.gpus:
            # It was here since the last boot: removed, or in the middle of an upgrade.
            self.driver, self.code = driver_state.BROKEN, driver_state.REMOVED

    def expire(self) -> None:
        """Give up a probe that hangs in the driver; try again where none could be started yet."""
        if not self.known:
            self.probe()
        if self._child is not None and clock.mono() - self.began > nvml.probe_timeout_s():
            try:
                os.kill(self._child[0], signal.SIGKILL)
            except OSError:
                pass
            self._finish()
