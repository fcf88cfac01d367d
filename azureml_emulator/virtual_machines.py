"""Virtual machines of Microsoft.Compute with their network interfaces: read, start, deallocate, restart.

Assumed: none of these calls was recorded; shapes are those of Azure's REST reference (instance view, power states,
``$expand=ipConfigurations/publicIPAddress``). A machine is made by the control call ``/virtual-machine``.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from azureml_emulator import arm
from azureml_emulator.routing import Call, Routes
from azureml_emulator.world import World

routes = Routes()
_GROUP = "/subscriptions/{subscription}/resourceGroups/{group}/providers"
_MACHINE = _GROUP + "/Microsoft.Compute/virtualMachines/{name}"


class VirtualMachines:
    """The machines of a world, by name in lower case."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._all: dict[str, dict[str, Any]] = {}

    def add(
        self, name: str, size: str, addresses: list[str], power: str = "running", private: bool = False
    ) -> dict[str, Any]:
        """Make a machine; each start takes the next of its `addresses`, the last one again and again."""
        prefix = f"/subscriptions/{self._world.subscription}/resourceGroups/vms/providers"
        machine = {
            "id": f"{prefix}/Microsoft.Compute/virtualMachines/{name}",
            "nic": f"{prefix}/Microsoft.Network/networkInterfaces/{name}-nic",
            "name": name,
            "size": size,
            "power": power,
            "addresses": addresses,
            "private": private,
        }
        self._all[name.lower()] = machine
        return machine

    def get(self, name: str) -> dict[str, Any] | None:
        """Return a machine; ``None`` if there is none."""
        return self._all.get(name.lower())

    def remove(self, name: str) -> None:
        """Delete a machine."""
        self._all.pop(name.lower(), None)

    async def act(self, machine: dict[str, Any], verb: str) -> None:
        """Start, deallocate or restart a machine; a failed start leaves it deallocated."""
        passing, end = {
            "start": ("starting", "running"),
            "deallocate": ("deallocating", "deallocated"),
            "restart": ("running", "running"),
        }[verb]
        before, machine["power"] = machine["power"], passing
        await self._world.clock.sleep(float(self._world.switches["instance_seconds"]))
        failing = self._world.switches["fail_power"]
        if failing and failing in machine["name"]:
            machine["power"] = before
            raise arm.OperationFailed("AllocationFailed", "Allocation failed. There is not sufficient capacity.")
        if verb == "start" and before == "deallocated" and len(machine["addresses"]) > 1:
            machine["addresses"].pop(0)
        machine["power"] = end

    async def close(self) -> None:
        """Delete all machines."""
        self._all.clear()


def _missing(call: Call) -> web.Response:
    message = f"The Resource 'Microsoft.Compute/virtualMachines/{call.params['name']}' under resource group"
    return arm.gateway_error(404, "ResourceNotFound", f"{message} '{call.params['group']}' was not found.")


@routes.arm("GET", _MACHINE)
async def get(call: Call) -> Any:
    """A machine; its power state with ``$expand=instanceView`` only."""
    machine = call.world.part(VirtualMachines).get(call.params["name"])
    if machine is None:
        return _missing(call)
    properties: dict[str, Any] = {
        "vmId": "5c2d1f0e-0000-4000-8000-000000000001",
        "hardwareProfile": {"vmSize": machine["size"]},
        "networkProfile": {"networkInterfaces": [{"id": machine["nic"], "properties": {"primary": True}}]},
        "provisioningState": "Succeeded",
    }
    if call.query.get("$expand") == "instanceView":
        statuses = [
            {"code": "ProvisioningState/succeeded", "level": "Info", "displayStatus": "Provisioning succeeded"},
            {"code": f"PowerState/{machine['power']}", "level": "Info", "displayStatus": f"VM {machine['power']}"},
        ]
        properties["instanceView"] = {"statuses": statuses}
    return {
        "name": machine["name"],
        "id": machine["id"],
        "type": "Microsoft.Compute/virtualMachines",
        "location": call.world.location,
        "properties": properties,
    }


@routes.arm("GET", _GROUP + "/Microsoft.Network/networkInterfaces/{nic}")
async def interface(call: Call) -> Any:
    """The network interface of a machine; a deallocated one with a dynamic address has none."""
    machine = call.world.part(VirtualMachines).get(call.params["nic"].removesuffix("-nic"))
    if machine is None:
        return arm.gateway_error(404, "ResourceNotFound", "The network interface was not found.")
    address = machine["addresses"][0]
    configuration: dict[str, Any] = {"privateIPAddress": address if machine["private"] else "10.0.0.4", "primary": True}
    if not machine["private"]:
        public: dict[str, Any] = {"id": machine["nic"].replace("networkInterfaces", "publicIPAddresses") + "-ip"}
        if call.query.get("$expand") == "ipConfigurations/publicIPAddress":
            public["properties"] = {"publicIPAllocationMethod": "Dynamic"}
            if machine["power"] == "running":
                public["properties"]["ipAddress"] = address
        configuration["publicIPAddress"] = public
    return {
        "name": call.params["nic"],
        "id": machine["nic"],
        "type": "Microsoft.Network/networkInterfaces",
        "location": call.world.location,
        "properties": {"ipConfigurations": [{"name": "ipconfig1", "properties": configuration}]},
    }


@routes.arm("POST", _MACHINE + "/{verb}")
async def act(call: Call) -> web.Response:
    """start, deallocate, restart: 202, empty, with the operation to poll."""
    machines, verb = call.world.part(VirtualMachines), call.params["verb"].lower()
    machine = machines.get(call.params["name"])
    if machine is None:
        return _missing(call)
    if verb not in ("start", "deallocate", "restart"):
        return arm.gateway_error(404, "InvalidResourceType", f"There is no action '{verb}' of virtual machines.")
    return arm.empty(202, call.world.operations.begin(call, lambda: machines.act(machine, verb)))
