"""Host of the supervisor of a job of the queue: its helpers, and what controls it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from typing import TYPE_CHECKING, FrozenSet, List, Optional

from ..process_setup import log_line
from ..processes import resume, signal_processes
from ..telemetry import sampler
from . import attempts, provenance_file
from .assignment import Assignment
from .helpers import Helper, Helpers, protected_pids
from .outcome import Outcome
from .process import SinkEndpoint, record_output, serve_sink, start
from .warm_interpreter import WarmInterpreter

if TYPE_CHECKING:
    from .supervisor import Supervisor


class QueueHelpers:
    """Sampler, MLflow sink and writer of the provenance of a job of the queue."""

    def __init__(self, task: Assignment, warm: WarmInterpreter) -> None:
        self.task, self.warm = task, warm
        self.sampler, self.sink = Helper("sampler"), Helper("sink")
        self.provenance = Helper("writer of the provenance", once=True)
        self.all_helpers = [self.sampler, self.sink, self.provenance]
        self.sink_endpoint: Optional[SinkEndpoint] = None

    def open_sink(self) -> None:
        """Open the socket of the sink, if the job has one."""
        tracking = self.task.job["tracking"]
        if tracking.get("mode") == "sink" and tracking.get("run_id"):
            self.sink_endpoint = self.warm.sink or open_sink_endpoint(self.task.folder)
        elif self.warm.sink is not None:
            self.warm.sink.socket.close()

    def initial_helpers(self, poll: select.poll) -> List[Helper]:
        """Return the helpers that are started with the job."""
        sink = [] if self.sink_endpoint is None else [self.sink]
        return [self.sampler, *sink, self.provenance]

    def fork(self, helper: Helper, ready: Optional[int] = None) -> None:
        """Fork a helper."""
        task, sink = self.task, self.sink_endpoint
        if helper is self.sink and sink is not None:
            serve = record_output if helper.once else serve_sink
            helper.fork(task.folder, lambda: serve(task, sink), [sink.socket.fileno()], holds_sigterm=not helper.once)
        elif helper is self.provenance:
            environment = str((task.state.get("environment") or {}).get("path") or "")
            args = task.folder, task.job, task.home, environment, task.state.get("container"), task.state.get("inputs")
            helper.fork(task.folder, lambda: provenance_file.serve(*args))
        else:
            keep = [] if ready is None else [ready]
            mark = task.mark if task.job.get("container") else ""
            helper.fork(
                task.folder, lambda: sampler.run(task.folder, os.getppid(), task.devices, ready, mark=mark), keep
            )


class QueueHost:
    """Host of a job of the queue, controlled by its guardian and by files of the run folder."""

    node = 0
    signal_detail = "its supervisor received SIGTERM, as at a shutdown"
    keeps_state = True
    has_queue = True

    def __init__(self, task: Assignment, warm: Optional[WarmInterpreter] = None) -> None:
        self.task, self.warm = task, warm or WarmInterpreter()
        self.helpers: Helpers = QueueHelpers(task, self.warm)
        self.is_canceled = False

    def has_gpus(self) -> bool:
        """Whether the job has GPUs."""
        return bool(self.task.devices)

    def is_sampled(self) -> Optional[bool]:
        """Return ``None``: our own sampler reads the GPUs."""
        return None

    def start(self, run: Supervisor) -> subprocess.Popen[bytes]:
        """Start the process of the job."""
        self.warm.is_needed = lambda: _is_needed(run)
        process = start(self.task, self.helpers.sink_endpoint, run.container, self.warm.become)
        if self.warm.is_used:
            self.helpers.sink.delay_s = 0.0  # nothing else keeps the job waiting
        return process

    def request_end(self, run: Supervisor) -> None:
        """Send SIGTERM to every process of the run; in a container the engine does so."""
        if run.container is not None:
            run.container.stop(self.task.job["grace"])
            return
        rows = run.members()
        signal_processes(rows, signal.SIGTERM)
        signal_processes(rows, signal.SIGCONT)  # a stopped process would not handle SIGTERM

    def cancel_requested(self, run: Supervisor) -> bool:
        """Whether the run folder contains the cancel file, or a cancel came as a signal because it cannot."""
        return self.is_canceled or run.file.cancel_requested()

    def excluded_pids(self) -> FrozenSet[int]:
        """Return processes of other runs and of the agent."""
        return protected_pids(self.task.queue, self.task.home, self.task.job["run"])

    def on_signal(self, run: Supervisor, number: int) -> None:
        """End the run on SIGTERM, as at a shutdown, and on SIGINT: a cancel that could not create its file."""
        run.end_requested = run.end_requested or number in (signal.SIGTERM, signal.SIGINT)
        self.is_canceled = self.is_canceled or number == signal.SIGINT

    def on_readable(self, handles: List[int]) -> None:
        """Do nothing: there are no further descriptors."""

    def tick(self, run: Supervisor) -> None:
        """Do nothing: the queue needs no further work."""

    def log_restart(self, text: str) -> None:
        """Write a line into the log of each process."""
        attempts.mark_logs(self.task.folder, text)

    def join(self, run: Supervisor) -> None:
        """Do nothing: the run has one machine."""

    def await_nodes(self, run: Supervisor) -> Optional[Outcome]:
        """Return ``None``: the run has one machine."""
        return None

    def agree(self, run: Supervisor, outcome: Outcome) -> Outcome:
        """Return the same outcome: the run has one machine."""
        return outcome

    def on_save_error(self, error: OSError) -> None:
        """Log the error."""
        log_line(self.task.folder, "supervisor: cannot write the state: %s" % error)

    def save_final_state(self, run: Supervisor) -> None:
        """Send the final state to the guardian, then write it, with retries on a full disk."""
        run.heart.send_state(run.state)
        run.file.save_with_retry(run.state, run.heart.beat)
        resume(run.state["guardian"])


def _is_needed(run: Supervisor) -> bool:
    """Handle what has come for a supervisor that is about to start its job; return whether it is to start."""
    run.listen(0.0)
    return not run.should_end()


def open_sink_endpoint(folder: str) -> Optional[SinkEndpoint]:
    """Open the socket of a sink; log an error and return ``None`` if that fails."""
    try:
        return SinkEndpoint()
    except OSError as error:
        log_line(folder, "supervisor: no MLflow sink: %s" % error)
        return None
