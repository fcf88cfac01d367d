"""Clients of the frontend's events: the state that each has received, and whether it still listens.

The page creates its comm object and sends the id with the request ``events``. The kernel never opens a
comm and only sends, so that no message needs its main thread.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from jupyter_amltrain.frontend.protocol import Beat, Changes, Event, Meter, Request
from jupyter_amltrain.loop import TokenBucket
from jupyter_amltrain.schema.rows import RunRow, TargetRow, WorkspaceRow

#: Sends one message: id of the comm, the event, its buffers.
Send = Callable[[str, Event, Sequence[bytes]], None]

#: Maximum rate of messages of one kind.
MAX_MESSAGES_PER_S = 2.0
#: Seconds after which a silent client has to renew its subscription.
SILENCE_S = 30.0
#: A client is removed after this number of unanswered requests to renew, over this number of seconds.
MAX_RENEWALS, REMOVE_AFTER_S = 3, 60.0
#: Seconds for which an event that a client has not confirmed may still be in transit.
DELIVERY_TIMEOUT_S = 1.0
#: Events with the field ``renew``.
_RENEWING_EVENTS = (Changes, Meter, Beat)


class Subscribe(Request, frozen=True, kw_only=True):
    """Set all that a client receives from now on. Opens the comm if it is unknown.

    A snapshot follows for a new comm, after a gap (`seq` is older than the last event), and when a panel is shown
    again.

    Attributes
    ----------
    comm
        Id of the client's comm: one for each page and kernel connection.
    shown
        ``panel``: the panel is shown, send everything. ``status``: only runs that begin, end or need
        attention. Empty: unsubscribe; the comm is forgotten.
    seq
        Number of the last event that the client has; -1 for none.
    gpus
        Source of GPU samples: a run's handle, or ``target:<name>`` (which samples the target); empty for none.
    looks
        Handles whose streams are followed (log views, GPU charts): they are read as they grow.
    details
        Handles of past runs in view whose metric, sparkline and log size are requested; at most 30.
    meter
        With ``status``: seconds between two ``meter`` events about the current target's GPUs; 0 for none.
    """

    comm: str
    shown: str = "panel"
    seq: int = -1
    gpus: str = ""
    looks: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    meter: float = 0.0


class TargetState(NamedTuple):
    """State of the targets: the current one, all rows, the workspaces, and why they cannot be read."""

    current: str = ""
    targets: tuple[TargetRow, ...] = ()
    workspaces: tuple[WorkspaceRow, ...] = ()
    trouble: str = ""


class FrontendClient:
    """Subscription and state of one client.

    Parameters
    ----------
    comm
        Id of its comm.
    on_lost
        Called when the client has not renewed its subscription in time.

    Attributes
    ----------
    pending
        A snapshot is being created: no event may be sent before it.
    rows
        Rows of runs as last sent.
    targets
        State of the targets as last sent.
    dirty, removed
        Handles of runs that changed, and that were removed, since the last event.
    """

    def __init__(self, comm: str, send: Send, on_lost: Callable[[FrontendClient], None] = lambda client: None) -> None:
        self.comm = comm
        self._send, self._on_lost = send, on_lost
        self.subscription = Subscribe(comm=comm, shown="")
        self.seq = 0  #: number of the next event
        self.pending = False
        self.rows: dict[str, RunRow] = {}
        self.targets = TargetState()
        self.dirty: set[str] = set()
        self.removed: set[str] = set()
        self.rate_limit = TokenBucket(MAX_MESSAGES_PER_S, 1)
        self.timer: Any = None
        self.last_request_at = time.monotonic()  #: time of its last request
        self._sent: deque[float] = deque(maxlen=64)  #: monotonic seconds of the newest events
        self._renewals, self._first_renewal, self._last_renewal = 0, 0.0, 0.0

    @property
    def listens(self) -> bool:
        """Whether events may be sent now."""
        return bool(self.subscription.shown) and not self.pending

    @property
    def is_shown(self) -> bool:
        """Whether its panel is shown."""
        return self.subscription.shown == "panel"

    def update(self, subscription: Subscribe) -> None:
        """Replace the subscription."""
        self.subscription, self.last_request_at, self._renewals = subscription, time.monotonic(), 0

    def lag(self, seq: int) -> float:
        """Return seconds since the first event that a client with `seq` lacks; below 0 if it has all."""
        missing = self.seq - 1 - seq
        if missing <= 0:
            return -1.0
        return time.monotonic() - self._sent[-missing] if missing <= len(self._sent) else float("inf")

    def target_changes(self, state: TargetState) -> dict[str, Any]:
        """Return target fields changed since the last event to this client."""
        sent = self.targets
        if sent == state or not (self.is_shown or sent.current != state.current):
            return {}
        self.targets = state
        fields: dict[str, Any] = {"current": state.current}
        if self.is_shown and sent.targets != state.targets:
            fields["targets"] = state.targets
        if self.is_shown and sent.workspaces != state.workspaces:
            fields["workspaces"] = state.workspaces
        if sent.trouble != state.trouble:
            fields["trouble"] = state.trouble
        return fields

    def send(self, kind: type[Any], buffers: Sequence[bytes] = (), **fields: Any) -> None:
        """Send an event of a type; adds its number, and the request to renew if the client has been silent."""
        now = time.monotonic()
        silent = now - self.last_request_at > SILENCE_S
        if silent and kind in _RENEWING_EVENTS:
            fields["renew"] = True
            self._renewals += 1
            self._last_renewal = now
            if self._renewals == 1:
                self._first_renewal = now
        event = kind(seq=self.seq, **fields)
        self.seq += 1
        self._sent.append(now)
        self._send(self.comm, event, buffers)
        if silent and kind not in _RENEWING_EVENTS and now - self._last_renewal > SILENCE_S / 3:
            self.send(Changes)  # an empty event, because this one has no field `renew`
        elif self._renewals >= MAX_RENEWALS and now - self._first_renewal >= REMOVE_AFTER_S:
            asyncio.get_running_loop().call_soon(self._on_lost, self)


def send(comm: str, event: Event, buffers: Sequence[bytes] = ()) -> None:
    """Send an event on the comm of this process' kernel, from any thread; dropped if there is no kernel.

    The same as ``Comm.send``, but encoded once: ipykernel would clean and encode a snapshot of 500 runs in Python
    and delay charts meanwhile. The message has no parent, because it belongs to no cell.
    """
    from ipykernel.kernelbase import Kernel

    if not Kernel.initialized():
        return
    kernel: Any = Kernel.instance()
    content = msgspec.json.encode({"comm_id": comm, "data": event})
    topic = f"comm-{comm}".encode("ascii", "replace")
    kernel.session.send(kernel.iopub_socket, "comm_msg", content, ident=topic, buffers=list(buffers))
