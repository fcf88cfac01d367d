"""The guardian: outlives a killed supervisor just long enough to clean up and say so.

Guardian and supervisor are forked as a pair before there is a job (:class:`Pair`),
so that a job's start costs no fork of ours. A pair that is never given a job ends
when its dispatcher does.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import traceback
from typing import Any, Dict, List, NamedTuple, Optional

from . import failpoints, lifecycle
from .bystanders import bystanders
from .forked import close_others, drain, fresh_signals, note, stdio_to, wake_on
from .processes import become_subreaper, identity
from .protocol import AGENT_LOG, TERMINAL, read_state
from .shelf import Shelf


class Assignment(NamedTuple):
    """A job with the devices that it was given. In memory only."""

    home: str
    folder: str
    job: Dict[str, Any]
    state: Dict[str, Any]
    environ: Dict[str, str]
    secrets: Dict[str, str]
    devices: List[str]
    cpu_slot: Optional[int]
    hide_gpus: bool  #: the machine has GPUs and the job was given none
    queued_for: float  #: seconds from submit to this assignment
    assigned: float  #: unix seconds: jobs of one queue start in the order of these
    queue: str  #: the queue folder
    number: int  #: of the slot record

    @property
    def mark(self) -> str:
        """Value of the environment variable that marks the run's processes."""
        return "%s:%s" % (self.job["run"], self.state["mark"])


class Pair:
    """A guardian and its supervisor, forked and waiting for a job.

    Raises
    ------
    OSError
        No process can be forked.
    """

    def __init__(self) -> None:
        guardian_reads, self._guardian = os.pipe()
        supervisor_reads, self._supervisor = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _guard(guardian_reads, supervisor_reads)
        os.close(guardian_reads)
        os.close(supervisor_reads)
        self.identity = identity(self.pid)

    def assign(self, task: Assignment) -> None:
        """Hand over a job. Nothing was started when this raises.

        Raises
        ------
        OSError
            The pair is dead.
        """
        # The supervisor first: it waits for the guardian's word, so that a job has both or neither.
        try:
            _send(self._supervisor, task)
            _send(self._guardian, task._replace(environ={}, secrets={}))
        finally:
            self.dismiss()

    def dismiss(self) -> None:
        """Let the pair go; without a job it ends."""
        for handle in (self._guardian, self._supervisor):
            try:
                os.close(handle)
            except OSError:
                pass


def _send(handle: int, task: Assignment) -> None:
    data = pickle.dumps(tuple(task), protocol=4)
    view = memoryview(len(data).to_bytes(8, "big") + data)
    while view:
        view = view[os.write(handle, view) :]


def receive(handle: int) -> Optional[Assignment]:
    """The job that comes through a pipe; ``None`` when its sender died over it."""
    data = b""
    while True:
        piece = os.read(handle, 1 << 20)
        if not piece:
            break
        data += piece
    os.close(handle)
    if len(data) < 8 or len(data) - 8 != int.from_bytes(data[:8], "big"):
        return None
    return Assignment(*pickle.loads(data[8:]))


def _guard(own: int, supervisors: int) -> None:
    """Body of a forked guardian; never returns."""
    try:
        fresh_signals()
        close_others([own, supervisors])
        os.setsid()
        become_subreaper()
        wakeup, _ = wake_on(signal.SIGCHLD)
        # An orderly shutdown is the supervisor's to answer; we stay to the end.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        me = identity(os.getpid())
        life, life_end = os.pipe()
        guarded, guarded_end = os.pipe()
        if os.fork() == 0:
            from . import supervised

            for handle in (own, life, guarded_end):
                os.close(handle)
            supervised.main(me, supervisors, life_end, guarded)
        for handle in (supervisors, life_end, guarded):
            os.close(handle)
        task = receive(own)
        if task is None:
            os._exit(0)
        stdio_to(os.path.join(task.folder, AGENT_LOG))
        Shelf(os.path.join(task.queue, "slots")).hold(task.number)
        failpoints.hit("after_guardian_fork")
        os.write(guarded_end, b"g")
        _watch(task, wakeup, life)
    except BaseException:  # a forked child must never return into its parent's code
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(70)
    os._exit(0)


def _watch(task: Assignment, wakeup: int, life: int) -> None:
    """Reap orphans until the supervisor says farewell, or is gone without."""
    os.set_blocking(life, False)
    farewell = b""
    poll = select.poll()
    poll.register(life, select.POLLIN)
    poll.register(wakeup, select.POLLIN)
    while True:
        for handle, _ in poll.poll():
            if handle == wakeup:
                drain(wakeup)
                lifecycle.reap()
                continue
            try:
                piece = os.read(life, 16)
            except BlockingIOError:
                continue
            if piece:
                farewell += piece
                continue
            if farewell != b"end":
                _lost(task)
            return


def _lost(task: Assignment) -> None:
    """The supervisor was killed: remove every process of the run, then say lost."""
    note(task.folder, "guardian: the supervisor is gone; removing the run's processes")
    apart = bystanders(task.queue, task.home, task.job["run"])
    stuck = lifecycle.kill_all(task.mark, os.getpid(), apart=apart)
    why = "the run's supervisor was killed; its processes were removed" + (" (%s)" % stuck if stuck else "")

    def write() -> None:
        state = read_state(task.folder)
        if state is not None and state["state"] not in TERMINAL:
            lifecycle.mark_lost(task.folder, state, why)

    lifecycle.save_patiently(task.folder, write)
