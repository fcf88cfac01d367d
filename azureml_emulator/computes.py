"""Computes of a workspace: list, get, PUT, PATCH, delete, nodes, and the acts of instances.

Shapes: recordings amlcompute_create, 06b, 06c, 11b. The lives of clusters and instances are in `clusters` and
`instances`, what is attached in `attached`.
"""

from __future__ import annotations

import re
from typing import Any

from aiohttp import web

from azureml_emulator import arm, attached, clusters, instances, schema
from azureml_emulator.routing import Call, Refused, Routes
from azureml_emulator.world import World, copied

routes = Routes()
_TYPE = "Microsoft.MachineLearningServices/workspaces/computes"
#: Fields of api 2023-08-01-preview and later, which the 2024-10-01 schema has not (recordings amlcompute_create, 06b).
_NEWER = {
    "enableOSPatching", "enableRootAccess", "enableSSO", "releaseQuotaOnStop", "idleTimeBeforeShutdown",
    "autologgerSettings", "dataDisks", "imageSku", "imageVersion",
    "triggerType",  # the SDK (1.33 to 1.35) repeats it within the cron of a schedule
}  # fmt: skip
#: The services that run computes of each type.
_MAKERS = {"AmlCompute": clusters, "ComputeInstance": instances}


def bad_request(world: World, message: str, precise: str) -> Refused:
    """400 of the compute service; the precise code stands in details[0] (INDEX.md)."""
    return Refused(arm.compute_error(world, 400, message, code="BadRequest", details=[(precise, message)]))


def _id(call: Call) -> str:
    return f"{call.workspace_id}/computes/{call.params['name']}"


def _found(call: Call) -> dict[str, Any]:
    """
    Raises
    ------
    Refused
        404 with an empty body (recording 11b).
    """
    found = call.world.resources.get(_id(call))
    if found is None:
        raise Refused(arm.empty(404, {"x-ms-response-type": "standard"}))
    return found


def shown(world: World, resource: dict[str, Any]) -> dict[str, Any]:
    """The resource as GET shows it now."""
    made = copied(resource)
    # What `instances` keeps for itself until the instance is made.
    (made["properties"].get("properties") or {}).pop("_given", None)
    if made["properties"]["computeType"] == "AmlCompute":
        clusters.show(world, made)
    return made


@routes.arm("GET", "{ws}/computes")
async def list_computes(call: Call) -> Any:
    below = call.world.resources.below(f"{call.workspace_id}/computes")
    return arm.page(call, (shown(call.world, one) for one in below))


@routes.arm("GET", "{ws}/computes/{name}")
async def get_compute(call: Call) -> Any:
    return shown(call.world, _found(call))


@routes.arm("PUT", "{ws}/computes/{name}")
async def put_compute(call: Call) -> web.Response:
    """Create, attach or (a cluster that is there) change; 201 or 200 with Azure-AsyncOperation."""
    world, body = call.world, call.json()
    _validate(call, body)
    kind = body["properties"]["computeType"]
    there = world.resources.get(_id(call))
    if there is not None:
        state = there["properties"]["provisioningState"]
        if state in ("Creating", "Updating", "Deleting"):
            raise Refused(
                arm.compute_error(
                    world,
                    409,
                    f"The compute '{there['name']}' is in state {state}; wait until that ends.",
                    code="Conflict",
                    details=[("ComputeOperationInProgress", f"State: {state}")],
                )
            )
        if there["properties"]["computeType"] != kind or (kind == "ComputeInstance" and state != "Failed"):
            message = (
                f"There is already a compute resource '{there['name']}' of type {there['properties']['computeType']}."
            )
            raise Refused(
                arm.compute_error(world, 409, message, code="Conflict", details=[("ComputeAlreadyExists", message)])
            )
    maker = _MAKERS.get(kind, attached)
    if there is not None and kind == "AmlCompute" and there["properties"]["provisioningState"] == "Succeeded":
        return await clusters.change(call, there, body["properties"].get("properties") or {}, whole=True)
    resource = _skeleton(call, body)
    maker.check(world, resource, body["properties"].get("properties") or {})
    resource["properties"]["properties"] = maker.properties(world, resource, body["properties"].get("properties") or {})
    world.resources.put(resource)
    first = shown(world, resource)
    headers = world.operations.begin(call, lambda: _create(world, resource, maker))
    return arm.answer(first, 201, headers)


async def _create(world: World, resource: dict[str, Any], maker: Any) -> None:
    outer = resource["properties"]
    await world.clock.sleep(maker.seconds(world))
    if world.resources.get(resource["id"]) is not resource:
        return
    failing = world.switches["fail_provisioning"]
    outer["modifiedOn"] = world.clock.stamp()
    resource["tags"] = resource["tags"] or {}
    if failing and failing in resource["name"]:
        code, message = maker.failure(resource)
        outer["provisioningState"] = "Failed"
        outer["provisioningErrors"] = [{"error": {"code": code, "message": message, "details": []}}]
        raise arm.OperationFailed(code, message)
    outer["provisioningState"] = "Succeeded"
    outer["computeLocation"] = outer.get("computeLocation") or resource["location"]
    maker.made(world, resource)


def _skeleton(call: Call, body: dict[str, Any]) -> dict[str, Any]:
    world, given = call.world, body["properties"]
    stamp = world.clock.stamp()
    resource: dict[str, Any] = {
        "id": f"{call.workspace_id}/computes/{call.params['name']}",
        "name": call.params["name"],
        "type": _TYPE,
        "location": body.get("location") or world.location,
        "tags": body.get("tags"),
    }
    if (identity := body.get("identity")) and identity.get("type") not in (None, "None"):
        resource["identity"] = {"type": identity["type"]}
        if "SystemAssigned" in identity["type"]:
            resource["identity"] |= {"principalId": "44444444-0000-4000-8000-000000000004", "tenantId": world.tenant}
        if identity.get("userAssignedIdentities"):
            known = {
                "clientId": "55555555-0000-4000-8000-000000000005",
                "principalId": "66666666-0000-4000-8000-000000000006",
            }
            resource["identity"]["userAssignedIdentities"] = {
                one: dict(known) for one in identity["userAssignedIdentities"]
            }
    resource["properties"] = {
        "createdOn": stamp,
        "modifiedOn": stamp,
        "disableLocalAuth": bool(given.get("disableLocalAuth", False)),
        "description": given.get("description"),
        "resourceId": given.get("resourceId"),
        "computeType": given["computeType"],
        "provisioningState": "Creating",
        "provisioningErrors": None,
        "provisioningWarnings": None,
        "isAttachedCompute": given["computeType"] not in _MAKERS,
    }
    return resource


def _validate(call: Call, body: Any) -> None:
    """
    Raises
    ------
    Refused
        400: the ARM schema does not have such a body, or the name breaks the rules.
    """
    _judge(call, schema.problems("workspaces_computes", body))
    name = call.params["name"]
    # Instances: pattern of api 2023-08-01-preview; clusters: Azure's documentation (2 to 32, the same letters).
    instance = body["properties"]["computeType"] == "ComputeInstance"
    rule = r"[a-zA-Z](?![a-zA-Z0-9-]*-\d+$)[a-zA-Z0-9\-]{2,23}" if instance else r"[a-zA-Z][a-zA-Z0-9\-]{1,31}"
    if not re.fullmatch(rule, name) or name.endswith("-"):
        most = "3 to 24" if instance else "2 to 32"
        raise bad_request(
            call.world,
            f"Compute name '{name}' is invalid. It can include letters, digits and dashes. It must start with a "
            f"letter, end with a letter or digit, and be {most} characters in length.",
            "InvalidComputeName",
        )


def _judge(call: Call, problems: list[str]) -> None:
    """
    Raises
    ------
    Refused
        400: a problem that is not a field of a newer api.
    """
    found = [
        line
        for line in problems
        if not (line.endswith("there is no such field") and line.split(":")[0].rpartition(".")[2] in _NEWER)
    ]
    if found:
        raise bad_request(call.world, "The request is invalid. " + "; ".join(found[:5]), "InvalidPropertyValue")


@routes.arm("PATCH", "{ws}/computes/{name}")
async def patch_compute(call: Call) -> web.Response:
    """Change a cluster's scale settings: 202, the compute as `Updating` in the body (INDEX.md)."""
    found, body = _found(call), call.json() or {}
    if found["properties"]["computeType"] != "AmlCompute":
        raise bad_request(call.world, "Only AmlCompute can be updated.", "UnsupportedOperation")
    given = body.get("properties") or {}
    return await clusters.change(call, found, given.get("properties") or given, whole=False)


@routes.arm("DELETE", "{ws}/computes/{name}")
async def delete_compute(call: Call) -> web.Response:
    """202, empty; then the compute is gone. Without one: 204 (ARM's rule for DELETE), or 404 by a switch."""
    world = call.world
    found = world.resources.get(_id(call))
    if found is None:
        return arm.empty(int(world.switches["delete_missing"]))
    action = call.query.get("underlyingResourceAction", "")
    if action not in ("Delete", "Detach"):
        raise bad_request(world, "underlyingResourceAction must be Delete or Detach.", "InvalidPropertyValue")
    if action == "Delete" and found["properties"]["isAttachedCompute"] and world.switches["delete_attached_refused"]:
        raise bad_request(world, "An attached compute can only be detached.", "UnsupportedOperation")
    if action == "Detach" and not found["properties"]["isAttachedCompute"]:
        raise bad_request(world, "Only an attached compute can be detached.", "UnsupportedOperation")
    found["properties"]["provisioningState"] = "Deleting"

    async def gone() -> None:
        await world.clock.sleep(float(world.switches["create_seconds"]))
        world.nodes.shut(found["id"])
        world.resources.drop(found["id"])
        world.nodes.replan()

    return arm.empty(202, world.operations.begin(call, gone))


@routes.arm("POST", "{ws}/computes/{name}/listNodes")
async def list_nodes(call: Call) -> Any:
    """Nodes of a cluster, with its type beside them as recorded; nextLink absent."""
    found = _found(call)
    if found["properties"]["computeType"] != "AmlCompute":
        raise bad_request(call.world, "Only AmlCompute has nodes to list.", "UnsupportedOperation")
    return {"computeType": "AmlCompute", "nodes": clusters.nodes_of(call.world, found)}


@routes.arm("POST", "{ws}/computes/{name}/listKeys")
async def list_keys(call: Call) -> Any:
    """Secrets of an attached compute; of a cluster the code is recorded, the sentence is ours."""
    kind = _found(call)["properties"]["computeType"]
    if kind == "AmlCompute":
        raise bad_request(call.world, f"A compute of type {kind} has no keys.", "UserError")
    return {"computeType": kind}


def _instance(call: Call, what: str) -> dict[str, Any]:
    """
    Raises
    ------
    Refused
        404: there is none; 400: it is no instance, or not ready for a change.
    """
    found = _found(call)
    if found["properties"]["computeType"] != "ComputeInstance":
        raise bad_request(call.world, f"Operation {what} is for ComputeInstance only.", "UnsupportedOperation")
    if found["properties"]["provisioningState"] != "Succeeded":
        state = found["properties"]["provisioningState"]
        raise bad_request(call.world, f"The compute instance '{found['name']}' is in state {state}.", "InvalidState")
    return found


@routes.arm("POST", "{ws}/computes/{name}/updateIdleShutdownSetting")
async def update_idle_shutdown(call: Call) -> web.Response:
    """200, empty (contract, and documentation of instances: 15 minutes to 3 days). Assumed: null turns it off."""
    found, body = _instance(call, "updateIdleShutdownSetting"), call.json() or {}
    given = body.get("idleTimeBeforeShutdown")
    if set(body) - {"idleTimeBeforeShutdown"} or not instances.may_be_idle(given):
        raise bad_request(
            call.world, f"Invalid idleTimeBeforeShutdown '{given}': from PT15M to P3D.", "InvalidPropertyValue"
        )
    instances.set_idle(call.world, found, given)
    return arm.empty(200)


@routes.arm("POST", "{ws}/computes/{name}/updateSchedules")
async def update_schedules(call: Call) -> web.Response:
    """200, empty: the schedules are replaced (contract of 2021-03-01-preview; at most four by the documentation)."""
    found, body = _instance(call, "updateSchedules"), call.json() or {}
    _judge(call, schema.class_problems("ComputeSchedules", body))
    given = body.get("computeStartStop") or []
    if len(given) > 4:
        raise bad_request(call.world, f"{len(given)} schedules: at most 4 are allowed.", "InvalidPropertyValue")
    found["properties"]["properties"]["schedules"] = {"computeStartStop": given}
    return arm.empty(200)


@routes.arm("POST", "{ws}/computes/{name}/{act}")
async def act(call: Call) -> web.Response:
    """start, stop, restart of an instance: 202, empty; provisioningState stays Succeeded meanwhile (06b, 06c)."""
    what = call.params["act"].lower()
    if what not in ("start", "stop", "restart"):
        _found(call)
        return arm.gateway_error(404, "InvalidResourceType", f"There is no action '{what}' of computes.")
    found = _instance(call, what)
    return arm.empty(202, call.world.operations.begin(call, lambda: instances.act(call.world, found, what)))
