"""The helpers of one process of a service's job: sampler, MLflow sink, forwarder, each where it is wanted."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from typing import Any, Callable, Dict, List, Optional

from . import clock, sampler, service_endpoint, service_forward, service_job, service_places
from .forked import note
from .gate import READY_PATIENCE, Gate
from .guardian import Assignment
from .helper import Helper
from .protocol import METRICS, TELEMETRY
from .rank import serve_sink
from .service_identity import Identity
from .service_places import Places
from .supervisor import Supervisor


class Crew(Supervisor):
    """A supervisor without a guardian whose helpers depend on who it is.

    Attributes
    ----------
    grace
        Seconds until the GPUs may be called unused; ``None``: the job has none.
    """

    def __init__(self, task: Assignment, job: Dict[str, Any], who: Identity, places: Places, wakeup: int) -> None:
        super().__init__(task, None, wakeup)
        self.job, self.who, self.places = job, who, places
        self.parent = os.getpid()
        self.can_write = places.folder != service_places.NOWHERE
        self.forwarder = Helper("forwarder")
        self.helpers.append(self.forwarder)
        self.endpoint = self._endpoint()
        self.gate = Gate(places.folder, [], job, who.node)
        self.grace = None if job["gpus"] == 0 else float(job["gpu_grace"])
        self._listening = False

    def _endpoint(self) -> Optional[service_endpoint.Endpoint]:
        if not self.can_write or not (self.who.leads or self.who.leads_node) or not service_forward.period():
            return None
        if "MLFLOW_TRACKING_URI" in self.job["env"]:  # the user's own server
            return None
        try:
            return service_endpoint.of(os.environ)
        except Exception as error:  # a broken trust store is no reason not to train
            note(self.task.folder, "forwarder: %s: %s" % (type(error).__name__, error))
            return None

    def _owns_gpus(self) -> bool:
        return self.can_write

    def _look_before(self) -> None:
        """The first process of a node lets its sampler look at the GPUs; the others wait for its header."""
        if self.who.leads_node:
            super()._look_before()
            return
        until = clock.mono() + READY_PATIENCE
        while not self._header() and clock.mono() < until and not self.told_to_end:
            self._listen(0.02)

    def _wanted(self) -> List[Helper]:
        found = []
        if self.can_write and self.who.leads_node:
            found.append(self.sampler)
        if self.place is not None:
            if self.who.leads:
                found.append(self.sink)
            else:
                self._listen_for_mlflow(True)
        if self.endpoint is not None:
            found.append(self.forwarder)
        return found

    def _open_sink(self) -> None:
        if self.can_write and service_job.tracks(self.job):
            super()._open_sink()

    def _fork(self, helper: Helper, ready: Optional[int] = None) -> None:
        task, place, who = self.task, self.place, self.who
        journal = METRICS.replace("-0.", "-%d." % who.rank)
        if helper is self.sink and place is not None:
            artifacts = self.places.artifacts
            self._helper(helper, lambda: serve_sink(task, place, journal, artifacts), place.socket.fileno())
        elif helper is self.forwarder and self.endpoint is not None:
            endpoint, tracked = self.endpoint, who.leads and place is not None
            what = service_forward.Task(
                task.folder, who.node, self.state["nodes"], os.path.join(task.folder, journal) if tracked else "",
                self.job["tracking"].get("run_id", ""), who.leads_node,
            )  # fmt: skip
            ended = self.status is not None
            self._helper(helper, lambda: service_forward.run(what, endpoint, ended))
        elif helper is self.sampler:
            share = sampler.Share(who.node, "%s:%d." % (self.job["run"], who.node), self.grace)
            keep = () if ready is None else (ready,)
            self._helper(helper, lambda: sampler.run(task.folder, os.getppid(), None, ready, share), *keep)

    def _helper(self, helper: Helper, body: Callable[[], int], *keep: int) -> None:
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
                note(folder, "%s: %s: %s" % (name, type(error).__name__, error))
                time.sleep(0.2)
                return 70

        # The forwarder has to hear that the job has ended, however young it is.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM] if helper is self.forwarder else [])
        helper.fork(folder, quiet, keep)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _listen_for_mlflow(self, on: bool) -> None:
        """The sink of a process that is not the first is forked for its first call, and mostly never."""
        if self.place is not None and on != self._listening:
            self._listening = on
            handle = self.place.socket.fileno()
            self.poll.register(handle, select.POLLIN) if on else self.poll.unregister(handle)

    def _header(self) -> Dict[str, Any]:
        """The sampler's header, once it has looked at the GPUs."""
        try:
            with open(os.path.join(self.task.folder, TELEMETRY % self.who.node), "rb") as file:
                header = json.loads(file.readline().decode())
        except (OSError, ValueError):
            return {}
        return header if isinstance(header, dict) else {}

    def _learn_devices(self) -> None:
        """The header says which GPUs are here."""
        header = self._header()
        devices = [str(gpu["uuid"]) for gpu in header.get("gpus") or ()]
        if devices:
            self.gate = Gate(self.task.folder, devices, self.job, self.who.node)
            self.state["devices"] = devices
            self._save()
        elif header:
            self.grace = None
