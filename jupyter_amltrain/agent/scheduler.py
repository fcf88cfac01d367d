"""Who starts next: tickets in order for each kind of slot, each job handed to a waiting pair."""

from __future__ import annotations

import gc
import os
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from . import clock, failpoints, lifecycle, slots
from .gpus import GpuWatch
from .guardian import Assignment, Pair
from .processes import descendants, node, table
from .protocol import CANCEL, JOB, QUEUED, SCHEMA, STATE, AgentError, read_json, run_folder
from .submission import gone
from .tickets import Queue

#: Seconds after a start until the next pair is forked: the job's own start goes first.
SPARE_DELAY = 0.05
#: Seconds that a reading of the GPUs may be old when a job waits for one.
GPU_AGE = 2.0
#: Seconds until a ticket whose run cannot be read or written now is looked at again.
ASIDE = 5.0
#: What becomes of a job whose environment only an earlier dispatcher had in memory.
ENV_LOST = (
    "could not be started: the environment and the secrets that it was submitted with were lost with an earlier"
    " dispatcher (they are kept in memory only). Submit it again."
)


class Scheduler:
    """Starts what can start and explains the rest.

    Parameters
    ----------
    queue
        Tickets and records.
    gpus
        What is known of the GPUs.
    say
        Takes a line for the diary.
    """

    def __init__(self, queue: Queue, gpus: GpuWatch, say: Callable[[str], None]) -> None:
        self.queue = queue
        self.gpus = gpus
        self.say = say
        self.spare: Optional[Pair] = None
        self.spare_due: Optional[float] = clock.mono()
        self.aside: Dict[int, Tuple[float, str]] = {}  #: until when, and why

    # -- the waiting pair ----------------------------------------------------------

    def make_spare(self) -> None:
        """Fork the next pair when its time has come."""
        if self.spare is not None or self.spare_due is None or clock.mono() < self.spare_due:
            return
        self.spare_due = None
        gc.collect()
        gc.freeze()  # a collection in a child would copy every page
        try:
            self.spare = Pair()
        except OSError as error:
            self.say("cannot fork: %s" % error)
            self.spare_due = clock.mono() + 1.0

    def ended(self, pid: int) -> None:
        """A child of ours ended."""
        if self.spare is not None and self.spare.pid == pid:
            self.spare.dismiss()
            self.spare = None
            self.spare_due = clock.mono() + 1.0

    def close(self) -> None:
        """Let the waiting pair go."""
        if self.spare is not None:
            self.spare.dismiss()
            self.spare = None
        self.spare_due = None

    # -- order -----------------------------------------------------------------------

    def our_pids(self) -> Set[int]:
        """Processes of our runs, where a GPU has processes to compare them with."""
        if not any(gpu.get("processes") for gpu in self.gpus.found):
            return set()
        tops = self.queue.owner_pids()
        rows = table()
        return tops.union(*(descendants(top, rows) for top in tops)) if tops else set()

    def schedule(self) -> None:
        """Start what can start, in ticket order for each kind of slot; explain the rest."""
        self._drop_canceled()
        if not self.queue.tickets:
            self.queue.show({})
            return
        if not self.gpus.known:
            return
        kinds = {False, True}
        if any(ticket["gpus"] for ticket in self.queue.tickets.values()):
            self.gpus.refresh(GPU_AGE)
            if self.gpus.probing:  # jobs for GPUs wait for the answer, others do not
                kinds = {False}
        self._start(kinds)

    def _start(self, kinds: Set[bool]) -> None:
        share, ours = slots.share_gpus(), self.our_pids()
        waiting: Dict[str, Dict[str, str]] = {}
        blocked = {False: 0, True: 0}
        for _, ticket in sorted(self.queue.tickets.items()):
            if self._is_aside(ticket):
                detail = "set aside: %s" % self.aside[ticket["number"]][1]
                waiting.setdefault(ticket["home"], {})[ticket["run"]] = detail
                continue
            kind = bool(ticket.get("gpus"))
            records: Sequence[Dict[str, Any]] = list(self.queue.records.values())
            gpus = slots.free_gpus(self.gpus.found, records, ours, share) if kind else []
            cpus = [] if kind else slots.free_cpu_slots(slots.cpu_slots(), records)
            try:
                if not blocked[kind] and kind in kinds and self.queue.may_start(ticket):
                    chosen = slots.choose(ticket["gpus"], gpus, cpus)
                    if chosen is not None and self._launch(ticket, *chosen):
                        continue
                blocked[kind] += 1
                detail = slots.explain(ticket, blocked[kind], self.gpus.found, records, ours, share)
            except Exception as error:  # this one run is unreadable or damaged; those behind it are not
                self._cannot_start(ticket, error)
                continue
            waiting.setdefault(ticket["home"], {})[ticket["run"]] = detail
        self.queue.show(waiting)

    # -- ends in the queue -------------------------------------------------------------

    def _drop_canceled(self) -> None:
        for ticket in list(self.queue.tickets.values()):
            if self._is_aside(ticket):
                continue
            folder = run_folder(ticket["home"], ticket["run"])
            try:
                ends = os.path.lexists(os.path.join(folder, CANCEL)) or gone(folder)
            except OSError as error:
                self._set_aside(ticket, error)
                continue
            if ends:
                self._end_waiting(ticket, lifecycle.cancel_in_queue)

    def _end_waiting(self, ticket: Dict[str, Any], write: Callable[..., None], *words: str) -> None:
        folder = run_folder(ticket["home"], ticket["run"])
        try:
            state = read_json(os.path.join(folder, STATE))
            # Once started it has a supervisor, which sees a cancel by itself.
            if state is not None and state["state"] == QUEUED:
                write(folder, state, *words, self.queue.waited(ticket))
            self._drop(ticket)
        except Exception as error:  # a full disk or a damaged run: the ticket stays, and is tried again
            self._set_aside(ticket, error)

    def _cannot_start(self, ticket: Dict[str, Any], error: Exception) -> None:
        why = error.message if isinstance(error, AgentError) else "%s" % (error if str(error) else repr(error))
        self.say("cannot start %s: %r" % (ticket["run"], error))
        self._end_waiting(ticket, lifecycle.fail_in_queue, "could not be started: %s" % why)

    def _drop(self, ticket: Dict[str, Any]) -> None:
        self.queue.drop_ticket(ticket["number"])
        self.aside.pop(ticket["number"], None)

    def _set_aside(self, ticket: Dict[str, Any], error: Exception) -> None:
        text = "%s" % (error if str(error) else repr(error))
        if self.aside.get(ticket["number"], (0.0, ""))[1] != text:
            self.say("run %s is set aside: %s" % (ticket["run"], text))
        self.aside[ticket["number"]] = (clock.mono() + ASIDE, text)

    def _is_aside(self, ticket: Dict[str, Any]) -> bool:
        return clock.mono() < self.aside.get(ticket["number"], (0.0, ""))[0]

    # -- start -----------------------------------------------------------------------

    def _launch(self, ticket: Dict[str, Any], devices: List[str], cpu_slot: Optional[int]) -> bool:
        """Record a slot, then hand the job to the waiting pair; whether the ticket is done with."""
        task = self._assignment(ticket, devices, cpu_slot)
        if task is None:
            return ticket["number"] not in self.queue.tickets
        number = ticket["number"]
        if self.spare is None:
            self.spare_due = clock.mono()
            self.make_spare()
        pair, self.spare = self.spare, None
        if pair is None:
            return False  # no process can be forked now; the job waits on
        record = {
            "schema": SCHEMA, "number": number, "run": ticket["run"], "home": ticket["home"],
            "devices": devices, "cpu_slot": cpu_slot,
            "guardian": pair.identity, "boot": self.queue.boot, "node": node(),
        }  # fmt: skip
        self.spare_due = clock.mono() + SPARE_DELAY
        try:
            self.queue.put_record(record)
            failpoints.hit("after_slot_record")
            pair.assign(task)
        except (OSError, failpoints.FailpointError) as error:  # a full disk or a dead pair; the job waits on
            self.say("cannot start %s: %s" % (ticket["run"], error))
            pair.dismiss()
            self.queue.drop_record(number)
            return False
        failpoints.hit("after_go")
        self._drop(ticket)
        return True

    def _assignment(self, ticket: Dict[str, Any], devices: List[str], cpu_slot: Optional[int]) -> Optional[Assignment]:
        home = ticket["home"]
        folder = run_folder(home, ticket["run"])
        state = read_json(os.path.join(folder, STATE))
        if state is None or state["state"] != QUEUED:
            # An end that was written means that the run never starts, whoever wrote it.
            self.say("run %s waits no more: %s" % (ticket["run"], state and state["state"]))
            self._drop(ticket)
            return None
        job = read_json(os.path.join(folder, JOB))
        if job is None:
            raise AgentError("StateError", "%s is damaged. Submit it again." % os.path.join(folder, JOB))
        held = self.queue.held.get(ticket["number"])
        if held is None:
            self._end_waiting(ticket, lifecycle.fail_in_queue, ENV_LOST)
            return None
        hide, waited = bool(self.gpus.found) and not devices, self.queue.waited(ticket)
        return Assignment(
            home, folder, job, state, held.environ, held.secrets, devices, cpu_slot, hide, waited, clock.wall(),
            self.queue.folder, ticket["number"],
        )  # fmt: skip
