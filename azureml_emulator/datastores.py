"""Datastores of a workspace and their secrets (recording 08), and where a data uri lies in the storage account."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

from azureml_emulator import arm
from azureml_emulator.blob import ARTIFACTS, Blob
from azureml_emulator.routing import Call, Refused, Routes
from azureml_emulator.world import World

routes = Routes()

_LONG = re.compile(
    r"azureml://subscriptions/[^/]+/resource[gG]roups/[^/]+(?:/providers/[^/]+)?/workspaces/[^/]+/(?P<rest>.+)", re.I
)
_STORED = re.compile(r"datastores/(?P<store>[^/]+)/(?:paths/)?(?P<path>.*)", re.I)
_OF_JOB = re.compile(r"jobs/(?P<job>[^/]+)/outputs/(?P<output>[^/]+)/paths/(?P<path>.*)", re.I)
_ASSET = re.compile(r".*/(?P<kind>data|models)/(?P<name>[^/]+)/versions/(?P<version>[^/]+)$", re.I)


def storage(world: World) -> Blob:
    """The storage account (every emulator that runs has one)."""
    assert world.blob is not None, "the emulator was started without Azurite"
    return world.blob


def find(world: World, workspace_id: str, name: str) -> dict[str, Any] | None:
    """A datastore's ARM resource; the two that every workspace has are made on first use."""
    base = f"{workspace_id}/datastores"
    if world.resources.get(f"{base}/workspaceblobstore") is None:
        for own, container in (("workspaceblobstore", storage(world).store), ("workspaceartifactstore", ARTIFACTS)):
            world.resources.put(_resource(world, workspace_id, own, container, own == "workspaceblobstore"))
    return world.resources.get(f"{base}/{name}")


def _resource(world: World, workspace_id: str, name: str, container: str, default: bool) -> dict[str, Any]:
    parts = workspace_id.split("/")
    return {
        "id": f"{workspace_id}/datastores/{name}",
        "name": name,
        "type": "Microsoft.MachineLearningServices/workspaces/datastores",
        "properties": {
            "description": None,
            "tags": None,
            "properties": None,
            "isDefault": default,
            "credentials": {"credentialsType": "AccountKey"},
            "subscriptionId": parts[2],
            "resourceGroup": parts[4],
            "datastoreType": "AzureBlob",
            "accountName": storage(world).account,
            "containerName": container,
            "endpoint": "core.windows.net",
            "protocol": "https",
            "serviceDataAccessAuthIdentity": "WorkspaceSystemAssignedIdentity",
        },
        "systemData": {
            "createdAt": world.clock.stamp(),
            "lastModifiedAt": world.clock.stamp(),
            "lastModifiedBy": world.user,
            "lastModifiedByType": "Application",
        },
    }


async def place(world: World, workspace_id: str, uri: str) -> tuple[str, str]:
    """Container and name (or prefix) of what a data uri names.

    Every form that jobs and models use: short and long ``azureml://datastores``, a job's output, an asset's ARM id or
    ``azureml:name:version``, a blob's https url.

    Raises
    ------
    LookupError
        No such datastore or asset; the message is the service's sentence.
    """
    blob = storage(world)
    if (own := re.fullmatch(r"wasbs?://([^@/]+)@([^/]+)/?(.*)", uri)) is not None:
        uri = f"https://{own[2]}/{own[1]}/{own[3]}"
    if uri.startswith("https://"):
        host, _, path = uri.removeprefix("https://").partition("?")[0].partition("/")
        host = host.removesuffix(":443")
        if host != blob.host:
            raise LookupError(f"{host} is not in the storage account {blob.account}")
        container, _, name = unquote(path).partition("/")
        return container, name
    if (short := re.fullmatch(r"azureml:(?!//)([^:/]+):([^:/]+)", uri)) is not None:
        kinds = ("data", "models")
        named = [f"{workspace_id}/{kind}/{short[1]}/versions/{short[2]}" for kind in kinds]
        uri = next((one for one in named if world.resources.get(one) is not None), named[0])
    uri = uri.removeprefix("azureml:") if uri.startswith("azureml:/subscriptions") else uri
    if (asset := _ASSET.match(uri)) is not None:
        found = world.resources.get(f"{workspace_id}/{asset['kind']}/{asset['name']}/versions/{asset['version']}")
        if found is None:
            raise LookupError(f"Asset {asset['name']}:{asset['version']} was not found.")
        properties = found["properties"]
        return await place(world, workspace_id, str(properties.get("dataUri") or properties.get("modelUri")))
    rest = long["rest"] if (long := _LONG.match(uri)) is not None else uri.removeprefix("azureml://")
    if (made := _OF_JOB.fullmatch(rest)) is not None:
        if made["output"] in ("artifacts", "default"):
            return ARTIFACTS, f"ExperimentRun/dcid.{made['job']}/{made['path']}"
        job = world.resources.get(f"{workspace_id}/jobs/{made['job']}")
        output = ((job or {}).get("properties", {}).get("outputs") or {}).get(made["output"])
        from azureml_emulator.job_runs import Jobs

        run = world.part(Jobs).of(made["job"])
        uri = str((run.output_uris.get(made["output"]) if run else "") or (output or {}).get("uri") or "")
        if not uri:
            raise LookupError(f"Job {made['job']} has no output '{made['output']}'.")
        container, prefix = await place(world, workspace_id, uri)
        return container, prefix.rstrip("/") + "/" + made["path"]
    if (stored := _STORED.fullmatch(rest)) is not None:
        datastore = find(world, workspace_id, stored["store"])
        if datastore is None:
            raise LookupError(f"Datastore {stored['store']} was not found.")
        container = datastore["properties"]["containerName"]
        await blob.make(container)
        return container, stored["path"]
    raise LookupError(f"{uri} is not a data uri that the emulator knows")


def missing(call: Call, what: str, name: str) -> Refused:
    """404 of the ML front end (its message's words are assumed)."""
    return Refused(arm.ml_error(call.world, 404, f"{what} {name} not found.", inner=("NotFound", f"{what}NotFound")))


@routes.arm("GET", "{ws}/datastores")
async def list_datastores(call: Call) -> Any:
    """All, or with ``isDefault=true`` the one."""
    find(call.world, call.workspace_id, "")
    found = call.world.resources.below(f"{call.workspace_id}/datastores")
    if call.query.get("isDefault", "").lower() == "true":
        found = [one for one in found if one["properties"]["isDefault"]]
    return arm.page(call, found)


@routes.arm("GET", "{ws}/datastores/{name}")
async def get_datastore(call: Call) -> Any:
    """One."""
    return _found(call)


@routes.arm("PUT", "{ws}/datastores/{name}")
async def put_datastore(call: Call) -> Any:
    """Another container of the same account, under a name."""
    sent = (call.json() or {}).get("properties") or {}
    find(call.world, call.workspace_id, "")
    made = _resource(
        call.world, call.workspace_id, call.params["name"], str(sent.get("containerName") or "data"), False
    )
    made["properties"].update({key: value for key, value in sent.items() if key != "credentials"})
    return arm.created(call, call.world.resources.put(made))


@routes.arm("POST", "{ws}/datastores/{name}/listSecrets")
async def list_secrets(call: Call) -> Any:
    """A SAS where one is asked for, else the account's key (recording 08)."""
    datastore = _found(call)
    if call.world.switches["datastore_secret"] == "none":
        raise Refused(arm.ml_error(call.world, 400, "No secrets for credentials of type None."))
    blob = storage(call.world)
    await blob.make(datastore["properties"]["containerName"])
    body = call.json() or {}
    seconds = 3600 * float(body.get("expireAfterHours") or 1)
    if body.get("expirableSecret") and call.world.switches["datastore_secret"] == "sas":
        return {"secretsType": "Sas", "sasToken": "?" + blob.account_sas(seconds=seconds)}
    return {"secretsType": "AccountKey", "key": blob.key}


def _found(call: Call) -> dict[str, Any]:
    found = find(call.world, call.workspace_id, call.params["name"])
    if found is None:
        raise missing(call, "Datastore", call.params["name"])
    return found
