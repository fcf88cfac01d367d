"""Named environments of a workspace: list them, read a version, register a new one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.azure import environments, errors
from jupyter_amltrain.azure.service import history, http, images, sdk
from jupyter_amltrain.errors import AmlTrainError, CommandError

if TYPE_CHECKING:
    from jupyter_amltrain.azure.service.cloud import Workspace
    from jupyter_amltrain.azure.service.operations import ServiceCall

#: Names of environments that the SDK and the service create for single jobs.
_ANONYMOUS = frozenset(("cliv2anonymousenvironment", "azureml_anonymous"))
#: Maximum number of versions that are read of one environment.
_MAX_VERSIONS = 100


def list_all(call: ServiceCall, *, workspace: str) -> list[dict[str, Any]]:
    """List the environments, the workspace's own first: ``name, version`` (the latest), ``created, curated``."""
    place = call.cloud.workspace(workspace)
    rows = []
    for item in place.arm.pages("environments", api=http.ARM, act="list the environments"):
        name, properties = str(item["name"]), item.get("properties") or {}
        if name.lower() in _ANONYMOUS or properties.get("isArchived"):
            continue
        rows.append(
            {
                "name": name,
                "version": str(properties.get("latestVersion") or ""),
                "created": _seconds(item.get("systemData")),
                "curated": environments.is_curated(name),
            }
        )
    return sorted(rows, key=lambda row: (row["curated"], str(row["name"]).lower()))


def show(call: ServiceCall, *, workspace: str, name: str, version: str = "") -> dict[str, Any]:
    """Return a version of an environment: as :func:`list_all`, with ``versions`` (newest first), ``image``, ``conda``.

    Parameters
    ----------
    version
        Empty for the latest.

    Raises
    ------
    CommandError
        There is no such environment or version.
    """
    place = call.cloud.workspace(workspace)
    found = _versions(place, name)
    one = next((item for item in found if not version or str(item["name"]) == version), None)
    if one is None:
        known = f" It has: {', '.join(str(item['name']) for item in found[:10])}." if found else ""
        what = f"{name}:{version}" if version else name
        raise CommandError(
            f"Workspace {place.name} has no environment {what}.{known}",
            hint="List them: %aml_env list",
            code="environment.unknown",
        )
    properties = one.get("properties") or {}
    return {
        "name": name,
        "version": str(one["name"]),
        "versions": [str(item["name"]) for item in found],
        "created": _seconds(one.get("systemData")),
        "curated": environments.is_curated(name),
        "image": str(properties.get("image") or ""),
        "conda": images.conda_of(place, f"azureml:{name}:{one['name']}") or str(properties.get("condaFile") or ""),
        "description": str(properties.get("description") or ""),
    }


def register(call: ServiceCall, *, workspace: str, name: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Register a new version of an environment; return its ``name`` and ``version``.

    Parameters
    ----------
    environment
        See :func:`..environments.environment_body`.

    Raises
    ------
    EnvironmentFailed
        Its conda file cannot be read.
    """
    place = call.cloud.workspace(workspace)
    call.progress(f"Registering {name}")
    # The SDK would try to change the latest version first.
    answer = place.arm.get(f"environments/{name}", api=http.ARM, ok=(200, 404), act=f"find environment {name}")
    properties = ((answer.json or {}).get("properties") or {}) if answer.status == 200 else {}
    entity = images.new_version(environment, name, str(properties.get("nextVersion") or "1"))
    try:
        registered = sdk.create(sdk.client(call.cloud, place).environments, entity)
    except Exception as error:  # the SDK raises the errors of several libraries
        raise errors.error_of_exception(error, place.name) or error from error
    return {"name": name, "version": str(sdk.field(registered, "version"))}


def _versions(workspace: Workspace, name: str) -> list[dict[str, Any]]:
    """Return the versions of an environment, newest first; empty if there is none."""
    path = f"environments/{name}/versions"
    try:
        pages = workspace.arm.pages(
            path, api=http.ARM, params={"$orderBy": "createdtime desc"}, act=f"list the versions of {name}"
        )
        found = [item for item, _ in zip(pages, range(_MAX_VERSIONS), strict=False)]
    except AmlTrainError as error:
        if errors.details_of(error).status == 404:
            return []
        raise
    return sorted(found, key=lambda item: -_seconds(item.get("systemData")))


def _seconds(data: Any) -> float:
    """Return the unix seconds of ``createdAt``; 0 if it is missing."""
    return history.unix((data or {}).get("createdAt")) or 0.0
