"""Azure virtual machines by resource id: power state, address, start and deallocate.

By Azure's REST reference (Microsoft.Compute ``virtualMachines``, Microsoft.Network ``networkInterfaces``); no
recording shows these calls, see ``docs/azure-assumptions.md``. They are plain ARM requests through our own client,
with its retries, sign-in and cancellation: the addresses are not in ``azure-mgmt-compute``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.azure import provisioning_errors
from jupyter_amltrain.azure.service import computes
from jupyter_amltrain.azure.service.computes import Row
from jupyter_amltrain.errors import AmlTrainError, TargetError

if TYPE_CHECKING:
    from jupyter_amltrain.azure.service.cloud import Workspace
    from jupyter_amltrain.azure.service.operations import ServiceCall

#: Versions of the compute and of the network API.
API, NETWORK_API = "2024-07-01", "2024-05-01"

#: Power state -> state of a target's row.
_STATES = {
    "running": "ready",
    "starting": "starting",
    "stopping": "stopping",
    "deallocating": "stopping",
    "stopped": "stopped",
    "deallocated": "stopped",
}


def get(call: ServiceCall, *, workspace: str, machine: str) -> Row | None:
    """Return a virtual machine; ``None`` if Azure has no machine of this resource id.

    Keys of the row: ``name, state, power, size, location, low_priority, address, errors, nodes``.

    Parameters
    ----------
    workspace
        Connected workspace whose sign-in is used.
    machine
        Resource id.
    """
    return find(call.cloud.workspace(workspace), machine)


def start(call: ServiceCall, *, workspace: str, machine: str) -> Row:
    """Start a virtual machine; no effect if it is running."""
    return _power(call, workspace, machine, "start", "Starting", "running")


def stop(call: ServiceCall, *, workspace: str, machine: str) -> Row:
    """Deallocate a virtual machine, which ends the charges for it; no effect if it is deallocated."""
    return _power(call, workspace, machine, "deallocate", "Stopping", "deallocated")


def restart(call: ServiceCall, *, workspace: str, machine: str) -> Row:
    """Restart a running virtual machine."""
    return _power(call, workspace, machine, "restart", "Restarting", "running")


def find(ws: Workspace, machine: str) -> Row | None:
    """Return a virtual machine, with its address while it runs."""
    name = machine.rpartition("/")[2]
    answer = ws.arm.get(machine, api=API, params={"$expand": "instanceView"}, ok=(200, 404), act=f"read {name}")
    if answer.status != 200 or not answer.json:
        return None
    resource = answer.json
    properties = resource.get("properties") or {}
    statuses = (properties.get("instanceView") or {}).get("statuses") or []
    codes = dict(str(status.get("code") or "").lower().split("/", 1) for status in statuses if "/" in status["code"])
    power = codes.get("powerstate", "")
    return {
        "name": str(resource.get("name") or name),
        "state": _STATES.get(power, "unknown"),
        "power": power,
        "size": str((properties.get("hardwareProfile") or {}).get("vmSize") or ""),
        "location": str(resource.get("location") or ""),
        "low_priority": properties.get("priority") in ("Spot", "Low"),
        "address": _address(ws, properties) if power == "running" else "",
        "errors": [],
        "nodes": None,
    }


def _address(ws: Workspace, properties: Mapping[str, Any]) -> str:
    """Return the public address of a machine's primary network interface; the private one if it has no public one."""
    interfaces = (properties.get("networkProfile") or {}).get("networkInterfaces") or []
    interface = _primary(interfaces)
    if interface is None:
        return ""
    answer = ws.arm.get(
        str(interface["id"]),
        api=NETWORK_API,
        params={"$expand": "ipConfigurations/publicIPAddress"},
        act="read the address of the machine",
    )
    configuration = _primary(((answer.json or {}).get("properties") or {}).get("ipConfigurations") or [])
    if configuration is None:
        return ""
    facts = configuration.get("properties") or {}
    public = (facts.get("publicIPAddress") or {}).get("properties") or {}
    return str(public.get("ipAddress") or facts.get("privateIPAddress") or "")


def _primary(items: list[Any]) -> Any:
    """Return the item that is marked as primary, else the first one; ``None`` without items."""
    return next((item for item in items if (item.get("properties") or {}).get("primary")), items[0] if items else None)


def _power(call: ServiceCall, workspace: str, machine: str, verb: str, doing: str, power: str) -> Row:
    ws = call.cloud.workspace(workspace)
    before = find(ws, machine)
    name = machine.rpartition("/")[2]
    if before is None:
        raise TargetError(f"Azure has no virtual machine {machine}.", hint="See yours: az vm list --output table")
    if before["power"] == power and verb != "restart":
        return before
    try:
        answer = ws.arm.post(f"{machine}/{verb}", api=API, act=f"{verb} {name}")
    except AmlTrainError as error:
        raise computes.translate_error(error, ws, name, before) from error
    operation = answer.headers.get("azure-asyncoperation", "")

    def is_settled(row: Row | None) -> bool:
        if row is None:
            return False
        status = (ws.arm.get(operation, act=f"{verb} {name}").json or {}) if operation else {}
        if status.get("status") in ("Failed", "Canceled"):
            error = status.get("error") or {}
            text = f"{error.get('code', '')}: {error.get('message', '')}".strip(": ")
            raise provisioning_errors.error_of([text], name, size=row["size"], region=row["location"])
        return row["power"] == power and status.get("status") in (None, "Succeeded")

    settled = computes.watch(call, ws, name, doing, is_settled, read=lambda: find(ws, machine))
    assert settled is not None
    return settled
