"""Jobs on a compute of an Azure ML workspace. The kernel's half: it asks the Azure process and reads mirrors."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from jupyter_amltrain._version import __version__
from jupyter_amltrain.backends.azureml import job_rows, job_tags, mapping, mirror_reading, support, yaml_jobs
from jupyter_amltrain.backends.azureml.lifecycle import SILENCE, AzureLifecycle
from jupyter_amltrain.backends.azureml.looks import SELDOM, AzureNews, LogPace, Shared, pace
from jupyter_amltrain.backends.azureml.machine_watch import MachineWatch
from jupyter_amltrain.backends.azureml.sending import sent
from jupyter_amltrain.backends.base import Backend, Chunk, Plan, RunChanges, monitor_of, stream_of
from jupyter_amltrain.backends.run_files import output_of
from jupyter_amltrain.errors import AmlTrainError, CommandError, SpecError, TargetError, TargetUnreachable
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.snapshot import Snapshot
from jupyter_amltrain.spec.azure_target import AzureTarget, ServerlessTarget
from jupyter_amltrain.spec.job import JobSpec
from jupyter_amltrain.spec.run import Run, RunState, RunStatus, make_handle
from jupyter_amltrain.spec.target import ComputeTarget, TargetInfo
from jupyter_amltrain.state import StateRoot

log = logging.getLogger(__name__)

#: A job that was just accepted may not be in run history yet (seconds).
YOUNG = 60.0
#: Reading of a long log, say (seconds without news).
_PATIENCE = 120.0
_ENDED = ("Completed", "Failed", "Canceled")
_SURVIVES = {"answer": "yes", "why": "the job runs in Azure"}


class AzureBackend(AzureLifecycle, Backend):
    """One compute of a workspace.

    Attributes
    ----------
    watched
        Runs that somebody looks at, by who asks for news.
    """

    Target: ClassVar[type[ComputeTarget]] = AzureTarget
    sends_code = True

    def __init__(self, target: ComputeTarget, loop: LoopThread, root: StateRoot) -> None:
        Backend.__init__(self, target)
        self._loop, self._root = loop, root
        self.watched: dict[int, frozenset[str]] = {}
        self._rows: dict[str, tuple[float, dict[str, Any]]] = {}
        self._young: dict[str, float] = {}
        self._synced: dict[str, float] = {}
        self._logs: dict[str, LogPace] = {}
        self._grown: dict[str, dict[str, int]] = {}
        self._complete: set[str] = set()
        self._guests: set[str] = set()
        self._shared = Shared()
        self._machines = MachineWatch(self)

    # ---- what it is

    @property
    def state_root(self) -> StateRoot:
        """Where mirrors lie."""
        return self._root

    async def offload(self, work: Callable[[], Any]) -> Any:
        """`work` off the loop."""
        return await self._loop.offload(work)

    def _folder(self, name: str) -> Path:
        return mirror_reading.folder_of(self._root.path, self.workspace().name, name)

    def _place(self, arm_id: str) -> mapping.Place:
        target, size = self.azure, self.size()
        serverless = isinstance(target, ServerlessTarget)
        return mapping.Place(
            arm_id=arm_id,
            compute="" if serverless else target.compute_name,
            size=target.size if isinstance(target, ServerlessTarget) else "",
            gpus=None if size is None else int(size.gpus or 0),
            tier=target.tier.lower() if isinstance(target, ServerlessTarget) else "",
        )

    async def check(self) -> TargetInfo:
        """See :meth:`Backend.check`."""
        target = self.azure
        state = await self.state()
        if state.state == "failed":
            raise TargetError(f"{target.name!r}: {state.detail}", hint=f"%aml_compute show {target.name}")
        most = state.max_nodes or 1
        queued, running = await self._counted()
        gpus = int(state.gpus or 0)
        slots = {"cpu": {"total": most, "free": max(0, most - running)}}
        if gpus:
            slots["gpu"] = {"total": most * gpus, "free": max(0, most - running) * gpus}
        return TargetInfo(
            target=target.name,
            kind=self.kind,
            cpus=state.cpus,
            memory=None if state.memory is None else int(state.memory),
            gpus=tuple({"index": i, "name": state.gpu_name, "uuid": ""} for i in range(gpus)),
            slots=slots,
            queued=queued,
            running=running,
            survives=dict.fromkeys(("kernel", "server", "logout", "container"), _SURVIVES),
            home=self.workspace().arm_id,
            detail=state.detail or f"{state.size}, {state.state}",
        )

    async def _counted(self) -> tuple[int, int]:
        found = await self._listed(())
        words = [job_rows.status_of(job["row"]) for job in found["jobs"]]
        running = sum(status is not None and status.state is RunState.RUNNING for status in words)
        waiting = (RunState.QUEUED, RunState.PREPARING)
        return sum(status is not None and status.state in waiting for status in words), running

    # ---- submitting

    def refuses(self, spec: JobSpec) -> str:
        """See :meth:`Backend.refuses`."""
        if spec.job_type:
            return support.refusal_of_type(self.kind, spec.job_type) or self._too_many(spec)
        asked = ["command"]
        asked += ["gpu"] if spec.resources.gpus else []
        asked += ["nodes"] if spec.resources.nodes > 1 else []
        for what in asked:
            if sentence := support.refusal(self.kind, what):
                return sentence
        try:
            mapping.check(spec, self._place(""))
        except SpecError as error:
            return str(error)
        return ""

    def _too_many(self, spec: JobSpec) -> str:
        return support.refusal(self.kind, "nodes") or "" if spec.resources.nodes > 1 else ""

    async def plan(self, spec: JobSpec, snapshot: Snapshot, run_id: str) -> Plan:
        """See :meth:`Backend.plan`."""
        if sentence := self.refuses(spec):
            raise SpecError(sentence)
        if spec.job_type:
            return await self._plan_yaml(spec, snapshot, run_id)
        mapping.check_files(snapshot)
        facts = self.workspace()
        await self.hold(spec.resources.nodes, size=spec.resources.instance_type, now=False)
        place = self._place(facts.arm_id)
        sizes = await self._loop.offload(lambda: _sizes(snapshot))
        request = mapping.request_of(spec, snapshot, place, mapping.job_name(run_id), self._tags(spec))
        request["code"]["files"] = {name: sizes.get(name) for name in request["code"]["files"]}
        return Plan(run_id=run_id, spec=spec, snapshot=snapshot, request={"run": run_id, **request})

    async def _plan_yaml(self, spec: JobSpec, snapshot: Snapshot, run_id: str) -> Plan:
        place, name = self._place(self.workspace().arm_id), mapping.job_name(run_id)
        payload = yaml_jobs.payload_of(spec, place, name, self._tags(spec))
        await self.hold(spec.resources.nodes, size=spec.resources.instance_type, now=False)
        await self.ask("jobs.yaml_check", None, _PATIENCE, job=payload)
        request = yaml_jobs.request_of(spec, place, name, self._tags(spec))
        return Plan(run_id=run_id, spec=spec, snapshot=snapshot, request={"run": run_id, **request})

    def _tags(self, spec: JobSpec) -> dict[str, str]:
        return job_tags.tags_of(spec, self.target.name, __version__)

    async def launch(self, plan: Plan, environ: Mapping[str, str], secrets: Mapping[str, str]) -> Run:
        """See :meth:`Backend.launch`. The submitter's environment does not travel to Azure."""
        spec, name = plan.spec, mapping.job_name(plan.run_id)
        place = self._place(self.workspace().arm_id)
        if spec.job_type:
            payload = yaml_jobs.payload_of(spec, place, name, self._tags(spec))
            return await self._launched(plan, await sent(self.ask, "jobs.yaml", name, SILENCE, job=payload))
        body = mapping.body_of(spec, place, "")
        del body["codeId"]
        body["tags"] = self._tags(spec)
        body["properties"] = job_tags.properties_of(spec)
        job = {
            "name": name,
            "body": body,
            "environment": mapping.environment_of(spec, place),
            "code": {
                "script": spec.script_name,
                "digest": plan.snapshot.digest,
                "job_file": mapping.job_file(spec),
            },
            "git": spec.source or spec.notebook_dir,
        }
        made = await sent(self.ask, "jobs.submit", name, SILENCE, job=job, files=plan.snapshot.files)
        return await self._launched(plan, made)

    async def _launched(self, plan: Plan, made: Mapping[str, Any]) -> Run:
        """The service has the job."""
        spec, name = plan.spec, str(made["name"])
        self._young[name] = time.monotonic()
        created = float(made.get("created") or time.time())
        folder = self._folder(name)
        digest = plan.snapshot.digest
        await self._loop.offload(lambda: mirror_reading.begin(folder, name, spec, created, digest))
        return self._run(name, spec, RunStatus(state=RunState.QUEUED), created, folder)

    def _run(self, name: str, spec: JobSpec, status: RunStatus, created: float, folder: Path) -> Run:
        return Run(
            handle=make_handle(self.target.name, name),
            spec=spec,
            status=status,
            created=created,
            seen_at=time.time(),
            folder=str(folder),
            project=spec.project,
            tracking_id=mapping.tracking_id(name),
        )

    # ---- looking

    def _pace(self, run_id: str) -> float:
        looked = any(run_id in runs for runs in self.watched.values())
        return pace() if looked else pace() * SELDOM

    async def rows(self, run_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """What the service said of runs, asked again where that is older than their pace."""
        now = time.monotonic()
        due = [i for i in run_ids if now - self._rows.get(i, (-1e9, {}))[0] >= self._pace(i) and not self._over(i)]
        if due:
            key = "poll " + " ".join(sorted(due))
            found = await self._shared.of(key, lambda: self.ask("jobs.poll", timeout=_PATIENCE, names=due))
            for run_id in due:
                if run_id in found:
                    self._rows[run_id] = time.monotonic(), found[run_id]
                else:
                    self._rows.pop(run_id, None)
        return {i: self._rows[i][1] for i in run_ids if i in self._rows}

    def _over(self, run_id: str) -> bool:
        return str(self._rows.get(run_id, (0, {}))[1].get("status")) in _ENDED

    async def poll(self, run_ids: Sequence[str]) -> Mapping[str, RunStatus]:
        """See :meth:`Backend.poll`; an end is told when the run's files are here."""
        rows = await self.rows(run_ids)
        found: dict[str, RunStatus] = {}
        for run_id in run_ids:
            row = rows.get(run_id)
            if row is not None:
                status = await self._status(run_id, row)
                if status is not None:
                    found[run_id] = status
            elif time.monotonic() - self._young.get(run_id, -1e9) < _young():
                found[run_id] = RunStatus(state=RunState.QUEUED)
        return found

    async def _status(self, run_id: str, row: Mapping[str, Any]) -> RunStatus | None:
        folder = self._folder(run_id)
        over = str(row.get("status")) in _ENDED
        if over and run_id not in self._complete and folder.is_dir():
            await self._last(run_id)
        agent = await self._loop.offload(lambda: mirror_reading.agent_state(folder))
        status = job_rows.status_of(row, agent)
        if over and status is not None:
            kept, ended = status, row.get("ended")
            await self._loop.offload(lambda: mirror_reading.end(folder, kept, ended))
        return status

    async def _last(self, run_id: str) -> None:
        """All files of a run that is over."""
        try:
            while run_id not in self._complete:
                if not await self._sync(run_id, True):
                    break
        except TargetUnreachable:
            raise
        except AmlTrainError as error:  # its end is told all the same
            log.warning("files of %s: %s", run_id, error)

    async def _sync(self, run_id: str, ended: bool, streams: Sequence[str] = ()) -> frozenset[str]:
        async def work() -> frozenset[str]:
            payload = {"name": run_id, "folder": str(self._folder(run_id)), "ended": ended, "streams": streams}
            began = time.monotonic()
            answer = await self.ask("mirror.sync", None, _PATIENCE, **payload)
            if not streams:
                self._synced[run_id] = time.monotonic()
            self._pace_of(run_id).looked("log" in answer["grown"], time.monotonic() - began)
            times = self._grown.setdefault(run_id, {})
            for stream in answer["grown"]:
                times[stream] = times.get(stream, 0) + 1
            if answer["complete"]:
                self._complete.add(run_id)
            return frozenset(answer["grown"])

        found: frozenset[str] = await self._shared.of(f"sync {run_id} {ended}", work)
        return found

    def _pace_of(self, run_id: str) -> LogPace:
        return self._logs.setdefault(run_id, LogPace())

    def grown(self, run_id: str) -> Mapping[str, int]:
        """How often each stream of a run was seen to have grown."""
        return self._grown.get(run_id, {})

    def due(self, run_ids: Sequence[str]) -> float:
        """Seconds until somebody who looks at these runs wants the next look."""
        waits = (self._pace_of(run_id).due() for run_id in run_ids if run_id not in self._complete)
        return max(0.02, min((*waits, pace() / 2)))

    async def fresh(self, run_id: str) -> frozenset[str]:
        """Bring a mirror up to date unless that was done a moment ago; streams that grew by it."""
        if run_id in self._complete:
            return frozenset()
        whole = time.monotonic() - self._synced.get(run_id, -1e9) >= pace()
        if not whole and self._pace_of(run_id).due():
            return frozenset()
        folder = self._folder(run_id)
        if not await self._loop.offload(lambda: (folder / "job.json").exists()):
            return frozenset()
        return await self._sync(run_id, self._over(run_id), () if whole else ("log",))

    def lost(self, run: Run) -> str:
        """See :meth:`Backend.lost`."""
        return f"the workspace {self.workspace().workspace} has no job {run.run_id} any more"

    def changes(self) -> RunChanges:
        """See :meth:`Backend.changes`."""
        return AzureNews(self)

    # ---- finding

    async def find(self, run_id: str) -> Run | None:
        """See :meth:`Backend.find`; also a job of another compute of the workspace, or that somebody else submitted."""
        if not mapping.is_job_name(run_id):
            return None
        found = await self.ask("jobs.get", name=run_id)
        if found is None or found["row"].get("archived"):
            return None
        if not self._mine(found["row"]):
            self._guests.add(run_id)
        return await self._taken(found)

    def _mine(self, row: Mapping[str, Any]) -> bool:
        compute = str(row.get("compute") or "").lower()
        compute = "" if compute == "serverless" else compute
        return compute == ("" if isinstance(self.target, ServerlessTarget) else self.azure.compute_name.lower())

    def holds(self, run: Run) -> bool:
        """See :meth:`Backend.holds`."""
        return run.run_id not in self._guests

    async def _taken(self, found: Mapping[str, Any]) -> Run:
        row, job = found["row"], found["job"]
        name = str(row["name"])
        spec, _ = mirror_reading.spec_of(name, job)
        created = float(row.get("created") or time.time())
        folder = self._folder(name)

        def begun() -> dict[str, Any]:
            mirror_reading.begin(folder, name, spec, created)
            return mirror_reading.agent_state(folder)

        agent = await self._loop.offload(begun)
        status = job_rows.status_of(row, agent) or RunStatus(state=RunState.QUEUED, detail="the service does not know")
        self._rows[name] = time.monotonic(), dict(row)
        if status.state.terminal:
            await self._loop.offload(lambda: mirror_reading.end(folder, status, row.get("ended")))
        return self._run(name, spec, status, created, folder)

    async def _listed(self, known: Collection[str]) -> dict[str, Any]:
        compute = "" if isinstance(self.target, ServerlessTarget) else self.azure.compute_name
        found: dict[str, Any] = await self.ask("jobs.list", compute=compute, known=sorted(known))
        return found

    async def list(self) -> Sequence[Run]:
        """See :meth:`Backend.list`."""
        return (await self.roster(()))[1]

    async def roster(self, known: Collection[str]) -> tuple[Collection[str], Sequence[Run]]:
        """See :meth:`Backend.roster`."""
        found = await self._listed(known)
        runs = [await self._taken(job) for job in found["jobs"]]
        # Of a list that was cut nobody knows what is behind its end.
        unseen = () if found["whole"] else known
        return frozenset([*found["names"], *self._guests, *unseen]), runs[::-1]

    # ---- acting

    async def cancel(self, run_id: str) -> None:
        """See :meth:`Backend.cancel`."""
        await self.ask("jobs.cancel", name=run_id)
        self._rows.pop(run_id, None)

    async def delete(self, run_id: str) -> None:
        """See :meth:`Backend.delete`: the job is archived at the service, which deletes none."""
        row = (await self.ask("jobs.poll", names=[run_id])).get(run_id)
        if row is not None:
            status = job_rows.status_of(row)
            if status is None or not status.state.terminal:
                handle = make_handle(self.target.name, run_id)
                raise CommandError(f"{handle} has not ended.", hint=f"%aml_runs cancel {handle} first.")
            await self.ask("jobs.archive", name=run_id)
        folder = self._folder(run_id)
        await self._loop.offload(lambda: mirror_reading.remove(folder))
        for known in (self._rows, self._young, self._synced, self._logs, self._grown):
            known.pop(run_id, None)
        self._complete.discard(run_id)
        self._guests.discard(run_id)

    # ---- reading

    async def read(self, run_id: str, stream: str, offset: int, limit: int = 1 << 20) -> Chunk:
        """See :meth:`Backend.read`."""
        stream_of(stream)
        if (watch := monitor_of(run_id)) is not None:
            folder = await self._machines.fresh(watch)
            if folder is None:
                return Chunk(b"", max(0, offset))
        else:
            folder = self._folder(run_id)
            if offset >= 0:  # what is here need not wait for what may follow
                here = await self._loop.offload(lambda: mirror_reading.read(folder, stream, offset, limit))
                if here[0]:
                    return Chunk(*here)
            await self.fresh(run_id)
        there = folder
        return Chunk(*await self._loop.offload(lambda: mirror_reading.read(there, stream, offset, limit)))

    async def log_path(self, run_id: str) -> str:
        """See :meth:`Backend.log_path`."""
        return str(self._folder(run_id) / "log" / "rank-0.txt")

    async def outputs(self, run_id: str, names: Sequence[str]) -> Mapping[str, Any]:
        """See :meth:`Backend.outputs`."""
        await self.fresh(run_id)
        folder, handle = self._folder(run_id), make_handle(self.target.name, run_id)
        data = await self._loop.offload(lambda: [mirror_reading.output(folder, name) for name in names])
        return {name: output_of(name, found, handle) for name, found in zip(names, data, strict=True)}

    async def download(self, run_id: str, folder: str, progress: Any = None) -> Sequence[str]:
        """Fetch what a run left in ``./outputs``; the paths of the files."""
        found = await self.ask("jobs.outputs", progress, SILENCE, name=run_id, folder=folder)
        return [str(path) for path in found["files"]]

    async def monitor(self, monitor_id: str, gpus: Sequence[int] | None, period: float) -> str:
        """See :meth:`Backend.monitor`: one value a minute, some minutes late, as Azure Monitor has them."""
        monitor_of(f"monitors/{monitor_id}")
        return await self._machines.begin(monitor_id, gpus)

    async def stop_monitor(self, monitor_id: str) -> None:
        """See :meth:`Backend.stop_monitor`."""
        await self._machines.stop(monitor_id)

    async def close(self) -> None:
        """See :meth:`Backend.close`. The process goes with the loop's link."""
        self.watched.clear()


def _young() -> float:
    return float(os.environ.get("AMLTRAIN_AZURE_YOUNG") or YOUNG)


def _sizes(snapshot: Snapshot) -> dict[str, int]:
    found = {}
    for name, content in snapshot.files.items():
        try:
            found[name] = len(content) if isinstance(content, bytes) else os.stat(content).st_size
        except OSError:
            continue
    return found
