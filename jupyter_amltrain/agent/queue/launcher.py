"""Launcher: passes jobs to preforked pairs of guardian and supervisor, and follows the starts."""

from __future__ import annotations

import gc
import os
import selectors
import signal
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence

from .. import protocol, testing
from ..processes import is_alive, pid_scope
from ..protocol import SCHEMA
from ..supervise import run_state, warm_plan
from ..supervise.assignment import Assignment
from ..supervise.guardian import PreforkedPair
from . import slots
from .ticket_ends import TicketEnds
from .tickets import Queue

#: Seconds after a start until the next pair is forked, so that the start of the job comes first.
PREFORK_DELAY_S = 0.05

#: Seconds after which an unconfirmed start is checked; a stopped process is continued.
START_CHECK_S = 1.0

#: Seconds without confirmation after which the job is passed to another pair.
START_TIMEOUT_S = 4.0

#: The same for a pair that is runnable without getting a CPU, or waits for a disk.
SLOW_START_TIMEOUT_S = 60.0

#: Max starts of a job whose pairs die before they confirm.
MAX_STARTS = 3

#: Free slots at the start of a trial at which the Python of the next one imports at the same time.
IDLE_SLOTS = 1

#: Seconds for which a waiting interpreter is not replaced by one for the same code.
KEEP_WARM_S = 120.0

#: Seconds until the next try to fork a process.
FORK_RETRY_S = 1.0


class Start(NamedTuple):
    """A start in progress: a job passed to a pair that has not confirmed it yet."""

    pair: PreforkedPair
    ticket: Dict[str, Any]
    since: float


class Launcher:
    """Passes jobs to preforked pairs, and follows their starts until the supervisors confirm them.

    Parameters
    ----------
    queue
        Tickets and records.
    ends
        Ends and postpones the jobs that cannot start.
    log
        Writes a line to the log.
    selector
        Selector of the dispatcher.
    on_failed
        Called when a job is in the queue again because its start failed.
    """

    def __init__(
        self,
        queue: Queue,
        ends: TicketEnds,
        log: Callable[[str], None],
        selector: selectors.BaseSelector,
        on_failed: Callable[[], None],
    ) -> None:
        self.queue = queue
        self.ends = ends
        self.log = log
        self.selector = selector
        self._on_failed = on_failed
        self.preforked: Optional[PreforkedPair] = None
        self.prefork_due: Optional[float] = protocol.mono()
        self.starting: Dict[int, Start] = {}
        self.fork_error = ""  #: reason why no process can be forked now
        self._last: Optional[Assignment] = None  #: run that has ended, whose packages the next pair imports
        self._warm: Optional[Assignment] = None  #: the same of the waiting pair, and when that was forked
        self._warm_at = 0.0
        self._suitable: Dict[int, Assignment] = {}  #: started jobs with such packages, by number

    # -- the preforked pair ----------------------------------------------------------

    def prefork(self) -> None:
        """Fork the next pair when it is due."""
        if self.preforked is not None or self.prefork_due is None or protocol.mono() < self.prefork_due:
            return
        self.prefork_due = None
        gc.collect()
        gc.freeze()  # a collection in a child would copy every page
        try:
            last = self._last
            self.preforked = PreforkedPair(last)
            is_warm = last is not None and warm_plan.with_built_environment(last) is not None
            self._warm, self._warm_at, self._last = last if is_warm else None, protocol.mono(), None
        except OSError as error:
            self._cannot_fork(error.strerror or str(error))

    def _cannot_fork(self, reason: str) -> None:
        if self.fork_error != reason:
            self.log("cannot fork: %s" % reason)
        self.fork_error = reason
        self.prefork_due = protocol.mono() + FORK_RETRY_S

    def on_child_ended(self, pid: int) -> None:
        """Handle the end of a child process."""
        for number, start in list(self.starting.items()):
            if start.pair.pid == pid:
                self._on_pair_event(number)
        if self.preforked is not None and self.preforked.pid == pid:
            pair, self.preforked = self.preforked, None
            pair.poll()
            self.prefork_due = protocol.mono() + FORK_RETRY_S
            if pair.failure:
                self._cannot_fork(pair.failure)
            pair.dismiss()

    def _note_suitable(self, number: int, task: Assignment) -> None:
        """Note a started job; the next pair imports its packages now if that takes no processor from a job."""
        if not warm_plan.is_suitable(task):
            return
        self._suitable[number] = task
        if warm_plan.is_repeated(task) and warm_plan.is_worth(task, 0.0):
            free = slots.free_cpu_slots(slots.cpu_slots(), list(self.queue.records.values()))
            self._last = task if len(free) >= IDLE_SLOTS else None

    def on_run_ended(self, number: int) -> None:
        """Fork a pair in place of the waiting one, with an interpreter for a job like the one that has ended."""
        last = self._suitable.pop(number, None)
        now = protocol.mono()
        is_new = self._warm is not None and now < self._warm_at + KEEP_WARM_S
        if last is None or (is_new and self._warm is not None and warm_plan.is_alike(last, self._warm)):
            return
        if not warm_plan.is_worth(last, protocol.wall() - last.assigned):
            return
        pair, self.preforked = self.preforked, None
        if pair is not None:
            pair.dismiss()
        self._last, self.prefork_due = last, now

    def close(self) -> None:
        """Dismiss the preforked pair."""
        if self.preforked is not None:
            self.preforked.dismiss()
            self.preforked = None
        self.prefork_due = None

    # -- starts in progress -------------------------------------------------------

    def _await_confirmation(self, start: Start) -> None:
        self.starting[start.ticket["number"]] = start
        self.selector.register(
            start.pair.ready, selectors.EVENT_READ, lambda: self._on_pair_event(start.ticket["number"])
        )

    def _on_pair_event(self, number: int) -> None:
        """Handle output or death of the pair of a start."""
        start = self.starting.get(number)
        if start is None:
            return
        ended = start.pair.poll()
        if start.pair.started:
            self._on_started(start)
        elif ended:
            self._on_start_failed(start, start.pair.failure)

    def _on_started(self, start: Start) -> None:
        self._forget_start(start)
        self.fork_error = ""
        self.ends.drop(start.ticket, keep_secrets=bool(start.ticket.get("max_restarts")))

    def _forget_start(self, start: Start) -> None:
        self.starting.pop(start.ticket["number"], None)
        self.selector.unregister(start.pair.ready)
        start.pair.dismiss()

    def _on_start_failed(self, start: Start, reason: str) -> None:
        """Put a job that did not start back into the queue for another pair."""
        number = start.ticket["number"]
        self._forget_start(start)
        self._suitable.pop(number, None)
        self.queue.drop_record(number)
        if reason:  # no process could be forked: wait until that is possible
            self._cannot_fork(reason)
            self.ends.postponed[number] = (protocol.mono() + FORK_RETRY_S, self.no_process_text())
            self._on_failed()
            return
        tries = self.ends.failed_starts[number] = self.ends.failed_starts.get(number, 0) + 1
        self.log("run %s was not started by process %d" % (start.ticket["run"], start.pair.pid))
        if tries >= MAX_STARTS:
            text = "could not be started: %d supervisors ended or hung before the job began" % tries
            self.ends.end(start.ticket, run_state.fail_in_queue, text)
        self._on_failed()

    def no_process_text(self) -> str:
        """Return why jobs wait while no process can be forked."""
        return "waits because no process can be started now (%s)" % self.fork_error

    def check(self) -> None:
        """Continue stopped pairs; pass the jobs of hanging pairs to others."""
        now = protocol.mono()
        for number, start in list(self.starting.items()):
            waited = now - start.since
            if waited < START_CHECK_S:
                continue
            self._on_pair_event(number)
            if number not in self.starting:
                continue
            start.pair.resume()
            if waited < START_TIMEOUT_S or (waited < SLOW_START_TIMEOUT_S and not start.pair.hangs()):
                continue
            self.log("process %d does not start run %s" % (start.pair.pid, start.ticket["run"]))
            start.pair.kill()
            self._on_pair_event(number)
            if number in self.starting:  # the pair is dead and reports nothing more
                self._on_start_failed(start, "")

    def cancel(self, home: str, run: str) -> None:
        """Interrupt the supervisor of a start of that run."""
        for start in self.starting.values():
            supervisor = start.pair.supervisor
            if (start.ticket["home"], start.ticket["run"]) == (home, run) and supervisor and is_alive(supervisor):
                os.kill(supervisor["pid"], signal.SIGINT)

    def launch(self, ticket: Dict[str, Any], task: Assignment, locks: Sequence[int] = ()) -> bool:
        """Record the slot and pass the job to the preforked pair; return whether the ticket is handled.

        Parameters
        ----------
        locks
            Descriptors of the locks of the devices.
        """
        if self.preforked is None:
            self.prefork_due = protocol.mono()
            self.prefork()
        pair, self.preforked, self._warm = self.preforked, None, None
        if pair is None:
            return False  # no process can be forked now; the job keeps waiting
        pair.wait_for_supervisor()
        if pair.failure:
            self._cannot_fork(pair.failure)
            pair.dismiss()
            return False
        self.prefork_due = protocol.mono() + PREFORK_DELAY_S
        try:
            self.queue.put_record(self._slot_record(ticket, task, pair))
            testing.hit("after_slot_record")
            pair.assign(task, locks)
        except (OSError, testing.FailpointError) as error:  # a full disk or a dead pair; the job keeps waiting
            self.log("cannot start %s: %s" % (ticket["run"], error))
            pair.dismiss()
            pair.kill()
            self.queue.drop_record(ticket["number"])
            return False
        self._note_suitable(ticket["number"], task)
        testing.hit("after_go")
        self._await_confirmation(Start(pair, ticket, protocol.mono()))
        return True

    def _slot_record(self, ticket: Dict[str, Any], task: Assignment, pair: PreforkedPair) -> Dict[str, Any]:
        return {
            "schema": SCHEMA, "number": ticket["number"], "run": ticket["run"], "home": ticket["home"],
            "devices": task.devices, "cpu_slot": task.cpu_slot,
            **({"gpu_fraction": ticket["gpu_fraction"]} if "gpu_fraction" in ticket else {}),
            "guardian": pair.identity, "supervisor": pair.supervisor, "boot": self.queue.boot, "node": pid_scope(),
            "mark": task.state["mark"], **({"ticket": ticket} if ticket.get("max_restarts") else {}),
        }  # fmt: skip
