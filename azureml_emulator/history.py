"""Run history of the data plane: records, details with log files, edits, data of outputs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from azureml_emulator import arm, job_shapes
from azureml_emulator.blob import ARTIFACTS
from azureml_emulator.datastores import place, storage
from azureml_emulator.job_runs import Jobs, Run
from azureml_emulator.routing import Call, Handler, Refused, Routes

routes = Routes()

_LOGS = ("user_logs/", "system_logs/", "azureml-logs/")
_DETAILS = (
    "runId", "runUuid", "parentRunUuid", "rootRunUuid", "target", "status", "parentRunId", "dataContainerId",
    "startTimeUtc", "endTimeUtc", "error", "warnings", "tags", "properties", "parameters", "services", "inputDatasets",
    "outputDatasets", "runDefinition", "revision", "runTypeV2", "settings", "computeRequest", "compute", "createdBy",
    "computeDuration", "effectiveStartTimeUtc", "runNumber", "rootRunId", "experimentId", "userId", "statusRevision",
    "currentComputeTime", "lastStartTimeUtc", "lastModifiedBy", "lastModifiedUtc", "duration", "inputs", "outputs",
    "currentAttemptId",
)  # fmt: skip
#: Fields of a run's record alone: neither the recorded details nor the SDK's ``RunDetails`` have them.
_REASONS = ("queueingInfo", "cancelationReason")


def each(method: str, tail: str, table: Routes = routes) -> Callable[[Handler], Handler]:
    """Register below a run, with and without its experiment in the path."""

    def register(handler: Handler) -> Handler:
        for start in ("/history/v1.0{ws}/runs/{run}", "/history/v1.0{ws}/experiments/{experiment}/runs/{run}"):
            table.data(method, start + tail)(handler)
        return handler

    return register


def find(call: Call, name: str | None = None) -> Run:
    """Return the run of a path.

    Raises
    ------
    Refused
        404 in the data plane's envelope (null-filled, as the compute service's; assumed).
    """
    name = name or call.params["run"]
    run = call.world.part(Jobs).of(name)
    if run is not None and time.time() - run.states[0][1] < float(call.world.switches["history_delay"]):
        run = None
    if run is None or run.workspace_id.lower() != call.workspace_id.lower():
        raise Refused(arm.compute_error(call.world, 404, f"Run {name} was not found", details=[("RunNotFound", name)]))
    return run


@each("GET", "/details")
async def details(call: Call) -> Any:
    """A run with urls of its logs, signed for an hour (07b; details say ``createdTimeUtc``)."""
    run = find(call)
    record = job_shapes.record(run)
    names = (*_DETAILS, *_REASONS) if call.world.switches["details_reasons"] else _DETAILS
    made = {key: record[key] for key in names}
    made["createdTimeUtc"] = record["createdUtc"]
    made["jobCost"] = None
    blob = storage(call.world)
    seconds = float(call.world.switches["log_sas_seconds"])
    folders = (*_LOGS, "logs/") if call.world.switches["logs_in_details"] else _LOGS
    made["logFiles"] = {}
    for name, _ in await blob.list(ARTIFACTS, run.prefix):
        path = name[len(run.prefix) :]
        if path.startswith(folders) or re.match(r"retry_\d+/", path):
            made["logFiles"][path] = blob.url(ARTIFACTS, name, seconds=seconds)
    return made


@each("GET", "")
async def get(call: Call) -> Any:
    """A run's record."""
    return job_shapes.record(find(call))


@each("PATCH", "")
async def edit(call: Call) -> Any:
    """Tags, description, display name, archived (``hidden``); null tags are left alone."""
    run, sent = find(call), call.json() or {}
    properties = run.properties
    properties["tags"].update(sent.get("tags") or {})
    properties["properties"].update(sent.get("properties") or {})
    for theirs, ours in (("description", "description"), ("displayName", "displayName"), ("hidden", "isArchived")):
        if sent.get(theirs) is not None:
            properties[ours] = sent[theirs]
    run.touch()
    return job_shapes.record(run)


@each("GET", "/children")
async def children(call: Call) -> Any:
    """Records of the steps or trials of a run, newest first (recording 02)."""
    name = find(call).name
    found = [run for run in call.world.part(Jobs).runs.values() if run.parent == name]
    return {"value": [job_shapes.record(run) for run in found[::-1]]}


@routes.data("POST", "/history/v1.0{ws}/rundata")
async def run_data(call: Call) -> Any:
    """A record with its outputs."""
    run = find(call, str((call.json() or {}).get("runId")))
    return {
        "runMetadata": job_shapes.record(run),
        "runDefinition": None,
        "jobSpecification": None,
        "systemSettings": None,
    }


@routes.data("POST", "/history/v1.0{ws}/experiments/{experiment}/runs:query")
async def query(call: Call) -> Any:
    """Runs of an experiment; filters are not read."""
    runs = [
        job_shapes.record(run)
        for run in call.world.part(Jobs).runs.values()
        if run.properties["experimentName"] == call.params["experiment"] and run.workspace_id == call.workspace_id
    ]
    return {"value": runs[::-1]}


@routes.data("POST", "/data/v1.0{ws}/dataversion/batchGetResolvedUris")
async def resolve_data(call: Call) -> Any:
    """Return long URIs of data assets."""
    found = {}
    for asset in (call.json() or {}).get("values") or []:
        tail = re.search(r"/data/([^/]+)/versions/([^/]+)$", asset)
        if tail is None:
            continue
        kept = call.world.resources.get(f"{call.workspace_id}/data/{tail[1]}/versions/{tail[2]}")
        if kept is not None:
            uri = str(kept["properties"]["dataUri"])
            await place(call.world, call.workspace_id, uri)
            found[asset] = {"uri": _long(call, uri), "type": kept["properties"].get("dataType")}
    return {"values": found}


def _long(call: Call, uri: str) -> str:
    short = uri.removeprefix("azureml://")
    if uri.startswith("azureml://datastores/"):
        return f"azureml:/{job_shapes.short(call.workspace_id)}/{short}"
    return uri
