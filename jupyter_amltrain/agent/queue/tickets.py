"""The queue in the dispatcher's memory, and its picture on disk."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, NamedTuple, Optional, Set

from .. import protocol
from ..json_dir import WAITING, NumberedJsonDir
from ..processes import alive, boot_id, node
from ..protocol import QUEUED, RUNNING, TERMINAL, AgentError, read_state, run_folder, write_json
from ..supervise import run_state
from .submission import Strings, first_state, uncover

#: Seconds in which a client whose dispatcher died sends its job to the next one.
REPEAT_TIMEOUT_S = 2.0


class PendingSecrets(NamedTuple):
    """What only memory holds of a waiting job."""

    environ: Strings
    secrets: Strings


class Queue:
    """Tickets and slot records of a queue folder. Its owner is the dispatcher alone."""

    def __init__(self, queue: str) -> None:
        self.folder = queue
        self.boot = boot_id()
        self.opened = protocol.mono()
        self._tickets = NumberedJsonDir(os.path.join(queue, "tickets"))
        self._slots = NumberedJsonDir(os.path.join(queue, "slots"))
        self.tickets: Dict[int, Dict[str, Any]] = self._tickets.load()
        self.records: Dict[int, Dict[str, Any]] = self._slots.load()
        self.held: Dict[int, PendingSecrets] = {}
        self._next = max(self._tickets.last(), self._slots.last()) + 1
        self._written: Any = None

    # -- tickets -----------------------------------------------------------------

    def new_number(self) -> int:
        """The next ticket's number."""
        self._next += 1
        return self._next - 1

    def may_start(self, ticket: Dict[str, Any]) -> bool:
        """Whether to wait no longer for a submitter who repeats his call.

        A dispatcher that was killed between accepting a job and answering has a
        client that sends environment and secrets again; who got his answer does not.
        """
        if ticket["number"] in self.held or self.waited(ticket) > 10 * REPEAT_TIMEOUT_S:
            return True
        return protocol.mono() > self.opened + REPEAT_TIMEOUT_S

    def put_ticket(self, ticket: Dict[str, Any]) -> None:
        """Add a waiting job."""
        self._tickets.put(ticket["number"], ticket)
        self.tickets[ticket["number"]] = ticket

    def drop_ticket(self, number: int) -> None:
        """Remove a waiting job, and what memory held of it."""
        self._tickets.remove(number)
        self.tickets.pop(number, None)
        self.held.pop(number, None)

    def number_of(self, home: str, run: str) -> Optional[int]:
        """Ticket number of a job that waits or runs."""
        for folder in (self.tickets, self.records):
            for number, item in folder.items():
                if item["run"] == run and item["home"] == home:
                    return number
        return None

    def waited(self, ticket: Dict[str, Any]) -> float:
        """Seconds since a job was submitted."""
        if ticket.get("boot") == self.boot:
            return max(0.0, protocol.mono() - float(ticket["mono"]))
        return max(0.0, protocol.wall() - float(ticket["submitted"]))

    # -- records -------------------------------------------------------------------

    def put_record(self, record: Dict[str, Any]) -> None:
        """Note who owns a slot."""
        self._slots.put(record["number"], record)
        self.records[record["number"]] = record

    def drop_record(self, number: int) -> None:
        """Free a slot."""
        self._slots.remove(number)
        self.records.pop(number, None)

    def owned(self, record: Dict[str, Any]) -> bool:
        """Whether guardian or supervisor of a started job live."""
        if record.get("boot") != self.boot:
            return False
        if record.get("node", node()) != node():  # of another PID namespace, or of this container before its restart
            return self._slots.held(record["number"])
        if alive(record.get("guardian")) or alive(record.get("supervisor")):
            return True
        # Of a record that was written before its supervisor was known.
        state = None if record.get("supervisor") else _state(record)
        return state is not None and alive(state.get("supervisor"))

    def owner_pids(self) -> Set[int]:
        """Pids at the top of our runs."""
        found = set()
        for record in self.records.values():
            found.add((record.get("guardian") or {}).get("pid", 0))
            who = record.get("supervisor") or (_state(record) or {}).get("supervisor")
            pid = who.get("pid") if isinstance(who, dict) else 0  # a job may have written anything
            found.add(pid if isinstance(pid, int) else 0)
        return found - {0}

    def adopt(self, say: Callable[[str], None]) -> None:
        """Take over what an earlier dispatcher left; `say` takes lines for the log."""
        for line in [*self._tickets.unreadable, *self._slots.unreadable]:
            say(line)
        for record in list(self.records.values()):
            try:
                say(self._adopt_record(record))
            except Exception as error:  # one damaged run must not stop a queue
                say("run %s: %r" % (record["run"], error))
                self.records.pop(record["number"], None)
        for ticket in list(self.tickets.values()):
            try:
                if not uncover(ticket, self.folder):
                    self.drop_ticket(ticket["number"])
            except OSError as error:  # its disk does not answer now; the scheduler tries again
                say("run %s: %s" % (ticket["run"], error))
        if not self.tickets:
            self.show({})

    def _adopt_record(self, record: Dict[str, Any]) -> str:
        number, state = record["number"], _state(record)
        if self.owned(record):
            self.drop_ticket(number)
            return "adopted run %s with %r" % (record["run"], record["devices"] or record["cpu_slot"])
        self.drop_record(number)
        if state is not None and state["state"] == QUEUED and number in self.tickets:
            return "the guardian of run %s died before it did anything" % record["run"]
        self.drop_ticket(number)
        self.settle(record)
        return "run %s had nobody left" % record["run"]

    def settle(self, record: Dict[str, Any]) -> None:
        """Free what a finished job left, and say lost where nobody else can."""
        state = _state(record)
        if state is None:  # damaged by the job, or removed with its folder
            if not os.path.isdir(run_folder(record["home"], record["run"])):
                return
            state = dict(
                first_state(record["run"], self.folder, protocol.wall()), state=RUNNING, boot=record.get("boot")
            )
        if state["state"] in TERMINAL:
            return
        if isinstance(record.get("mark"), str):
            state["mark"] = record["mark"]  # the job may have changed the state's
        if state["state"] != QUEUED:
            stray = "node" in record and record["node"] != node()
            run_state.settle(record["home"], record["run"], state, known_dead=stray)
        elif record["number"] not in self.tickets:
            folder = run_folder(record["home"], record["run"])
            run_state.mark_lost(folder, state, "the run's guardian was killed before the job started")

    # -- for readers -----------------------------------------------------------------

    def show(self, details: Dict[str, Dict[str, str]]) -> None:
        """Write what waiting jobs wait for: ``{home: {run: detail}}``, for `poll`."""
        if details == self._written:
            return
        self._written = details
        try:
            write_json(os.path.join(self.folder, WAITING), {"schema": 1, "waiting": details})
        except OSError:
            self._written = None


def _state(item: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    try:
        state = read_state(run_folder(item["home"], item["run"]))
    except (AgentError, OSError):
        return None
    # What a job has made of it must not stop the queue.
    if state is None or not isinstance(state.get("state"), str) or not isinstance(state.get("version"), int):
        return None
    return state if isinstance(state.get("phases"), list) else None
