from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_amltrain.azure import compute_state, provisioning_errors
from jupyter_amltrain.azure import terms as azure_terms
from jupyter_amltrain.azure.catalog import Quotas, find, size_row, sizes_of
from jupyter_amltrain.azure.cost_prompts import confirmation, state_of
from jupyter_amltrain.azure.targets import (
    AmlComputeTarget,
    DatabricksTarget,
    InstanceTarget,
    MachineTarget,
    ServerlessTarget,
    kind_of_type,
)
from jupyter_amltrain.errors import AmlTrainError, AuthenticationError, CapacityError, QuotaExceeded, TargetError

DATA = Path(__file__).resolve().parents[3] / "azureml_emulator" / "data" / "recordings"
GROUP = "/subscriptions/s/resourceGroups/g"
SIZES = sizes_of(
    size_row(item)
    for item in json.loads((DATA / "05_vmSizes_eastus.json").read_text())["entries"][0]["response"]["value"]
)


def recorded(name: str, at: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / name).read_text())["entries"][at]["response"]
    return found


def test_cluster_row_while_creating_is_creating() -> None:
    row = compute_state.row(recorded("amlcompute_create.json", 0))
    assert (row["kind"], row["state"], row["size"], row["nodes"], row["max_nodes"]) == (
        "amlcompute", "creating", "STANDARD_DS2_V2", 0, 2,
    )  # fmt: skip
    assert row["idle_seconds"] == 100 and row["settings"]["idle_minutes"] == pytest.approx(100 / 60)
    assert row["settings"]["low_priority"] is False and "ssh_user" not in row["settings"]


def test_cluster_row_while_resizing_is_ready() -> None:
    row = compute_state.row(recorded("11b_missing_compute_404_empty_and_resizing.json", 1))
    assert (row["state"], row["nodes"], row["wanted"], row["steady"]) == ("ready", 1, 0, False)
    assert "from 1 to 0" in row["detail"] and row["location"] == "eastus2"


def test_instance_row_has_state_and_size() -> None:
    making = compute_state.row(recorded("06b_compute_instance_2024_bodies.json", 0))
    assert (making["kind"], making["state"]) == ("instance", "creating")
    running = compute_state.row(recorded("06b_compute_instance_2024_bodies.json", 3))
    assert (running["state"], running["nodes"], running["detail"]) == ("ready", None, "")
    assert running["settings"]["identity"] == "system" and running["settings"]["public_ip"] is True


@pytest.mark.parametrize(
    ("state", "ours", "detail"),
    [("Stopped", "stopped", ""), ("Stopping", "stopping", "Stopping"), ("JobRunning", "ready", "Job running"),
     ("SetupFailed", "failed", "Setup failed"), ("Novel", "unknown", "Novel")],
)  # fmt: skip
def test_instance_state_is_mapped(state: str, ours: str, detail: str) -> None:
    arm = recorded("06b_compute_instance_2024_bodies.json", 3)
    arm["properties"]["properties"]["state"] = state
    assert [compute_state.row(arm)[key] for key in ("state", "detail")] == [ours, detail]


def test_compute_row_failed_provisioning_has_detail() -> None:
    arm = recorded("amlcompute_create.json", 0)
    arm["properties"] |= {
        "provisioningState": "Failed",
        "provisioningErrors": [{"error": {"code": "A", "message": "x\ny", "details": [{"code": "B", "message": "z"}]}}],
    }
    row = compute_state.row(arm)
    assert row["state"] == "failed" and row["errors"] == ["B: z"] and row["detail"] == "B: z"
    other = compute_state.row(
        {"name": "adf", "properties": {"computeType": "DataFactory", "provisioningState": "Succeeded"}}
    )
    assert (other["kind"], other["type"], other["state"], other["settings"]) == ("", "DataFactory", "ready", {})
    assert compute_state.row({"name": "x"})["state"] == "unknown"


WARNING = {"error": {"code": "ClusterHasWarnings", "message": "The VM size is deprecated."}}


def test_cluster_row_with_warning_has_no_error() -> None:
    arm = recorded("amlcompute_create.json", 0)
    arm["properties"]["provisioningState"] = "Succeeded"
    arm["properties"]["properties"]["errors"] = [WARNING]
    row = compute_state.row(arm)
    assert row["state"] == "ready" and row["errors"] == []
    assert row["warnings"] == ["ClusterHasWarnings: The VM size is deprecated."]
    assert row["detail"].startswith("Warning: ")


def test_cluster_row_with_warning_and_error_has_error() -> None:
    arm = recorded("amlcompute_create.json", 0)
    arm["properties"]["provisioningState"] = "Succeeded"
    arm["properties"]["properties"]["errors"] = [WARNING, {"error": {"code": "OutOfCapacity", "message": "None left."}}]
    row = compute_state.row(arm)
    assert row["errors"] == ["OutOfCapacity: None left."] and row["detail"] == row["errors"][0]


@pytest.mark.parametrize(
    ("status", "state", "ours", "failed"),
    [
        ("Succeeded", "Running", "ready", False),
        ("InProgress", "Starting", "starting", False),
        ("StartFailed", "Stopped", "stopped", True),
        ("StopFailed", "Running", "ready", True),
        ("RestartFailed", "Unusable", "failed", True),
        ("CreateFailed", "Creating", "failed", True),
    ],
)
def test_instance_row_reports_failed_last_operation(status: str, state: str, ours: str, failed: bool) -> None:
    arm = recorded("06b_compute_instance_2024_bodies.json", 3)
    inner = arm["properties"]["properties"]
    inner |= {"state": state, "errors": [{"error": {"code": "AllocationFailed", "message": "None."}}] if failed else []}
    inner["lastOperation"] = {"operationName": "Start", "operationStatus": status, "operationTime": "t"}
    row = compute_state.row(arm)
    assert (row["state"], compute_state.operation_failed(row["operation"])) == (ours, failed)
    assert ("AllocationFailed" in row["detail"]) is failed


def test_changed_schedule_keeps_those_of_the_studio() -> None:
    weekly = {"action": "Stop", "triggerType": "Recurrence", "recurrence": {"frequency": "Week", "interval": 1}}
    off = {"action": "Stop", "cron": {"expression": "0 1 * * *"}, "status": "Disabled"}
    start, stop = ({"action": action, "cron": {"expression": "0 8 * * *"}} for action in ("Start", "Stop"))
    found = compute_state.changed_schedules({"computeStartStop": [weekly, off, start, stop]}, {"schedule_stop": "9:05"})
    assert found[:3] == [weekly, off, start] and found[3]["cron"]["expression"] == "5 9 * * *" and len(found) == 4
    assert compute_state.changed_schedules({"computeStartStop": [weekly, start]}, {"schedule_start": ""}) == [weekly]


def test_power_text_has_every_stop_and_start() -> None:
    settings = {"idle_shutdown": 30, "schedule_stop": "0 18 * * 1-5", "schedule_start": "0 8 * * *"}
    text = compute_state.power_text(settings, others=2)
    assert all(part in text for part in ("30 min idle", "'0 18 * * 1-5' UTC", "08:00 UTC", "2 more"))
    assert "not stop" in compute_state.power_text({})


def test_schedule_and_duration_texts_are_converted() -> None:
    assert compute_state.cron("18:05") == "5 18 * * *" and compute_state.cron("0 18 * * 1-5") == "0 18 * * 1-5"
    assert [azure_terms.iso_seconds(t) for t in ("PT15M", "PT1M40S", "P1DT2H", "", None, "x")] == [
        900, 100, 93600, None, None, None,
    ]  # fmt: skip
    assert azure_terms.iso_seconds(compute_state.duration(901)) == 901 and compute_state.duration(45) == "PT45S"
    made = compute_state.subnet_id("net", "sub", GROUP)
    assert made == f"{GROUP}/providers/Microsoft.Network/virtualNetworks/net/subnets/sub"
    assert compute_state.subnet_id("", made, GROUP) == made and compute_state.network(made) == ("net", "sub")
    assert compute_state.subnet_id("/a/net", "sub", GROUP) == "/a/net/subnets/sub"


def test_compute_differences_are_named() -> None:
    there = compute_state.row(recorded("amlcompute_create.json", 0))
    wanted = msgspec.to_builtins(
        AmlComputeTarget(name="cpu", size="standard_ds2_v2", max_nodes=2, idle_minutes=100 / 60, region="East US")
    )
    assert compute_state.differences(wanted, there, kind="amlcompute", group=GROUP) == []
    other = {**wanted, "max_nodes": 4, "low_priority": True, "vnet": "net", "subnet": "sub", "region": "westus"}
    lines = compute_state.differences(other, there, kind="amlcompute", group=GROUP)
    assert [text.partition(" ")[0] for text in lines] == ["max_nodes", "low_priority", "subnet", "region"]
    assert lines[0] == "max_nodes is 2, not 4"
    assert compute_state.differences(wanted, there, kind="instance", group=GROUP) == ["it is of type AmlCompute"]


PASTED = json.loads((Path(__file__).parent / "refusals.json").read_text())


@pytest.mark.parametrize("at", range(len(PASTED)))
def test_provisioning_error_is_mapped_to_class(at: int) -> None:
    text, kind, words = (PASTED[at][key] for key in ("text", "error", "words"))
    error = provisioning_errors.error_of(["something else", text], "gpu", size="Standard_NC6", region="eastus")
    assert type(error).__name__ == kind and words in str(error), str(error)
    assert str(error).startswith("'gpu': ") and "\n" not in str(error) and error.hint
    assert provisioning_errors.is_known(text)


def test_provisioning_error_unknown_is_passed_on() -> None:
    error = provisioning_errors.error_of(["Novel: the moon is full"], "gpu")
    assert (
        type(error) is TargetError and "the moon is full" in str(error) and not provisioning_errors.is_known("the moon")
    )
    assert "no reason" in str(provisioning_errors.error_of([], "gpu"))
    assert issubclass(QuotaExceeded, AmlTrainError) and issubclass(AuthenticationError, TargetError)
    assert issubclass(CapacityError, TargetError)


QUOTAS = Quotas([{"family": "", "used": 0, "limit": 100}, {"family": "standardNCSv3Family", "used": 12, "limit": 24}])


def say(target: Any, verb: str, running: int = 0, queued: int = 0, **values: Any) -> str:
    size = find(SIZES, getattr(target, "size", ""))
    return confirmation(target, verb, values, running=running, queued=queued, size=size, quotas=QUOTAS)


def test_cluster_create_prompt_names_cost() -> None:
    cluster = AmlComputeTarget(name="gpu", size="Standard_NC6s_v3", max_nodes=4)
    text = say(cluster, "create")
    assert all(part in text for part in ("4 x 3.06 = 12.24 USD", "15 min", "2 of the 4 machines"))
    cheap = msgspec.structs.replace(cluster, low_priority=True, max_nodes=1, min_nodes=1)
    text = say(cheap, "create")
    assert all(part in text for part in ("up to 0.61 USD", "1 of them stay on (0.61 USD", "15 min", "Low-priority"))
    assert "2 x 3.06 = 6.12 USD" in say(cluster, "scale", min_nodes=2)
    more = say(cluster, "scale", max_nodes=5)
    assert "5 x 3.06 = 15.3 USD" in more.replace("15.30", "15.3") and "2 of the 5" in more
    assert say(cluster, "scale", min_nodes=0) == say(cluster, "scale", max_nodes=2, idle_minutes=5) == ""
    unknown = msgspec.structs.replace(cluster, size="Standard_DS2_v2")
    assert "unknown price" in say(unknown, "create") and "unknown price" in say(unknown, "scale", max_nodes=9)
    assert " 2 running runs " in say(cluster, "delete", 2)
    assert " 1 running and 3 queued runs " in say(cluster, "delete", 1, 3)
    assert " 1 queued run " in say(cluster, "delete", 0, 1)
    assert "stopped" not in say(cluster, "delete") and "kept in the workspace" in say(cluster, "delete")


def test_instance_and_serverless_prompts_name_cost() -> None:
    instance = InstanceTarget(name="mine", size="Standard_NC6s_v3", schedule_stop="18:30")
    text = say(instance, "start")
    assert all(part in text for part in ("3.06 USD", "60 min", "18:30 UTC"))
    forever = msgspec.structs.replace(instance, schedule_stop="", idle_shutdown=0)
    assert "automatically" in say(forever, "create")
    assert "2 running runs" in say(instance, "stop", 2) and say(instance, "stop") == ""
    serverless = ServerlessTarget(name="less", size="Standard_NC4as_T4_v3")
    assert say(serverless, "create") == "" and "nothing is deleted" in say(serverless, "delete")
    machine = MachineTarget(name="box", resource_id="/x", ssh_user="me", password_from="P")
    assert say(machine, "create") == "" and "not changed" in say(machine, "delete", 1)


def test_compute_list_row_shows_state() -> None:
    cluster = AmlComputeTarget(name="gpu", size="Standard_NC6s_v3", max_nodes=4)
    size = find(SIZES, "Standard_NC6s_v3")
    row = {"state": "ready", "nodes": 2, "max_nodes": 4, "size": "STANDARD_NC6S_V3", "low_priority": False}
    state = state_of(cluster, row, size, QUOTAS)
    assert (state.price, state.price_node, state.currency, state.quota) == (6.12, 3.06, "USD", "12 of 24 cores")
    assert (state.size, state.gpu_name, state.gpus, state.cpus) == ("Standard_NC6s_v3", "NVIDIA V100 16 GB", 1, 6)
    assert state_of(cluster, {**row, "nodes": 0}, size, QUOTAS).detail.startswith("No machine")
    serverless = state_of(ServerlessTarget(name="l", size="Standard_NC6s_v3"), None, size, QUOTAS, created=False)
    assert (serverless.price, serverless.price_node, serverless.nodes) == (0, 3.06, None)
    listed = state_of(DatabricksTarget(name="dbx", resource_id="/x"), {"state": "ready"}, None, QUOTAS)
    assert "runs no job" in listed.detail and listed.price is None
    stopped = state_of(InstanceTarget(name="m", size="Standard_NC6s_v3"), {"state": "stopped"}, size, QUOTAS)
    assert (stopped.price, stopped.price_node, stopped.quota) == (0, 3.06, "12 of 24 cores")


def test_compute_type_of_service_is_mapped() -> None:
    for word in ("AmlCompute", "computeinstance", "VirtualMachine", "Kubernetes", "SynapseSpark", "HDInsight"):
        assert kind_of_type(word) is not None
    assert kind_of_type("") is None and kind_of_type("Batch") is None
