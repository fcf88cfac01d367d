"""Control API for tests: plain HTTP on loopback, separate from Azure's host names.

GET and POST are equivalent, and bodies are JSON.

Other modules add calls with ``routes.on("control", "*", "/name", anonymous=True)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from azureml_emulator import virtual_machines, workspaces
from azureml_emulator.entra import SignIns
from azureml_emulator.images import Programs
from azureml_emulator.routing import Call, Handler, Routes
from azureml_emulator.switches import TABLE

routes = Routes()


def _body(call: Call) -> dict[str, Any]:
    found = call.json()
    return found if isinstance(found, dict) else dict(call.query)


def _on(path: str) -> Callable[[Handler], Handler]:
    return routes.on("control", "*", path, anonymous=True)


@_on("/reset")
async def reset(call: Call) -> Any:
    """Back to the first moment."""
    await call.world.reset()
    return {"ok": True}


@_on("/switch")
async def switch(call: Call) -> Any:
    """Set switches; answers all of them with their present values."""
    call.world.switches.set(_body(call))
    call.world.nodes.replan()
    return call.world.switches.all()


@_on("/switches")
async def switches(call: Call) -> Any:
    """name -> {default, now, what}."""
    return {
        name: {"default": default, "now": call.world.switches[name], "what": what}
        for name, (default, what) in TABLE.items()
    }


@_on("/fault")
async def fault(call: Call) -> Any:
    """Arm a fault: match, times, status, body, headers, cut, delay, rate, after (see faults.Fault)."""
    call.world.faults.add(**_body(call))
    return {"waiting": call.world.faults.waiting()}


@_on("/faults")
async def faults(call: Call) -> Any:
    """Hits still to come; ``clear`` disarms all."""
    if _body(call).get("clear"):
        call.world.faults.clear()
    return {"waiting": call.world.faults.waiting()}


@_on("/wire")
async def wire(call: Call) -> Any:
    """Requests with a number above ``since``."""
    return call.world.wire.entries(int(_body(call).get("since") or 0))


@_on("/problems")
async def problems(call: Call) -> Any:
    """What the emulator itself could not do: paths without a route, broken handlers; and hosts that were refused."""
    return {"problems": call.world.problems, "refused_hosts": call.world.refused_hosts()}


@_on("/expire-tokens")
async def expire_tokens(call: Call) -> Any:
    """All tokens made so far are refused; ``revoked``: with a claims challenge."""
    call.world.tokens.expire(revoked=bool(_body(call).get("revoked")))
    return {"ok": True}


@_on("/expire-signatures")
async def expire_signatures(call: Call) -> Any:
    """All signatures of addresses made so far are refused; answers how many there are."""
    assert call.world.blob is not None
    return {"over": call.world.blob.expire()}


@_on("/secrets")
async def secrets(call: Call) -> Any:
    """Everything that opens something and was handed out or taken since the start: tokens, codes, signatures, keys."""
    world, signins = call.world, call.world.part(SignIns)
    assert world.blob is not None
    tokens = [*world.tokens.made, *signins.given, *signins.refresh]
    signed = [one.rpartition(".")[2] for one in tokens if one.count(".") == 2]  # a token without its claims is one, too
    return [*tokens, *signed, *world.blob.given(), world.proxy_secret, world.blob.key, world.client_secret]


@_on("/approve")
async def approve(call: Call) -> Any:
    """A person approves (or with ``deny`` declines) device codes that wait: one ``user_code``, or all."""
    body = _body(call)
    return {"settled": call.world.part(SignIns).approve(body.get("user_code"), deny=bool(body.get("deny")))}


@_on("/device-codes")
async def device_codes(call: Call) -> Any:
    """User codes that wait for a person."""
    waiting = call.world.part(SignIns).waiting.values()
    return [one["user_code"] for one in waiting if not one["state"]]


@_on("/preempt")
async def preempt(call: Call) -> Any:
    """Take the low-priority nodes of a ``job`` away."""
    return {"preempted": call.world.nodes.preempt(str(_body(call)["job"]))}


@_on("/lease")
async def lease(call: Call) -> Any:
    """Hold ``count`` nodes of a ``compute`` for a ``job`` that is none, for ``seconds``: to see a cluster scale."""
    body = _body(call)
    world = call.world

    async def hold() -> None:
        arm_id = f"{world.workspace_id}/computes/{body['compute']}"
        held = await world.nodes.acquire(arm_id, int(body.get("count") or 1), job=str(body.get("job") or "held"))
        try:
            await world.clock.sleep(float(body.get("seconds") or 1))
        finally:
            world.nodes.release(held)

    world.spawn(hold(), f"lease of {body['compute']}")
    return {"ok": True}


@_on("/billing")
async def billing(call: Call) -> Any:
    """What costs money now: nodes of clusters and serverless jobs, instances that are not stopped."""
    world = call.world
    found = world.nodes.billing()
    for resource in world.resources.below(f"{world.workspace_id}/computes"):
        properties = resource["properties"]
        if properties["computeType"] == "ComputeInstance" and properties["properties"].get("state") not in (
            None,
            "Stopped",
        ):
            size = properties["properties"]["vmSize"]
            found.append(
                {"kind": "instance", "name": resource["name"], "size": size, "nodes": 1, "low_priority": False}
            )
    return found


@_on("/speed")
async def speed(call: Call) -> Any:
    """Seconds of the service in a second of the wall."""
    call.world.clock.set_speed(float(_body(call)["factor"]))
    return {"speed": call.world.clock.speed}


@_on("/quota")
async def quota(call: Call) -> Any:
    """New limits by family, ``TotalDedicatedCores``, ``TotalLowPriorityCores``, ``TotalClusters``."""
    call.world.quota.set(_body(call))
    return call.world.quota.limits


@_on("/workspace")
async def workspace(call: Call) -> Any:
    """One more workspace called ``name`` in the same group."""
    return {"id": workspaces.add(call.world, str(_body(call)["name"]))["id"]}


@_on("/virtual-machine")
async def virtual_machine(call: Call) -> Any:
    """A virtual machine ``name`` of a ``size`` with ``addresses``; ``gone`` deletes it. Returns its resource id."""
    body, machines = _body(call), call.world.part(virtual_machines.VirtualMachines)
    name = str(body["name"])
    if body.get("gone"):
        machines.remove(name)
        return {}
    options = {key: body[key] for key in ("power", "private") if key in body}
    found = machines.get(name)
    if found is not None:
        found.update(options)
        return {"id": found["id"], "power": found["power"]}
    return {"id": machines.add(name, str(body["size"]), list(body["addresses"]), **options)["id"]}


@_on("/break-connections")
async def break_connections(call: Call) -> Any:
    """Cut every connection that goes through the proxy now."""
    return {"broken": call.world.break_connections()}


@_on("/gone")
async def gone(call: Call) -> Any:
    """Take away what lies at a path ``below`` the workspace, or (empty) the workspace, as somebody else would."""
    found = call.world.workspace_id + str(_body(call).get("below") or "")
    call.world.resources.drop(found)
    return {"gone": found}


@_on("/network")
async def network(call: Call) -> Any:
    """Cut the network whole (``up`` false): open connections break, the proxy refuses new ones; or mend it."""
    up = bool(_body(call).get("up", True))
    if call.world.proxy is not None:
        call.world.proxy.down = not up
    return {"up": up, "broken": 0 if up else call.world.break_connections()}


@_on("/sas")
async def sas(call: Call) -> Any:
    """A SAS query for a ``container`` (and one ``name`` in it)."""
    body, blob = _body(call), call.world.blob
    assert blob is not None
    made = blob.sas(str(body["container"]), body.get("name"), permission=str(body.get("permission") or "r"))
    return {"sas": made, "url": blob.base}


@_on("/programs")
async def programs(call: Call) -> Any:
    """Put a ``folder`` of programs before those of every image: what a job calls and cannot have here."""
    call.world.part(Programs).folder = str(_body(call)["folder"])
    return {"folder": call.world.part(Programs).folder}
