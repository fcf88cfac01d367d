"""Schedules of a workspace: jobs that the service submits itself at fixed times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jupyter_amltrain.azure import errors
from jupyter_amltrain.azure.service import http, jobs, sdk
from jupyter_amltrain.errors import AmlTrainError

if TYPE_CHECKING:
    from jupyter_amltrain.azure.service.operations import ServiceCall

#: Of the times; the service knows other zones by the names that Windows has.
TIME_ZONE = "UTC"


def create(call: ServiceCall, *, workspace: str, name: str, cron: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """Let the service submit a YAML job at these times from now on; one of this name is replaced. Returns its row.

    Parameters
    ----------
    job
        See :func:`..job_body.yaml_payload_of`; each job gets a name from the service.
    """
    ws = call.cloud.workspace(workspace)
    entity = jobs.load(job)
    entity.tags = {**(entity.tags or {}), **job["tags"]}
    entity.properties = {**(entity.properties or {}), **job["properties"]}
    call.check()
    call.progress("Creating the schedule.")
    try:
        with sdk.quiet():
            from azure.ai.ml.entities import CronTrigger, JobSchedule

            trigger = CronTrigger(expression=cron, time_zone=TIME_ZONE)
            schedule = JobSchedule(name=name, trigger=trigger, create_job=entity)
            sdk.client(call.cloud, ws).schedules.begin_create_or_update(schedule).result()
    except Exception as error:  # the SDK raises the errors of several libraries
        raise jobs.plain_error(error, job, ws.name) from error
    made = ws.arm.get(f"schedules/{quote(name, safe='')}", api=http.ARM, act=f"read schedule {name}")
    return _row(made.json)


def list_all(call: ServiceCall, *, workspace: str) -> list[dict[str, Any]]:
    """Return rows of the schedules of a workspace that submit jobs."""
    ws = call.cloud.workspace(workspace)
    pages = ws.arm.pages("schedules", api=http.ARM, params={"listViewType": "All"}, act="list the schedules")
    return [_row(one) for one in pages if one["properties"]["action"].get("actionType") == "CreateJob"]


def remove(call: ServiceCall, *, workspace: str, name: str) -> bool:
    """Remove a schedule; return whether there was one."""
    ws = call.cloud.workspace(workspace)
    path = f"schedules/{quote(name, safe='')}"
    if ws.arm.get(path, api=http.ARM, ok=(200, 404), act=f"read schedule {name}").status == 404:
        return False
    try:
        sdk.client(call.cloud, ws).schedules.begin_delete(name).result()
    except Exception as error:  # the SDK raises the errors of several libraries
        plain = errors.error_of_exception(error, ws.name)
        raise plain if isinstance(plain, AmlTrainError) else error from error
    return True


def _row(schedule: Mapping[str, Any]) -> dict[str, Any]:
    body = schedule["properties"]
    trigger = body.get("trigger") or {}
    job = (body.get("action") or {}).get("jobDefinition") or {}
    when = trigger.get("expression") or f"every {trigger.get('interval')} {trigger.get('frequency')}"
    return {
        "name": schedule["name"],
        "when": when,
        "time_zone": trigger.get("timeZone") or TIME_ZONE,
        "enabled": bool(body.get("isEnabled", True)),
        "job": job.get("displayName") or "",
        "type": job.get("jobType") or "",
    }
