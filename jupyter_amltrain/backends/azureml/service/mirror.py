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
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.agent import testing
from jupyter_amltrain.backends.azureml.service import children, history, logs, metrics
from jupyter_amltrain.backends.azureml.service.logs import FileDelta, Reader, advance
from jupyter_amltrain.backends.azureml.service.metrics import AGENT, AGENT_STATE, ENDED, FallbackMetrics, base, passing
from jupyter_amltrain.backends.azureml.service.mirror_files import MirrorFiles
from jupyter_amltrain.errors import AmlTrainError, TargetUnreachable
from jupyter_amltrain.schema.child_run import PARENT_TYPES
from jupyter_amltrain.state_dir import locked

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.service.operations import ServiceCall

log = logging.getLogger("amltrain.azure")

#: Where the figures come from, for people.
SOURCE = "source.json"
_TICKS = re.compile(r"telemetry/node-(\d+)\.jsonl")
_VALUES = re.compile(r"outputs/[A-Za-z_]\w*\.json")
_SUMMARY = re.compile(r"telemetry/(?:summary|truth)-\d+\.json")
_MINUTES = re.compile(r"telemetry/minutes-\d+\.jsonl")
#: Bytes that one call fetches at most while a job lives.
_MAX_SYNC_BYTES = 32 << 20
ALL = frozenset(("log", "metrics", "telemetry", "minutes", "summary"))

_unlisted: dict[str, tuple[float, dict[str, str]]] = {}
_guard = threading.Lock()
_turns: dict[str, threading.Lock] = {}


def sync(
    call: ServiceCall,
    *,
    workspace: str,
    name: str,
    folder: str,
    streams: Sequence[str] = (),
    ended: bool = False,
    only_log: bool = False,
) -> dict[str, Any]:
    """Bring a mirror folder up to date.

    Parameters
    ----------
    streams
        Which are wanted; empty for all.
    ended
        The job is known to have ended: read all that there is.
    only_log
        The folder is for the log alone: that of a step or trial.

    Returns
    -------
    dict
        ``grown``: streams with news; ``complete``: nothing will follow; ``source``: where telemetry and metrics
        come from, ``logs``, ``mlflow``, ``monitor`` or ``none``; ``age``: seconds since the last tick, or ``None``.
    """
    with _guard:
        turn = _turns.setdefault(folder, threading.Lock())
    path = Path(folder)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with turn, locked(path / ".lock", 60.0):
        one = _Sync(call, workspace, name, path, frozenset(streams), ended)
        return one.run_log() if only_log else one.run()


class _Sync:
    """One call, under the lock."""

    def __init__(
        self, call: ServiceCall, workspace: str, name: str, folder: Path, streams: frozenset[str], ended: bool
    ) -> None:
        self.call, self.name, self.ended = call, name, ended
        self.place = call.cloud.workspace(workspace)
        self.mirror = MirrorFiles(folder)
        self.streams = streams or ALL
        self.now = time.time()
        self.files: dict[str, str] = {}
        self._renewing = threading.Lock()
        self.attempt = 1
        self.status = ""
        self.taken = 0
        self.more = False
        self.details: dict[str, Any] = {}

    def run(self) -> dict[str, Any]:
        facts = self.mirror.facts
        if not facts.get("complete"):
            try:
                self._look()
                self.streams = ALL if self.ended else self.streams  # after the end nobody asks again
                self._log()
                self._children()
                self._agent()
                elsewhere = FallbackMetrics(self.call, self.place, self.name, self.mirror, self.status, self.ended)
                if "telemetry" in self.streams and "metrics" in self.streams:
                    elsewhere.figures(any(name.startswith(AGENT) for name in self.files))
                if self.ended and not self.more:
                    elsewhere.artifacts()
                    facts["complete"] = True
                testing.hit("azure_before_mirror_save")
            finally:
                self._tell()
                self.mirror.save()
        elif self._is_parent and not (self.mirror.folder / children.FILE).exists():
            # An earlier version has mirrored it, which kept no rows.
            self._look()
            self._children()
            self.mirror.save()
        return self._answer()

    def run_log(self) -> dict[str, Any]:
        """The log and nothing else."""
        facts = self.mirror.facts
        if not facts.get("complete"):
            try:
                self._look(agent=False)
                self._log()
                facts["complete"] = self.ended and not self.more
            finally:
                self.mirror.save()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        facts = self.mirror.facts
        return {
            "grown": sorted(self.mirror.grown),
            "complete": bool(facts.get("complete")),
            "source": facts.get("source") or "none",
            "age": self._age(),
        }

    def _look(self, agent: bool = True) -> None:
        """Which files there are, those of our agent too. A look that the watcher has just taken is good enough."""
        found = history.recent(self.place, self.name, 0.0 if self.ended else 4 * base())
        if found is None:
            if self.ended and passing(self.mirror, self.now):
                raise TargetUnreachable(f"Azure does not find the files of {self.name} now.", hint="Try again.")
            return
        self.details = found
        self.files = dict(found.get("logFiles") or {})
        self.status = str(found.get("status") or "")
        self.attempt = int(found.get("currentAttemptId") or 1)
        self.ended = self.ended or self.status in ENDED
        if agent:
            self.files.update(self._ours(self.files))

    def _ours(self, listed: Collection[str], fresh: bool = False) -> dict[str, str]:
        """Addresses of the agent's files, where the service does not list them as logs."""
        if any(name.startswith(AGENT) for name in listed) or self.status not in ("Running", "Finalizing", *ENDED):
            return {}
        facts, key = self.mirror.facts, str(self.mirror.folder)
        until, known = _unlisted.get(key, (0.0, {}))
        if fresh or self.ended or self.now >= until:
            if self.ended and not facts.get("unlisted") and (self.mirror.folder / AGENT_STATE).exists():
                return {}
            try:
                experiment = str(self.mirror.json("job.json").get("experiment") or "Default")
                known = history.contents(self.place, self.name, experiment, AGENT)
            except AmlTrainError as error:
                if self.ended and isinstance(error, TargetUnreachable) and passing(self.mirror, self.now):
                    raise
                log.info("files of %s: %s", self.name, error)
            # Addresses are secrets: they live here, and for less than their hour.
            _unlisted[key] = self.now + (300.0 if known else 10 * base()), known
            facts["unlisted"] = bool(known)
        return known

    def _address(self, name: str, spent: str) -> str:
        """The signed address of a file, other than one whose hour is over. Called by many threads at once."""
        if spent:
            with self._renewing:
                if self.files.get(name) == spent:  # else another thread has them all by now
                    found = (history.details(self.place, self.name) or {}).get("logFiles") or {}
                    self.files = {**found, **self._ours(found, True)}
        return self.files.get(name, "")

    @property
    def reader(self) -> Reader:
        return Reader(self.call, self._address)

    def _news(self, names: Sequence[str]) -> dict[str, FileDelta]:
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
            if names and not self.ended and self.taken > _MAX_SYNC_BYTES:
                self.more = True
                break

    def _children(self) -> None:
        """What became of the job's parts."""
        if "log" in self.streams and self._is_parent and self.status:
            children.take(
                self.mirror,
                self.place,
                self.name,
                parent=self.details,
                now=self.now,
                period=2 * base(),
                ended=self.ended,
            )

    @property
    def _is_parent(self) -> bool:
        return children.job_type(self.mirror) in PARENT_TYPES

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
        """What the agent left in ``./logs/amltrain``; not in the quick looks at the log between the whole ones."""
        if self.streams == {"log"}:
            return
        ours = {name[len(AGENT) :]: name for name in self.files if name.startswith(AGENT)}
        lines = [
            local
            for local in ours
            if (_TICKS.fullmatch(local) and "telemetry" in self.streams)
            or (local == metrics.JOURNAL and "metrics" in self.streams)
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
            if lines and not self.ended and self.taken > _MAX_SYNC_BYTES:
                self.more = True
                break
        for local, name in ours.items():
            if local == "state.json":
                self._whole(name, AGENT_STATE, "", 2)
            elif _SUMMARY.fullmatch(local):
                self._whole(name, local, "summary", 30)
            elif _VALUES.fullmatch(local) and self.ended:
                self._whole(name, local, "", 30)

    def _lines(self, local: str, name: str, came: FileDelta) -> bool:
        """Take whole lines; whether there were any."""
        data = metrics.whole_lines(came.data)
        if not data:
            return False
        mirror = self.mirror
        match = _TICKS.fullmatch(local)
        if came.restarted or mirror.facts.get(f"ticks-{match[1]}" if match else "journal", {}).get("by") == "service":
            mirror.facts["renumbered"] = True  # minutes point to bytes of a file that we no longer have as it is
        if match:
            metrics.take_ticks(mirror, int(match[1]), data, came.restarted)
            mirror.facts["ticked"] = self.now
        elif local == metrics.JOURNAL:
            metrics.take_journal(mirror, data, came.restarted)
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

    def _age(self) -> float | None:
        last = [facts.get("last") for key, facts in self.mirror.facts.items() if key.startswith("ticks-")]
        return max(0.0, round(time.time() - max(last), 1)) if last and all(last) else None

    def _tell(self) -> None:
        """``source.json``: where the figures come from."""
        facts = self.mirror.facts
        if not self.mirror.grown & {"telemetry", "metrics"} and "source" in facts:
            return
        ticked, told = float(facts.get("ticked") or 0), float(facts.get("mlflowed") or 0)
        other = "mlflow" if told else "monitor" if facts.get("watched") else "none"
        facts["source"] = "logs" if ticked and ticked >= told else other
        said = {
            "logs": "agent, by the job's log folder",
            "mlflow": "the service's MLflow, every 10 s",
            "monitor": "Azure Monitor, every minute, some minutes late",
            "none": "",
        }[facts["source"]]
        text = json.dumps({"schema": 1, "source": facts["source"], "words": said, "seen": round(self.now, 1)})
        self.mirror.replace(SOURCE, text.encode())
