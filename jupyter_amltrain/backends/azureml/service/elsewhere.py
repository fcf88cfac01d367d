"""What the agent's files do not tell of a job, from where else the service keeps it: MLflow, Azure Monitor, storage."""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from typing import TYPE_CHECKING

from jupyter_amltrain.backends.azureml.mapping import tracking_id
from jupyter_amltrain.backends.azureml.service import artifacts, metrics, records
from jupyter_amltrain.backends.azureml.service.metrics import Fetched, Points, take
from jupyter_amltrain.backends.azureml.service.mirror_files import MirrorFiles
from jupyter_amltrain.backends.azureml.service.operations import setting
from jupyter_amltrain.errors import AmlTrainError, TargetUnreachable

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.service.cloud import Workspace
    from jupyter_amltrain.backends.azureml.service.operations import ServiceCall

log = logging.getLogger("amltrain.azure")

#: Where the agent writes in a job.
AGENT = "logs/amltrain/"
#: The agent's ``state.json``; ``state.json`` itself is what the service says, in our words.
AGENT_STATE = "agent.json"
#: Where the agent lets MLflow put what a script logs as artifacts.
ARTIFACTS = "outputs/"
ENDED = ("Completed", "Failed", "Canceled")
#: What does not come at a run's end is tried again for so long (seconds); then the end is told without it.
_TRIED = 60.0
#: Seconds that the last figures of a run that is over are waited for.
_LAST = 20.0

_beside = ThreadPoolExecutor(4, "amltrain-azure-mlflow")
_asked: dict[str, Future[Fetched]] = {}


def base() -> float:
    """Seconds between looks at a job that somebody looks at."""
    return setting("POLL", 1.0)


def passing(mirror: MirrorFiles, now: float) -> bool:
    """Whether what fails at a run's end is worth another try: nobody looks any more when all is said to be here."""
    return now - float(mirror.facts.setdefault("last_tried", round(now, 1))) < _TRIED


class Elsewhere:
    """For one sync, under its lock.

    Parameters
    ----------
    status
        The job's, in the service's words.
    ended
        Read all that there is.
    """

    def __init__(
        self, call: ServiceCall, place: Workspace, name: str, mirror: MirrorFiles, status: str, ended: bool
    ) -> None:
        self._call, self._place, self._name, self._mirror = call, place, name, mirror
        self._status, self._ended, self._now = status, ended, time.time()

    def figures(self, agent: bool) -> None:
        """Telemetry and metrics; `agent`: the job has files of our agent."""
        self._service()
        if not agent:
            self._machines()

    def _service(self) -> None:
        """The service's MLflow, where the agent's files do not grow. It is asked beside, never waited for."""
        facts = self._mirror.facts
        key = str(self._mirror.folder)
        under_way = _asked.get(key)
        if under_way is not None and (under_way.done() or self._ended):
            _asked.pop(key, None)
            self._told(under_way)
        elif under_way is not None:
            return
        if self._status not in ("Running", "Finalizing", *ENDED):
            return
        now, pause = self._now, base()
        if self._status == "Running":
            facts.setdefault("running", now)
        since = float(facts.get("running") or now)
        grows = now - max(float(facts.get("ticked") or 0), since) < 20 * pause
        # A journal that came home has all that the script logged, and an agent that came home has no other.
        own = not self._has_journal()
        system = not facts.get("ticked")
        if self._ended:
            agent = (self._mirror.folder / AGENT_STATE).exists()
            system, own = system and not agent, own and not agent
        else:
            system, own = not grows, own and not grows
            if not (system or own) or now < float(facts.get("mlflow_due") or 0):
                return
        facts["mlflow_due"] = round(now + 10 * pause, 1)
        points, known = Points(self._place, self._name), dict(facts.get("mlflow") or {})
        asked = _beside.submit(lambda: points.fetch(known, system=system, own=own))
        if self._ended and (system or own):
            self._told(asked)
        elif not self._ended:
            _asked[key] = asked

    def _has_journal(self) -> bool:
        return bool(self._mirror.remote.get(AGENT + records.JOURNAL, {}).get("offset", 0))

    def _told(self, asked: Future[Fetched]) -> None:
        facts, grown = self._mirror.facts, len(self._mirror.grown)
        job = self._mirror.json("job.json")
        init = {
            "id": str((job.get("tracking") or {}).get("run_id") or tracking_id(self._name)),
            "exp_id": "0",
            "exp_name": str(job.get("experiment") or "default"),
            "name": str(job.get("name") or self._name),
        }
        try:
            came = asked.result(_LAST)
            # The journal may have come home since the question: it has these points too.
            take(self._mirror, came._replace(own=came.own and not self._has_journal()), init)
        except (AmlTrainError, NotYet) as error:
            if self._ended and isinstance(error, TargetUnreachable) and passing(self._mirror, self._now):
                raise
            log.info("metrics of %s: %s", self._name, error)
            facts["mlflow_due"] = round(self._now + 30 * base(), 1)
        if len(self._mirror.grown) > grown:
            facts["mlflowed"] = self._now

    def _machines(self) -> None:
        """Azure Monitor's minutes, for a job without an agent that logs no system metrics either."""
        facts, now = self._mirror.facts, self._now
        seen = (facts.get("mlflow") or {}).get("seen") or {}
        if any(key.startswith("system/") for key in seen):
            return
        since = float(facts.get("running") or now)
        if not self._ended and (now - since < 60 * base() or now < float(facts.get("monitor_due") or 0)):
            return
        if self._ended and "running" not in facts:
            return  # a job that ended before anybody looked: its hour may be over
        facts["monitor_due"] = round(now + 60 * base(), 1)
        try:
            found = metrics.monitor(
                self._call,
                workspace=self._place.name,
                run=self._name,
                since=float(facts.get("monitored") or since - 120),
            )
        except AmlTrainError as error:
            log.info("Azure Monitor of %s: %s", self._name, error)
            return
        facts["monitored"] = found["until"]
        for number, node in found["nodes"].items():
            records.add_ticks(self._mirror, int(number), node["header"], node["rows"])
        if found["nodes"]:
            facts["watched"] = now

    def artifacts(self) -> None:
        """What the script logged as artifacts goes into the project's MLflow store, unless it is much."""
        if not (self._mirror.folder / AGENT_STATE).exists() or "artifacts" in self._mirror.facts:
            return
        limit = setting("ARTIFACTS_MB", 64) * 1e6
        try:
            there = list(artifacts.listing(self._call, self._place, self._name, [ARTIFACTS]))
            whole = sum(file.size for file in there)
            if whole <= limit:
                mine = [file._replace(path=file.path.removeprefix(ARTIFACTS)) for file in there]
                artifacts.fetched(self._call, mine, str(self._mirror.folder / "artifacts"))
        except AmlTrainError as error:  # storage that does not let us in, say
            if isinstance(error, TargetUnreachable) and passing(self._mirror, self._now):
                raise
            log.info("artifacts of %s: %s", self._name, error)
            return
        self._mirror.facts["artifacts"] = whole
        if whole > limit:
            log.info("artifacts of %s stay in Azure: %d bytes", self._name, whole)
