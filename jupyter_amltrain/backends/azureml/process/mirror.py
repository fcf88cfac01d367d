"""A job's files on this machine, in the form of our run folder, so that the kernel reads from the disk.

Whoever asks brings it up to date: only what is new is fetched. Several kernels may ask at once; one lock file
for each folder makes them take turns. Telemetry, metrics and values come from what the agent writes to
``./logs/amltrain`` in the job, and where that does not grow from the service's MLflow.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.agent import failpoints
from jupyter_amltrain.backends.azureml.mapping import tracking_id
from jupyter_amltrain.backends.azureml.process import artifacts, children, history, logs, records, rest
from jupyter_amltrain.backends.azureml.process.metrics import Fetched, Points, take
from jupyter_amltrain.backends.azureml.process.mirror_files import MirrorFiles
from jupyter_amltrain.backends.azureml.process.ranges import News, Reader, advance
from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.state import locked

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.process.serve import Call

log = logging.getLogger("amltrain.azure")

AGENT = "logs/amltrain/"
#: Where the agent lets MLflow put what a script logs as artifacts.
ARTIFACTS = "outputs/"
#: The agent's ``state.json``; ``state.json`` itself is what the service says, in our words.
AGENT_STATE = "agent.json"
SOURCE = "source.json"
_TICKS = re.compile(r"telemetry/node-(\d+)\.jsonl")
_VALUES = re.compile(r"outputs/[A-Za-z_]\w*\.json")
_SUMMARY = re.compile(r"telemetry/(?:summary|truth)-\d+\.json")
_MINUTES = re.compile(r"telemetry/minutes-\d+\.jsonl")
#: Bytes that one call fetches at most while a job lives.
_ONCE = 32 << 20
_ENDED = ("Completed", "Failed", "Canceled")

#: Seconds that the last figures of a run that is over are waited for.
_LAST = 20.0

_beside = ThreadPoolExecutor(4, "amltrain-azure-mlflow")
_asked: dict[str, Future[Fetched]] = {}
_unlisted: dict[str, tuple[float, dict[str, str]]] = {}
_guard = threading.Lock()
_turns: dict[str, threading.Lock] = {}


def base() -> float:
    """Seconds between looks at a job that somebody looks at."""
    return rest.setting("POLL", 1.0)


def sync(
    call: Call, *, workspace: str, name: str, folder: str, streams: Sequence[str] = (), ended: bool = False
) -> dict[str, Any]:
    """Bring a mirror folder up to date.

    Parameters
    ----------
    streams
        Which are wanted; empty for all.
    ended
        The job is known to have ended: read all that there is.

    Returns
    -------
    dict
        ``grown``: streams with news; ``complete``: nothing will follow; ``source``: where telemetry and metrics
        come from, ``logs``, ``mlflow`` or ``none``; ``age``: seconds since the last tick, or ``None``.
    """
    with _guard:
        turn = _turns.setdefault(folder, threading.Lock())
    path = Path(folder)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with turn, locked(path / ".lock", 60.0):
        return _Sync(call, workspace, name, path, frozenset(streams), ended).run()


class _Sync:
    """One call, under the lock."""

    def __init__(
        self, call: Call, workspace: str, name: str, folder: Path, streams: frozenset[str], ended: bool
    ) -> None:
        self.call, self.name, self.ended = call, name, ended
        self.place = call.cloud.workspace(workspace)
        self.mirror = MirrorFiles(folder)
        self.streams = streams or frozenset(("log", "metrics", "telemetry", "minutes", "summary"))
        self.now = time.time()
        self.files: dict[str, str] = {}
        self.attempt = 1
        self.status = ""
        self.taken = 0
        self.more = False

    def run(self) -> dict[str, Any]:
        facts = self.mirror.facts
        if not facts.get("complete"):
            try:
                self._look()
                self._log()
                self._children()
                self._agent()
                self._service()
                if self.ended and not self.more:
                    self._artifacts()
                    facts["complete"] = True
                failpoints.hit("azure_before_mirror_save")
            finally:
                self._tell()
                self.mirror.save()
        return {
            "grown": sorted(self.mirror.grown),
            "complete": bool(facts.get("complete")),
            "source": facts.get("source") or "none",
            "age": self._age(),
        }

    def _look(self) -> None:
        """Which files there are. A look that the watcher has just taken is good enough."""
        found = history.recent(self.place, self.name, 0.0 if self.ended else 4 * base())
        if found is None:
            return
        self.files = dict(found.get("logFiles") or {})
        self.status = str(found.get("status") or "")
        self.attempt = int(found.get("currentAttemptId") or 1)
        self.ended = self.ended or self.status in _ENDED
        self._ours()

    def _ours(self, fresh: bool = False) -> None:
        """Addresses of the agent's files, where the service does not list them as logs."""
        if any(name.startswith(AGENT) for name in self.files) or self.status not in ("Running", "Finalizing", *_ENDED):
            return
        facts, key = self.mirror.facts, str(self.mirror.folder)
        until, known = _unlisted.get(key, (0.0, {}))
        if fresh or self.ended or self.now >= until:
            if self.ended and not facts.get("unlisted") and (self.mirror.folder / AGENT_STATE).exists():
                return
            try:
                experiment = str(self.mirror.json("job.json").get("experiment") or "Default")
                known = history.contents(self.place, self.name, experiment, AGENT)
            except AmlTrainError as error:
                log.info("files of %s: %s", self.name, error)
            # Addresses are secrets: they live here, and for less than their hour.
            _unlisted[key] = self.now + (300.0 if known else 10 * base()), known
            facts["unlisted"] = bool(known)
        self.files.update(known)

    def _address(self, name: str, fresh: bool) -> str:
        if fresh:
            self.files = dict((history.details(self.place, self.name) or {}).get("logFiles") or {})
            self._ours(True)
        return self.files.get(name, "")

    @property
    def reader(self) -> Reader:
        return Reader(self.call, self._address)

    def _news(self, names: Sequence[str]) -> dict[str, News]:
        """What is new in some files, asked for at the same time."""
        known = [dict(self.mirror.of(name)) for name in names]
        reader, again = self.reader, self.attempt > 1
        found = history.all_of(lambda pair: reader.new(*pair, again), list(zip(names, known, strict=True)))
        self.taken += sum(len(news.data) for news in found)
        return dict(zip(names, found, strict=True))

    def _log(self) -> None:
        if "log" not in self.streams:
            return
        for attempt, kept in logs.retried(self.files).items():
            if int(self.mirror.facts.get("attempt") or 1) <= attempt:
                self._over(attempt, kept)
        names = logs.wanted(self.files, children.job_type(self.mirror))
        while names:
            self.call.check()
            news = self._news(names)
            left = [name for name in names if news[name].more]
            running = self.ended or self.status in ("Running", "Finalizing")
            logs.take(self.mirror, news, attempt=self.attempt, ended=self.ended, running=running)
            names = left
            if names and not self.ended and self.taken > _ONCE:
                self.more = True
                break

    def _children(self) -> None:
        """What became of the job's parts."""
        if "log" in self.streams and children.job_type(self.mirror) in children.PARENTS and self.status:
            children.take(self.mirror, self.place, self.name, now=self.now, period=2 * base(), ended=self.ended)

    def _over(self, attempt: int, kept: dict[str, str]) -> None:
        """The rest of what an attempt that is over had written, from where the service keeps it."""
        names = logs.wanted(kept)
        while names:
            self.call.check()
            news = {name: self.reader.new(kept[name], dict(self.mirror.of(name))) for name in names}
            logs.take(self.mirror, news, attempt=attempt, ended=True)
            names = [name for name in names if news[name].more]
        logs.over(self.mirror, attempt)

    def _agent(self) -> None:
        """What the agent left in ``./logs/amltrain``."""
        ours = {name[len(AGENT) :]: name for name in self.files if name.startswith(AGENT)}
        lines = [
            local
            for local in ours
            if (_TICKS.fullmatch(local) and "telemetry" in self.streams)
            or (local == records.JOURNAL and "metrics" in self.streams)
            or (_MINUTES.fullmatch(local) and not self.mirror.facts.get("renumbered"))
        ]
        while lines:
            self.call.check()
            news = self._news([ours[local] for local in lines])
            left = []
            for local in lines:
                came = news[ours[local]]
                if came.data and self._lines(local, ours[local], came) and came.more:
                    left.append(local)
            lines = left
            if lines and not self.ended and self.taken > _ONCE:
                self.more = True
                break
        for local, name in ours.items():
            if local == "state.json":
                self._whole(name, AGENT_STATE, "", 2)
            elif _SUMMARY.fullmatch(local):
                self._whole(name, local, "summary", 30)
            elif _VALUES.fullmatch(local) and self.ended:
                self._whole(name, local, "", 30)

    def _lines(self, local: str, name: str, came: News) -> bool:
        """Take whole lines; whether there were any."""
        data = records.whole_lines(came.data)
        if not data:
            return False
        mirror = self.mirror
        match = _TICKS.fullmatch(local)
        if came.restarted or mirror.facts.get(f"ticks-{match[1]}" if match else "journal", {}).get("by") == "service":
            mirror.facts["renumbered"] = True  # minutes point to bytes of a file that we no longer have as it is
        if match:
            records.take_ticks(mirror, int(match[1]), data, came.restarted)
            mirror.facts["ticked"] = self.now
        elif local == records.JOURNAL:
            records.take_journal(mirror, data, came.restarted)
        elif not came.restarted:
            mirror.append(local, data, "minutes")
        advance(mirror.of(name), data, came.restarted, came.made)
        return True

    def _whole(self, name: str, local: str, stream: str, times: float) -> None:
        known = self.mirror.of(name)
        if not self.ended and self.now < float(known.get("due") or 0):
            return
        known["due"] = round(self.now + times * base(), 1)
        data = self.reader.whole(name, known)
        if data:
            self.mirror.replace(local, data, stream)

    def _service(self) -> None:
        """The service's MLflow, where the agent's files do not grow. It is asked beside, never waited for."""
        facts = self.mirror.facts
        key = str(self.mirror.folder)
        under_way = _asked.get(key)
        if under_way is not None and (under_way.done() or self.ended):
            _asked.pop(key, None)
            self._told(under_way)
        elif under_way is not None:
            return
        if self.status not in ("Running", "Finalizing", *_ENDED):
            return
        now, pause = self.now, base()
        since = float(facts.setdefault("running", now))
        grows = now - max(float(facts.get("ticked") or 0), since) < 20 * pause
        # A journal that came home has all that the script logged, and an agent that came home has no other.
        own = not self.mirror.remote.get(AGENT + records.JOURNAL, {}).get("offset", 0)
        system = not facts.get("ticked")
        if self.ended:
            agent = (self.mirror.folder / AGENT_STATE).exists()
            system, own = system and not agent, own and not agent
        else:
            system, own = not grows, own and not grows
            if not (system or own) or now < float(facts.get("mlflow_due") or 0):
                return
        facts["mlflow_due"] = round(now + 10 * pause, 1)
        points, known = Points(self.place, self.name), dict(facts.get("mlflow") or {})
        asked = _beside.submit(lambda: points.fetch(known, system=system, own=own))
        if self.ended and (system or own):
            self._told(asked)
        elif not self.ended:
            _asked[key] = asked

    def _told(self, asked: Future[Fetched]) -> None:
        facts, grown = self.mirror.facts, len(self.mirror.grown)
        job = self.mirror.json("job.json")
        init = {
            "id": str((job.get("tracking") or {}).get("run_id") or tracking_id(self.name)),
            "exp_id": "0",
            "exp_name": str(job.get("experiment") or "default"),
            "name": str(job.get("name") or self.name),
        }
        try:
            take(self.mirror, asked.result(_LAST), init)
        except (AmlTrainError, NotYet) as error:
            log.info("metrics of %s: %s", self.name, error)
            facts["mlflow_due"] = round(self.now + 30 * base(), 1)
        if len(self.mirror.grown) > grown:
            facts["mlflowed"] = self.now

    def _artifacts(self) -> None:
        """What the script logged as artifacts goes into the project's MLflow store, unless it is much."""
        if not (self.mirror.folder / AGENT_STATE).exists() or "artifacts" in self.mirror.facts:
            return
        limit = rest.setting("ARTIFACTS_MB", 64) * 1e6
        try:
            there = list(artifacts.listing(self.call, self.place, self.name, [ARTIFACTS]))
            whole = sum(size for _, size, _ in there)
            if whole <= limit:
                mine = [(path.removeprefix(ARTIFACTS), size, url) for path, size, url in there]
                artifacts.fetched(self.call, mine, str(self.mirror.folder / "artifacts"))
        except AmlTrainError as error:  # storage that is reached by identity only, say
            log.info("artifacts of %s: %s", self.name, error)
            return
        self.mirror.facts["artifacts"] = whole
        if whole > limit:
            log.info("artifacts of %s stay in Azure: %d bytes", self.name, whole)

    def _age(self) -> float | None:
        last = [facts.get("last") for key, facts in self.mirror.facts.items() if key.startswith("ticks-")]
        return max(0.0, round(time.time() - max(last), 1)) if last and all(last) else None

    def _tell(self) -> None:
        """``source.json``: where the figures come from."""
        facts = self.mirror.facts
        if not self.mirror.grown & {"telemetry", "metrics"} and "source" in facts:
            return
        ticked, told = float(facts.get("ticked") or 0), float(facts.get("mlflowed") or 0)
        facts["source"] = "logs" if ticked and ticked >= told else "mlflow" if told else "none"
        said = {
            "logs": "agent, by the job's log folder",
            "mlflow": "the service's MLflow, every 10 s",
            "none": "",
        }[facts["source"]]
        text = json.dumps({"schema": 1, "source": facts["source"], "words": said, "seen": round(self.now, 1)})
        self.mirror.replace(SOURCE, text.encode())
