"""Heartbeat of a supervisor: shows the guardian that the run is supervised, and its true state."""

from __future__ import annotations

import json
import os
import select
from typing import Any, Dict, Mapping, Optional

from .. import protocol
from ..process_setup import drain

#: Seconds between beats of a supervisor that sends no state.
BEAT_INTERVAL_S = 1.0
#: Seconds without a beat after which a stopped supervisor is continued.
BEAT_CHECK_S = 4.0
#: Seconds without a beat after which a supervisor that is not running counts as stalled.
STALL_TIMEOUT_S = 8.0
#: Seconds for sending the last messages.
FAREWELL_TIMEOUT_S = 5.0
#: Max bytes buffered for a guardian that does not read.
MAX_PENDING_BYTES = 1 << 16

_BEAT, _END = b"\n", b"end\n"


class Heartbeat:
    """The sending end, in the supervisor.

    Parameters
    ----------
    handle
        Write end of the pipe to the guardian; ``None`` without a guardian.
    """

    def __init__(self, handle: Optional[int]) -> None:
        self._handle = handle
        self._pending = b""
        self._last = 0.0
        if handle is not None:
            os.set_blocking(handle, False)

    def beat(self) -> None:
        """Send a beat, at most once per `BEAT_INTERVAL_S`."""
        now = protocol.mono()
        if self._pending or now - self._last >= BEAT_INTERVAL_S:
            self._last = now
            self._write(_BEAT)

    def send_state(self, state: Mapping[str, Any]) -> None:
        """Send the state that is about to be written; it takes precedence over the file."""
        self._last = protocol.mono()
        self._write(json.dumps(state).encode() + b"\n")

    def farewell(self) -> None:
        """Report that the final state is written and that no process of the run is left."""
        self._write(_END)
        until = protocol.mono() + FAREWELL_TIMEOUT_S
        while self._handle is not None and self._pending and protocol.mono() < until:
            select.select([], [self._handle], [], 0.5)
            self._write(b"")

    def _write(self, line: bytes) -> None:
        if self._handle is None:
            return
        if len(self._pending) > MAX_PENDING_BYTES:  # keep an incomplete first line, then the newest
            self._pending = self._pending[: self._pending.find(b"\n") + 1]
        self._pending += line
        try:
            while self._pending:
                self._pending = self._pending[os.write(self._handle, self._pending) :]
        except BlockingIOError:  # the pipe is full: the rest is sent later
            pass
        except OSError:  # the guardian was killed: continue without it
            self._handle, self._pending = None, b""


class Listener:
    """The receiving end, in the guardian.

    Parameters
    ----------
    handle
        Read end of the pipe.
    state
        State of the run before the first message of its supervisor.

    Attributes
    ----------
    has_begun
        Whether the supervisor has sent anything.
    has_ended
        Whether the supervisor has reported the end of the run.
    last_beat
        Monotonic time of the last message.
    running_since
        Monotonic time of the first message that names the process of the job.
    """

    def __init__(self, handle: int, state: Dict[str, Any]) -> None:
        self._handle = handle
        self._partial = b""
        self._last_state = b""
        self._initial_state = state
        self.has_begun = self.has_ended = False
        self.last_beat = protocol.mono()
        self.running_since: Optional[float] = None
        os.set_blocking(handle, False)

    def receive(self) -> bool:
        """Read messages; return whether the supervisor has ended."""
        data = drain(self._handle)
        if not data:
            return self._is_closed()
        self.has_begun, self.last_beat = True, protocol.mono()
        lines = (self._partial + data).split(b"\n")
        self._partial = lines.pop()
        for line in lines:
            if line == _END.strip():
                self.has_ended = True
            elif line.startswith(b"{"):
                self._last_state = line
                if self.running_since is None and self.state.get("rank"):
                    self.running_since = self.last_beat
        return self._is_closed()

    def _is_closed(self) -> bool:
        try:
            piece = os.read(self._handle, 1)
        except BlockingIOError:
            return False
        self._partial += piece
        return not piece

    @property
    def state(self) -> Dict[str, Any]:
        """State that the supervisor wrote last, or was about to write."""
        return dict(json.loads(self._last_state.decode())) if self._last_state else self._initial_state
