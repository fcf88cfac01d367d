"""Dispatcher: the only process of a machine and user that owns tickets and slots and starts jobs in order.

Single-threaded around one selector: requests arrive on a unix socket (one JSON line
in, one JSON line out), ends of guardians by SIGCHLD, GPU readings on a pipe. The
environment and secrets of waiting jobs are held in memory only and are lost with the process.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import time
import traceback
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence

from .. import protocol, testing
from ..json_dir import Address
from ..process_setup import drain, wakeup_pipe
from ..processes import is_alive, pid_scope
from ..protocol import PROTOCOL, QUEUED, AgentError, run_folder
from ..telemetry import driver_state
from . import claims, gpu_locks, slots, submission, visible_gpus
from .dispatcher_client import MAX_REQUEST_BYTES, Caller
from .gpu_probe import GpuWatch, KnownGpus
from .gpu_users import users_of
from .job_fields import check_payload
from .scheduler import MAX_GPU_AGE_S, Scheduler
from .tickets import PendingSecrets, Queue

#: Seconds between checks of adopted jobs, whose end no signal reports.
ADOPTED_CHECK_INTERVAL_S = 1.0
#: The same for a job whose guardian has ended and whose supervisor has not.
END_CHECK_INTERVAL_S = 0.02
#: Seconds that a new dispatcher waits for its first call.
FIRST_CALL_TIMEOUT_S = 10.0
#: Seconds that a submit waits for a new GPU reading if the last one may have missed GPUs.
PROBE_WAIT_S = 0.2


class Deferred(NamedTuple):
    """A client request that waits for a GPU reading."""

    callback: Callable[[], None]
    since: float  #: readings that began earlier do not count
    until: float  #: then the request proceeds with the last reading


def idle_limit() -> float:
    """Return the seconds without work after which the dispatcher ends: ``$AMLTRAIN_DISPATCHER_IDLE``, else 600."""
    try:
        return float(os.environ["AMLTRAIN_DISPATCHER_IDLE"])
    except (KeyError, ValueError):
        return 600.0


class Dispatcher:
    """Serves clients, watches children and drives the scheduler.

    Parameters
    ----------
    queue
        The queue folder, opened and locked by this process.
    home
        State root of the call that started the dispatcher.
    """

    def __init__(self, queue: str, home: str) -> None:
        self.folder = queue
        self.queue = Queue(queue)
        self.address = Address(queue)
        self.selector = selectors.DefaultSelector()
        self.wakeup, _ = wakeup_pipe(signal.SIGCHLD, signal.SIGTERM)
        self.selector.register(self.wakeup, selectors.EVENT_READ, self._on_signal)
        self.gpus = GpuWatch(self.selector, self._on_gpus_read, KnownGpus(queue))
        self.scheduler = Scheduler(self.queue, self.gpus, self.log, self.selector)
        self.launcher = self.scheduler.launcher
        self.clients: Dict[int, Caller] = {}
        self.after_probe: List[Deferred] = []
        self.retiring = False
        self.is_terminating = False
        self.was_called = False
        self.idle_since = protocol.mono()
        self.next_check = 0.0
        self.half_ended: Dict[int, float] = {}  #: runs whose guardian has ended, and when that was noticed
        self.queue.adopt(self.log)
        for state_root in {home} | {ticket["home"] for ticket in self.queue.tickets.values()}:
            submission.sweep_submissions(state_root)
        claims.sweep_claims(queue)
        self.listen()

    def log(self, text: str) -> None:
        """Write a line to ``dispatcher.txt``."""
        print("%.3f %s" % (protocol.wall(), text), flush=True)

    # -- the loop --------------------------------------------------------------------

    def listen(self) -> None:
        """Create the socket, replacing the socket of a dead dispatcher."""
        try:
            os.unlink(self.address.path)
        except FileNotFoundError:  # there was none
            pass
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        umask = os.umask(0o177)
        try:
            with self.address as path:
                listening.bind(path)
        finally:
            os.umask(umask)
        listening.listen(128)
        listening.setblocking(False)
        self.listening = listening
        self.selector.register(listening, selectors.EVENT_READ, self._accept)

    def _keep_address(self) -> None:
        """Listen again if the socket's file is gone: something may clean up temporary files."""
        if not os.path.lexists(self.address.path):
            self.log("%s was removed; listens again" % self.address.path)
            self._accept()  # who has connected before
            old = self.listening
            self.listen()
            self.selector.unregister(old)
            old.close()

    def run(self) -> None:
        """Serve until the idle limit, a retire request or SIGTERM."""
        last_error, pause = "", 0.2
        self.gpus.refresh()
        while not self._try_leave():
            try:
                for key, _ in self.selector.select(self._pause()):
                    key.data()
                testing.hit("dispatcher_turn")
                self._run_periodic()
                pause = 0.2
            except Exception:  # most likely a full disk: wait and retry; no error ends the queue
                previous, last_error = last_error, traceback.format_exc()
                self.log("again, as above" if last_error == previous else last_error)
                time.sleep(pause)
                pause = min(2 * pause, 5.0)
        self.launcher.close()
        self.log("dispatcher ends")

    def _pause(self) -> float:
        due = [item.until for item in self.after_probe]
        if self.launcher.prefork_due is not None:
            due.append(self.launcher.prefork_due)
        return min([self._idle_pause(), *(max(0.0, moment - protocol.mono()) for moment in due)])

    def _idle_pause(self) -> float:
        busy = self.queue.tickets or self.queue.records or self.clients or self.gpus.probing
        if busy:
            return min(ADOPTED_CHECK_INTERVAL_S, max(0.0, self.next_check - protocol.mono()))
        return max(0.0, self.idle_since + self._idle_timeout() - protocol.mono()) + 0.01

    def _idle_timeout(self) -> float:
        # The first call of the starter may still be on its way, with a delay on a busy machine.
        return idle_limit() if self.was_called else max(FIRST_CALL_TIMEOUT_S, idle_limit())

    def _run_periodic(self) -> None:
        """Handle timeouts of clients, and ends and cancels that no event reports."""
        now = protocol.mono()
        self._keep_address()
        for client in [c for c in self.clients.values() if now > c.until]:
            self._remove_client(client)
        self.gpus.expire()
        self._serve_deferred()
        self.launcher.prefork()
        self.launcher.check()
        if now >= self.next_check:
            self.next_check = now + ADOPTED_CHECK_INTERVAL_S
            self._advance_queue()
        if self.queue.tickets or self.queue.records or self.clients:
            self.idle_since = now

    def _try_leave(self) -> bool:
        if self.is_terminating:
            return True
        idle = protocol.mono() - self.idle_since >= self._idle_timeout()
        busy = self.clients or self.after_probe or self.queue.tickets
        if busy or not (self.retiring or (idle and not self.queue.records)):
            return False
        # From here on no new client can connect; clients in the backlog are still served.
        self.selector.unregister(self.listening)
        try:
            os.unlink(self.address.path)
        except FileNotFoundError:  # removed already
            pass
        self._accept()
        self.listening.close()
        if self.clients:
            self.listen()
            return False
        return True

    def _on_signal(self) -> None:
        numbers = drain(self.wakeup)
        if signal.SIGTERM in numbers:
            self.is_terminating = True
        ended = False
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            self.launcher.on_child_ended(pid)
            ended = True
        if ended:
            self._advance_queue()

    def _advance_queue(self) -> None:
        """Free the slots of ended jobs and schedule the next ones."""
        freed, ended = False, []
        self.scheduler.continue_stopped()
        for number, record in list(self.queue.records.items()):
            if number not in self.launcher.starting and not self.queue.has_live_owner(record):
                if not self.queue.put_back(record):
                    self.queue.drop_record(number)
                    self.queue.finish_run(record)
                    ended.append(number)
                if record["devices"]:
                    self.gpus.expired = True  # the last reading may still list its processes
                freed = True
            elif self._is_ending(number, record):
                self.next_check = min(self.next_check, protocol.mono() + END_CHECK_INTERVAL_S)
        for number in self.half_ended.keys() - self.queue.records.keys():
            del self.half_ended[number]
        if freed or self.queue.tickets:
            self.scheduler.schedule()
        for number in ended:
            self.launcher.on_run_ended(number)

    def _is_ending(self, number: int, record: Dict[str, Any]) -> bool:
        """Whether the guardian of a run has just ended: its supervisor, no child of this process, follows at once."""
        guardian, supervisor = record.get("guardian"), record.get("supervisor")
        if not supervisor or record.get("node", pid_scope()) != pid_scope() or is_alive(guardian):
            return False
        now = protocol.mono()
        return now - self.half_ended.setdefault(number, now) < ADOPTED_CHECK_INTERVAL_S

    # -- clients ---------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            connection.setblocking(False)
            client = Caller(connection)
            self.clients[connection.fileno()] = client
            self.selector.register(connection, selectors.EVENT_READ, lambda c=client: self._receive(c))
            # The request of a local client has usually arrived already.
            self._receive(client)

    def _remove_client(self, client: Caller) -> None:
        if self.clients.pop(client.connection.fileno(), None) is not None:
            self.selector.unregister(client.connection)
        client.connection.close()

    def _receive(self, client: Caller) -> None:
        try:
            while True:
                piece = client.connection.recv(1 << 16)
                if not piece or len(client.data) > MAX_REQUEST_BYTES:
                    self._remove_client(client)
                    return
                client.data += piece
                if piece.endswith(b"\n"):
                    break
        except BlockingIOError:
            return
        except OSError:
            self._remove_client(client)
            return
        self.selector.unregister(client.connection)
        del self.clients[client.connection.fileno()]
        self._guarded(client, lambda: self._serve(client, bytes(client.data)))

    def _serve(self, client: Caller, line: bytes) -> None:
        request = json.loads(line.decode())
        op, payload = request.get("op"), request.get("payload") or {}
        self.was_called = self.was_called or op != "ping"
        if op == "submit":
            if self.retiring:
                raise AgentError("ProtocolError", "The dispatcher is shutting down. Try again.")
            callback = lambda: self._guarded(client, lambda: self._submit(client, payload, request["home"]))  # noqa: E731
            # The number of GPUs must be known before a job can be rejected.
            self._after_gpu_probe(callback, fresh=payload.get("gpus") != 0 and self.gpus.doubtful)
        elif op == "info":
            self.gpus.refresh(MAX_GPU_AGE_S)
            self._after_gpu_probe(lambda: client.answer(self._info()), wait=self.gpus.probing)
        elif op == "retire":
            waiting = len(self.queue.tickets) - len(self.launcher.starting)
            self.retiring = not waiting
            client.answer({"retired": self.retiring, "waiting": waiting})
        elif op == "wake":
            client.answer({})
            self._advance_queue()
        elif op == "cancel":
            self.scheduler.cancel(request["home"], payload["run"])
            self._advance_queue()
            client.answer({})
        elif op == "ping":
            client.answer({"pid": os.getpid(), "protocol": PROTOCOL})
        else:
            raise AgentError("ProtocolError", "The agent does not support the call %r." % (op,))

    def _guarded(self, client: Caller, callback: Callable[[], None]) -> None:
        try:
            callback()
        except AgentError as error:
            client.answer(error.to_reply())
        except Exception as error:  # affects one client only: report the error to it and continue
            self.log(traceback.format_exc())
            client.answer(
                {"error": {"type": "SubmitError", "message": "The agent failed with an internal error: %r" % error}}
            )

    def _after_gpu_probe(self, callback: Callable[[], None], wait: bool = False, fresh: bool = False) -> None:
        """Run `callback` now, or after a GPU reading.

        Parameters
        ----------
        wait
            Wait for the end of the reading in progress.
        fresh
            Wait for a reading that begins now, for at most `PROBE_WAIT_S`.
        """
        if not self.gpus.known or wait:
            self.after_probe.append(Deferred(callback, 0.0, float("inf")))
        elif fresh:
            now = protocol.mono()
            self.after_probe.append(Deferred(callback, now, now + PROBE_WAIT_S))
            self.gpus.probe()
        else:
            callback()

    def _on_gpus_read(self) -> None:
        if any(item.since > self.gpus.began for item in self.after_probe):
            began = self.gpus.began
            self.gpus.probe()
            self._serve_deferred(began)
        else:
            self._serve_deferred(self.gpus.began)
        self.scheduler.schedule()

    def _serve_deferred(self, began: float = -1.0) -> None:
        """Serve requests that wait for a reading that began at `began`, and those whose wait has timed out."""
        now = protocol.mono()
        ready = [item for item in self.after_probe if item.since <= began or item.until <= now]
        self.after_probe = [item for item in self.after_probe if item not in ready]
        for item in ready:
            item.callback()

    def _info(self) -> Dict[str, Any]:
        records = list(self.queue.records.values())
        own_pids, share = self.scheduler.own_pids(), submission.load_settings(self.folder)["share_gpus"]
        return {
            "pid": os.getpid(),
            "protocol": PROTOCOL,
            "gpus": self._gpu_rows(records),
            "gpu_note": self._gpu_note(),
            "gpus_lost": self.gpus.lost,
            "share_gpus": share,
            "slots": slots.totals(self.gpus.usable, records, own_pids, share, len(self.gpus.lost)),
            "queued": len(self.queue.tickets) - len(self.launcher.starting),
            "running": len(records),
        }

    def _gpu_rows(self, records: Sequence[Mapping[str, Any]]) -> List[Dict[str, Any]]:
        """Return each GPU with who uses it, the part that runs of this queue have, and who has reserved it."""
        runs, loads = self.scheduler.runs_by_pid(), slots.loads(records)
        rows = []
        for gpu in self.gpus.usable:
            uuid = gpu["uuid"]
            assigned = [record["run"] for record in records if uuid in record["devices"]]
            holder = gpu_locks.listener_uid(uuid) if not assigned and gpu_locks.available() else None
            rows.append(
                {
                    **{key: value for key, value in gpu.items() if key != "processes"},
                    "users": users_of(gpu, runs, assigned),
                    "assigned": round(loads.get(uuid, 0.0), 4),
                    "reserved": "" if holder is None else gpu_locks.user_text(holder),
                }
            )
        return rows

    def _gpu_note(self) -> str:
        if self.gpus.driver != driver_state.BROKEN:
            return self.gpus.note
        return "%s. %s" % (self.gpus.note.rstrip("."), driver_state.repair_of(self.gpus.code))

    def _submit(self, client: Caller, payload: Dict[str, Any], home: str) -> None:
        job = check_payload(payload)
        if job.job["gpus"] is not None or not visible_gpus.hides_all(visible_gpus.submitter_value(job.environ)):
            driver_state.check_request(job.job["gpus"], self.gpus)
        if job.job["gpus"] == 0 and self.gpus.trouble:
            job.job["notes"] = [*job.job.get("notes", ()), "This run has no GPU: %s." % self.gpus.trouble.rstrip(".")]
        usable = visible_gpus.apply_visible_gpus(job.job, job.environ, self.gpus.usable)
        job.job["gpus"] = slots.resolve_gpu_count(job.job["gpus"], usable, self.gpus.note)
        visible_gpus.check_variables(job.job)
        run = job.job["run"]
        number = self.queue.number_of(home, run)
        if not submission.is_repeated(home, job):
            number = self.queue.new_number()
            try:
                submission.create_folder(home, job, self.folder, number, self.queue.put_ticket)
            except AgentError:
                self.queue.drop_ticket(number)
                raise
        if number in self.queue.tickets:
            self.queue.pending[number] = PendingSecrets(job.environ, job.secrets)
        client.answer({"run": run, "state": QUEUED, "folder": run_folder(home, run), "ticket": number or 0})
        self.scheduler.schedule()
