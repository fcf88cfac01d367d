"""Sizes, prices and quotas of a region, kept on disk: sizes for a day, quotas for a minute."""

from __future__ import annotations

import contextlib
import difflib
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.backends.azureml import faults, kept
from jupyter_amltrain.backends.azureml.catalog import size_row
from jupyter_amltrain.backends.azureml.quotas import quota_row
from jupyter_amltrain.backends.azureml.service.computes import API
from jupyter_amltrain.backends.azureml.service.operations import setting
from jupyter_amltrain.errors import CommandError, TargetError
from jupyter_amltrain.state import write_json

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.service.cloud import Workspace
    from jupyter_amltrain.backends.azureml.service.operations import ServiceCall

Row = dict[str, Any]


def list_all(call: ServiceCall, *, workspace: str, location: str = "", fresh: bool = False) -> list[Row]:
    """Every size of a region, for any kind of compute; default the workspace's region."""
    # One page as recorded; a size that is not read is left out rather than all of them.
    age = 0.0 if fresh else setting("SIZES_AGE", 86400)
    return _listed(call, workspace, location, "sizes", "vmSizes", size_row, age)


def quota(call: ServiceCall, *, workspace: str, location: str = "", fresh: bool = False) -> list[Row]:
    """Quotas of a region; default the workspace's."""
    age = 0.0 if fresh else setting("QUOTA_AGE", 60)
    return _listed(call, workspace, location, "quota", "usages", quota_row, age)


def _listed(
    call: ServiceCall, workspace: str, location: str, what: str, theirs: str, row: Callable[[Any], Row], age: float
) -> list[Row]:
    """Rows of what a region has; `theirs` is the service's word for it."""
    ws = call.cloud.workspace(workspace)
    region = location or ws.location

    def ask() -> list[Row]:
        act = f"list the {'quotas' if what == 'quota' else what} of {region}"
        try:
            return [row(item) for item in ws.arm.pages(_path(ws, region, theirs), api=API, act=act)]
        except TargetError as error:
            raise (_no_region(region, ws.location, faults.told(error)) or error) from error

    return _cached(kept.path(call.root, what, ws.subscription, region), age, ask)


#: ``No registered resource provider found for location 'mars' and API version ... The supported locations are 'a, b'``
#: (recorded), ``LocationNotAvailableForResourceType`` (ARM's error reference).
_NO_REGION = ("NoRegisteredProviderFound", "LocationNotAvailableForResourceType", "InvalidLocation")
_REGIONS = re.compile(r"(?:supported|available) (?:locations|regions)[^']*'([^']+)'", re.IGNORECASE)


def _no_region(region: str, own: str, told: faults.Told) -> CommandError | None:
    """The error for a region that Azure ML does not have; ``None`` for any other."""
    if not set(_NO_REGION) & set(told.codes) and "No registered resource provider found" not in told.message:
        return None
    found = _REGIONS.search(told.message)
    names = [name.strip() for name in found[1].split(",")] if found else [own]
    near = difflib.get_close_matches(region.lower(), names, 2, 0.5)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"The workspace is in {own}: leave out --region."
    return CommandError(f"Azure ML has no region {region[:60]!r}.", hint=hint)


def _path(ws: Workspace, region: str, what: str) -> str:
    return f"/subscriptions/{ws.subscription}/providers/Microsoft.MachineLearningServices/locations/{region}/{what}"


def _cached(path: Path, age: float, ask: Callable[[], list[Row]]) -> list[Row]:
    found = kept.read(path)
    if found is not None and 0 <= time.time() - found[1] < age:
        return found[0]
    rows = ask()
    with contextlib.suppress(OSError):  # a full disk loses speed only
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(path, {"schema": 1, "at": time.time(), "rows": rows})
    return rows
