"""Schedules of a workspace at ARM: put, get, list, delete, and one run of its job at once.

The contract of ``Schedules`` (2023-06-01 and later) has ``CreateJob`` with a whole job, and cron or recurrence as
trigger. No time passes here that would run one: a test triggers it, as ``az ml schedule trigger`` does.
"""

from __future__ import annotations

import re
from typing import Any

from azureml_emulator import arm, jobs, schema
from azureml_emulator.routing import Call, Refused, Routes

routes = Routes()

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9\-_]{0,254}")


@routes.arm("PUT", "{ws}/schedules/{name}")
async def put(call: Call) -> Any:
    """A new one (201), or another definition of one that there is (200)."""
    name, body = call.params["name"], call.json()
    if not _NAME.fullmatch(name):
        raise _bad(call, f"The schedule name '{name}' is invalid: letters, digits, '-' and '_' are allowed.")
    if wrong := schema.problems(
        "workspaces_schedules", body, call.api_version, not call.world.switches["unknown_fields"]
    ):
        raise _bad(call, "; ".join(wrong))
    sent = body["properties"]
    if sent["action"]["actionType"] != "CreateJob":
        raise _bad(call, f"The emulator has no action {sent['action']['actionType']}.")
    expression = str(sent["trigger"].get("expression") or "")
    if sent["trigger"]["triggerType"] == "Cron" and len(expression.split()) != 5:
        raise _bad(call, f"The cron expression '{expression}' is invalid.")
    path = f"{call.workspace_id}/schedules/{name}"
    before = call.world.resources.get(path)
    stamp, user = call.world.clock.stamp(), call.world.user
    made = before["systemData"] if before else {"createdAt": stamp, "createdBy": user, "createdByType": "User"}
    resource = call.world.resources.put(
        {
            "id": path,
            "name": name,
            "type": "Microsoft.MachineLearningServices/workspaces/schedules",
            "properties": {"isEnabled": True, **sent, "provisioningState": "Succeeded"},
            "systemData": {**made, "lastModifiedAt": stamp, "lastModifiedBy": user, "lastModifiedByType": "User"},
        }
    )
    return arm.answer(resource, 200) if before else arm.created(call, resource)


@routes.arm("GET", "{ws}/schedules")
async def list_all(call: Call) -> Any:
    """Enabled ones, or by ``listViewType`` all or the disabled ones."""
    found = call.world.resources.below(f"{call.workspace_id}/schedules")
    view = call.query.get("listViewType") or "EnabledOnly"
    if view != "All":
        found = [one for one in found if one["properties"]["isEnabled"] is (view == "EnabledOnly")]
    return arm.page(call, found)


@routes.arm("GET", "{ws}/schedules/{name}")
async def get(call: Call) -> Any:
    """One."""
    return _found(call)


@routes.arm("DELETE", "{ws}/schedules/{name}")
async def delete(call: Call) -> Any:
    """It is gone; of one that does not exist 204."""
    path = f"{call.workspace_id}/schedules/{call.params['name']}"
    if call.world.resources.get(path) is None:
        return arm.empty(204)
    call.world.resources.drop(path)
    return arm.empty(200)


@routes.arm("POST", "{ws}/schedules/{name}/trigger")
async def trigger(call: Call) -> Any:
    """Submit its job now, under a name of its own."""
    found = _found(call)
    name = f"{found['name']}-{call.world.clock.stamp()[:19].translate({45: None, 58: None, 84: None})}"
    jobs.begin(call, name, dict(found["properties"]["action"]["jobDefinition"]))
    return {"scheduleActionType": "CreateJob", "submissionId": name}


def _found(call: Call) -> dict[str, Any]:
    name = call.params["name"]
    found = call.world.resources.get(f"{call.workspace_id}/schedules/{name}")
    if found is None:
        message = f"Schedule {name} was not found"
        raise Refused(arm.ml_error(call.world, 404, message, inner=("NotFound", "ScheduleNotFound")))
    return dict(found)


def _bad(call: Call, message: str) -> Refused:
    return Refused(arm.ml_error(call.world, 400, message, inner=("BadArgument", "ArgumentInvalid")))
