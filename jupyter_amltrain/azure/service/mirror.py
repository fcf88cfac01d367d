"""Mirror of a job: its files on this machine, in the form of a run folder, which the kernel reads from disk.

Each sync fetches only new data. Several kernels may sync at the same time; a lock file per folder serializes them.
Telemetry, metrics and values come from the files that the agent writes to ``./logs/amltrain`` in the job, or from the
service's MLflow when those files do not grow.
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
from jupyter_amltrain.agent.protocol import PROVENANCE
from jupyter_amltrain.azure.service import children, history, logs, metrics
from jupyter_amltrain.azure.service.logs import FileDelta, Reader, advance_position
from jupyter_amltrain.azure.service.metrics import (
    AGENT,
    AGENT_STATE,
    ENDED,
    FallbackMetrics,
    poll_interval_s,
    should_retry,
)
from jupyter_amltrain.azure.service.mirror_files import MirrorFiles
from jupyter_amltrain.errors import AmlTrainError, TargetUnreachable
from jupyter_amltrain.schema.child_run import PARENT_TYPES
from jupyter_amltrain.state_dir import locked

if TYPE_CHECKING:
    from jupyter_amltrain.azure.service.operations import ServiceCall

log = logging.getLogger("amltrain.azure")

#: What MLflow's client logs when a script logs a model through the service, whose MLflow has no logged models
#: (azure-sdk-for-python#44896). Autologging stops there, before it sends its metrics.
MODELS_REFUSED = b"mlflow/logged-models failed with error code 404"
#: Source of telemetry and metrics, for display.
SOURCE = "source.json"
_TICKS = re.compile(r"telemetry/node-(\d+)\.jsonl")
_VALUES = re.compile(r"outputs/[A-Za-z_]\w*\.json")
_SUMMARY = re.compile(r"telemetry/(?:summary|truth)-\d+\.json")
_PICTURES = re.compile(r"pictures/\w[\w.-]{0,99}\.png")
_DISPLAYS = re.compile(r"displays/(\d{1,9})\.json")
_FAILURE = re.compile(r"failure/rank-\d{1,5}\.json")
_LINES = re.compile(r"lines/\d{1,6}-\d{1,10}\.jsonl")
_MINUTES = re.compile(r"telemetry/minutes-\d+\.jsonl")
#: Maximum figures of a job, newest displays and processes with lines, and maximum bytes of a file that is replaced as
#: a whole.
_MAX_PICTURES, _MAX_DISPLAYS, _MAX_LINES, _MAX_WHOLE_BYTES = 100, 12, 64, 64 << 20
#: Maximum bytes per sync of a running job.
_MAX_SYNC_BYTES = 32 << 20
ALL = frozenset(("log", "metrics", "telemetry", "minutes", "summary"))

_agent_url_cache: dict[str, tuple[float, dict[str, str]]] = {}
_locks_lock = threading.Lock()
_folder_locks: dict[str, threading.Lock] = {}


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
    """Update a mirror folder.

    Parameters
    ----------
    streams
        Streams to update; empty for all.
    ended
        The job is known to have ended; read everything.
    only_log
        Update only the log; for a step or trial.

    Returns
    -------
    dict
        ``grown``: streams with new data; ``complete``: nothing will follow; ``source``: source of telemetry and
        metrics, ``logs``, ``mlflow``, ``monitor`` or ``none``; ``age``: seconds since the last tick, or ``None``.
    """
    with _locks_lock:
        lock = _folder_locks.setdefault(folder, threading.Lock())
    path = Path(folder)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with lock, locked(path / ".lock", 60.0):
        task = _Sync(call, workspace, name, path, frozenset(streams), ended)
        return task.run_log() if only_log else task.run()


class _Sync:
    """One sync, under the lock."""

    def __init__(
        self, call: ServiceCall, workspace: str, name: str, folder: Path, streams: frozenset[str], ended: bool
    ) -> None:
        self.call, self.name, self.ended = call, name, ended
        self.ws = call.cloud.workspace(workspace)
        self.mirror = MirrorFiles(folder)
        self.streams = streams or ALL
        self.now = time.time()
        self.files: dict[str, str] = {}
        self._renew_lock = threading.Lock()
        self.attempt = 1
        self.status = ""
        self.read_bytes = 0
        self.more = False
        self.details: dict[str, Any] = {}

    def run(self) -> dict[str, Any]:
        facts = self.mirror.facts
        if not facts.get("complete"):
            try:
                self._list_files()
                self.streams = ALL if self.ended else self.streams  # the last sync reads everything
                self._update_log()
                self._update_children()
                self._update_agent_files()
                fallback = FallbackMetrics(self.call, self.ws, self.name, self.mirror, self.status, self.ended)
                if "telemetry" in self.streams and "metrics" in self.streams:
                    fallback.figures(any(name.startswith(AGENT) for name in self.files))
                if self.ended and not self.more:
                    fallback.artifacts()
                    facts["models_refused"] = logs.contains(self.mirror, MODELS_REFUSED)
                    facts["complete"] = True
                testing.hit("azure_before_mirror_save")
            finally:
                self._write_source()
                self.mirror.save()
        elif self._is_parent and not (self.mirror.folder / children.FILE).exists():
            # Mirrored by an earlier version, which stored no rows.
            self._list_files()
            self._update_children()
            self.mirror.save()
        return self._result()

    def run_log(self) -> dict[str, Any]:
        """Update only the log."""
        facts = self.mirror.facts
        if not facts.get("complete"):
            try:
                self._list_files(agent=False)
                self._update_log()
                facts["complete"] = self.ended and not self.more
            finally:
                self.mirror.save()
        return self._result()

    def _result(self) -> dict[str, Any]:
        facts = self.mirror.facts
        return {
            "grown": sorted(self.mirror.grown),
            "complete": bool(facts.get("complete")),
            "source": facts.get("source") or "none",
            "age": self._tick_age(),
        }

    def _list_files(self, agent: bool = True) -> None:
        """List the files, including the agent's. A recent response that the watcher requested is reused."""
        details = history.recent_details(self.ws, self.name, 0.0 if self.ended else 4 * poll_interval_s())
        if details is None:
            if self.ended and should_retry(self.mirror, self.now):
                raise TargetUnreachable(f"Azure cannot find the files of {self.name} at the moment.", hint="Try again.")
            return
        self.details = details
        self.files = dict(details.get("logFiles") or {})
        self.status = str(details.get("status") or "")
        self.attempt = int(details.get("currentAttemptId") or 1)
        self.ended = self.ended or self.status in ENDED
        if agent:
            self.files.update(self._agent_urls(self.files))

    def _agent_urls(self, listed: Collection[str], fresh: bool = False) -> dict[str, str]:
        """Return URLs of the agent's files if the service does not list them as logs."""
        if any(name.startswith(AGENT) for name in listed) or self.status not in ("Running", "Finalizing", *ENDED):
            return {}
        facts, key = self.mirror.facts, str(self.mirror.folder)
        expires, urls = _agent_url_cache.get(key, (0.0, {}))
        if fresh or self.ended or self.now >= expires:
            if self.ended and not facts.get("unlisted") and (self.mirror.folder / AGENT_STATE).exists():
                return {}
            try:
                experiment = str(self.mirror.json("job.json").get("experiment") or "Default")
                urls = history.signed_urls(self.ws, self.name, experiment, AGENT)
            except AmlTrainError as error:
                if self.ended and isinstance(error, TargetUnreachable) and should_retry(self.mirror, self.now):
                    raise
                log.info("files of %s: %s", self.name, error)
            # URLs are secrets: kept in memory only, for less than their hour.
            _agent_url_cache[key] = self.now + (300.0 if urls else 10 * poll_interval_s()), urls
            facts["unlisted"] = bool(urls)
        return urls

    def _address(self, name: str, expired: str) -> str:
        """Return the signed URL of a file; `expired` is a URL to replace. Called from several threads."""
        if expired:
            with self._renew_lock:
                if self.files.get(name) == expired:  # otherwise another thread has already renewed them
                    urls = (history.details(self.ws, self.name) or {}).get("logFiles") or {}
                    self.files = {**urls, **self._agent_urls(urls, True)}
        return self.files.get(name, "")

    @property
    def reader(self) -> Reader:
        return Reader(self.call, self._address)

    def _read_new(self, names: Sequence[str]) -> dict[str, FileDelta]:
        """Read new content of several files concurrently."""
        positions = [dict(self.mirror.read_position(name)) for name in names]
        reader, restarted_job = self.reader, self.attempt > 1
        deltas = history.all_of(lambda pair: reader.new(*pair, restarted_job), list(zip(names, positions, strict=True)))
        self.read_bytes += sum(len(changes.data) for changes in deltas)
        return dict(zip(names, deltas, strict=True))

    def _update_log(self) -> None:
        if "log" not in self.streams:
            return
        for attempt, kept_files in logs.attempt_logs(self.files).items():
            if int(self.mirror.facts.get("attempt") or 1) <= attempt:
                self._finish_attempt(attempt, kept_files)
        names = logs.log_files(self.files, children.job_type(self.mirror))
        while names:
            self.call.check()
            deltas = self._read_new(names)
            unfinished = [name for name in names if deltas[name].more]
            running = self.ended or self.status in ("Running", "Finalizing")
            logs.append_logs(self.mirror, deltas, attempt=self.attempt, ended=self.ended, running=running)
            names = unfinished
            if names and not self.ended and self.read_bytes > _MAX_SYNC_BYTES:
                self.more = True
                break

    def _update_children(self) -> None:
        """Update the rows of child runs."""
        if "log" in self.streams and self._is_parent and self.status:
            children.update_children(
                self.mirror,
                self.ws,
                self.name,
                parent=self.details,
                now=self.now,
                period=2 * poll_interval_s(),
                ended=self.ended,
            )

    @property
    def _is_parent(self) -> bool:
        return children.job_type(self.mirror) in PARENT_TYPES

    def _finish_attempt(self, attempt: int, kept_files: dict[str, str]) -> None:
        """Append the rest of an ended attempt's logs, from the files that the service keeps."""
        names = logs.log_files(kept_files)
        while names:
            self.call.check()
            deltas = {name: self.reader.new(kept_files[name], dict(self.mirror.read_position(name))) for name in names}
            logs.append_logs(self.mirror, deltas, attempt=attempt, ended=True)
            names = [name for name in names if deltas[name].more]
        logs.end_attempt(self.mirror, attempt)

    def _update_agent_files(self) -> None:
        """Update from the agent's files in ``./logs/amltrain``; skipped when only the log is polled."""
        if self.streams == {"log"}:
            return
        agent_files = {name[len(AGENT) :]: name for name in self.files if name.startswith(AGENT)}
        lines = [
            local
            for local in agent_files
            if (_TICKS.fullmatch(local) and "telemetry" in self.streams)
            or (local == metrics.JOURNAL and "metrics" in self.streams)
            or (_MINUTES.fullmatch(local) and not self.mirror.facts.get("renumbered"))
        ]
        while lines:
            self.call.check()
            deltas = self._read_new([agent_files[local] for local in lines])
            unfinished = []
            for local in lines:
                delta = deltas[agent_files[local]]
                if delta.data and self._append_lines(local, agent_files[local], delta) and delta.more:
                    unfinished.append(local)
            lines = unfinished
            if lines and not self.ended and self.read_bytes > _MAX_SYNC_BYTES:
                self.more = True
                break
        for local, name in agent_files.items():
            if local == "state.json":
                self._replace_whole(name, AGENT_STATE, "", 2)
            elif local == PROVENANCE and not (self.mirror.folder / local).exists():  # written once
                self._replace_whole(name, local, "", 30)
            elif _SUMMARY.fullmatch(local):
                self._replace_whole(name, local, "summary", 30)
            elif (_VALUES.fullmatch(local) or _FAILURE.fullmatch(local)) and self.ended:
                self._replace_whole(name, local, "", 30)
        for local in sorted(local for local in agent_files if _LINES.fullmatch(local))[:_MAX_LINES]:
            self._replace_whole(agent_files[local], local, "", 10)
        self._update_pictures({local: name for local, name in agent_files.items() if _PICTURES.fullmatch(local)})
        self._update_displays({local: name for local, name in agent_files.items() if _DISPLAYS.fullmatch(local)})

    def _update_displays(self, names: dict[str, str]) -> None:
        """Fetch the newest values that the script has displayed; later versions of them less often than the log."""
        for local in sorted(names, key=lambda local: int(local[9:-5]))[-_MAX_DISPLAYS:]:
            self.call.check()
            self._replace_whole(names[local], local, "", 5 if (self.mirror.folder / local).exists() else 0)

    def _update_pictures(self, names: dict[str, str]) -> None:
        """Fetch figures that the script has shown: each once, and again at the end of the job if it has changed."""
        for local in sorted(names)[:_MAX_PICTURES]:
            if self.ended or not (self.mirror.folder / local).exists():
                self.call.check()
                self._replace_whole(names[local], local, "", 0)

    def _append_lines(self, local: str, name: str, delta: FileDelta) -> bool:
        """Append complete lines; returns whether there were any."""
        data = metrics.whole_lines(delta.data)
        if not data:
            return False
        mirror = self.mirror
        match = _TICKS.fullmatch(local)
        if delta.restarted or mirror.facts.get(f"ticks-{match[1]}" if match else "journal", {}).get("by") == "service":
            mirror.facts["renumbered"] = (
                True  # minutes refer to byte offsets of the agent's file, which the local file no longer matches
            )
        if match:
            metrics.take_ticks(mirror, int(match[1]), data, delta.restarted)
            mirror.facts["ticked"] = self.now
        elif local == metrics.JOURNAL:
            metrics.take_journal(mirror, data, delta.restarted)
        elif not delta.restarted:
            mirror.append(local, data, "minutes")
        advance_position(mirror.read_position(name), data, delta.restarted, delta.created_at)
        return True

    def _replace_whole(self, name: str, local: str, stream: str, interval_factor: float) -> None:
        position = self.mirror.read_position(name)
        if not self.ended and self.now < float(position.get("due") or 0):
            return
        position["due"] = round(self.now + interval_factor * poll_interval_s(), 1)
        data = self.reader.whole(name, position)
        if data and len(data) <= _MAX_WHOLE_BYTES:
            self.mirror.replace(local, data, stream)

    def _tick_age(self) -> float | None:
        last = [facts.get("last") for key, facts in self.mirror.facts.items() if key.startswith("ticks-")]
        return max(0.0, round(time.time() - max(last), 1)) if last and all(last) else None

    def _write_source(self) -> None:
        """Write ``source.json``: the source of telemetry and metrics."""
        facts = self.mirror.facts
        if not self.mirror.grown & {"telemetry", "metrics"} and "source" in facts:
            return
        ticked_at, mlflow_at = float(facts.get("ticked") or 0), float(facts.get("mlflowed") or 0)
        fallback = "mlflow" if mlflow_at else "monitor" if facts.get("watched") else "none"
        facts["source"] = "logs" if ticked_at and ticked_at >= mlflow_at else fallback
        description = {
            "logs": "agent, through the job's log folder",
            "mlflow": "the service's MLflow, every 10 s",
            "monitor": "Azure Monitor, every minute, some minutes late",
            "none": "",
        }[facts["source"]]
        text = json.dumps({"schema": 1, "source": facts["source"], "words": description, "seen": round(self.now, 1)})
        self.mirror.replace(SOURCE, text.encode())
