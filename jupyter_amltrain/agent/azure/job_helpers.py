"""Helpers of one process of a service's job: sampler, MLflow sink and forwarder, each in the processes that need it."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from typing import Any, Callable, Dict, List, Optional

from ..process_setup import log_line
from ..protocol import METRICS, read_regular
from ..supervise import provenance_file
from ..supervise.assignment import Assignment
from ..supervise.helpers import Helper, stop_helper
from ..supervise.process import SinkEndpoint, serve_sink
from ..supervise.queue_host import open_sink_endpoint
from ..telemetry import sampler
from . import forward, job
from .identity import Identity
from .job import NOWHERE, JobFolders
from .mlflow_batches import JournalReader


class ServiceHelpers:
    """Helpers of one process of a job that a service started.

    Attributes
    ----------
    grace
        Seconds until the GPUs may be reported as unused; ``None``: the job has none.
    can_write
        Whether there is a folder for telemetry.
    """

    def __init__(self, task: Assignment, job: Dict[str, Any], rank: Identity, folders: JobFolders) -> None:
        self.task, self.job, self.rank, self.folders = task, job, rank, folders
        self.can_write = folders.folder != NOWHERE
        self.grace = None if job["gpus"] == 0 else float(job["gpu_grace"])
        self.sampler, self.sink, self.forwarder = Helper("sampler"), Helper("sink"), Helper("forwarder")
        self.provenance = Helper("writer of the provenance", once=True)
        self.all_helpers = [self.sampler, self.sink, self.forwarder, self.provenance]
        self.sink_endpoint: Optional[SinkEndpoint] = None
        self.endpoint = self._endpoint()
        self._poll: Optional[select.poll] = None  #: polls for the first request to the sink

    def _endpoint(self) -> Optional[forward.Endpoint]:
        if not self.can_write or not (self.rank.leads or self.rank.leads_node) or not forward.period():
            return None
        if "MLFLOW_TRACKING_URI" in self.job["env"]:  # the user's own server
            return None
        try:
            return forward.endpoint_of(os.environ)
        except Exception as error:  # a broken trust store must not stop the training
            log_line(self.task.folder, "forwarder: %s: %s" % (type(error).__name__, error))
            return None

    def open_sink(self) -> None:
        """Open the sink's socket, if the job has a sink."""
        if self.can_write and job.tracks(self.job):
            self.sink_endpoint = open_sink_endpoint(self.task.folder)

    def initial_helpers(self, poll: select.poll) -> List[Helper]:
        """Return the helpers that start with the job."""
        helpers = []
        if self.can_write and self.rank.leads_node:
            helpers.append(self.sampler)
        if self.sink_endpoint is not None:
            if self.rank.leads:
                helpers.append(self.sink)
            else:  # forked at its first request, which most processes never send
                self._poll = poll
                poll.register(self.sink_endpoint.socket.fileno(), select.POLLIN)
        if self.endpoint is not None:
            helpers.append(self.forwarder)
        if self.can_write and self.rank.leads:
            helpers.append(self.provenance)
        return helpers

    def is_called(self, handles: List[int]) -> bool:
        """Return whether the first request to an unforked sink has arrived; from then on the sink polls itself."""
        if self._poll is None or self.sink_endpoint is None or self.sink_endpoint.socket.fileno() not in handles:
            return False
        self._poll.unregister(self.sink_endpoint.socket.fileno())
        self._poll = None
        return True

    def fork(self, helper: Helper, ready: Optional[int] = None, ended: bool = False) -> None:
        """Fork a helper; `ended`: the job has ended."""
        task, place, rank = self.task, self.sink_endpoint, self.rank
        journal = METRICS.replace("-0.", "-%d." % rank.rank)
        if helper is self.sink and place is not None:
            artifacts = self.folders.artifacts
            self._fork(helper, lambda: serve_sink(task, place, journal, artifacts), place.socket.fileno())
        elif helper is self.forwarder and self.endpoint is not None:
            endpoint, tracked = self.endpoint, rank.leads and place is not None
            forward_task = forward.Task(
                task.folder, rank.node, task.state["nodes"], os.path.join(task.folder, journal) if tracked else "",
                self.job["tracking"].get("run_id", ""), rank.leads_node,
            )  # fmt: skip
            self._fork(helper, lambda: forward.run(forward_task, endpoint, ended))
        elif helper is self.provenance:
            self._fork(helper, lambda: provenance_file.serve(task.folder, task.job, job.hook_folder(task.job["run"])))
        elif helper is self.sampler:
            share = sampler.Share(rank.node, "%s:%d." % (self.job["run"], rank.node), self.grace)
            keep = () if ready is None else (ready,)
            self._fork(helper, lambda: sampler.run(task.folder, os.getppid(), None, ready, share), *keep)

    def finish(self, ended: bool) -> None:
        """Let the forwarder send the remaining data; `ended`: the job's process has an exit code."""
        if self.endpoint is not None and not self.forwarder.pid and ended:
            self.fork(self.forwarder, ended=True)  # the job was over before the forwarder was due
        stop_helper(self.forwarder.pid, forward.last_timeout_s() + 1.0)

    def log_output(self, folder: str) -> None:
        """Log the metric that a sweep compares if it is a value of ``--out`` that the script has not logged.

        Parameters
        ----------
        folder
            Folder with the values.
        """
        name = self.job["goal"]
        if not name or self.sink_endpoint is None or not self.rank.leads:
            return
        path = os.path.join(self.task.folder, METRICS)
        run_id = self.job["tracking"].get("run_id", "")
        try:
            journal = JournalReader(path, run_id)
            offset = -1
            while offset != journal.offset:
                offset = journal.offset
                if any(item.kind == "metrics" and item.body["key"] == name for item in journal.read()):
                    return
            value = json.loads(read_regular(os.path.join(folder, name + ".json"), 1 << 20).decode())
            value = float(value["value"] if isinstance(value, dict) else value)
            moment = int(time.time() * 1000)
            metrics = [{"key": name, "value": value, "timestamp": moment, "step": 0}]
            record = {"t": moment, "op": "runs/log-batch", "b": {"run_id": run_id, "metrics": metrics}}
            with open(path, "ab") as file:
                file.write(json.dumps(record).encode() + b"\n")
        except (OSError, ValueError, TypeError, KeyError):  # there is no such value, or it is no number
            return

    def _fork(self, helper: Helper, body: Callable[[], int], *keep: int) -> None:
        folder, name = self.task.folder, helper.name

        def detached() -> int:
            try:
                os.setsid()  # a signal to this process group is meant for the job
                # A helper that hangs in a driver must not keep the job's log open.
                devnull = os.open(os.devnull, os.O_RDWR)
                for number in (0, 1) if helper is self.forwarder else (0, 1, 2):
                    os.dup2(devnull, number)
                return body()
            except Exception as error:  # helpers do not write to the job's log
                log_line(folder, "%s: %s: %s" % (name, type(error).__name__, error))
                time.sleep(0.2)
                return 70

        # The forwarder must receive the end of the job, even right after its fork.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM] if helper is self.forwarder else [])
        helper.fork(folder, detached, keep)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
