"""Sizes, prices and quotas of a region, kept on disk: sizes for a day, quotas for a minute."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.backends.azureml import kept
from jupyter_amltrain.backends.azureml.catalog import size_row
from jupyter_amltrain.backends.azureml.process.computes import API
from jupyter_amltrain.backends.azureml.process.settings import setting
from jupyter_amltrain.backends.azureml.quotas import quota_row
from jupyter_amltrain.state import write_json

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.process.cloud import Workspace
    from jupyter_amltrain.backends.azureml.process.serve import Call


def list_all(call: Call, *, workspace: str, location: str = "", fresh: bool = False) -> list[dict[str, Any]]:
    """Every size of a region, for any kind of compute; default the workspace's region."""
    ws = call.cloud.workspace(workspace)
    region = location or ws.location

    def ask() -> list[dict[str, Any]]:
        # One page as recorded; a size that is not read is left out rather than all of them.
        items = ws.arm.pages(_path(ws, region, "vmSizes"), api=API, act=f"list the sizes of {region}")
        return [size_row(item) for item in items]

    path = kept.path(call.root, "sizes", ws.subscription, region)
    return _cached(path, 0.0 if fresh else setting("SIZES_AGE", 86400), ask)


def quota(call: Call, *, workspace: str, location: str = "", fresh: bool = False) -> list[dict[str, Any]]:
    """Quotas of a region; default the workspace's."""
    ws = call.cloud.workspace(workspace)
    region = location or ws.location

    def ask() -> list[dict[str, Any]]:
        items = ws.arm.pages(_path(ws, region, "usages"), api=API, act=f"list the quotas of {region}")
        return [quota_row(item) for item in items]

    path = kept.path(call.root, "quota", ws.subscription, region)
    return _cached(path, 0.0 if fresh else setting("QUOTA_AGE", 60), ask)


def _path(ws: Workspace, region: str, what: str) -> str:
    return f"/subscriptions/{ws.subscription}/providers/Microsoft.MachineLearningServices/locations/{region}/{what}"


def _cached(path: Path, age: float, ask: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    found = kept.read(path)
    if found is not None and 0 <= time.time() - found[1] < age:
        return found[0]
    rows = ask()
    with contextlib.suppress(OSError):  # a full disk loses speed only
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(path, {"schema": 1, "at": time.time(), "rows": rows})
    return rows
