"""VM sizes, prices and quotas of a region, cached on disk (sizes for a day, quotas for a minute), and current costs."""

from __future__ import annotations

import contextlib
import difflib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.azure import catalog, errors
from jupyter_amltrain.azure.catalog import Size, quota_row, size_row
from jupyter_amltrain.azure.service import computes, http
from jupyter_amltrain.azure.service.account import env_seconds
from jupyter_amltrain.azure.service.computes import API
from jupyter_amltrain.errors import CommandError, TargetError
from jupyter_amltrain.state_dir import write_json

if TYPE_CHECKING:
    from jupyter_amltrain.azure.service.cloud import Workspace
    from jupyter_amltrain.azure.service.operations import ServiceCall

Row = dict[str, Any]


def list_sizes(call: ServiceCall, *, workspace: str, location: str = "", fresh: bool = False) -> list[Row]:
    """List all VM sizes of a region, for any kind of compute; default the workspace's region."""
    # Recorded responses have a single page.
    age = 0.0 if fresh else env_seconds("SIZES_AGE", 86400)
    return _region_rows(call, workspace, location, "sizes", "vmSizes", size_row, age)


def quota(call: ServiceCall, *, workspace: str, location: str = "", fresh: bool = False) -> list[Row]:
    """List the quotas of a region; default the workspace's region."""
    age = 0.0 if fresh else env_seconds("QUOTA_AGE", 60)
    return _region_rows(call, workspace, location, "quota", "usages", quota_row, age)


def _region_rows(
    call: ServiceCall, workspace: str, location: str, what: str, resource: str, row: Callable[[Any], Row], age: float
) -> list[Row]:
    """Return the cached or newly requested rows of a region; `resource` is the service's name of the list."""
    ws = call.cloud.workspace(workspace)
    region = location or ws.location

    def request() -> list[Row]:
        act = f"list the {'quotas' if what == 'quota' else what} of {region}"
        try:
            return [row(item) for item in ws.arm.pages(_path(ws, region, resource), api=API, act=act)]
        except TargetError as error:
            raise (_no_region(region, ws.location, errors.details_of(error)) or error) from error

    return _cached(catalog.region_file(call.root, what, ws.subscription, region), age, request)


#: ``No registered resource provider found for location 'mars' and API version ... The supported locations are 'a, b'``
#: (recorded), ``LocationNotAvailableForResourceType`` (ARM's error reference).
_NO_REGION_CODES = ("NoRegisteredProviderFound", "LocationNotAvailableForResourceType", "InvalidLocation")
_REGIONS = re.compile(r"(?:supported|available) (?:locations|regions)[^']*'([^']+)'", re.IGNORECASE)


def _no_region(region: str, own: str, details: errors.ErrorDetails) -> CommandError | None:
    """Return the error for a region that Azure ML does not have; ``None`` for any other error."""
    if (
        not set(_NO_REGION_CODES) & set(details.codes)
        and "No registered resource provider found" not in details.message
    ):
        return None
    match = _REGIONS.search(details.message)
    names = [name.strip() for name in match[1].split(",")] if match else [own]
    matches = difflib.get_close_matches(region.lower(), names, 2, 0.5)
    hint = f"Did you mean {' or '.join(matches)}?" if matches else f"The workspace is in {own}: leave out --region."
    return CommandError(f"--region: Azure ML has no region {region[:60]!r}.", hint=hint)


def _path(ws: Workspace, region: str, what: str) -> str:
    return f"/subscriptions/{ws.subscription}/providers/Microsoft.MachineLearningServices/locations/{region}/{what}"


def _cached(path: Path, age: float, request: Callable[[], list[Row]]) -> list[Row]:
    cached = catalog.read_region_rows(path)
    if cached is not None and 0 <= time.time() - cached[1] < age:
        return cached[0]
    rows = request()
    with contextlib.suppress(OSError):  # a full disk loses speed only
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(path, {"schema": 1, "at": time.time(), "rows": rows})
    return rows


#: Maximum number of jobs to read, newest first; older ones are rarely still running.
_MAX_JOBS = 300
_RUNNING_STATUSES = ("Running", "Finalizing", "Preparing", "Provisioning", "Starting")
#: States of a compute instance in which its machine is still billed.
_BILLED_STATES = ("ready", "starting", "stopping", "creating")


def list_all(call: ServiceCall, *, workspace: str) -> list[dict[str, Any]]:
    """List the computes that cost money now: ``name, kind, nodes, keeps, size, low_priority, price, currency``.

    `price` is per hour for all nodes; `keeps` is the number of nodes that a cluster keeps when idle.
    """
    sizes = catalog.sizes_of(list_sizes(call, workspace=workspace))
    rows = []
    for row in computes.list_all(call, workspace=workspace):
        cluster, instance = row["kind"] == "amlcompute", row["kind"] == "instance"
        nodes = max(row["nodes"], row["wanted"] or 0) if cluster else int(instance and row["state"] in _BILLED_STATES)
        if nodes or (cluster and row["min_nodes"]):
            rows.append(_row(row["name"], row["kind"], row, nodes, row["min_nodes"] or 0, sizes))
    ws = call.cloud.workspace(workspace)
    pages = ws.arm.pages("jobs", api=http.ARM, params={"listViewType": "ActiveOnly"}, act="list the jobs")
    for number, job in enumerate(pages):
        call.check()
        if number == _MAX_JOBS:
            break
        body = job.get("properties") or {}
        resources = body.get("resources") or {}
        if body.get("computeId") or body.get("jobType") != "Command" or body.get("status") not in _RUNNING_STATUSES:
            continue
        low = (body.get("queueSettings") or {}).get("jobTier") == "Spot"
        facts = {"size": str(resources.get("instanceType") or ""), "low_priority": low}
        rows.append(_row(str(job.get("name")), "serverless", facts, int(resources.get("instanceCount") or 1), 0, sizes))
    return rows


def _row(
    name: str, kind: str, facts: Mapping[str, Any], nodes: int, keeps: int, sizes: Sequence[Size]
) -> dict[str, Any]:
    size = catalog.find(sizes, facts["size"])
    node_price = None if size is None else size.cost(bool(facts.get("low_priority")))
    return {
        "name": name,
        "kind": kind,
        "nodes": nodes,
        "keeps": keeps,
        "size": facts["size"] if size is None else size.name,  # Azure returns some names in capitals
        "low_priority": bool(facts.get("low_priority")),
        "price": None if node_price is None else round(node_price * max(nodes, keeps), 4),
        "currency": "" if size is None else size.currency,
    }
