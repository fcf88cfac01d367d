"""Permissions of the caller on a workspace, from ``Microsoft.Authorization`` (Permissions - List For Resource)."""

from __future__ import annotations

from typing import Any

from azureml_emulator import arm
from azureml_emulator.routing import Call, Refused, Routes

routes = Routes()


@routes.arm("GET", "{ws}/providers/Microsoft.Authorization/permissions")
async def permissions(call: Call) -> Any:
    if not call.world.switches["permissions_readable"]:
        raise Refused(arm.gateway_error(403, "AuthorizationFailed", "Permissions cannot be read by this client."))
    actions = ["*/read"] if call.world.switches["authorization"] == "reader" else ["*"]
    return {"value": [{"actions": actions, "notActions": [], "dataActions": [], "notDataActions": []}]}
