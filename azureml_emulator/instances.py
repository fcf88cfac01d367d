"""ComputeInstance: one VM that is started and stopped (recordings 06b, 06c)."""

from __future__ import annotations

import base64
import subprocess
import tempfile
from typing import Any

from azureml_emulator import arm, sizes
from azureml_emulator.clock import seconds_of
from azureml_emulator.quota import check_clusters
from azureml_emulator.routing import Refused
from azureml_emulator.world import World


def seconds(world: World) -> float:
    """How long creating takes."""
    return float(world.switches["instance_seconds"])


def check(world: World, resource: dict[str, Any], given: dict[str, Any]) -> None:
    """
    Raises
    ------
    Refused
        400: the size is none for instances, or its family's quota is used up.
    """
    check_clusters(world)
    size = sizes.find(str(given.get("vmSize", "")))
    message, precise = "", "InvalidPropertyValue"
    if size is None or "ComputeInstance" not in size["supportedComputeTypes"]:
        message = f"'{given.get('vmSize', '')}' is not a supported VM size in region {world.location}."
    elif world.switches["quota_on_create"] and world.quota.free_nodes(size["name"], False) < 1:
        message = world.quota.check_cluster(size, 1) or world.quota.reached(size["name"], False, 1)["message"]
        precise = "ClusterCoreQuotaReached"
    if message:
        raise Refused(arm.compute_error(world, 400, message, code="BadRequest", details=[(precise, message)]))


def properties(world: World, resource: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Inner properties of the 201: nearly all null."""
    keys = ("idleTimeBeforeShutdown", "schedules")
    return {
        "vmSize": str(given["vmSize"]).upper(),
        "imageVersion": None,
        "imageSku": None,
        "subnet": given.get("subnet"),
        "sshSettings": None,
        "autologgerSettings": None,
        "errors": None,
        "connectivityEndpoints": None,
        "applications": None,
        "state": None,
        "enableRootAccess": given.get("enableRootAccess", True),
        "lastOperation": None,
        "createdBy": {"userOrgId": world.tenant, "userId": "77777777-0000-4000-8000-000000000007"},
        "applicationSharingPolicy": None,
        "computeInstanceAuthorizationType": given.get("computeInstanceAuthorizationType") or "personal",
        "personalComputeInstanceSettings": given.get("personalComputeInstanceSettings"),
        "setupScripts": given.get("setupScripts"),
        "enableNodePublicIp": given.get("enableNodePublicIp", True),
        "enableBatchPrivateLink": False,
        "enableOSPatching": bool(given.get("enableOSPatching", False)),
        "releaseQuotaOnStop": bool(given.get("releaseQuotaOnStop", False)),
        "enableSSO": given.get("enableSSO", True),
        "dataMounts": None,
        "dataDisks": None,
        "containers": None,
        "updateStatus": None,
        "versions": None,
        "customServices": given.get("customServices"),
        "osImageMetadata": None,
        **{key: given[key] for key in keys if given.get(key) is not None},
        "_given": {key: given.get(key) for key in ("sshSettings", "applicationSharingPolicy", "vmSize")},
    }


def failure(resource: dict[str, Any]) -> tuple[str, str]:
    """Code and message of a creation that fails by the switch."""
    return "InstanceCreationFailed", "The compute instance could not be created: its setup script failed."


def made(world: World, resource: dict[str, Any]) -> None:
    """The instance is there and runs."""
    inner, name = resource["properties"]["properties"], resource["name"]
    given = inner.pop("_given", {})
    host = f"https://{name}.{resource['location']}.instances.azureml.ms"
    resource["properties"]["provisioningWarnings"] = {}
    ssh = given.get("sshSettings") or {}
    inner |= {
        "vmSize": given.get("vmSize") or inner["vmSize"],
        "sshSettings": {
            "sshPublicAccess": ssh.get("sshPublicAccess") or "Disabled",
            "adminUserName": "azureuser",
            "sshPort": 50000,
            "adminPublicKey": ssh.get("adminPublicKey"),
        },
        "errors": [],
        "connectivityEndpoints": {"publicIpAddress": "20.0.0.5", "privateIpAddress": "10.0.0.4"},
        "applications": [
            {"displayName": "Jupyter", "endpointUri": f"{host}/tree/"},
            {"displayName": "Jupyter Lab", "endpointUri": f"{host}/lab"},
        ],
        "applicationSharingPolicy": given.get("applicationSharingPolicy") or "Shared",
        "schedules": inner.get("schedules") or {"computeStartStop": []},
        "versions": {"runtime": "3.0.02853.0001"},
        "customServices": inner.get("customServices") or [],
        "osImageMetadata": {
            "currentImageVersion": "24.10.18",
            "latestImageVersion": "24.10.18",
            "isLatestOsImageVersion": True,
            "osPatchingStatus": None,
        },
    }
    _note(world, resource, "Running", "Create", "Succeeded")
    world.part(StartupScripts).succeeds(resource)  # of a creation nobody asks what became of it
    _watch_idle(world, resource)


def _note(
    world: World, resource: dict[str, Any], state: str, operation: str, status: str, trigger: str = "User"
) -> None:
    inner = resource["properties"]["properties"]
    inner["state"] = state
    inner["lastOperation"] = {
        "operationName": operation,
        "operationTime": world.clock.stamp(),
        "operationStatus": status,
        "operationTrigger": trigger,
    }
    resource["properties"]["modifiedOn"] = world.clock.stamp()


async def act(world: World, resource: dict[str, Any], what: str, trigger: str = "User") -> None:
    """start, stop or restart; provisioningState stays Succeeded (recordings)."""
    inner = resource["properties"]["properties"]
    operation = what.capitalize()
    if (what, inner["state"]) in (("start", "Running"), ("stop", "Stopped")):
        return
    passing, end = {
        "start": ("Starting", "Running"),
        "stop": ("Stopping", "Stopped"),
        "restart": ("Restarting", "Running"),
    }[what]
    if what == "start" and not world.part(StartupScripts).succeeds(resource):
        _note(world, resource, passing, operation, "InProgress", trigger)
        await world.clock.sleep(float(world.switches["instance_seconds"]))
        error = {"code": "StartupScriptFailed", "message": "The startup script ended with an error."}
        inner["errors"] = [{"error": error}]
        _note(world, resource, "Stopped", operation, "StartFailed", trigger)
        raise arm.OperationFailed(error["code"], error["message"])
    if what == "start" and inner["releaseQuotaOnStop"] and world.quota.free_nodes(inner["vmSize"], False) < 1:
        error = world.quota.reached(inner["vmSize"], False, 1)
        inner["errors"] = [{"error": error}]
        _note(world, resource, "Stopped", operation, f"{operation}Failed", trigger)
        raise arm.OperationFailed(error["code"], error["message"])
    before = inner["state"]
    _note(world, resource, passing, operation, "InProgress", trigger)
    await world.clock.sleep(float(world.switches["instance_seconds"]))
    failing = world.switches["fail_power"]
    if failing and failing in resource["name"]:
        _fail(world, resource, before, operation, trigger)
    if world.resources.get(resource["id"]) is resource:
        inner["errors"] = []
        _note(world, resource, end, operation, "Succeeded", trigger)
        if end == "Running":
            _watch_idle(world, resource)
        world.nodes.replan()


def _fail(world: World, resource: dict[str, Any], before: str, operation: str, trigger: str) -> None:
    """
    Raises
    ------
    OperationFailed
        Always. Words of the status: the API's ``OperationStatus``; text of the error: users' (AllocationFailed).
    """
    inner = resource["properties"]["properties"]
    code, message = (
        "AllocationFailed",
        "Allocation failed. We do not have sufficient capacity for the requested VM size.",
    )
    how = world.switches["power_failure"]
    if how == "silent":
        inner["state"] = before
    else:
        inner["errors"] = [{"error": {"code": code, "message": message}}]
        _note(world, resource, "Unusable" if how == "unusable" else before, operation, f"{operation}Failed", trigger)
    raise arm.OperationFailed(code, message)


def may_be_idle(given: Any) -> bool:
    """Whether a time may be an instance's idle time: none, or 15 minutes to 3 days."""
    return given is None or (isinstance(given, str) and 15 * 60 <= seconds_of(given, 0.0) <= 3 * 86400)


def set_idle(world: World, resource: dict[str, Any], given: str | None) -> None:
    """Change the idle time of an instance that is there; it counts from now."""
    inner = resource["properties"]["properties"]
    inner.pop("idleTimeBeforeShutdown", None)
    if given is not None:
        inner["idleTimeBeforeShutdown"] = given
    if inner["state"] == "Running":
        _watch_idle(world, resource)


def _watch_idle(world: World, resource: dict[str, Any]) -> None:
    idle = resource["properties"]["properties"].get("idleTimeBeforeShutdown")
    if not idle:
        return
    began = resource["properties"]["properties"]["lastOperation"]

    async def watch() -> None:
        left = limit = seconds_of(idle)
        pause = max(0.05, limit / 20)
        while left > 0:
            await world.clock.sleep(pause)
            inner = resource["properties"]["properties"]
            if world.resources.get(resource["id"]) is not resource or inner["lastOperation"] is not began:
                return
            if inner.get("idleTimeBeforeShutdown") is not idle:  # changed since
                return
            left = limit if world.nodes.jobs_on(resource["id"]) else left - pause
        await act(world, resource, "stop", "IdleShutdown")

    world.spawn(watch(), f"idle shutdown of {resource['name']}")


class StartupScripts:
    """Startup scripts of instances: run at each start, in the shell, each instance with its own ``TMPDIR``.

    Assumed: a start fails when its script fails, and the form of the error; ``make azure-live`` checks both.
    """

    def __init__(self, world: World) -> None:
        del world
        self._folders: dict[str, tempfile.TemporaryDirectory[str]] = {}

    def succeeds(self, resource: dict[str, Any]) -> bool:
        """Run the script of an instance; true where it has none."""
        scripts = (resource["properties"]["properties"].get("setupScripts") or {}).get("scripts") or {}
        script = scripts.get("startupScript") or {}
        if script.get("scriptSource") != "inline":
            return True
        if resource["id"] not in self._folders:
            self._folders[resource["id"]] = tempfile.TemporaryDirectory(prefix="azure-instance-")
        folder = self._folders[resource["id"]]
        text = base64.b64decode(script["scriptData"]).decode()
        env = {"PATH": "/usr/bin:/bin", "TMPDIR": folder.name, "HOME": folder.name}
        return subprocess.run(["bash", "-c", text], env=env, cwd=folder.name, timeout=10, check=False).returncode == 0

    async def close(self) -> None:
        """Remove their folders."""
        for folder in self._folders.values():
            folder.cleanup()
        self._folders.clear()
