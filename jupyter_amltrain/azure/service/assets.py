"""Versions of the named assets of a workspace: models and data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jupyter_amltrain.azure.service import history, http

if TYPE_CHECKING:
    from jupyter_amltrain.azure.service.cloud import Workspace

Row = dict[str, Any]


def all_versions(place: Workspace, collection: str, row_of: Callable[[str, Mapping[str, Any]], Row]) -> list[Row]:
    """Return the versions of all assets of a collection (``models``, ``data``), by name and newest first."""
    names = [
        str(item["name"])
        for item in place.arm.pages(collection, api=http.ARM, act=f"list the {collection}")
        if not (item.get("properties") or {}).get("isArchived")
    ]
    found = history.all_of(lambda name: versions(place, collection, name, row_of), sorted(names, key=str.lower))
    return [row for rows in found for row in rows]


def versions(
    place: Workspace, collection: str, name: str, row_of: Callable[[str, Mapping[str, Any]], Row]
) -> list[Row]:
    """Return the versions of an asset, newest first; empty without an asset of that name."""
    path = f"{collection}/{quote(name, safe='')}/versions"
    answer = place.arm.get(path, api=http.ARM, ok=(200, 404), act=f"list the versions of {name}")
    if answer.status == 404:
        return []
    items = list((answer.json or {}).get("value") or [])
    if following := (answer.json or {}).get("nextLink"):
        items += place.arm.pages(following)
    rows = [row_of(name, item) for item in items if not (item.get("properties") or {}).get("isArchived")]
    return sorted(rows, key=_order)


def facts_of(name: str, item: Mapping[str, Any]) -> Row:
    """Return what the rows of all kinds of assets have."""
    properties = item.get("properties") or {}
    return {
        "name": name,
        "version": str(item["name"]),
        "created": history.unix((item.get("systemData") or {}).get("createdAt")) or 0.0,
        "description": str(properties.get("description") or ""),
        "tags": {str(key): str(value) for key, value in (properties.get("tags") or {}).items()},
    }


def _order(row: Mapping[str, Any]) -> tuple[int, int, float]:
    """Sort key: numeric versions first, highest first; other versions by time."""
    version = str(row["version"])
    return (0, -int(version), 0.0) if version.isdigit() else (1, 0, -float(row["created"]))
