"""The helpers of one process of a service's job: sampler, MLflow sink, forwarder, each where it is wanted."""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Any, Callable, Dict, List, Optional

from ..process_setup import log_line
from ..protocol import METRICS
from ..supervise.helpers import Helper, dismiss
from ..supervise.process import Assignment, SinkPlace, serve_sink
from ..supervise.supervisor import open_sink_place
from ..telemetry import sampler
from . import forward, job
from . import job as service_places
from .identity import Identity
from .job import Places


class ServiceHelpers:
    """Helpers of one process of a job that a service started.

    Attributes
    ----------
    grace
        Seconds until the GPUs may be called unused; ``None``: the job has none.
    can_write
        Whether there is a folder for telemetry.
    """

    def __init__(self, task: Assignment, job: Dict[str, Any], who: Identity, places: Places) -> None:
        self.task, self.job, self.who, self.places = task, job, who, places
        self.can_write = places.folder != service_places.NOWHERE
        self.grace = None if job["gpus"] == 0 else float(job["gpu_grace"])
        self.sampler, self.sink, self.forwarder = Helper("sampler"), Helper("sink"), Helper("forwarder")
        self.every = [self.sampler, self.sink, self.forwarder]
        self.place: Optional[SinkPlace] = None
        self.endpoint = self._endpoint()
        self._poll: Optional[select.poll] = None  #: watches for the first call of the sink

    def _endpoint(self) -> Optional[forward.Endpoint]:
        if not self.can_write or not (self.who.leads or self.who.leads_node) or not forward.period():
            return None
        if "MLFLOW_TRACKING_URI" in self.job["env"]:  # the user's own server
            return None
        try:
            return forward.of(os.environ)
        except Exception as error:  # a broken trust store is no reason not to train
            log_line(self.task.folder, "forwarder: %s: %s" % (type(error).__name__, error))
            return None

    def open_sink(self) -> None:
        """Let the sink listen, if the job has one."""
        if self.can_write and job.tracks(self.job):
            self.place = open_sink_place(self.task.folder)

    def first(self, poll: select.poll) -> List[Helper]:
        """Return those that the job starts with."""
        found = []
        if self.can_write and self.who.leads_node:
            found.append(self.sampler)
        if self.place is not None:
            if self.who.leads:
                found.append(self.sink)
            else:  # forked for its first call, and mostly never
                self._poll = poll
                poll.register(self.place.socket.fileno(), select.POLLIN)
        if self.endpoint is not None:
            found.append(self.forwarder)
        return found

    def is_called(self, handles: List[int]) -> bool:
        """Whether the first call of a sink is here that was not forked; from now on the sink listens itself."""
        if self._poll is None or self.place is None or self.place.socket.fileno() not in handles:
            return False
        self._poll.unregister(self.place.socket.fileno())
        self._poll = None
        return True

    def fork(self, helper: Helper, ready: Optional[int] = None, ended: bool = False) -> None:
        """Fork one; `ended`: the job is over."""
        task, place, who = self.task, self.place, self.who
        journal = METRICS.replace("-0.", "-%d." % who.rank)
        if helper is self.sink and place is not None:
            artifacts = self.places.artifacts
            self._fork(helper, lambda: serve_sink(task, place, journal, artifacts), place.socket.fileno())
        elif helper is self.forwarder and self.endpoint is not None:
            endpoint, tracked = self.endpoint, who.leads and place is not None
            what = forward.Task(
                task.folder, who.node, task.state["nodes"], os.path.join(task.folder, journal) if tracked else "",
                self.job["tracking"].get("run_id", ""), who.leads_node,
            )  # fmt: skip
            self._fork(helper, lambda: forward.run(what, endpoint, ended))
        elif helper is self.sampler:
            share = sampler.Share(who.node, "%s:%d." % (self.job["run"], who.node), self.grace)
            keep = () if ready is None else (ready,)
            self._fork(helper, lambda: sampler.run(task.folder, os.getppid(), None, ready, share), *keep)

    def finish(self, ended: bool) -> None:
        """Let the forwarder send what is left; `ended`: the job's process has an exit code."""
        if self.endpoint is not None and not self.forwarder.pid and ended:
            self.fork(self.forwarder, ended=True)  # the job was over before the forwarder was due
        dismiss(self.forwarder.pid, forward.farewell() + 1.0)

    def _fork(self, helper: Helper, body: Callable[[], int], *keep: int) -> None:
        folder, name = self.task.folder, helper.name

        def quiet() -> int:
            try:
                os.setsid()  # a signal to our process group is the job's
                # Who hangs in a driver must not hold the job's log open.
                nowhere = os.open(os.devnull, os.O_RDWR)
                for number in (0, 1) if helper is self.forwarder else (0, 1, 2):
                    os.dup2(nowhere, number)
                return body()
            except Exception as error:  # the job's log is not ours to fill
                log_line(folder, "%s: %s: %s" % (name, type(error).__name__, error))
                time.sleep(0.2)
                return 70

        # The forwarder has to hear that the job has ended, however young it is.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM] if helper is self.forwarder else [])
        helper.fork(folder, quiet, keep)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
