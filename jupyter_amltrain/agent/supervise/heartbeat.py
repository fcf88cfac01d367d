"""Heartbeat of a supervisor: by it the guardian knows that the run is looked after, and its true state."""

from __future__ import annotations

import json
import os
import select
from typing import Any, Dict, Mapping, Optional

from .. import protocol
from ..process_setup import drain

#: Seconds between beats of a supervisor that has nothing else to say.
BEAT_INTERVAL_S = 1.0
#: Seconds without a beat after which a stopped supervisor is continued.
BEAT_CHECK_S = 4.0
#: Seconds without a beat after which a supervisor that does not run is called stalled.
STALL_TIMEOUT_S = 8.0
#: Seconds that the last words may take.
FAREWELL_TIMEOUT_S = 5.0
#: Bytes kept for a guardian that does not read.
MAX_PENDING_BYTES = 1 << 16

_BEAT, _END = b"\n", b"end\n"


class Heartbeat:
    """The supervisor's end.

    Parameters
    ----------
    handle
        Write end of the pipe to the guardian; ``None`` where there is none.
    """

    def __init__(self, handle: Optional[int]) -> None:
        self._handle = handle
        self._pending = b""
        self._last = 0.0
        if handle is not None:
            os.set_blocking(handle, False)

    def beat(self) -> None:
        """Say that we are at work, about once a second however often it is called."""
        now = protocol.mono()
        if self._pending or now - self._last >= BEAT_INTERVAL_S:
            self._last = now
            self._write(_BEAT)

    def tell(self, state: Mapping[str, Any]) -> None:
        """Say which state is about to be written: it holds, whatever the file says later."""
        self._last = protocol.mono()
        self._write(json.dumps(state).encode() + b"\n")

    def end(self) -> None:
        """Say that the final state is written and that nobody of the run is left."""
        self._write(_END)
        until = protocol.mono() + FAREWELL_TIMEOUT_S
        while self._handle is not None and self._pending and protocol.mono() < until:
            select.select([], [self._handle], [], 0.5)
            self._write(b"")

    def _write(self, line: bytes) -> None:
        if self._handle is None:
            return
        if len(self._pending) > MAX_PENDING_BYTES:  # half a line, and the newest
            self._pending = self._pending[: self._pending.find(b"\n") + 1]
        self._pending += line
        try:
            while self._pending:
                self._pending = self._pending[os.write(self._handle, self._pending) :]
        except BlockingIOError:
            pass
        except OSError:  # the guardian was killed: we go on without it
            self._handle, self._pending = None, b""


class Listener:
    """The guardian's end.

    Parameters
    ----------
    handle
        Read end of the pipe.
    state
        The run's state before its supervisor said anything.

    Attributes
    ----------
    began
        Whether the supervisor has said anything at all.
    ended
        Whether it has said that all is done.
    last
        When it was heard, monotonic.
    running_since
        When it said first that the job's process runs, monotonic.
    """

    def __init__(self, handle: int, state: Dict[str, Any]) -> None:
        self._handle = handle
        self._data = b""
        self._state = b""
        self._first = state
        self.began = self.ended = False
        self.last = protocol.mono()
        self.running_since: Optional[float] = None
        os.set_blocking(handle, False)

    def hear(self) -> bool:
        """Take in what was said; whether the supervisor is gone."""
        data = drain(self._handle)
        if not data:
            return self._closed()
        self.began, self.last = True, protocol.mono()
        lines = (self._data + data).split(b"\n")
        self._data = lines.pop()
        for line in lines:
            if line == _END.strip():
                self.ended = True
            elif line.startswith(b"{"):
                self._state = line
                if self.running_since is None and self.state.get("rank"):
                    self.running_since = self.last
        return self._closed()

    def _closed(self) -> bool:
        try:
            piece = os.read(self._handle, 1)
        except BlockingIOError:
            return False
        self._data += piece
        return not piece

    @property
    def state(self) -> Dict[str, Any]:
        """What the supervisor wrote last, or was about to write."""
        return dict(json.loads(self._state.decode())) if self._state else self._first
