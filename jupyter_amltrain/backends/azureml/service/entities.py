"""What the SDK is told of a compute: the same classes in azure-ai-ml 1.33 to 1.35."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jupyter_amltrain.backends.azureml import computed


def cluster(name: str, settings: Mapping[str, Any]) -> Any:
    """A cluster of a target's settings."""
    from azure.ai.ml.entities import AmlCompute, AmlComputeSshSettings

    ssh_key = str(settings.get("ssh_key") or "")
    ssh = (
        AmlComputeSshSettings(admin_username=str(settings["ssh_user"]), ssh_key_value=ssh_key)
        if ssh_key and settings.get("ssh_user")
        else None
    )
    return AmlCompute(
        name=name,
        size=settings["size"],
        location=settings.get("region") or None,
        min_instances=int(settings.get("min_nodes") or 0),
        max_instances=int(settings.get("max_nodes") or 1),
        idle_time_before_scale_down=round(float(settings.get("idle_minutes") or 15) * 60),
        tier="low_priority" if settings.get("low_priority") else "dedicated",
        network_settings=_network(settings),
        enable_node_public_ip=bool(settings.get("public_ip", True)),
        identity=identity(settings),
        ssh_public_access_enabled=bool(ssh),
        ssh_settings=ssh,
    )


def instance(name: str, settings: Mapping[str, Any]) -> Any:
    """A compute instance of a target's settings."""
    from azure.ai.ml.entities import ComputeInstance, ComputeInstanceSshSettings

    ssh_key = str(settings.get("ssh_key") or "")
    return ComputeInstance(
        name=name,
        size=settings["size"],
        idle_time_before_shutdown_minutes=int(settings.get("idle_shutdown") or 0) or None,
        schedules=_schedules(settings),
        network_settings=_network(settings),
        enable_node_public_ip=bool(settings.get("public_ip", True)),
        identity=identity(settings),
        ssh_public_access_enabled=True if ssh_key else None,
        ssh_settings=ComputeInstanceSshSettings(ssh_key_value=ssh_key) if ssh_key else None,
    )


def _schedules(settings: Mapping[str, Any]) -> Any:
    from azure.ai.ml.entities import ComputePowerAction, ComputeSchedules, ComputeStartStopSchedule, CronTrigger

    found = [
        ComputeStartStopSchedule(
            action=action, trigger=CronTrigger(expression=computed.cron(str(settings[key])), time_zone="UTC")
        )
        for key, action in (("schedule_start", ComputePowerAction.START), ("schedule_stop", ComputePowerAction.STOP))
        if settings.get(key)
    ]
    return ComputeSchedules(compute_start_stop=found) if found else None


def _network(settings: Mapping[str, Any]) -> Any:
    if not settings.get("subnet"):
        return None
    from azure.ai.ml.entities import NetworkSettings

    return NetworkSettings(vnet_name=settings.get("vnet") or None, subnet=settings["subnet"])


def identity(settings: Mapping[str, Any]) -> Any:
    """The managed identity that is wanted; ``None`` for none."""
    wanted = str(settings.get("identity") or "")
    if not wanted:
        return None
    from azure.ai.ml.entities import IdentityConfiguration, ManagedIdentityConfiguration

    if wanted == "system":
        return IdentityConfiguration(type="system_assigned")
    return IdentityConfiguration(
        type="user_assigned", user_assigned_identities=[ManagedIdentityConfiguration(resource_id=wanted)]
    )


def attached(kind: str, name: str, settings: Mapping[str, Any], secrets: Mapping[str, str]) -> Any:
    """A virtual machine, Kubernetes cluster or Spark pool of a target's settings."""
    from azure.ai.ml import entities

    resource_id = settings["resource_id"]
    if kind == "vm":
        ssh = entities.VirtualMachineSshSettings(
            admin_username=settings.get("ssh_user"),
            admin_password=secrets.get("password") or None,
            ssh_port=int(settings.get("ssh_port") or 22),
            ssh_private_key_file=settings.get("ssh_key_file") or None,
        )
        return entities.VirtualMachineCompute(name=name, resource_id=resource_id, ssh_settings=ssh)
    found = identity(settings)
    if kind == "kubernetes":
        return entities.KubernetesCompute(
            name=name,
            resource_id=resource_id,
            namespace=str(settings.get("namespace") or "default"),
            identity=found,
        )
    return entities.SynapseSparkCompute(name=name, resource_id=resource_id, identity=found)
