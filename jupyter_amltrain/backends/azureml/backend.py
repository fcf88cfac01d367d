"""Jobs on a compute of an Azure ML workspace. The kernel's half: it asks the Azure process and reads mirrors."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from jupyter_amltrain._version import __version__
from jupyter_amltrain.backends.azureml import choice, job_rows, job_tags, mapping, mirror_reading, support, yaml_jobs
from jupyter_amltrain.backends.azureml.environment_notes import EnvironmentNotes
from jupyter_amltrain.backends.azureml.job_command import job_file
from jupyter_amltrain.backends.azureml.job_environment import environment_of
from jupyter_amltrain.backends.azureml.job_looks import PATIENCE, JobLooks
from jupyter_amltrain.backends.azureml.lifecycle import SILENCE
from jupyter_amltrain.backends.azureml.looks import Shared
from jupyter_amltrain.backends.azureml.machine_watch import MachineWatch
from jupyter_amltrain.backends.azureml.sending import sent
from jupyter_amltrain.backends.base import Backend, Chunk, Plan, monitor_of, stream_of
from jupyter_amltrain.backends.run_files import output_of
from jupyter_amltrain.errors import CommandError, SpecError, TargetError
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.snapshot import Snapshot
from jupyter_amltrain.spec.azure_target import AmlComputeTarget, AzureTarget, InstanceTarget, ServerlessTarget
from jupyter_amltrain.spec.child_run import ChildRuns
from jupyter_amltrain.spec.job import JobSpec
from jupyter_amltrain.spec.run import Run, RunState, RunStatus, make_handle
from jupyter_amltrain.spec.target import ComputeTarget, TargetInfo
from jupyter_amltrain.state import StateRoot

_SURVIVES = {"answer": "yes", "why": "the job runs in Azure"}


class AzureBackend(EnvironmentNotes, JobLooks, Backend):
    """One compute of a workspace."""

    Target: ClassVar[type[ComputeTarget]] = AzureTarget
    sends_code = True
    outlived: ClassVar[bool] = True

    def __init__(self, target: ComputeTarget, loop: LoopThread, root: StateRoot) -> None:
        Backend.__init__(self, target)
        self._look_by(loop, root)
        self._machines = MachineWatch(self)
        self._child_logs = Shared()

    # ---- what it is

    def _place(self, arm_id: str) -> mapping.Place:
        target, size = self.azure, self.size()
        serverless = isinstance(target, ServerlessTarget)
        return mapping.Place(
            arm_id=arm_id,
            compute="" if serverless else target.compute_name,
            size=target.size if isinstance(target, ServerlessTarget) else "",
            gpus=None if size is None else int(size.gpus or 0),
            tier=target.tier.lower() if isinstance(target, ServerlessTarget) else "",
            own_machines=isinstance(target, (AmlComputeTarget, InstanceTarget)),
        )

    async def check(self) -> TargetInfo:
        """See :meth:`Backend.check`."""
        target = self.azure
        state = await self.state()
        if state.state == "failed":
            told = "%aml_" in state.detail  # what to type
            raise TargetError(f"{target.name!r}: {state.detail}", hint="" if told else "See: %aml_compute list")
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

    def completed(self, spec: JobSpec) -> JobSpec:
        """See :meth:`Backend.completed`: its environment, and what ``--env kernel`` means here."""
        size = self.size(spec.resources.instance_type)
        return choice.completed(spec, str(getattr(self.azure, "env", "")), bool(size and size.gpus))

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
        notes = await self.environment_notes(spec, snapshot, request["environment"])
        return Plan(run_id=run_id, spec=spec, snapshot=snapshot, request={"run": run_id, **request}, notes=notes)

    async def _plan_yaml(self, spec: JobSpec, snapshot: Snapshot, run_id: str) -> Plan:
        place, name = self._place(self.workspace().arm_id), mapping.job_name(run_id)
        payload = yaml_jobs.payload_of(spec, place, name, self._tags(spec))
        await self.hold(spec.resources.nodes, size=spec.resources.instance_type, now=False)
        await self.ask("jobs.yaml_check", None, PATIENCE, job=payload)
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
        environment = environment_of(spec, place.gpus)
        job = {
            "name": name,
            "body": body,
            "environment": environment,
            "code": {
                "script": spec.script_name,
                "digest": plan.snapshot.digest,
                "job_file": job_file(spec),
            },
            "git": spec.source or spec.notebook_dir,
        }
        made = await sent(self.ask, "jobs.submit", name, SILENCE, job=job, files=plan.snapshot.files)
        run = await self._launched(plan, made)
        notes = plan.notes
        if conda := str(made.get("conda") or ""):  # what the service says of it counts
            notes = await self.environment_notes(spec, plan.snapshot, environment, conda)
        return msgspec.structs.replace(run, notes=notes)

    async def _launched(self, plan: Plan, made: Mapping[str, Any]) -> Run:
        """The service has the job."""
        spec, name = plan.spec, str(made["name"])
        self._young[name] = time.monotonic()
        created = float(made.get("created") or time.time())
        folder = self._folder(name)
        digest = plan.snapshot.digest
        await self._loop.offload(lambda: mirror_reading.begin(folder, name, spec, created, digest))
        page = ({"kind": "studio", "title": "Azure ML studio", "url": url} for url in [made.get("studio_url")] if url)
        status = RunStatus(state=RunState.QUEUED, doors=job_rows.doors_of({"doors": list(page)}))
        return self._run(name, spec, status, created, folder)

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

    async def children(self, run_id: str) -> ChildRuns:
        """See :meth:`Backend.children`."""
        folder = self._folder(run_id)
        return await self._loop.offload(lambda: mirror_reading.children(folder))

    async def read_child(self, run_id: str, child: str, offset: int, limit: int = 1 << 20) -> Chunk:
        """See :meth:`Backend.read_child`: its log is fetched when somebody reads it."""
        runs = (await self.children(run_id)).runs
        if not any(run.id == child for run in runs) or not mapping.is_job_name(child):
            raise CommandError(f"{make_handle(self.target.name, run_id)} has no step or trial {child[:80]!r}.")
        folder = self._folder(run_id) / mirror_reading.CHILD_LOGS / child
        if not await self._loop.offload(lambda: mirror_reading.ended(folder)):
            payload = {"name": child, "folder": str(folder), "streams": ("log",), "only_log": True}
            await self._child_logs.of(f"{run_id} {child}", lambda: self.ask("mirror.sync", None, PATIENCE, **payload))
        return Chunk(*await self._loop.offload(lambda: mirror_reading.read(folder, "log", offset, limit)))

    async def local_copy(self, run_id: str, path: str = "") -> str | None:
        """See :meth:`Backend.local_copy`: of what has been fetched of a job."""
        place = self._folder(run_id) / path
        return str(place) if await self._loop.offload(place.exists) else None

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


def _sizes(snapshot: Snapshot) -> dict[str, int]:
    found = {}
    for name, content in snapshot.files.items():
        try:
            found[name] = len(content) if isinstance(content, bytes) else os.stat(content).st_size
        except OSError:
            continue
    return found
