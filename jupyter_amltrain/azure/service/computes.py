"""Computes of a workspace: list, create, attach, watch, scale and delete.

The SDK's poller waits 30 s between polls (recorded responses have no Retry-After), so the compute itself is
polled instead, which also shows its progress.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.azure import catalog, compute_state, errors, provisioning_errors
from jupyter_amltrain.azure.compute_state import row
from jupyter_amltrain.azure.service import sdk
from jupyter_amltrain.azure.service.account import env_seconds
from jupyter_amltrain.backends.provisioner import sending_text
from jupyter_amltrain.errors import AmlTrainError, CommandError, CreateUnsure, TargetError, TargetUnreachable

if TYPE_CHECKING:
    from jupyter_amltrain.azure.service.cloud import Workspace
    from jupyter_amltrain.azure.service.operations import ServiceCall

#: API version of computes, sizes and quotas: the newest recorded one; it has idleTimeBeforeShutdown, unlike GA.
API = "2023-08-01-preview"

Row = dict[str, Any]


def list_all(call: ServiceCall, *, workspace: str) -> list[Row]:
    """List all computes of the workspace, including kinds that cannot be targets (their kind is empty)."""
    return [row(item) for item in call.cloud.workspace(workspace).arm.pages("computes", api=API, act="list computes")]


def get(call: ServiceCall, *, workspace: str, name: str) -> Row | None:
    """Return one compute; ``None`` if no compute has that name."""
    return find(call.cloud.workspace(workspace), name)


def find(ws: Workspace, name: str) -> Row | None:
    """Return one compute; the service returns 404 with an empty body if it does not exist."""
    answer = ws.arm.get(f"computes/{name}", api=API, ok=(200, 404), act=f"read {name}")
    return row(answer.json) if answer.status == 200 and answer.json else None


def translate_error(error: BaseException, ws: Workspace, name: str, settings: Mapping[str, Any]) -> BaseException:
    """Translate an error of the service to a provisioning error; returns other errors unchanged."""
    translated = (
        error if isinstance(error, AmlTrainError) else errors.error_of_exception(error, ws.name, f"create {name}")
    )
    if translated is None:
        return error
    details = errors.details_of(translated)
    texts = [f"{code}: {details.message}" for code in reversed(details.codes)] or [details.message]
    if details.status in (401, 403, 404, 408, 429, 500, 502, 503, 504) or not any(
        map(provisioning_errors.is_known, texts)
    ):
        return translated
    return provisioning_errors.error_of(texts, name, size=str(settings.get("size") or ""), region=region(ws, settings))


def region(ws: Workspace, settings: Mapping[str, Any]) -> str:
    """Return the region of a compute with these settings."""
    return str(settings.get("region") or ws.location)


def watch(
    call: ServiceCall,
    ws: Workspace,
    name: str,
    doing: str,
    settled: Callable[[Row | None], bool],
    *,
    patient: bool = False,
    read: Callable[[], Row | None] | None = None,
) -> Row | None:
    """Poll a compute until it is `settled`, reporting progress.

    Parameters
    ----------
    patient
        Tolerate that the service does not know the compute yet.
    read
        Reads it, if it is not a compute of the workspace.

    Raises
    ------
    TargetUnreachable
        Azure did not answer for a quarter of an hour (``AMLTRAIN_AZURE_UNREACHABLE``, seconds).
    TargetError
        The compute was deleted, or took more than an hour (``AMLTRAIN_AZURE_PROVISIONING``, seconds).
    """
    started_at, period = time.monotonic(), env_seconds("POLL", 2.0)
    max_period, limit, last_answer = period * 5, env_seconds("PROVISIONING", 3600.0), 0.0
    while True:
        catalog.drop_quotas(call.root, ws.subscription)
        elapsed = time.monotonic() - started_at
        try:
            compute, last_answer = find(ws, name) if read is None else read(), elapsed
        except TargetUnreachable as error:  # Azure continues the operation
            if elapsed - last_answer > env_seconds("UNREACHABLE", 900.0):
                raise
            call.progress(f"{doing}: {elapsed:.0f} s, Azure is not responding: {error.message}"[:200])
            call.wait(period)
            continue
        if settled(compute):
            return compute
        if compute is None and not (patient and elapsed < max(30.0, 3 * max_period)):
            raise TargetError(f"{name!r} no longer exists in {ws.name}.", hint="See %aml_compute list.")
        if elapsed > limit:
            raise TargetError(
                f"still not done after {elapsed / 60:.0f} minutes; Azure continues the operation.",
                hint="See %aml_compute list.",
            ).about(repr(name))
        call.progress(f"{doing}: {elapsed:.0f} s{_nodes(compute)}{_reason(compute)}"[:300])
        call.wait(period)
        period = min(max_period, period * 1.3)


def _nodes(compute: Row | None) -> str:
    """Return the node counts for a progress message."""
    if compute is None or compute["nodes"] is None:
        return ""
    if not compute["steady"] and compute["wanted"] is not None:
        return f", {compute['nodes']} of {compute['wanted']} machines"
    return ""


def _reason(compute: Row | None) -> str:
    """Return the first error that the service currently reports."""
    return f" ({compute['errors'][0]})" if compute is not None and compute["errors"] else ""


def update(call: ServiceCall, *, workspace: str, name: str, settings: Mapping[str, Any]) -> Row:
    """Scale a cluster, and wait until its minimum number of nodes is running.

    If the nodes cannot be allocated, the old settings are restored.

    Parameters
    ----------
    settings
        The changed ones of ``min_nodes``, ``max_nodes`` and ``idle_minutes``.
    """
    ws = call.cloud.workspace(workspace)
    old = find(ws, name)
    if old is None or old["kind"] != "amlcompute":
        raise TargetError(f"There is no cluster {name!r} in {ws.name}.", hint="See %aml_compute list.")
    _rescale(ws, name, {**_scale(old), **settings})
    min_nodes = int(settings.get("min_nodes", old["min_nodes"]))

    def settled(compute: Row | None) -> bool:
        if compute is None or compute["provisioning"] == "Updating":
            return False
        return compute["provisioning"] != "Succeeded" or compute["nodes"] >= min_nodes or bool(compute["errors"])

    compute = watch(call, ws, name, f"Scaling to {min_nodes}", settled)
    assert compute is not None
    if compute["provisioning"] == "Succeeded" and compute["nodes"] >= min_nodes:
        return compute
    if not compute["errors"] and compute["provisioning"] == "Succeeded":
        return compute
    with contextlib.suppress(AmlTrainError):
        _rescale(ws, name, _scale(old))
    raise provisioning_errors.error_of(
        compute["errors"] or [compute["detail"]], name, size=compute["size"], region=compute["location"]
    )


def _scale(compute: Row) -> dict[str, Any]:
    idle = compute["idle_seconds"]
    scale = {"min_nodes": compute["min_nodes"], "max_nodes": compute["max_nodes"]}
    return scale if idle is None else {**scale, "idle_minutes": idle / 60}


def _rescale(ws: Workspace, name: str, settings: Mapping[str, Any]) -> None:
    scale: dict[str, Any] = {"maxNodeCount": settings["max_nodes"], "minNodeCount": settings["min_nodes"]}
    if settings.get("idle_minutes") is not None:
        scale["nodeIdleTimeBeforeScaleDown"] = compute_state.duration(float(settings["idle_minutes"]) * 60)
    body = {"properties": {"properties": {"scaleSettings": scale}}}
    try:
        ws.arm.patch(f"computes/{name}", api=API, json=body, act=f"scale {name}")
    except AmlTrainError as error:
        raise translate_error(error, ws, name, {}) from error


#: API version of the schedules of an instance: the only published one that has the action.
SCHEDULES_API = "2021-03-01-preview"


def configure(call: ServiceCall, *, workspace: str, name: str, settings: Mapping[str, Any]) -> Row:
    """Change when an instance starts and stops automatically; return it as the service has it then.

    Parameters
    ----------
    settings
        The changed ones of ``idle_shutdown`` (minutes, 0 for never), ``schedule_start`` and ``schedule_stop``.
    """
    ws = call.cloud.workspace(workspace)
    old = find(ws, name)
    if old is None or old["kind"] != "instance":
        raise TargetError(f"There is no instance {name!r} in {ws.name}.", hint="See %aml_compute list.")
    if "idle_shutdown" in settings:
        minutes = int(settings["idle_shutdown"])
        body: dict[str, Any] = {"idleTimeBeforeShutdown": compute_state.duration(minutes * 60) if minutes else None}
        act = f"change the idle shutdown of {name}"
        ws.arm.post(f"computes/{name}/updateIdleShutdownSetting", api=API, json=body, act=act)
    schedules = {key: str(settings[key]) for key in ("schedule_start", "schedule_stop") if key in settings}
    if schedules:
        body = {"computeStartStop": compute_state.changed_schedules(old["schedules"], schedules)}
        act = f"change the schedules of {name}"
        ws.arm.post(f"computes/{name}/updateSchedules", api=SCHEDULES_API, json=body, act=act)
    new = find(ws, name)
    wanted: dict[str, Any] = {key: compute_state.cron(text) for key, text in schedules.items()}
    wanted |= {"idle_shutdown": int(settings["idle_shutdown"])} if "idle_shutdown" in settings else {}
    if new is not None and all((new["settings"].get(key) or "") == (value or "") for key, value in wanted.items()):
        return new
    raise TargetError(
        f"Azure accepted the change of {name!r} but still reports the old settings.",
        hint=f"Look again in a minute: %aml_compute show {name}. Or change them in the studio, under Schedules.",
    )


def start(call: ServiceCall, *, workspace: str, name: str) -> Row:
    """Start an instance; no effect if it is running."""
    return _power(call, workspace, name, "start", "Starting", "ready")


def stop(call: ServiceCall, *, workspace: str, name: str) -> Row:
    """Stop an instance; no effect if it is stopped."""
    return _power(call, workspace, name, "stop", "Stopping", "stopped")


def restart(call: ServiceCall, *, workspace: str, name: str) -> Row:
    """Restart a running instance."""
    return _power(call, workspace, name, "restart", "Restarting", "ready")


def _power(call: ServiceCall, workspace: str, name: str, verb: str, doing: str, target_state: str) -> Row:
    ws = call.cloud.workspace(workspace)
    compute = find(ws, name)
    if compute is None or compute["kind"] != "instance":
        raise TargetError(f"There is no instance {name!r} in {ws.name}.", hint="See %aml_compute list.")
    if compute["state"] == target_state and verb != "restart":
        return compute
    busy = {"ready": "starting", "stopped": "stopping"}[target_state]
    if compute["state"] != busy or compute_state.operation_failed(compute["operation"]):
        try:
            ws.arm.post(f"computes/{name}/{verb}", api=API, act=f"{verb} {name}")
        except AmlTrainError as error:
            raise translate_error(error, ws, name, {"size": compute["size"]}) from error
    power_watch = _PowerWatch(compute, target_state, busy)
    current = watch(call, ws, name, doing, power_watch.settled)
    assert current is not None
    if current["state"] == target_state and not power_watch.failed(current):
        return current
    operation = current["operation"].get("status") if power_watch.failed(current) else ""
    texts = current["errors"] or [operation or current["detail"] or f"it is {current['state']} after the {verb}"]
    raise provisioning_errors.error_of(texts, name, size=current["size"], region=current["location"])


class _PowerWatch:
    """Detects when a start, stop or restart of an instance has finished.

    Parameters
    ----------
    before
        The instance before the request.
    target_state, busy
        Its final state, and its state during the operation.
    """

    def __init__(self, before: Row, target_state: str, busy: str) -> None:
        self._before, self._target_state, self._busy = before, target_state, busy
        self._started_at, self._changed, self._was_busy = time.monotonic(), False, before["state"] == busy

    def failed(self, current: Row) -> bool:
        """Return whether the service reports that the operation failed; older failures are ignored."""
        return (
            compute_state.operation_failed(current["operation"]) and current["operation"] != self._before["operation"]
        )

    def settled(self, current: Row | None) -> bool:
        if current is None:
            return False
        if self.failed(current):
            return True
        state = current["state"]
        self._was_busy = self._was_busy or state == self._busy
        self._changed = self._changed or state != self._before["state"]
        if self._was_busy and state in (
            "ready",
            "stopped",
        ):  # or back in the original state: the operation had no effect
            return True
        # A quick restart may finish before the first poll, and then leaves no trace.
        observed = self._changed or time.monotonic() - self._started_at > 3 * env_seconds("POLL", 2.0)
        return state in (self._target_state, "failed") and observed


def delete(call: ServiceCall, *, workspace: str, name: str) -> None:
    """Delete a compute and its machines; no error if it does not exist."""
    _remove(call, workspace, name, "Delete", "Deleting")


def detach(call: ServiceCall, *, workspace: str, name: str) -> None:
    """Detach a compute; the machine itself is not changed."""
    _remove(call, workspace, name, "Detach", "Detaching")


def _remove(call: ServiceCall, workspace: str, name: str, action: str, doing: str) -> None:
    ws = call.cloud.workspace(workspace)
    if not request_removal(ws, name, action):
        return
    deleting = [False]

    def settled(compute: Row | None) -> bool:
        deleting[0] = deleting[0] or (compute is not None and compute["state"] == "deleting")
        return compute is None or (deleting[0] and compute["state"] == "failed")

    compute = watch(call, ws, name, doing, settled)
    if compute is not None:
        raise provisioning_errors.error_of(compute["errors"] or ["it could not be deleted"], name, size=compute["size"])


def request_removal(ws: Workspace, name: str, action: str) -> bool:
    """Request the removal of a compute; returns whether to wait for it."""
    params = {"underlyingResourceAction": action}
    answer = ws.arm.delete(
        f"computes/{name}", api=API, params=params, ok=(200, 202, 204, 404), act=f"{action.lower()} {name}"
    )
    return answer.status not in (204, 404)


def cluster_entity(name: str, settings: Mapping[str, Any]) -> Any:
    """Return the SDK's entity of a cluster."""
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


def instance_entity(name: str, settings: Mapping[str, Any]) -> Any:
    """Return the SDK's entity of a compute instance."""
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

    schedules = [
        ComputeStartStopSchedule(
            action=action, trigger=CronTrigger(expression=compute_state.cron(str(settings[key])), time_zone="UTC")
        )
        for key, action in (("schedule_start", ComputePowerAction.START), ("schedule_stop", ComputePowerAction.STOP))
        if settings.get(key)
    ]
    return ComputeSchedules(compute_start_stop=schedules) if schedules else None


def _network(settings: Mapping[str, Any]) -> Any:
    if not settings.get("subnet"):
        return None
    from azure.ai.ml.entities import NetworkSettings

    return NetworkSettings(vnet_name=settings.get("vnet") or None, subnet=settings["subnet"])


def identity(settings: Mapping[str, Any]) -> Any:
    """Return the SDK's managed identity of the settings; ``None`` without one."""
    requested = str(settings.get("identity") or "")
    if not requested:
        return None
    from azure.ai.ml.entities import IdentityConfiguration, ManagedIdentityConfiguration

    if requested == "system":
        return IdentityConfiguration(type="system_assigned")
    return IdentityConfiguration(
        type="user_assigned", user_assigned_identities=[ManagedIdentityConfiguration(resource_id=requested)]
    )


def attached_entity(kind: str, name: str, settings: Mapping[str, Any], secrets: Mapping[str, str]) -> Any:
    """Return the SDK's entity of a virtual machine, Kubernetes cluster or Spark pool."""
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
    managed_identity = identity(settings)
    if kind == "kubernetes":
        return entities.KubernetesCompute(
            name=name,
            resource_id=resource_id,
            namespace=str(settings.get("namespace") or "default"),
            identity=managed_identity,
        )
    if kind == "synapse-spark":
        return entities.SynapseSparkCompute(name=name, resource_id=resource_id, identity=managed_identity)
    raise ValueError(f"no compute of kind {kind!r} is attached")


def create(call: ServiceCall, *, workspace: str, kind: str, name: str, settings: Mapping[str, Any]) -> Row:
    """Create a cluster or an instance, or adopt one with the same settings; waits until it is ready.

    Parameters
    ----------
    settings
        Fields of the target's Struct, and ``ssh_key``: the text of the public key.
    """
    ws = call.cloud.workspace(workspace)
    existing = adopt_existing(call, ws, kind, name, settings)
    if existing is not None:
        return existing
    entity = {"amlcompute": cluster_entity, "instance": instance_entity}[kind]
    request_create(call, ws, lambda: entity(name, settings), name, settings)
    return wait_created(call, ws, name, settings, "Creating")


def adopt_existing(call: ServiceCall, ws: Workspace, kind: str, name: str, settings: Mapping[str, Any]) -> Row | None:
    """Return an existing compute with the same settings when it is ready; ``None`` if no compute has that name.

    Raises
    ------
    CommandError
        The existing compute has different settings, which are listed.
    """
    existing = find(ws, name)
    if existing is not None and existing["state"] == "deleting":
        watch(call, ws, name, "Waiting until the old compute is deleted", lambda compute: compute is None)
        existing = None
    if existing is None:
        return None
    group = ws.arm_id.partition("/providers/")[0]
    differences = compute_state.differences(settings, existing, kind=kind, group=group)
    if differences:
        raise CommandError(
            f"Compute {name!r} already exists in {ws.name} with other settings: {'; '.join(differences)}.",
            hint="Choose another name, or use its settings.",
        )
    if existing["state"] == "failed":
        reason = f" {existing['errors'][0]}" if existing["errors"] else ""
        raise TargetError(
            f"Compute {name!r} already exists in {ws.name}, and its creation failed.{reason}",
            hint="Delete it in the studio, or choose another name.",
        )
    call.progress("Using the existing compute, which has the same settings")
    if existing["state"] in ("creating", "unknown") and not _is_settled(existing):
        return wait_created(call, ws, name, settings, "Creating", requested=False)
    return existing


def request_create(
    call: ServiceCall, ws: Workspace, entity: Callable[[], Any], name: str, settings: Mapping[str, Any]
) -> None:
    """Send the create request through the SDK, without its poller."""
    call.progress(sending_text("Azure"))
    try:
        client = sdk.client(call.cloud, ws)
        client.compute.begin_create_or_update(entity())
    except AmlTrainError:
        raise
    except Exception as error:  # the SDK raises the errors of several libraries
        plain = translate_error(error, ws, name, settings)
        if not isinstance(plain, AmlTrainError) or not _exists(ws, name, plain):
            raise plain from error


def _exists(ws: Workspace, name: str, error: AmlTrainError) -> bool:
    """Return whether the compute exists although the create request got no valid response.

    Raises
    ------
    CreateUnsure
        This cannot be determined.
    """
    if not errors.is_unconfirmed(error):
        return False
    try:
        return find(ws, name) is not None
    except AmlTrainError:
        raise CreateUnsure(
            f"{error.message} {name!r} may still have been created.",
            hint="Check with %aml_compute list when Azure responds again.",
        ) from error


def wait_created(
    call: ServiceCall, ws: Workspace, name: str, settings: Mapping[str, Any], doing: str, *, requested: bool = True
) -> Row:
    """Wait until a compute is ready; a failed one is deleted, so that nothing is left behind.

    Parameters
    ----------
    requested
        This call has requested it.

    Raises
    ------
    CreateUnsure
        The compute was requested but cannot be watched any longer; it may still be created, and cost money.
    """
    try:
        compute = watch(
            call, ws, name, doing, lambda compute: compute is not None and _is_settled(compute), patient=True
        )
    except TargetError as error:
        if _is_missing(ws, name):
            raise
        raise CreateUnsure(error.message, hint="Check its state with %aml_compute list.") from error
    assert compute is not None
    if compute["state"] != "failed":
        return compute
    if requested:
        with contextlib.suppress(AmlTrainError):
            request_removal(ws, name, "Delete")
    texts = compute["errors"] or [compute["detail"]]
    raise provisioning_errors.error_of(texts, name, size=str(settings.get("size") or ""), region=region(ws, settings))


def _is_missing(ws: Workspace, name: str) -> bool:
    """Return whether the compute is known not to exist."""
    try:
        return find(ws, name) is None
    except AmlTrainError:
        return False


def _is_settled(compute: Row) -> bool:
    """Return whether creation has finished or failed."""
    if compute["kind"] == "instance":
        return compute["state"] in ("ready", "stopped", "failed")
    return compute["provisioning"] in ("Succeeded", "Failed", "Canceled")


def attach(
    call: ServiceCall,
    *,
    workspace: str,
    kind: str,
    name: str,
    settings: Mapping[str, Any],
    secrets: Mapping[str, str] | None = None,
) -> Row:
    """Attach an existing resource to the workspace, or adopt an attached one; waits until it is attached.

    Parameters
    ----------
    settings
        Fields of the target's Struct.
    secrets
        ``password`` or ``token``; used only in this request.
    """
    ws = call.cloud.workspace(workspace)
    existing = adopt_existing(call, ws, kind, name, settings)
    if existing is not None:
        return existing
    credentials = dict(secrets or {})
    if kind in ("vm", "kubernetes", "synapse-spark"):
        request_create(call, ws, lambda: attached_entity(kind, name, settings, credentials), name, settings)
    else:
        call.progress(sending_text("Azure"))
        try:
            ws.arm.put(f"computes/{name}", api=API, json=body(kind, ws, settings, credentials), act=f"attach {name}")
        except AmlTrainError as error:
            raise translate_error(error, ws, name, settings) from error
    return wait_created(call, ws, name, settings, "Attaching")


def body(kind: str, ws: Workspace, settings: Mapping[str, Any], secrets: Mapping[str, str]) -> dict[str, Any]:
    """Return the ARM resource of a kind that the SDK does not support."""
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
