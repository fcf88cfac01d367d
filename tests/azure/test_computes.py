"""Computes on the emulated Azure, through the kernel's side: link, process, SDK, TLS."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.azure.backend import AzureBackend
from jupyter_amltrain.azure.client import close_client
from jupyter_amltrain.azure.compute import AzureCompute
from jupyter_amltrain.azure.targets import (
    AmlComputeTarget,
    AzureTarget,
    DatabricksTarget,
    DataLakeTarget,
    HDInsightTarget,
    InstanceTarget,
    KubernetesTarget,
    MachineTarget,
    ServerlessTarget,
    SynapseSparkTarget,
)
from jupyter_amltrain.azure.workspace_file import WorkspaceFile
from jupyter_amltrain.backends.provisioner import ProvisionState
from jupyter_amltrain.errors import AmlTrainError, CapacityError, CommandError, QuotaExceeded, TargetError
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.expressions import Uniform
from jupyter_amltrain.schema.job import JobSpec, Resources
from jupyter_amltrain.schema.sweep import Objective, Sweep, SweepLimits
from jupyter_amltrain.state_dir import StateRoot

from ..contracts.lifecycle import LifecycleContract
from ..helpers import until
from .conftest import Azure
from .connected_api import store_workspace

GPU = "Standard_NC6s_v3"
CPU = "Standard_DS2_v2"
SWEEP = Sweep(
    space={"lr": Uniform(low=0.0, high=1.0)},
    objective=Objective(metric="loss", goal="minimize"),
    limits=SweepLimits(max_trials=20, max_concurrent=4),
)
KEY = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQDtest user@host"


Make = Callable[[AzureTarget], AzureCompute]


@pytest.fixture(scope="module")
def loop() -> Iterator[LoopThread]:
    thread = LoopThread("test-azure-computes")
    yield thread
    thread.call(close_client(thread))
    thread.close()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> StateRoot:
    return StateRoot(tmp_path_factory.mktemp("home"))


@pytest.fixture
def make(azure_env: Azure, loop: LoopThread, root: StateRoot, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setenv("AMLTRAIN_AZURE_BACKOFF", "0.02")
    if not WorkspaceFile(root).all():
        loop.call(store_workspace(loop, root, azure_env, name="ws"), 60)
    return lambda target: AzureCompute(target, loop, root)


def wire(azure: Azure, what: str) -> list[dict[str, Any]]:
    """Requests whose ``METHOD host/path`` has `what`, with their bodies read."""
    found = azure.control("/wire")
    entries = found["requests"] if isinstance(found, dict) else found
    return [
        {**one, "body": json.loads(one["body"]) if isinstance(one["body"], str) and one["body"] else one["body"]}
        for one in entries
        if re.search(what, f"{one['method']} {one['host']}{one['path']}")
    ]


@pytest.mark.thorough
class TestContract(LifecycleContract):
    @pytest.fixture
    def single(self, make: Make) -> AzureCompute:
        return make(InstanceTarget(name="mine", size=CPU))

    @pytest.fixture
    def cluster(self, make: Make, azure_env: Azure) -> AzureCompute:
        azure_env.control("/switch", scale_seconds=0.2)
        return make(AmlComputeTarget(name="gpu-cluster", size=GPU, max_nodes=4))

    @pytest.fixture
    def refused(self, make: Make) -> AzureCompute:
        return make(AmlComputeTarget(name="too-big", size=GPU, max_nodes=40))


class Messages(list[str]):
    """Progress."""

    def __call__(self, text: str) -> None:
        self.append(text)


@pytest.fixture
def run(loop: LoopThread) -> Callable[[Any], Any]:
    return lambda coro: loop.call(coro, 60)


def test_cluster_create_sends_all_settings(
    azure_env: Azure, make: Make, run: Callable[[Any], Any], tmp_path: Path
) -> None:
    (tmp_path / "id.pub").write_text(KEY)
    target = AmlComputeTarget(
        name="cpu", size=CPU, max_nodes=3, idle_minutes=2.5, low_priority=True, vnet="net", subnet="sub",
        public_ip=False, identity="system", ssh_user="me", ssh_key_file=str(tmp_path / "id.pub"),
    )  # fmt: skip
    life, messages = make(target), Messages()
    run(life.create(messages))
    (put,) = wire(azure_env, r"PUT .*computes/cpu")
    outer = put["body"]["properties"]
    inner = outer["properties"]
    assert outer["computeType"] == "AmlCompute" and put["body"]["identity"] == {"type": "SystemAssigned"}
    assert inner["vmPriority"] == "LowPriority" and inner["enableNodePublicIp"] is False
    assert inner["scaleSettings"]["nodeIdleTimeBeforeScaleDown"] == "PT2M30S"
    assert inner["subnet"]["id"].endswith("/virtualNetworks/net/subnets/sub")
    assert inner["userAccountCredentials"] == {"adminUserName": "me", "adminUserSshPublicKey": KEY}
    assert any(re.match(r"Creating: \d+ s", text) for text in messages)
    assert life.azure.workspace == "ws"
    gets = len(wire(azure_env, r"GET .*computes/cpu"))
    run(make(target).create(messages))  # taken over
    assert len(wire(azure_env, r"PUT .*computes/cpu")) == 1 and len(wire(azure_env, r"GET .*computes/cpu")) > gets
    with pytest.raises(CommandError, match=r"max_nodes.*low_priority"):
        other = AmlComputeTarget(name="cpu", size=CPU, max_nodes=5, idle_minutes=2.5, public_ip=False)
        run(make(other).create(messages))


@pytest.mark.parametrize(
    ("target", "error", "words"),
    [
        (AmlComputeTarget(name="big", size=GPU, max_nodes=5), QuotaExceeded, "30 cores"),
        (AmlComputeTarget(name="big", size="Standard_NC6", max_nodes=1), CommandError, "has no size"),
        (AmlComputeTarget(name="big", size="Standard_NV36ads_A10_v5"), CapacityError, "MIR only"),
        (AmlComputeTarget(name="big", size="Standard_ND40rs_v2"), QuotaExceeded, "the quota is 0"),
        (InstanceTarget(name="big", size="Standard_NC24s_v3", workspace="other"), CommandError, "is connected"),
        (ServerlessTarget(name="big", size="Standard_ND40rs_v2"), QuotaExceeded, "40 cores"),
    ],
)
def test_invalid_compute_is_refused_before_request(
    azure_env: Azure, make: Make, run: Callable[[Any], Any], target: AzureTarget, error: type[Exception], words: str
) -> None:
    with pytest.raises(error) as caught:
        run(make(target).create(Messages()))
    assert words in str(caught.value) and "\n" not in str(caught.value) and not wire(azure_env, r"PUT ")


def run_of(nodes: int = 1, size: str = "", tier: str = "", **more: Any) -> JobSpec:
    resources = Resources(nodes=nodes, instance_type=size)
    return JobSpec(name="x", script="pass", notebook_dir="/", project="/", resources=resources, tier=tier, **more)


@pytest.mark.parametrize(
    ("own", "wanted", "amount"),
    [
        ("Spot", run_of(), "0.61 USD"),
        ("Spot", run_of(nodes=2, tier="standard"), "2 x 3.06 = 6.12 USD"),
        ("Standard", run_of(nodes=3, tier="spot"), "3 x 0.61 = 1.83 USD"),
        ("Standard", run_of(size="Standard_NC12s_v3"), "6.12 USD"),
        ("Standard", run_of(size="Standard_NC12s_v3", tier="spot"), "1.22 USD"),
        ("Standard", run_of(nodes=2, sweep=SWEEP), "8 x 3.06 = 24.48 USD"),
    ],
)
def test_price_of_serverless_run_is_of_its_own_machines(
    make: Make, run: Callable[[Any], Any], own: Any, wanted: JobSpec, amount: str
) -> None:
    life = make(ServerlessTarget(name="free", size=GPU, tier=own))
    price = life.run_price(wanted, run(life.state()))
    assert price is not None and price.amount == amount and f"{amount} per hour" in price.text
    assert life.run_price(run_of(size="Standard_Unknown"), ProvisionState()) is None


def test_price_of_cluster_sweep_is_at_most_that_of_cluster(make: Make) -> None:
    state = ProvisionState(price_node=3.06, currency="USD", nodes=0, max_nodes=3)
    life = make(AmlComputeTarget(name="gpu", size=GPU, max_nodes=3))
    price = life.run_price(run_of(sweep=SWEEP), state)
    assert price is not None and (price.amount, price.most) == ("3 x 3.06 = 9.18 USD", True)


@pytest.mark.parametrize(
    ("own", "wanted", "error", "words"),
    [
        ("Standard", run_of(nodes=8, tier="spot"), None, ""),  # 48 cores; the quota of dedicated ones is 24
        ("Spot", run_of(nodes=8), None, ""),
        ("Spot", run_of(nodes=8, tier="standard"), QuotaExceeded, "48 cores, the quota is 24"),
        ("Standard", run_of(nodes=17, tier="spot"), QuotaExceeded, "102 low-priority cores, the quota is 100"),
        ("Standard", run_of(nodes=2, size="Standard_NC12s_v3"), None, ""),
        ("Standard", run_of(nodes=3, size="Standard_NC12s_v3"), QuotaExceeded, "36 cores, the quota is 24"),
        ("Standard", run_of(size="Standard_NC12s_v33"), CommandError, "Standard_NC12s_v3"),
    ],
)
def test_serverless_run_is_checked_against_quota_of_its_own_machines(
    make: Make, run: Callable[[Any], Any], own: Any, wanted: JobSpec, error: type[Exception] | None, words: str
) -> None:
    life = make(ServerlessTarget(name="free", size=GPU, tier=own))
    if error is None:
        run(life.check_run(wanted))
        return
    with pytest.raises(error) as caught:
        run(life.check_run(wanted))
    assert words in str(caught.value)


@pytest.mark.thorough
def test_scale_beyond_quota_is_refused(azure_env: Azure, make: Make, run: Callable[[Any], Any]) -> None:
    azure_env.control("/switch", scale_seconds=0.2)
    life = make(AmlComputeTarget(name="gpu", size=GPU, max_nodes=4))
    run(life.create(Messages()))
    other = make(AmlComputeTarget(name="gpu2", size=GPU, max_nodes=4))
    run(other.create(Messages()))
    messages = Messages()
    run(other.scale({"min_nodes": 3}, messages))
    assert messages and other.azure.min_nodes == 3  # type: ignore[attr-defined]
    with pytest.raises(QuotaExceeded, match=r"12 cores, 6 of 24.*1 machine"):
        run(life.scale({"min_nodes": 2}, Messages()))
    assert not wire(azure_env, r"PATCH .*computes/gpu$")
    run(life.scale({"min_nodes": 1}, Messages()))
    state = run(life.state())
    assert (state.nodes, state.quota) == (1, "24 of 24 cores") or state.nodes == 1


def test_scale_of_maximum_and_idle_time_is_sent(azure_env: Azure, make: Make, run: Callable[[Any], Any]) -> None:
    azure_env.control("/switch", scale_seconds=0.2)
    life = make(AmlComputeTarget(name="wide", size=GPU, max_nodes=2))
    run(life.create(Messages()))
    run(life.scale({"max_nodes": 3, "idle_minutes": 30.0}, Messages()))
    (patch,) = wire(azure_env, r"PATCH .*computes/wide$")
    scale = patch["body"]["properties"]["properties"]["scaleSettings"]
    assert scale == {"maxNodeCount": 3, "minNodeCount": 0, "nodeIdleTimeBeforeScaleDown": "PT30M"}
    assert isinstance(life.azure, AmlComputeTarget) and (life.azure.max_nodes, life.azure.idle_minutes) == (3, 30)
    other = make(AmlComputeTarget(name="wide", size=GPU, max_nodes=2))  # a kernel that knows the old settings
    (act,) = (act for act in other.actions(run(other.state())) if act.verb == "scale")
    assert [field.default for field in act.fields] == [0, 3, 30]
    run(other.scale({"min_nodes": 3}, Messages()))
    assert isinstance(other.azure, AmlComputeTarget) and (other.azure.min_nodes, other.azure.max_nodes) == (3, 3)
    with pytest.raises(QuotaExceeded, match="the quota is 24"):
        run(life.scale({"max_nodes": 9}, Messages()))


def test_quota_of_row_follows_nodes(azure_env: Azure, make: Make, run: Callable[[Any], Any]) -> None:
    """Whatever was kept of it a moment ago, by this kernel or by another."""
    azure_env.control("/switch", scale_seconds=0.05)
    target = AmlComputeTarget(name="counted", size=GPU, max_nodes=4, idle_minutes=1)
    life = make(target)
    run(life.create(Messages()))
    before = run(life.state())
    assert (before.nodes, before.quota) == (0, "0 of 24 cores")
    azure_env.control("/lease", compute="counted", count=2, seconds=10)
    assert until(lambda: (now := run(life.state())).nodes == 2 and now.quota) == "12 of 24 cores"
    assert run(make(target).state()).quota == "12 of 24 cores"
    azure_env.control("/speed", factor=100)
    assert until(lambda: (now := run(life.state())).nodes == 0 and now.quota) == "0 of 24 cores"
    usages = len(wire(azure_env, "/usages"))
    run(life.state())
    assert len(wire(azure_env, "/usages")) == usages  # not at every look


def test_failed_create_leaves_no_compute(azure_env: Azure, make: Make, run: Callable[[Any], Any]) -> None:
    azure_env.control("/switch", fail_provisioning="bad")
    life = make(AmlComputeTarget(name="bad", size=CPU))
    with pytest.raises(TargetError) as caught:
        run(life.create(Messages()))
    assert "\n" not in str(caught.value) and wire(azure_env, r"DELETE .*computes/bad")
    azure_env.control("/switch", fail_provisioning="")
    run(life.create(Messages()))  # waits until the failed one is gone
    assert run(life.state()).state == "ready"


def test_service_quota_refusal_raises_quota_exceeded(azure_env: Azure, make: Make, run: Callable[[Any], Any]) -> None:
    body = {"error": {"code": "BadRequest", "message": "has a total vCPU quota of 0 and cannot accomodate for at least"
                      " 1 requested managed compute node which maps to 2 vCPUs."}}  # fmt: skip
    azure_env.control("/fault", match=r"PUT .*computes/no", times=1, status=400, body=body)
    with pytest.raises(QuotaExceeded, match="2 cores.*quota"):
        run(make(AmlComputeTarget(name="nope", size=CPU)).create(Messages()))


def test_instance_settings_are_changed_and_shown(
    azure_env: Azure, make: Make, run: Callable[[Any], Any], root: StateRoot
) -> None:
    box = AzureBackend(make(InstanceTarget(name="desk", size=CPU, schedule_stop="18:30")).target, *_of(make))
    run(box.create(Messages()))
    assert run(box.state()).stops == "stops after 60 min idle, and at 18:30 UTC"
    run(box.settings.change({"idle_shutdown": 30, "schedule_start": "8:00"}))
    state = run(box.state())
    assert state.stops == run(box.check()).stops == "stops after 30 min idle, and at 18:30 UTC; starts at 08:00 UTC"
    (idle,) = wire(azure_env, r"POST .*computes/desk/updateIdleShutdownSetting")
    (schedules,) = wire(azure_env, r"POST .*computes/desk/updateSchedules")
    assert idle["body"] == {"idleTimeBeforeShutdown": "PT30M"}
    sent = {(one["action"], one["cron"]["expression"]) for one in schedules["body"]["computeStartStop"]}
    assert sent == {("Stop", "30 18 * * *"), ("Start", "0 8 * * *")}
    run(box.settings.change({"idle_shutdown": 0, "schedule_stop": ""}))
    assert run(box.state()).stops == "does not stop automatically; starts at 08:00 UTC"
    assert isinstance(box.target, InstanceTarget)
    assert (box.target.idle_shutdown, box.target.schedule_start, box.target.schedule_stop) == (0, "8:00", "")
    with pytest.raises(CommandError) as caught:
        run(box.settings.change({"idle_shutdown": 5}))
    assert caught.value.field == "idle_shutdown" and box.target.idle_shutdown == 0


@pytest.mark.parametrize(
    ("target", "settings"),
    [
        (AmlComputeTarget(name="gpu", size=GPU), {"idle_shutdown": 30}),
        (ServerlessTarget(name="free", size=GPU), {"schedule_stop": "18:30"}),
    ],
)
def test_setting_of_other_kind_is_refused(
    make: Make, run: Callable[[Any], Any], target: AzureTarget, settings: dict[str, Any]
) -> None:
    with pytest.raises(CommandError) as caught:
        run(AzureBackend(target, *_of(make)).settings.change(settings))
    assert caught.value.code == "compute.setting"


def _of(make: Make) -> tuple[LoopThread, StateRoot]:
    compute = make(ServerlessTarget(name="free", size=GPU))
    return compute.loop, compute.root


def test_instance_restarts_with_schedules(azure_env: Azure, make: Make, run: Callable[[Any], Any]) -> None:
    life = make(InstanceTarget(name="mine", size=CPU, schedule_stop="18:30", idle_shutdown=30))
    run(life.create(Messages()))
    (put,) = wire(azure_env, r"PUT .*computes/mine")
    inner = put["body"]["properties"]["properties"]
    assert inner["idleTimeBeforeShutdown"] == "PT30M"
    (stop,) = inner["schedules"]["computeStartStop"]
    assert stop["action"].lower() == "stop" and stop["cron"]["expression"] == "30 18 * * *"
    messages = Messages()
    run(life.restart(messages))
    assert wire(azure_env, r"POST .*computes/mine/restart") and messages and run(life.state()).state == "ready"


def test_cluster_scale_with_warning_succeeds(azure_env: Azure, make: Make, run: Callable[[Any], Any]) -> None:
    azure_env.control("/switch", scale_seconds=0.2)
    life = make(AmlComputeTarget(name="warned", size=GPU, max_nodes=2))
    run(life.create(Messages()))
    run(life.scale({"min_nodes": 1}, Messages()))
    patches = wire(azure_env, r"PATCH .*computes/warned")
    assert [p["body"]["properties"]["properties"]["scaleSettings"]["minNodeCount"] for p in patches] == [1]
    state = run(life.state())
    assert (state.state, state.nodes) == ("ready", 1) and state.detail.startswith("Warning: ")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("verb", "how"),
    # Of a silent restart the service tells nothing but that the instance runs again.
    [
        *itertools.product(("start", "stop", "restart"), ("status", "unusable")),
        ("start", "silent"),
        ("stop", "silent"),
    ],
)
def test_instance_operation_failure_is_reported(
    azure_env: Azure, make: Make, run: Callable[[Any], Any], verb: str, how: str
) -> None:
    life = make(InstanceTarget(name="mine", size=CPU))
    run(life.create(Messages()))
    if verb == "start":
        run(life.stop(Messages()))
    azure_env.control("/switch", fail_power="mine", power_failure=how)
    with pytest.raises(AmlTrainError) as caught:
        run(getattr(life, verb)(Messages()))  # `run` has a deadline of 60 s, the wait itself one of an hour
    assert isinstance(caught.value, CapacityError) or how == "silent"
    azure_env.control("/switch", fail_power="")
    if how == "status":  # an old failure does not fail the next try
        run(getattr(life, verb)(Messages()))
        assert run(life.state()).state == ("stopped" if verb == "stop" else "ready")


RESOURCE = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/rg/providers/"
ATTACHED: list[tuple[AzureTarget, str]] = [
    (MachineTarget(name="box", resource_id=f"{RESOURCE}Microsoft.Compute/virtualMachines/vm", ssh_user="me",
                   password_from="BOX_PASSWORD"), "VirtualMachine"),
    (KubernetesTarget(name="k8s", resource_id=f"{RESOURCE}Microsoft.ContainerService/managedClusters/k",
                      namespace="ml"), "Kubernetes"),
    (SynapseSparkTarget(name="spark", resource_id=f"{RESOURCE}Microsoft.Synapse/workspaces/w/bigDataPools/p"),
     "SynapseSpark"),
    (HDInsightTarget(name="hdi", resource_id=f"{RESOURCE}Microsoft.HDInsight/clusters/h", ssh_user="me",
                     password_from="BOX_PASSWORD"), "HDInsight"),
    (DatabricksTarget(name="dbx", resource_id=f"{RESOURCE}Microsoft.Databricks/workspaces/d",
                      token_from="BOX_PASSWORD"), "Databricks"),
    (DataLakeTarget(name="lake", resource_id=f"{RESOURCE}Microsoft.DataLakeAnalytics/accounts/a", store="s"),
     "DataLakeAnalytics"),
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(("target", "compute_type"), ATTACHED)
def test_machine_attach_and_detach(
    azure_env: Azure,
    make: Make,
    run: Callable[[Any], Any],
    monkeypatch: pytest.MonkeyPatch,
    target: AzureTarget,
    compute_type: str,
) -> None:
    assert target.field_errors() == {}
    if getattr(target, "password_from", "") or getattr(target, "token_from", ""):
        with pytest.raises(CommandError, match="BOX_PASSWORD"):
            run(make(target).create(Messages()))
    monkeypatch.setenv("BOX_PASSWORD", "s3cret-of-the-box")
    life, messages = make(target), Messages()
    run(life.create(messages))
    (put,) = wire(azure_env, rf"PUT .*computes/{target.name}")
    assert put["body"]["properties"]["computeType"] == compute_type
    assert run(life.state()).state == "ready"
    run(make(target).create(messages))  # taken over
    assert len(wire(azure_env, rf"PUT .*computes/{target.name}")) == 1
    assert [act.verb for act in life.actions(run(life.state()))] == ["delete"]
    run(life.remove(messages))
    (delete,) = wire(azure_env, rf"DELETE .*computes/{target.name}")
    assert "underlyingResourceAction=Detach" in str(delete["query"])
    assert not any("s3cret" in text for text in messages)
    assert "no compute" in run(life.state()).detail


def test_prices_and_quotas_are_cached(azure_env: Azure, make: Make, run: Callable[[Any], Any]) -> None:
    life = make(ServerlessTarget(name="less", size=GPU, tier="Spot"))
    run(life.prepare())
    state = run(life.state())
    assert (state.state, state.price_node, state.gpus) == ("ready", 0.61, 1) and "cores" in state.quota
    before = len(wire(azure_env, r"GET .*vmSizes"))
    run(life.sizes())
    assert len(wire(azure_env, r"GET .*vmSizes")) == before <= 1
    with pytest.raises(CapacityError, match="at most 1 machine"):
        run(make(AmlComputeTarget(name="one", size=GPU)).check_quota(3))
    with pytest.raises(QuotaExceeded, match="low-priority"):
        run(life.check_quota(99))


def test_invalid_ssh_key_file_is_refused(make: Make, run: Callable[[Any], Any], tmp_path: Path) -> None:
    (tmp_path / "id").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n")
    for file, words in ((tmp_path / "id", "is a private key"), (tmp_path / "none", "there is no file")):
        life = make(InstanceTarget(name="mine", size=CPU, ssh_key_file=str(file)))
        with pytest.raises(AmlTrainError) as caught:
            run(life.create(Messages()))
        assert words in str(caught.value) and "abc" not in str(caught.value)


@pytest.mark.thorough
def test_compute_commands_print_sizes_and_quota(
    make: Make, root: StateRoot, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from jupyter_amltrain.cli import main

    monkeypatch.setenv("AMLTRAIN_HOME", str(root.path))
    assert main(["compute", "sizes", "--min-gpu-memory", "80GB"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "Standard_NC24ads_A100_v4 1 x NVIDIA A100 80GB PCIe" in output
    assert "V100" not in output and "A10 " not in output
    assert main(["compute", "quota", "--json"]) == 0
    rows = {row["family"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["standardNCSv3Family"]["free"] == 24
    assert main(["compute", "support"]) == 0 and "synapse-spark" in capsys.readouterr().out
    assert main(["compute", "sizes", "--family", "QQ"]) == 2
    assert "No size of family 'QQ'" in capsys.readouterr().err
    assert main(["compute", "create", "gpu_cluster", "--kind", "amlcompute", "--size", GPU]) == 2
    assert " gpu-cluster." in capsys.readouterr().err
    assert main(["compute", "attach", "old", "--kind", "batch"]) == 2
    assert "Azure Batch is no longer" in capsys.readouterr().err


@pytest.mark.thorough
def test_cli_cluster_lifecycle(
    azure_env: Azure, make: Make, root: StateRoot, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from jupyter_amltrain.cli import main

    monkeypatch.setenv("AMLTRAIN_HOME", str(root.path))
    monkeypatch.setattr("jupyter_amltrain.commands.compute.LIST_TIMEOUT_S", 20.0)
    azure_env.control("/switch", scale_seconds=0.2)
    line = ["compute", "create", "lab", "--kind", "amlcompute", "--size", GPU, "--max-nodes", "2"]
    assert main(line) == 2
    prompt = capsys.readouterr().err
    assert "2 x 3.06 = 6.12 USD per hour" in prompt and "--yes" in prompt
    assert main([*line, "--yes"]) == 0
    assert "lab is created." in capsys.readouterr().out
    assert main([*line, "--yes"]) == 0 and "already exists" in capsys.readouterr().out
    assert main(["compute", "list", "--json"]) == 0
    row = next(row for row in json.loads(capsys.readouterr().out) if row["target"] == "lab")
    assert row["fields"]["workspace"] == "ws" and (row["state"], row["nodes"], row["max_nodes"]) == ("ready", 0, 2)
    assert row["quota"] == "0 of 24 cores" and row["gpu_name"] == "NVIDIA V100 16 GB"
    assert main(["compute", "scale", "lab", "--nodes", "1", "--yes"]) == 0
    assert main(["compute", "delete", "lab", "--yes"]) == 0
    assert "lab is deleted." in capsys.readouterr().out and wire(azure_env, r"DELETE .*computes/lab")
    assert main([*line[:-1], "9", "--yes"]) == 2  # before anything is sent
    refused = capsys.readouterr().err
    assert "54 cores" in refused and "4 machines" in refused
    assert main(["compute", "list"]) == 0 and "lab" not in capsys.readouterr().out


def test_create_waits_for_slow_azure(azure_env: Azure, make: Make, run: Callable[[Any], Any]) -> None:
    azure_env.control("/switch", create_seconds=1.5)
    messages: list[str] = []

    def hear(text: str) -> None:
        if text == "Sending the request to Azure":
            azure_env.control("/fault", match=r"GET .*computes/slow", times=7, status=503)
        messages.append(text)

    life = make(AmlComputeTarget(name="slow", size=CPU))
    run(life.create(hear))
    assert run(life.state()).state == "ready"
    assert any("Azure is not responding" in text for text in messages), messages
