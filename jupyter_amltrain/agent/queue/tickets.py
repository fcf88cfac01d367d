"""Tickets and slot records of a queue: in the memory of the dispatcher and on disk."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Iterable, NamedTuple, Optional, Set

from .. import protocol
from ..json_dir import WAITING, NumberedJsonDir
from ..processes import boot_id, is_alive, pid_scope
from ..protocol import JOB, QUEUED, RUNNING, SCHEMA, TERMINAL, AgentError, read_json, read_state, run_folder, write_json
from ..supervise import attempts, run_state
from .job_fields import Strings
from .submission import first_state, recover_folder

#: Seconds within which a client whose dispatcher died repeats its submit to the next one.
REPEAT_TIMEOUT_S = 2.0


class PendingSecrets(NamedTuple):
    """Environment and secrets of a waiting job; never written to disk."""

    environ: Strings
    secrets: Strings


class Queue:
    """Tickets and slot records of a queue folder. Used by the dispatcher only."""

    def __init__(self, queue: str) -> None:
        self.folder = queue
        self.boot = boot_id()
        self.opened_at = protocol.mono()
        self._tickets = NumberedJsonDir(os.path.join(queue, "tickets"))
        self._slots = NumberedJsonDir(os.path.join(queue, "slots"))
        self.tickets: Dict[int, Dict[str, Any]] = self._tickets.load()
        self.records: Dict[int, Dict[str, Any]] = self._slots.load()
        self.pending: Dict[int, PendingSecrets] = {}
        self.pauses: Dict[int, float] = {}  #: when a run that has gone back may start again, by ticket
        self._next = max(self._tickets.last_number(), self._slots.last_number()) + 1
        self._written: Any = None

    # -- tickets -----------------------------------------------------------------

    def new_number(self) -> int:
        """Return the number for the next ticket."""
        self._next += 1
        return self._next - 1

    def may_start(self, ticket: Dict[str, Any]) -> bool:
        """Whether a job may start without waiting for its submitter to repeat the submit.

        If a dispatcher is killed between accepting a job and replying, the client sends
        environment and secrets again. A client that received its reply does not.
        """
        if ticket["number"] in self.pending or self.waited(ticket) > 10 * REPEAT_TIMEOUT_S:
            return True
        return protocol.mono() > self.opened_at + REPEAT_TIMEOUT_S

    def put_ticket(self, ticket: Dict[str, Any]) -> None:
        """Add a waiting job."""
        self._tickets.put(ticket["number"], ticket)
        self.tickets[ticket["number"]] = ticket

    def drop_ticket(self, number: int, keep_secrets: bool = False) -> None:
        """Remove a waiting job with its environment and secrets, unless they are kept for a restart."""
        self._tickets.remove(number)
        self.tickets.pop(number, None)
        self.pauses.pop(number, None)
        if not keep_secrets:
            self.pending.pop(number, None)

    def number_of(self, home: str, run: str) -> Optional[int]:
        """Return the ticket number of a waiting or running job."""
        for folder in (self.tickets, self.records):
            for number, item in folder.items():
                if item["run"] == run and item["home"] == home:
                    return number
        return None

    def waited(self, ticket: Dict[str, Any]) -> float:
        """Return the seconds since a job was submitted."""
        if ticket.get("boot") == self.boot:
            return max(0.0, protocol.mono() - float(ticket["mono"]))
        return max(0.0, protocol.wall() - float(ticket["submitted"]))

    # -- records -------------------------------------------------------------------

    def put_record(self, record: Dict[str, Any]) -> None:
        """Store the owner of a slot."""
        self._slots.put(record["number"], record)
        self.records[record["number"]] = record

    def drop_record(self, number: int) -> None:
        """Free a slot."""
        self._slots.remove(number)
        self.records.pop(number, None)

    def has_live_owner(self, record: Dict[str, Any]) -> bool:
        """Whether the guardian or the supervisor of a started job is alive."""
        if record.get("boot") != self.boot:
            return False
        if (
            record.get("node", pid_scope()) != pid_scope()
        ):  # of another PID namespace, or of this container before its restart
            return self._slots.is_locked(record["number"])
        if is_alive(record.get("guardian")) or is_alive(record.get("supervisor")):
            return True
        # The record was written before its supervisor was known.
        state = None if record.get("supervisor") else _read_valid_state(record)
        return state is not None and is_alive(state.get("supervisor"))

    def owner_pids(self, records: Optional[Iterable[Dict[str, Any]]] = None) -> Set[int]:
        """Return pids of the guardians and supervisors of this queue, or of some of its records."""
        pids = set()
        for record in self.records.values() if records is None else records:
            pids.add((record.get("guardian") or {}).get("pid", 0))
            supervisor = record.get("supervisor") or (_read_valid_state(record) or {}).get("supervisor")
            pid = supervisor.get("pid") if isinstance(supervisor, dict) else 0  # a job may have written anything
            pids.add(pid if isinstance(pid, int) else 0)
        return pids - {0}

    def adopt(self, log: Callable[[str], None]) -> None:
        """Take over tickets and records of an earlier dispatcher; `log` receives log lines."""
        for line in [*self._tickets.unreadable, *self._slots.unreadable]:
            log(line)
        for record in list(self.records.values()):
            try:
                log(self._adopt_record(record))
            except Exception as error:  # one damaged run must not stop a queue
                log("run %s: %r" % (record["run"], error))
                self.records.pop(record["number"], None)
        for ticket in list(self.tickets.values()):
            try:
                if not recover_folder(ticket, self.folder):
                    self.drop_ticket(ticket["number"])
            except OSError as error:  # its disk does not respond now; the scheduler tries again
                log("run %s: %s" % (ticket["run"], error))
        if not self.tickets:
            self.show({})

    def _adopt_record(self, record: Dict[str, Any]) -> str:
        number, state = record["number"], _read_valid_state(record)
        if self.has_live_owner(record):
            self.drop_ticket(number)
            return "adopted run %s with %r" % (record["run"], record["devices"] or record["cpu_slot"])
        if state is not None and state["state"] == QUEUED and number in self.tickets:
            self.drop_record(number)
            return "the guardian of run %s died before it started the job" % record["run"]
        if self.put_back(record):
            return "run %s starts again" % record["run"]
        self.drop_record(number)
        self.drop_ticket(number)
        self.finish_run(record)
        return "run %s had no guardian and no supervisor left" % record["run"]

    def put_back(self, record: Dict[str, Any]) -> bool:
        """Put a job whose supervisor has ended back into the queue if it may start again; return whether it may.

        The ticket takes the place of the record: the number of times is counted where a job cannot change it.
        """
        ticket, number, folder = record.get("ticket"), record["number"], run_folder(record["home"], record["run"])
        state = _read_valid_state(record)
        if not isinstance(ticket, dict) or ticket["requeues"] >= ticket["max_restarts"] or state is None:
            return False
        job = read_json(os.path.join(folder, JOB))
        if job is None or state["state"] in TERMINAL:
            return False
        if isinstance(record.get("mark"), str):
            state["mark"] = record["mark"]
        is_queued = state["state"] == QUEUED and attempts.number(state) > 1
        known_dead = "node" in record and record["node"] != pid_scope()
        if is_queued and state.get("boot") == self.boot:  # it may have started: its state says so a moment later
            run_state.kill_unsupervised(record["run"], state.get("mark", ""), state, known_dead)
        if not is_queued:
            state, reason = run_state.end_of_dead(record["home"], record["run"], state, known_dead)
            if not reason or not attempts.begin_next_of_lost(job, state, reason, _seconds_seen(folder, state)):
                return False
            attempts.mark_logs(folder, "%s, after %s" % (attempts.title(job, state), reason))
            attempts.clear_records(folder)
        state.update(node=pid_scope(), boot=self.boot)
        run_state.write_state(folder, state, durable=True)
        now = {"submitted": protocol.wall(), "mono": protocol.mono(), "boot": self.boot, "schema": SCHEMA}
        self.put_ticket({**ticket, **now, "requeues": ticket["requeues"] + 1})
        self.pauses[number] = protocol.mono() + attempts.pause_s(state)
        self.drop_record(number)
        return True

    def finish_run(self, record: Dict[str, Any]) -> None:
        """Clean up after an ended job, and mark it lost if no other process can."""
        if record["number"] not in self.tickets:
            self.pending.pop(record["number"], None)
        state = _read_valid_state(record)
        if state is None:  # damaged by the job, or removed with its folder
            if not os.path.isdir(run_folder(record["home"], record["run"])):
                return
            state = dict(
                first_state(record["run"], self.folder, protocol.wall()), state=RUNNING, boot=record.get("boot")
            )
        if state["state"] in TERMINAL:
            return
        if isinstance(record.get("mark"), str):
            state["mark"] = record["mark"]  # the job may have changed the mark in the state
        if state["state"] != QUEUED:
            other_node = "node" in record and record["node"] != pid_scope()
            run_state.refresh_state(record["home"], record["run"], state, known_dead=other_node)
        elif record["number"] not in self.tickets:
            folder = run_folder(record["home"], record["run"])
            run_state.mark_lost(folder, state, "the run's guardian was killed before the job started")

    # -- for readers -----------------------------------------------------------------

    def show(self, details: Dict[str, Dict[str, str]]) -> None:
        """Write why jobs are waiting, ``{home: {run: detail}}``, for `poll`."""
        if details == self._written:
            return
        self._written = details
        try:
            write_json(os.path.join(self.folder, WAITING), {"schema": 1, "waiting": details})
        except OSError:
            self._written = None


def _seconds_seen(folder: str, state: Dict[str, Any]) -> float:
    """Return how long a job ran whose supervisor did not see its end, by the last change of its files."""
    began = state["phases"][-1]["start"] if state["state"] == RUNNING and state["phases"] else None
    seen = []
    for name in (protocol.STATE, protocol.LOG, protocol.TELEMETRY % 0):
        try:
            seen.append(os.stat(os.path.join(folder, name)).st_mtime)
        except OSError:  # it was not written
            pass
    return max(0.0, max(seen) - began) if seen and isinstance(began, (int, float)) else 0.0


def _read_valid_state(item: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    try:
        state = read_state(run_folder(item["home"], item["run"]))
    except (AgentError, OSError):
        return None
    # A state that a job has damaged must not stop the queue.
    if state is None or not isinstance(state.get("state"), str) or not isinstance(state.get("version"), int):
        return None
    return state if isinstance(state.get("phases"), list) else None
