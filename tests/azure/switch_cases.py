"""What the tests of switches share: every assumption with its other values, a kernel over the sandbox, three jobs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from azureml_emulator.switches import TABLE
from jupyter_amltrain.azure import mirror_store
from jupyter_amltrain.azure.backend import AzureBackend
from jupyter_amltrain.azure.client import client_of, close_client
from jupyter_amltrain.azure.targets import AmlComputeTarget
from jupyter_amltrain.errors import AmlTrainError, ResultMissing
from jupyter_amltrain.jobs.snapshot import take_snapshot
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.inputs import JobOutput
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunState
from jupyter_amltrain.schema.run_file import OutValue
from jupyter_amltrain.state_dir import StateRoot
from jupyter_amltrain.text import new_run_id
from tests.azure.conftest import Azure
from tests.azure.connected_api import store_workspace
from tests.helpers import state_root

T = TypeVar("T")
#: Ten times what a busy machine needs (seconds).
LIMIT = 120.0
SIZE = "Standard_DS2_v2"
#: Seconds of things: no assumption of whether, only of when.
PACE = {"scale_seconds": 0.1, "create_seconds": 0.05, "instance_seconds": 0.05, "upload_seconds": 0.2}
#: Every assumption: the values that are not the default.
FLIPS: dict[str, tuple[Any, ...]] = {
    "retry_after_header": (1,),
    "prices": (False,),
    "long_poll_urls": (False,),
    "failed_operation": (False,),
    "compute_envelope": ("ml",),
    "throttle": ("header", "bare"),
    "unknown_fields": (True,),
    "page_size": (2,),
    "fail_provisioning": ("doomed",),
    "cluster_warnings": (False,),
    "fail_power": ("doomed",),
    "power_failure": ("unusable", "silent"),
    "fail_allocation": ("doomed",),
    "quota_on_create": (False,),
    "low_priority_pool": (False,),
    "low_priority_on_create": (False,),
    "delete_missing": (404,),
    "preempt_after": (5.0,),
    "delete_attached_refused": (False,),
    "token_seconds": (2,),
    "data_audience": ("ml", "arm"),
    "challenge_tenant": (False,),
    "permissions_readable": (False,),
    "discovery": (False,),
    "authorization": ("reader",),
    "curated_listed": ("null", "yes"),
    "gone_workspace": ("path", "resource"),
    "curated_conda": (True,),
    "fail_build": ("CliV2AnonymousEnvironment",),
    "queued_to_preparing": (False,),
    "logs_uploaded_live": (False,),
    "logs_in_details": (False,),
    "std_log_names": ("padded",),
    "retry_logs": ("folder",),
    "log_sas_seconds": (2,),
    "upload_sas_seconds": (-1,),
    "upload_body_judged": (False,),
    "blob_port": (False,),
    "code_below_folder": (False,),
    "node_rank": ("config", "none"),
    "run_token_seconds": (0,),
    "datastore_secret": ("key", "none"),
    "logs_appended": (False,),
    "uploader_user": ("other",),
    "history_delay": (1.0,),
    "attempts_counted": (False,),
    "queue_reason": (False,),
    "details_reasons": (True,),
    "timeout_reason": (False,),
    "exit_reported": (False,),
    "best_trial_reported": (False,),
    "outputs_in_arm": (False,),
    "model_uri": ("job",),
    "mpi_by_node": (False,),
    "gpus_visible": ("host",),
    "cancel_signal": ("KILL",),
    "cancel_grace": (0.0,),
    "timeout_state": ("Failed",),
    "fake_gpus": (False,),
    "mlflow_batch": (1,),
    "mlflow_version": ("v1.0", "v2.0"),
    "params_batch": (7,),
    "param_length": (20,),
    "param_limit": (5,),
    "metric_names_limit": (2,),
    "tag_limits": ([10, 20],),
    "monitor_delay": (30.0,),
}

#: Those that touch something else than the three jobs.
APART = frozenset(
    (
        "attempts_counted",
        "authorization",
        "challenge_tenant",
        "cluster_warnings",
        "data_audience",
        "delete_attached_refused",
        "discovery",
        "fail_allocation",
        "fail_build",
        "fail_power",
        "fail_provisioning",
        "failed_operation",
        "fake_gpus",
        "gone_workspace",
        "gpus_visible",
        "low_priority_on_create",
        "low_priority_pool",
        "monitor_delay",
        "mpi_by_node",
        "node_rank",
        "permissions_readable",
        "power_failure",
        "preempt_after",
        "prices",
        "quota_on_create",
        "retry_logs",
        "std_log_names",
        "timeout_reason",
        "timeout_state",
        "token_seconds",
        "upload_sas_seconds",
    )
)

TRAIN = """
import os, pathlib, time
import mlflow
for i in range(3):
    mlflow.log_metric("loss", 1 / (i + 1), step=i)
    print("step", i, flush=True)
    time.sleep(0.1)
mlflow.log_params({"long": "x" * 40, **{f"p{i}": i for i in range(9)}})
mlflow.set_tag("note", "y" * 60)
pathlib.Path("outputs").mkdir(exist_ok=True)
pathlib.Path("outputs/f.txt").write_text("left")
pathlib.Path(os.environ["AML_OUTPUT_MODEL"], "weights.bin").write_bytes(b"12345")
pathlib.Path(os.environ["AML_OUTPUT_DIR"], "acc.json").write_text('0.5')
print("done", flush=True)
"""
LOG = ["step 0", "step 1", "step 2", "done"]


class Bench:
    """One kernel over the sandbox for all tests of the module: its Azure process has the SDK in memory."""

    def __init__(self, azure: Azure, root: StateRoot) -> None:
        self.azure, self.root = azure, root
        self.loop = LoopThread("switches")
        self.defaults = {**{name: default for name, (default, _) in TABLE.items()}, **PACE}
        self.number = 0
        self.workspace = ""
        self.clusters: list[str] = []

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.call(work, LIMIT)

    def flip(self, **switches: Any) -> None:
        """These, and all others as they are by default."""
        self.azure.control("/switch", **{**self.defaults, **switches})

    async def ask(self, op: str, **payload: Any) -> Any:
        return await client_of(self.loop, self.root).request(op, payload, timeout=LIMIT)

    async def of(self, op: str, **payload: Any) -> Any:
        return await self.ask(op, workspace=self.workspace, **payload)

    async def connect(self) -> dict[str, Any]:
        found = await store_workspace(self.loop, self.root, self.azure)
        self.workspace = str(found["name"])
        return found

    async def cluster(self, name: str = "", **settings: Any) -> AzureBackend:
        """A new one."""
        self.number += 1
        name = name or f"c{self.number}"
        settings = {"size": SIZE, "max_nodes": 3, **settings}
        self.clusters.append(name)
        await self.of("computes.create", kind="amlcompute", name=name, settings=settings)
        return AzureBackend(AmlComputeTarget(name=name, **settings), self.loop, self.root)

    async def clear(self) -> None:
        """Delete the clusters of a test: their idle machines would hold the quota of the tests after it."""
        while self.clusters:
            with contextlib.suppress(AmlTrainError):
                await self.of("computes.delete", name=self.clusters.pop())

    async def launch(self, backend: AzureBackend, name: str, text: str, **more: Any) -> Run:
        spec = JobSpec(name=name, script=text, **more)
        plan = await backend.plan(spec, take_snapshot(spec.script_name, text, root=Path.cwd()), new_run_id(name))
        return await backend.launch(plan, {}, {})

    async def ended(self, backend: AzureBackend, run: Run) -> Run:
        """The run, with its files."""
        changes = backend.events()
        while not (await backend.poll((run.run_id,)))[run.run_id].state.terminal:
            await changes.wait((run.run_id,), (), 0.5)
        found = await backend.find(run.run_id)
        assert found is not None
        return found

    async def log(self, backend: AzureBackend, run: Run) -> str:
        return (await backend.read(run.run_id, "log", 0)).data.decode()

    async def printed(self, backend: AzureBackend, run: Run) -> list[str]:
        """The log without our own lines, of which a machine under load has more."""
        lines = (await self.log(backend, run)).splitlines()
        return [line for line in lines if not re.match(r"(\[rank \d+\] )?amltrain: ", line)]

    async def points(self, backend: AzureBackend, run: Run, key: str = "loss") -> list[int]:
        """Steps of a metric, in the order in which they came."""
        found = []
        for line in (await backend.read(run.run_id, "metrics", 0)).data.splitlines():
            record = json.loads(line)
            body = record["b"]
            single = [body] if record["op"] == "runs/log-metric" else []
            found += [p["step"] for p in [*single, *body.get("metrics", ())] if p["key"] == key]
        return found

    def source(self, run: Run) -> str:
        return mirror_store.source_text(Path(run.folder))

    async def nodes(self, backend: AzureBackend, run: Run) -> list[int]:
        """Which nodes have ticks that say whose they are."""
        found = []
        for number in range(run.status.nodes):
            lines = (await backend.read(run.run_id, f"telemetry/{number}", 0)).data.splitlines()
            if len(lines) > 1:
                assert json.loads(lines[0])["node"] == number
                found.append(number)
        return found


@contextlib.contextmanager
def opened(azure: Azure, folder: Path) -> Iterator[Bench]:
    """A bench that is connected."""
    azure.control("/reset")
    quick = {"AMLTRAIN_AZURE_BACKOFF": "0.02", "AMLTRAIN_AZURE_WARM": "0"}
    with state_root(folder, **azure.environ, **quick) as home:
        made = Bench(azure, StateRoot(home))
        made.flip()
        made.call(made.connect())
        yield made
        made.loop.call(close_client(made.loop), 30)
        made.loop.close()
    azure.control("/reset")


async def three(bench: Bench, switch: str) -> None:
    """The three jobs."""
    backend = await bench.cluster()
    outputs = {"model": JobOutput()}
    runs = await asyncio.gather(
        bench.launch(backend, "train", TRAIN, out=("acc",), outputs=outputs),
        bench.launch(backend, "bad", "print('in vain')\nraise SystemExit(3)\n"),
        bench.launch(backend, "long", "import time\nprint('here', flush=True)\ntime.sleep(600)\n"),
    )
    while "here" not in await bench.log(backend, runs[2]):
        await backend.poll((runs[2].run_id,))
        await asyncio.sleep(0.05)
    await backend.cancel(runs[2].run_id)
    train, bad, long = await asyncio.gather(*(bench.ended(backend, run) for run in runs))
    assert (train.status.state, train.status.exit_code) == (RunState.COMPLETED, 0)
    assert (bad.status.state, bad.status.reason, bad.status.exit_code) == (RunState.FAILED, "exit", 3)
    assert (long.status.state, long.status.reason) == (RunState.CANCELED, "canceled")
    log = await bench.log(backend, train)
    assert await bench.printed(backend, train) == LOG, log
    assert log.count("amltrain: ") <= 2, log  # a refusal is printed once, and what did not go in time
    assert (await bench.log(backend, bad)).startswith("in vain\n")
    assert (await bench.log(backend, long)).splitlines()[0] == "here"
    assert await bench.points(backend, train) == [0, 1, 2]
    assert bench.source(train), "nobody says where the figures come from"
    values = await backend.files.outputs(train.run_id, ("acc",))
    assert values["acc"] == OutValue(value=0.5) or isinstance(values["acc"], ResultMissing)
    if switch not in ("logs_in_details", "uploader_user"):
        assert values["acc"] == OutValue(value=0.5) and await bench.nodes(backend, train) == [0]
    into = bench.root.path / "fetched" / train.run_id
    left = list(await backend.download(train.run_id, str(into)))
    assert left == ["outputs/f.txt"], left
    assert (into / "outputs" / "f.txt").read_text() == "left"
    assert {run.run_id for run in (await backend.list())[1]} == {run.run_id for run in runs}
    if switch in ("model_uri", "outputs_in_arm", "datastore_secret", "page_size"):
        await model(bench, train.run_id)
    await bench.of("computes.delete", name=backend.target.name)
    await bench.of("computes.delete", name=backend.target.name)


async def model(bench: Bench, job: str) -> None:
    """Registered and fetched."""
    for path, file, name in (("outputs/model", "weights.bin", f"m-{job}"), ("outputs/f.txt", "f.txt", f"f-{job}")):
        made = await bench.of("models.register", job=job, name=name, path=path)
        assert made["version"] == "1"
        folder = bench.root.path / "models" / name
        await bench.of("models.download", name=name, version="1", folder=str(folder))
        assert [path.name for path in folder.rglob("*") if path.is_file()] == [file]
    assert {row["name"] for row in await bench.of("models.list")} >= {f"m-{job}", f"f-{job}"}
