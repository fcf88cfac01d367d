"""Jobs that are made of others (sweeps, pipelines, AutoML), and Spark: carried out as far as a test needs.

Each trial and step is a job that runs for real and that run history alone knows (recording 02: its id is a GUID, its
``displayName`` the step's name). Trials are in `job_sweeps`, steps in `job_pipelines`. Spark runs its Python entry by
the plain interpreter. AutoML trains nothing: it has one child with a metric.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import time
from typing import Any

from azureml_emulator import images, job_pipelines, job_shapes, job_sweeps
from azureml_emulator.blob import ARTIFACTS
from azureml_emulator.datastores import storage
from azureml_emulator.job_runs import Canceled, JobFailed, Jobs, Run, unless_ended

_CURATED = f"azureml:AzureML-sklearn-1.5:{images.CURATED['AzureML-sklearn-1.5'][-1]}"
_DEFAULT_SIZE = "Standard_DS3_v2"


class Parent:
    """Carries out one such job."""

    def __init__(self, jobs: Jobs, run: Run) -> None:
        self.jobs, self.run, self.world = jobs, run, run.world
        self.body = run.properties

    async def carry_out(self) -> str:
        """The state in which it ended.

        Raises
        ------
        Canceled, JobFailed
        """
        run = self.run
        pause = float(self.world.switches["job_seconds"])
        await unless_ended(run, self.world.clock.sleep(pause))
        if self.body["jobType"] == "Spark":
            return await self._spark()
        if run.status != "Running":
            run.set("Running")
        run.began, run.started_at = time.time(), self.world.clock.stamp()
        try:
            match self.body["jobType"]:
                case "Sweep":
                    return await unless_ended(run, job_sweeps.carry_out(self))
                case "Pipeline":
                    return await self._pipeline()
                case "AutoML":
                    return await self._automl()
            await unless_ended(run, self.world.clock.sleep(10 * pause))
            return "Completed"
        finally:
            for child in self._children():
                child.canceled.set()
            await asyncio.gather(*(child.over.wait() for child in self._children()))

    def _children(self) -> list[Run]:
        return [run for run in self.jobs.runs.values() if run.parent == self.run.name]

    # ---- children

    def begin(self, name: str, shown: str, sent: dict[str, Any], compute: str | None) -> Run:
        """Start a job that run history alone knows.

        Raises
        ------
        JobFailed
            Its compute is not there.
        """
        run = self.run
        compute = compute if compute and compute.rpartition("/")[2].rpartition(":")[2].lower() != "serverless" else None
        cluster = compute.rpartition("/")[2].rpartition(":")[2] if compute else None
        computed = self.world.resources.get(f"{run.workspace_id}/computes/{cluster}") if cluster else None
        if cluster and computed is None:
            raise JobFailed("UserError", f"Unknown compute target '{cluster}'.", "UnknownTargetType")
        body = {
            "displayName": shown,
            "experimentName": self.body["experimentName"],
            **sent,
            "computeId": computed["id"] if computed else None,
        }
        resource = job_shapes.job(self.world, run.workspace_id, name, body, cluster)
        inner = (computed or {}).get("properties", {}).get("properties") or {}
        requested_size = (body.get("resources") or {}).get("instanceType")
        size = str(inner.get("vmSize") or "") if computed else requested_size or run.size or _DEFAULT_SIZE
        low = inner.get("vmPriority") == "LowPriority"
        number = run.number + len(self.jobs.runs)
        child = Run(self.world, run.workspace_id, name, resource, number, cluster, size, low, parent=run.name)
        child.root = run.root or run.name
        self.jobs.begin(child)
        return child

    async def ended(self, child: Run) -> str:
        """Wait for the end of a child; its state.

        Raises
        ------
        Canceled
        """
        await unless_ended(self.run, child.over.wait())
        return child.status

    async def say(self, name: str, text: str) -> None:
        """Append to one of the job's own logs."""
        await storage(self.world).append(ARTIFACTS, f"{self.run.prefix}{name}", text.encode())

    # ---- pipeline

    async def _pipeline(self) -> str:
        stages: dict[str, Any] = {"Initialization": None}
        execution = {"StartTime": self.world.clock.stamp(), "EndTime": None, "Status": "Failed"}
        self.body["properties"].update(job_shapes.pipeline_properties(self.body))
        try:
            end = await unless_ended(self.run, job_pipelines.carry_out(self))
            execution["Status"] = end
            return end
        finally:
            stages["Execution"] = {**execution, "EndTime": self.world.clock.stamp()}
            self.body["properties"]["azureml.pipelines.stages"] = json.dumps(stages, separators=(",", ":"))

    # ---- AutoML

    async def _automl(self) -> str:
        """One child with the primary metric, which the parent has too."""
        from azureml_emulator.mlflow_tracking import SERVER, MlflowRuns

        sent = {"jobType": "Command", "command": "echo model of AutoML", "environmentId": _CURATED}
        child = self.begin(f"{self.run.name}_0", f"{self.run.name}_0", sent, self.body.get("computeId"))
        if await self.ended(child) != "Completed":
            raise JobFailed("UserError", "No model could be trained.")
        metric = re.sub(r"(?<!^)(?=[A-Z])", "_", str(self.body["taskDetails"].get("primaryMetric") or "score")).lower()
        for run in (child, self.run):
            await self.world.part(MlflowRuns).has(run)
            now = int(time.time() * 1000)
            await SERVER.post("runs/log-metric", run_id=run.name, key=metric, value=0.9, timestamp=now, step=0)
        self.run.properties["tags"]["automl_best_child_run_id"] = child.name  # recorded
        return "Completed"

    # ---- Spark

    async def _spark(self) -> str:
        """Its Python file as a command job under its own name; what it prints is its log (assumed: user_logs)."""
        from azureml_emulator.job_life import Life

        run, entry = self.run, self.body.get("entry") or {}
        if entry.get("sparkJobEntryType") != "SparkJobPythonEntry":
            raise JobFailed("UserError", "Only Python entries run here.")
        words = ["python", str(entry["file"])]
        sent = {
            "jobType": "Command",
            "displayName": self.body["displayName"],
            "experimentName": self.body["experimentName"],
            "computeId": self.body.get("computeId"),
            "command": f"{shlex.join(words)} {self.body.get('args') or ''}",
            "codeId": self.body.get("codeId"),
            "environmentId": self.body.get("environmentId") or _CURATED,
            "inputs": self.body.get("inputs") or {},
            "outputs": self.body.get("outputs") or {},
        }
        resource = job_shapes.job(self.world, run.workspace_id, run.name, sent, run.cluster)
        size = run.size if run.cluster else "Standard_DS3_v2"
        worker = Run(self.world, run.workspace_id, run.name, resource, run.number, run.cluster, size)
        worker.canceled = run.canceled
        working = asyncio.ensure_future(Life(self.jobs, worker).command())
        while not working.done():
            if worker.status != run.status and worker.status in ("Queued", "Preparing", "Running", "Finalizing"):
                run.set(worker.status)
                run.began, run.started_at = worker.began, worker.started_at
            await asyncio.wait([working], timeout=0.02)
        run.began, run.started_at = worker.began, worker.started_at
        try:
            return working.result()
        except asyncio.CancelledError:
            raise Canceled from None
