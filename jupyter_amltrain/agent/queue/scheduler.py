"""Who starts next: tickets in order for each kind of slot, each job handed to a waiting pair."""

from __future__ import annotations

import gc
import os
import selectors
import signal
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from .. import protocol, testing
from ..processes import alive, descendants, node, resume, table
from ..protocol import CANCEL, JOB, QUEUED, SCHEMA, STATE, AgentError, read_json, run_folder
from ..supervise import run_state
from ..supervise.guardian import PreforkedPair
from ..supervise.process import Assignment
from ..telemetry import driver_state
from ..telemetry.gpu_names import gpu_name
from . import gpu_locks, slots, submission, visible_gpus
from .gpu_probe import GpuWatch
from .gpu_users import Submitter, describe, is_kernel, strangers
from .submission import gone
from .tickets import Queue

Gpu = Mapping[str, Any]


def some(names: Sequence[str]) -> str:
    """The first three, and how many more there are."""
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else "%s and %d more" % (shown, len(names) - 3)


def waiting_text(
    ticket: Mapping[str, Any],
    position: int,
    gpus: Sequence[Gpu],
    records: Sequence[Mapping[str, Any]],
    ours: Set[int],
    share: bool,
) -> str:
    """What a job that could start one day waits for.

    Parameters
    ----------
    position
        1 for the next of its kind.
    """
    place = "next in line" if position == 1 else "number %d in line" % position
    if not ticket["gpus"]:
        busy = [r["run"] for r in records if r["cpu_slot"] is not None]
        return "%s for a CPU slot; busy with %s" % (place, some(busy)) if busy else place
    parts: List[str] = []
    own: List[int] = []
    submitter = Submitter(ticket.get("submitter"))
    busy = [r["run"] for r in records if r["devices"]]
    if busy:
        parts.append("busy with %s" % some(busy))
    taken = {uuid for record in records for uuid in record["devices"]}
    for gpu in gpus:
        others = [] if share or gpu["uuid"] in taken else strangers(gpu, ours)
        if not others:
            continue
        mine = submitter.own(others)
        own += mine
        who = [submitter.describe(pid) for pid in mine]
        who += [describe(row) for row in others if row["pid"] not in mine]
        parts.append("%s used by %s" % (gpu_name(gpu), some(who)))
    count = "%d GPU%s" % (ticket["gpus"], "s" * (ticket["gpus"] > 1))
    text = "%s for %s%s" % (place, count, "; " + "; ".join(parts) if parts else "")
    if own:
        end = "Restart the kernel" if any(is_kernel(pid) for pid in own) else "End that process"
        text += ". %s to free the GPU, or submit the run with --gpus 0 or --share-gpus" % end
    elif len(parts) > bool(busy):
        text += ". To share GPUs with others: --share-gpus"
    return text


def blocked_text(ticket: Mapping[str, Any], usable: int, trouble: str, note: str) -> str:
    """Why a job cannot start as long as the machine is as it is.

    Parameters
    ----------
    usable
        GPUs that can be given to it.
    trouble
        Which GPUs are lost, or how the driver fails; empty when neither.
    note
        Why there is no GPU at all.
    """
    count = "%d GPU%s" % (ticket["gpus"], "s" * (ticket["gpus"] > 1))
    why = trouble or note or "this machine has %d now" % usable
    return "cannot start now: it asks for %s and %s. It starts when they are back; cancel it to submit it anew" % (
        count,
        why.rstrip("."),
    )


def shared_text(used: Sequence[str]) -> str:
    """Note of a run that may share its GPUs.

    Parameters
    ----------
    used
        ``GPU 0 by pid 123 (ann: python)`` for each of its GPUs that was in use when it started.
    """
    if used:
        return "Shared GPU: when the run started, others used %s." % "; ".join(used)
    return "Shared GPU: other processes may use it; none did when the run started."


#: Seconds after a start until the next pair is forked: the job's own start goes first.
PREFORK_DELAY_S = 0.05

#: Seconds after which a start that is not confirmed is looked at: a stopped process is continued.
START_CHECK_S = 1.0

#: Seconds without a confirmation after which the job is given to another pair.
START_TIMEOUT_S = 4.0

#: Seconds for the same where the pair could run and gets no processor, or waits for a disk.
SLOW_START_TIMEOUT_S = 60.0

#: Tries of a start whose pair dies over it.
MAX_STARTS = 3

#: Seconds of looks that find guardian and supervisor of a run stopped after which its job is ended.
STOPPED_TIMEOUT_S = 15.0

#: Seconds until another try where no process could be forked.
FORK_RETRY_S = 1.0

#: Seconds that a reading of the GPUs may be old when a job waits for one.
MAX_GPU_AGE_S = 2.0

#: Seconds until a ticket whose run cannot be read or written now is looked at again.
ASIDE_RETRY_S = 5.0

#: What becomes of a job whose environment only an earlier dispatcher had in memory.
ENV_LOST = (
    "could not be started: the environment and the secrets that it was submitted with were lost with an earlier"
    " dispatcher (they are kept in memory only). Submit it again."
)


class Start(NamedTuple):
    """A job that was handed to a pair which has not confirmed it yet."""

    pair: PreforkedPair
    ticket: Dict[str, Any]
    since: float


class Scheduler:
    """Starts what can start and explains the rest.

    Parameters
    ----------
    queue
        Tickets and records.
    gpus
        What is known of the GPUs.
    say
        Takes a line for the log.
    selector
        The dispatcher's.
    """

    def __init__(
        self, queue: Queue, gpus: GpuWatch, say: Callable[[str], None], selector: selectors.BaseSelector
    ) -> None:
        self.queue = queue
        self.selector = selector
        self.gpus = gpus
        self.say = say
        self.preforked: Optional[PreforkedPair] = None
        self.prefork_due: Optional[float] = protocol.mono()
        self.aside: Dict[int, Tuple[float, str]] = {}  #: until when, and the detail
        self.starting: Dict[int, Start] = {}
        self.failed_starts: Dict[int, int] = {}
        self.canceled: Set[Tuple[str, str]] = set()  #: home and run: where no file could be made
        self.stopped: Dict[int, float] = {}  #: since when guardian and supervisor of a run are stopped
        self.no_process = ""  #: why no process can be forked now
        self.locks = gpu_locks.Locks()

    # -- the waiting pair ----------------------------------------------------------

    def make_spare(self) -> None:
        """Fork the next pair when its time has come."""
        if self.preforked is not None or self.prefork_due is None or protocol.mono() < self.prefork_due:
            return
        self.prefork_due = None
        gc.collect()
        gc.freeze()  # a collection in a child would copy every page
        try:
            self.preforked = PreforkedPair()
        except OSError as error:
            self._cannot_fork(error.strerror or str(error))

    def _cannot_fork(self, why: str) -> None:
        if self.no_process != why:
            self.say("cannot fork: %s" % why)
        self.no_process = why
        self.prefork_due = protocol.mono() + FORK_RETRY_S

    def ended(self, pid: int) -> None:
        """A child of ours ended."""
        for number, start in list(self.starting.items()):
            if start.pair.pid == pid:
                self._heard(number)
        if self.preforked is not None and self.preforked.pid == pid:
            pair, self.preforked = self.preforked, None
            pair.news()
            self.prefork_due = protocol.mono() + FORK_RETRY_S
            if pair.failure:
                self._cannot_fork(pair.failure)
            pair.dismiss()

    def close(self) -> None:
        """Let the waiting pair go."""
        if self.preforked is not None:
            self.preforked.dismiss()
            self.preforked = None
        self.prefork_due = None

    # -- starts that are under way -------------------------------------------------------

    def _await(self, start: Start) -> None:
        self.starting[start.ticket["number"]] = start
        self.selector.register(start.pair.ready, selectors.EVENT_READ, lambda: self._heard(start.ticket["number"]))

    def _heard(self, number: int) -> None:
        """The pair of a start has said something, or has died."""
        start = self.starting.get(number)
        if start is None:
            return
        ended = start.pair.news()
        if start.pair.started:
            self._confirmed(start)
        elif ended:
            self._not_started(start, start.pair.failure)

    def _confirmed(self, start: Start) -> None:
        self._forget_start(start)
        self.no_process = ""
        self._drop(start.ticket)

    def _forget_start(self, start: Start) -> None:
        self.starting.pop(start.ticket["number"], None)
        self.selector.unregister(start.pair.ready)
        start.pair.dismiss()

    def _not_started(self, start: Start, why: str) -> None:
        """Nothing of the job began: it waits on for another pair."""
        number = start.ticket["number"]
        self._forget_start(start)
        self.queue.drop_record(number)
        if why:  # no process could be forked: it waits until one can
            self._cannot_fork(why)
            self.aside[number] = (protocol.mono() + FORK_RETRY_S, self._waits_for_process())
            self.schedule()
            return
        tries = self.failed_starts[number] = self.failed_starts.get(number, 0) + 1
        self.say("run %s was not started by process %d" % (start.ticket["run"], start.pair.pid))
        if tries >= MAX_STARTS:
            text = "could not be started: %d supervisors ended or hung before it began" % tries
            self._end_waiting(start.ticket, run_state.fail_in_queue, text)
        self.schedule()

    def _waits_for_process(self) -> str:
        return "waits for a process: none can be started now (%s)" % self.no_process

    def check_starts(self) -> None:
        """Continue pairs that were stopped; give the jobs of those that hang to others."""
        now = protocol.mono()
        for number, start in list(self.starting.items()):
            waited = now - start.since
            if waited < START_CHECK_S:
                continue
            self._heard(number)
            if number not in self.starting:
                continue
            start.pair.resume()
            if waited < START_TIMEOUT_S or (waited < SLOW_START_TIMEOUT_S and not start.pair.hangs()):
                continue
            self.say("process %d does not start run %s" % (start.pair.pid, start.ticket["run"]))
            start.pair.kill()
            self._heard(number)
            if number in self.starting:  # nobody is left who could say more
                self._not_started(start, "")

    def continue_stopped(self) -> None:
        """Continue guardians and supervisors that somebody stopped; end those of a run that keeps stopping both."""
        for number, record in self.queue.records.items():
            both = [record.get("guardian"), record.get("supervisor")]
            stopped = record.get("node", node()) == node() and [resume(who) for who in both] == [True, True]
            if not stopped:
                self.stopped.pop(number, None)
                continue
            since = self.stopped.setdefault(number, protocol.mono())
            if protocol.mono() - since > STOPPED_TIMEOUT_S:
                self.say("guardian and supervisor of run %s are kept stopped: ending it" % record["run"])
                for who in both:
                    if who and alive(who):
                        os.kill(who["pid"], signal.SIGKILL)

    def cancel(self, home: str, run: str) -> None:
        """Cancel a waiting run for which no file can be made."""
        self.canceled.add((home, run))
        for start in self.starting.values():
            who = start.pair.supervisor
            if (start.ticket["home"], start.ticket["run"]) == (home, run) and who and alive(who):
                os.kill(who["pid"], signal.SIGTERM)

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
            self.gpus.refresh(MAX_GPU_AGE_S)
            if self.gpus.probing:  # jobs for GPUs wait for the answer, others do not
                kinds = {False}
        self._start(kinds)

    def _start(self, kinds: Set[bool]) -> None:
        all_share, ours = submission.load(self.queue.folder)["share_gpus"], self.our_pids()
        waiting: Dict[str, Dict[str, str]] = {}
        blocked, forkless = {False: 0, True: 0}, False
        claimed: List[Set[str]] = []  # GPUs that jobs which wait may be given: not for those behind them
        for number, ticket in sorted(self.queue.tickets.items()):
            if number in self.starting:
                if protocol.mono() - self.starting[number].since > START_CHECK_S:
                    waiting.setdefault(ticket["home"], {})[ticket["run"]] = "starting; its supervisor is slow"
                continue
            if self._is_aside(ticket):
                waiting.setdefault(ticket["home"], {})[ticket["run"]] = self.aside[number][1]
                continue
            kind = bool(ticket.get("gpus"))
            share = all_share or ticket.get("share_gpus") is True
            records: Sequence[Dict[str, Any]] = list(self.queue.records.values())
            usable = visible_gpus.candidates(ticket, self.gpus.found) if kind else []
            gpus = slots.free_gpus(usable, records, ours, share) if kind else []
            before = [uuids for uuids in claimed if any(gpu["uuid"] in uuids for gpu in usable)]
            cpus = [] if kind else slots.free_cpu_slots(slots.cpu_slots(), records)
            chosen = None
            try:
                if kind and ticket["gpus"] > len(usable):  # those behind it are not made to wait
                    waiting.setdefault(ticket["home"], {})[ticket["run"]] = self._blocked_text(ticket, len(usable))
                    continue
                behind = bool(before) if kind else bool(blocked[kind])
                if not behind and kind in kinds and self.queue.may_start(ticket):
                    chosen = slots.choose(ticket["gpus"], gpus, cpus)
                    if chosen is not None and self._start_on(ticket, gpus, chosen, share, ours):
                        continue
                blocked[kind] = len(before) + 1 if kind else blocked[kind] + 1
                if kind:
                    claimed.append({gpu["uuid"] for gpu in usable})
                forkless = forkless or (chosen is not None and bool(self.no_process))
                if forkless:
                    detail = self._waits_for_process()
                else:
                    detail = waiting_text(ticket, blocked[kind], usable if kind else [], records, ours, share)
                    more = (visible_gpus.waiting_text(ticket, self.gpus.found), self.locks.text(usable, gpus))
                    detail = "; ".join([detail, *(text for text in more if text and kind)])
            except Exception as error:  # this one run is unreadable or damaged; those behind it are not
                self._cannot_start(ticket, error)
                continue
            waiting.setdefault(ticket["home"], {})[ticket["run"]] = detail
        self.queue.show(waiting)

    def _blocked_text(self, ticket: Dict[str, Any], usable: int) -> str:
        gpus = self.gpus
        trouble = gpus.trouble or driver_state.lost_text(gpus.lost) or visible_gpus.waiting_text(ticket, gpus.found)
        return blocked_text(ticket, usable, trouble, gpus.note)

    def _share_note(self, share: bool, devices: Sequence[str], ours: Set[int]) -> str:
        """What the record of a job says of its permission to share GPUs; empty without one."""
        if not share or not devices:
            return ""
        used = [
            "%s by %s" % (gpu_name(gpu), some([describe(row) for row in rows]))
            for gpu in self.gpus.found
            if gpu["uuid"] in devices and (rows := strangers(gpu, ours))
        ]
        return shared_text(used)

    # -- ends in the queue -------------------------------------------------------------

    def _drop_canceled(self) -> None:
        for ticket in list(self.queue.tickets.values()):
            if self._is_aside(ticket) or ticket["number"] in self.starting:
                continue
            folder = run_folder(ticket["home"], ticket["run"])
            try:
                ends = (ticket["home"], ticket["run"]) in self.canceled
                ends = ends or os.path.lexists(os.path.join(folder, CANCEL)) or gone(folder)
            except OSError as error:
                self._set_aside(ticket, error)
                continue
            if ends:
                self._end_waiting(ticket, run_state.cancel_in_queue)

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
        self._end_waiting(ticket, run_state.fail_in_queue, "could not be started: %s" % why)

    def _drop(self, ticket: Dict[str, Any]) -> None:
        self.queue.drop_ticket(ticket["number"])
        self.aside.pop(ticket["number"], None)
        self.failed_starts.pop(ticket["number"], None)
        self.canceled.discard((ticket["home"], ticket["run"]))

    def _set_aside(self, ticket: Dict[str, Any], error: Exception) -> None:
        text = "set aside: %s" % (error if str(error) else repr(error))
        if self.aside.get(ticket["number"], (0.0, ""))[1] != text:
            self.say("run %s is %s" % (ticket["run"], text))
        self.aside[ticket["number"]] = (protocol.mono() + ASIDE_RETRY_S, text)

    def _is_aside(self, ticket: Dict[str, Any]) -> bool:
        return protocol.mono() < self.aside.get(ticket["number"], (0.0, ""))[0]

    # -- start -----------------------------------------------------------------------

    def _start_on(
        self,
        ticket: Dict[str, Any],
        free: Sequence[str],
        chosen: Tuple[List[str], Optional[int]],
        share: bool,
        ours: Set[int],
    ) -> bool:
        """Start a job on its CPU slot, or on those of the free GPUs that no other user of the machine has locked."""
        if not chosen[0]:
            return self._launch(ticket, *chosen)
        try:
            taken = self.locks.take(free, ticket["gpus"], share)
        except OSError as error:
            self.say("cannot lock GPUs: %s" % error)
            return False
        if taken is None:
            return False
        notes = [self._share_note(share, taken.devices, ours)]
        if taken.forced:
            notes.append(self.locks.forced_text(self.gpus.found, taken.forced))
        try:
            return self._launch(ticket, taken.devices, None, taken.locks, [note for note in notes if note])
        finally:
            gpu_locks.drop(taken.locks)  # guardian and supervisor have them now

    def _launch(
        self,
        ticket: Dict[str, Any],
        devices: List[str],
        cpu_slot: Optional[int],
        locks: Sequence[int] = (),
        notes: Sequence[str] = (),
    ) -> bool:
        """Record a slot, then hand the job to the waiting pair; whether the ticket is done with.

        Parameters
        ----------
        locks
            Descriptors of the locks of its devices.
        notes
            Sentences for the run's record.
        """
        task = self._assignment(ticket, devices, cpu_slot)
        if task is None:
            return ticket["number"] not in self.queue.tickets
        if notes:
            task.state["notes"] = [*task.state.get("notes", ()), *notes]
        number = ticket["number"]
        if self.preforked is None:
            self.prefork_due = protocol.mono()
            self.make_spare()
        pair, self.preforked = self.preforked, None
        if pair is None:
            return False  # no process can be forked now; the job waits on
        pair.wait_for_supervisor()
        if pair.failure:
            self._cannot_fork(pair.failure)
            pair.dismiss()
            return False
        record = {
            "schema": SCHEMA, "number": number, "run": ticket["run"], "home": ticket["home"],
            "devices": devices, "cpu_slot": cpu_slot,
            "guardian": pair.identity, "supervisor": pair.supervisor, "boot": self.queue.boot, "node": node(),
            "mark": task.state["mark"],
        }  # fmt: skip
        self.prefork_due = protocol.mono() + PREFORK_DELAY_S
        try:
            self.queue.put_record(record)
            testing.hit("after_slot_record")
            pair.assign(task, locks)
        except (OSError, testing.FailpointError) as error:  # a full disk or a dead pair; the job waits on
            self.say("cannot start %s: %s" % (ticket["run"], error))
            pair.dismiss()
            pair.kill()
            self.queue.drop_record(number)
            return False
        testing.hit("after_go")
        self._await(Start(pair, ticket, protocol.mono()))
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
            self._end_waiting(ticket, run_state.fail_in_queue, ENV_LOST)
            return None
        hide, waited = self.gpus.driver != driver_state.ABSENT and not devices, self.queue.waited(ticket)
        return Assignment(
            home, folder, job, state, held.environ, held.secrets, devices, cpu_slot, hide, waited, protocol.wall(),
            self.queue.folder, ticket["number"],
            visible_gpus.variables(devices, str(job.get("gpu_ids") or ""), self.gpus.found),
        )  # fmt: skip
