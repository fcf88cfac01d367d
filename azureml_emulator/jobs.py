"""Jobs at ARM: submit, get, list, cancel, delete."""

from __future__ import annotations

import re
from typing import Any

from aiohttp import web

from azureml_emulator import arm, assets, job_shapes, job_sweeps, schema, sizes
from azureml_emulator.job_runs import Jobs, Run
from azureml_emulator.routing import Call, Refused, Routes

routes = Routes()

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9\-_]{0,254}")
_NOT_TRAINING = ("HDInsight", "Databricks", "DataLakeAnalytics", "DataFactory")


@routes.arm("PUT", "{ws}/jobs/{name}")
async def submit(call: Call) -> Any:
    """A new job; or tags, description and archive of one that there is."""
    name, body = call.params["name"], call.json()
    if not _NAME.fullmatch(name):
        raise _bad(call, f"The job name '{name}' is invalid: letters, digits, '-' and '_' are allowed.", "InvalidName")
    if wrong := schema.problems("workspaces_jobs", body, call.api_version, not call.world.switches["unknown_fields"]):
        raise _bad(call, "; ".join(wrong), "ArgumentInvalid")
    sent = body["properties"]
    before = call.world.part(Jobs).of(name)
    if before is not None:
        return arm.answer(_changed(before, sent))
    return arm.created(call, begin(call, name, sent))


def begin(call: Call, name: str, sent: dict[str, Any]) -> dict[str, Any]:
    """Start a job by its properties; return its resource.

    Raises
    ------
    Refused
        What it names does not exist.
    """
    cluster, size, low_priority = _compute(call, sent)
    if sent["jobType"] == "Command":
        _check_command(call, sent)
    elif sent["jobType"] == "Sweep":
        inputs = {**(sent.get("inputs") or {}), **(sent["searchSpace"] or {})}
        _check_command(call, {**sent["trial"], "inputs": inputs, "outputs": sent.get("outputs")})
        if wrong_sweep := job_sweeps.problem(sent):
            raise _bad(call, wrong_sweep, "ArgumentInvalid")
    resource = call.world.resources.put(job_shapes.job(call.world, call.workspace_id, name, sent, cluster))
    jobs = call.world.part(Jobs)
    number = 1_770_000_000 + len(jobs.runs)
    made = Run(call.world, call.workspace_id, name, resource, number, cluster, size, low_priority)
    jobs.begin(made)
    return resource


@routes.arm("GET", "{ws}/jobs")
async def list_jobs(call: Call) -> Any:
    """Newest first; ``listViewType``, ``jobType``, ``tag`` and ``properties`` are supported."""
    found = call.world.resources.below(f"{call.workspace_id}/jobs")[::-1]
    view = call.query.get("listViewType") or "ActiveOnly"
    if view != "All":
        found = [one for one in found if one["properties"]["isArchived"] is (view == "ArchivedOnly")]
    if kind := call.query.get("jobType"):
        found = [one for one in found if one["properties"]["jobType"] == kind]
    for text in [part for part in (call.query.get("tag") or "").split(",") if part]:
        key, _, value = text.partition("=")
        found = [
            one for one in found if key in one["properties"]["tags"] and value in ("", one["properties"]["tags"][key])
        ]
    return arm.page(call, found)


@routes.arm("GET", "{ws}/jobs/{name}")
async def get(call: Call) -> Any:
    """One."""
    return find(call).resource


@routes.arm("POST", "{ws}/jobs/{name}/cancel")
async def cancel(call: Call) -> web.Response:
    """Ask for its end: 202, and a place to look; of a job that is over 200 (recorded), and nothing changes."""
    run = find(call)
    if run.status in job_shapes.TERMINAL:
        return arm.empty(200)
    if run.status != "Finalizing":
        run.set("CancelRequested")
    run.canceled.set()
    headers = {"Retry-After": "0"} if call.world.switches["retry_after_header"] else {}
    place = f"{arm.HOST}{run.resource['id']}/operationResults/cancel?api-version={call.api_version}"
    return arm.empty(202, {"Location": place, **headers})


@routes.arm("GET", "{ws}/jobs/{name}/operationResults/{operation}")
async def operation(call: Call) -> web.Response:
    """The request was taken."""
    find(call)
    return arm.empty(200)


@routes.arm("DELETE", "{ws}/jobs/{name}")
async def delete(call: Call) -> web.Response:
    """Forget a job that is over."""
    run = find(call)
    if run.status not in job_shapes.TERMINAL:
        raise _bad(call, f"The job '{run.name}' is {run.status}: cancel it before it is deleted.", "JobNotTerminal")
    call.world.resources.drop(run.resource["id"])
    call.world.part(Jobs).runs.pop(run.name)
    return arm.empty(200)


@routes.on("control", "*", "/job", anonymous=True)
async def states(call: Call) -> Any:
    """For tests: every state that the job ``name`` was in with its time (unix seconds), and its attempts."""
    run = call.world.part(Jobs).of(str((call.json() or {}).get("name") or call.query.get("name")))
    return None if run is None else {"states": run.states, "attempt": run.attempt, "warnings": run.warnings}


def find(call: Call, name: str | None = None) -> Run:
    """The run that a path names.

    Raises
    ------
    Refused
        404 of the ML front end (assumed: its words).
    """
    name = name or call.params["name"]
    run = call.world.part(Jobs).of(name)
    if run is None or run.workspace_id.lower() != call.workspace_id.lower():
        raise Refused(arm.ml_error(call.world, 404, f"Run {name} was not found", inner=("NotFound", "RunNotFound")))
    return run


def _bad(call: Call, message: str, inner: str) -> Refused:
    return Refused(arm.ml_error(call.world, 400, message, inner=("BadArgument", inner)))


def _compute(call: Call, sent: dict[str, Any]) -> tuple[str | None, str, bool]:
    """Cluster (None: serverless), VM size, low priority or not.

    Raises
    ------
    Refused
        400 ``UnknownTargetType`` as recorded (11a), or a kind of compute that trains nothing.
    """
    compute_id = sent.get("computeId") or ""
    tier = (sent.get("queueSettings") or {}).get("jobTier")
    resources = sent.get("resources") or {}
    if not compute_id or compute_id.rsplit("/", 1)[-1].lower() == "serverless":
        size = resources.get("instanceType") or "Standard_DS3_v2"
        if sizes.find(size) is None and sent["jobType"] != "Spark":  # memory-optimized sizes, not recorded
            raise _bad(call, f"The specified instance type '{size}' is not supported.", "InvalidInstanceType")
        return None, size, tier == "Spot"
    name = compute_id.rsplit("/", 1)[-1].rpartition(":")[2]
    found = call.world.resources.get(f"{call.workspace_id}/computes/{name}")
    if found is None and sent["jobType"] == "Sweep":  # recorded: no code beside UserError
        raise Refused(arm.ml_error(call.world, 400, f"Compute Not Found for run ID {call.params['name']}"))
    if found is None:
        raise _bad(call, f"Unknown compute target '{name}'.", "UnknownTargetType")
    sent["computeId"] = found["id"]
    kind, inner = found["properties"]["computeType"], found["properties"].get("properties") or {}
    if kind in _NOT_TRAINING and sent["jobType"] == "Command":
        raise _bad(call, f"Compute target '{name}' of type {kind} does not run command jobs.", "UnsupportedComputeType")
    size = str(inner.get("vmSize") or inner.get("virtualMachineSize") or "")
    return name, size, inner.get("vmPriority") == "LowPriority"


def _check_command(call: Call, sent: dict[str, Any]) -> None:
    code = sent.get("codeId")
    if code and call.world.resources.get(code.removeprefix("azureml:")) is None:
        raise _bad(call, f"Code asset {code} was not found.", "CodeNotFound")
    if assets.environment(call.world, call.workspace_id, sent["environmentId"]) is None:
        raise _bad(call, f"Environment {sent['environmentId']} was not found.", "EnvironmentNotFound")
    known = {**(sent.get("inputs") or {}), **(sent.get("outputs") or {}), "default": None}
    for binding in re.findall(r"\$\{\{\s*(?:inputs|outputs)\.([\w-]+)\s*\}\}", sent["command"]):
        if binding not in known:
            raise _bad(call, f"The command names '{binding}', which is no input or output.", "InvalidBinding")


def _changed(run: Run, sent: dict[str, Any]) -> dict[str, Any]:
    for key in ("description", "displayName", "isArchived", "tags"):
        if sent.get(key) is not None:
            run.properties[key] = sent[key]
    run.touch()
    return run.resource
