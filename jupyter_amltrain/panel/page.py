"""One page's comm: what was sent on it, and whether anybody still listens.

The page makes its comm object itself and tells the id by the request ``events``; we
never open ours, so that nothing has to pass the kernel's main thread, and only send.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from jupyter_amltrain.panel import protocol
from jupyter_amltrain.panel.protocol import Changes, Event, Meter
from jupyter_amltrain.runs.pace import Pace
from jupyter_amltrain.spec.rows import RunRow, TargetRow, WorkspaceRow

#: Sends one message: id of the comm, the event, its buffers.
Send = Callable[[str, Event, Sequence[bytes]], None]

#: Messages of one kind a second.
RATE = 2.0
#: A page that said nothing for so long is asked whether it is still there (seconds).
SILENT = 30.0
#: It is forgotten after so many questions over so many seconds.
QUESTIONS, PATIENCE = 3, 60.0
#: What a page lacks may be on its way to it for so long (seconds).
UNDER_WAY = 1.0
#: Events that can carry the question.
_ASKING = (Changes, Meter, protocol.Beat)


class Known(NamedTuple):
    """What is known of the targets: the one in use, all of them, the workspaces, and why they cannot be read."""

    current: str = ""
    targets: tuple[TargetRow, ...] = ()
    workspaces: tuple[WorkspaceRow, ...] = ()
    trouble: str = ""


class Page:
    """What one page wants and has.

    Parameters
    ----------
    comm
        Id of its comm.
    lost
        Called when it was asked often enough whether it is there, and did not answer.

    Attributes
    ----------
    pending
        A snapshot is being made: nothing may go out before it.
    rows
        Rows of runs as they were sent.
    targets
        What it knows of the targets.
    dirty, gone
        Handles of runs that have changed, and that were removed, since the last event.
    """

    def __init__(self, comm: str, send: Send, lost: Callable[[Page], None] = lambda page: None) -> None:
        self.comm = comm
        self._send, self._lost = send, lost
        self.wants = protocol.Events(comm=comm, shown="")
        self.seq = 0  #: number of the next event
        self.pending = False
        self.rows: dict[str, RunRow] = {}
        self.targets = Known()
        self.dirty: set[str] = set()
        self.gone: set[str] = set()
        self.pace = Pace(RATE, 1)
        self.timer: Any = None
        self.asked = time.monotonic()  #: when the page spoke last
        self._sent: deque[float] = deque(maxlen=64)  #: monotonic seconds of the newest events
        self._questions, self._first_question, self._last_question = 0, 0.0, 0.0

    @property
    def listens(self) -> bool:
        """Whether events may go out now."""
        return bool(self.wants.shown) and not self.pending

    @property
    def seen(self) -> bool:
        """Whether its panel is seen."""
        return self.wants.shown == "panel"

    def heard(self, wants: protocol.Events) -> None:
        """The page has spoken."""
        self.wants, self.asked, self._questions = wants, time.monotonic(), 0

    def lacks(self, seq: int) -> float:
        """Seconds since the first event was sent that a page with `seq` lacks; below 0 if it has all."""
        missing = self.seq - 1 - seq
        if missing <= 0:
            return -1.0
        return time.monotonic() - self._sent[-missing] if missing <= len(self._sent) else float("inf")

    def news(self, known: Known) -> dict[str, Any]:
        """What of the targets it has not heard of, as fields of the changes that are to be sent now."""
        had = self.targets
        if had == known or not (self.seen or had.current != known.current):
            return {}
        self.targets = known
        fields: dict[str, Any] = {"current": known.current}
        if self.seen and had.targets != known.targets:
            fields["targets"] = known.targets
        if self.seen and had.workspaces != known.workspaces:
            fields["workspaces"] = known.workspaces
        if had.trouble != known.trouble:
            fields["trouble"] = known.trouble
        return fields

    def send(self, kind: type[Any], buffers: Sequence[bytes] = (), **fields: Any) -> None:
        """Send an event of a type; its number, and the question whether the page is there, are ours to add."""
        now = time.monotonic()
        silent = now - self.asked > SILENT
        if silent and kind in _ASKING:
            fields["renew"] = True
            self._questions += 1
            self._last_question = now
            if self._questions == 1:
                self._first_question = now
        event = kind(seq=self.seq, **fields)
        self.seq += 1
        self._sent.append(now)
        self._send(self.comm, event, buffers)
        if silent and kind not in _ASKING and now - self._last_question > SILENT / 3:
            self.send(Changes)  # only such events go out: ask by an empty one
        elif self._questions >= QUESTIONS and now - self._first_question >= PATIENCE:
            asyncio.get_running_loop().call_soon(self._lost, self)


def send(comm: str, event: Event, buffers: Sequence[bytes] = ()) -> None:
    """Send on the comm of this process' kernel, from any thread; without a kernel it is dropped.

    What a ``Comm`` would send, but encoded once: a snapshot of 500 runs that ipykernel
    cleans and encodes in Python holds the loop for longer than a chart may wait. The message
    has no parent: it belongs to no cell.
    """
    from ipykernel.kernelbase import Kernel

    if not Kernel.initialized():
        return
    kernel: Any = Kernel.instance()
    content = msgspec.json.encode({"comm_id": comm, "data": event})
    topic = f"comm-{comm}".encode("ascii", "replace")
    kernel.session.send(kernel.iopub_socket, "comm_msg", content, ident=topic, buffers=list(buffers))
