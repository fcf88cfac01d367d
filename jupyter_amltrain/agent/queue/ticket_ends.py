"""The jobs of the queue that end before they start, or are postponed."""

from __future__ import annotations

import os
from typing import Any, Callable, Collection, Dict, Set, Tuple

from .. import protocol
from ..protocol import CANCEL, QUEUED, STATE, AgentError, read_json, run_folder
from ..supervise import run_state
from . import node_gate
from .submission import is_removed
from .tickets import Queue

#: Seconds until a ticket is retried whose run cannot be read or written now.
POSTPONED_RETRY_S = 5.0


class TicketEnds:
    """Ends and postpones waiting jobs.

    Attributes
    ----------
    postponed
        By ticket: until when (monotonic seconds), and the reason.
    failed_starts
        Number of failed starts by ticket.
    canceled
        Home and run of canceled runs without a cancel file.
    """

    def __init__(self, queue: Queue, log: Callable[[str], None]) -> None:
        self.queue = queue
        self.log = log
        self.postponed: Dict[int, Tuple[float, str]] = {}
        self.failed_starts: Dict[int, int] = {}
        self.canceled: Set[Tuple[str, str]] = set()

    def end_canceled(self, starting: Collection[int]) -> None:
        """End jobs that were canceled, whose run was removed or whose gang has ended; none of `starting`."""
        for ticket in list(self.queue.tickets.values()):
            if self.is_postponed(ticket) or ticket["number"] in starting:
                continue
            folder = run_folder(ticket["home"], ticket["run"])
            try:
                must_end = (ticket["home"], ticket["run"]) in self.canceled
                must_end = must_end or os.path.lexists(os.path.join(folder, CANCEL)) or is_removed(folder)
            except OSError as error:
                self.postpone(ticket, error)
                continue
            if must_end:
                self.end(ticket, run_state.cancel_in_queue)
                continue
            ended = node_gate.read(ticket).end
            if ended is not None:
                self.end(ticket, run_state.end_in_queue, *ended)

    def end(self, ticket: Dict[str, Any], write: Callable[..., None], *args: str) -> None:
        """Write the end of a waiting job by a function of ``run_state``, and remove its ticket."""
        folder = run_folder(ticket["home"], ticket["run"])
        try:
            state = read_json(os.path.join(folder, STATE))
            # A started run has a supervisor, which handles the cancel.
            if state is not None and state["state"] == QUEUED:
                write(folder, state, *args, self.queue.waited(ticket))
            self.drop(ticket)
        except Exception as error:  # a full disk or a damaged run: keep the ticket and retry
            self.postpone(ticket, error)

    def fail(self, ticket: Dict[str, Any], error: Exception) -> None:
        """End a job that cannot be started."""
        reason = error.message if isinstance(error, AgentError) else "%s" % (error if str(error) else repr(error))
        self.log("cannot start %s: %r" % (ticket["run"], error))
        self.end(ticket, run_state.fail_in_queue, "could not be started: %s" % reason)

    def drop(self, ticket: Dict[str, Any], keep_secrets: bool = False) -> None:
        """Remove a ticket."""
        self.queue.drop_ticket(ticket["number"], keep_secrets)
        self.postponed.pop(ticket["number"], None)
        self.failed_starts.pop(ticket["number"], None)
        self.canceled.discard((ticket["home"], ticket["run"]))

    def postpone(self, ticket: Dict[str, Any], error: Exception) -> None:
        """Try a job again later whose run cannot be read or written now."""
        text = "postponed: %s" % (error if str(error) else repr(error))
        if self.postponed.get(ticket["number"], (0.0, ""))[1] != text:
            self.log("run %s is %s" % (ticket["run"], text))
        self.postponed[ticket["number"]] = (protocol.mono() + POSTPONED_RETRY_S, text)

    def is_postponed(self, ticket: Dict[str, Any]) -> bool:
        """Return whether a job is postponed."""
        return protocol.mono() < self.postponed.get(ticket["number"], (0.0, ""))[0]
