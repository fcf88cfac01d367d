"""The guardian: outlives a killed supervisor just long enough to clean up and report it."""

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
from typing import Any, Dict, List, Optional, Sequence

from .. import protocol, testing
from ..json_dir import NumberedJsonDir
from ..process_setup import close_others, drain, log_line, reset_signals, stdio_to, wake_on
from ..processes import alive, become_subreaper, identity, look, members, resume, send
from ..protocol import AGENT_LOG, CANCELED, LOST, TERMINAL
from ..queue import gpu_locks
from . import run_state
from .heartbeat import BEAT_CHECK_S, STALL_TIMEOUT_S, Heartbeat, Listener
from .helpers import protected_pids
from .outcome import classify
from .process import Assignment
from .run_state import StateFile
from .supervisor import QueueHost, Supervisor

#: Seconds in which a new supervisor has to say who it is.
INTRODUCTION_TIMEOUT_S = 1.0

#: Seconds in which a waiting pair has to read its job.
ASSIGN_TIMEOUT_S = 2.0

#: Seconds between looks at a supervisor that is silent.
LOOK_INTERVAL_S = 1.0

#: Seconds that killed processes get to go.
KILL_TIMEOUT_S = 2.0

#: What a supervisor says on the pipe to its dispatcher when it has its job and its guardian.
STARTED = b"started\n"


class PreforkedPair:
    """A guardian and its supervisor, forked and waiting for a job.

    Attributes
    ----------
    identity
        Of the guardian.
    ready
        Descriptor that becomes readable when there is news of the start; read it with `news`.

    Raises
    ------
    OSError
        No process can be forked.
    """

    def __init__(self) -> None:
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
            _guard(guardian_reads, supervisor_reads, ready_end)
        for handle in (guardian_reads, supervisor_reads, ready_end):
            os.close(handle)
        for handle in (self._guardian, self._supervisor, self.ready):
            os.set_blocking(handle, False)
        self.identity = identity(self.pid)
        self._said = b""

    def news(self) -> bool:
        """Read what the pair has said; whether it will say no more."""
        try:
            while True:
                piece = os.read(self.ready, 4096)
                if not piece:
                    return True
                self._said += piece
        except BlockingIOError:
            return False
        except OSError:
            return True

    @property
    def started(self) -> bool:
        """Whether the supervisor has its job and its guardian: from here on the run is theirs."""
        return self._said.endswith(STARTED)

    @property
    def supervisor(self) -> Optional[Dict[str, Any]]:
        """Identity of the supervisor, once it has said it."""
        found = self._words("supervisor")
        return found if isinstance(found, dict) else None

    @property
    def failure(self) -> str:
        """Why there is no supervisor; empty when nothing was said."""
        return str(self._words("failed") or "")

    def _words(self, key: str) -> Any:
        for line in self._said.splitlines():
            if line.startswith(b"{"):
                try:
                    return json.loads(line.decode()).get(key)
                except ValueError:  # half a line
                    pass
        return None

    def wait_for_supervisor(self) -> None:
        """Wait until the supervisor has said who it is, or until it is known that there is none."""
        until = protocol.mono() + INTRODUCTION_TIMEOUT_S
        while not self.news() and not self.supervisor and not self.failure and protocol.mono() < until:
            select.select([self.ready], [], [], 0.1)

    def resume(self) -> None:
        """Continue the two if somebody stopped them."""
        resume(self.identity)
        resume(self.supervisor)

    def hangs(self) -> bool:
        """Whether neither of the two could run or waits for a disk."""
        rows = [look(who["pid"]) for who in (self.identity, self.supervisor) if who]
        return not any(row is not None and row.state in "RD" for row in rows)

    def kill(self) -> None:
        """End both at once. A supervisor without a guardian starts no job."""
        both = [who for who in (self.identity, self.supervisor) if who]
        for who in both:
            if alive(who):
                try:
                    os.kill(who["pid"], signal.SIGKILL)
                except OSError:
                    pass
        until = protocol.mono() + KILL_TIMEOUT_S
        while any(alive(who) for who in both) and protocol.mono() < until:
            time.sleep(0.002)

    def assign(self, task: Assignment, locks: Sequence[int] = ()) -> None:
        """Hand over a job. Nothing was started when this raises.

        Parameters
        ----------
        locks
            Of its GPUs, which both keep as long as they live.

        Raises
        ------
        OSError
            The pair is dead, or does not read.
        """
        # The supervisor first: it waits for the guardian's word, so that a job has both or neither.
        until = protocol.mono() + ASSIGN_TIMEOUT_S
        try:
            self._send(self._supervisor, task, until, locks)
            self._send(self._guardian, task._replace(environ={}, secrets={}), until, locks)
        finally:
            self._close_inputs()

    def _send(self, handle: int, task: Assignment, until: float, locks: Sequence[int]) -> None:
        data = pickle.dumps(tuple(task), protocol=4)
        view = memoryview(len(data).to_bytes(8, "big") + data)
        while view:
            try:
                view = view[gpu_locks.send(handle, view, locks) :]
                locks = ()
            except BlockingIOError:  # more than a socket holds
                if not select.select([], [handle], [], 0.5)[1]:
                    if protocol.mono() > until:
                        raise OSError(errno.ETIMEDOUT, "the waiting supervisor does not read its job") from None
                    self.resume()

    def dismiss(self) -> None:
        """Let the pair go; without a job it ends."""
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
    """The job that comes through a socket; ``None`` when its sender died over it."""
    data = b""
    while True:
        piece = gpu_locks.receive(handle, 1 << 20)
        if not piece:
            break
        data += piece
    os.close(handle)
    if len(data) < 8 or len(data) - 8 != int.from_bytes(data[:8], "big"):
        return None
    return Assignment(*pickle.loads(data[8:]))


def _guard(own: int, supervisors: int, ready: int) -> None:
    """Body of a forked guardian; never returns."""
    try:
        reset_signals()
        close_others([own, supervisors, ready])
        os.setsid()
        become_subreaper()
        wakeup, _ = wake_on(signal.SIGCHLD)
        # An orderly shutdown is the supervisor's to answer; we stay to the end.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        me = identity(os.getpid())
        life, life_end = os.pipe()
        guarded, guarded_end = os.pipe()
        try:
            testing.hit("before_supervisor_fork")
            child = os.fork()
        except (OSError, testing.FailpointError) as error:  # no processes left: the dispatcher tries again
            os.write(ready, json.dumps({"failed": getattr(error, "strerror", None) or str(error)}).encode() + b"\n")
            os._exit(0)
        if child == 0:
            for handle in (own, life, guarded_end):
                os.close(handle)
            main(me, supervisors, life_end, guarded, ready)
        for handle in (supervisors, life_end, guarded, ready):
            os.close(handle)
        task = receive(own)
        if task is None:
            os._exit(0)
        stdio_to(os.path.join(task.folder, AGENT_LOG))
        NumberedJsonDir(os.path.join(task.queue, "slots")).hold(task.number)
        testing.hit("after_guardian_fork")
        os.write(guarded_end, b"g")
        _watch(task, child, wakeup, life)
    except BaseException:  # a forked child must never return into its parent's code
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(70)
    os._exit(0)


def _watch(task: Assignment, child: int, wakeup: int, life: int) -> None:
    """Reap orphans until the supervisor says farewell, is gone without, or has to be replaced."""
    heard = Listener(life, task.state)
    poll = select.poll()
    poll.register(life, select.POLLIN)
    poll.register(wakeup, select.POLLIN)
    supervisor = identity(child)
    while True:
        silent = protocol.mono() - heard.last
        poll.poll(1000 * max(LOOK_INTERVAL_S, BEAT_CHECK_S - silent))
        drain(wakeup)
        run_state.reap()
        gpu_locks.answer()
        if heard.hear():
            if heard.began and not heard.ended:
                _lost(task, heard.state)
            return
        silent = protocol.mono() - heard.last
        if silent < BEAT_CHECK_S or heard.ended:
            continue
        resume(supervisor)
        row = look(child)
        if silent < STALL_TIMEOUT_S or not heard.began or row is None or row.state in "RDZ":
            continue
        stopped = _overdue(task, heard)
        if stopped is not None:
            _take_over(task, child, heard.state, stopped)
            return


def _overdue(task: Assignment, heard: Listener) -> Optional[str]:
    """What a stalled supervisor fails to do: ``canceled``, ``timeout``, ``""`` for the end; ``None`` for nothing."""
    file = StateFile(task.folder, str(task.job.get("submission") or ""))
    rank, limit, since = heard.state.get("rank"), task.job["timeout"], heard.running_since
    if rank and not alive(rank):
        return ""
    if file.cancel_requested():
        return CANCELED
    return "timeout" if limit is not None and since is not None and protocol.mono() >= since + limit else None


def _take_over(task: Assignment, child: int, state: Dict[str, Any], stopped: str) -> None:
    """End a run in the place of a supervisor that does nothing, and say how it ended."""
    log_line(
        task.folder, "guardian: the supervisor stalls; ending it and the run (%s)" % (stopped or "the job has ended")
    )
    file = StateFile(task.folder, str(task.job.get("submission") or ""))
    apart = protected_pids(task.queue, task.home, task.job["run"])
    rank, us = (state.get("rank") or {}).get("pid", 0), os.getpid()
    status: Optional[int] = state.pop("rank_status", None)
    try:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)  # from here on the job's processes are our children
    except OSError:
        pass

    def collect() -> bool:
        nonlocal status
        try:
            while True:
                pid, how = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return False
                if pid == rank:
                    status = how
        except ChildProcessError:
            return True

    until = protocol.mono() + (task.job["grace"] if stopped else 0.0)
    rows = members(task.mark, us, apart=apart)
    if stopped:
        send(rows, signal.SIGTERM)
        send(rows, signal.SIGCONT)
    while not collect() and status is None and protocol.mono() < until:
        time.sleep(0.02)
    if status is None and rank:
        send([row for row in members(task.mark, us, apart=apart) if row.pid == rank], signal.SIGKILL)
        until = protocol.mono() + KILL_TIMEOUT_S
        while not collect() and status is None and protocol.mono() < until:
            time.sleep(0.02)
    stuck = run_state.kill_all(task.mark, us, apart=apart)
    said = "its supervisor stalled and was ended"
    if status is None:
        run_state.enter(state, CANCELED if stopped == CANCELED else LOST)
        state["reason"], state["detail"] = state["state"], said
    else:
        outcome = classify(status, stopped or None, task.job["timeout"], False)
        run_state.enter(state, outcome.state)
        state["reason"], state["exit_code"], state["signal"] = outcome.reason, outcome.exit_code, outcome.signal
        state["detail"] = "; ".join(text for text in (outcome.detail, said) if text)
    if stuck:
        state["detail"] += "; left-over processes " + stuck
    file.save_patiently(state, lambda: None)


def _lost(task: Assignment, state: Dict[str, Any]) -> None:
    """The supervisor was killed: remove every process of the run, then say lost.

    Parameters
    ----------
    state
        What the supervisor wrote last, or was about to write. An end among it stands.
    """
    log_line(task.folder, "guardian: the supervisor is gone; removing the run's processes")
    apart = protected_pids(task.queue, task.home, task.job["run"])
    stuck = run_state.kill_all(task.mark, os.getpid(), apart=apart)
    state.pop("rank_status", None)
    if state["state"] not in TERMINAL:
        run_state.enter(state, LOST)
        state["reason"] = LOST
        state["detail"] = "the run's supervisor was killed; its processes were removed"
        state["detail"] += " (%s)" % stuck if stuck else ""
    StateFile(task.folder, str(task.job.get("submission") or "")).save_patiently(state, lambda: None)


def main(guardian: Optional[Dict[str, Any]], assigned: int, life: int, guarded: int, ready: int) -> None:
    """Body of a forked supervisor; never returns.

    Parameters
    ----------
    guardian
        Identity of our guardian.
    assigned
        Socket that brings the job.
    life
        Write end of the pipe by which the guardian notices our death.
    guarded
        Read end of the pipe that brings the guardian's go, and its death.
    ready
        Write end of the pipe by which the dispatcher hears who we are, and that we have begun.
    """
    try:
        become_subreaper()
        wakeup, _ = wake_on(signal.SIGCHLD, signal.SIGTERM)
        me = identity(os.getpid())
        os.write(ready, json.dumps({"supervisor": me}).encode() + b"\n")
        task = receive(assigned)
        if task is None or os.read(guarded, 1) != b"g":
            os._exit(0)
        testing.hit("before_started")
        try:
            os.write(ready, STARTED)
        except BrokenPipeError:  # the dispatcher is gone: the next one adopts us
            pass
        os.close(ready)
        heart = Heartbeat(life)
        heart.beat()
        stdio_to(os.path.join(task.folder, AGENT_LOG))
        NumberedJsonDir(os.path.join(task.queue, "slots")).hold(task.number)
        task.state["guardian"], task.state["supervisor"] = guardian, me
        Supervisor(task, QueueHost(task), wakeup, guarded, heart).run()
        heart.end()
    except BaseException:  # a forked child must never return into its parent's code
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(70)  # without a farewell: the guardian cleans up
    os._exit(0)
