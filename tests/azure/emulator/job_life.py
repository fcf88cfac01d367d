"""The life of a command job: from the PUT that is accepted to its last blob."""

from __future__ import annotations

import asyncio
import re
import tempfile
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.azure.emulator import bindings, builds, executor, gpus, images, job_environ, job_shapes, ranks, sizes
from tests.azure.emulator.blob import ARTIFACTS
from tests.azure.emulator.datastores import place, storage
from tests.azure.emulator.nodes import Lease, NodesRefused
from tests.azure.emulator.uploads import Uploads
from tests.azure.emulator.world import World

T = TypeVar("T")


class Canceled(Exception):
    """Somebody asked for the job's end, or its time is over."""


class JobFailed(Exception):
    """The job cannot go on: `code` and message go to its run record."""

    def __init__(self, code: str, message: str, inner: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.inner = code, message, inner


class Preempted(Exception):
    """The nodes of a low-priority job were taken away."""


@dataclass
class Run:
    """One job as the emulator knows it beside its ARM resource."""

    world: World
    workspace_id: str
    name: str
    resource: dict[str, Any]
    number: int
    cluster: str | None = None
    size: str = ""
    low_priority: bool = False
    attempt: int = 1
    started_at: str | None = None
    ended_at: str | None = None
    began: float = 0.0
    ended: float = 0.0
    modified_at: str = ""
    revision: int = 1
    status_revision: int = 1
    reason: str = ""
    error: dict[str, Any] | None = None
    warnings: list[str] = field(default_factory=list)
    cancelation_reason: str | None = None
    output_assets: dict[str, Any] = field(default_factory=dict)
    nodes: int = 0
    times: dict[str, float] = field(default_factory=dict)
    canceled: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    execution: executor.Execution | None = None
    gpus: int = 0

    @property
    def properties(self) -> dict[str, Any]:
        """``properties`` of the ARM resource."""
        found: dict[str, Any] = self.resource["properties"]
        return found

    @property
    def status(self) -> str:
        """The job's state in the service's words."""
        return str(self.properties["status"])

    @property
    def prefix(self) -> str:
        """Where its artifacts begin in their container."""
        return f"ExperimentRun/dcid.{self.name}/"

    def set(self, status: str) -> None:
        """Go to a state."""
        self.properties["status"] = status
        self.times[status] = time.time()
        self.status_revision += 1
        self.touch()

    def touch(self) -> None:
        """Something of it has changed."""
        self.revision += 1
        self.modified_at = self.world.clock.stamp()

    def seconds(self) -> float:
        """Seconds that it has run."""
        return (self.ended or time.time()) - self.began if self.began else 0.0


class Jobs:
    """All jobs of the world, and the folder in which they run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.runs: dict[str, Run] = {}
        self.built: set[str] = set()
        self._root: Path | None = None

    @property
    def root(self) -> Path:
        """Folder of all nodes' folders; anybody may pass through."""
        if self._root is None:
            self._root = Path(tempfile.mkdtemp(prefix="azure-nodes-"))
            self._root.chmod(0o755)
        return self._root

    async def close(self) -> None:
        """Kill what runs, remove the folder."""
        for run in self.runs.values():
            if run.execution is not None:
                run.execution.kill()
        if self._root is not None:
            await asyncio.to_thread(executor.kill_inside, self._root)
            await asyncio.to_thread(executor.remove, self._root)

    def of(self, name: str) -> Run | None:
        """A run by the job's name."""
        return self.runs.get(name)

    def begin(self, run: Run) -> None:
        """Take a job; its life goes on in the background."""
        self.runs[run.name] = run
        run.modified_at = self._world.clock.stamp()
        run.times[run.status] = time.time()
        self._world.spawn(Life(self, run).live(), f"job {run.name}")


class Life:
    """Takes one command job through its states."""

    def __init__(self, jobs: Jobs, run: Run) -> None:
        self.jobs, self.run, self.world = jobs, run, run.world
        self.blob = storage(run.world)
        self.uploads: Uploads | None = None
        self.stopping = asyncio.Event()

    async def live(self) -> None:
        """From Starting to a terminal state."""
        run = self.run
        try:
            if run.properties["jobType"] != "Command":
                end = await self._elsewhere()
            else:
                end = await self._command()
        except Canceled:
            end = "Canceled"
        except JobFailed as failed:
            run.error = job_shapes.error(failed.code, failed.message, failed.inner)
            end = "Failed"
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.world.problems.append(f"job {run.name}: {type(error).__name__}: {error}")
            run.error = job_shapes.error("ServiceError", f"{type(error).__name__}: {error}")
            end = "Failed"
        run.reason = ""
        run.ended, run.ended_at = time.time(), self.world.clock.stamp()
        run.properties["properties"]["EndTimeUtc"] = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        run.set(end)
        run.over.set()

    async def _elsewhere(self) -> str:
        """Jobs that nothing here executes (sweeps, pipelines, AutoML, Spark): their states alone."""
        for state in ("Preparing", "Running"):
            await self._or_canceled(self._pause("job_seconds"))
            self.run.set(state)
            if state == "Running":
                self.run.began, self.run.started_at = time.time(), self.world.clock.stamp()
        await self._or_canceled(self.world.clock.sleep(10 * float(self.world.switches["job_seconds"])))
        return "Completed"

    async def _command(self) -> str:
        run = self.run
        await self._or_canceled(self._pause("job_seconds"))
        run.set("Preparing")
        image = await self._or_canceled(builds.ready(self.jobs, run))
        while True:
            run.set("Queued")
            lease = await self._lease()
            try:
                if self.world.switches["queued_to_preparing"]:
                    run.set("Preparing")
                    await self._or_canceled(self._pause("job_seconds"), lease)
                return await self._attempt(lease, image)
            except Preempted:
                run.attempt += 1
                run.warnings.append(
                    "The job was preempted: its low priority nodes were taken away. It is queued again."
                )
            finally:
                self.world.nodes.release(lease)
                if run.cluster is None and run.status not in ("Running", "Queued"):
                    self.world.nodes.drop_serverless(run.name)

    async def _lease(self) -> Lease:
        run = self.run
        count = int(run.properties["resources"]["instanceCount"])
        nodes = self.world.nodes
        if run.cluster is None:
            wanted = nodes.acquire_serverless(run.size, count, job=run.name, low_priority=run.low_priority)
        else:
            wanted = nodes.acquire(run.properties["computeId"], count, job=run.name)
        watching = self.world.spawn(self._watch_queue(), f"queue of {run.name}")
        try:
            return await self._or_canceled(wanted)
        except NodesRefused as refused:
            raise JobFailed("UserError", refused.message, refused.code) from None
        finally:
            watching.cancel()
            run.reason = ""

    async def _watch_queue(self) -> None:
        """While it waits: the reason, and the cluster's state in a tag (recording 07a)."""
        run = self.run
        while True:
            run.reason = self.world.nodes.reason(run.name)
            if run.cluster is not None:
                pool = self.world.nodes.pool(run.properties["computeId"])
                run.properties["tags"]["_aml_system_ComputeTargetStatus"] = job_shapes.cluster_status(pool)
            await asyncio.sleep(0.05)

    # --------------------------------------------------------------------------------------------------------- attempt
    async def _attempt(self, lease: Lease, image: images.Image) -> str:
        run = self.run
        place_of = executor.Place(self.jobs.root / run.name / f"attempt-{run.attempt}", len(lease.nodes), image)
        place_of.root.mkdir(parents=True)
        try:
            return await self._inside(lease, place_of)
        finally:
            if run.execution is not None:
                run.execution.kill()
                run.execution = None
            await asyncio.to_thread(executor.kill_inside, place_of.root)
            await asyncio.to_thread(place_of.remove)

    async def _inside(self, lease: Lease, here: executor.Place) -> str:
        run, properties = self.run, self.run.properties
        try:
            inputs = await self._or_canceled(
                bindings.fetch(self.world, run.workspace_id, properties["inputs"] or {}, here.root / "cap"), lease
            )
        except bindings.NoInput as missing:
            raise JobFailed("UserError", str(missing)) from None
        outputs = bindings.prepare(properties["outputs"], here.root / "cap")
        await self._or_canceled(self._code(here), lease)
        layout = ranks.ranks(
            properties["distribution"],
            len(lease.nodes),
            "127.0.0.1",
            executor.free_ports(16),
            str(self.world.switches["std_log_names"]),
        )
        env = job_environ.environ(run, inputs, outputs)
        try:
            command = ranks.bound(properties["command"], inputs, outputs)
        except KeyError as missing:
            raise JobFailed("UserError", f"The command names {missing}, which is no input or output.") from None
        run.gpus = int((sizes.find(run.size) or {}).get("gpus") or 0) if self.world.switches["fake_gpus"] else 0
        node_env = [
            await asyncio.to_thread(gpus.environ, run.gpus, here.root / f"node-{node}")
            for node in range(len(lease.nodes))
        ]
        run.execution = executor.Execution(here, layout, command, env, node_env)
        self.uploads = await self._destinations(here, outputs)
        await run.execution.start()
        if run.started_at is None:
            run.began, run.started_at = time.time(), self.world.clock.stamp()
            properties["properties"].update(
                ProcessInfoFile="azureml-logs/process_info.json",
                ProcessStatusFile="azureml-logs/process_status.json",
                StartTimeUtc=time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
            )
        run.nodes = len(lease.nodes)
        run.set("Running")
        self.stopping = asyncio.Event()
        copying = self.world.spawn(self._copy(), f"uploads of {run.name}")
        try:
            end = await self._until_end(lease, run.execution)
        finally:
            # Not cancelled: bytes on their way would be sent a second time by the last copy.
            self.stopping.set()
            await asyncio.gather(copying, return_exceptions=True)
        return await self._finish(end, layout, here)

    async def _until_end(self, lease: Lease, execution: executor.Execution) -> executor.Exit | None:
        """How its processes ended; None: they were asked to (cancel or time limit)."""
        grace = float(self.world.switches["cancel_grace"]) / self.world.clock.speed
        limit = ranks.seconds((self.run.properties["limits"] or {}).get("timeout"))
        try:
            return await self._or_canceled(execution.wait(grace), lease, limit)
        except Canceled:
            await execution.end(grace)
            return None
        except Preempted:
            execution.kill()
            raise

    async def _finish(self, end: executor.Exit | None, layout: list[ranks.Rank], here: executor.Place) -> str:
        run = self.run
        if end is not None:
            run.set("Finalizing")
        assert self.uploads is not None
        await self.uploads.copy(last=True)
        await self._keep_outputs()
        if end is None:
            if run.cancelation_reason is not None and self.world.switches["timeout_state"] == "Failed":
                raise JobFailed("UserError", run.cancelation_reason, "JobTimedOut")
            raise Canceled
        await self._pause("job_seconds")
        if end.code:
            code = end.code if end.code > 0 else 128 - end.code
            log = f"user_logs/{layout[end.rank].log}"
            last = _tail(here.log(layout[end.rank]))
            raise JobFailed(
                "UserError",
                f"Execution failed. User process '/bin/bash' exited with status code {code}. "
                f"Please check log file '{log}' for error. Error: {last}",
            )
        return "Completed"

    async def _code(self, here: executor.Place) -> None:
        """The job's code on every node."""
        said = str(self.run.properties.get("codeId") or "")
        if not said:
            await asyncio.to_thread(here.prepare, None)
            return
        code = self.world.resources.get(said.removeprefix("azureml:"))
        if code is None:
            raise JobFailed("UserError", f"Code asset {said} was not found.")
        container, prefix = await place(self.world, self.run.workspace_id, code["properties"]["codeUri"])
        prefix = prefix.rstrip("/") + "/" if prefix.strip("/") else ""
        folder = here.root / "code"
        folder.mkdir()
        for name, _ in await self.blob.list(container, prefix):
            target = folder / name[len(prefix) :]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(await self.blob.get(container, name) or b"")
        await asyncio.to_thread(here.prepare, folder)

    async def _destinations(self, here: executor.Place, outputs: dict[str, str]) -> Uploads:
        run = self.run
        live = bool(self.world.switches["logs_uploaded_live"])
        if run.attempt > 1:
            await self._again()
        folders = [(here.root / "user_logs", ARTIFACTS, f"{run.prefix}user_logs/", True)]
        for node in range(here.nodes):
            folders.append((here.code(node) / "logs", ARTIFACTS, f"{run.prefix}logs/", live))
            folders.append((here.code(node) / "outputs", ARTIFACTS, f"{run.prefix}outputs/", live))
        for name in outputs:
            uri = bindings.target(name, run.name, run.properties["outputs"][name])
            run.properties["outputs"][name]["uri"] = uri
            container, prefix = await bindings.destination(self.world, run.workspace_id, uri)
            folders.append((here.root / "cap" / f"OUTPUT_{name}", container, prefix, False))
        return Uploads(self.blob, folders)

    async def _again(self) -> None:
        """Logs of the attempt before: gone, or kept below ``retry_001/`` (switch ``retry_logs``)."""
        prefix = f"{self.run.prefix}user_logs/"
        for name, _ in await self.blob.list(ARTIFACTS, prefix):
            if self.world.switches["retry_logs"] == "folder":
                data = await self.blob.get(ARTIFACTS, name) or b""
                kept = f"{self.run.prefix}retry_{self.run.attempt - 1:03d}/{name[len(self.run.prefix) :]}"
                await self.blob.put(ARTIFACTS, kept, data, "text/plain")
            await self.blob.delete(ARTIFACTS, name)

    async def _copy(self) -> None:
        assert self.uploads is not None
        while not self.stopping.is_set():
            await self.uploads.copy()
            pause = max(0.03, float(self.world.switches["upload_seconds"]) / self.world.clock.speed)
            try:
                await asyncio.wait_for(self.stopping.wait(), pause)
            except asyncio.TimeoutError:
                pass

    async def _keep_outputs(self) -> None:
        """Named outputs become data assets that run history knows."""
        run = self.run
        for name, said in run.properties["outputs"].items():
            if name == "default":
                continue
            asset = f"azureml_{run.name}_output_data_{name}"
            from tests.azure.emulator import assets

            shape: dict[str, Any] = {
                "description": None,
                "tags": {},
                "properties": {},
                "isArchived": False,
                "isAnonymous": False,
            }
            shape.update(dataUri=said["uri"], dataType=said["jobOutputType"])
            assets.keep(self.world, run.workspace_id, "data", asset, "1", shape)
            workspace = self.world.resources.get(run.workspace_id) or {}
            guid = workspace.get("properties", {}).get("workspaceId", "0")
            run.output_assets[name] = {
                "assetId": f"azureml://locations/{self.world.location}/workspaces/{guid}/data/{asset}/versions/1",
                "type": "UriFile" if said["jobOutputType"] == "uri_file" else "UriFolder",
            }

    # --------------------------------------------------------------------------------------------------------- waiting
    async def _pause(self, switch: str) -> None:
        await self.world.clock.sleep(float(self.world.switches[switch]))

    async def _or_canceled(self, work: Awaitable[T], lease: Lease | None = None, limit: float | None = None) -> T:
        """Wait for `work`, a cancel, a pre-emption, or the end of the job's time.

        Raises
        ------
        Canceled, Preempted
            Whichever came first.
        """
        task = asyncio.ensure_future(work)
        others: dict[asyncio.Future[Any], str] = {asyncio.ensure_future(self.run.canceled.wait()): "canceled"}
        if lease is not None:
            others[asyncio.ensure_future(lease.preempted.wait())] = "preempted"
        if limit is not None:
            others[asyncio.ensure_future(self.world.clock.sleep(limit))] = "limit"
        try:
            done, _ = await asyncio.wait([task, *others], return_when=asyncio.FIRST_COMPLETED)
            if task in done:
                return task.result()
            ended = {others[one] for one in done}
            if "preempted" in ended and "canceled" not in ended:
                raise Preempted
            if "limit" in ended and "canceled" not in ended:
                self.run.cancelation_reason = "The job was canceled because it exceeded its maximum run duration."
            raise Canceled
        finally:
            for one in (task, *others):
                one.cancel()
            await asyncio.gather(task, *others, return_exceptions=True)


def _tail(path: Path) -> str:
    text = path.read_bytes()[-4096:].decode("utf-8", "replace").strip()
    return re.sub(r"\n+", "\n", text)[-800:]
