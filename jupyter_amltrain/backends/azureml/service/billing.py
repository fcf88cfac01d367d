"""What bills in a workspace now: machines that are on, and jobs on machines of the service's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.backends.azureml.service import computes, rest, sizes

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.service.operations import ServiceCall

#: Jobs that are looked at, newest first: one that still runs is seldom older.
_JOBS = 300
_RUNS = ("Running", "Finalizing", "Preparing", "Provisioning", "Starting")
#: States of a compute instance in which its machine is not given back yet.
_ON = ("ready", "starting", "stopping", "creating")


def list_all(call: ServiceCall, *, workspace: str) -> list[dict[str, Any]]:
    """Rows ``name, kind, nodes, keeps, size, low_priority, price, currency``; price of all its nodes per hour.

    `keeps` is the number of machines that a cluster never lets go.
    """
    prices = {str(size["name"]).lower(): size for size in sizes.list_all(call, workspace=workspace)}
    found = []
    for row in computes.list_all(call, workspace=workspace):
        cluster, instance = row["kind"] == "amlcompute", row["kind"] == "instance"
        nodes = max(row["nodes"], row["wanted"] or 0) if cluster else int(instance and row["state"] in _ON)
        if nodes or (cluster and row["min_nodes"]):
            found.append(_row(row["name"], row["kind"], row, nodes, row["min_nodes"] or 0, prices))
    place = call.cloud.workspace(workspace)
    pages = place.arm.pages("jobs", api=rest.ARM, params={"listViewType": "ActiveOnly"}, act="list the jobs")
    for number, job in enumerate(pages):
        call.check()
        if number == _JOBS:
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
