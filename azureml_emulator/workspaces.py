"""Subscriptions, resource groups, workspaces, the metadata that clients ask for, and the data plane's discovery."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiohttp import web

from azureml_emulator import arm
from azureml_emulator.routing import Call, Refused, Routes

if TYPE_CHECKING:
    from azureml_emulator.world import World

routes = Routes()
_KIND = "Microsoft.MachineLearningServices/workspaces"


def seed(world: World) -> None:
    """The workspace that is there after a reset."""
    add(world, world.workspace)


def add(world: World, name: str) -> dict[str, Any]:
    """A workspace of the one subscription and group."""
    group = f"/subscriptions/{world.subscription}/resourceGroups/{world.resource_group}"
    account = world.blob.account if world.blob is not None else "amltrainstore"
    arm_id = f"{group}/providers/{_KIND}/{name}"
    region = world.api.split("//")[1]
    return world.resources.put(
        {
            "id": arm_id,
            "name": name,
            "type": _KIND,
            "location": world.location,
            "tags": {},
            "etag": None,
            "kind": "Default",
            "sku": {"name": "Basic", "tier": "Basic"},
            "identity": {
                "type": "SystemAssigned",
                "principalId": "22222222-0000-4000-8000-000000000002",
                "tenantId": world.tenant,
            },
            "properties": {
                "friendlyName": name,
                "description": "",
                "storageAccount": f"{group}/providers/Microsoft.Storage/storageAccounts/{account}",
                "keyVault": f"{group}/providers/Microsoft.Keyvault/vaults/{name}kv",
                "applicationInsights": f"{group}/providers/Microsoft.insights/components/{name}ai",
                "hbiWorkspace": False,
                "tenantId": world.tenant,
                "imageBuildCompute": None,
                "provisioningState": "Succeeded",
                "v1LegacyMode": False,
                "softDeleteEnabled": False,
                "containerRegistry": None,
                "creationTime": world.clock.stamp_z(),
                "notebookInfo": None,
                "storageHnsEnabled": False,
                "workspaceId": "33333333-0000-4000-8000-000000000003",
                "publicNetworkAccess": "Enabled",
                "discoveryUrl": f"{world.api}/discovery",
                "mlFlowTrackingUri": f"azureml://{region}/mlflow/v1.0{arm_id}",
                "sdkTelemetryAppInsightsKey": "",
            },
            "systemData": {
                "createdAt": world.clock.stamp_z(),
                "createdBy": world.user,
                "createdByType": "User",
                "lastModifiedAt": world.clock.stamp_z(),
                "lastModifiedBy": world.user,
                "lastModifiedByType": "User",
            },
        }
    )


#: ARM's sentence about what lies in a resource that is not there: its older one and its newer one.
_PARENT_GONE = {
    "parent": "Can not perform requested operation on nested resource. Parent resource '{name}' not found.",
    "path": "Failed to perform 'read' on resource(s) of type 'workspaces/jobs', because the parent resource '{path}'"
    " could not be found.",
}


def check(call: Call) -> None:
    """
    Raises
    ------
    Refused
        404 of the gateway: no such subscription, group or workspace.
    """
    world, params = call.world, call.params
    if params["subscription"].lower() != world.subscription.lower():
        raise Refused(_no_subscription(params["subscription"]))
    if params["resource_group"].lower() != world.resource_group.lower():
        raise Refused(
            arm.gateway_error(
                404, "ResourceGroupNotFound", f"Resource group '{params['resource_group']}' could not be found."
            )
        )
    found = (
        f"/subscriptions/{params['subscription']}/resourceGroups/{params['resource_group']}"
        f"/providers/{_KIND}/{params['workspace']}"
    )
    if world.resources.get(found) is None:
        nested = call.kind == "arm" and len(call.path.rstrip("/")) > len(found)
        if nested and (message := _PARENT_GONE.get(world.switches["gone_workspace"])):
            message = message.format(name=params["workspace"], path=found)
            raise Refused(arm.gateway_error(404, "ParentResourceNotFound", message))
        raise Refused(arm.not_found("workspaces", params["workspace"], params["resource_group"]))


def _no_subscription(name: str) -> web.Response:
    return arm.gateway_error(404, "SubscriptionNotFound", f"The subscription '{name}' could not be found.")


def _subscription(world: World) -> dict[str, Any]:
    return {
        "id": f"/subscriptions/{world.subscription}",
        "authorizationSource": "RoleBased",
        "managedByTenants": [],
        "subscriptionId": world.subscription,
        "tenantId": world.tenant,
        "displayName": "Emulated",
        "state": "Enabled",
        "subscriptionPolicies": {
            "locationPlacementId": "Public_2014-09-01",
            "quotaId": "PayAsYouGo_2014-09-01",
            "spendingLimit": "Off",
        },
    }


@routes.arm("GET", "/subscriptions")
async def subscriptions(call: Call) -> Any:
    return {"value": [_subscription(call.world)], "count": {"type": "Total", "value": 1}}


@routes.arm("GET", "/tenants")
async def tenants(call: Call) -> Any:
    return {
        "value": [{"id": f"/tenants/{call.world.tenant}", "tenantId": call.world.tenant, "displayName": "Emulated"}]
    }


@routes.arm("GET", "/subscriptions/{subscription}")
async def subscription(call: Call) -> Any:
    _check_subscription(call)
    return _subscription(call.world)


@routes.arm("GET", "/subscriptions/{subscription}/resourceGroups")
async def groups(call: Call) -> Any:
    _check_subscription(call)
    return {"value": [_group(call.world)]}


@routes.arm("GET", "/subscriptions/{subscription}/resourceGroups/{group}")
async def group(call: Call) -> Any:
    _check_subscription(call)
    return _group(call.world)


def _group(world: World) -> dict[str, Any]:
    return {
        "id": f"/subscriptions/{world.subscription}/resourceGroups/{world.resource_group}",
        "name": world.resource_group,
        "type": "Microsoft.Resources/resourceGroups",
        "location": world.location,
        "properties": {"provisioningState": "Succeeded"},
    }


def _check_subscription(call: Call) -> None:
    """
    Raises
    ------
    Refused
        404 of the gateway: no such subscription, or no such group where the path has one.
    """
    world, name = call.world, call.params.get("group")
    if call.params["subscription"].lower() != world.subscription.lower():
        raise Refused(_no_subscription(call.params["subscription"]))
    if name is not None and name.lower() != world.resource_group.lower():
        raise Refused(arm.gateway_error(404, "ResourceGroupNotFound", f"Resource group '{name}' could not be found."))


@routes.arm("GET", f"/subscriptions/{{subscription}}/resourceGroups/{{group}}/providers/{_KIND}")
@routes.arm("GET", f"/subscriptions/{{subscription}}/providers/{_KIND}")
async def all_workspaces(call: Call) -> Any:
    _check_subscription(call)
    world = call.world
    root = f"/subscriptions/{world.subscription}/resourceGroups/{world.resource_group}/providers/{_KIND}"
    return arm.page(call, world.resources.below(root))


@routes.arm("GET", "{ws}")
async def workspace(call: Call) -> Any:
    return call.workspace


@routes.arm("GET", "/subscriptions/{subscription}/providers/Microsoft.MachineLearningServices")
async def provider(call: Call) -> Any:
    return {"namespace": "Microsoft.MachineLearningServices", "registrationState": "Registered"}


@routes.arm("GET", "{ws}/privateEndpointConnections")
async def endpoints(call: Call) -> Any:
    return {"value": []}


@routes.on("arm", "GET", "/metadata/endpoints", anonymous=True)
async def metadata(call: Call) -> Any:
    """Clouds: what ``ARM_CLOUD_METADATA_URL`` readers ask (azure-ai-ml's `_get_clouds_by_metadata_url`)."""
    return [
        {
            "name": "AzureCloud",
            "portal": "https://portal.azure.com",
            "resourceManager": "https://management.azure.com/",
            "authentication": {
                "loginEndpoint": "https://login.microsoftonline.com/",
                "audiences": ["https://management.core.windows.net/", "https://management.azure.com/"],
                "tenant": "common",
                "identityProvider": "AAD",
            },
            "graph": "https://graph.windows.net/",
            "suffixes": {"storage": "core.windows.net", "keyVaultDns": "vault.azure.net"},
        }
    ]


@routes.data("GET", "/discovery", anonymous=True)
async def discovery(call: Call) -> Any:
    """Bases of the data plane's services; no Authorization header comes with this call."""
    if not call.world.switches["discovery"]:
        return arm.empty(404)
    names = ("api", "history", "experimentation", "modelmanagement", "catalog", "pipelines", "hyperdrive", "mlflow")
    return dict.fromkeys((*names, "studio", "rundata", "artifact"), f"https://{call.host}")
