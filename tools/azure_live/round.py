"""One round of checks on one workspace; everything created for it is deleted afterwards."""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import os
import time
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from jupyter_amltrain.azure.service import http
from tools.azure_live import job_checks, scripts, workspace_checks
from tools.azure_live.findings import Seen, attempt, attempt_all

T = TypeVar("T")
#: ARM api-version that the product uses.
ARM = "2024-10-01"
#: Maximum seconds until a job has a machine, and until something is deleted.
QUEUE_TIMEOUT_S, DELETE_TIMEOUT_S = 1500.0, 600.0


class Round:
    """One round of checks on one workspace."""

    def __init__(self, chosen: argparse.Namespace, where: dict[str, str], folder: Path) -> None:
        from jupyter_amltrain.loop import LoopThread
        from jupyter_amltrain.state_dir import StateRoot

        self.chosen, self.where = chosen, where
        self.root = StateRoot(folder)
        self.loop = LoopThread("azure-live")
        self.mark = f"amlt-{uuid.uuid4().hex[:8]}"
        self.name = ""
        self.found: dict[str, Seen] = {}
        self.notes: dict[str, str] = {}
        self.broken = ""
        self.place: Any = None
        self.cluster = ""
        self.jobs: list[str] = []
        self.models: list[tuple[str, str]] = []
        self.instance = ""
        self.bills: list[Any] | None = None
        self.left: list[str] = []

    def call(self, work: Coroutine[Any, Any, T], seconds: float = 1800.0) -> T:
        """Run a coroutine on the loop, up to `seconds`; Ctrl-C interrupts."""
        return self.loop.call(work, seconds)

    async def ask(self, op: str, **payload: Any) -> Any:
        """Call one operation of the Azure service process and print its progress."""
        from jupyter_amltrain.azure.client import client_of

        link = client_of(self.loop, self.root)
        return await link.request(op, payload, progress=_say, signin=_sign_in, timeout=1800.0)

    async def of(self, op: str, **payload: Any) -> Any:
        return await self.ask(op, workspace=self.name, **payload)

    # ---- steps

    def go(self) -> None:
        """Run all checks, cheapest first."""
        self._connect()
        print("Looking at the workspace.", flush=True)
        self.found |= workspace_checks.look_before(self.place)
        self.found |= attempt_all(self._cluster)
        backend = self._backend()
        for step in (self._long, self._failing, self._limited, self._canceled, self._instance):
            try:
                step(backend)
            except AssertionError as error:
                print(f"  {error}", flush=True)

    def _connect(self) -> None:
        from jupyter_amltrain.azure.service.cloud import Cloud
        from jupyter_amltrain.azure.workspace_file import WorkspaceFacts, WorkspaceFile

        facts = self.call(self.ask("workspace.connect", method=self.chosen.method, **self.where))
        self.name = str(facts["name"])
        self.notes["region"] = str(facts["location"])
        self.notes["missing"] = " ".join(facts["missing"])
        known = {field: facts[field] for field in WorkspaceFacts.__struct_fields__ if field in facts}
        WorkspaceFile(self.root).put(WorkspaceFacts(**known))
        self.place = Cloud(self.root.path).workspace(self.name)

    def _cluster(self) -> dict[str, Seen]:
        if self.chosen.serverless:
            return {}
        self.cluster = self.mark
        settings = {"size": self.chosen.size, "max_nodes": 1, "low_priority": not self.chosen.dedicated}
        settings["idle_minutes"] = 2.0
        self.call(self.of("computes.create", kind="amlcompute", name=self.cluster, settings=settings))
        return workspace_checks.look_at_cluster(self.place, self.cluster)

    def _backend(self) -> Any:
        from jupyter_amltrain.azure.backend import AzureBackend
        from jupyter_amltrain.azure.targets import AmlComputeTarget, ServerlessTarget

        target: Any = (
            ServerlessTarget(name="live", size=self.chosen.size)
            if self.chosen.serverless
            else AmlComputeTarget(
                name=self.cluster, size=self.chosen.size, max_nodes=1, low_priority=not self.chosen.dedicated
            )
        )
        return AzureBackend(target, self.loop, self.root)

    def _submit(self, backend: Any, name: str, text: str, **more: Any) -> tuple[Any, job_checks.Watch]:
        from jupyter_amltrain.jobs.snapshot import take_snapshot
        from jupyter_amltrain.schema.environment import Environment
        from jupyter_amltrain.schema.job import JobSpec

        spec = JobSpec(name=name, script=text, environment=Environment(name=self.chosen.environment), **more)
        run_id = f"{self.mark}-{name}"

        async def send() -> Any:
            plan = await backend.plan(spec, take_snapshot(spec.script_name, text, root=self.root.path), run_id)
            return await backend.launch(plan, {}, {})

        self.jobs.append(run_id)
        run = self.call(send())
        print(f"Submitted {run.run_id}.", flush=True)
        return run, job_checks.Watch(self.place, run.run_id)

    def _until(self, watch: job_checks.Watch, *requested: str, seconds: float = QUEUE_TIMEOUT_S) -> str:
        end, last_shown = time.monotonic() + seconds, ""
        pause = float(os.environ.get("AMLTRAIN_AZURE_POLL") or 2.0)
        while (status := watch.look()) not in (*requested, "Completed", "Failed", "Canceled"):
            if status != last_shown:
                print(f"  {status or 'not in run history yet'}", flush=True)
                last_shown = status
            assert time.monotonic() < end, f"{watch.name} was {status} for too long"
            time.sleep(pause)
        print(f"  {status}", flush=True)
        return status

    def _long(self, backend: Any) -> None:
        from jupyter_amltrain.azure import mirror_store
        from jupyter_amltrain.schema.inputs import JobOutput
        from jupyter_amltrain.schema.job import Distribution

        run, watch = self._submit(
            backend, "long", scripts.WORK, env={"AMLT_LIVE_SECONDS": f"{self.chosen.seconds:g}"},
            outputs={"model": JobOutput()}, distribution=Distribution(kind="pytorch", processes=2),
        )  # fmt: skip
        end = self._until(watch, seconds=QUEUE_TIMEOUT_S + self.chosen.seconds)
        self.found |= attempt_all(watch.found)
        assert end == "Completed", f"the long job ended as {end}: {watch.error()[:200]}"
        log = watch.log()
        self.found["run_token_seconds"] = attempt(lambda: job_checks.token_seconds(log))
        self.found |= attempt_all(lambda: job_checks.look_at_arm(self.place, run.run_id))
        self.found |= attempt_all(lambda: self._model(run.run_id))

        async def read() -> int:
            while not (await backend.poll((run.run_id,)))[run.run_id].state.terminal:
                await asyncio.sleep(0.1)
            return len((await backend.read(run.run_id, "log", 0)).data)

        size = self.call(read(), 300.0)
        source = mirror_store.source_text(Path(run.folder)) or "none"
        self.notes["our own reading"] = f"{size} bytes of log; telemetry and metrics: {source}"
        self.found |= attempt_all(lambda: job_checks.look_at_mlflow(self.place, run.run_id))

    def _model(self, job: str) -> dict[str, Seen]:
        made = self.call(self.of("models.register", job=job, name=self.mark, path="outputs/live.txt"))
        self.models.append((self.mark, str(made["version"])))
        path = f"models/{self.mark}/versions/{made['version']}"
        uri = str((self.place.arm.get(path, api=ARM).json or {})["properties"]["modelUri"])
        return {"model_uri": ("/datastores/" in uri, uri.partition("?")[0][-90:])}

    def _failing(self, backend: Any) -> None:
        _, watch = self._submit(backend, "fails", scripts.FAIL)
        self._until(watch)
        text = watch.error()
        self.found["exit_reported"] = "code 3" in text or "status 3" in text, " ".join(text.split())[:120]

    def _limited(self, backend: Any) -> None:
        """Run a job without the agent, with its code in a subfolder, until the service ends it."""
        name = f"{self.mark}-limit"
        like = (self.place.arm.get(f"jobs/{self.mark}-long", api=ARM).json or {})["properties"]
        code = self._code(scripts.LIMIT)
        kept = {key: like[key] for key in ("environmentId", "computeId", "experimentName") if like.get(key)}
        resources = {key: value for key, value in like["resources"].items() if key == "instanceType" and value}
        body = {
            **kept,
            "jobType": "Command",
            "displayName": name,
            "command": "python live.py",
            "codeId": code,
            "resources": {"instanceCount": 1, **resources},
            "limits": {"jobLimitsType": "Command", "timeout": f"PT{self.chosen.limit:g}S"},
        }
        if queue := {k: v for k, v in (like.get("queueSettings") or {}).items() if k == "jobTier" and v != "Null"}:
            body["queueSettings"] = queue
        self.jobs.append(name)
        self.place.arm.put(f"jobs/{name}", api=ARM, json={"properties": body}, act="submit a job with a time limit")
        print(f"Submitted {name}.", flush=True)
        watch = job_checks.Watch(self.place, name)
        end = self._until(watch, seconds=QUEUE_TIMEOUT_S + self.chosen.limit)
        watch.look()
        log = self.attempted(watch.log)
        self.found["code_folder"] = (
            "the code is here" in log,
            " ".join((log or watch.error() or "no log").split())[:120],
        )
        self.found |= attempt_all(lambda: job_checks.limit_found(watch, end))
        self.found |= attempt_all(lambda: workspace_checks.look_at_list(self.place))

    def _code(self, text: str) -> str:
        """Id of a code asset: ``live.py`` in the folder ``code`` of a container of the service."""
        path = f"codes/{uuid.uuid4()}/versions/1"
        wish = {"pendingUploadType": "TemporaryBlobReference"}
        upload = (self.place.arm.post(f"{path}/startPendingUpload", api=ARM, json=wish).json or {})[
            "blobReferenceForConsumption"
        ]
        where, _, signature = str(upload["credential"]["sasUri"]).partition("?")
        http.Blob(http.Rest("", "", None), f"{where}/code/live.py?{signature}").put(text.encode())
        uri = str(upload["blobUri"]).rstrip("/") + "/code"
        made = self.place.arm.put(path, api=ARM, json={"properties": {"codeUri": uri, "isAnonymous": True}})
        return str((made.json or {})["id"])

    def _instance(self, backend: Any) -> None:
        """Check how the service reports an instance whose second start fails in its script."""
        if self.chosen.no_instance:
            return
        name = self.instance = f"{self.mark}-vm"
        script = {"scriptSource": "inline", "scriptData": base64.b64encode(scripts.STARTUP.encode()).decode()}
        inner = {"vmSize": self.chosen.size, "setupScripts": {"scripts": {"startupScript": script}}}
        body = {"location": self.place.location, "properties": {"computeType": "ComputeInstance", "properties": inner}}
        print(f"Creating the instance {name}.", flush=True)
        self.place.arm.put(f"computes/{name}", api=ARM, json=body, act=f"make the instance {name}")
        self._until_state(name, "Running")
        self.place.arm.post(f"computes/{name}/stop", api=ARM, act=f"stop {name}")
        self._until_state(name, "Stopped")
        self.place.arm.post(f"computes/{name}/start", api=ARM, act=f"start {name}")
        found = self._until_state(name, "Running", "Stopped", operation="Start")
        self.found["power_failure"] = workspace_checks.failure_found(found)

    def _until_state(self, name: str, *requested: str, operation: str = "") -> dict[str, Any]:
        """Wait for a state of an instance or the end of its operation; returns its properties.

        Raises
        ------
        AssertionError
            The instance failed or the wait timed out.
        """
        end, last_shown = time.monotonic() + QUEUE_TIMEOUT_S, ""
        pause = float(os.environ.get("AMLTRAIN_AZURE_POLL") or 5.0)
        while True:
            body = (self.place.arm.get(f"computes/{name}", api=ARM).json or {})["properties"]
            found = body.get("properties") or {}
            last, state = found.get("lastOperation") or {}, str(found.get("state") or body["provisioningState"])
            if state != last_shown:
                print(f"  {state}", flush=True)
                last_shown = state
            if operation and last.get("operationName") == operation and last.get("operationStatus") != "InProgress":
                return dict(found)
            if not operation and state in requested:
                return dict(found)
            broken = not operation and (body["provisioningState"] == "Failed" or state.endswith("Failed"))
            assert not broken and time.monotonic() < end, f"the instance {name} is {state}"
            time.sleep(pause)

    def _canceled(self, backend: Any) -> None:
        run, watch = self._submit(backend, "stays", scripts.STAY)
        self._until(watch, "Running")
        end = time.monotonic() + 60
        while "waits" not in self.attempted(watch.log) and time.monotonic() < end:
            watch.look()
            time.sleep(float(os.environ.get("AMLTRAIN_AZURE_POLL") or 2.0))
        self.call(self.of("jobs.cancel", name=run.run_id))
        self._until(watch)
        watch.look()
        self.found |= attempt_all(lambda: job_checks.cancel_found(watch.log()))

    @staticmethod
    def attempted(work: Callable[[], str]) -> str:
        """Return the result of `work`; empty on an error."""
        try:
            return work()
        except Exception:  # one finding less; the round continues
            return ""

    # ---- cleanup

    def clean(self) -> None:
        """Delete everything, continuing after errors."""
        if self.name:
            print("Deleting everything.", flush=True)
            for job in self.jobs:
                self._delete(f"job {job}", self.of("jobs.cancel", name=job))
            for job in self.jobs:
                self._delete(f"job {job}", self._archived(job))
            for name, version in self.models:
                self._delete_at(f"model {name}", f"models/{name}/versions/{version}")
            if self.instance:
                self._delete(f"instance {self.instance}", self.of("computes.delete", name=self.instance))
            if self.cluster:
                self._delete(f"cluster {self.cluster}", self.of("computes.delete", name=self.cluster))
            with contextlib.suppress(Exception):
                self.bills = self.call(self.of("billing.list"), 120.0)
        from jupyter_amltrain.azure.client import close_client

        with contextlib.suppress(Exception):
            self.loop.call(close_client(self.loop), 30)
        self.loop.close()

    async def _archived(self, job: str) -> None:
        end = time.monotonic() + 120
        while True:
            row = (await self.of("jobs.poll", names=[job])).get(job)
            if row is None:
                return
            if row["status"] in ("Completed", "Failed", "Canceled") or time.monotonic() > end:
                break
            await asyncio.sleep(1)
        await self.of("jobs.archive", name=job)

    def _delete(self, what: str, work: Coroutine[Any, Any, Any]) -> None:
        try:
            self.call(work, DELETE_TIMEOUT_S)
        except BaseException as error:  # also a second Ctrl-C: delete the rest
            self.left.append(f"{what}: {error or type(error).__name__}")

    def _delete_at(self, what: str, path: str) -> None:
        try:
            self.place.arm.delete(path, api=ARM, ok=(200, 202, 204))
        except BaseException as error:  # also a second Ctrl-C: the report names what may still be billed
            self.left.append(f"{what}: {error}")


def _say(text: str) -> None:
    print(f"  {text}", flush=True)


def _sign_in(event: dict[str, Any]) -> None:
    print(f"  {event.get('text') or event}", flush=True)
