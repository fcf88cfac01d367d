"""Scheduler: starts jobs in ticket order for each kind of slot, each with a preforked pair."""

from __future__ import annotations

import gc
import os
import selectors
import signal
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from .. import protocol, testing
from ..processes import descendants, is_alive, pid_scope, process_table, resume
from ..protocol import CANCEL, JOB, LOST, QUEUED, SCHEMA, STATE, AgentError, read_json, run_folder
from ..supervise import attempts, env_filter, run_state
from ..supervise.assignment import Assignment
from ..supervise.guardian import PreforkedPair
from ..telemetry import driver_state
from ..telemetry.gpu_names import gpu_name
from . import gpu_locks, node_gate, slots, submission, visible_gpus
from .gpu_probe import GpuWatch
from .gpu_users import describe, foreign_processes
from .submission import is_removed
from .tickets import PendingSecrets, Queue
from .waiting import Ahead, blocked_text, fraction_text, reasons, shared_text, shorten, waiting_text

Gpu = Mapping[str, Any]


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

#: Seconds after which a job is ended whose guardian and supervisor are stopped repeatedly.
STOPPED_TIMEOUT_S = 15.0

#: Seconds until the next try to fork a process.
FORK_RETRY_S = 1.0

#: Max age of a GPU reading in seconds while a job waits for a GPU.
MAX_GPU_AGE_S = 2.0

#: Seconds until a ticket is retried whose run cannot be read or written now.
POSTPONED_RETRY_S = 5.0

#: Detail of a job whose environment was only in the memory of an earlier dispatcher.
ENV_LOST = (
    "could not be started: its environment and secrets were lost with an earlier dispatcher"
    " (they are kept in memory only). Submit it again."
)


#: End of a run that cannot start again for the same reason.
SECRETS_LOST = "cannot start again: its secrets were lost with the agent (they are kept in memory only)"

#: Note of a run that starts again without the environment of its submitter.
LOGIN_ENV = (
    "The environment of the notebook was lost with the agent: the run was started again with the agent's environment"
    " and the variables of --env-var."
)


class Start(NamedTuple):
    """A start in progress: a job passed to a pair that has not confirmed it yet."""

    pair: PreforkedPair
    ticket: Dict[str, Any]
    since: float


class Scheduler:
    """Starts jobs that can start and reports why the others wait.

    Parameters
    ----------
    queue
        Tickets and records.
    gpus
        Readings of the GPUs.
    log
        Writes a line to the log.
    selector
        Selector of the dispatcher.
    """

    def __init__(
        self, queue: Queue, gpus: GpuWatch, log: Callable[[str], None], selector: selectors.BaseSelector
    ) -> None:
        self.queue = queue
        self.selector = selector
        self.gpus = gpus
        self.log = log
        self.preforked: Optional[PreforkedPair] = None
        self.prefork_due: Optional[float] = protocol.mono()
        self.postponed: Dict[int, Tuple[float, str]] = {}  #: by ticket: until when, and the detail
        self.starting: Dict[int, Start] = {}
        self.failed_starts: Dict[int, int] = {}
        self.canceled: Set[Tuple[str, str]] = set()  #: home and run without a cancel file
        self.stopped: Dict[int, float] = {}  #: since when guardian and supervisor are stopped, by ticket
        self.fork_error = ""  #: reason why no process can be forked now
        self.locks = gpu_locks.Locks()

    # -- the preforked pair ----------------------------------------------------------

    def prefork(self) -> None:
        """Fork the next pair when it is due."""
        if self.preforked is not None or self.prefork_due is None or protocol.mono() < self.prefork_due:
            return
        self.prefork_due = None
        gc.collect()
        gc.freeze()  # a collection in a child would copy every page
        try:
            self.preforked = PreforkedPair()
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
        self._drop_ticket(start.ticket, keep_secrets=bool(start.ticket.get("max_restarts")))

    def _forget_start(self, start: Start) -> None:
        self.starting.pop(start.ticket["number"], None)
        self.selector.unregister(start.pair.ready)
        start.pair.dismiss()

    def _on_start_failed(self, start: Start, reason: str) -> None:
        """Put a job that did not start back into the queue for another pair."""
        number = start.ticket["number"]
        self._forget_start(start)
        self.queue.drop_record(number)
        if reason:  # no process could be forked: wait until that is possible
            self._cannot_fork(reason)
            self.postponed[number] = (protocol.mono() + FORK_RETRY_S, self._no_process_text())
            self.schedule()
            return
        tries = self.failed_starts[number] = self.failed_starts.get(number, 0) + 1
        self.log("run %s was not started by process %d" % (start.ticket["run"], start.pair.pid))
        if tries >= MAX_STARTS:
            text = "could not be started: %d supervisors ended or hung before the job began" % tries
            self._end_waiting(start.ticket, run_state.fail_in_queue, text)
        self.schedule()

    def _no_process_text(self) -> str:
        return "waits because no process can be started now (%s)" % self.fork_error

    def check_starts(self) -> None:
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

    def continue_stopped(self) -> None:
        """Continue stopped guardians and supervisors; kill both if they are stopped repeatedly."""
        for number, record in self.queue.records.items():
            processes = [record.get("guardian"), record.get("supervisor")]
            is_local = record.get("node", pid_scope()) == pid_scope()
            resumed = [resume(process) for process in processes] if is_local else []
            if resumed != [True, True]:
                self.stopped.pop(number, None)
                continue
            since = self.stopped.setdefault(number, protocol.mono())
            if protocol.mono() - since > STOPPED_TIMEOUT_S:
                self.log("guardian and supervisor of run %s are kept stopped: ending it" % record["run"])
                for process in processes:
                    if process and is_alive(process):
                        os.kill(process["pid"], signal.SIGKILL)

    def cancel(self, home: str, run: str) -> None:
        """Cancel a waiting run whose cancel file cannot be created."""
        self.canceled.add((home, run))
        for start in self.starting.values():
            supervisor = start.pair.supervisor
            if (start.ticket["home"], start.ticket["run"]) == (home, run) and supervisor and is_alive(supervisor):
                os.kill(supervisor["pid"], signal.SIGINT)

    # -- order -----------------------------------------------------------------------

    def own_pids(self) -> Set[int]:
        """Return pids of all runs of this queue; empty if no GPU lists processes to compare them with."""
        if not any(gpu.get("processes") for gpu in self.gpus.usable):
            return set()
        owners = self.queue.owner_pids()
        rows = process_table()
        return owners.union(*(descendants(owner, rows) for owner in owners)) if owners else set()

    def runs_by_pid(self) -> Dict[int, str]:
        """Return the runs of this queue by the pids of their processes."""
        rows = process_table()
        found: Dict[int, str] = {}
        for record in self.queue.records.values():
            for owner in self.queue.owner_pids([record]):
                found.update((pid, record["run"]) for pid in {owner, *descendants(owner, rows)})
        return found

    def schedule(self) -> None:
        """Start jobs in ticket order for each kind of slot; publish why the others wait."""
        self._drop_canceled()
        self.locks.keep_shared(self._shared_gpus())
        if not self.queue.tickets:
            self.queue.show({})
            return
        if not self.gpus.known:
            return
        kinds = {False, True}
        if any(ticket["gpus"] for ticket in self.queue.tickets.values()):
            self.gpus.refresh(MAX_GPU_AGE_S)
            if self.gpus.probing:  # GPU jobs wait for the reading, CPU jobs do not
                kinds = {False}
        self._start(kinds)

    def _start(self, kinds: Set[bool]) -> None:
        all_share, own_pids = submission.load_settings(self.queue.folder)["share_gpus"], self.own_pids()
        waiting: Dict[str, Dict[str, str]] = {}
        cannot_fork = False
        waiting_jobs: Dict[bool, List[Ahead]] = {False: [], True: []}
        for number, ticket in sorted(self.queue.tickets.items()):
            if number in self.starting:
                if protocol.mono() - self.starting[number].since > START_CHECK_S:
                    waiting.setdefault(ticket["home"], {})[ticket["run"]] = "starting; its supervisor is slow"
                continue
            if self._is_postponed(ticket):
                waiting.setdefault(ticket["home"], {})[ticket["run"]] = self.postponed[number][1]
                continue
            if protocol.mono() < self.queue.pauses.get(number, 0.0):  # does not block jobs behind it
                continue
            gate = node_gate.read(ticket)
            if not gate.is_open:  # does not block jobs behind it
                waiting.setdefault(ticket["home"], {})[ticket["run"]] = gate.waiting
                continue
            if ticket.get("no_slot") is True:  # neither waits for others nor blocks them
                if not self._start_without_slot(ticket) and self.fork_error:
                    waiting.setdefault(ticket["home"], {})[ticket["run"]] = self._no_process_text()
                continue
            kind = bool(ticket.get("gpus"))
            share = all_share or ticket.get("share_gpus") is True
            records: Sequence[Dict[str, Any]] = list(self.queue.records.values())
            usable = visible_gpus.candidates(ticket, self.gpus.usable) if kind else []
            uuids = {gpu["uuid"] for gpu in usable}
            ahead = [one for one in waiting_jobs[kind] if one.usable & uuids or not kind]
            chosen = None
            try:
                if kind and ticket["gpus"] > len(usable):  # does not block jobs behind it
                    waiting.setdefault(ticket["home"], {})[ticket["run"]] = self._blocked_text(ticket, len(usable))
                    continue
                free: List[str] = []
                if kind:
                    claimed = {uuid for one in ahead for uuid in one.claimed}  # not for the jobs behind
                    fraction = slots.fraction_of(ticket)
                    free = slots.free_gpus(usable, records, own_pids, share, fraction)
                    free = [uuid for uuid in free if uuid not in claimed]
                cpus = [] if kind or ahead else slots.free_cpu_slots(slots.cpu_slots(), records)
                if kind in kinds and self.queue.may_start(ticket):
                    chosen = slots.choose_slot(ticket["gpus"], free, cpus)
                    if chosen is not None and self._start_on(ticket, free, chosen, share, own_pids):
                        continue
                why = "; ".join(reasons(usable, records, own_pids, share)) if kind else ""
                held = self._held_by_others(usable, records, own_pids) if kind and not share else set()
                waiting_jobs[kind].append(Ahead(ticket["run"], uuids, uuids - held, why))
                cannot_fork = cannot_fork or (chosen is not None and bool(self.fork_error))
                if cannot_fork:
                    detail = self._no_process_text()
                else:
                    detail = waiting_text(ticket, ahead, usable, records, own_pids, share)
                    restrictions = (visible_gpus.waiting_text(ticket, self.gpus.usable), self.locks.text(usable, free))
                    detail = "; ".join([detail, *(text for text in restrictions if text and kind)])
            except Exception as error:  # only this run is unreadable or damaged; continue with the others
                self._fail_ticket(ticket, error)
                continue
            waiting.setdefault(ticket["home"], {})[ticket["run"]] = detail
        self.queue.show(waiting)

    def _shared_gpus(self) -> Set[str]:
        """Return the UUIDs of the GPUs of which runs have fractions."""
        records = self.queue.records.values()
        return {uuid for record in records if slots.fraction_of(record) < 1 for uuid in record["devices"]}

    def _held_by_others(
        self, gpus: Sequence[Gpu], records: Sequence[Mapping[str, Any]], own_pids: Set[int]
    ) -> Set[str]:
        """Return the UUIDs of GPUs that only others keep from a job: one that shares them takes nothing from it."""
        ours = slots.loads(records)
        return {
            gpu["uuid"]
            for gpu in gpus
            if gpu["uuid"] not in ours and (self.locks.is_held(gpu["uuid"]) or foreign_processes(gpu, own_pids))
        }

    def _start_without_slot(self, ticket: Dict[str, Any]) -> bool:
        """Start a job that takes no slot; return whether its ticket is handled."""
        try:
            return bool(self.queue.may_start(ticket)) and self._launch(ticket, [], None)
        except Exception as error:  # only this run is unreadable or damaged; continue with the others
            self._fail_ticket(ticket, error)
            return True

    def _blocked_text(self, ticket: Dict[str, Any], usable: int) -> str:
        gpus = self.gpus
        trouble = gpus.trouble or driver_state.lost_text(gpus.lost) or visible_gpus.waiting_text(ticket, gpus.usable)
        return blocked_text(ticket, usable, trouble, gpus.note)

    def _share_note(self, share: bool, devices: Sequence[str], own_pids: Set[int]) -> str:
        """Return the note for the record of a run that may share GPUs; empty for other runs."""
        if not share or not devices:
            return ""
        used = [
            "%s by %s" % (gpu_name(gpu), shorten([describe(row) for row in rows]))
            for gpu in self.gpus.usable
            if gpu["uuid"] in devices and (rows := foreign_processes(gpu, own_pids))
        ]
        return shared_text(used)

    def _fraction_note(self, ticket: Mapping[str, Any], devices: Sequence[str]) -> str:
        """Return the note for the record of a run that has a fraction of a GPU; empty for other runs."""
        if slots.fraction_of(ticket) == 1:
            return ""
        neighbors = [record["run"] for record in self.queue.records.values() if set(record["devices"]) & set(devices)]
        gpu = next(gpu for gpu in self.gpus.usable if gpu["uuid"] in devices)
        return fraction_text(ticket, gpu, neighbors)

    # -- ends in the queue -------------------------------------------------------------

    def _drop_canceled(self) -> None:
        for ticket in list(self.queue.tickets.values()):
            if self._is_postponed(ticket) or ticket["number"] in self.starting:
                continue
            folder = run_folder(ticket["home"], ticket["run"])
            try:
                must_end = (ticket["home"], ticket["run"]) in self.canceled
                must_end = must_end or os.path.lexists(os.path.join(folder, CANCEL)) or is_removed(folder)
            except OSError as error:
                self._postpone(ticket, error)
                continue
            if must_end:
                self._end_waiting(ticket, run_state.cancel_in_queue)
                continue
            ended = node_gate.read(ticket).end
            if ended is not None:
                self._end_waiting(ticket, run_state.end_in_queue, *ended)

    def _end_waiting(self, ticket: Dict[str, Any], write: Callable[..., None], *args: str) -> None:
        folder = run_folder(ticket["home"], ticket["run"])
        try:
            state = read_json(os.path.join(folder, STATE))
            # A started run has a supervisor, which handles the cancel.
            if state is not None and state["state"] == QUEUED:
                write(folder, state, *args, self.queue.waited(ticket))
            self._drop_ticket(ticket)
        except Exception as error:  # a full disk or a damaged run: keep the ticket and retry
            self._postpone(ticket, error)

    def _fail_ticket(self, ticket: Dict[str, Any], error: Exception) -> None:
        reason = error.message if isinstance(error, AgentError) else "%s" % (error if str(error) else repr(error))
        self.log("cannot start %s: %r" % (ticket["run"], error))
        self._end_waiting(ticket, run_state.fail_in_queue, "could not be started: %s" % reason)

    def _drop_ticket(self, ticket: Dict[str, Any], keep_secrets: bool = False) -> None:
        self.queue.drop_ticket(ticket["number"], keep_secrets)
        self.postponed.pop(ticket["number"], None)
        self.failed_starts.pop(ticket["number"], None)
        self.canceled.discard((ticket["home"], ticket["run"]))

    def _postpone(self, ticket: Dict[str, Any], error: Exception) -> None:
        text = "postponed: %s" % (error if str(error) else repr(error))
        if self.postponed.get(ticket["number"], (0.0, ""))[1] != text:
            self.log("run %s is %s" % (ticket["run"], text))
        self.postponed[ticket["number"]] = (protocol.mono() + POSTPONED_RETRY_S, text)

    def _is_postponed(self, ticket: Dict[str, Any]) -> bool:
        return protocol.mono() < self.postponed.get(ticket["number"], (0.0, ""))[0]

    # -- start -----------------------------------------------------------------------

    def _start_on(
        self,
        ticket: Dict[str, Any],
        free: Sequence[str],
        chosen: Tuple[List[str], Optional[int]],
        share: bool,
        own_pids: Set[int],
    ) -> bool:
        """Start a job on its CPU slot, or on free GPUs that no other user of the machine has locked."""
        if not chosen[0]:
            return self._launch(ticket, *chosen)
        try:
            taken = self.locks.take(free, ticket["gpus"], share, slots.fraction_of(ticket) < 1)
        except OSError as error:
            self.log("cannot lock GPUs: %s" % error)
            return False
        if taken is None:
            return False
        notes = [self._share_note(share, taken.devices, own_pids), self._fraction_note(ticket, taken.devices)]
        if taken.forced:
            notes.append(self.locks.forced_text(self.gpus.usable, taken.forced))
        try:
            return self._launch(ticket, taken.devices, None, taken.locks, [note for note in notes if note])
        finally:
            gpu_locks.close_locks(taken.locks)  # guardian and supervisor now have them

    def _launch(
        self,
        ticket: Dict[str, Any],
        devices: List[str],
        cpu_slot: Optional[int],
        locks: Sequence[int] = (),
        notes: Sequence[str] = (),
    ) -> bool:
        """Record the slot and pass the job to the preforked pair; return whether the ticket is handled.

        Parameters
        ----------
        locks
            Descriptors of the locks of the devices.
        notes
            Notes for the record of the run.
        """
        task = self._assignment(ticket, devices, cpu_slot)
        if task is None:
            return ticket["number"] not in self.queue.tickets
        if notes:
            task.state["notes"] = [*task.state.get("notes", ()), *notes]
        number = ticket["number"]
        if self.preforked is None:
            self.prefork_due = protocol.mono()
            self.prefork()
        pair, self.preforked = self.preforked, None
        if pair is None:
            return False  # no process can be forked now; the job keeps waiting
        pair.wait_for_supervisor()
        if pair.failure:
            self._cannot_fork(pair.failure)
            pair.dismiss()
            return False
        record = {
            "schema": SCHEMA, "number": number, "run": ticket["run"], "home": ticket["home"],
            "devices": devices, "cpu_slot": cpu_slot,
            **({"gpu_fraction": ticket["gpu_fraction"]} if "gpu_fraction" in ticket else {}),
            "guardian": pair.identity, "supervisor": pair.supervisor, "boot": self.queue.boot, "node": pid_scope(),
            "mark": task.state["mark"], **({"ticket": ticket} if ticket.get("max_restarts") else {}),
        }  # fmt: skip
        self.prefork_due = protocol.mono() + PREFORK_DELAY_S
        try:
            self.queue.put_record(record)
            testing.hit("after_slot_record")
            pair.assign(task, locks)
        except (OSError, testing.FailpointError) as error:  # a full disk or a dead pair; the job keeps waiting
            self.log("cannot start %s: %s" % (ticket["run"], error))
            pair.dismiss()
            pair.kill()
            self.queue.drop_record(number)
            return False
        testing.hit("after_go")
        self._await_confirmation(Start(pair, ticket, protocol.mono()))
        return True

    def _assignment(self, ticket: Dict[str, Any], devices: List[str], cpu_slot: Optional[int]) -> Optional[Assignment]:
        home = ticket["home"]
        folder = run_folder(home, ticket["run"])
        state = read_json(os.path.join(folder, STATE))
        if state is None or state["state"] != QUEUED:
            # A written end means that the run never starts, independent of its writer.
            self.log("run %s no longer waits: %s" % (ticket["run"], state and state["state"]))
            self._drop_ticket(ticket)
            return None
        job = read_json(os.path.join(folder, JOB))
        if job is None:
            raise AgentError("StateError", "%s is damaged. Submit it again." % os.path.join(folder, JOB))
        pending = self.queue.pending.get(ticket["number"])
        if pending is None and attempts.number(state) > 1:
            if job.get("secrets"):
                self._end_waiting(ticket, run_state.end_in_queue, LOST, LOST, SECRETS_LOST)
                return None
            pending = PendingSecrets(env_filter.for_dispatcher(os.environ), {})
            state["notes"] = [*(note for note in state.get("notes", ()) if note != LOGIN_ENV), LOGIN_ENV]
        if pending is None:
            self._end_waiting(ticket, run_state.fail_in_queue, ENV_LOST)
            return None
        hide, waited = self.gpus.driver != driver_state.ABSENT and not devices, self.queue.waited(ticket)
        return Assignment(
            home, folder, job, state, pending.environ, pending.secrets, devices, cpu_slot, hide, waited,
            protocol.wall(), self.queue.folder, ticket["number"],
            visible_gpus.variables(devices, str(job.get("gpu_ids") or ""), self.gpus.usable),
        )  # fmt: skip
