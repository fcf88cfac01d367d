"""Scheduler: starts jobs in ticket order for each kind of slot."""

from __future__ import annotations

import os
import selectors
import signal
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from .. import protocol
from ..processes import descendants, is_alive, pid_scope, process_table, resume
from ..protocol import JOB, LOST, QUEUED, STATE, AgentError, read_json, run_folder
from ..supervise import attempts, env_filter, run_state
from ..supervise.assignment import Assignment
from ..telemetry import driver_state
from ..telemetry.gpu_names import gpu_name
from . import gpu_locks, node_gate, slots, submission, visible_gpus
from .gpu_probe import GpuWatch
from .gpu_users import describe, foreign_processes
from .launcher import START_CHECK_S, Launcher
from .ticket_ends import TicketEnds
from .tickets import PendingSecrets, Queue
from .waiting import Ahead, blocked_text, fraction_text, reasons, shared_text, shorten, waiting_text

Gpu = Mapping[str, Any]


#: Seconds after which a job is ended whose guardian and supervisor are stopped repeatedly.
STOPPED_TIMEOUT_S = 15.0

#: Max age of a GPU reading in seconds while a job waits for a GPU.
MAX_GPU_AGE_S = 2.0

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


class Turn:
    """One pass over the waiting jobs.

    Attributes
    ----------
    kinds
        Which jobs may start now: those with GPUs (``True``), those without.
    all_share
        Whether every job may share GPUs with other users.
    own_pids
        Pids of all runs of this queue.
    cannot_fork
        Whether a job could have started but for a process.
    """

    def __init__(self, kinds: Set[bool], all_share: bool, own_pids: Set[int]) -> None:
        self.kinds = kinds
        self.all_share = all_share
        self.own_pids = own_pids
        self.cannot_fork = False
        self._waiting: Dict[bool, List[Ahead]] = {False: [], True: []}

    def ahead_of(self, needs_gpus: bool, usable: Sequence[Gpu]) -> List[Ahead]:
        """Return the jobs of this pass that wait for the same slots as the next one."""
        uuids = {gpu["uuid"] for gpu in usable}
        return [one for one in self._waiting[needs_gpus] if one.usable & uuids or not needs_gpus]

    def add(self, needs_gpus: bool, run: str, usable: Sequence[Gpu], held: Set[str], reason: str) -> None:
        """Add a job that waits; it claims its usable GPUs except those that others hold."""
        uuids = {gpu["uuid"] for gpu in usable}
        self._waiting[needs_gpus].append(Ahead(run, uuids, uuids - held, reason))


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
        self.gpus = gpus
        self.log = log
        self.ends = TicketEnds(queue, log)
        self.launcher = Launcher(queue, self.ends, log, selector, self.schedule)
        self.stopped: Dict[int, float] = {}  #: since when guardian and supervisor are stopped, by ticket
        self.locks = gpu_locks.Locks()

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
        self.ends.canceled.add((home, run))
        self.launcher.cancel(home, run)

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
        self.ends.end_canceled(self.launcher.starting)
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
        turn = Turn(kinds, submission.load_settings(self.queue.folder)["share_gpus"], self.own_pids())
        waiting: Dict[str, Dict[str, str]] = {}
        for _, ticket in sorted(self.queue.tickets.items()):
            detail = self._held_back(ticket)
            if detail is None:
                try:
                    detail = self._start_or_explain(ticket, turn)
                except Exception as error:  # only this run is unreadable or damaged; continue with the others
                    self.ends.fail(ticket, error)
            if detail:
                waiting.setdefault(ticket["home"], {})[ticket["run"]] = detail
        self.queue.show(waiting)

    def _held_back(self, ticket: Dict[str, Any]) -> Optional[str]:
        """Return why a job does not take part now and blocks none behind it; ``None`` if it takes part."""
        number = ticket["number"]
        if number in self.launcher.starting:
            is_slow = protocol.mono() - self.launcher.starting[number].since > START_CHECK_S
            return "starting; its supervisor is slow" if is_slow else ""
        if self.ends.is_postponed(ticket):
            return self.ends.postponed[number][1]
        if protocol.mono() < self.queue.pauses.get(number, 0.0):
            return ""
        gate = node_gate.read(ticket)
        return None if gate.is_open else gate.waiting

    def _start_or_explain(self, ticket: Dict[str, Any], turn: Turn) -> str:
        """Start a job, or return why it waits; empty if its ticket is handled."""
        if ticket.get("no_slot") is True:  # neither waits for others nor blocks them
            handled = self.queue.may_start(ticket) and self._launch(ticket, [], None)
            return self.launcher.no_process_text() if not handled and self.launcher.fork_error else ""
        needs_gpus = bool(ticket.get("gpus"))
        share = turn.all_share or ticket.get("share_gpus") is True
        records: Sequence[Dict[str, Any]] = list(self.queue.records.values())
        usable = visible_gpus.candidates(ticket, self.gpus.usable) if needs_gpus else []
        if needs_gpus and ticket["gpus"] > len(usable):  # does not block jobs behind it
            return self._blocked_text(ticket, len(usable))
        ahead = turn.ahead_of(needs_gpus, usable)
        free = self._free_gpus(ticket, usable, ahead, share, turn.own_pids) if needs_gpus else []
        cpus = [] if needs_gpus or ahead else slots.free_cpu_slots(slots.cpu_slots(), records)
        chosen = None
        if needs_gpus in turn.kinds and self.queue.may_start(ticket):
            chosen = slots.choose_slot(ticket["gpus"], free, cpus)
            if chosen is not None and self._start_on(ticket, free, chosen, share, turn.own_pids):
                return ""
        held = self._held_by_others(usable, records, turn.own_pids) if needs_gpus and not share else set()
        reason = "; ".join(reasons(usable, records, turn.own_pids, share)) if needs_gpus else ""
        turn.add(needs_gpus, ticket["run"], usable, held, reason)
        turn.cannot_fork = turn.cannot_fork or (chosen is not None and bool(self.launcher.fork_error))
        if turn.cannot_fork:
            return self.launcher.no_process_text()
        detail = waiting_text(ticket, ahead, usable, records, turn.own_pids, share)
        restrictions = (visible_gpus.waiting_text(ticket, self.gpus.usable), self.locks.text(usable, free))
        return "; ".join([detail, *(text for text in restrictions if text and needs_gpus)])

    def _free_gpus(
        self, ticket: Dict[str, Any], usable: Sequence[Gpu], ahead: Sequence[Ahead], share: bool, own_pids: Set[int]
    ) -> List[str]:
        """Return the UUIDs of the GPUs that a job may get, and no job ahead of it waits for."""
        claimed = {uuid for one in ahead for uuid in one.claimed}
        records = list(self.queue.records.values())
        free = slots.free_gpus(usable, records, own_pids, share, slots.fraction_of(ticket))
        return [uuid for uuid in free if uuid not in claimed]

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
        """Start a job, with notes for its record; return whether the ticket is handled."""
        task = self._assignment(ticket, devices, cpu_slot)
        if task is None:
            return ticket["number"] not in self.queue.tickets
        if notes:
            task.state["notes"] = [*task.state.get("notes", ()), *notes]
        return self.launcher.launch(ticket, task, locks)

    def _assignment(self, ticket: Dict[str, Any], devices: List[str], cpu_slot: Optional[int]) -> Optional[Assignment]:
        home = ticket["home"]
        folder = run_folder(home, ticket["run"])
        state = read_json(os.path.join(folder, STATE))
        if state is None or state["state"] != QUEUED:
            # A written end means that the run never starts, independent of its writer.
            self.log("run %s no longer waits: %s" % (ticket["run"], state and state["state"]))
            self.ends.drop(ticket)
            return None
        job = read_json(os.path.join(folder, JOB))
        if job is None:
            raise AgentError("StateError", "%s is damaged. Submit it again." % os.path.join(folder, JOB))
        pending = self.queue.pending.get(ticket["number"])
        if pending is None and attempts.number(state) > 1:
            if job.get("secrets"):
                self.ends.end(ticket, run_state.end_in_queue, LOST, LOST, SECRETS_LOST)
                return None
            pending = PendingSecrets(env_filter.for_dispatcher(os.environ), {})
            state["notes"] = [*(note for note in state.get("notes", ()) if note != LOGIN_ENV), LOGIN_ENV]
        if pending is None:
            self.ends.end(ticket, run_state.fail_in_queue, ENV_LOST)
            return None
        hide, waited = self.gpus.driver != driver_state.ABSENT and not devices, self.queue.waited(ticket)
        return Assignment(
            home, folder, job, state, pending.environ, pending.secrets, devices, cpu_slot, hide, waited,
            protocol.wall(), self.queue.folder, ticket["number"],
            visible_gpus.variables(devices, str(job.get("gpu_ids") or ""), self.gpus.usable),
        )  # fmt: skip
