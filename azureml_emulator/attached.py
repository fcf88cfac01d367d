"""Computes that somebody else runs: VirtualMachine, Kubernetes, SynapseSpark, HDInsight, Databricks, DataLakeAnalytics.

Assumed: no attach was recorded. The shape is the ARM schema's; secrets never come back.
"""

from __future__ import annotations

from typing import Any

from azureml_emulator import arm
from azureml_emulator.routing import Refused
from azureml_emulator.world import World, copied

#: computeType -> the resource that its resourceId must name.
KINDS = {
    "VirtualMachine": ("Microsoft.Compute/virtualMachines",),
    "Kubernetes": ("Microsoft.Kubernetes/connectedClusters", "Microsoft.ContainerService/managedClusters"),
    "AKS": ("Microsoft.ContainerService/managedClusters",),
    "SynapseSpark": ("Microsoft.Synapse/workspaces",),
    "HDInsight": ("Microsoft.HDInsight/clusters",),
    "Databricks": ("Microsoft.Databricks/workspaces",),
    "DataLakeAnalytics": ("Microsoft.DataLakeAnalytics/accounts",),
    "DataFactory": ("Microsoft.DataFactory/factories",),
}
_SECRETS = {"password", "publickeydata", "privatekeydata", "databricksaccesstoken", "adminuserpassword"}


def seconds(world: World) -> float:
    """How long attaching takes."""
    return float(world.switches["create_seconds"])


def check(world: World, resource: dict[str, Any], given: dict[str, Any]) -> None:
    """
    Raises
    ------
    Refused
        400: the resource id is not one of a resource of this kind.
    """
    outer = resource["properties"]
    wanted = KINDS[outer["computeType"]]
    arm_id = str(outer["resourceId"] or "")
    named = arm_id.partition("/providers/")[2].lower()
    if not arm_id.lower().startswith("/subscriptions/") or not named.startswith(tuple(one.lower() for one in wanted)):
        message = (
            f"The resource id '{arm_id}' is invalid for compute type {outer['computeType']}: "
            f"it must be that of a {' or '.join(wanted)}."
        )
        details = [("InvalidResourceId", message)]
        raise Refused(arm.compute_error(world, 400, message, code="BadRequest", details=details))


def properties(world: World, resource: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """What was given, without the secrets."""
    made: dict[str, Any] = _without_secrets(copied(given))
    if resource["properties"]["computeType"] == "Kubernetes":
        made = {
            "namespace": "default",
            "defaultInstanceType": "defaultinstancetype",
            "instanceTypes": {
                "defaultinstancetype": {
                    "nodeSelector": None,
                    "resources": {
                        "requests": {"cpu": "100m", "memory": "2Gi"},
                        "limits": {"cpu": "2", "memory": "2Gi"},
                    },
                }
            },
            **made,
        }
    return made


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: None if key.lower() in _SECRETS else _without_secrets(one)
            for key, one in value.items()
            if key != "_given"
        }
    return [_without_secrets(one) for one in value] if isinstance(value, list) else value


def failure(resource: dict[str, Any]) -> tuple[str, str]:
    """Code and message of an attach that fails by the switch."""
    if resource["properties"]["computeType"] == "VirtualMachine":
        return "ConnectionFailed", "The SSH connection to the virtual machine failed: check address, port and password."
    return "AttachFailed", "The compute could not be attached: the workspace's identity has no rights on the resource."


def made(world: World, resource: dict[str, Any]) -> None:
    """Attached: nothing else runs."""
