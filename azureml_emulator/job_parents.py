"""Jobs that are made of others (sweeps, pipelines, AutoML), and Spark: carried out as far as a test needs.

Each trial and step is a command job that runs for real and that run history alone knows (recording 02: its id is a
GUID, its ``displayName`` the step's name). Spark runs its Python entry by the plain interpreter. AutoML trains nothing:
it has one child with a metric.
"""

from __future__ import annotations

import asyncio
import random
import re
import shlex
import time
import uuid
from collections.abc import Mapping
from typing import Any

from azureml_emulator import images, job_shapes
from azureml_emulator.blob import ARTIFACTS
from azureml_emulator.datastores import storage
from azureml_emulator.job_runs import Canceled, JobFailed, Jobs, Run, unless_ended

_CURATED = f"azureml:AzureML-sklearn-1.5:{images.CURATED['AzureML-sklearn-1.5'][-1]}"
_PARENT = re.compile(r"^\$\{\{\s*parent\.(inputs|outputs|jobs)\.([\w.]+)\s*\}\}$")
_ONE = {"description": None, "mode": None}


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
        run.set("Running")
        run.began, run.started_at = time.time(), self.world.clock.stamp()
        work = {"Sweep": self._sweep, "Pipeline": self._pipeline, "AutoML": self._automl}.get(self.body["jobType"])
        if work is None:
            await unless_ended(run, self.world.clock.sleep(10 * pause))
            return "Completed"
        try:
            return await work()
        finally:
            for child in self._children():
                child.canceled.set()
            await asyncio.gather(*(child.over.wait() for child in self._children()))

    def _children(self) -> list[Run]:
        return [run for run in self.jobs.runs.values() if run.parent == self.run.name]

    # ---- children

    def _begin(self, name: str, shown: str, sent: dict[str, Any], compute: str | None) -> Run:
        """Start a command job that run history alone knows."""
        run = self.run
        compute = compute if compute and compute.rpartition("/")[2].lower() != "serverless" else None
        cluster = compute.rpartition("/")[2].rpartition(":")[2] if compute else None
        computed = self.world.resources.get(f"{run.workspace_id}/computes/{cluster}") if cluster else None
        if cluster and computed is None:
            raise JobFailed("UserError", f"Unknown compute target '{cluster}'.", "UnknownTargetType")
        body = {
            "jobType": "Command",
            "displayName": shown,
            "experimentName": self.body["experimentName"],
            "computeId": computed["id"] if computed else None,
            **sent,
        }
        resource = job_shapes.job(self.world, run.workspace_id, name, body, cluster)
        inner = (computed or {}).get("properties", {}).get("properties") or {}
        size = str(inner.get("vmSize") or "") if computed else run.size
        low = inner.get("vmPriority") == "LowPriority"
        number = run.number + len(self.jobs.runs)
        child = Run(self.world, run.workspace_id, name, resource, number, cluster, size, low, parent=run.name)
        self.jobs.begin(child)
        return child

    async def _ended(self, child: Run) -> str:
        await unless_ended(self.run, child.over.wait())
        return child.status

    async def _say(self, name: str, text: str) -> None:
        await storage(self.world).append(ARTIFACTS, f"{self.run.prefix}{name}", text.encode())

    # ---- sweep

    async def _sweep(self) -> str:
        """Random trials, some at the same time; the job fails when each of them has."""
        limits, trial = self.body.get("limits") or {}, self.body["trial"]
        total, at_once = int(limits.get("maxTotalTrials") or 2), int(limits.get("maxConcurrentTrials") or 1)
        chance, gate, ends = random.Random(self.run.name), asyncio.Semaphore(at_once), []

        async def one(number: int) -> str:
            async with gate:
                values = {key: _drawn(space, chance) for key, space in self.body["searchSpace"].items()}
                command = re.sub(
                    r"\$\{\{\s*search_space\.(\w+)\s*\}\}", lambda found: str(values[found[1]]), trial["command"]
                )
                name = f"{self.run.name}_{number}"
                sent = {**trial, "command": command, "inputs": dict(self.body.get("inputs") or {})}
                return await self._ended(self._begin(name, name, sent, self.body.get("computeId")))

        ends = await asyncio.gather(*(one(number) for number in range(total)))
        if all(end == "Failed" for end in ends):
            raise JobFailed("UserError", "All trials of the sweep failed.")
        return "Completed"

    # ---- pipeline

    async def _pipeline(self) -> str:
        """Steps in the order of their bindings."""
        steps: dict[str, Any] = dict(self.body["jobs"])
        settings = self.body.get("settings") or {}
        done: dict[str, Run] = {}
        await self._say("logs/azureml/executionlogs.txt", f"{len(steps)} steps.\n")
        while steps:
            ready = [name for name, step in steps.items() if not (_needs(step) & steps.keys())]
            if not ready:
                raise JobFailed("UserError", "The steps wait for each other.")
            name = ready[0]
            step = steps.pop(name)
            compute = step.get("computeId") or settings.get("default_compute") or self.body.get("computeId")
            child = self._begin(str(uuid.uuid4()), name, self._step(step, done), compute)
            if await self._ended(child) != "Completed":
                await self._say("logs/azureml/stderrlogs.txt", f"Step {name} ended as {child.status}.\n")
                raise JobFailed("UserError", f"Pipeline has failed child jobs. Failed nodes: /{name}.")
            done[name] = child
        return "Completed"

    def _step(self, step: dict[str, Any], done: Mapping[str, Run]) -> dict[str, Any]:
        component = self.world.resources.get(str(step["componentId"]).removeprefix("azureml:"))
        if component is None:
            raise JobFailed("UserError", f"Component {step['componentId']} was not found.")
        spec = component["properties"]["componentSpec"]
        inputs = {name: self._bound(said, done) for name, said in (step.get("inputs") or {}).items()}
        outputs = {}
        for name, declared in (spec.get("outputs") or {}).items():
            outputs[name] = {**_ONE, "mode": "ReadWriteMount", "jobOutputType": declared.get("type") or "uri_folder"}
        return {
            "command": spec["command"],
            "codeId": spec.get("code"),
            "environmentId": step.get("environmentId") or spec["environment"],
            "inputs": {name: said for name, said in inputs.items() if said is not None},
            "outputs": outputs,
            "environmentVariables": step.get("environment_variables"),
            "resources": {"instanceCount": (step.get("resources") or {}).get("instance_count") or 1},
        }

    def _bound(self, said: dict[str, Any], done: Mapping[str, Run]) -> dict[str, Any] | None:
        found = _PARENT.match(str(said.get("value", "")))
        if found is None:
            value = said.get("value", said.get("uri"))
            return {**_ONE, "jobInputType": "literal", "value": str(value)} if "uri" not in said else dict(said)
        if found[1] == "inputs":
            return dict((self.body.get("inputs") or {})[found[2]])
        name, _, output = found[2].partition(".outputs.")
        output = output or found[2]
        child = done[name]
        kept = child.properties["outputs"][output]
        uri = child.output_uris.get(output) or kept.get("uri")
        return {**_ONE, "jobInputType": kept["jobOutputType"], "uri": uri, "mode": "ReadOnlyMount"}

    # ---- AutoML

    async def _automl(self) -> str:
        """One child with the primary metric, which the parent has too."""
        from azureml_emulator.mlflow_door import SERVER, Door

        sent = {"command": "echo model of AutoML", "environmentId": _CURATED}
        child = self._begin(f"{self.run.name}_0", f"{self.run.name}_0", sent, self.body.get("computeId"))
        if await self._ended(child) != "Completed":
            raise JobFailed("UserError", "No model could be trained.")
        metric = re.sub(r"(?<!^)(?=[A-Z])", "_", str(self.body["taskDetails"].get("primaryMetric") or "score")).lower()
        for run in (child, self.run):
            await self.world.part(Door).has(run)
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


def _needs(step: Mapping[str, Any]) -> set[str]:
    found = set()
    for said in (step.get("inputs") or {}).values():
        match = _PARENT.match(str(said.get("value", "")))
        if match and match[1] == "jobs":
            found.add(match[2].partition(".")[0])
    return found


def _drawn(space: list[Any], chance: random.Random) -> Any:
    """A value of ``["choice", [[..]]]``, ``["uniform", [low, high]]``, ``["randint", [n]]``; else the first number."""
    kind, said = space[0], space[1]
    if kind == "choice":
        return chance.choice(said[0])
    if kind in ("uniform", "quniform"):
        return chance.uniform(said[0], said[1])
    return chance.randrange(int(said[0])) if kind == "randint" else said[0]
