"""Sizes, prices and quotas of a region, kept on disk (sizes a day, quotas a minute); and what costs money now."""

from __future__ import annotations

import contextlib
import difflib
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.backends.azureml import catalog, errors
from jupyter_amltrain.backends.azureml.catalog import quota_row, size_row
from jupyter_amltrain.backends.azureml.service import computes, http
from jupyter_amltrain.backends.azureml.service.account import setting
from jupyter_amltrain.backends.azureml.service.computes import API
from jupyter_amltrain.errors import CommandError, TargetError
from jupyter_amltrain.state_dir import write_json

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.service.cloud import Workspace
    from jupyter_amltrain.backends.azureml.service.operations import ServiceCall

Row = dict[str, Any]


def list_sizes(call: ServiceCall, *, workspace: str, location: str = "", fresh: bool = False) -> list[Row]:
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
            raise (_no_region(region, ws.location, errors.details_of(error)) or error) from error

    return _cached(catalog.region_file(call.root, what, ws.subscription, region), age, ask)


#: ``No registered resource provider found for location 'mars' and API version ... The supported locations are 'a, b'``
#: (recorded), ``LocationNotAvailableForResourceType`` (ARM's error reference).
_NO_REGION = ("NoRegisteredProviderFound", "LocationNotAvailableForResourceType", "InvalidLocation")
_REGIONS = re.compile(r"(?:supported|available) (?:locations|regions)[^']*'([^']+)'", re.IGNORECASE)


def _no_region(region: str, own: str, told: errors.ErrorDetails) -> CommandError | None:
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
    found = catalog.read_region_rows(path)
    if found is not None and 0 <= time.time() - found[1] < age:
        return found[0]
    rows = ask()
    with contextlib.suppress(OSError):  # a full disk loses speed only
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(path, {"schema": 1, "at": time.time(), "rows": rows})
    return rows


#: Jobs that are looked at, newest first: one that still runs is seldom older.
_MAX_JOBS = 300
_RUNS = ("Running", "Finalizing", "Preparing", "Provisioning", "Starting")
#: States of a compute instance in which its machine is not given back yet.
_ON = ("ready", "starting", "stopping", "creating")


def list_all(call: ServiceCall, *, workspace: str) -> list[dict[str, Any]]:
    """Rows ``name, kind, nodes, keeps, size, low_priority, price, currency``; price of all its nodes per hour.

    `keeps` is the number of machines that a cluster never lets go.
    """
    prices = {str(size["name"]).lower(): size for size in list_sizes(call, workspace=workspace)}
    found = []
    for row in computes.list_all(call, workspace=workspace):
        cluster, instance = row["kind"] == "amlcompute", row["kind"] == "instance"
        nodes = max(row["nodes"], row["wanted"] or 0) if cluster else int(instance and row["state"] in _ON)
        if nodes or (cluster and row["min_nodes"]):
            found.append(_row(row["name"], row["kind"], row, nodes, row["min_nodes"] or 0, prices))
    place = call.cloud.workspace(workspace)
    pages = place.arm.pages("jobs", api=http.ARM, params={"listViewType": "ActiveOnly"}, act="list the jobs")
    for number, job in enumerate(pages):
        call.check()
        if number == _MAX_JOBS:
            break
        body = job.get("properties") or {}
        resources = body.get("resources") or {}
        if body.get("computeId") or body.get("jobType") != "Command" or body.get("status") not in _RUNS:
            continue
        low = (body.get("queueSettings") or {}).get("jobTier") == "Spot"
        facts = {"size": str(resources.get("instanceType") or ""), "low_priority": low}
        found.append(
            _row(str(job.get("name")), "serverless", facts, int(resources.get("instanceCount") or 1), 0, prices)
        )
    return found


def _row(
    name: str, kind: str, facts: Mapping[str, Any], nodes: int, keeps: int, prices: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    size = prices.get(facts["size"].lower(), {})
    each = size.get("price_low" if facts.get("low_priority") else "price")
    return {
        "name": name,
        "kind": kind,
        "nodes": nodes,
        "keeps": keeps,
        "size": str(size.get("name") or facts["size"]),  # Azure answers some in capitals
        "low_priority": bool(facts.get("low_priority")),
        "price": None if each is None else round(each * max(nodes, keeps), 4),
        "currency": str(size.get("currency") or ""),
    }
