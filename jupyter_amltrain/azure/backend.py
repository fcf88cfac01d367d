"""The backend of one compute of an Azure ML workspace: submits, reads and cancels its jobs.

The kernel's part: it sends requests to the service process and reads mirrors.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from jupyter_amltrain._version import __version__
from jupyter_amltrain.agent import testing
from jupyter_amltrain.agent.azure import job as service_job
from jupyter_amltrain.agent.protocol import KEPT_LINKS, OUTPUTS
from jupyter_amltrain.azure import environments, job_body, job_support, mirror_store
from jupyter_amltrain.azure import status as azure_status
from jupyter_amltrain.azure.client import NoReply
from jupyter_amltrain.azure.compute import OPERATION_TIMEOUT_S, AzureCompute
from jupyter_amltrain.azure.environments import environment_body
from jupyter_amltrain.azure.job_body import job_file
from jupyter_amltrain.azure.job_tracker import SYNC_TIMEOUT_S, JobTracker
from jupyter_amltrain.azure.named_environments import AzureEnvironments
from jupyter_amltrain.azure.polling import SingleFlight, poll_interval
from jupyter_amltrain.azure.schedules import AzureSchedules
from jupyter_amltrain.azure.sweep_body import sweep_problem
from jupyter_amltrain.azure.targets import AmlComputeTarget, AzureTarget, InstanceTarget, ServerlessTarget
from jupyter_amltrain.backends.base import Backend, LaunchPlan
from jupyter_amltrain.backends.capabilities import (
    ChildReader,
    NativeSweeps,
    TargetMonitors,
    TargetQuota,
    TargetSettings,
)
from jupyter_amltrain.backends.local_limits import data_type_of
from jupyter_amltrain.backends.provisioner import Progress, Provisioner, ProvisionState, RunPrice
from jupyter_amltrain.backends.run_files import OUTPUT_LIMIT, end_of, output_of
from jupyter_amltrain.backends.streams import Chunk, RunEvents, monitor_of, stream_of
from jupyter_amltrain.backends.target_files import TargetFiles
from jupyter_amltrain.errors import AmlTrainError, CommandError, SpecError, SubmitUnsure, TargetError, TargetUnreachable
from jupyter_amltrain.jobs.project_files import loss_notes, path_notes, project_files
from jupyter_amltrain.jobs.snapshot import Snapshot
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.child_run import ChildRuns
from jupyter_amltrain.schema.fields import TargetAction
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.provenance import DataDigest
from jupyter_amltrain.schema.run import Run, RunState, RunStatus, make_handle
from jupyter_amltrain.schema.run_file import OutValue, RunFile
from jupyter_amltrain.schema.search_space import as_choice, check_grid
from jupyter_amltrain.schema.searched_values import check_texts
from jupyter_amltrain.schema.sweep import Sweep
from jupyter_amltrain.schema.target import ComputeTarget, TargetInfo
from jupyter_amltrain.state_dir import StateRoot

#: Smallest limit of a job that the service keeps: it makes 60 days of a shorter one (a remark in the SDK's source).
MIN_LIMIT_S = 60.0


async def submit_with_recovery(
    ask: Callable[..., Awaitable[Any]], op: str, name: str, silence: float, **payload: Any
) -> Any:
    """Submit a job in the Azure process.

    If that process ends during the request, the next one checks whether the service has the job: a job
    that is billed is never reported as rejected.

    Parameters
    ----------
    ask
        :meth:`.compute.AzureCompute.request`.
    name
        Unique name of the job.
    silence
        Seconds without an event before the submit is given up.

    Raises
    ------
    TargetUnreachable
        The process ended before the service had the job.
    SubmitUnsure
        There was no reply within half a minute (``AMLTRAIN_AZURE_UNSURE``, seconds).
    """
    testing.hit("kernel_before_submit")
    try:
        submitted = await ask(op, None, silence, **payload)
    except NoReply as error:
        submitted = await _recover_submit(ask, name, error)
    testing.hit("kernel_after_submit")
    return submitted


async def _recover_submit(ask: Callable[..., Awaitable[Any]], name: str, error: NoReply) -> dict[str, Any]:
    deadline = time.monotonic() + float(os.environ.get("AMLTRAIN_AZURE_UNSURE") or 30)
    absent_count = 0
    while True:
        try:
            job = await ask("jobs.get", name=name)
        except TargetError as no_reply:
            if time.monotonic() > deadline:
                raise SubmitUnsure(
                    f"{error.message} It is not known whether {name} was accepted.",
                    hint="When Azure responds again, check with %aml_runs before you submit it again.",
                ) from no_reply
        else:
            if job is not None:
                return {"name": name, "created": job["row"].get("created")}
            absent_count += 1
            if absent_count > 1:  # a request in flight when the process ended has arrived by now
                raise TargetUnreachable(f"{error.message} {name} was not submitted.", hint="Submit it again.")
        await asyncio.sleep(min(1.0, poll_interval()))


#: Seconds after the last call until a monitor ends.
MONITOR_LIFETIME_S = 30.0
#: Poll intervals between two requests to Azure Monitor, which has one value per minute.
MONITOR_POLL_INTERVALS = 15.0
#: Seconds before its begin from which a monitor has values.
READ_BACK_S = 1800.0


class _Watch:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requested_at = time.monotonic()
        self.read_at = -1e9
        self.since = time.time() - READ_BACK_S
        self.empty = False  #: whether the last read brought no values


class MachineMonitors(TargetMonitors):
    """Monitors of a compute's machines without a run, from Azure Monitor: one value per minute."""

    def __init__(self, compute: AzureCompute) -> None:
        self._compute = compute
        self._watches: dict[str, _Watch] = {}

    async def start(self, monitor_id: str, gpus: Sequence[int] | None, period: float) -> str:
        """See :meth:`TargetMonitors.start`; one value per minute from Azure Monitor, some minutes late.

        Raises
        ------
        CommandError
            The machines have no GPU with a requested index, or the target has no machines without a run.
        """
        monitor_of(f"monitors/{monitor_id}")
        compute = self._compute
        if reason := self._unsupported_reason():
            raise CommandError(f"{compute.target.name!r} cannot be monitored: {reason}", code="monitor.unsupported")
        size = compute.size()
        indices = range(int(size.gpus or 0)) if size is not None else range(16)
        for index in gpus or ():
            if index not in indices:
                listed = f"Available: {', '.join(map(str, indices))}." if indices else "It has no GPU."
                raise CommandError(f"There is no GPU {index} on this machine. {listed}")
        watch = self._watches.get(monitor_id)
        if watch is None or time.monotonic() - watch.requested_at > MONITOR_LIFETIME_S:
            root, name = compute.root.path, compute.workspace().name
            folder = mirror_store.folder_of(root, name, "monitors") / monitor_id
            await compute.loop.offload(lambda: mirror_store.remove(folder))
            watch = self._watches[monitor_id] = _Watch(folder)
        watch.requested_at = time.monotonic()
        return str(watch.folder)

    async def fresh(self, monitor_id: str) -> Path | None:
        """Return the folder of a monitor, up to date; ``None`` when it has ended."""
        watch = self._watches.get(monitor_id)
        if watch is None or time.monotonic() - watch.requested_at > MONITOR_LIFETIME_S:
            self._watches.pop(monitor_id, None)
            return None
        if time.monotonic() - watch.read_at >= MONITOR_POLL_INTERVALS * poll_interval():
            watch.read_at = time.monotonic()
            result: dict[str, Any] = await self._compute.request(
                "monitor.metrics",
                compute=self._compute.azure.compute_name,
                since=watch.since,
                folder=str(watch.folder),
            )
            watch.since = max(watch.since, float(result.get("until") or 0))
            watch.empty = not result.get("nodes")
        return watch.folder

    def no_samples_reason(self, monitor_id: str) -> str:
        """See :meth:`TargetMonitors.no_samples_reason`."""
        watch = self._watches.get(monitor_id)
        if watch is None or not watch.empty:
            return ""
        name, minutes = self._compute.azure.compute_name, READ_BACK_S / 60
        return (
            f"Azure Monitor has no values of {name!r} of the last {minutes:.0f} min:"
            " it has one a minute, some minutes late, while a job runs there."
        )

    def _unsupported_reason(self) -> str:
        if isinstance(self._compute.azure, ServerlessTarget):
            return "serverless has machines only while a run runs. The output and the dashboard of a run have its GPUs."
        return job_support.unsupported_reason(self._compute.kind, "command") or ""

    async def stop(self, monitor_id: str) -> None:
        """See :meth:`TargetMonitors.stop`."""
        watch = self._watches.pop(monitor_id, None)
        if watch is not None:
            await self._compute.loop.offload(lambda: mirror_store.remove(watch.folder))


class AzureFiles(TargetFiles):
    """Files of jobs: mirrors here, and the storage of the workspace.

    Parameters
    ----------
    uploads
        Progress of uploads of data, by run id.
    """

    sends_code = lists_by_service = True

    def __init__(self, compute: AzureCompute, jobs: JobTracker, uploads: Mapping[str, str]) -> None:
        self._compute, self._jobs, self._uploads = compute, jobs, uploads
        self._stored: dict[tuple[str, str], dict[str, Any]] = {}  #: run and path -> its place in the storage

    async def local_copy(self, run_id: str, path: str = "") -> str | None:
        """See :meth:`TargetFiles.local_copy`; covers the files that have been fetched."""
        file = self._jobs.folder(run_id) / path
        return str(file) if await self._compute.loop.offload(file.exists) else None

    async def list(self, run_id: str, folder: str = "") -> Sequence[RunFile]:
        """See :meth:`TargetFiles.list`; those of ``outputs`` and ``logs`` are in the workspace's storage."""
        if folder not in KEPT_LINKS:
            return await super().list(run_id, folder)
        # Values of --out and files of $AML_OUTPUT_DIR travel with the logs, those of ./outputs by themselves.
        ours = f"{service_job.FOLDER}/"
        places = (f"{ours}{OUTPUTS}/", f"{service_job.ARTIFACTS}/") if folder == OUTPUTS else (f"{folder}/",)
        named = folder == OUTPUTS  # those of $AML_OUTPUT_NAME are in a datastore, each in a folder of its name
        rows = await self._compute.request("jobs.files", name=run_id, paths=list(places), named=named)
        found: dict[str, RunFile] = {}
        for row in rows:
            if folder != OUTPUTS and row["path"].startswith(ours):
                continue
            below = next(row["path"][len(place) :] for place in places if row["path"].startswith(place))
            if below not in found:
                found[below] = RunFile(path=below, size=row["size"], modified=row["modified"])
                self._stored[run_id, f"{folder}/{below}"] = row["stored"]
        return sorted(found.values(), key=lambda file: file.path)

    async def read_part(self, run_id: str, path: str, offset: int, limit: int) -> bytes:
        """See :meth:`TargetFiles.read_part`."""
        folder = path.partition("/")[0]
        if folder not in KEPT_LINKS:
            return await super().read_part(run_id, path, offset, limit)
        if (run_id, path) not in self._stored:
            await self.list(run_id, folder)
        stored = self._stored.get((run_id, path))
        if stored is None:
            return b""
        data: bytes = await self._compute.request("jobs.file", name=run_id, offset=offset, limit=limit, **stored)
        return data

    async def log_path(self, run_id: str) -> str:
        """See :meth:`TargetFiles.log_path`."""
        return str(self._jobs.folder(run_id) / "log" / "rank-0.txt")

    async def outputs(self, run_id: str, names: Sequence[str]) -> Mapping[str, OutValue | AmlTrainError]:
        """See :meth:`TargetFiles.outputs`."""
        await self._jobs.synchronize(run_id)
        folder, handle = self._jobs.folder(run_id), make_handle(self._compute.target.name, run_id)
        data = await self._compute.loop.offload(lambda: [mirror_store.output(folder, name) for name in names])
        rows = (await self._compute.loop.offload(lambda: mirror_store.children(folder))).runs
        best = next((row.id for row in rows if row.best and row.number is not None), None)
        if best is not None:  # the values of a sweep are those of its best trial
            files = [f"{service_job.FOLDER}/{OUTPUTS}/{name}.json" for name in names]
            found = (
                self._compute.request("jobs.file", name=best, path=file, offset=0, limit=OUTPUT_LIMIT + 1)
                for file in files
            )
            data = await asyncio.gather(*found)
        return {name: output_of(name, content, handle) for name, content in zip(names, data, strict=True)}

    async def known_runs(self) -> Sequence[Run]:
        """See :meth:`TargetFiles.known_runs`."""
        return await self._jobs.known_runs()

    async def copied_file(self, run_id: str, path: str) -> bytes:
        """See :meth:`TargetFiles.copied_file`."""
        return await self._compute.loop.offload(end_of, self._jobs.folder(run_id) / path)

    def sending(self, run_id: str) -> str:
        """See :meth:`TargetFiles.sending`; the progress of an upload of data."""
        return self._uploads.get(run_id, "")


class AzureChildren(ChildReader):
    """Steps and trials of jobs; a trial can be attached by its handle."""

    def __init__(self, files: TargetFiles, compute: AzureCompute, jobs: JobTracker) -> None:
        super().__init__(files, compute.target.name)
        self._compute, self._jobs = compute, jobs
        self._single_flight = SingleFlight()

    async def list(self, run_id: str) -> ChildRuns:
        """See :meth:`ChildReader.list`."""
        found = await super().list(run_id)
        rows = (
            msgspec.structs.replace(row, handle=make_handle(self._target, row.id)) if row.number is not None else row
            for row in found.runs
        )
        return msgspec.structs.replace(found, runs=tuple(rows))

    async def read_log(self, run_id: str, child: str, offset: int, limit: int = 1 << 20) -> Chunk:
        """See :meth:`ChildReader.read_log`; fetches the child's log on demand."""
        runs = (await self.list(run_id)).runs
        if not any(run.id == child for run in runs) or not job_body.is_job_name(child):
            raise CommandError(f"{make_handle(self._target, run_id)} has no step or trial {child[:80]!r}.")
        folder = self._jobs.folder(run_id) / mirror_store.CHILD_LOGS / child
        if not await self._compute.loop.offload(lambda: mirror_store.is_complete(folder)):
            payload = {"name": child, "folder": str(folder), "streams": ("log",), "only_log": True}
            await self._single_flight.run(
                f"{run_id} {child}", lambda: self._compute.request("mirror.sync", None, SYNC_TIMEOUT_S, **payload)
            )
        return Chunk(*await self._compute.loop.offload(lambda: mirror_store.read(folder, "log", offset, limit)))


class AzureSweeps(NativeSweeps):
    """Sweeps that the service runs; the finite expressions of a grid become choices."""

    def __init__(self, compute: AzureCompute) -> None:
        self._compute = compute

    def complete(self, sweep: Sweep) -> Sweep:
        """See :meth:`NativeSweeps.complete`."""
        if reason := job_support.unsupported_type_reason(self._compute.kind, "sweep") or sweep_problem(sweep):
            raise SpecError(reason, code="azure.sweep", field="sweep")
        if sweep.seed is not None and sweep.seed >= 2**31:
            raise SpecError(
                "Azure ML has seeds up to 2**31 - 1.", hint="Try: --seed 1", code="azure.sweep", field="seed"
            )
        space = dict(sweep.space)
        if sweep.sampler == "grid":
            check_grid(space)
            space = {name: as_choice(e) for name, e in space.items()}
        check_texts(space)
        limits = sweep.limits
        if limits.max_duration_s is not None:
            seconds = max(limits.max_duration_s, MIN_LIMIT_S)
            limits = msgspec.structs.replace(limits, max_duration_s=seconds)
        return msgspec.structs.replace(sweep, space=space, limits=limits)


class AzureQuota(TargetQuota):
    """Quota of the workspace of a compute, in its region."""

    def __init__(self, compute: AzureCompute) -> None:
        self._compute = compute

    async def read(self, *, everything: bool = False) -> tuple[str, list[dict[str, Any]]]:
        """See :meth:`TargetQuota.read`."""
        from jupyter_amltrain.azure.commands.sizes import quota_rows, quota_text

        quotas = await self._compute.quotas()
        return quota_text(quotas, everything=everything), quota_rows(quotas)


_SURVIVES = {"answer": "yes", "why": "the job runs in Azure"}


class AzureBackend(Backend, Provisioner):
    """Backend of one compute of an Azure ML workspace."""

    Target: ClassVar[type[ComputeTarget]] = AzureTarget
    keeps_history: ClassVar[bool] = True
    monitors: MachineMonitors
    environments: AzureEnvironments

    def __init__(self, target: ComputeTarget, loop: LoopThread, root: StateRoot) -> None:
        self.compute = AzureCompute(target, loop, root)
        self.environments = AzureEnvironments(self.compute)
        self.jobs = JobTracker(self.compute)
        self._loop = loop
        self._uploads: dict[str, str] = {}  #: progress of uploads of data, by run id
        super().__init__(target, AzureFiles(self.compute, self.jobs, self._uploads))
        self.children = AzureChildren(self.files, self.compute, self.jobs)
        self.monitors = MachineMonitors(self.compute)
        self.sweeps = AzureSweeps(self.compute)
        self.quota = AzureQuota(self.compute)
        self.schedules = AzureSchedules(self.compute, self._yaml_payload)
        if isinstance(target, InstanceTarget):
            names = ("idle_shutdown", "schedule_start", "schedule_stop")
            self.settings = TargetSettings(target.name, **dict.fromkeys(names, self.compute.configure))

    @property
    def target(self) -> ComputeTarget:
        """The stored target; an operation on the compute may change it."""
        return self.compute.target

    @target.setter
    def target(self, target: ComputeTarget) -> None:
        self.compute.target = target

    # ---- target

    def _place(self, arm_id: str, spec: JobSpec) -> job_body.JobLocation:
        target, size = self.compute.of_run(spec), self.compute.size(spec.resources.instance_type)
        serverless = isinstance(target, ServerlessTarget)
        return job_body.JobLocation(
            arm_id=arm_id,
            compute="" if serverless else target.compute_name,
            size=target.size if isinstance(target, ServerlessTarget) else "",
            gpus=None if size is None else int(size.gpus or 0),
            tier=target.tier.lower() if isinstance(target, ServerlessTarget) else "",
            own_machines=isinstance(target, (AmlComputeTarget, InstanceTarget)),
        )

    async def check(self) -> TargetInfo:
        """See :meth:`Backend.check`."""
        target = self.compute.azure
        state = await self.state()
        if state.state == "failed":
            hint = "" if self.compute.is_missing else "See: %aml_compute list"  # the detail has the command
            raise TargetError(state.detail, hint=hint).about(repr(target.name))
        max_nodes = state.max_nodes or 1
        queued, running = await self._count_jobs()
        gpus = int(state.gpus or 0)
        slots = {"cpu": {"total": max_nodes, "free": max(0, max_nodes - running)}}
        if gpus:
            slots["gpu"] = {"total": max_nodes * gpus, "free": max(0, max_nodes - running) * gpus}
        return TargetInfo(
            target=target.name,
            kind=self.compute.kind,
            cpus=state.cpus,
            memory=None if state.memory is None else int(state.memory),
            gpus=tuple({"index": i, "name": state.gpu_name, "uuid": ""} for i in range(gpus)),
            slots=slots,
            stops=state.stops,
            queued=queued,
            running=running,
            survives=dict.fromkeys(("kernel", "server", "logout", "container"), _SURVIVES),
            home=self.compute.workspace().arm_id,
            detail=state.detail or f"{state.size}, {state.state}",
        )

    async def _count_jobs(self) -> tuple[int, int]:
        listing = await self.jobs.listed(())
        statuses = [azure_status.status_of(job["row"]) for job in listing["jobs"]]
        running = sum(status is not None and status.state is RunState.RUNNING for status in statuses)
        waiting = (RunState.QUEUED, RunState.PREPARING)
        return sum(status is not None and status.state in waiting for status in statuses), running

    # ---- submitting

    def complete_spec(self, spec: JobSpec) -> JobSpec:
        """See :meth:`Backend.complete_spec`; fills in the environment and the packages of ``--env kernel``."""
        spec = msgspec.structs.replace(spec, files=project_files(spec))
        size = self.compute.size(spec.resources.instance_type)
        return environments.with_environment(spec, str(getattr(self.target, "env", "")), bool(size and size.gpus))

    def check_job(self, spec: JobSpec) -> None:
        """See :meth:`Backend.check_job`; of a file of ``az ml`` the service checks the rest."""
        kind, resources = self.compute.kind, spec.resources
        if spec.job_type:
            reasons = [job_support.unsupported_type_reason(kind, spec.job_type)]
        else:
            kinds = ("command", *(["gpu"] if resources.gpus else []))
            reasons = [job_support.unsupported_reason(kind, what) for what in kinds]
        if resources.nodes > 1:
            reasons.append(job_support.unsupported_reason(kind, "nodes"))
        for reason in filter(None, reasons):
            raise SpecError(reason, code="azure.unsupported", details={"kind": kind})
        if spec.job_type:
            return
        super().check_job(spec)
        job_body.check(spec, self._place("", spec))
        for name, data in spec.inputs.items():
            if data.upload and (found := data_type_of(data)) != data.type:
                reason = f"the data has the type {found}." if found else "there is no such file or folder."
                raise SpecError(f"--input {name}={data.path}: {reason}", code="azure.input", field="inputs")

    async def plan(self, spec: JobSpec, snapshot: Snapshot, run_id: str) -> LaunchPlan:
        """See :meth:`Backend.plan`."""
        self.check_job(spec)
        if spec.job_type:
            return await self._plan_yaml(spec, snapshot, run_id)
        job_body.check_files(snapshot)
        facts = self.compute.workspace()
        await self.compute.check_run(spec)
        place = self._place(facts.arm_id, spec)
        sizes = await self._loop.offload(lambda: _sizes(snapshot))
        request = job_body.request_of(spec, snapshot, place, job_body.job_name(run_id), self._tags(spec))
        request["code"]["files"] = {name: sizes.get(name) for name in request["code"]["files"]}
        notes = await self.environments.notes_of(spec, snapshot, request["environment"])
        notes = (*notes, *await self._loop.offload(path_notes, spec, snapshot, self.target.name))
        notes = (*notes, *await self._loop.offload(loss_notes, spec))
        return LaunchPlan(run_id=run_id, spec=spec, snapshot=snapshot, request={"run": run_id, **request}, notes=notes)

    async def _plan_yaml(self, spec: JobSpec, snapshot: Snapshot, run_id: str) -> LaunchPlan:
        place, name = self._place(self.compute.workspace().arm_id, spec), job_body.job_name(run_id)
        payload = self._yaml_payload(spec, name)
        await self.compute.check_run(spec)
        await self.compute.request("jobs.yaml_check", None, SYNC_TIMEOUT_S, job=payload)
        request = job_body.yaml_request_of(spec, place, name, self._tags(spec))
        return LaunchPlan(run_id=run_id, spec=spec, snapshot=snapshot, request={"run": run_id, **request})

    def _yaml_payload(self, spec: JobSpec, name: str = "") -> dict[str, Any]:
        """Return a YAML job as the service process takes it."""
        place = self._place(self.compute.workspace().arm_id, spec)
        return job_body.yaml_payload_of(spec, place, name, self._tags(spec))

    def _tags(self, spec: JobSpec) -> dict[str, str]:
        return job_body.tags_of(spec, self.target.name, __version__)

    async def launch(self, plan: LaunchPlan, environ: Mapping[str, str], secrets: Mapping[str, str]) -> Run:
        """See :meth:`Backend.launch`. The submitter's environment is not sent to Azure."""
        spec, name = plan.spec, job_body.job_name(plan.run_id)
        place = self._place(self.compute.workspace().arm_id, spec)
        if spec.job_type:
            payload = self._yaml_payload(spec, name)
            return await self._record_launch(
                plan,
                await submit_with_recovery(self.compute.request, "jobs.yaml", name, OPERATION_TIMEOUT_S, job=payload),
            )
        plan = await self._upload_inputs(plan)
        body = job_body.body_of(plan.spec, place, "")
        body["tags"] = self._tags(spec)
        git = job_body.git_properties(plan.origin.provenance.git)
        body["properties"] = {**git, **job_body.properties_of(spec)}
        if spec.sweep is not None:  # ARM reports the compute of command jobs only
            body["properties"][job_body.COMPUTE_PROPERTY] = place.compute
        environment = environment_body(spec, place.gpus)
        job = {
            "name": name,
            "body": body,
            "environment": environment,
            "code": {
                "script": spec.script_name,
                "digest": plan.snapshot.digest,
                "job_file": job_file(spec),
            },
        }
        submitted = await submit_with_recovery(
            self.compute.request, "jobs.submit", name, OPERATION_TIMEOUT_S, job=job, files=plan.snapshot.files
        )
        run = await self._record_launch(msgspec.structs.replace(plan, spec=spec), submitted)
        notes = plan.notes
        if conda := str(submitted.get("conda") or ""):  # the service's own description takes precedence
            notes = await self.environments.notes_of(spec, plan.snapshot, environment, conda)
        return msgspec.structs.replace(run, notes=notes)

    async def _upload_inputs(self, plan: LaunchPlan) -> LaunchPlan:
        """Upload the inputs that are to be uploaded; return the plan with their addresses and digests."""
        inputs, digests = dict(plan.spec.inputs), dict(plan.origin.provenance.inputs)

        def progress(text: str) -> None:
            self._uploads[plan.run_id] = text

        try:
            for name, data in plan.spec.inputs.items():
                if not data.upload:
                    continue
                sent = await self.compute.request("data.send", progress, OPERATION_TIMEOUT_S, path=data.path)
                inputs[name] = msgspec.structs.replace(data, path=str(sent["uri"]), upload=False)
                found = digests.get(name) or DataDigest(path=data.path, files=sent["files"], bytes=sent["bytes"])
                digests[name] = found if found.sha256 else msgspec.structs.replace(found, sha256=str(sent["sha256"]))
        finally:
            self._uploads.pop(plan.run_id, None)
        provenance = msgspec.structs.replace(plan.origin.provenance, inputs=digests)
        origin = plan.origin._replace(provenance=provenance)
        return msgspec.structs.replace(plan, spec=msgspec.structs.replace(plan.spec, inputs=inputs), origin=origin)

    async def _record_launch(self, plan: LaunchPlan, submitted: Mapping[str, Any]) -> Run:
        """Create the mirror and the run of a job that the service has accepted."""
        spec, name = plan.spec, str(submitted["name"])
        self.jobs.mark_accepted(name)
        created = float(submitted.get("created") or time.time())
        folder = self.jobs.folder(name)
        more = self.target.name, plan.snapshot.digest, plan.origin
        await self._loop.offload(lambda: mirror_store.create(folder, name, spec, created, *more))
        links = (
            {"kind": "studio", "title": "Azure ML studio", "url": url} for url in [submitted.get("studio_url")] if url
        )
        status = RunStatus(state=RunState.QUEUED, links=azure_status.links_of({"links": list(links)}))
        return self.jobs.make_run(name, spec, status, created, folder)

    # ---- cancel and delete

    async def cancel(self, run_id: str) -> None:
        """See :meth:`Backend.cancel`."""
        await self.compute.request("jobs.cancel", name=run_id)
        self.jobs.refresh(run_id)

    async def delete(self, run_id: str) -> None:
        """See :meth:`Backend.delete`; archives the job at the service, which does not delete jobs."""
        row = (await self.compute.request("jobs.poll", names=[run_id])).get(run_id)
        if row is not None:
            status = azure_status.status_of(row)
            if status is None or not status.state.terminal:
                handle = make_handle(self.target.name, run_id)
                raise CommandError(f"{handle} has not ended.", hint=f"Cancel it first: %aml_runs cancel {handle}")
            await self.compute.request("jobs.archive", name=run_id)
        folder = self.jobs.folder(run_id)
        await self._loop.offload(lambda: mirror_store.remove(folder))
        self.jobs.forget(run_id)

    # ---- reading

    async def read(self, run_id: str, stream: str, offset: int, limit: int = 1 << 20) -> Chunk:
        """See :meth:`Backend.read`."""
        stream_of(stream)
        if (watch := monitor_of(run_id)) is not None:
            folder = await self.monitors.fresh(watch)
            if folder is None:
                return Chunk(b"", max(0, offset))
        else:
            folder = self.jobs.folder(run_id)
            if offset >= 0:  # return available bytes without waiting for new ones
                available = await self._loop.offload(lambda: mirror_store.read(folder, stream, offset, limit))
                if available[0]:
                    return Chunk(*available)
            await self.jobs.synchronize(run_id)
        mirror = folder
        return Chunk(*await self._loop.offload(lambda: mirror_store.read(mirror, stream, offset, limit)))

    async def download(self, run_id: str, folder: str, progress: Any = None) -> Sequence[str]:
        """Download the files in a run's ``./outputs``; return their paths."""
        result = await self.compute.request("jobs.outputs", progress, OPERATION_TIMEOUT_S, name=run_id, folder=folder)
        return [str(path) for path in result["files"]]

    async def close(self) -> None:
        """See :meth:`Backend.close`. The loop's client ends the process."""
        self.jobs.watched.clear()

    # ---- jobs: see JobTracker

    async def poll(self, run_ids: Sequence[str]) -> Mapping[str, RunStatus]:
        """See :meth:`Backend.poll`."""
        found = await self.jobs.poll(run_ids)
        self.absence_reasons |= {run_id: self.jobs.lost_reason(run_id) for run_id in run_ids if run_id not in found}
        return found

    async def find(self, run_id: str) -> Run | None:
        """See :meth:`Backend.find`."""
        return await self.jobs.find(run_id)

    async def list(self, known: Collection[str] = ()) -> tuple[Collection[str], Sequence[Run]]:
        """See :meth:`Backend.list`."""
        return await self.jobs.list(known)

    def events(self) -> RunEvents:
        """See :meth:`Backend.events`."""
        return self.jobs.events()

    # ---- compute: see AzureCompute

    def adopts_runs_of(self, past: ComputeTarget) -> bool:
        """See :meth:`Provisioner.adopts_runs_of`."""
        return self.compute.adopts_runs_of(past)

    async def state(self) -> ProvisionState:
        """See :meth:`Provisioner.state`."""
        return await self.compute.state()

    def state_for(self, spec: JobSpec, state: ProvisionState) -> ProvisionState:
        """See :meth:`Provisioner.state_for`."""
        return self.compute.state_for(spec, state)

    def run_price(self, spec: JobSpec, state: ProvisionState) -> RunPrice | None:
        """See :meth:`Provisioner.run_price`."""
        return self.compute.run_price(spec, state)

    async def is_gone(self) -> bool:
        """See :meth:`Provisioner.is_gone`."""
        return await self.compute.is_gone()

    async def create(self, progress: Progress) -> None:
        """See :meth:`Provisioner.create`."""
        await self.compute.create(progress)

    async def remove(self, progress: Progress) -> None:
        """See :meth:`Provisioner.remove`."""
        await self.compute.remove(progress)

    async def start(self, progress: Progress) -> None:
        """See :meth:`Provisioner.start`."""
        await self.compute.start(progress)

    async def stop(self, progress: Progress) -> None:
        """See :meth:`Provisioner.stop`."""
        await self.compute.stop(progress)

    async def restart(self, progress: Progress) -> None:
        """See :meth:`Provisioner.restart`."""
        await self.compute.restart(progress)

    async def scale(self, settings: Mapping[str, Any], progress: Progress) -> None:
        """See :meth:`Provisioner.scale`."""
        await self.compute.scale(settings, progress)

    async def prepare(self) -> None:
        """See :meth:`Provisioner.prepare`."""
        await self.compute.prepare()

    def field_errors(self) -> dict[str, str]:
        """See :meth:`Provisioner.field_errors`."""
        return self.compute.field_errors()

    def confirmation(self, verb: str, values: Mapping[str, Any], *, running: int, queued: int = 0) -> str:
        """See :meth:`Provisioner.confirmation`."""
        return self.compute.confirmation(verb, values, running=running, queued=queued)

    def actions(self, state: ProvisionState) -> tuple[TargetAction, ...]:
        """See :meth:`Provisioner.actions`."""
        return self.compute.actions(state)


def _sizes(snapshot: Snapshot) -> dict[str, int]:
    sizes = {}
    for name, content in snapshot.files.items():
        try:
            sizes[name] = len(content) if isinstance(content, bytes) else os.stat(content).st_size
        except OSError:
            continue
    return sizes
