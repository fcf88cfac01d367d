"""Computes of a workspace: read, created, attached, watched, changed and removed.

The SDK's poller waits 30 s between polls (recorded answers have no Retry-After), so it is dropped and
the compute itself is read, which also tells its progress.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.backends.azureml import catalog, compute_state, errors, provisioning_errors
from jupyter_amltrain.backends.azureml.compute_state import row
from jupyter_amltrain.backends.azureml.cost_prompts import ASKING
from jupyter_amltrain.backends.azureml.service import sdk
from jupyter_amltrain.backends.azureml.service.account import setting
from jupyter_amltrain.errors import AmlTrainError, CommandError, CreateUnsure, TargetError, TargetUnreachable

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.service.cloud import Workspace
    from jupyter_amltrain.backends.azureml.service.operations import ServiceCall

#: Of computes, sizes and quotas: the newest version that was recorded; it has idleTimeBeforeShutdown, which GA has not.
API = "2023-08-01-preview"

Row = dict[str, Any]


def list_all(call: ServiceCall, *, workspace: str) -> list[Row]:
    """Every compute of the workspace, also kinds that are no targets here (their kind is empty)."""
    return [row(item) for item in call.cloud.workspace(workspace).arm.pages("computes", api=API, act="list computes")]


def get(call: ServiceCall, *, workspace: str, name: str) -> Row | None:
    """One compute; ``None`` when there is none of that name."""
    return find(call.cloud.workspace(workspace), name)


def find(ws: Workspace, name: str) -> Row | None:
    """One compute; the service answers 404 with an empty body for one that is not there."""
    answer = ws.arm.get(f"computes/{name}", api=API, ok=(200, 404), act=f"look at {name}")
    return row(answer.json) if answer.status == 200 and answer.json else None


def plainly(error: BaseException, ws: Workspace, name: str, settings: Mapping[str, Any]) -> BaseException:
    """A refusal in plain words where there are some."""
    told = error if isinstance(error, AmlTrainError) else errors.of_exception(error, ws.name, f"make {name}")
    if told is None:
        return error
    said = errors.details_of(told)
    texts = [f"{code}: {said.message}" for code in reversed(said.codes)] or [said.message]
    if said.status in (401, 403, 404, 408, 429, 500, 502, 503, 504) or not any(
        map(provisioning_errors.understood, texts)
    ):
        return told
    return provisioning_errors.plain(texts, name, size=str(settings.get("size") or ""), region=region(ws, settings))


def region(ws: Workspace, settings: Mapping[str, Any]) -> str:
    """Where a compute of these settings is."""
    return str(settings.get("region") or ws.location)


def watch(
    call: ServiceCall,
    ws: Workspace,
    name: str,
    doing: str,
    settled: Callable[[Row | None], bool],
    *,
    patient: bool = False,
) -> Row | None:
    """Look at a compute until it is `settled`, telling how far it is.

    Parameters
    ----------
    patient
        It may take a moment until the service knows it.

    Raises
    ------
    TargetUnreachable
        There was no answer for a quarter of an hour (``AMLTRAIN_AZURE_UNREACHABLE``, seconds).
    TargetError
        It is gone, or nothing came of it within an hour (``AMLTRAIN_AZURE_PROVISIONING``, seconds).
    """
    began, period = time.monotonic(), setting("POLL", 2.0)
    longest, limit, heard = period * 5, setting("PROVISIONING", 3600.0), 0.0
    while True:
        catalog.drop_quotas(call.root, ws.subscription)
        passed = time.monotonic() - began
        try:
            found, heard = find(ws, name), passed
        except TargetUnreachable as error:  # Azure goes on with it all the same
            if passed - heard > setting("UNREACHABLE", 900.0):
                raise
            call.progress(f"{doing}: {passed:.0f} s, but no answer at the moment: {error.message}"[:200])
            call.wait(period)
            continue
        if settled(found):
            return found
        if found is None and not (patient and passed < max(30.0, 3 * longest)):
            raise TargetError(f"{name!r} is gone from {ws.name}.", hint="%aml_compute list shows what is there.")
        if passed > limit:
            raise TargetError(
                f"still not done after {passed / 60:.0f} minutes; Azure goes on with it.",
                hint="%aml_compute list shows how it stands.",
            ).about(repr(name))
        call.progress(f"{doing}: {passed:.0f} s{_nodes(found)}{_reason(found)}"[:300])
        call.wait(period)
        period = min(longest, period * 1.3)


def _nodes(found: Row | None) -> str:
    """What is told beside the seconds."""
    if found is None or found["nodes"] is None:
        return ""
    if not found["steady"] and found["wanted"] is not None:
        return f", {found['nodes']} of {found['wanted']} machines"
    return ""


def _reason(found: Row | None) -> str:
    """Return the first error that the service reports meanwhile."""
    return f" ({found['errors'][0]})" if found is not None and found["errors"] else ""


def update(call: ServiceCall, *, workspace: str, name: str, settings: Mapping[str, Any]) -> Row:
    """Change the scale of a cluster; waits until the machines that it keeps are there.

    When they cannot be had, the old settings are put back.

    Parameters
    ----------
    settings
        Of ``min_nodes``, ``max_nodes``, ``idle_minutes``, those that change.
    """
    ws = call.cloud.workspace(workspace)
    old = find(ws, name)
    if old is None or old["kind"] != "amlcompute":
        raise TargetError(f"There is no cluster {name!r} in {ws.name}.", hint="%aml_compute list shows what is there.")
    _rescale(ws, name, {**_scale(old), **settings})
    least = int(settings.get("min_nodes", old["min_nodes"]))

    def settled(found: Row | None) -> bool:
        if found is None or found["provisioning"] == "Updating":
            return False
        return found["provisioning"] != "Succeeded" or found["nodes"] >= least or bool(found["errors"])

    found = watch(call, ws, name, f"Scaling to {least}", settled)
    assert found is not None
    if found["provisioning"] == "Succeeded" and found["nodes"] >= least:
        return found
    if not found["errors"] and found["provisioning"] == "Succeeded":
        return found
    with contextlib.suppress(AmlTrainError):
        _rescale(ws, name, _scale(old))
    raise provisioning_errors.plain(
        found["errors"] or [found["detail"]], name, size=found["size"], region=found["location"]
    )


def _scale(found: Row) -> dict[str, Any]:
    idle = found["idle_seconds"]
    scale = {"min_nodes": found["min_nodes"], "max_nodes": found["max_nodes"]}
    return scale if idle is None else {**scale, "idle_minutes": idle / 60}


def _rescale(ws: Workspace, name: str, settings: Mapping[str, Any]) -> None:
    scale: dict[str, Any] = {"maxNodeCount": settings["max_nodes"], "minNodeCount": settings["min_nodes"]}
    if settings.get("idle_minutes") is not None:
        scale["nodeIdleTimeBeforeScaleDown"] = compute_state.duration(float(settings["idle_minutes"]) * 60)
    body = {"properties": {"properties": {"scaleSettings": scale}}}
    try:
        ws.arm.patch(f"computes/{name}", api=API, json=body, act=f"scale {name}")
    except AmlTrainError as error:
        raise plainly(error, ws, name, {}) from error


def start(call: ServiceCall, *, workspace: str, name: str) -> Row:
    """Start an instance; nothing happens when it runs."""
    return _power(call, workspace, name, "start", "Starting", "ready")


def stop(call: ServiceCall, *, workspace: str, name: str) -> Row:
    """Stop an instance; nothing happens when it is stopped."""
    return _power(call, workspace, name, "stop", "Stopping", "stopped")


def restart(call: ServiceCall, *, workspace: str, name: str) -> Row:
    """Restart an instance that runs."""
    return _power(call, workspace, name, "restart", "Restarting", "ready")


def _power(call: ServiceCall, workspace: str, name: str, verb: str, doing: str, wanted: str) -> Row:
    ws = call.cloud.workspace(workspace)
    found = find(ws, name)
    if found is None or found["kind"] != "instance":
        raise TargetError(f"There is no instance {name!r} in {ws.name}.", hint="%aml_compute list shows what is there.")
    if found["state"] == wanted and verb != "restart":
        return found
    busy = {"ready": "starting", "stopped": "stopping"}[wanted]
    if found["state"] != busy or compute_state.operation_failed(found["operation"]):
        try:
            ws.arm.post(f"computes/{name}/{verb}", api=API, act=f"{verb} {name}")
        except AmlTrainError as error:
            raise plainly(error, ws, name, {"size": found["size"]}) from error
    watched = _PowerWatch(found, wanted, busy)
    now = watch(call, ws, name, doing, watched.settled)
    assert now is not None
    if now["state"] == wanted and not watched.failed(now):
        return now
    operation = now["operation"].get("status") if watched.failed(now) else ""
    texts = now["errors"] or [operation or now["detail"] or f"it is {now['state']} after the {verb}"]
    raise provisioning_errors.plain(texts, name, size=now["size"], region=now["location"])


class _PowerWatch:
    """Tell when a start, stop or restart of an instance is over.

    Parameters
    ----------
    before
        The instance before the request.
    wanted, busy
        Its state at the end, and on the way there.
    """

    def __init__(self, before: Row, wanted: str, busy: str) -> None:
        self._before, self._wanted, self._busy = before, wanted, busy
        self._began, self._moved, self._passing = time.monotonic(), False, before["state"] == busy

    def failed(self, now: Row) -> bool:
        """Return whether the service says that the operation failed; an older failure does not count."""
        return compute_state.operation_failed(now["operation"]) and now["operation"] != self._before["operation"]

    def settled(self, now: Row | None) -> bool:
        if now is None:
            return False
        if self.failed(now):
            return True
        state = now["state"]
        self._passing = self._passing or state == self._busy
        self._moved = self._moved or state != self._before["state"]
        if self._passing and state in ("ready", "stopped"):  # also back where it was: nothing came of it
            return True
        # A quick restart may be over before the first look: then nothing more is to be seen of it.
        seen = self._moved or time.monotonic() - self._began > 3 * setting("POLL", 2.0)
        return state in (self._wanted, "failed") and seen


def delete(call: ServiceCall, *, workspace: str, name: str) -> None:
    """Delete a compute with its machines; no error when it is gone already."""
    _remove(call, workspace, name, "Delete", "Deleting")


def detach(call: ServiceCall, *, workspace: str, name: str) -> None:
    """Forget an attached compute; the machine is left alone."""
    _remove(call, workspace, name, "Detach", "Detaching")


def _remove(call: ServiceCall, workspace: str, name: str, action: str, doing: str) -> None:
    ws = call.cloud.workspace(workspace)
    if not ask_delete(ws, name, action):
        return
    seen = [False]

    def settled(found: Row | None) -> bool:
        seen[0] = seen[0] or (found is not None and found["state"] == "deleting")
        return found is None or (seen[0] and found["state"] == "failed")

    found = watch(call, ws, name, doing, settled)
    if found is not None:
        raise provisioning_errors.plain(found["errors"] or ["it could not be deleted"], name, size=found["size"])


def ask_delete(ws: Workspace, name: str, action: str) -> bool:
    """Whether there is anything to wait for."""
    params = {"underlyingResourceAction": action}
    answer = ws.arm.delete(
        f"computes/{name}", api=API, params=params, ok=(200, 202, 204, 404), act=f"{action.lower()} {name}"
    )
    return answer.status not in (204, 404)


def cluster(name: str, settings: Mapping[str, Any]) -> Any:
    """A cluster of a target's settings."""
    from azure.ai.ml.entities import AmlCompute, AmlComputeSshSettings

    ssh_key = str(settings.get("ssh_key") or "")
    ssh = (
        AmlComputeSshSettings(admin_username=str(settings["ssh_user"]), ssh_key_value=ssh_key)
        if ssh_key and settings.get("ssh_user")
        else None
    )
    return AmlCompute(
        name=name,
        size=settings["size"],
        location=settings.get("region") or None,
        min_instances=int(settings.get("min_nodes") or 0),
        max_instances=int(settings.get("max_nodes") or 1),
        idle_time_before_scale_down=round(float(settings.get("idle_minutes") or 15) * 60),
        tier="low_priority" if settings.get("low_priority") else "dedicated",
        network_settings=_network(settings),
        enable_node_public_ip=bool(settings.get("public_ip", True)),
        identity=identity(settings),
        ssh_public_access_enabled=bool(ssh),
        ssh_settings=ssh,
    )


def instance(name: str, settings: Mapping[str, Any]) -> Any:
    """A compute instance of a target's settings."""
    from azure.ai.ml.entities import ComputeInstance, ComputeInstanceSshSettings

    ssh_key = str(settings.get("ssh_key") or "")
    return ComputeInstance(
        name=name,
        size=settings["size"],
        idle_time_before_shutdown_minutes=int(settings.get("idle_shutdown") or 0) or None,
        schedules=_schedules(settings),
        network_settings=_network(settings),
        enable_node_public_ip=bool(settings.get("public_ip", True)),
        identity=identity(settings),
        ssh_public_access_enabled=True if ssh_key else None,
        ssh_settings=ComputeInstanceSshSettings(ssh_key_value=ssh_key) if ssh_key else None,
    )


def _schedules(settings: Mapping[str, Any]) -> Any:
    from azure.ai.ml.entities import ComputePowerAction, ComputeSchedules, ComputeStartStopSchedule, CronTrigger

    found = [
        ComputeStartStopSchedule(
            action=action, trigger=CronTrigger(expression=compute_state.cron(str(settings[key])), time_zone="UTC")
        )
        for key, action in (("schedule_start", ComputePowerAction.START), ("schedule_stop", ComputePowerAction.STOP))
        if settings.get(key)
    ]
    return ComputeSchedules(compute_start_stop=found) if found else None


def _network(settings: Mapping[str, Any]) -> Any:
    if not settings.get("subnet"):
        return None
    from azure.ai.ml.entities import NetworkSettings

    return NetworkSettings(vnet_name=settings.get("vnet") or None, subnet=settings["subnet"])


def identity(settings: Mapping[str, Any]) -> Any:
    """The managed identity that is wanted; ``None`` for none."""
    wanted = str(settings.get("identity") or "")
    if not wanted:
        return None
    from azure.ai.ml.entities import IdentityConfiguration, ManagedIdentityConfiguration

    if wanted == "system":
        return IdentityConfiguration(type="system_assigned")
    return IdentityConfiguration(
        type="user_assigned", user_assigned_identities=[ManagedIdentityConfiguration(resource_id=wanted)]
    )


def attached(kind: str, name: str, settings: Mapping[str, Any], secrets: Mapping[str, str]) -> Any:
    """A virtual machine, Kubernetes cluster or Spark pool of a target's settings."""
    from azure.ai.ml import entities

    resource_id = settings["resource_id"]
    if kind == "vm":
        ssh = entities.VirtualMachineSshSettings(
            admin_username=settings.get("ssh_user"),
            admin_password=secrets.get("password") or None,
            ssh_port=int(settings.get("ssh_port") or 22),
            ssh_private_key_file=settings.get("ssh_key_file") or None,
        )
        return entities.VirtualMachineCompute(name=name, resource_id=resource_id, ssh_settings=ssh)
    found = identity(settings)
    if kind == "kubernetes":
        return entities.KubernetesCompute(
            name=name,
            resource_id=resource_id,
            namespace=str(settings.get("namespace") or "default"),
            identity=found,
        )
    return entities.SynapseSparkCompute(name=name, resource_id=resource_id, identity=found)


def create(call: ServiceCall, *, workspace: str, kind: str, name: str, settings: Mapping[str, Any]) -> Row:
    """Make a cluster or an instance, or take over one with the same settings; waits until it is ready.

    Parameters
    ----------
    settings
        Fields of the target's Struct, and ``ssh_key``: the text of the public key.
    """
    ws = call.cloud.workspace(workspace)
    there = taken_over(call, ws, kind, name, settings)
    if there is not None:
        return there
    entity = cluster if kind == "amlcompute" else instance
    begin(call, ws, lambda: entity(name, settings), name, settings)
    return made(call, ws, name, settings, "Creating")


def taken_over(call: ServiceCall, ws: Workspace, kind: str, name: str, settings: Mapping[str, Any]) -> Row | None:
    """A compute that is there with the same settings, when it is ready; ``None`` when there is none of that name.

    Raises
    ------
    CommandError
        It has other settings, which are named.
    """
    there = find(ws, name)
    if there is not None and there["state"] == "deleting":
        watch(call, ws, name, "Waiting until the old one is deleted", lambda found: found is None)
        there = None
    if there is None:
        return None
    group = ws.arm_id.partition("/providers/")[0]
    other = compute_state.differences(settings, there, kind=kind, group=group)
    if other:
        raise CommandError(
            f"There is a compute {name!r} in {ws.name} already: {'; '.join(other)}.",
            hint="Choose another name, or take its settings.",
        )
    if there["state"] == "failed":
        why = f" {there['errors'][0]}" if there["errors"] else ""
        raise TargetError(
            f"There is a compute {name!r} in {ws.name} already, and it could not be made.{why}",
            hint="Delete it in the studio, or choose another name.",
        )
    call.progress("It is there already, with the same settings")
    if there["state"] in ("creating", "unknown") and not _settled(there):
        return made(call, ws, name, settings, "Creating", ours=False)
    return there


def begin(call: ServiceCall, ws: Workspace, entity: Callable[[], Any], name: str, settings: Mapping[str, Any]) -> None:
    """Have the SDK ask for it, without its poller."""
    call.progress(ASKING)
    try:
        client = sdk.client(call.cloud, ws)
        client.compute.begin_create_or_update(entity())
    except AmlTrainError:
        raise
    except Exception as error:
        plain = plainly(error, ws, name, settings)
        if not isinstance(plain, AmlTrainError) or not _begun(ws, name, plain):
            raise plain from error


def _begun(ws: Workspace, name: str, error: AmlTrainError) -> bool:
    """Whether it is being made although no good answer came.

    Raises
    ------
    CreateUnsure
        Nobody can tell.
    """
    if not errors.is_unconfirmed(error):
        return False
    try:
        return find(ws, name) is not None
    except AmlTrainError:
        raise CreateUnsure(
            f"{error.message} {name!r} may still have been created.",
            hint="%aml_compute list shows it when Azure answers.",
        ) from error


def made(
    call: ServiceCall, ws: Workspace, name: str, settings: Mapping[str, Any], doing: str, *, ours: bool = True
) -> Row:
    """Wait until a compute is ready; one that failed is taken away again, so that nothing is left.

    Parameters
    ----------
    ours
        We have just asked for it.

    Raises
    ------
    CreateUnsure
        It was asked for, and cannot be watched to the end: it is made all the same, and bills then.
    """
    try:
        found = watch(call, ws, name, doing, lambda found: found is not None and _settled(found), patient=True)
    except TargetError as error:
        if _gone(ws, name):
            raise
        raise CreateUnsure(error.message, hint="%aml_compute list shows how it stands.") from error
    assert found is not None
    if found["state"] != "failed":
        return found
    if ours:
        with contextlib.suppress(AmlTrainError):
            ask_delete(ws, name, "Delete")
    texts = found["errors"] or [found["detail"]]
    raise provisioning_errors.plain(texts, name, size=str(settings.get("size") or ""), region=region(ws, settings))


def _gone(ws: Workspace, name: str) -> bool:
    """Whether it is known not to be there."""
    try:
        return find(ws, name) is None
    except AmlTrainError:
        return False


def _settled(found: Row) -> bool:
    """Whether it is made, or cannot be."""
    if found["kind"] == "instance":
        return found["state"] in ("ready", "stopped", "failed")
    return found["provisioning"] in ("Succeeded", "Failed", "Canceled")


__all__ = ["attach", "body", "detach"]


def attach(
    call: ServiceCall,
    *,
    workspace: str,
    kind: str,
    name: str,
    settings: Mapping[str, Any],
    secrets: Mapping[str, str] | None = None,
) -> Row:
    """Make something known to the workspace, or take over what is known already; waits until it is.

    Parameters
    ----------
    settings
        Fields of the target's Struct.
    secrets
        ``password`` or ``token``; they go into this one request.
    """
    ws = call.cloud.workspace(workspace)
    there = taken_over(call, ws, kind, name, settings)
    if there is not None:
        return there
    given = dict(secrets or {})
    if kind in ("vm", "kubernetes", "synapse-spark"):
        begin(call, ws, lambda: attached(kind, name, settings, given), name, settings)
    else:
        call.progress(ASKING)
        try:
            ws.arm.put(f"computes/{name}", api=API, json=body(kind, ws, settings, given), act=f"attach {name}")
        except AmlTrainError as error:
            raise plainly(error, ws, name, settings) from error
    return made(call, ws, name, settings, "Attaching")


def body(kind: str, ws: Workspace, settings: Mapping[str, Any], secrets: Mapping[str, str]) -> dict[str, Any]:
    """The ARM resource of a kind that the SDK does not have."""
    inner: dict[str, Any]
    if kind == "hdinsight":
        account = {"username": settings.get("ssh_user")}
        if secrets.get("password"):
            account["password"] = secrets["password"]
        if settings.get("ssh_key_file"):
            account["privateKeyData"] = Path(str(settings["ssh_key_file"])).read_text(encoding="utf-8")
        inner = {"sshPort": int(settings.get("ssh_port") or 22), "administratorAccount": account}
        if settings.get("address"):
            inner["address"] = settings["address"]
        compute_type = "HDInsight"
    elif kind == "databricks":
        inner = {"databricksAccessToken": secrets.get("token", "")}
        if settings.get("workspace_url"):
            inner["workspaceUrl"] = settings["workspace_url"]
        compute_type = "Databricks"
    else:
        inner = {"dataLakeStoreAccountName": settings["store"]} if settings.get("store") else {}
        compute_type = "DataLakeAnalytics"
    return {
        "location": ws.location,
        "properties": {"computeType": compute_type, "resourceId": settings["resource_id"], "properties": inner},
    }
