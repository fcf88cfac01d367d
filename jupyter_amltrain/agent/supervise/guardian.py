"""Guardian: cleans up and reports the end of a run when its supervisor was killed or stalls."""

from __future__ import annotations

import errno
import json
import os
import pickle
import select
import signal
import socket
import sys
import time
import traceback
from typing import Any, Dict, FrozenSet, List, Optional, Sequence

from .. import protocol, testing
from ..environments.docker import client_environ
from ..json_dir import NumberedJsonDir
from ..process_setup import close_others, drain, log_line, redirect_stdio, reset_signals, wakeup_pipe
from ..processes import become_subreaper, find_process, identity, is_alive, resume, run_members, signal_processes
from ..protocol import AGENT_LOG, CANCELED, LOST, QUEUED, TERMINAL
from ..queue import gpu_locks
from . import attempts, run_state
from .assignment import Assignment
from .container import Container
from .heartbeat import BEAT_CHECK_S, STALL_TIMEOUT_S, Heartbeat, Listener
from .helpers import protected_pids
from .node_host import NodeHost
from .outcome import classify
from .queue_host import QueueHost
from .run_state import StateFile
from .supervisor import Supervisor
from .warm_interpreter import WarmInterpreter

#: Seconds for a new supervisor to send its identity.
INTRODUCTION_TIMEOUT_S = 1.0

#: Seconds for a preforked pair to read its job.
ASSIGN_TIMEOUT_S = 2.0

#: Seconds between checks of a silent supervisor.
POLL_INTERVAL_S = 1.0

#: Seconds for killed processes to end.
KILL_TIMEOUT_S = 2.0

#: Seconds between two looks of a supervisor without a job at whether its waiting interpreter has ended.
REAP_INTERVAL_S = 5.0

#: Message of a supervisor to the dispatcher when it has its job and its guardian.
STARTED = b"started\n"


class PreforkedPair:
    """A guardian and its supervisor, forked and waiting for a job.

    Parameters
    ----------
    last
        Run that has ended, whose packages an interpreter imports for the job.

    Attributes
    ----------
    identity
        Identity of the guardian.
    ready
        Descriptor that becomes readable when the start makes progress; read it with `poll`.

    Raises
    ------
    OSError
        No process can be forked.
    """

    def __init__(self, last: Optional[Assignment] = None) -> None:
        pipes: List[int] = []
        try:
            for _ in range(2):  # sockets: the locks of GPUs go through them
                pipes += [end.detach() for end in socket.socketpair()]
            pipes += os.pipe()
            guardian_reads, self._guardian, supervisor_reads, self._supervisor, self.ready, ready_end = pipes
            testing.hit("before_guardian_fork")
            self.pid = os.fork()
        except (OSError, testing.FailpointError) as error:
            for handle in pipes:
                os.close(handle)
            if isinstance(error, OSError):
                raise
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error
        if self.pid == 0:
            _guard(guardian_reads, supervisor_reads, ready_end, last)
        for handle in (guardian_reads, supervisor_reads, ready_end):
            os.close(handle)
        for handle in (self._guardian, self._supervisor, self.ready):
            os.set_blocking(handle, False)
        self.identity = identity(self.pid)
        self._output = b""

    def poll(self) -> bool:
        """Read the messages of the pair; return whether no more can follow."""
        try:
            while True:
                piece = os.read(self.ready, 4096)
                if not piece:
                    return True
                self._output += piece
        except BlockingIOError:
            return False
        except OSError:
            return True

    @property
    def started(self) -> bool:
        """Whether the supervisor has its job and its guardian; from then on the pair owns the run."""
        return self._output.endswith(STARTED)

    @property
    def supervisor(self) -> Optional[Dict[str, Any]]:
        """Identity of the supervisor, once it was received."""
        value = self._field("supervisor")
        return value if isinstance(value, dict) else None

    @property
    def failure(self) -> str:
        """Reason why there is no supervisor; empty without an error."""
        return str(self._field("failed") or "")

    def _field(self, key: str) -> Any:
        for line in self._output.splitlines():
            if line.startswith(b"{"):
                try:
                    return json.loads(line.decode()).get(key)
                except ValueError:  # an incomplete line
                    pass
        return None

    def wait_for_supervisor(self) -> None:
        """Wait until the identity of the supervisor or a failure was received."""
        until = protocol.mono() + INTRODUCTION_TIMEOUT_S
        while not self.poll() and not self.supervisor and not self.failure and protocol.mono() < until:
            select.select([self.ready], [], [], 0.1)

    def resume(self) -> None:
        """Continue guardian and supervisor if they are stopped."""
        resume(self.identity)
        resume(self.supervisor)

    def hangs(self) -> bool:
        """Whether neither process is runnable or waits for a disk."""
        rows = [find_process(process["pid"]) for process in (self.identity, self.supervisor) if process]
        return not any(row is not None and row.state in "RD" for row in rows)

    def kill(self) -> None:
        """Kill both processes. A supervisor without a guardian starts no job."""
        processes = [process for process in (self.identity, self.supervisor) if process]
        for process in processes:
            if is_alive(process):
                try:
                    os.kill(process["pid"], signal.SIGKILL)
                except OSError:  # it has ended
                    pass
        until = protocol.mono() + KILL_TIMEOUT_S
        while any(is_alive(process) for process in processes) and protocol.mono() < until:
            time.sleep(0.002)

    def assign(self, task: Assignment, locks: Sequence[int] = ()) -> None:
        """Pass a job to the pair. If this raises, nothing was started.

        Parameters
        ----------
        locks
            Locks of its GPUs, which both processes keep until they end.

        Raises
        ------
        OSError
            The pair is dead or does not read.
        """
        # The supervisor first: it waits for the guardian, so that a job has both or neither.
        until = protocol.mono() + ASSIGN_TIMEOUT_S
        try:
            self._send(self._supervisor, task, until, locks)
            environ = client_environ(task.environ) if task.job.get("container") else {}
            self._send(self._guardian, task._replace(environ=environ, secrets={}), until, locks)
        finally:
            self._close_inputs()

    def _send(self, handle: int, task: Assignment, until: float, locks: Sequence[int]) -> None:
        data = pickle.dumps(tuple(task), protocol=4)
        view = memoryview(len(data).to_bytes(8, "big") + data)
        while view:
            try:
                view = view[gpu_locks.send_with_locks(handle, view, locks) :]
                locks = ()
            except BlockingIOError:  # more than a socket holds
                if not select.select([], [handle], [], 0.5)[1]:
                    if protocol.mono() > until:
                        raise OSError(errno.ETIMEDOUT, "the waiting supervisor does not read its job") from None
                    self.resume()

    def dismiss(self) -> None:
        """Close the connection to the pair; without a job it ends."""
        self._close_inputs()
        if self.ready >= 0:
            os.close(self.ready)
            self.ready = -1

    def _close_inputs(self) -> None:
        for handle in (self._guardian, self._supervisor):
            if handle >= 0:
                os.close(handle)
        self._guardian = self._supervisor = -1


def receive(handle: int) -> Optional[Assignment]:
    """Receive a job from a socket; return ``None`` if the sender died while sending."""
    data = b""
    while True:
        piece = gpu_locks.receive_with_locks(handle, 1 << 20)
        if not piece:
            break
        data += piece
    os.close(handle)
    if len(data) < 8 or len(data) - 8 != int.from_bytes(data[:8], "big"):
        return None
    return Assignment(*pickle.loads(data[8:]))


def _guard(guardian_reads: int, supervisor_reads: int, ready: int, last: Optional[Assignment]) -> None:
    """Body of a forked guardian; never returns."""
    try:
        reset_signals()
        close_others([guardian_reads, supervisor_reads, ready])
        os.setsid()
        become_subreaper()
        wakeup, _ = wakeup_pipe(signal.SIGCHLD)
        # The supervisor handles an orderly shutdown; the guardian stays until the end.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        own_identity = identity(os.getpid())
        life, life_end = os.pipe()
        guarded, guarded_end = os.pipe()
        try:
            testing.hit("before_supervisor_fork")
            child = os.fork()
        except (OSError, testing.FailpointError) as error:  # process limit reached: the dispatcher retries
            os.write(ready, json.dumps({"failed": getattr(error, "strerror", None) or str(error)}).encode() + b"\n")
            os._exit(0)
        if child == 0:
            for handle in (guardian_reads, life, guarded_end):
                os.close(handle)
            main(own_identity, supervisor_reads, life_end, guarded, ready, last)
        for handle in (supervisor_reads, life_end, guarded, ready):
            os.close(handle)
        task = receive(guardian_reads)
        if task is None:
            os._exit(0)
        redirect_stdio(os.path.join(task.folder, AGENT_LOG))
        NumberedJsonDir(os.path.join(task.queue, "slots")).lock(task.number)
        testing.hit("after_guardian_fork")
        os.write(guarded_end, b"g")
        _watch(task, child, wakeup, life)
    except BaseException:  # a forked child must never return into its parent's code
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(70)
    os._exit(0)


def _watch(task: Assignment, child: int, wakeup: int, life: int) -> None:
    """Reap orphans until the supervisor says farewell, dies without it, or has to be replaced."""
    listener = Listener(life, task.state)
    poller = select.poll()
    poller.register(life, select.POLLIN)
    poller.register(wakeup, select.POLLIN)
    supervisor = identity(child)
    while True:
        silent = protocol.mono() - listener.last_beat
        poller.poll(1000 * max(POLL_INTERVAL_S, BEAT_CHECK_S - silent))
        drain(wakeup)
        run_state.reap_children()
        gpu_locks.accept_probes()
        if listener.receive():
            if listener.has_begun and not listener.has_ended:
                _clean_up(task, listener.state)
            return
        silent = protocol.mono() - listener.last_beat
        if silent < BEAT_CHECK_S or listener.has_ended:
            continue
        resume(supervisor)
        row = find_process(child)
        if silent < STALL_TIMEOUT_S or not listener.has_begun or row is None or row.state in "RDZ":
            continue
        stopped = _overdue(task, listener)
        if stopped is not None:
            _take_over(task, child, listener.state, stopped)
            return


def _overdue(task: Assignment, listener: Listener) -> Optional[str]:
    """Return the overdue action of a stalled supervisor: ``canceled``, ``timeout``, ``""`` (job ended) or ``None``."""
    file = StateFile(task.folder, task.submission)
    rank, limit, running_since = listener.state.get("rank"), task.job["timeout"], listener.running_since
    if rank and not is_alive(rank):
        return ""
    if file.cancel_requested():
        return CANCELED
    if limit is None or running_since is None:
        return None
    return "timeout" if protocol.mono() >= running_since + limit - attempts.seconds_before(task.state) else None


class OrphanedJob:
    """The job of a supervisor that was killed: now a child of this process.

    Attributes
    ----------
    status
        Its wait status; ``None`` until it has ended.
    """

    def __init__(self, pid: int, status: Optional[int]) -> None:
        self._pid = pid
        self.status = status

    def end(self, task: Assignment, apart: FrozenSet[int], container: Optional[Container], request: bool) -> None:
        """Wait for its end, with SIGTERM and the grace period first if the end is a `request`."""
        grace_s = task.job["grace"] if request else 0.0
        rows = run_members(task.mark, os.getpid(), apart=apart)
        if request and container is not None:
            container.stop(task.job["grace"])
        elif request:
            signal_processes(rows, signal.SIGTERM)
            signal_processes(rows, signal.SIGCONT)
        self._wait(grace_s)
        if self.status is None and self._pid:
            rows = run_members(task.mark, os.getpid(), apart=apart)
            signal_processes([row for row in rows if row.pid == self._pid], signal.SIGKILL)
            self._wait(KILL_TIMEOUT_S)

    def _wait(self, seconds: float) -> None:
        until = protocol.mono() + seconds
        while not self._reap_children() and self.status is None and protocol.mono() < until:
            time.sleep(0.02)

    def _reap_children(self) -> bool:
        """Reap ended children; return whether there is none left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return False
                if pid == self._pid:
                    self.status = status
        except ChildProcessError:
            return True


def _take_over(task: Assignment, child: int, state: Dict[str, Any], stopped: str) -> None:
    """End a run instead of its stalled supervisor, and write its outcome."""
    log_line(
        task.folder,
        "guardian: the supervisor has stalled; killing it and ending the run (%s)" % (stopped or "the job has ended"),
    )
    file = StateFile(task.folder, task.submission)
    apart = protected_pids(task.queue, task.home, task.job["run"])
    orphan = OrphanedJob((state.get("rank") or {}).get("pid", 0), state.pop("rank_status", None))
    try:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)  # from here on the processes of the job are our children
    except OSError:  # it has ended
        pass
    container = Container(task.mark, task.environ) if task.job.get("container") else None
    orphan.end(task, apart, container, bool(stopped))
    status = orphan.status
    left = container.remove() if container is not None else ""
    stuck = run_state.kill_all(task.mark, os.getpid(), apart=apart)
    note = "its supervisor stalled and was killed"
    if status is None:
        run_state.enter(state, CANCELED if stopped == CANCELED else LOST)
        state["reason"], state["detail"] = state["state"], note
    else:
        outcome = classify(status, stopped or None, task.job["timeout"], False)
        if not left and not stuck and attempts.may_restart(task.job, state, outcome):
            _put_back(task, state, "%s; %s" % (outcome.detail, note))
            return
        run_state.enter(state, outcome.state)
        state["reason"], state["exit_code"], state["signal"] = outcome.reason, outcome.exit_code, outcome.signal
        state["detail"] = "; ".join(text for text in (outcome.detail, note) if text)
    if left:
        state["detail"] += "; " + left
    if stuck:
        state["detail"] += "; left-over processes " + stuck
    file.save_with_retry(state, lambda: None)


def _clean_up(task: Assignment, state: Dict[str, Any]) -> None:
    """Remove every process of a run whose supervisor was killed, then mark the run lost.

    Parameters
    ----------
    state
        State that the supervisor wrote last, or was about to write. A final state is kept.
    """
    log_line(task.folder, "guardian: the supervisor has died; removing the processes of the run")
    apart = protected_pids(task.queue, task.home, task.job["run"])
    left = Container(task.mark, task.environ).remove() if task.job.get("container") else ""
    stuck = run_state.kill_all(task.mark, os.getpid(), apart=apart)
    is_canceled = StateFile(task.folder, task.submission).cancel_requested()
    if not left and not stuck and not is_canceled and _put_back(task, state, "its supervisor was killed"):
        return
    state.pop("rank_status", None)
    if state["state"] not in TERMINAL:
        run_state.enter(state, LOST)
        state["reason"] = LOST
        state["detail"] = "the run's supervisor was killed; its processes were removed"
        state["detail"] += " (%s)" % stuck if stuck else ""
        state["detail"] += "; " + left if left else ""
    StateFile(task.folder, task.submission).save_with_retry(state, lambda: None)


def _put_back(task: Assignment, state: Dict[str, Any], reason: str) -> bool:
    """Write the next attempt of a run without a supervisor, for the dispatcher; return whether there is one."""
    waited = state["state"] == QUEUED and attempts.number(state) > 1
    if not attempts.begin_next_of_lost(task.job, state, reason):
        return False
    if not waited:
        attempts.mark_logs(task.folder, "%s, after %s" % (attempts.title(task.job, state), reason))
    attempts.clear_records(task.folder)
    StateFile(task.folder, task.submission).save_with_retry(state, lambda: None)
    return True


def main(
    guardian: Optional[Dict[str, Any]],
    job_socket: int,
    life: int,
    guarded: int,
    ready: int,
    last: Optional[Assignment] = None,
) -> None:
    """Body of a forked supervisor; never returns.

    Parameters
    ----------
    guardian
        Identity of the guardian.
    job_socket
        Socket on which the job arrives.
    life
        Write end of the pipe by which the guardian detects the death of the supervisor.
    guarded
        Read end of the pipe that reports that the guardian is ready, and its death.
    ready
        Write end of the pipe for the identity of the supervisor and the start confirmation.
    last
        Run that has ended, whose packages an interpreter imports for the job.
    """
    warm = WarmInterpreter()
    try:
        become_subreaper()
        wakeup, _ = wakeup_pipe(signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)
        own_identity = identity(os.getpid())
        os.write(ready, json.dumps({"supervisor": own_identity}).encode() + b"\n")
        warm.start(last)
        while warm.is_alive() and not select.select([job_socket], [], [], REAP_INTERVAL_S)[0]:
            pass
        task = receive(job_socket)
        if task is None or os.read(guarded, 1) != b"g":
            warm.end()
            os._exit(0)
        testing.hit("before_started")
        try:
            os.write(ready, STARTED)
        except BrokenPipeError:  # the dispatcher has ended: the next one adopts the run
            pass
        os.close(ready)
        heart = Heartbeat(life)
        heart.beat()
        redirect_stdio(os.path.join(task.folder, AGENT_LOG))
        NumberedJsonDir(os.path.join(task.queue, "slots")).lock(task.number)
        task.state["guardian"], task.state["supervisor"] = guardian, own_identity
        warm.end_unless_suitable(task)
        host = NodeHost(task) if task.job.get("nodes") else QueueHost(task, warm)
        run = Supervisor(task, host, wakeup, guarded, heart)
        host.join(run)
        run.run()
        heart.farewell()
    except BaseException:  # a forked child must never return into its parent's code
        traceback.print_exc()
        sys.stderr.flush()
        warm.end()
        os._exit(70)  # without a farewell: the guardian cleans up
    os._exit(0)
