"""Versioned assets of a workspace: code, environments, data, models, components."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from typing import Any

import yaml  # type: ignore[import-untyped]

from azureml_emulator import arm, images, schema
from azureml_emulator.datastores import missing, storage
from azureml_emulator.routing import Call, Handler, Refused, Routes
from azureml_emulator.world import World, copied

routes = Routes()

KINDS = ("codes", "environments", "data", "models", "components")
_NAMES = {"codes": "Code", "environments": "Environment", "data": "Data", "models": "Model", "components": "Component"}
#: Registries whose environments are the curated ones.
REGISTRIES = ("azureml",)
_REGISTRY = re.compile(r"azureml://registries/(?P<registry>[^/]+)/environments/(?P<rest>.+)", re.I)
_ANONYMOUS = ("cliv2anonymousenvironment", "azureml_anonymous")


class Assets:
    """State of assets besides their resources; part of the world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.made = 0

    async def close(self) -> None:
        """Nothing to close."""

    def seed(self, workspace_id: str) -> None:
        """Create the curated environments, once for each workspace."""
        for name, versions in images.CURATED.items():
            if self._world.resources.get(f"{workspace_id}/environments/{name}") is not None:
                return
            for version in versions:
                properties = _environment(
                    {"image": f"mcr.microsoft.com/azureml/curated/{name.lower()}:{version}"}, False
                )
                properties["environmentType"] = "Curated"
                keep(self._world, workspace_id, "environments", name, version, properties)


def kind_of(call: Call) -> str:
    """Return the collection in the path, in lower case."""
    return re.split(r"/workspaces/[^/]+/", call.path, flags=re.IGNORECASE)[1].partition("/")[0].lower()


def _each(method: str, tail: str) -> Callable[[Handler], Handler]:
    """Register for every kind of asset."""

    def register(handler: Handler) -> Handler:
        for kind in KINDS:
            routes.arm(method, "{ws}/" + kind + tail)(handler)
        return handler

    return register


def keep(
    world: World, workspace_id: str, kind: str, name: str, version: str, properties: dict[str, Any]
) -> dict[str, Any]:
    """Store a version, and its container with the latest and the next version."""
    data = {
        "createdAt": world.clock.stamp(),
        "createdBy": world.user,
        "createdByType": "User",
        "lastModifiedAt": world.clock.stamp(),
        "lastModifiedBy": world.user,
        "lastModifiedByType": "User",
    }
    base = f"{workspace_id}/{kind}/{name}"
    made = world.resources.put(
        {
            "id": f"{base}/versions/{version}",
            "name": version,
            "type": f"Microsoft.MachineLearningServices/workspaces/{kind}/versions",
            "properties": properties,
            "systemData": data,
        }
    )
    container = world.resources.get(base) or world.resources.put(
        {
            "id": base,
            "name": name,
            "type": f"Microsoft.MachineLearningServices/workspaces/{kind}",
            "properties": {"description": None, "tags": {}, "properties": {}, "isArchived": False},
            "systemData": data,
        }
    )
    numbers = [int(one["name"]) for one in world.resources.below(f"{base}/versions") if one["name"].isdigit()]
    if kind == "components":  # recorded: no latest one, and a time as the next
        next_version = re.sub(r"\D+", "-", world.clock.stamp()[:27])
        container["properties"].update(latestVersion=None, nextVersion=next_version)
    else:
        container["properties"].update(latestVersion=version, nextVersion=str(max(numbers, default=0) + 1))
    if kind == "environments" and name.lower() not in _ANONYMOUS:
        for one in world.resources.below(f"{base}/versions"):
            one["properties"]["properties"]["azureml.labels"] = "latest" if one is made else ""
    return made


def environment(world: World, workspace_id: str, reference: str) -> dict[str, Any] | None:
    """Return the environment of a job's ``environmentId``.

    The reference is an ARM id, ``azureml:name:3`` or ``azureml:name@latest``.
    """
    world.part(Assets).seed(workspace_id)
    if (curated := _REGISTRY.match(reference)) is not None:
        if curated["registry"].lower() not in REGISTRIES:
            return None
        own = environment(world, workspace_id, f"environments/AzureML-{curated['rest']}")
        if own is None:
            return None
        name = own["id"].split("/")[-3].removeprefix("AzureML-")
        return {**own, "id": f"azureml://registries/{curated['registry']}/environments/{name}/versions/{own['name']}"}
    reference = reference.removeprefix("azureml:")
    if (named := re.search(r"environments/([^/]+)/(versions|labels)/([^/]+)$", reference, re.I)) is not None:
        name, how, version = named.groups()
    elif (named := re.fullmatch(r"(?:.*/)?([^/:@]+)([:@])(.+)", reference)) is not None:
        name, how, version = named[1], "labels" if named[2] == "@" else "versions", named[3]
    else:
        return None
    base = f"{workspace_id}/environments/{name}"
    if how.lower() == "labels":
        container = world.resources.get(base)
        version = (container or {}).get("properties", {}).get("latestVersion", "")
    return world.resources.get(f"{base}/versions/{version}")


# ------------------------------------------------------------------------------------------------------------ answers
@routes.arm("GET", "{ws}/codes/{name}/versions")
async def find_code(call: Call) -> Any:
    """Return code versions; with ``hash`` any asset of the workspace with that content, under any name (recorded)."""
    wanted = call.query.get("hash")
    if wanted is None:
        return arm.page(call, call.world.resources.below(f"{call.workspace_id}/codes/{call.params['name']}/versions"))
    found = [
        version
        for code in call.world.resources.below(f"{call.workspace_id}/codes")
        for version in call.world.resources.below(f"{code['id']}/versions")
        if (version["properties"].get("properties") or {}).get("hash_sha256") == wanted
    ]
    return arm.page(call, found[-1:])


@_each("POST", "/{name}/versions/{version}/startPendingUpload")
async def start_pending_upload(call: Call) -> Any:
    """Return a new container and an expiring SAS with write permission.

    Raises
    ------
    Refused
        400: the body is not the SDK's (``{"pendingUploadType": "TemporaryBlobReference"}``).
    """
    blob = storage(call.world)
    sent = call.json() or {}
    if call.world.switches["upload_body_judged"] and sent.get("pendingUploadType") != "TemporaryBlobReference":
        message = "The field pendingUploadType must be TemporaryBlobReference."
        raise Refused(arm.ml_error(call.world, 400, message, inner=("BadArgument", "ArgumentInvalid")))
    container = f"{uuid.uuid4().hex[:8]}-{uuid.uuid4()}"
    await blob.make(container)
    seconds = float(call.world.switches["upload_sas_seconds"])
    # Recorded in the codeUri that the SDK derives from it.
    port = ":443" if call.world.switches["blob_port"] else ""
    uri = f"{blob.base}{port}/{container}"
    parts = call.workspace_id.split("/")
    return {
        "pendingUploadId": str(uuid.uuid4()),
        "pendingUploadType": "TemporaryBlobReference",
        "blobReferenceForConsumption": {
            "blobUri": uri,
            "storageAccountArmId": f"/subscriptions/{parts[2]}/resourceGroups/{parts[4]}/providers/Microsoft.Storage"
            f"/storageAccounts/{blob.account}",
            "credential": {
                "credentialType": "SAS",
                "sasUri": f"{uri}?{blob.sas(container, permission='racwdl', seconds=seconds)}",
            },
        },
    }


@_each("GET", "")
async def list_containers(call: Call) -> Any:
    """Names of a kind of asset."""
    _known(call)
    return arm.page(call, call.world.resources.below(f"{call.workspace_id}/{kind_of(call)}"))


@_each("GET", "/{name}")
async def get_container(call: Call) -> Any:
    """The container of a name: latest and next version; of a curated environment by the switch ``curated_listed``."""
    kind, name, how = kind_of(call), str(call.params["name"]), call.world.switches["curated_listed"]
    found = _found(call, f"{kind}/{name}")
    if kind == "environments" and name in images.CURATED and how != "yes":
        if how == "no":
            raise missing(call, "Environment", name)
        return {**found, "properties": {**found["properties"], "latestVersion": None}}
    return found


@_each("PATCH", "/{name}")
@_each("PUT", "/{name}")
async def put_container(call: Call) -> Any:
    """Description, tags, archived or not."""
    container = _found(call, f"{kind_of(call)}/{call.params['name']}")
    container["properties"].update((call.json() or {}).get("properties") or {})
    return container


@_each("GET", "/{name}/versions")
async def list_versions(call: Call) -> Any:
    """Versions of a name, newest first; supports ``$top``."""
    _known(call)
    base = f"{call.workspace_id}/{kind_of(call)}/{call.params['name']}"
    found = call.world.resources.below(f"{base}/versions")[::-1]
    if not found and kind_of(call) == "models":  # recorded
        raise missing(call, "Model", call.params["name"])
    top = call.query.get("$top")
    return arm.page(call, found[: int(top)] if top else found)


@_each("GET", "/{name}/versions/{version}")
async def get_version(call: Call) -> Any:
    """One version."""
    name = str(call.params["name"])
    found = _found(call, f"{kind_of(call)}/{name}/versions/{call.params['version']}")
    if found["properties"].get("environmentType") == "Curated" and call.world.switches["curated_conda"]:
        conda = json.dumps(yaml.safe_load(images.CURATED_CONDA.get(name, "null")) or "", indent=2)
        return {**found, "properties": {**found["properties"], "condaFile": conda if conda != '""' else ""}}
    return found


@_each("DELETE", "/{name}/versions/{version}")
async def delete_version(call: Call) -> Any:
    """Delete a version, and the container with its last one; 204 if there is none (ARM's rule for DELETE)."""
    base = f"{call.workspace_id}/{kind_of(call)}/{call.params['name']}"
    there = call.world.resources.drop(f"{base}/versions/{call.params['version']}")
    if there and not call.world.resources.below(f"{base}/versions"):
        call.world.resources.drop(base)
    return arm.empty(200 if there else 204)


@routes.arm("GET", "{ws}/environments/{name}/labels/{label}")
async def get_label(call: Call) -> Any:
    """Return the version of a label."""
    found = environment(call.world, call.workspace_id, f"{call.params['name']}@{call.params['label']}")
    if found is None:
        raise missing(call, "Environment", f"{call.params['name']}@{call.params['label']}")
    return found


@_each("PUT", "/{name}/versions/{version}")
async def put_version(call: Call) -> Any:
    """Create a version, or accept an identical one."""
    _known(call)
    kind, name, version = kind_of(call), call.params["name"], call.params["version"]
    body = call.json()
    strict = not call.world.switches["unknown_fields"]
    if wrong := schema.problems(f"workspaces_{kind}_versions", body, call.api_version, strict):
        raise Refused(arm.ml_error(call.world, 400, "; ".join(wrong), inner=("BadArgument", "ArgumentInvalid")))
    sent = body["properties"]
    shape = {"codes": _code, "environments": _environment, "data": _data, "models": _model}.get(kind, _component)
    if kind == "codes" and call.world.switches["code_below_folder"]:
        _check_below_folder(call, str(sent.get("codeUri") or ""))
    properties = shape(sent, bool(sent.get("isAnonymous")))
    if kind == "models":
        stored = _stored(call, str(properties["modelUri"]))
        if call.world.switches["model_uri"] == "datastore":
            properties["modelUri"] = stored
    before = call.world.resources.get(f"{call.workspace_id}/{kind}/{name}/versions/{version}")
    fixed = {"codes": "codeUri", "data": "dataUri", "models": "modelUri", "environments": "image"}.get(kind, "")
    if before is not None and fixed and before["properties"].get(fixed) != properties.get(fixed):
        # Assumed: versions are immutable; the SDK looks for this wording.
        message = f"{_NAMES[kind]} version {version} of {name} already exists: {fixed} cannot be changed."
        raise Refused(arm.ml_error(call.world, 409, message, inner=("Conflict", "ImmutableProperty")))
    if kind == "environments":
        await call.world.clock.sleep(float(call.world.switches["environment_seconds"]))
    made = arm.created(call, keep(call.world, call.workspace_id, kind, name, version, properties))
    if kind == "environments" and sent.get("condaFile"):
        made.headers["Build-ID"] = f"imgbldrun_{uuid.uuid4().hex[:7]}"
    return made


def _check_below_folder(call: Call, uri: str) -> None:
    """
    Raises
    ------
    Refused
        400: the code is the root of a container.
    """
    if re.fullmatch(r"https://[^/]+/[^/]+/?", uri):
        message = f"The codeUri {uri} must name a folder of a container."
        raise Refused(arm.ml_error(call.world, 400, message, inner=("BadArgument", "ArgumentInvalid")))


def _known(call: Call) -> None:
    call.world.part(Assets).seed(call.workspace_id)


def _found(call: Call, path: str) -> dict[str, Any]:
    _known(call)
    found = call.world.resources.get(f"{call.workspace_id}/{path}")
    if found is None:
        raise missing(call, _NAMES[kind_of(call)], path.partition("/")[2])
    return found


# ------------------------------------------------------------------------------------------------------------- shapes
def _common(sent: dict[str, Any], anonymous: bool) -> dict[str, Any]:
    return {
        "description": sent.get("description"),
        "tags": sent.get("tags") or {},
        "properties": {key: str(value) for key, value in (sent.get("properties") or {}).items()},
        "isArchived": bool(sent.get("isArchived")),
        "isAnonymous": anonymous,
        "autoDeleteSetting": None,
    }


def _code(sent: dict[str, Any], anonymous: bool) -> dict[str, Any]:
    return {**_common(sent, anonymous), "codeUri": sent.get("codeUri"), "provisioningState": "Succeeded"}


def _environment(sent: dict[str, Any], anonymous: bool) -> dict[str, Any]:
    # Recordings 03 and 11a: conda YAML comes back as indented JSON text, absent as "".
    conda = sent.get("condaFile")
    made = _common(sent, anonymous)
    made["properties"] = {**made["properties"], "azureml.labels": "" if anonymous else "latest"}
    made.update(
        environmentType="UserCreated",
        image=sent.get("image"),
        condaFile=json.dumps(yaml.safe_load(conda), indent=2) if conda else "",
        osType=sent.get("osType") or "Linux",
        autoRebuild="Disabled",
        provisioningState="Succeeded",
        stage="Logged" if anonymous else "Development",
        intellectualProperty=None,
    )
    if sent.get("build"):
        made["build"] = copied(sent["build"])
    return made


def _data(sent: dict[str, Any], anonymous: bool) -> dict[str, Any]:
    return {**_common(sent, anonymous), "dataUri": sent.get("dataUri"), "dataType": sent.get("dataType")}


def _model(sent: dict[str, Any], anonymous: bool) -> dict[str, Any]:
    return {
        **_common(sent, anonymous),
        "modelUri": sent.get("modelUri"),
        "modelType": sent.get("modelType") or "custom_model",
        "flavors": sent.get("flavors") or {},
        "jobName": sent.get("jobName") or _job_in(str(sent.get("modelUri") or "")),
        "stage": sent.get("stage"),
        "provisioningState": "Succeeded",
    }


def _stored(call: Call, uri: str) -> str:
    """Return a job's artifact as a datastore path that the SDK's download can read (wording assumed)."""
    found = re.search(r"jobs/([^/]+)/outputs/(?:artifacts|default)/paths/(.*)$", uri)
    if found is None:
        return uri
    if call.world.resources.get(f"{call.workspace_id}/jobs/{found[1]}") is None:
        raise Refused(
            arm.ml_error(call.world, 400, f"Run {found[1]} was not found", inner=("BadArgument", "RunNotFound"))
        )
    parts = call.workspace_id.split("/")
    return (
        f"azureml://subscriptions/{parts[2]}/resourceGroups/{parts[4]}/workspaces/{parts[-1]}/datastores"
        f"/workspaceartifactstore/paths/ExperimentRun/dcid.{found[1]}/{found[2]}"
    )


def _job_in(uri: str) -> str | None:
    found = re.search(r"/jobs/([^/]+)/outputs/|/dcid\.([^/]+)/", uri)
    return (found[1] or found[2]) if found else None


def _component(sent: dict[str, Any], anonymous: bool) -> dict[str, Any]:
    spec = _as_text(copied(sent.get("componentSpec") or {}))
    return {**_common(sent, anonymous), "componentSpec": spec, "provisioningState": "Succeeded", "stage": None}


def _as_text(value: Any) -> Any:
    """Convert numbers and booleans of a component to text: "2", "True" (recorded)."""
    if isinstance(value, dict):
        return {key: _as_text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_text(item) for item in value]
    return str(value) if isinstance(value, bool | int | float) else value
