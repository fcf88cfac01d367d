"""What the caller may do on a workspace, as ``Microsoft.Authorization`` tells (Permissions - List For Resource)."""

from __future__ import annotations

from typing import Any

from tests.azure.emulator.routing import Call, Routes

routes = Routes()


@routes.arm("GET", "{ws}/providers/Microsoft.Authorization/permissions")
async def permissions(call: Call) -> Any:
    actions = ["*/read"] if call.world.switches["authorization"] == "reader" else ["*"]
    return {"value": [{"actions": actions, "notActions": [], "dataActions": [], "notDataActions": []}]}
