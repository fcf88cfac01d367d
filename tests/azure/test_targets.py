from __future__ import annotations

from typing import Any

import msgspec
import pytest

from jupyter_amltrain.azure.targets import (
    AZURE_KINDS,
    RETIRED_KINDS,
    AmlComputeTarget,
    AzureTarget,
    DatabricksTarget,
    InstanceTarget,
    KubernetesTarget,
    MachineTarget,
    ServerlessTarget,
    SynapseSparkTarget,
)
from jupyter_amltrain.schema.fields import checked_target, fields_of

PROVIDERS = "/subscriptions/s/resourceGroups/g/providers/"
MACHINE = f"{PROVIDERS}Microsoft.Compute/virtualMachines/box"


def wrong(kind: type[AzureTarget], name: str = "gpu-cluster", **values: Any) -> dict[str, str]:
    return checked_target(kind, name, values)[1]


@pytest.mark.parametrize("kind", AZURE_KINDS)
def test_azure_kind_fields_name_required_flags(kind: type[AzureTarget]) -> None:
    fields = {field.name: field for field in fields_of(kind)}
    assert fields["workspace"].help and fields["compute"].advanced and kind.title
    assert kind.verb == ("attach" if kind.attached else "create")
    required = {"resource_id"} if kind.attached else {"size"}
    assert {name for name, field in fields.items() if field.required} == {"name", *required}
    assert not any("password" in name and not name.endswith("_from") for name in fields)
    assert not any(name in ("password", "token", "key", "secret") for name in fields)


def test_azure_target_with_valid_fields_is_accepted() -> None:
    target, none = checked_target(AmlComputeTarget, "gpu-cluster", {"size": "Standard_NC6s_v3", "max_nodes": "4"})
    assert none == {} and target == AmlComputeTarget(name="gpu-cluster", size="Standard_NC6s_v3", max_nodes=4)
    again = msgspec.convert(msgspec.to_builtins(target), AmlComputeTarget)
    assert again == target and again.compute_name == "gpu-cluster"
    assert msgspec.structs.replace(again, compute="other").compute_name == "other"
    assert wrong(ServerlessTarget, "any_name", size="x") == {}  # nothing of that name is made at Azure
    assert ServerlessTarget(name="x", size="y", tier="Spot").low_priority
    assert wrong(KubernetesTarget, resource_id=f"{PROVIDERS}Microsoft.ContainerService/managedClusters/k") == {}
    assert wrong(SynapseSparkTarget, resource_id=f"{PROVIDERS}Microsoft.Synapse/workspaces/w/bigDataPools/p") == {}
    assert wrong(MachineTarget, resource_id=MACHINE, ssh_user="me", ssh_key_file="k") == {}


@pytest.mark.parametrize(
    ("kind", "name", "values", "field", "sentence"),
    [
        (AmlComputeTarget, "gpu_cluster", {"size": "x"}, "name", " gpu-cluster."),
        (AmlComputeTarget, "gpu_1", {"size": "x", "compute": "1"}, "compute", "3 to 24 letters"),
        (AmlComputeTarget, "gpu", {}, "size", "required"),
        (AmlComputeTarget, "gpu", {"size": "x", "min_nodes": 2}, "min_nodes", "more than the maximum (1)"),
        (AmlComputeTarget, "gpu", {"size": "x", "vnet": "v"}, "subnet", "Give the subnet"),
        (AmlComputeTarget, "gpu", {"size": "x", "subnet": "s"}, "vnet", "full resource id"),
        (AmlComputeTarget, "gpu", {"size": "x", "ssh_user": "me"}, "ssh_key_file", "public key"),
        (AmlComputeTarget, "gpu", {"size": "x", "ssh_key_file": "k"}, "ssh_user", "administrator"),
        (AmlComputeTarget, "gpu", {"size": "x", "identity": "me"}, "identity", "neither system nor"),
        (InstanceTarget, "gpu-1", {"size": "x"}, "name", " gpu1."),
        (InstanceTarget, "gpu", {"size": "x", "schedule_stop": "25:00"}, "schedule_stop", "Write 18:30"),
        (InstanceTarget, "gpu", {"size": "x", "idle_shutdown": 5}, "idle_shutdown", "15 minutes"),
        (MachineTarget, "box", {"resource_id": "box"}, "resource_id", "is not a resource id"),
        (
            MachineTarget,
            "box",
            {"resource_id": f"{PROVIDERS}Microsoft.HDInsight/clusters/h", "ssh_user": "a", "ssh_key_file": "k"},
            "resource_id",
            "not a virtual machine",
        ),
        (MachineTarget, "box", {"resource_id": MACHINE, "ssh_user": "me"}, "password_from", "--ssh-key-file"),
        (ServerlessTarget, "less", {"size": "x", "tier": "Cheap"}, "tier", "not one of the choices"),
    ],
)
def test_azure_target_with_invalid_field_is_refused(
    kind: type[AzureTarget], name: str, values: dict[str, Any], field: str, sentence: str
) -> None:
    assert sentence in wrong(kind, name, **values)[field]


def test_secret_in_target_field_is_not_repeated_in_error() -> None:
    found = wrong(DatabricksTarget, resource_id=f"{PROVIDERS}Microsoft.Databricks/workspaces/d", token_from="dapi-12!x")
    assert list(found) == ["token_from"] and "dapi" not in found["token_from"]
    assert "environment variable" in wrong(DatabricksTarget, resource_id=MACHINE)["token_from"]


def test_retired_kind_names_replacement() -> None:
    assert "--low-priority" in RETIRED_KINDS["batch"] and "\n" not in RETIRED_KINDS["batch"]
