"""The contract of backends, and jobs of their own kind, on the emulated Azure."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.azure.backend import AzureBackend
from jupyter_amltrain.azure.client import client_of, close_client
from jupyter_amltrain.azure.targets import (
    AmlComputeTarget,
    AzureTarget,
    MachineTarget,
    ServerlessTarget,
    SynapseSparkTarget,
)
from jupyter_amltrain.azure.workspace_file import WorkspaceFile
from jupyter_amltrain.errors import CommandError, SpecError
from jupyter_amltrain.jobs.snapshot import Snapshot, take_snapshot
from jupyter_amltrain.kernel.result_files import result_files
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.inputs import JobInput, JobOutput
from jupyter_amltrain.schema.job import Distribution, JobSpec, Resources
from jupyter_amltrain.schema.run import Run, RunState
from jupyter_amltrain.schema.run_file import OutValue
from jupyter_amltrain.state_dir import StateRoot
from jupyter_amltrain.text import new_run_id
from tests.azure.conftest import Azure
from tests.azure.connected_api import store_workspace
from tests.conftest import SETTINGS, end_all
from tests.contracts.backend import DEADLINE, BackendContract, Call

SIZE = "Standard_DS2_v2"


@pytest.fixture(scope="module")
def root(azure: Azure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateRoot]:
    """A home for all tests of this file: the SDK is imported once, as in a kernel."""
    folder = tmp_path_factory.mktemp("azure-backend")
    (folder / "work").mkdir()
    home = folder / "home"
    with pytest.MonkeyPatch.context() as patch:
        constants = {"AMLTRAIN_AZURE_BACKOFF": "0.02", "AMLTRAIN_AZURE_WARM": "0", "AMLTRAIN_HOME": str(home)}
        for name, value in {**SETTINGS, **azure.environ, **constants}.items():
            patch.setenv(name, value)
        patch.chdir(folder / "work")
        azure.control("/reset")
        azure.control("/switch", scale_seconds=0.1, create_seconds=0.05)
        yield StateRoot(home)
    end_all(home)


@pytest.fixture(scope="module")
def loop(root: StateRoot) -> Iterator[LoopThread]:
    thread = LoopThread("test-loop")
    yield thread
    thread.call(close_client(thread), 30)
    thread.close()


def connected(loop: LoopThread, root: StateRoot, az: Azure) -> None:
    """The workspace and a cluster in it."""

    async def go() -> None:
        link = client_of(loop, root)
        facts = await store_workspace(loop, root, az)
        settings = {"size": SIZE, "max_nodes": 2}
        await link.request(
            "computes.create",
            {"workspace": facts["name"], "kind": "amlcompute", "name": "cpu", "settings": settings},
        )

    loop.call(go(), DEADLINE)


@pytest.fixture(scope="module")
def shared(loop: LoopThread, root: StateRoot, azure: Azure) -> Iterator[AzureBackend]:
    connected(loop, root, azure)
    made = AzureBackend(AmlComputeTarget(name="cpu", size=SIZE, max_nodes=2), loop, root)
    yield made
    loop.call(made.close())


@pytest.fixture
def backend(shared: AzureBackend) -> AzureBackend:
    return shared


@pytest.fixture
def az(azure: Azure, shared: AzureBackend) -> Iterator[Azure]:
    """The sandbox; what a test switches is switched back."""
    before = azure.control("/switch")
    yield azure
    azure.control("/switch", **before)


def job(name: str, text: str, **more: Any) -> tuple[JobSpec, Snapshot]:
    spec = JobSpec(name=name, script=text, **more)
    return spec, take_snapshot(spec.script_name, text, root=Path.cwd())


async def raw_job(backend: AzureBackend, name: str, **body: Any) -> None:
    """Submit a job without our agent, as somebody else would."""
    whole = {
        "jobType": "Command",
        "displayName": "by hand",
        "experimentName": "exp",
        "computeId": f"{backend.compute.workspace().arm_id}/computes/cpu",
        **body,
    }
    job = {
        "name": name,
        "body": whole,
        "environment": {"name": "AzureML-sklearn-1.5@latest"},
        "code": {"script": "a.py", "digest": "0" * 64, "job_file": {}},
    }
    payload = {"workspace": backend.compute.workspace().name, "job": job, "files": {"a.py": b""}}
    await client_of(backend._loop, backend.compute.root).request("jobs.submit", payload)


@pytest.mark.thorough
class TestAzureBackend(BackendContract):
    """A cluster of the workspace."""

    def short(self) -> tuple[JobSpec, Snapshot]:
        return job("short", "print('one line')\nprint('and the end')\n")

    def long(self) -> tuple[JobSpec, Snapshot]:
        return job("long", "import time\nprint('here', flush=True)\ntime.sleep(600)\n")

    def test_monitor_is_read_like_run(self, call: Call[Any], backend: Any) -> None:
        """As any other, but with one value a minute and only of what runs there."""
        assert call(backend.read("monitors/watch-1", "telemetry", 0)).data == b""
        folder = call(backend.monitors.start("watch-1", None, 0.1))
        assert folder.endswith("monitors/watch-1")
        assert call(backend.monitors.start("watch-1", None, 0.1)) == folder
        call(backend.read("monitors/watch-1", "telemetry", 0))
        call(backend.monitors.stop("watch-1"))
        call(backend.monitors.stop("watch-1"))
        assert call(backend.read("monitors/watch-1", "telemetry", 0)).data == b""

    def test_idle_cluster_monitor_gives_reason(self, call: Call[Any], backend: AzureBackend) -> None:
        """Azure Monitor has values of machines that run jobs, and there is none: the monitor says so at once."""
        call(backend.monitors.start("watch-3", None, 1.0))
        assert backend.monitors.no_samples_reason("watch-3") == ""
        assert call(backend.read("monitors/watch-3", "telemetry", 0)).data == b""
        assert "Azure Monitor" in backend.monitors.no_samples_reason("watch-3")
        call(backend.monitors.stop("watch-3"))
        assert backend.monitors.no_samples_reason("watch-3") == ""

    @pytest.mark.parametrize(
        "target",
        [
            ServerlessTarget(name="free", size=SIZE),
            MachineTarget(name="box", resource_id="/x"),
            SynapseSparkTarget(name="pool", resource_id="/x"),
        ],
        ids=lambda target: target.name,
    )
    def test_target_without_machines_of_its_own_monitor_is_refused(
        self, call: Call[Any], backend: AzureBackend, target: AzureTarget
    ) -> None:
        """There is nothing to sample without a run: an error instead of a monitor that waits for ever."""
        with pytest.raises(CommandError) as error:
            call(AzureBackend(target, backend._loop, backend.compute.root).monitors.start("watch-4", None, 1.0))
        assert error.value.code == "monitor.unsupported"

    # ---- of Azure alone

    def _run(self, call: Call[Any], backend: AzureBackend, wanted: tuple[JobSpec, Snapshot]) -> Run:
        """A run to its end."""
        run = call(self._launch(backend, wanted))
        call(self._until_ended(backend, run.run_id))
        found = call(backend.find(run.run_id))
        assert found is not None
        return found

    def _log(self, call: Call[Any], backend: AzureBackend, run: Run) -> str:
        return str(call(backend.read(run.run_id, "log", 0)).data.decode())

    def test_dry_run_request_equals_sent(self, call: Call[Any], backend: AzureBackend, az: Azure) -> None:
        spec, snapshot = job(
            "printed",
            "print(1)\n",
            timeout=3600.0,
            env={"A": "1"},
            tags={"team": "t"},
            inputs={"lr": JobInput(type="literal", value=0.1)},
            outputs={"model": JobOutput()},
            resources=Resources(nodes=2, shm_size="4g", docker_args="--ipc=host"),
            distribution=Distribution(kind="mpi", processes=2),
            services=("tensorboard:logs",),
            identity="managed",
            priority="low",
        )
        plan = call(backend.plan(spec, snapshot, new_run_id("printed")))
        call(backend.launch(plan, {}, {}))
        sent = next(w for w in az.control("/wire") if w["method"] == "PUT" and f"/jobs/{plan.run_id}" in w["path"])
        body = sent["body"]["properties"] if isinstance(sent["body"], dict) else json.loads(sent["body"])["properties"]
        shown = dict(plan.request["properties"])
        assert shown.pop("codeId") and str(body.pop("codeId")).startswith("/subscriptions/")
        assert shown["environmentId"] == "azureml:AzureML-sklearn-1.5@latest"
        assert body.pop("properties")["amltrain.spec.0"] and body.pop("isArchived") is False
        body["resources"].pop("properties", None)
        assert body == shown
        call(backend.cancel(plan.run_id))

    def test_multi_node_log_and_telemetry_are_complete(self, call: Call[Any], backend: AzureBackend) -> None:
        text = "import os, time\nfor i in range(3):\n    print('line', i, flush=True)\n    time.sleep(0.5)\n"
        run = self._run(
            call,
            backend,
            job("ranks", text, resources=Resources(nodes=2), distribution=Distribution(kind="pytorch", processes=2)),
        )
        lines = self._log(call, backend, run).splitlines()
        assert sorted(line for line in lines if "line" in line) == sorted(
            f"[rank {rank}] line {i}" for rank in range(4) for i in range(3)
        )
        assert run.status.nodes == 2
        for number in (0, 1):
            head = call(backend.read(run.run_id, f"telemetry/{number}", 0)).data.split(b"\n")[0]
            assert json.loads(head)["node"] == number

    def test_metrics_and_outputs_are_returned(self, call: Call[Any], backend: AzureBackend) -> None:
        text = (
            "import json, os, mlflow\n"
            "for i in range(3):\n    mlflow.log_metric('loss', 1 / (i + 1), step=i)\n"
            "with open(os.environ['AML_OUTPUT_DIR'] + '/acc.json', 'w') as f:\n    json.dump(0.5, f)\n"
        )
        run = self._run(call, backend, job("metrics", text, out=("acc",)))
        assert call(backend.files.outputs(run.run_id, ("acc",))) == {"acc": OutValue(value=0.5)}
        records = [json.loads(line) for line in call(backend.read(run.run_id, "metrics", 0)).data.splitlines()]
        assert [r["seq"] for r in records] == list(range(1, len(records) + 1)) and records[0]["op"] == "init"
        assert records[0]["a"]["id"] == run.tracking_id
        points = [r["b"] for r in records if r["op"] == "runs/log-metric"]
        points += [p for r in records if r["op"] == "runs/log-batch" for p in r["b"].get("metrics", ())]
        assert [p["step"] for p in points if p["key"] == "loss"] == [0, 1, 2]

    def test_event_files_of_tensorboard_are_followed(self, call: Call[Any], backend: AzureBackend) -> None:
        text = (
            "from torch.utils.tensorboard import SummaryWriter\n"
            "writer = SummaryWriter('runs/a')\n"
            "for i in range(3):\n    writer.add_scalar('loss', 1 / (i + 1), i)\nwriter.close()\n"
        )
        run = self._run(call, backend, job("events", text))
        records = [json.loads(line) for line in call(backend.read(run.run_id, "metrics", 0)).data.splitlines()]
        points = [p for r in records if r["op"] == "runs/log-batch" for p in r["b"].get("metrics", ())]
        assert [(p["key"], p["step"]) for p in points] == [("loss", 0), ("loss", 1), ("loss", 2)]

    @pytest.mark.parametrize("in_arm", [True, False], ids=["uri-in-job", "uri-in-asset"])
    def test_named_output_files_are_listed_and_read(
        self, call: Call[Any], backend: AzureBackend, az: Azure, in_arm: bool
    ) -> None:
        """They are in a datastore, not with the job's own files: listed as on a machine, below the output's name."""
        az.control("/switch", outputs_in_arm=in_arm)
        text = (
            "import os, pathlib\n"
            "folder = pathlib.Path(os.environ['AML_OUTPUT_MODEL'])\n"
            "(folder / 'parts').mkdir()\n"
            "(folder / 'weights.bin').write_bytes(b'0123456789')\n"
            "(folder / 'parts' / 'a.txt').write_text('part')\n"
            "pathlib.Path(os.environ['AML_OUTPUT_MODELS'], 'other.txt').write_text('other')\n"
            "pathlib.Path(os.environ['AML_OUTPUT_DIR'], 'own.txt').write_text('own')\n"
        )
        own = "azureml://datastores/workspaceblobstore/paths/kept/${{name}}/model"
        outputs = {"model": JobOutput(path=own if in_arm else ""), "models": JobOutput()}
        run = self._run(call, backend, job("named", text, outputs=outputs))
        files = call(result_files(backend, run))
        sizes = {file.path: file.size for file in files if file.path.startswith("outputs/")}
        assert sizes == {
            "outputs/model/parts/a.txt": 4,
            "outputs/model/weights.bin": 10,
            "outputs/models/other.txt": 5,
            "outputs/own.txt": 3,
        }
        assert call(backend.files.read_part(run.run_id, "outputs/model/weights.bin", 2, 4)) == b"2345"
        assert call(backend.files.read_part(run.run_id, "outputs/own.txt", 0, 10)) == b"own"

    @pytest.mark.thorough
    @pytest.mark.parametrize("switch", ["logs_uploaded_live", "logs_in_details"])
    def test_metrics_without_log_folder_are_returned(
        self, call: Call[Any], backend: AzureBackend, az: Azure, switch: str
    ) -> None:
        az.control("/switch", **{switch: False})
        text = (
            "import json, os, time, mlflow\n"
            "for i in range(8):\n    mlflow.log_metric('loss', i, step=i)\n    time.sleep(0.3)\n"
            "with open(os.environ['AML_OUTPUT_DIR'] + '/acc.json', 'w') as f:\n    json.dump(0.5, f)\n"
        )
        run = call(self._launch(backend, job("shy", text, out=("acc",))))
        changes = backend.events()
        end = time.monotonic() + DEADLINE
        while not call(backend.poll((run.run_id,)))[run.run_id].state.terminal:
            call(changes.wait((run.run_id,), (run.run_id,), 0.2))
            assert time.monotonic() < end
        changes.close()
        assert call(backend.files.outputs(run.run_id, ("acc",))) == {"acc": OutValue(value=0.5)}
        records = [json.loads(line) for line in call(backend.read(run.run_id, "metrics", 0)).data.splitlines()]
        assert [r["seq"] for r in records] == list(range(1, len(records) + 1))
        points = [r["b"] for r in records if r["op"] == "runs/log-metric"]
        points += [p for r in records if r["op"] == "runs/log-batch" for p in r["b"].get("metrics", ())]
        assert sorted(p["step"] for p in points if p["key"] == "loss") == list(range(8))
        ticks = call(backend.read(run.run_id, "telemetry", 0)).data.splitlines()
        numbers = [json.loads(line)[0] for line in ticks if line.startswith(b"[")]
        assert numbers and numbers == list(range(len(numbers)))

    @pytest.mark.thorough
    @pytest.mark.parametrize(
        ("name", "value"), [("timeout_state", "Failed"), ("retry_logs", "folder"), ("std_log_names", "padded")]
    )
    def test_alternative_service_behavior_is_supported(
        self, call: Call[Any], backend: AzureBackend, az: Azure, tmp_path: Path, name: str, value: str
    ) -> None:
        az.control("/switch", **{name: value})
        if name == "timeout_state":
            self.test_time_limit_run_is_timeout(call, backend)
        elif name == "retry_logs":
            self.test_preempted_run_is_requeued(call, backend, az, tmp_path)
        else:
            self.test_multi_node_log_and_telemetry_are_complete(call, backend)

    def test_state_root_has_no_signature_or_token(self, call: Call[Any], backend: AzureBackend, az: Azure) -> None:
        run = self._run(call, backend, self.short())
        call(backend.read(run.run_id, "log", 0))
        for path in backend.compute.root.path.rglob("*"):
            if path.is_file() and path.suffix != ".pyz":
                data = path.read_bytes()
                assert (
                    b"sig=" not in data
                    and b"eyJ" not in data
                    and az.environ["AZURE_CLIENT_SECRET"].encode() not in data
                )

    def test_failed_run_has_cause(self, call: Call[Any], backend: AzureBackend) -> None:
        status = self._run(call, backend, job("bad", "raise ValueError('no')\n")).status
        assert (status.state, status.reason, status.exit_code) == (RunState.FAILED, "exit", 1)

    @pytest.mark.thorough
    def test_time_limit_run_is_timeout(self, call: Call[Any], backend: AzureBackend) -> None:
        status = self._run(call, backend, job("limit", "import time\ntime.sleep(60)\n", timeout=1.0)).status
        assert (status.state, status.reason) == (RunState.FAILED, "timeout")

    @pytest.mark.thorough
    @pytest.mark.parametrize("with_reason", [True, False])
    @pytest.mark.parametrize("by", ["agent", "service"])
    def test_time_limit_is_same_in_two_kernels(
        self, call: Call[Any], backend: AzureBackend, az: Azure, tmp_path: Path, by: str, with_reason: bool
    ) -> None:
        az.control("/switch", timeout_reason=with_reason)
        if by == "agent":
            wanted = job("limit", "import time\ntime.sleep(60)\n", timeout=1.0)
            name = call(self._launch(backend, wanted)).run_id
        else:
            name = f"limit-{with_reason}".lower()
            limits = {"jobLimitsType": "Command", "timeout": "PT2S"}
            call(raw_job(backend, name, command="sleep 60", limits=limits))
        call(self._until_ended(backend, name))
        ends = [call(backend.poll((name,)))[name]]
        elsewhere = StateRoot(tmp_path / "elsewhere")
        WorkspaceFile(elsewhere).put(WorkspaceFile(backend.compute.root).get())
        other_loop = LoopThread("other-kernel")
        try:
            other = AzureBackend(AmlComputeTarget(name="shared", size=SIZE, compute="cpu"), other_loop, elsewhere)
            ends += [run.status for run in other_loop.call(other.list(), DEADLINE)[1] if run.run_id == name]
            found = other_loop.call(other.find(name), DEADLINE)
            assert found is not None
            ends.append(found.status)
            other_loop.call(close_client(other_loop), 30)
        finally:
            other_loop.close()
        assert [(end.state, end.reason) for end in ends] == [(RunState.FAILED, "timeout")] * 3

    def test_unsupported_azure_job_is_refused(self, call: Call[Any], backend: AzureBackend, tmp_path: Path) -> None:
        for more, field in (
            ({"secrets": ("TOKEN",)}, "secrets"),
            ({"inputs": {"data": JobInput(path=str(tmp_path))}}, "inputs"),
            ({"python": "/usr/bin/python3"}, "python"),
        ):
            spec, snapshot = job("refused", "print(1)\n", **more)
            with pytest.raises(SpecError) as caught:
                call(backend.plan(spec, snapshot, "refused-1"))
            assert caught.value.field == field

    @pytest.mark.thorough
    def test_other_kernel_finds_spec_log_and_outputs(
        self, call: Call[Any], loop: LoopThread, backend: AzureBackend, az: Azure, tmp_path: Path
    ) -> None:
        run = self._run(call, backend, self.short())
        elsewhere = StateRoot(tmp_path / "elsewhere")
        WorkspaceFile(elsewhere).put(WorkspaceFile(backend.compute.root).get())
        other_loop = LoopThread("other-kernel")
        try:
            other = AzureBackend(AmlComputeTarget(name="shared", size=SIZE, compute="cpu"), other_loop, elsewhere)
            found = other_loop.call(other.find(run.run_id), DEADLINE)
            assert found is not None and found.spec == run.spec and found.status.state is RunState.COMPLETED
            log = other_loop.call(other.read(run.run_id, "log", 0), DEADLINE).data.splitlines()
            assert [line for line in log if not line.startswith(b"amltrain:")] == [b"one line", b"and the end"]
            assert run.run_id in [r.run_id for r in other_loop.call(other.list(), DEADLINE)[1]]
            other_loop.call(close_client(other_loop), 30)
        finally:
            other_loop.close()

    @pytest.mark.thorough
    def test_foreign_job_is_found(self, call: Call[Any], backend: AzureBackend, az: Azure) -> None:
        call(raw_job(backend, "theirs", command="echo by hand"))
        call(self._until_ended(backend, "theirs"))
        run = call(backend.find("theirs"))
        assert run is not None and run.spec.name == "by hand" and run.spec.script == "echo by hand"
        assert not run.project and self._log(call, backend, run) == "by hand\n"

    @pytest.mark.thorough
    def test_preempted_run_is_requeued(self, call: Call[Any], backend: AzureBackend, az: Azure, tmp_path: Path) -> None:
        async def low() -> None:
            settings = {"size": SIZE, "max_nodes": 1, "low_priority": True}
            link = client_of(backend._loop, backend.compute.root)
            payload = {"workspace": backend.compute.workspace().name, "kind": "amlcompute", "name": "spot"}
            await link.request("computes.create", {**payload, "settings": settings})

        call(low())
        spot = AzureBackend(
            AmlComputeTarget(name="spot", size=SIZE, low_priority=True), backend._loop, backend.compute.root
        )
        go = tmp_path / "go"
        text = (
            "import os, time\nprint('begins', flush=True)\n"
            f"time.sleep(0.5 if os.path.exists({str(go)!r}) else 600)\nprint('ends')\n"
        )
        run = call(self._launch(spot, job("taken", text)))
        end = time.monotonic() + DEADLINE
        while b"begins" not in call(spot.read(run.run_id, "log", 0)).data:
            assert time.monotonic() < end
        go.touch()
        time.sleep(1.1)  # the storage service tells in whole seconds when a file was made
        az.control("/preempt", job=run.run_id)
        seen = call(self._until_ended(spot, run.run_id))
        assert seen[-1] is RunState.COMPLETED
        lines = self._log(call, spot, run).splitlines()
        marks = [line for line in lines if line.startswith("amltrain:")]
        assert [line for line in lines if line not in marks] == ["begins", "begins", "ends"]
        assert len(marks) == 1 and "attempt 2" in marks[0]
        records = call(spot.read(run.run_id, "telemetry", 0)).data.splitlines()
        numbers = [json.loads(line)[0] for line in records if line.startswith(b"[")]
        assert numbers == list(range(len(numbers)))

    @pytest.mark.thorough
    def test_serverless_job_completes(self, call: Call[Any], backend: AzureBackend) -> None:
        free = AzureBackend(ServerlessTarget(name="free", size=SIZE), backend._loop, backend.compute.root)
        run = self._run(call, free, self.short())
        assert self._log(call, free, run) == "one line\nand the end\n"
        assert [r.run_id for r in call(free.list())[1]] == [run.run_id]
        assert run.run_id not in [r.run_id for r in call(backend.list())[1]]

    @pytest.mark.thorough  # test_upload.py has the short way
    def test_run_links_are_listed(self, call: Call[Any], backend: AzureBackend, az: Azure) -> None:
        """Its page all the time; the others while it runs. Whoever comes has to sign in: no address holds a key."""
        key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIK7 me@here"
        wanted = job(
            "links",
            "import time\ntime.sleep(600)\n",
            services=("jupyterlab", "vscode", "tensorboard:logs", f"ssh:{key}"),
        )
        run = call(self._launch(backend, wanted))
        (page,) = run.status.links
        assert page.kind == "studio" and page.url.startswith(f"https://ml.azure.com/runs/{run.run_id}?wsid=/sub")
        found: dict[str, Any] = {}

        async def opened() -> None:
            end = time.monotonic() + DEADLINE
            while "ssh" not in found:
                assert time.monotonic() < end, found
                status = (await backend.poll((run.run_id,))).get(run.run_id)
                found.update({link.kind: link for link in status.links} if status else {})
                await asyncio.sleep(0.02)

        call(opened())
        assert [link.title for link in found.values()] == [
            "Azure ML studio",
            "JupyterLab",
            "VS Code",
            "TensorBoard",
            "SSH",
        ]
        for kind in ("jupyterlab", "vscode", "tensorboard"):
            assert found[kind].url.startswith("https://") and found[kind].url.endswith(".nodes.azureml.ms")
        assert not found["ssh"].url and found["ssh"].hint.startswith(f"az ml job connect-ssh --name {run.run_id} --res")
        assert key.split()[1] not in str(found)
        call(backend.cancel(run.run_id))
        call(self._until_ended(backend, run.run_id))
        assert [link.kind for link in call(backend.poll((run.run_id,)))[run.run_id].links] == ["studio"]
        again = call(backend.find(run.run_id))
        assert again is not None and again.status.links == (page,)

    def test_edited_code_sends_changed_files_only(
        self, call: Call[Any], backend: AzureBackend, az: Azure, tmp_path: Path
    ) -> None:
        source = tmp_path / "source"
        for number in range(60):
            path = source / f"package{number % 5}" / f"m{number}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(3000))
        (source / "train.py").write_text(
            "import os\nprint(len(os.listdir('package1')), os.path.exists('package0/m5.py'))\n"
        )

        def submitted() -> tuple[Run, list[dict[str, Any]]]:
            spec = JobSpec(name="tree", script_name="train.py", source=str(source))
            snapshot = take_snapshot("train.py", "", root=tmp_path, source=source)
            before = len(az.control("/wire"))
            run = self._run(call, backend, (spec, snapshot))
            wire = az.control("/wire")[before:]
            puts = [
                w for w in wire if w["method"] == "PUT" and "blob" in w["host"] and "ExperimentRun" not in w["path"]
            ]
            return run, puts

        run, first = submitted()
        assert 4 <= len(first) <= 5  # the script, the job, the list, the pack; the agent where nobody sent it before
        assert self._log(call, backend, run) == "12 True\n"
        (source / "package1" / "m1.py").write_bytes(os.urandom(2000))
        (source / "package0" / "m5.py").unlink()
        (source / "package1" / "more.py").write_text("new = 1\n")
        run, second = submitted()
        assert self._log(call, backend, run) == "13 False\n"
        sent = sum(int(w.get("size") or w.get("headers", {}).get("Content-Length") or 0) for w in second)
        assert 2000 < sent < 2000 + 4096
        _, third = submitted()
        assert third == []

    def test_delete_with_wrong_name_is_refused(self, call: Call[Any], backend: AzureBackend) -> None:
        call(backend.delete("nobody-22222"))
        with pytest.raises(CommandError, match="not a monitor id"):
            call(backend.read("monitors/..", "log", 0))
