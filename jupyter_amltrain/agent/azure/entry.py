"""``agent.pyz rank JOBFILE [in:NAME=PATH ...] [out:NAME=PATH ...]``: one process of a job that a service starts.

Runs in the foreground, once for each process of the job: completes the code, starts the
command of the job with its own standard output and error (no pipe between), passes
signals on and ends with the command's exit code. Meanwhile the first process of a node samples
the node, and the first of the job writes ``./logs/amltrain`` as a run folder and forwards
the script's MLflow data to the service's MLflow. No error in these tasks may fail the training.

``NAME=PATH`` means ``in:NAME=PATH``; the job finds the paths in ``$AML_INPUT_<NAME>`` and
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
from ..process_setup import wakeup_pipe
from ..processes import become_subreaper, identity
from ..protocol import CHECKPOINTS_VARIABLE, STATE, TELEMETRY, write_json
from ..queue.submission import first_state
from ..supervise import code_place, job_hooks
from ..supervise.assignment import Assignment
from ..supervise.helpers import Helpers
from ..supervise.outcome import GPU_UNUSED, SLICE, Outcome
from ..supervise.process import cell_of, environment, spawn
from ..supervise.supervisor import Supervisor
from ..telemetry.gpu_usage import GpuUsageGuard
from . import code_archive
from . import job as service_job
from .forward import log_to_job
from .identity import Identity, identity_of
from .job import BadJob, JobFolders
from .job_helpers import ServiceHelpers

#: Signals that are passed on to the job's process group; the first two end the job.
_ENDING = (signal.SIGTERM, signal.SIGINT)
_PASSED = (*_ENDING, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
#: Exit codes as in shells and timeout(1).
_NOT_FOUND, _TIMEOUT, _BAD_JOB = 127, 124, 2


def main(argv: List[str]) -> int:
    """Body of the command; returns its exit code.

    Parameters
    ----------
    argv
        Path of the job's file, then the paths of its data.
    """
    wakeup, _ = wakeup_pipe(signal.SIGCHLD, *_PASSED)
    try:
        job = service_job.read(argv[0], service_job.data_paths(argv[1:]))
        code = code_archive.unpack(os.getcwd(), job["run"])
        job["cwd"] = service_job.working_folder(code, job)
        job["code"] = {"search": code_place.search_folders(job, code)}
        code_place.make_working_folder(job["cwd"], code)
    except BadJob as error:
        log_to_job("the job cannot be started: %s" % error)
        return _BAD_JOB
    rank = identity_of(os.environ)
    job["env"][CHECKPOINTS_VARIABLE] = service_job.checkpoints(code)
    if rank.world > 1:  # the other processes would not start again
        job.pop("restarts", None)
    folders = service_job.find(code, job["run"], rank)
    if folders.warning and rank.leads_node:
        log_to_job(folders.warning)
    return ServiceRank(job, rank, folders, wakeup).serve()


def _task(job: Dict[str, Any], rank: Identity, folder: str) -> Assignment:
    now = protocol.wall()
    state = first_state(job["run"], "", now)
    # The marks of all processes of the job on this machine have a common beginning.
    state.update(queue="", phases=[], nodes=service_job.nodes(job), rank=None, supervisor=identity(os.getpid()))
    state["mark"] = "%d.%d.%s" % (rank.node, rank.rank, state["mark"])
    # All GPUs of the machine are the job's: the service assigned the machine to it.
    return Assignment(folder, folder, job, state, dict(os.environ), {}, [], None, False, 0.0, now, folder, 0)


class ServiceRank:
    """One process of a job, with the duties of its rank; the host of its own supervisor."""

    signal_detail = "the service requested the end of the job"
    has_queue = False  # the service starts a job again whose machine it has taken away

    def __init__(self, job: Dict[str, Any], rank: Identity, folders: JobFolders, wakeup: int) -> None:
        self.job, self.rank, self.folders = job, rank, folders
        self.task = _task(job, rank, folders.folder)
        self.service_helpers = ServiceHelpers(self.task, job, rank, folders)
        self.helpers: Helpers = self.service_helpers
        self.node = rank.node
        self.keeps_state = rank.leads and self.service_helpers.can_write
        self.run = Supervisor(self.task, self, wakeup)
        #: The signal that the service sent to this process, and that is passed on to the job.
        self.end_signal = signal.SIGTERM
        self._save_error_logged = False

    def serve(self) -> int:
        """Run the command from its start to its end; return its exit code.

        Raises
        ------
        Exception
            An internal error before the job was started.
        """
        run = self.run
        try:
            become_subreaper()
            run.run()
            self.service_helpers.log_output(self.folders.outputs)
            self.service_helpers.finish(run.status is not None)
        except Exception as error:  # an internal error must not end a training that runs
            if run.rank is None:
                raise
            log_to_job("%s: %s; the training continues without telemetry" % (type(error).__name__, error))
            while run.status is None:
                run.listen(60.0)
                run.reap()
        code = _exit_code(run.status)
        if run.outcome is None:
            return code
        if run.outcome.reason == SLICE:
            return 0
        if run.outcome.reason == "launch":
            log_to_job("the job " + run.outcome.detail)
            return _NOT_FOUND
        if run.outcome.reason == "timeout":
            return _TIMEOUT  # regardless of the command's own exit code: readers recognize the time limit by it
        if run.status is None:
            return 128 + self.end_signal
        return 1 if code == 0 and run.stopped == GPU_UNUSED else code

    # -- the job's process --------------------------------------------------------

    def start(self, run: Supervisor) -> subprocess.Popen[bytes]:
        """Start the command with the output of this process."""
        env = environment(self.task, self.helpers.sink_endpoint)
        code_place.add_search(env, self.job["code"]["search"])
        env["AML_OUTPUT_DIR"] = self.folders.outputs
        for folder in (self.folders.outputs, env[CHECKPOINTS_VARIABLE]):
            try:
                os.makedirs(folder, exist_ok=True)
            except OSError:  # the job still runs; its own write reports the error
                pass
        if self.service_helpers.can_write:
            home = service_job.hook_folder(self.job["run"])
            needed = job_hooks.runs_notebook(self.job["argv"])
            job_hooks.add(env, self.task.folder, home, gpus=False, cell=cell_of(self.job), is_needed=needed)
        sys.stdout.flush()
        sys.stderr.flush()
        # Descriptors that the service left open for the command stay open.
        return spawn(self.job["argv"], self.job["cwd"], env, close_fds=False, preexec_fn=_die_with_us())

    def request_end(self, run: Supervisor) -> None:
        """Send the job's process group the service's signal, or SIGTERM to end the job for another reason."""
        if run.stopped == SLICE:
            log_to_job(run.slice_end)
        elif run.stopped in ("timeout", GPU_UNUSED):
            reason = "time limit of %g s reached" % self.job["timeout"] if run.stopped == "timeout" else (
                "the job does not use its GPUs: %s; likely cause: %s" % (
                    (run.gpu_verdict or {}).get("detail"), (run.gpu_verdict or {}).get("cause") or "not known"
                )
            )  # fmt: skip
            log_to_job("%s; sent SIGTERM, SIGKILL follows after %g s" % (reason, self.job["grace"]))
        self._pass_on(self.end_signal if run.end_requested else signal.SIGTERM)
        self._pass_on(signal.SIGCONT)

    def _pass_on(self, number: int) -> None:
        if self.run.rank is not None:
            try:
                os.killpg(self.run.rank.pid, number)
            except OSError:  # it has ended
                pass

    def cancel_requested(self, run: Supervisor) -> bool:
        """Return ``False``: cancels arrive as signals only, because nothing else reaches this machine."""
        return False

    def excluded_pids(self) -> FrozenSet[int]:
        """Return no pids: the machine runs only this job."""
        return frozenset()

    def on_signal(self, run: Supervisor, number: int) -> None:
        """End the run at the first signal that ends a job; pass other signals on to the job."""
        if number in _ENDING and not run.end_requested:
            run.end_requested, self.end_signal = True, signal.Signals(number)
        elif number in _PASSED:
            self._pass_on(number)

    def on_readable(self, handles: List[int]) -> None:
        """Fork the sink at its first request."""
        if self.service_helpers.is_called(handles):
            self.service_helpers.sink.due = protocol.mono()

    def log_restart(self, text: str) -> None:
        """Write a line into the log of the job."""
        log_to_job(text)

    # -- GPUs -------------------------------------------------------------------------

    def has_gpus(self) -> bool:
        """Return whether there may be GPUs; the sampler finds them."""
        return self.service_helpers.can_write

    def is_sampled(self) -> Optional[bool]:
        """Return ``None`` in the process that samples its node, else whether its header is there."""
        return None if self.rank.leads_node else bool(self._header())

    def tick(self, run: Supervisor) -> None:
        """Read the GPUs of this node from the sampler's header."""
        if run.gpu_guard.devices or self.service_helpers.grace is None or not self.service_helpers.can_write:
            return
        header = self._header()
        devices = [str(gpu["uuid"]) for gpu in header.get("gpus") or ()]
        if devices:
            run.gpu_guard = GpuUsageGuard(self.task.folder, devices, self.job, self.rank.node)
            run.state["devices"] = devices
            run.save()
        elif header:
            self.service_helpers.grace = None

    def _header(self) -> Dict[str, Any]:
        """Return the sampler's header, once it has read the GPUs."""
        try:
            with open(os.path.join(self.task.folder, TELEMETRY % self.rank.node), "rb") as file:
                header = json.loads(file.readline().decode())
        except (OSError, ValueError):
            return {}
        return header if isinstance(header, dict) else {}

    # -- the run's state ----------------------------------------------------------------

    def await_nodes(self, run: Supervisor) -> Optional[Outcome]:
        """Return ``None``: the service starts the processes of all nodes."""
        return None

    def agree(self, run: Supervisor, outcome: Outcome) -> Outcome:
        """Return the same outcome: the service decides how the run has ended."""
        return outcome

    def on_save_error(self, error: OSError) -> None:
        """Log the error once, in the job's log."""
        if not self._save_error_logged:
            self._save_error_logged = True
            log_to_job("cannot write %s: %s; trying again, the training continues" % (STATE, error.strerror or error))

    def save_final_state(self, run: Supervisor) -> None:
        """Write the final state if this process writes the state."""
        if self.keeps_state:
            run.state["version"] += 1
            run.state["changed"] = protocol.wall()
            try:
                write_json(os.path.join(self.task.folder, STATE), run.state)
            except OSError:  # logged before, or without readers: the service knows how the job ended
                pass


def _die_with_us() -> Optional[Callable[[], None]]:
    """Return a function that has the command killed when this process dies: nothing else would end the command."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):  # a Python or a C library without it
        return None
    parent = os.getpid()

    def set_death_signal() -> None:
        prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG of linux/prctl.h: for a death from now on
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return set_death_signal


def _exit_code(status: Optional[int]) -> int:
    """Return the exit code as in shells: 128 + N for a death by signal N."""
    if status is None:
        return _NOT_FOUND
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
