"""Data assets of a workspace: versions of files and folders in its storage, under a name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jupyter_amltrain.azure.service import assets, data_upload, http
from jupyter_amltrain.errors import CommandError

if TYPE_CHECKING:
    from jupyter_amltrain.azure.service.cloud import Workspace
    from jupyter_amltrain.azure.service.operations import ServiceCall

#: Property of a version with the digest of its content.
DIGEST = "amltrain.sha256"


def register(
    call: ServiceCall,
    *,
    workspace: str,
    name: str,
    path: str,
    version: str = "",
    kind: str = "",
    description: str = "",
    tags: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Upload a file or folder and register it as a version of a data asset; return its row.

    Without `version`, the newest version is returned if it has the same content, otherwise the service's next version
    is created. The row has ``sent`` (bytes), ``files`` and ``new`` too.

    Raises
    ------
    CommandError
        The version exists with other content.
    """
    place = call.cloud.workspace(workspace)
    stored = data_upload.send(call, workspace=workspace, path=path)
    kind = kind or ("uri_folder" if stored["folder"] else "uri_file")
    # Azure's own tools write the long form.
    scope = place.arm_id.replace("/providers/Microsoft.MachineLearningServices", "")
    uri = stored["uri"].replace("azureml://", f"azureml:/{scope.replace('resourceGroups', 'resourcegroups')}/", 1)
    facts = {"files": stored["files"], "bytes": stored["bytes"], "sent": stored["sent"]}
    if (same := _version_with(place, name, version, stored["sha256"], kind)) is not None:
        return {**same, **facts, "new": False}
    version = version or _next_version(place, name)
    call.progress(f"registering {name}:{version}")
    body = {
        "properties": {
            "dataType": kind,
            "dataUri": uri,
            "description": description or None,
            "isAnonymous": False,
            "isArchived": False,
            "tags": dict(tags or {}),
            "properties": {DIGEST: stored["sha256"]},
        }
    }
    path_of = f"data/{quote(name, safe='')}/versions/{quote(version, safe='')}"
    made = place.arm.put(path_of, api=http.ARM, json=body, act=f"register the data {name}:{version}").json or {}
    row = _row(name, {"name": version, **made})
    return {**row, **facts, "new": True}


def list_all(call: ServiceCall, *, workspace: str, name: str = "") -> list[dict[str, Any]]:
    """List the versions of all data assets, or of one, by name and newest first."""
    place = call.cloud.workspace(workspace)
    return _versions(place, name) if name else assets.all_versions(place, "data", _row)


def _version_with(place: Workspace, name: str, version: str, sha256: str, kind: str) -> dict[str, Any] | None:
    """Return the row of `version`, or of the newest one, if it has this content; raise if `version` has another."""
    rows = _versions(place, name)
    if not version:
        return rows[0] if rows and _is_same(rows[0], sha256, kind) else None
    row = next((row for row in rows if row["version"] == version), None)
    if row is not None and not _is_same(row, sha256, kind):
        raise CommandError(
            f"Data {name}:{version} exists with other content, and a version cannot be changed.",
            hint=f"Leave --version out to create version {_next_version(place, name)}.",
            code="data.exists",
            field="version",
        )
    return row


def _is_same(row: Mapping[str, Any], sha256: str, kind: str) -> bool:
    return bool(row["sha256"] == sha256 and row["type"] == kind)


def _next_version(place: Workspace, name: str) -> str:
    """Return the version that the service proposes."""
    path = f"data/{quote(name, safe='')}"
    answer = place.arm.get(path, api=http.ARM, ok=(200, 404), act=f"read the data {name}")
    return str(((answer.json or {}).get("properties") or {}).get("nextVersion") or 1) if answer.status == 200 else "1"


def _versions(place: Workspace, name: str) -> list[dict[str, Any]]:
    return assets.versions(place, "data", name, _row)


def _row(name: str, item: Mapping[str, Any]) -> dict[str, Any]:
    properties = item.get("properties") or {}
    return {
        **assets.facts_of(name, item),
        "type": str(properties.get("dataType") or ""),
        "path": str(properties.get("dataUri") or ""),
        "sha256": str((properties.get("properties") or {}).get(DIGEST) or ""),
    }
