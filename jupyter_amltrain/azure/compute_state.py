"""Parser of a compute's JSON from the service. No I/O.

Shapes: recorded answers of ``.../computes`` (2023-10 to 2024-12) and the ARM schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jupyter_amltrain.azure.catalog import key
from jupyter_amltrain.azure.targets import AzureTarget, kind_of_type
from jupyter_amltrain.azure.terms import iso_seconds
from jupyter_amltrain.text import counted

_SUBNET = re.compile(r"(.*)/providers/Microsoft\.Network/virtualNetworks/([^/]+)/subnets/([^/]+)", re.IGNORECASE)
#: State by the service's `provisioningState`.
_PROVISIONING = {
    "creating": "creating",
    "deleting": "deleting",
    "failed": "failed",
    "canceled": "failed",
    "updating": "ready",
    "succeeded": "ready",
}
#: State by the service's `state` of a compute instance.
_INSTANCE = {
    "running": "ready",
    "jobrunning": "ready",
    "resizing": "ready",
    "creating": "creating",
    "settingup": "creating",
    "usersettingup": "creating",
    "starting": "starting",
    "restarting": "starting",
    "stopping": "stopping",
    "stopped": "stopped",
    "deleting": "deleting",
    "createfailed": "failed",
    "setupfailed": "failed",
    "usersetupfailed": "failed",
    "unusable": "failed",
    "unknown": "unknown",
}


def duration(seconds: float) -> str:
    """100 -> ``PT1M40S``, in the service's format."""
    minutes, rest = divmod(round(seconds), 60)
    return f"PT{minutes}M{f'{rest}S' if rest else ''}" if minutes else f"PT{rest}S"


def row(arm: Mapping[str, Any]) -> dict[str, Any]:
    """Return a compute as a row for the other operations and the kernel, with states of ``ProvisionState``.

    ``settings`` are fields of the target's Struct, as far as the service reports them.
    """
    outer = arm.get("properties") or {}
    inner = outer.get("properties") or {}
    compute_type = str(outer.get("computeType") or "")
    target_type = kind_of_type(compute_type)
    scale = inner.get("scaleSettings") or {}
    idle = iso_seconds(scale.get("nodeIdleTimeBeforeScaleDown"))
    instance = compute_type.lower() == "computeinstance"
    cluster = compute_type.lower() == "amlcompute"
    state, detail = _state(outer, inner, instance=instance, cluster=cluster)
    reported = [*_many(outer.get("provisioningErrors")), *_many(inner.get("errors"))]
    errors = list(reasons(error for error in reported if not is_warning(error)))
    warnings = list(reasons(error for error in reported if is_warning(error)))
    operation = _last_operation(inner) if instance else {}
    if not detail and operation_failed(operation) and state in ("ready", "stopped"):
        detail = f"{operation['name'] or 'The last operation'} failed" + (f": {errors[0]}" if errors else ".")
    if errors and (not detail or state == "failed"):
        detail = errors[0]
    if not detail and warnings:
        detail = f"Warning: {warnings[0]}"
    return {
        "name": str(arm.get("name") or ""),
        "kind": str(target_type.__struct_config__.tag) if target_type else "",
        "type": compute_type,
        "state": state,
        "detail": detail,
        "provisioning": str(outer.get("provisioningState") or ""),
        "steady": str(inner.get("allocationState") or "Steady") == "Steady",
        "errors": errors,
        "warnings": warnings,
        "operation": operation,
        "size": str(inner.get("vmSize") or inner.get("virtualMachineSize") or ""),
        "location": str(outer.get("computeLocation") or arm.get("location") or ""),
        "nodes": _whole(inner.get("currentNodeCount")) if cluster else None,
        "wanted": _whole(inner.get("targetNodeCount")) if cluster else None,
        "max_nodes": _whole(scale.get("maxNodeCount")) if cluster else None,
        "min_nodes": _whole(scale.get("minNodeCount")) if cluster else None,
        "idle_seconds": idle if cluster else iso_seconds(inner.get("idleTimeBeforeShutdown")),
        "low_priority": str(inner.get("vmPriority") or "").lower() == "lowpriority",
        "resource_id": str(outer.get("resourceId") or ""),
        "schedules": inner.get("schedules") or {},
        "settings": _settings(target_type, arm, outer, inner, idle) if target_type else {},
    }


def _whole(value: Any) -> int:
    return int(value or 0)


def _last_operation(inner: Mapping[str, Any]) -> dict[str, str]:
    """Return name, time and status of an instance's last operation; empty if the service reports none."""
    operation = inner.get("lastOperation") or {}
    fields = {key: str(operation.get(f"operation{key.capitalize()}") or "") for key in ("name", "time", "status")}
    return fields if any(fields.values()) else {}


def operation_failed(operation: Mapping[str, str]) -> bool:
    """Return whether the last operation of an instance failed.

    The service writes ``StartFailed``, ``StopFailed``, ``RestartFailed``, ... (``OperationStatus`` of its API).
    """
    return operation.get("status", "").lower().endswith("failed")


def _state(outer: Mapping[str, Any], inner: Mapping[str, Any], *, instance: bool, cluster: bool) -> tuple[str, str]:
    provisioning = str(outer.get("provisioningState") or "").lower()
    state = _PROVISIONING.get(provisioning, "unknown")
    status = _last_operation(inner).get("status", "").lower() if instance else ""
    if status in ("createfailed", "deletefailed"):
        return "failed", ""
    # An instance's provisioning stays Succeeded while it is stopped and started.
    if instance and state == "ready" and inner.get("state"):
        instance_state = str(inner["state"])
        state = _INSTANCE.get(instance_state.lower(), "unknown")
        return state, "" if instance_state in ("Running", "Stopped") else _words(instance_state)
    if state == "failed" and provisioning == "canceled":
        return state, "The creation was canceled."
    if cluster and state == "ready" and str(inner.get("allocationState") or "Steady") != "Steady":
        nodes, target_nodes = _whole(inner.get("currentNodeCount")), inner.get("targetNodeCount")
        to = "" if target_nodes is None else f" to {target_nodes}"
        return (
            state,
            f"{_words(str(inner['allocationState']))}: from {nodes}{to} machine{'' if target_nodes == 1 else 's'}.",
        )
    if provisioning == "updating":
        return state, "Azure is changing its settings."
    return state, ""


def _words(state: str) -> str:
    """``JobRunning`` -> ``Job running``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", state).capitalize()


def _settings(
    target_type: type[AzureTarget],
    arm: Mapping[str, Any],
    outer: Mapping[str, Any],
    inner: Mapping[str, Any],
    idle: float | None,
) -> dict[str, Any]:
    ssh = inner.get("sshSettings") or {}
    account = inner.get("userAccountCredentials") or inner.get("administratorAccount") or {}
    scale = inner.get("scaleSettings") or {}
    idle_shutdown = iso_seconds(inner.get("idleTimeBeforeShutdown"))
    settings: dict[str, Any] = {
        "size": inner.get("vmSize"),
        "min_nodes": scale.get("minNodeCount"),
        "max_nodes": scale.get("maxNodeCount"),
        "idle_minutes": None if idle is None else idle / 60,
        "low_priority": str(inner.get("vmPriority") or "").lower() == "lowpriority",
        "subnet": (inner.get("subnet") or {}).get("id"),
        "public_ip": inner.get("enableNodePublicIp"),
        "identity": _identity(arm.get("identity")),
        "ssh_user": account.get("adminUserName") or account.get("username"),
        "idle_shutdown": None if idle_shutdown is None else round(idle_shutdown / 60),
        "resource_id": outer.get("resourceId"),
        "namespace": inner.get("namespace"),
        "ssh_port": inner.get("sshPort") or ssh.get("sshPort"),
        "address": inner.get("address"),
        "workspace_url": inner.get("workspaceUrl"),
        "store": inner.get("dataLakeStoreAccountName"),
        **_schedules(inner.get("schedules") or {}),
    }
    return {k: v for k, v in settings.items() if k in target_type.__struct_fields__ and v not in (None, "")}


def changed_schedules(schedules: Mapping[str, Any], changes: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return an instance's schedules after a change, in the service's form; those of the studio are kept.

    Parameters
    ----------
    schedules
        The service's description of the present ones.
    changes
        ``schedule_start`` or ``schedule_stop``, each a time or a cron expression; empty for none.
    """
    actions = {name.rpartition("_")[2]: text for name, text in changes.items()}
    kept = [
        schedule
        for schedule in schedules.get("computeStartStop") or ()
        if not (_is_ours(schedule) and str(schedule.get("action")).lower() in actions)
    ]
    return kept + [
        {
            "action": action.capitalize(),
            "triggerType": "Cron",
            "cron": {"timeZone": "UTC", "expression": cron(text)},
            "status": "Enabled",
        }
        for action, text in actions.items()
        if text
    ]


def _is_ours(schedule: Mapping[str, Any]) -> bool:
    """Return whether a schedule is one that a target describes: an enabled one with a cron expression."""
    return (
        bool((schedule.get("cron") or {}).get("expression")) and str(schedule.get("status") or "Enabled") == "Enabled"
    )


def power_text(settings: Mapping[str, Any], others: int = 0) -> str:
    """Return when an instance starts and stops automatically: ``stops after 60 min idle, and at 18:30 UTC``.

    Parameters
    ----------
    settings
        Fields of its target.
    others
        Number of schedules that no field describes.
    """
    idle = settings.get("idle_shutdown")
    stops = [f"after {idle} min idle"] if idle else []
    stops += [f"at {_clock(settings['schedule_stop'])}"] if settings.get("schedule_stop") else []
    parts = [f"stops {', and '.join(stops)}" if stops else "does not stop automatically"]
    parts += [f"starts at {_clock(settings['schedule_start'])}"] if settings.get("schedule_start") else []
    parts += [f"{counted(others, 'more schedule')} in the studio"] if others else []
    return "; ".join(parts)


def _clock(expression: str) -> str:
    """``30 18 * * *`` -> ``18:30 UTC``; another cron expression stays."""
    match = re.fullmatch(r"(\d+) (\d+) \* \* \*", cron(expression))
    return f"{int(match[2]):02}:{int(match[1]):02} UTC" if match else f"'{expression}' UTC"


def _schedules(schedules: Mapping[str, Any]) -> dict[str, str]:
    schedule_fields = {}
    for schedule in schedules.get("computeStartStop") or ():
        if _is_ours(schedule):
            schedule_fields[f"schedule_{str(schedule.get('action')).lower()}"] = str(schedule["cron"]["expression"])
    return schedule_fields


def _identity(identity: Any) -> str:
    if not identity:
        return ""
    users = list(identity.get("userAssignedIdentities") or ())
    return str(users[0]) if users else "system" if "system" in str(identity.get("type")).lower() else ""


def cron(text: str) -> str:
    """``18:30`` -> ``30 18 * * *``; a cron expression is unchanged."""
    hours, colon, minutes = text.partition(":")
    return f"{int(minutes)} {int(hours)} * * *" if colon else text


def subnet_id(vnet: str, subnet: str, group: str) -> str:
    """Return the resource id of a subnet; a name refers to the resource group whose id is `group`."""
    if not subnet or subnet.startswith("/"):
        return subnet
    if vnet.startswith("/"):
        return f"{vnet.rstrip('/')}/subnets/{subnet}"
    return f"{group}/providers/Microsoft.Network/virtualNetworks/{vnet}/subnets/{subnet}"


def _many(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value] if value else []


def is_warning(error: Any) -> bool:
    """Return whether an entry of a compute's ``errors`` is only a warning.

    The service lists both there; recorded: ``ClusterHasWarnings`` of a healthy cluster with a deprecated size.
    """
    if isinstance(error, str):
        return re.match(r"\s*\w*Warnings?\b", error, re.IGNORECASE) is not None
    code = str((error.get("error") or error).get("code") or "")
    return re.search(r"Warnings?$", code, re.IGNORECASE) is not None


def reasons(errors: Iterable[Any]) -> Iterable[str]:
    """Yield the errors of a compute, one line each: ``code: message``."""
    for error in errors:
        if isinstance(error, str):
            yield " ".join(error.split())
            continue
        inner = error.get("error") or error
        code, message = str(inner.get("code") or ""), " ".join(str(inner.get("message") or "").split())
        for part in _many(inner.get("details")):
            if isinstance(part, Mapping) and part.get("message"):
                code, message = str(part.get("code") or code), " ".join(str(part["message"]).split())
        if code or message:
            yield f"{code}: {message}" if code and message else code or message


def differences(wanted: Mapping[str, Any], there: Mapping[str, Any], *, kind: str, group: str) -> list[str]:
    """Return the differences of an existing compute from the requested one, a phrase each.

    Fields that the service does not report (keys, passwords) are not compared.

    Parameters
    ----------
    wanted
        Fields of the requested target.
    there
        :func:`row` of the existing compute.
    group
        Id of the workspace's resource group, which names of networks refer to.
    """
    if there["kind"] != kind:
        return [f"it is of type {there['type'] or 'unknown'}"]
    settings = there["settings"]
    phrases = []
    for name in ("size", "max_nodes", "min_nodes", "idle_minutes", "low_priority", "public_ip", "namespace"):
        if name in wanted and name in settings and not _same(wanted[name], settings[name]):
            phrases.append(f"{name} is {_shown(settings[name])}, not {_shown(wanted[name])}")
    if (
        "idle_shutdown" in wanted
        and "idle_shutdown" in settings
        and wanted["idle_shutdown"] != settings["idle_shutdown"]
    ):
        phrases.append(f"idle_shutdown is {settings['idle_shutdown']}, not {wanted['idle_shutdown']}")
    if "subnet" in wanted:
        requested_subnet = subnet_id(str(wanted.get("vnet") or ""), str(wanted.get("subnet") or ""), group)
        if requested_subnet.lower() != str(settings.get("subnet") or "").lower():
            phrases.append(
                f"subnet is {_shown(settings.get('subnet') or 'none')}, not {_shown(requested_subnet or 'none')}"
            )
    if wanted.get("region") and key(str(wanted["region"])) != key(str(there["location"])):
        phrases.append(f"region is {there['location']}, not {wanted['region']}")
    if (
        wanted.get("resource_id")
        and str(wanted["resource_id"]).lower() != str(settings.get("resource_id") or "").lower()
    ):
        phrases.append(f"resource_id is {_shown(settings.get('resource_id') or 'unknown')}")
    return phrases


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return key(str(one)) == key(str(other))
    return bool(one == other)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def network(subnet: str) -> tuple[str, str]:
    """Return the names of the virtual network and the subnet in a subnet's id."""
    match = _SUBNET.fullmatch(subnet)
    return (match[2], match[3]) if match else ("", subnet)
