"""Shapes of jobs at ARM and in run history (pure).

Sources: recordings 01b, 02, 07a, 11a, command_job_serverless (ARM), 02 (run records), 07b (details).
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from azureml_emulator import job_sweeps

if TYPE_CHECKING:
    from azureml_emulator.job_runs import Run
    from azureml_emulator.world import World

TERMINAL = ("Completed", "Failed", "Canceled")
_MODES = {"uri_folder": "ReadOnlyMount", "uri_file": "ReadOnlyMount", "mltable": "EvalMount"}


def short(workspace_id: str) -> str:
    """A workspace's id as the studio writes it: without the provider."""
    return workspace_id.replace("/providers/Microsoft.MachineLearningServices", "").replace(
        "resourceGroups", "resourcegroups"
    )


def services(api: str, workspace_id: str, name: str) -> dict[str, Any]:
    """The two that every job has."""
    nothing = {"status": None, "errorMessage": None, "properties": None, "nodes": None}
    return {
        "Tracking": {
            "jobServiceType": "Tracking",
            "port": None,
            "endpoint": f"{api.replace('https', 'azureml', 1)}/mlflow/v1.0{workspace_id}?",
            **nothing,
        },
        "Studio": {
            "jobServiceType": "Studio",
            "port": None,
            "endpoint": f"https://ml.azure.com/runs/{name}?wsid={short(workspace_id)}",
            **nothing,
        },
    }


def job(world: World, workspace_id: str, name: str, sent: dict[str, Any], cluster: str | None) -> dict[str, Any]:
    """The resource that a PUT makes: what was sent, in the service's order, with what it adds."""
    kind = sent["jobType"]
    properties: dict[str, Any] = {
        "description": sent.get("description"),
        "tags": dict(sent.get("tags") or {}),
        "properties": dict(sent.get("properties") or {}),
        "displayName": sent.get("displayName") or name,
        "status": {"Pipeline": "NotStarted", "AutoML": "NotStarted", "Sweep": "Running"}.get(kind, "Starting"),
        "experimentName": sent.get("experimentName") or "Default",
        "services": {**services(world.api, workspace_id, name), **_interactive(sent.get("services") or {})},
        "computeId": sent.get("computeId"),
        "isArchived": bool(sent.get("isArchived")),
        "identity": sent.get("identity"),
        "componentId": sent.get("componentId"),
        "notificationSetting": sent.get("notificationSetting"),
        "jobType": kind,
    }
    if kind == "Command":
        properties["properties"].update(
            {
                "_azureml.ComputeTargetType": "amlctrain" if cluster is None else "amlcdsi",
                "_azureml.ClusterName": cluster,
            }
        )
        properties.update(_command(name, sent))
    else:
        properties.update({key: value for key, value in sent.items() if key not in properties})
        properties["inputs"] = sent.get("inputs") or None
        properties["outputs"] = {
            **({"default": _default(name)} if kind == "Sweep" else {}),
        } | {
            key: {"description": None, "uri": None, "assetName": None, "assetVersion": None, "mode": "ReadWriteMount",
                  "pathOnCompute": None, "autoDeleteSetting": None, **value}
            for key, value in (sent.get("outputs") or {}).items()
        }  # fmt: skip
    if kind == "Pipeline":  # recording 02
        properties = {"sourceJobId": None, "secretsConfiguration": None, **properties}
    if kind == "Sweep":  # its first answer (recorded): no Tracking, tags of its own
        properties["services"].pop("Tracking")
        properties["queueSettings"] = sent.get("queueSettings") or {"jobTier": "Null"}
        properties["tags"] = {**properties["tags"], **job_sweeps.tags(sent)}
    return {
        "id": f"{workspace_id}/jobs/{name}",
        "name": name,
        "type": "Microsoft.MachineLearningServices/workspaces/jobs",
        "properties": properties,
        "systemData": {"createdAt": world.clock.stamp(), "createdBy": world.user, "createdByType": "User"},
    }


def _interactive(sent: dict[str, Any]) -> dict[str, Any]:
    nothing = {"port": None, "endpoint": None, "status": None, "errorMessage": None, "properties": None, "nodes": None}
    own = {name: value for name, value in sent.items() if name not in ("Tracking", "Studio")}
    return {name: {"jobServiceType": None, **nothing, **value} for name, value in own.items()}


def _command(name: str, sent: dict[str, Any]) -> dict[str, Any]:
    resources = sent.get("resources") or {}
    inputs = {}
    for key, value in (sent.get("inputs") or {}).items():
        made = {"description": None, **value}
        if value["jobInputType"] != "literal":
            made["mode"] = value.get("mode") or _MODES.get(value["jobInputType"], "ReadOnlyMount")
        inputs[key] = made
    outputs = {"default": _default(name)}
    for key, value in (sent.get("outputs") or {}).items():
        outputs[key] = {"description": None, "assetName": None, "mode": "ReadWriteMount", **value}
    return {
        "resources": {
            "instanceCount": resources.get("instanceCount") or 1,
            "instanceType": resources.get("instanceType"),
            "properties": resources.get("properties"),
            "shmSize": resources.get("shmSize") or "2g",
            "dockerArgs": resources.get("dockerArgs"),
            "dockerArgsList": resources.get("dockerArgsList"),
        },
        "codeId": sent.get("codeId"),
        "command": sent["command"],
        "environmentId": sent["environmentId"],
        "inputs": inputs,
        "outputs": outputs,
        "distribution": sent.get("distribution"),
        "limits": sent.get("limits"),
        "environmentVariables": sent.get("environmentVariables"),
        "parameters": {},
        "queueSettings": sent.get("queueSettings") or {"jobTier": "Null"},
    }


def _default(name: str) -> dict[str, Any]:
    return {
        "description": None,
        "uri": f"azureml://datastores/workspaceartifactstore/ExperimentRun/dcid.{name}",
        "assetName": None,
        "mode": "ReadWriteMount",
        "jobOutputType": "uri_folder",
    }


def pipeline_properties(body: dict[str, Any]) -> dict[str, str]:
    """Properties that a pipeline has as soon as it runs (recording 02)."""
    settings = body.get("settings") or {}
    inputs = {
        key: input_body.get("value") for key, input_body in (body.get("inputs") or {}).items() if "value" in input_body
    }
    compute = str(settings.get("default_compute") or body.get("computeId") or "")
    return {
        "azureml.DevPlatv2": "true",
        "azureml.DatasetAccessMode": "Asset",
        "azureml.runsource": "azureml.PipelineRun",
        "runSource": "MFE",
        "runType": "HTTP",
        "azureml.parameters": json.dumps(inputs, separators=(",", ":")),
        "azureml.continue_on_step_failure": str(settings.get("continue_on_step_failure", True)).capitalize(),
        "azureml.continue_on_failed_optional_input": "True",
        "azureml.enforceRerun": str(settings.get("force_rerun", False)).capitalize(),
        "azureml.defaultComputeName": compute.rpartition("/")[2].rpartition(":")[2],
        "azureml.defaultDataStoreName": "workspaceblobstore",
        "azureml.pipelineComponent": "pipelinerun",
    }


def cluster_status(pool: Any) -> str:
    """Tag ``_aml_system_ComputeTargetStatus``: JSON as text (recording 07a)."""
    counts = pool.counts() if pool is not None else {}
    return json.dumps(
        {
            "AllocationState": "steady" if pool is None or pool.steady else "resizing",
            "PreparingNodeCount": counts.get("preparingNodeCount", 0),
            "RunningNodeCount": counts.get("runningNodeCount", 0),
            "CurrentNodeCount": pool.current if pool is not None else 0,
        },
        separators=(",", ":"),
    )


def error(code: str, message: str, inner: str = "") -> dict[str, Any]:
    """``error`` of a run record (recording 02); its time is the year 1."""
    return {
        "error": {
            "code": code,
            "severity": None,
            "message": message,
            "messageFormat": None,
            "messageParameters": {},
            "referenceCode": None,
            "detailsUri": None,
            "target": None,
            "details": [],
            "innerError": {"code": inner, "innerError": None} if inner else None,
            "debugInfo": None,
            "additionalInfo": None,
        },
        "correlation": None,
        "environment": None,
        "location": None,
        "time": "0001-01-01T00:00:00+00:00",
        "componentName": "CommonRuntime",
    }


def duration(seconds: float) -> str:
    """``hh:mm:ss.fffffff`` (recording 02)."""
    whole = int(seconds)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}.{int((seconds - whole) * 1e7):07d}"


def record(run: Run) -> dict[str, Any]:
    """A run as run history keeps it (recording 02)."""
    properties = run.resource["properties"]
    unsaid = ("userPuId", "userIdp", "userAltSecId", "userIss", "clientApplicationId", "applicationACR", "upn")
    who = {"userObjectId": "0", "userTenantId": run.world.tenant, "userName": run.world.user, **dict.fromkeys(unsaid)}
    spent = duration(run.seconds()) if run.started_at else None
    cluster = run.cluster or "serverless"
    guid = str(uuid.uuid5(uuid.NAMESPACE_URL, run.resource["id"]))
    resources = properties.get("resources") or {}
    return {
        "runNumber": run.number,
        "rootRunId": run.root or run.name,
        "createdUtc": run.resource["systemData"]["createdAt"],
        "createdBy": who,
        "userId": "0",
        "token": None,
        "tokenExpiryTimeUtc": None,
        "error": run.error,
        "warnings": [{"source": None, "message": text} for text in run.warnings] or None,
        "revision": run.revision,
        "statusRevision": run.status_revision,
        "runUuid": guid,
        "parentRunUuid": None,
        "rootRunUuid": guid,
        "lastStartTimeUtc": None,
        "currentComputeTime": "00:00:00" if run.started_at and not run.ended_at else None,
        "computeDuration": spent,
        "effectiveStartTimeUtc": None,
        "lastModifiedBy": who,
        "lastModifiedUtc": run.modified_at,
        "duration": spent,
        "cancelationReason": run.cancelation_reason if run.world.switches["timeout_reason"] else None,
        "currentAttemptId": run.attempt if run.world.switches["attempts_counted"] else 1,
        "runId": run.name,
        "parentRunId": run.parent or None,
        "experimentId": str(uuid.uuid5(uuid.NAMESPACE_URL, properties["experimentName"])),
        "status": properties["status"],
        "startTimeUtc": run.started_at,
        "endTimeUtc": run.ended_at,
        "scheduleId": None,
        "displayName": properties["displayName"],
        "name": None,
        "dataContainerId": f"dcid.{run.name}",
        "description": properties["description"],
        "hidden": properties["isArchived"],
        "runType": "azureml.scriptrun",
        "runTypeV2": {
            "orchestrator": "Execution",
            "traits": ["scriptRun", "remote", "AlmostCommonRuntime", "OsType:Linux", "CommonRuntime"],
            "attribution": None,
            "computeType": "AmlcTrain",
        },
        "properties": dict(properties["properties"]),
        "parameters": {},
        "actionUris": {},
        "scriptName": None,
        "target": cluster,
        "uniqueChildRunComputeTargets": [],
        "tags": dict(properties["tags"]),
        "settings": {},
        "services": {},
        "inputDatasets": [],
        "outputDatasets": [],
        "runDefinition": None,
        "jobSpecification": None,
        "primaryMetricName": None,
        "createdFrom": None,
        "cancelUri": "",
        "completeUri": None,
        "diagnosticsUri": "",
        "computeRequest": {"nodeCount": resources.get("instanceCount", 1), "gpuCount": 0},
        "compute": {
            "target": cluster,
            "targetType": "amlcompute",
            "vmSize": run.size or None,
            "instanceType": run.size or None,
            "instanceCount": resources.get("instanceCount", 1),
            "gpuCount": None,
            "priority": "LowPriority" if run.low_priority else "Dedicated",
            "region": None,
            "armId": None,
            "properties": None,
        },
        "retainForLifetimeOfWorkspace": None,
        # Assumed: no recording shows a queued run. The studio shows such a sentence while a job waits.
        "queueingInfo": {"code": "Queued", "message": run.reason, "lastRefreshTimestamp": run.modified_at}
        if run.reason and run.world.switches["queue_reason"]
        else None,
        "inputs": None,
        "outputs": run.output_assets or None,
    }
