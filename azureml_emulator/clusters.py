"""AmlCompute: its properties, its scale, its nodes as the service shows them (recordings amlcompute_create, 11b)."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from azureml_emulator import arm, sizes
from azureml_emulator.clock import seconds_of
from azureml_emulator.pool import lendable
from azureml_emulator.quota import check_clusters
from azureml_emulator.routing import Call, Refused
from azureml_emulator.world import World, copied


def _bad(world: World, message: str, precise: str) -> Refused:
    return Refused(arm.compute_error(world, 400, message, code="BadRequest", details=[(precise, message)]))


def seconds(world: World) -> float:
    """How long creating takes."""
    return float(world.switches["create_seconds"])


def scale_of(given: dict[str, Any]) -> tuple[int, int, str]:
    """(least, most, idle time as ISO 8601) of a body's properties."""
    scale = given.get("scaleSettings") or {}
    return int(scale.get("minNodeCount") or 0), int(scale.get("maxNodeCount", 1)), _iso(scale)


def _iso(scale: dict[str, Any]) -> str:
    return str(scale.get("nodeIdleTimeBeforeScaleDown") or "PT2M")


def check(world: World, resource: dict[str, Any], given: dict[str, Any]) -> None:
    """
    Raises
    ------
    Refused
        400: size, scale or quota.
    """
    check_clusters(world)
    size = sizes.find(str(given.get("vmSize", "")))
    if size is None or "AmlCompute" not in size["supportedComputeTypes"]:
        name = given.get("vmSize", "")
        raise _bad(world, f"'{name}' is not a supported VM size in region {world.location}.", "InvalidPropertyValue")
    _check_scale(world, given)
    low = given.get("vmPriority") == "LowPriority"
    if low and not lendable(size["name"]) and not world.switches["low_priority_on_create"]:
        raise _bad(world, f"{size['name']} is not supported at low priority.", "UnsupportedVMSizeForLowPriority")
    if not low and world.switches["quota_on_create"]:
        refused = world.quota.check_cluster(size, scale_of(given)[0])
        if refused:
            raise _bad(world, refused, "ClusterMinNodesExceedCoreQuota")


def _check_scale(world: World, given: dict[str, Any]) -> None:
    least, most, _ = scale_of(given)
    if least < 0 or most < least:
        raise _bad(
            world,
            f"minNodeCount ({least}) must be 0 or more and not above maxNodeCount ({most}).",
            "InvalidPropertyValue",
        )


def properties(world: World, resource: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Inner properties of the 201: sizes in capitals, what is not known yet null; passwords never come back."""
    least, most, idle = scale_of(given)
    return {
        "vmSize": str(given["vmSize"]).upper(),
        "vmPriority": given.get("vmPriority") or "Dedicated",
        "scaleSettings": {"maxNodeCount": most, "minNodeCount": least, "nodeIdleTimeBeforeScaleDown": idle},
        "subnet": given.get("subnet"),
        "currentNodeCount": None,
        "targetNodeCount": None,
        "nodeStateCounts": None,
        "allocationState": None,
        "errors": None,
        "remoteLoginPortPublicAccess": given.get("remoteLoginPortPublicAccess") or "NotSpecified",
        "osType": given.get("osType") or "Linux",
        "virtualMachineImage": given.get("virtualMachineImage"),
        "isolatedNetwork": bool(given.get("isolatedNetwork", False)),
        "enableNodePublicIp": given.get("enableNodePublicIp", True),
        "enableBatchPrivateLink": False,
    }


def failure(resource: dict[str, Any]) -> tuple[str, str]:
    """Code and message of a creation that fails by the switch."""
    if resource["properties"]["properties"].get("subnet"):
        return "InvalidSubnet", "The subnet of the cluster cannot be reached by the service."
    return "ClusterCreationFailed", "The cluster could not be created: the service has no capacity in this region."


def made(world: World, resource: dict[str, Any]) -> None:
    """The cluster is there: its nodes may come."""
    inner = resource["properties"]["properties"]
    inner["propertyBag"] = {}
    scale = inner["scaleSettings"]
    world.nodes.open(
        resource["id"],
        inner["vmSize"],
        inner["vmPriority"] == "LowPriority",
        scale["minNodeCount"],
        scale["maxNodeCount"],
        seconds_of(scale["nodeIdleTimeBeforeScaleDown"]),
    )


def show(world: World, resource: dict[str, Any]) -> None:
    """Fill in what changes: node counts, allocation, errors."""
    pool = world.nodes.pool(resource["id"])
    if pool is None:
        return
    inner = resource["properties"]["properties"]
    inner["currentNodeCount"] = pool.current
    inner["targetNodeCount"] = pool.target
    inner["nodeStateCounts"] = pool.counts()
    inner["allocationState"] = "Steady" if pool.steady else "Resizing"
    inner["allocationStateTransitionTime"] = pool.changed_at
    inner["errors"] = [*pool.errors, *_warnings(world, inner["vmSize"])] or None


#: Families whose sizes the service calls deprecated.
_DEPRECATED = ("standardncsv3family", "standardncfamily")


def _warnings(world: World, size: str) -> list[dict[str, Any]]:
    """Return the warning of a deprecated size, which stands among the errors of a healthy cluster (recorded)."""
    found = sizes.find(size)
    if found is None or str(found["family"]).lower() not in _DEPRECATED or not world.switches["cluster_warnings"]:
        return []
    message = f"The VM size {found['name']} is deprecated and will be retired."
    return [{"error": {"code": "ClusterHasWarnings", "message": message}}]


def nodes_of(world: World, resource: dict[str, Any]) -> list[dict[str, Any]]:
    """Answer of listNodes."""
    pool = world.nodes.pool(resource["id"])
    public = resource["properties"]["properties"].get("remoteLoginPortPublicAccess") == "Enabled"
    return [
        {
            "nodeId": node.id,
            "privateIpAddress": node.address,
            "publicIpAddress": "20.0.0.4" if public else None,
            "port": 50_000 + node.index if public else None,
            "nodeState": node.state,
            "runId": node.job or None,
        }
        for node in (pool.nodes if pool is not None else [])
    ]


async def change(call: Call, resource: dict[str, Any], given: dict[str, Any], *, whole: bool) -> web.Response:
    """New scale settings; with `whole` (a PUT) the size and the priority must be the old ones.

    Raises
    ------
    Refused
        400: another size or priority, a scale that cannot be.
    """
    world, outer = call.world, resource["properties"]
    inner = outer["properties"]
    if whole:
        for name in ("vmSize", "vmPriority"):
            if given.get(name) and str(given[name]).lower() != str(inner[name]).lower():
                raise _bad(
                    world,
                    f"The property '{name}' of a compute cannot be changed: it is {inner[name]}.",
                    "ImmutableProperty",
                )
    scale = {**inner["scaleSettings"], **(given.get("scaleSettings") or {})}
    _check_scale(world, {"scaleSettings": scale})
    size = sizes.find(inner["vmSize"])
    if size is not None and inner["vmPriority"] == "Dedicated" and world.switches["quota_on_create"]:
        refused = world.quota.check_cluster(size, int(scale["minNodeCount"] or 0))
        if refused:
            raise _bad(world, refused, "ClusterMinNodesExceedCoreQuota")
    scale["nodeIdleTimeBeforeScaleDown"] = _iso(scale)
    inner["scaleSettings"] = scale
    outer["provisioningState"] = "Updating"
    answered = copied(resource)
    show(world, answered)

    async def work() -> None:
        await world.clock.sleep(seconds(world))
        outer["provisioningState"] = "Succeeded"
        outer["modifiedOn"] = world.clock.stamp()
        made(world, resource)

    return arm.answer(answered, 200 if whole else 202, world.operations.begin(call, work))
