"""The one dispatcher of a machine and user: owns tickets and slots, starts jobs in order.

Single-threaded around one selector: requests come over a unix socket (a JSON line
in, a JSON line out), ended guardians by SIGCHLD, GPU readings by a pipe. What it
holds in memory only, a waiting job's environment and secrets, dies with it.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import time
import traceback
from typing import Any, Callable, Dict, List, NamedTuple

from .. import protocol, testing
from ..json_dir import Address
from ..process_setup import drain, wake_on
from ..protocol import PROTOCOL, QUEUED, AgentError, run_folder
from ..telemetry import driver_state
from . import claims, slots, submission, visible_gpus
from .dispatcher_client import MAX_REQUEST_BYTES, Client
from .gpu_probe import GpuWatch, KnownGpus
from .scheduler import Scheduler
from .tickets import PendingSecrets, Queue

#: Seconds between looks at jobs whose end no signal tells us (adopted ones).
ADOPTED_CHECK_INTERVAL_S = 1.0
#: Seconds that a new dispatcher waits for its first call.
FIRST_CALL_TIMEOUT_S = 10.0
#: Seconds that a submit waits for a reading of the GPUs where the last one found less than there may be.
PROBE_WAIT_S = 0.2


class Deferred(NamedTuple):
    """Work for a client that waits for a reading of the GPUs."""

    work: Callable[[], None]
    since: float  #: a reading that began earlier does not count
    until: float  #: then it goes on with what is known


def idle_limit() -> float:
    """Seconds without work after which the dispatcher leaves: ``$AMLTRAIN_DISPATCHER_IDLE``, else 600."""
    try:
        return float(os.environ["AMLTRAIN_DISPATCHER_IDLE"])
    except (KeyError, ValueError):
        return 600.0


class Dispatcher:
    """See the module's docstring.

    Parameters
    ----------
    queue
        The queue folder, opened and locked by us.
    """

    def __init__(self, queue: str, home: str) -> None:
        self.folder = queue
        self.queue = Queue(queue)
        self.address = Address(queue)
        self.selector = selectors.DefaultSelector()
        self.wakeup, _ = wake_on(signal.SIGCHLD, signal.SIGTERM)
        self.selector.register(self.wakeup, selectors.EVENT_READ, self._signalled)
        self.gpus = GpuWatch(self.selector, self._gpus_read, KnownGpus(queue))
        self.scheduler = Scheduler(self.queue, self.gpus, self.say, self.selector)
        self.clients: Dict[int, Client] = {}
        self.after_probe: List[Deferred] = []
        self.retiring = False
        self.leaving = False
        self.asked = False
        self.idle_since = protocol.mono()
        self.next_look = 0.0
        self.queue.adopt(self.say)
        for one in {home} | {ticket["home"] for ticket in self.queue.tickets.values()}:
            submission.sweep_submissions(one)
        claims.sweep_claims(queue)
        self.listen()

    def say(self, text: str) -> None:
        """A line for ``dispatcher.txt``."""
        print("%.3f %s" % (protocol.wall(), text), flush=True)

    # -- the loop --------------------------------------------------------------------

    def listen(self) -> None:
        """Make the socket, in place of a dead dispatcher's."""
        try:
            os.unlink(self.address.path)
        except FileNotFoundError:
            pass
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            with self.address as path:
                self.listening.bind(path)
        finally:
            os.umask(before)
        self.listening.listen(128)
        self.listening.setblocking(False)
        self.selector.register(self.listening, selectors.EVENT_READ, self._accept)

    def run(self) -> None:
        """Serve until idle for long, retired or told to end."""
        last, pause = "", 0.2
        self.gpus.refresh()
        while not self._may_leave():
            try:
                for key, _ in self.selector.select(self._pause()):
                    key.data()
                testing.hit("dispatcher_turn")
                self._regular()
                pause = 0.2
            except Exception:  # a full disk, most likely: jobs wait, and so do we; it never ends the queue
                before, last = last, traceback.format_exc()
                self.say("again, as above" if last == before else last)
                time.sleep(pause)
                pause = min(2 * pause, 5.0)
        self.scheduler.close()
        self.say("dispatcher ends")

    def _pause(self) -> float:
        due = [item.until for item in self.after_probe]
        if self.scheduler.prefork_due is not None:
            due.append(self.scheduler.prefork_due)
        return min([self._idle_pause(), *(max(0.0, moment - protocol.mono()) for moment in due)])

    def _idle_pause(self) -> float:
        busy = self.queue.tickets or self.queue.records or self.clients or self.gpus.probing
        if busy:
            return ADOPTED_CHECK_INTERVAL_S
        return max(0.0, self.idle_since + self._patience() - protocol.mono()) + 0.01

    def _patience(self) -> float:
        # Who started us has yet to come with his call, on a busy machine not at once.
        return idle_limit() if self.asked else max(FIRST_CALL_TIMEOUT_S, idle_limit())

    def _regular(self) -> None:
        """What time alone brings: slow clients, ends and cancels that nobody told us."""
        now = protocol.mono()
        for client in [c for c in self.clients.values() if now > c.until]:
            self._forget(client)
        self.gpus.expire()
        self._serve_deferred()
        self.scheduler.make_spare()
        self.scheduler.check_starts()
        if now >= self.next_look:
            self.next_look = now + ADOPTED_CHECK_INTERVAL_S
            self._look_after()
        if self.queue.tickets or self.queue.records or self.clients:
            self.idle_since = now

    def _may_leave(self) -> bool:
        if self.leaving:
            return True
        idle = protocol.mono() - self.idle_since >= self._patience()
        busy = self.clients or self.after_probe or self.queue.tickets
        if busy or not (self.retiring or (idle and not self.queue.records)):
            return False
        # From here no new client finds us; who is in the backlog already is served.
        self.selector.unregister(self.listening)
        try:
            os.unlink(self.address.path)
        except FileNotFoundError:
            pass
        self._accept()
        self.listening.close()
        if self.clients:
            self.listen()
            return False
        return True

    def _signalled(self) -> None:
        numbers = drain(self.wakeup)
        if signal.SIGTERM in numbers:
            self.leaving = True
        ended = False
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            self.scheduler.ended(pid)
            ended = True
        if ended:
            self._look_after()

    def _look_after(self) -> None:
        """Free the slots of jobs that ended, and go on with the queue."""
        freed = False
        self.scheduler.continue_stopped()
        for number, record in list(self.queue.records.items()):
            if number not in self.scheduler.starting and not self.queue.owned(record):
                self.queue.drop_record(number)
                self.queue.settle(record)
                if record["devices"]:
                    self.gpus.expired = True  # the last reading may still hold its processes
                freed = True
        if freed or self.queue.tickets:
            self.scheduler.schedule()

    # -- clients ---------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            connection.setblocking(False)
            client = Client(connection)
            self.clients[connection.fileno()] = client
            self.selector.register(connection, selectors.EVENT_READ, lambda c=client: self._receive(c))
            # A local client's line is mostly there already.
            self._receive(client)

    def _forget(self, client: Client) -> None:
        if self.clients.pop(client.connection.fileno(), None) is not None:
            self.selector.unregister(client.connection)
        client.connection.close()

    def _receive(self, client: Client) -> None:
        try:
            while True:
                piece = client.connection.recv(1 << 16)
                if not piece or len(client.data) > MAX_REQUEST_BYTES:
                    self._forget(client)
                    return
                client.data += piece
                if piece.endswith(b"\n"):
                    break
        except BlockingIOError:
            return
        except OSError:
            self._forget(client)
            return
        self.selector.unregister(client.connection)
        del self.clients[client.connection.fileno()]
        self._guarded(client, lambda: self._serve(client, bytes(client.data)))

    def _serve(self, client: Client, line: bytes) -> None:
        request = json.loads(line.decode())
        op, payload = request.get("op"), request.get("payload") or {}
        self.asked = self.asked or op != "ping"
        if op == "submit":
            if self.retiring:
                raise AgentError("ProtocolError", "This dispatcher is leaving. Try again.")
            work = lambda: self._guarded(client, lambda: self._submit(client, payload, request["home"]))  # noqa: E731
            # How many GPUs there are must be known before a job can be refused.
            self._when_known(work, fresh=payload.get("gpus") != 0 and self.gpus.doubtful)
        elif op == "info":
            self.gpus.refresh(5.0)
            self._when_known(lambda: client.answer(self._info()), wait=self.gpus.probing)
        elif op == "retire":
            waiting = len(self.queue.tickets) - len(self.scheduler.starting)
            self.retiring = not waiting
            client.answer({"retired": self.retiring, "waiting": waiting})
        elif op == "wake":
            client.answer({})
            self._look_after()
        elif op == "cancel":
            self.scheduler.cancel(request["home"], payload["run"])
            self._look_after()
            client.answer({})
        elif op == "ping":
            client.answer({"pid": os.getpid(), "protocol": PROTOCOL})
        else:
            raise AgentError("ProtocolError", "The agent does not support the call %r." % (op,))

    def _guarded(self, client: Client, work: Callable[[], None]) -> None:
        try:
            work()
        except AgentError as error:
            client.answer(error.answer())
        except Exception as error:  # of one client: it is told, and the queue goes on
            self.say(traceback.format_exc())
            client.answer({"error": {"type": "SubmitError", "message": "The agent failed: %r" % error}})

    def _when_known(self, work: Callable[[], None], wait: bool = False, fresh: bool = False) -> None:
        """Do something now, or after a reading of the GPUs.

        Parameters
        ----------
        wait
            For the end of the reading that is under way.
        fresh
            For a reading that begins now, and for `PROBE_WAIT_S` at most.
        """
        if not self.gpus.known or wait:
            self.after_probe.append(Deferred(work, 0.0, float("inf")))
        elif fresh:
            now = protocol.mono()
            self.after_probe.append(Deferred(work, now, now + PROBE_WAIT_S))
            self.gpus.probe()
        else:
            work()

    def _gpus_read(self) -> None:
        if any(item.since > self.gpus.began for item in self.after_probe):
            began = self.gpus.began
            self.gpus.probe()
            self._serve_deferred(began)
        else:
            self._serve_deferred(self.gpus.began)
        self.scheduler.schedule()

    def _serve_deferred(self, began: float = -1.0) -> None:
        """Serve requests that wait for a reading that began at `began`, and those whose wait is over."""
        now = protocol.mono()
        ready = [item for item in self.after_probe if item.since <= began or item.until <= now]
        self.after_probe = [item for item in self.after_probe if item not in ready]
        for item in ready:
            item.work()

    def _info(self) -> Dict[str, Any]:
        records = list(self.queue.records.values())
        ours, share = self.scheduler.our_pids(), submission.load(self.folder)["share_gpus"]
        return {
            "pid": os.getpid(),
            "protocol": PROTOCOL,
            "gpus": [{k: v for k, v in gpu.items() if k != "processes"} for gpu in self.gpus.found],
            "gpu_note": self._gpu_note(),
            "gpus_lost": self.gpus.lost,
            "share_gpus": share,
            "slots": slots.totals(self.gpus.found, records, ours, share, len(self.gpus.lost)),
            "queued": len(self.queue.tickets) - len(self.scheduler.starting),
            "running": len(records),
        }

    def _gpu_note(self) -> str:
        if self.gpus.driver != driver_state.BROKEN:
            return self.gpus.note
        return "%s. %s" % (self.gpus.note.rstrip("."), driver_state.repair_of(self.gpus.code))

    def _submit(self, client: Client, payload: Dict[str, Any], home: str) -> None:
        job = submission.checked(payload)
        if job.job["gpus"] is not None or not visible_gpus.hides_all(visible_gpus.of_submitter(job.environ)):
            driver_state.check_request(job.job["gpus"], self.gpus)
        if job.job["gpus"] == 0 and self.gpus.trouble:
            job.job["notes"] = ["This run has no GPU: %s." % self.gpus.trouble.rstrip(".")]
        usable = visible_gpus.settle(job.job, job.environ, self.gpus.found)
        job.job["gpus"] = slots.wanted_gpus(job.job["gpus"], usable, self.gpus.note)
        visible_gpus.check_variables(job.job)
        run = job.job["run"]
        number = self.queue.number_of(home, run)
        if not submission.repeated(home, job):
            number = self.queue.new_number()
            try:
                submission.make_folder(home, job, self.folder, number, self.queue.put_ticket)
            except AgentError:
                self.queue.drop_ticket(number)
                raise
        if number in self.queue.tickets:
            self.queue.held[number] = PendingSecrets(job.environ, job.secrets)
        client.answer({"run": run, "state": QUEUED, "folder": run_folder(home, run), "ticket": number or 0})
        self.scheduler.schedule()
