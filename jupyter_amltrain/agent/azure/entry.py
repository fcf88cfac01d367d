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

import json
import os
import signal
import subprocess
import sys
from typing import Any, Callable, Dict, FrozenSet, List, Optional

from .. import protocol
from ..process_setup import wake_on
from ..processes import become_subreaper, identity
from ..protocol import STATE, TELEMETRY, write_json
from ..queue.submission import first_state
from ..supervise.outcome import GPU_UNUSED
from ..supervise.process import Assignment, environment, spawn
from ..supervise.supervisor import Helpers, Supervisor
from ..telemetry.gpu_usage import GpuUsageGuard
from . import code_archive
from . import job as service_job
from . import job as service_places
from .forward import say
from .helpers import ServiceHelpers
from .identity import Identity
from .identity import of as identity_of
from .job import BadJob, Places

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
        code = code_archive.unpack(os.getcwd(), job["run"])
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
    now = protocol.wall()
    state = first_state(job["run"], "", now)
    # All processes of the job on this machine carry marks that begin alike.
    state.update(queue="", phases=[], nodes=service_job.nodes(job), rank=None, supervisor=identity(os.getpid()))
    state["mark"] = "%d.%d.%s" % (who.node, who.rank, state["mark"])
    # All GPUs of the machine are the job's: the service has seen to that.
    return Assignment(folder, folder, job, state, dict(os.environ), {}, [], None, False, 0.0, now, folder, 0)


class ServiceRank:
    """One process of a job, with the duties of its place in it; the host of its own supervisor."""

    told_detail = "the service told it to end"

    def __init__(self, job: Dict[str, Any], who: Identity, places: Places, wakeup: int) -> None:
        self.job, self.who, self.places = job, who, places
        self.task = _task(job, who, places.folder)
        self.crew = ServiceHelpers(self.task, job, who, places)
        self.helpers: Helpers = self.crew
        self.node = who.node
        self.keeps_state = who.leads and self.crew.can_write
        self.run = Supervisor(self.task, self, wakeup)
        #: The signal that the service sent us, and that goes on to the job.
        self.asked = signal.SIGTERM
        self._save_error_said = False

    def serve(self) -> int:
        """From the start of the command to its exit code.

        Raises
        ------
        Exception
            A fault of ours before the job was started.
        """
        run = self.run
        try:
            become_subreaper()
            run.run()
            self.crew.finish(run.status is not None)
        except Exception as error:  # a fault of ours must not end a training that runs
            if run.rank is None:
                raise
            say("%s: %s; the training goes on without telemetry" % (type(error).__name__, error))
            while run.status is None:
                run.listen(60.0)
                run.reap()
        code = _exit_code(run.status)
        if run.outcome is None:
            return code
        if run.outcome.reason == "launch":
            say("the job " + run.outcome.detail)
            return _NOT_FOUND
        if run.outcome.reason == "timeout":
            return _TIMEOUT  # whatever the command made of the signal: readers know the limit by it
        if run.status is None:
            return 128 + self.asked
        return 1 if code == 0 and run.stopped == GPU_UNUSED else code

    # -- the job's process --------------------------------------------------------

    def start(self) -> subprocess.Popen[bytes]:
        """Start the command with our own output."""
        env = environment(self.task, self.helpers.place)
        env["AML_OUTPUT_DIR"] = self.places.outputs
        try:
            os.makedirs(self.places.outputs, exist_ok=True)
        except OSError:
            pass
        sys.stdout.flush()
        sys.stderr.flush()
        # What the service left open for the command is open for the command.
        return spawn(self.job["argv"], self.job["cwd"], env, close_fds=False, preexec_fn=_die_with_us())

    def ask(self, run: Supervisor) -> None:
        """Send the job's process group the signal that the service sent us, or SIGTERM for a reason of ours."""
        if run.stopped in ("timeout", GPU_UNUSED):
            why = "the time limit of %g s is reached" % self.job["timeout"] if run.stopped == "timeout" else (
                "the job does not use its GPUs: %s; likely cause: %s" % (
                    (run.unused or {}).get("detail"), (run.unused or {}).get("cause") or "not known"
                )
            )  # fmt: skip
            say("%s; it is asked to end and killed after %g s" % (why, self.job["grace"]))
        self._pass_on(self.asked if run.told_to_end else signal.SIGTERM)
        self._pass_on(signal.SIGCONT)

    def _pass_on(self, number: int) -> None:
        if self.run.rank is not None:
            try:
                os.killpg(self.run.rank.pid, number)
            except OSError:
                pass

    def cancel_requested(self, run: Supervisor) -> bool:
        """By signals only: nobody else reaches this machine."""
        return False

    def apart(self) -> FrozenSet[int]:
        """The machine is the job's alone."""
        return frozenset()

    def signaled(self, run: Supervisor, number: int) -> None:
        """The first signal that asks for an end ends the run; others go on to the job."""
        if number in _ENDING and not run.told_to_end:
            run.told_to_end, self.asked = True, signal.Signals(number)
        elif number in _PASSED:
            self._pass_on(number)

    def heard(self, handles: List[int]) -> None:
        """Fork the sink when it is called for the first time."""
        if self.crew.is_called(handles):
            self.crew.sink.due = protocol.mono()

    # -- GPUs -------------------------------------------------------------------------

    def has_gpus(self) -> bool:
        """Whether there may be some; the sampler finds them."""
        return self.crew.can_write

    def is_sampled(self) -> Optional[bool]:
        """The first process of a node samples it; the others wait for its header."""
        return None if self.who.leads_node else bool(self._header())

    def tick(self, run: Supervisor) -> None:
        """Learn from the sampler's header which GPUs are here."""
        if run.gpu_guard.devices or self.crew.grace is None or not self.crew.can_write:
            return
        header = self._header()
        devices = [str(gpu["uuid"]) for gpu in header.get("gpus") or ()]
        if devices:
            run.gpu_guard = GpuUsageGuard(self.task.folder, devices, self.job, self.who.node)
            run.state["devices"] = devices
            run.save()
        elif header:
            self.crew.grace = None

    def _header(self) -> Dict[str, Any]:
        """The sampler's header, once it has read the GPUs."""
        try:
            with open(os.path.join(self.task.folder, TELEMETRY % self.who.node), "rb") as file:
                header = json.loads(file.readline().decode())
        except (OSError, ValueError):
            return {}
        return header if isinstance(header, dict) else {}

    # -- the run's state ----------------------------------------------------------------

    def cannot_save(self, error: OSError) -> None:
        """Say it once, in the job's log."""
        if not self._save_error_said:
            self._save_error_said = True
            say("cannot write %s: %s; trying again, the training goes on" % (STATE, error.strerror or error))

    def save_last(self, run: Supervisor) -> None:
        """Write the final state if we keep it."""
        if self.keeps_state:
            run.state["version"] += 1
            run.state["changed"] = protocol.wall()
            try:
                write_json(os.path.join(self.task.folder, STATE), run.state)
            except OSError:  # said before, or nobody reads it: the service knows how the job ended
                pass


def _die_with_us() -> Optional[Callable[[], None]]:
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


def _exit_code(status: Optional[int]) -> int:
    """As a shell tells it: 128 + N for a death by signal N."""
    if status is None:
        return _NOT_FOUND
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
