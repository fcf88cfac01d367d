"""One attempt of a command job on its nodes: data, code, processes, uploads."""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path
from typing import Any

from azureml_emulator import assets, bindings, executor, gpus, images, job_environ, ranks, sizes
from azureml_emulator.blob import ARTIFACTS
from azureml_emulator.datastores import place, storage
from azureml_emulator.job_runs import Canceled, JobFailed, Jobs, Preempted, Run, unless_ended
from azureml_emulator.pool import Lease
from azureml_emulator.uploads import Uploads


class Attempt:
    """Runs a job once; a job whose nodes are taken away has another attempt.

    Parameters
    ----------
    jobs, run
        The job.
    lease
        Its nodes.
    image
        What its processes find.
    """

    def __init__(self, jobs: Jobs, run: Run, lease: Lease, image: images.Image) -> None:
        self.jobs, self.run, self.world, self.lease, self.image = jobs, run, run.world, lease, image
        self.blob = storage(run.world)
        self.uploads: Uploads | None = None
        self.stopping = asyncio.Event()

    async def carry_out(self) -> str:
        """Run the attempt; returns the final state.

        Raises
        ------
        Canceled, Preempted, JobFailed
        """
        run = self.run
        folder = self.jobs.root / run.name / f"attempt-{run.attempt}"
        place_of = executor.Place(folder, len(self.lease.nodes), self.image)
        folder.mkdir(parents=True)
        try:
            return await self._inside(self.lease, place_of)
        finally:
            if run.execution is not None:
                run.execution.kill()
                run.execution = None
            await asyncio.to_thread(executor.kill_inside, place_of.root)
            await asyncio.to_thread(place_of.remove)

    async def _inside(self, lease: Lease, here: executor.Place) -> str:
        run, properties = self.run, self.run.properties
        try:
            inputs = await unless_ended(
                run, bindings.fetch(self.world, run.workspace_id, properties["inputs"] or {}, here.root / "cap"), lease
            )
        except bindings.NoInput as missing:
            raise JobFailed("UserError", str(missing)) from None
        outputs = bindings.prepare(properties["outputs"], here.root / "cap", run.name)
        await unless_ended(run, self._code(here), lease)
        layout = ranks.ranks(
            properties["distribution"],
            len(lease.nodes),
            "127.0.0.1",
            executor.free_ports(16),
            str(self.world.switches["std_log_names"]),
            bool(self.world.switches["mpi_by_node"]),
            str(self.world.switches["node_rank"]),
        )
        env = job_environ.environ(run, inputs, outputs)
        if self.image.mlflow:
            env.setdefault("PYTHONPATH", str(images.SITE))
        if programs := self.world.part(images.Programs).folder:
            env["PATH"] = os.pathsep.join([programs, images.path_of(self.image)])
        try:
            command = ranks.bound(properties["command"], inputs, outputs)
        except KeyError as missing:
            raise JobFailed("UserError", f"The command names {missing}, which is no input or output.") from None
        run.gpus = int((sizes.find(run.size) or {}).get("gpus") or 0) if self.world.switches["fake_gpus"] else 0
        foreign = int(self.world.switches["gpus_visible"] == "host")
        idle, count = not gpus.can_use(str(properties["environmentId"])), run.gpus and run.gpus + foreign
        node_env = [
            await asyncio.to_thread(gpus.environ, count, here.root / f"node-{node}", run.size, idle=idle)
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
            # Not canceled, because the last copy would send bytes in transit a second time.
            self.stopping.set()
            await asyncio.gather(copying, return_exceptions=True)
        return await self._finish(end, layout, here)

    async def _until_end(self, lease: Lease, execution: executor.Execution) -> executor.Exit | None:
        """How its processes ended; None: they were asked to (cancel or time limit)."""
        run = self.run
        grace = float(self.world.switches["cancel_grace"]) / self.world.clock.speed
        limit = ranks.seconds((run.properties["limits"] or {}).get("timeout"))
        try:
            return await unless_ended(run, execution.wait(grace), lease, limit)
        except Canceled:
            if self.world.switches["cancel_signal"] == "KILL":
                execution.kill()
            await execution.end(grace)
            return None
        except Preempted:
            run.set("Queued")
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
            reports_exit = self.world.switches["exit_reported"]
            raise JobFailed(
                "UserError",
                (f"Execution failed. User process '/bin/bash' exited with status code {code}. " if reports_exit else "")
                + f"Please check log file '{log}' for error. Error: {last}",
            )
        return "Completed"

    async def _code(self, here: executor.Place) -> None:
        """The job's code on every node."""
        code_id = str(self.run.properties.get("codeId") or "")
        if not code_id:
            await asyncio.to_thread(here.prepare, None)
            return
        code = self.world.resources.get(code_id.removeprefix("azureml:"))
        if code is None:
            raise JobFailed("UserError", f"Code asset {code_id} was not found.")
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
        for name in bindings.OWN[1:]:
            if name in run.properties["outputs"]:
                run.output_uris[name] = bindings.target(name, run.name, {})
        outputs_of = run.properties["outputs"]
        for name in outputs:
            uri = bindings.target(name, run.name, run.properties["outputs"][name])
            run.output_uris[name] = uri
            if self.world.switches["outputs_in_arm"]:
                run.properties["outputs"][name]["uri"] = uri
            kind = run.properties["outputs"][name]["jobOutputType"]
            container, prefix = await bindings.destination(self.world, run.workspace_id, uri, kind)
            folder, mounted = here.root / "cap" / f"OUTPUT_{name}", outputs_of[name].get("mode") == "ReadWriteMount"
            if mounted:  # what an earlier attempt has written is there
                for blob, _ in await self.blob.list(container, prefix):
                    file = folder / blob[len(prefix) :]
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(await self.blob.get(container, blob) or b"")
            folders.append((folder, container, prefix, mounted))
        switches = self.world.switches
        return Uploads(self.blob, folders, switches["uploader_user"] == "root", bool(switches["logs_appended"]))

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
        for name, output in run.properties["outputs"].items():
            if name in bindings.OWN:
                continue
            asset = f"azureml_{run.name}_output_data_{name}"
            shape: dict[str, Any] = {
                "description": None,
                "tags": {},
                "properties": {},
                "isArchived": False,
                "isAnonymous": False,
            }
            shape.update(dataUri=run.output_uris[name], dataType=output["jobOutputType"])
            assets.keep(self.world, run.workspace_id, "data", asset, "1", shape)
            workspace = self.world.resources.get(run.workspace_id) or {}
            guid = workspace.get("properties", {}).get("workspaceId", "0")
            run.output_assets[name] = {
                "assetId": f"azureml://locations/{self.world.location}/workspaces/{guid}/data/{asset}/versions/1",
                "type": "UriFile" if output["jobOutputType"] == "uri_file" else "UriFolder",
            }

    async def _pause(self, switch: str) -> None:
        await self.world.clock.sleep(float(self.world.switches[switch]))


def _tail(path: Path) -> str:
    text = path.read_bytes()[-4096:].decode("utf-8", "replace").strip()
    return re.sub(r"\n+", "\n", text)[-800:]
