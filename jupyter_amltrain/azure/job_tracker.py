"""Tracker of a compute's jobs: polls their status, synchronizes their mirrors, finds jobs that others submitted."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from jupyter_amltrain.azure import job_body, mirror_store
from jupyter_amltrain.azure import status as azure_status
from jupyter_amltrain.azure.compute import AzureCompute
from jupyter_amltrain.azure.polling import (
    GONE_AFTER_S,
    UNVIEWED_POLL_FACTOR,
    GoneDetector,
    LogPollInterval,
    SingleFlight,
    poll_interval,
)
from jupyter_amltrain.azure.targets import InstanceTarget, ServerlessTarget
from jupyter_amltrain.backends.run_files import copied_runs, run_of
from jupyter_amltrain.backends.streams import STATUS, RunEvents, StreamChanges
from jupyter_amltrain.errors import AmlTrainError, TargetUnreachable, WorkspaceGone
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunState, RunStatus, make_handle
from jupyter_amltrain.text import tilde

log = logging.getLogger(__name__)

#: Seconds during which run history may not yet know an accepted job.
YOUNG_JOB_S = 60.0

#: Seconds without progress of one synchronization, e.g. of a long log.
SYNC_TIMEOUT_S = 120.0

_ENDED = ("Completed", "Failed", "Canceled")

#: Seconds between two polls of an instance with waiting jobs.
INSTANCE_STATE_INTERVAL_S = 5.0

_WAITING = ("NotStarted", "Starting", "Queued", "Scheduled")


class JobTracker:
    """Finds and follows the jobs of one compute.

    Attributes
    ----------
    watched
        Runs that have viewers, by the consumer of their events.
    """

    def __init__(self, compute: AzureCompute) -> None:
        self._compute = compute
        self._loop = compute.loop
        self.watched: dict[int, frozenset[str]] = {}
        self._rows: dict[str, tuple[float, dict[str, Any]]] = {}
        self._young: dict[str, float] = {}
        self._synced: dict[str, float] = {}
        self._logs: dict[str, LogPollInterval] = {}
        self._grown: dict[str, dict[str, int]] = {}
        self._complete: set[str] = set()
        self._guests: set[str] = set()
        self._single_flight = SingleFlight()
        self._gone = GoneDetector()
        self._missing: dict[str, float] = {}
        self._instance_at, self._instance_state = -1e9, ""

    def folder(self, name: str) -> Path:
        return mirror_store.folder_of(self._compute.root.path, self._compute.workspace().name, name)

    def make_run(self, name: str, spec: JobSpec, status: RunStatus, created: float, folder: Path) -> Run:
        return Run(
            handle=make_handle(self._compute.target.name, name),
            spec=spec,
            status=status,
            created=created,
            seen_at=time.time(),
            folder=str(folder),
            project=spec.project,
            tracking_id=job_body.tracking_id(name),
        )

    def _poll_interval(self, run_id: str) -> float:
        viewed = any(run_id in runs for runs in self.watched.values())
        return poll_interval() if viewed else poll_interval() * UNVIEWED_POLL_FACTOR

    async def rows(self, run_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return rows of runs; polls those that are older than their poll interval."""
        now = time.monotonic()
        due = [
            i
            for i in run_ids
            if now - self._rows.get(i, (-1e9, {}))[0] >= self._poll_interval(i) and not self._has_ended(i)
        ]
        if due:
            key = "poll " + " ".join(sorted(due))
            result = await self._single_flight.run(key, lambda: self._poll_jobs(due))
            for run_id in due:
                if run_id in result:
                    self._rows[run_id] = time.monotonic(), result[run_id]
                    self._missing.pop(run_id, None)
                elif self._is_gone(run_id):
                    self._rows.pop(run_id, None)
                elif run_id in self._rows:  # it existed a moment ago: keep the old row, and poll again
                    self._rows[run_id] = -1e9, self._rows[run_id][1]
        return {i: self._rows[i][1] for i in run_ids if i in self._rows}

    def _is_gone(self, run_id: str) -> bool:
        """Record an answer without a run; return whether the run is gone for good."""
        since = self._missing.setdefault(run_id, time.monotonic())
        return self._gone.is_gone or time.monotonic() - since >= GONE_AFTER_S

    async def _poll_jobs(self, names: Sequence[str]) -> Mapping[str, dict[str, Any]]:
        """Poll jobs; a workspace that is gone for good has none."""
        try:
            result: Mapping[str, dict[str, Any]] = await self._compute.request(
                "jobs.poll", timeout=SYNC_TIMEOUT_S, names=names
            )
        except WorkspaceGone:
            if not self._gone.record_missing():
                raise
            return {}
        self._gone.record_found()
        return await self._with_instance_state(result)

    async def _with_instance_state(self, rows: Mapping[str, dict[str, Any]]) -> Mapping[str, dict[str, Any]]:
        """Return `rows`, with the reason and the command to start the instance in jobs that wait for a stopped one."""
        waiting = [name for name, row in rows.items() if str(row.get("status")) in _WAITING]
        if not waiting or not isinstance(self._compute.target, InstanceTarget):
            return rows
        if time.monotonic() - self._instance_at >= INSTANCE_STATE_INTERVAL_S:
            try:
                compute = await self._compute.request("computes.get", name=self._compute.azure.compute_name)
            except AmlTrainError as error:  # the rows are valid without the instance's state
                log.info("state of %s: %s", self._compute.target.name, error)
            else:
                state = str(compute.get("state")) if compute is not None else "gone"
                self._instance_at, self._instance_state = time.monotonic(), state
        if not (reason := self._instance_reason()):
            return rows
        return {name: {**row, "why": reason} if name in waiting else row for name, row in rows.items()}

    def _instance_reason(self) -> str:
        """Return why jobs wait for an instance; empty while it runs."""
        name = self._compute.target.name
        return {
            "stopped": f"the instance {name!r} is stopped. Start it: %aml_compute start {name}",
            "stopping": f"the instance {name!r} is stopping. Start it again: %aml_compute start {name}",
            "starting": f"the instance {name!r} is starting",
            "failed": f"the instance {name!r} has failed. See: %aml_compute list",
            "gone": f"the instance {name!r} was deleted in Azure. See: %aml_compute list",
        }.get(self._instance_state, "")

    def _has_ended(self, run_id: str) -> bool:
        return str(self._rows.get(run_id, (0, {}))[1].get("status")) in _ENDED

    async def poll(self, run_ids: Sequence[str]) -> Mapping[str, RunStatus]:
        """See :meth:`Backend.poll`; a run counts as ended once its files have been fetched."""
        rows = await self.rows(run_ids)
        result: dict[str, RunStatus] = {}
        for run_id in run_ids:
            row = rows.get(run_id)
            if row is not None:
                status = await self._status(run_id, row)
                if status is not None:
                    result[run_id] = status
            elif not self._gone.is_gone and time.monotonic() - self._young.get(run_id, -1e9) < _young_job_s():
                result[run_id] = RunStatus(state=RunState.QUEUED)
        return result

    async def _status(self, run_id: str, row: Mapping[str, Any]) -> RunStatus | None:
        folder = self.folder(run_id)
        ended = str(row.get("status")) in _ENDED
        if ended and run_id not in self._complete and folder.is_dir():
            await self._fetch_final_files(run_id)
        status = await self._loop.offload(lambda: _status_of(folder, row))
        if ended and status is not None:
            final, ended_at = status, row.get("ended")
            await self._loop.offload(lambda: mirror_store.write_end(folder, final, ended_at))
        return status

    async def _fetch_final_files(self, run_id: str) -> None:
        """Fetch all files of an ended run."""
        try:
            while run_id not in self._complete:
                if not await self._sync(run_id, True):
                    break
        except TargetUnreachable:
            raise
        except AmlTrainError as error:  # the run has ended even if its files cannot be fetched
            log.warning("files of %s: %s", run_id, error)

    async def _sync(self, run_id: str, ended: bool, streams: Sequence[str] = ()) -> frozenset[str]:
        async def work() -> frozenset[str]:
            payload = {"name": run_id, "folder": str(self.folder(run_id)), "ended": ended, "streams": streams}
            began = time.monotonic()
            answer = await self._compute.request("mirror.sync", None, SYNC_TIMEOUT_S, **payload)
            if not streams:
                self._synced[run_id] = time.monotonic()
            self._log_interval(run_id).record_poll("log" in answer["grown"], time.monotonic() - began)
            times = self._grown.setdefault(run_id, {})
            for stream in answer["grown"]:
                times[stream] = times.get(stream, 0) + 1
            if answer["complete"]:
                self._complete.add(run_id)
            return frozenset(answer["grown"])

        found: frozenset[str] = await self._single_flight.run(f"sync {run_id} {ended}", work)
        return found

    def _log_interval(self, run_id: str) -> LogPollInterval:
        return self._logs.setdefault(run_id, LogPollInterval())

    def grown(self, run_id: str) -> Mapping[str, int]:
        """Return how often each stream of a run was found to have grown."""
        return self._grown.get(run_id, {})

    def due(self, run_ids: Sequence[str]) -> float:
        """Return the seconds until the next poll of these viewed runs."""
        waits = (self._log_interval(run_id).due() for run_id in run_ids if run_id not in self._complete)
        return max(0.02, min((*waits, poll_interval() / 2)))

    async def synchronize(self, run_id: str) -> frozenset[str]:
        """Synchronize a mirror unless its poll interval has not passed; return the streams that grew."""
        if run_id in self._complete:
            return frozenset()
        whole = time.monotonic() - self._synced.get(run_id, -1e9) >= poll_interval()
        if not whole and self._log_interval(run_id).due():
            return frozenset()
        folder = self.folder(run_id)
        if not await self._loop.offload(lambda: (folder / "job.json").exists()):
            return frozenset()
        return await self._sync(run_id, self._has_ended(run_id), () if whole else ("log",))

    def lost_reason(self, run_id: str) -> str:
        """Return why a run that the service no longer has is lost, a phrase."""
        if self._gone.is_gone:
            handle = make_handle(self._compute.target.name, run_id)
            return (
                f"the workspace {self._compute.workspace().workspace} was deleted in Azure. The part of the log that"
                f" was read is kept: %aml_runs logs {handle}. Connect another workspace: %aml_compute connect"
            )
        return f"the workspace {self._compute.workspace().workspace} no longer has the job {run_id}"

    def mark_accepted(self, name: str) -> None:
        """Record that the service has just accepted a job, which run history may not know yet."""
        self._young[name] = time.monotonic()

    def refresh(self, run_id: str) -> None:
        """Forget the row of a run: the next poll asks the service."""
        self._rows.pop(run_id, None)

    def forget(self, run_id: str) -> None:
        """Forget a run that is deleted."""
        for known in (self._rows, self._young, self._synced, self._logs, self._grown):
            known.pop(run_id, None)
        self._complete.discard(run_id)
        self._guests.discard(run_id)

    def events(self) -> RunEvents:
        """See :meth:`Backend.events`."""
        return AzureEvents(self)

    # ---- finding and listing

    async def find(self, run_id: str) -> Run | None:
        """See :meth:`Backend.find`; also a job of another compute of the workspace, or that somebody else submitted."""
        if not job_body.is_job_name(run_id):
            return None
        try:
            job = await self._compute.request("jobs.get", name=run_id)
        except WorkspaceGone as error:
            path = self.folder(run_id) / "log" / "rank-0.txt"
            if not await self._loop.offload(path.exists):
                raise
            message = f"{error.message} The part of the log of {run_id} that was read is kept: {tilde(str(path))}"
            raise WorkspaceGone(message, hint=error.hint) from error
        if job is None or job["row"].get("archived"):
            return None
        run = await self._adopt(job)
        if self._is_own(job["row"]):
            return run
        self._guests.add(run_id)
        return msgspec.structs.replace(run, is_guest=True)

    def _is_own(self, row: Mapping[str, Any]) -> bool:
        compute = str(row.get("compute") or "").lower()
        compute = "" if compute == "serverless" else compute
        return compute == (
            "" if isinstance(self._compute.target, ServerlessTarget) else self._compute.azure.compute_name.lower()
        )

    async def _adopt(self, result: Mapping[str, Any]) -> Run:
        row, job = result["row"], result["job"]
        name = str(row["name"])
        spec, _ = mirror_store.spec_of(name, job)
        created = float(row.get("created") or time.time())
        folder = self.folder(name)

        def begin_mirror() -> RunStatus | None:
            mirror_store.create(folder, name, spec, created, self._compute.target.name)
            return _status_of(folder, row)

        status = await self._loop.offload(begin_mirror) or RunStatus(
            state=RunState.QUEUED, detail="the service does not know its state"
        )
        self._rows[name] = time.monotonic(), dict(row)
        if status.state.terminal:
            await self._loop.offload(lambda: mirror_store.write_end(folder, status, row.get("ended")))
        return self.make_run(name, spec, status, created, folder)

    async def listed(self, known: Collection[str]) -> dict[str, Any]:
        compute = "" if isinstance(self._compute.target, ServerlessTarget) else self._compute.azure.compute_name
        result: dict[str, Any] = await self._compute.request("jobs.list", compute=compute, known=sorted(known))
        return result

    async def list(self, known: Collection[str]) -> tuple[Collection[str], Sequence[Run]]:
        """See :meth:`Backend.list`."""
        result = await self.listed(known)
        runs = [await self._adopt(job) for job in result["jobs"]]
        # A truncated list says nothing about the jobs after its end.
        unseen = () if result["whole"] else known
        return frozenset([*result["names"], *self._guests, *unseen]), runs[::-1]

    async def known_runs(self) -> Sequence[Run]:
        """See :meth:`TargetFiles.known_runs`; of one that has not ended it is known whether it began."""
        target, folder = self._compute.target.name, self.folder("").absolute()

        def read() -> list[Run]:
            runs = []
            for name, job, end in copied_runs(folder):
                began = "running" if mirror_store.has_begun(folder / name) else "queued"
                if job.get("target") == target:
                    runs.append(run_of(make_handle(target, name), str(folder / name), job, end or {"state": began}))
            return runs

        return await self._loop.offload(read)


def _status_of(folder: Path, row: Mapping[str, Any]) -> RunStatus | None:
    """Return the status of a job from the service's row and its mirror. Blocks on the disk."""
    status = azure_status.status_of(row, mirror_store.agent_state(folder))
    if status is None or not status.state.terminal:
        return status
    return msgspec.structs.replace(status, notes=mirror_store.notes(folder))


def _young_job_s() -> float:
    return float(os.environ.get("AMLTRAIN_AZURE_YOUNG") or YOUNG_JOB_S)


class AzureEvents(RunEvents):
    """Events of runs, found by polling."""

    def __init__(self, tracker: JobTracker) -> None:
        self._tracker = tracker
        self._last_rows: dict[str, Any] = {}
        self._seen: dict[str, dict[str, int]] = {}

    async def wait(self, run_ids: Sequence[str], viewed: Sequence[str], timeout: float) -> StreamChanges:
        """See :meth:`RunChanges.wait`."""
        until = time.monotonic() + timeout
        tracker = self._tracker
        tracker.watched[id(self)] = frozenset(viewed)
        while True:
            events: dict[str, set[str]] = {}
            # Concurrently: a new line must not wait for the state of the run.
            rows, *_ = await asyncio.gather(tracker.rows(run_ids), *(tracker.synchronize(run_id) for run_id in viewed))
            for run_id, row in rows.items():
                if self._last_rows.get(run_id) != row:
                    self._last_rows[run_id] = row
                    events.setdefault(run_id, set()).add(STATUS)
            for run_id in viewed:
                # Counted, because another consumer may have fetched the new lines.
                counts = tracker.grown(run_id)
                seen = self._seen.get(run_id, {})
                if grown := {stream for stream, times in counts.items() if times != seen.get(stream, 0)}:
                    self._seen[run_id] = dict(counts)
                    events.setdefault(run_id, set()).update(grown)
            if events:
                return events
            remaining = until - time.monotonic()
            if remaining <= 0:
                return {}
            await asyncio.sleep(min(remaining, tracker.due(viewed)))

    def close(self) -> None:
        """See :meth:`RunChanges.close`."""
        self._tracker.watched.pop(id(self), None)
