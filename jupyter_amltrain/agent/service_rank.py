"""``agent.pyz rank JOBFILE [in:NAME=PATH ...] [out:NAME=PATH ...]``: one process of a job that a service starts.

In the foreground, once for each process of the job: it completes the code, starts the
command of the job with our own standard output and error (no pipe between), passes
signals on and ends with its exit code. Meanwhile the first process of a node samples
it, and the first of the job keeps ``./logs/amltrain`` as a run folder and forwards
what the script logs to the service's MLflow. Nothing of that may fail the training.

``NAME=PATH`` is ``in:NAME=PATH``; the job finds the places in ``$AML_INPUT_<NAME>`` and
``$AML_OUTPUT_<NAME>``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any, Callable, Dict, FrozenSet, List, Optional

from . import clock, service_forward, service_job, service_packs, service_places
from .forked import drain, wake_on
from .guardian import Assignment
from .helper import dismiss
from .outcome import GPU_UNUSED, Outcome
from .processes import become_subreaper, identity
from .protocol import STATE, write_json
from .rank import environment, spawn
from .service_crew import Crew
from .service_forward import say
from .service_identity import Identity
from .service_identity import of as identity_of
from .service_job import BadJob
from .service_places import Places
from .submission import first_state

#: Signals that go on to the job's process group; the first two ask it to end.
_ENDING = (signal.SIGTERM, signal.SIGINT)
_PASSED = (*_ENDING, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
#: Exit codes as shells and timeout(1) have them.
_NOT_FOUND, _TIMEOUT, _BAD_JOB = 127, 124, 2


def main(argv: List[str]) -> int:
    """Body of the command; its exit code.

    Parameters
    ----------
    argv
        Path of the job's file, then the places of its data.
    """
    wakeup, _ = wake_on(signal.SIGCHLD, *_PASSED)
    try:
        job = service_job.read(argv[0], service_job.places_of_data(argv[1:]))
        code = service_packs.unpack(os.getcwd(), job["run"])
        job["cwd"] = service_job.working_folder(code, job)
    except BadJob as error:
        say("the job cannot be started: %s" % error)
        return _BAD_JOB
    who = identity_of(os.environ)
    places = service_places.find(code, job["run"], who)
    if places.said and who.leads_node:
        say(places.said)
    return ServiceRank(job, who, places, wakeup).serve()


def _task(job: Dict[str, Any], who: Identity, folder: str) -> Assignment:
    now = clock.wall()
    state = first_state(job["run"], "", now)
    # All processes of the job on this machine carry marks that begin alike.
    state.update(queue="", phases=[], nodes=service_job.nodes(job), rank=None, supervisor=identity(os.getpid()))
    state["mark"] = "%d.%d.%s" % (who.node, who.rank, state["mark"])
    # All GPUs of the machine are the job's: the service has seen to that.
    return Assignment(folder, folder, job, state, dict(os.environ), {}, [], None, False, 0.0, now, folder, 0)


class ServiceRank(Crew):
    """One process of a job, with the duties of its place in it."""

    TOLD = "the service told it to end"

    def __init__(self, job: Dict[str, Any], who: Identity, places: Places, wakeup: int) -> None:
        super().__init__(_task(job, who, places.folder), job, who, places, wakeup)
        self.asked = signal.SIGTERM
        self.outcome: Optional[Outcome] = None
        self._unsaid = True

    def serve(self) -> int:
        """From the start of the command to its exit code.

        Raises
        ------
        Exception
            A fault of ours before the job was started.
        """
        try:
            become_subreaper()
            self.run()
        except Exception as error:  # a fault of ours must not end a training that runs
            if self.rank is None:
                raise
            say("%s: %s; the training goes on without telemetry" % (type(error).__name__, error))
            while self.status is None:
                self._listen(60.0)
                self._reap()
        code = _exit_code(self.status)
        if self.outcome is None:
            return code
        if self.outcome.reason == "launch":
            say("the job " + self.outcome.detail)
            return _NOT_FOUND
        if self.outcome.reason == "timeout":
            return _TIMEOUT  # whatever the command made of the signal: readers know the limit by it
        if self.status is None:
            return 128 + self.asked
        return 1 if code == 0 and self.stopped == GPU_UNUSED else code

    # -- the job's process --------------------------------------------------------

    def _start(self) -> subprocess.Popen[bytes]:
        env = environment(self.task, self.place)
        env["AML_OUTPUT_DIR"] = self.places.outputs
        self._make(self.places.outputs)
        sys.stdout.flush()
        sys.stderr.flush()
        # What the service left open for the command is open for the command.
        return spawn(self.job["argv"], self.job["cwd"], env, close_fds=False, preexec_fn=self._die_with_us())

    def _die_with_us(self) -> Optional[Callable[[], None]]:
        """Let the command be killed when we are: nobody else would end it."""
        if not sys.platform.startswith("linux"):
            return None
        try:
            import ctypes

            prctl = ctypes.CDLL(None).prctl
        except (ImportError, OSError, AttributeError):  # a Python or a C library without it
            return None
        us = os.getpid()

        def ours() -> None:
            prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG of linux/prctl.h: for a death from now on
            if os.getppid() != us:
                os.kill(os.getpid(), signal.SIGKILL)

        return ours

    def _make(self, folder: str) -> None:
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError:
            pass

    def _ask(self) -> None:
        if self.stopped in ("timeout", GPU_UNUSED):
            why = "the time limit of %g s is reached" % self.job["timeout"] if self.stopped == "timeout" else (
                "the job does not use its GPUs: %s; likely cause: %s" % (
                    (self.unused or {}).get("detail"), (self.unused or {}).get("cause") or "not known"
                )
            )  # fmt: skip
            say("%s; it is asked to end and killed after %g s" % (why, self.job["grace"]))
        self._pass_on(self.asked if self.told_to_end else signal.SIGTERM)
        self._pass_on(signal.SIGCONT)

    def _pass_on(self, number: int) -> None:
        if self.rank is not None:
            try:
                os.killpg(self.rank.pid, number)
            except OSError:
                pass

    def _cancel_asked(self) -> bool:
        return False  # by signals only: nobody else reaches this machine

    def _apart(self) -> FrozenSet[int]:
        return frozenset()

    # -- waiting --------------------------------------------------------------------

    def _listen(self, pause: float) -> List[int]:
        news = [handle for handle, _ in self.poll.poll(pause * 1000 + 1)]
        if self.wakeup in news:
            for number in drain(self.wakeup):
                if number in _ENDING and not self.told_to_end:
                    self.told_to_end, self.asked = True, signal.Signals(number)
                elif number in _PASSED:
                    self._pass_on(number)
        if self.place is not None and self.place.socket.fileno() in news:
            self._listen_for_mlflow(False)
            self.sink.due = clock.mono()
        return news

    def _act(self) -> None:
        if not self.gate.devices and self.grace is not None and self.can_write:
            self._learn_devices()
        super()._act()

    # -- the end ------------------------------------------------------------------------

    def _end(self, outcome: Outcome) -> None:
        self.outcome = outcome
        super()._end(outcome)
        if self.endpoint is not None and not self.forwarder.pid and self.status is not None:
            self._fork(self.forwarder)  # the job was shorter than our patience
        dismiss(self.forwarder.pid, service_forward.farewell() + 1.0)

    def _save(self) -> None:
        if not self.who.leads or not self.can_write:
            return
        try:
            self.file.save(self.state)
            self.unsaved = None
        except OSError as error:
            if self._unsaid:
                self._unsaid = False
                say("cannot write %s: %s; trying again, the training goes on" % (STATE, error.strerror or error))
            self.unsaved = clock.mono() + 1.0

    def _save_last(self) -> None:
        if self.who.leads and self.can_write:
            self.state["version"] += 1
            self.state["changed"] = clock.wall()
            try:
                write_json(os.path.join(self.task.folder, STATE), self.state)
            except OSError:  # said before, or nobody reads it: the service knows how the job ended
                pass


def _exit_code(status: Optional[int]) -> int:
    """As a shell tells it: 128 + N for a death by signal N."""
    if status is None:
        return _NOT_FOUND
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
