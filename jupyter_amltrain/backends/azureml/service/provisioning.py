"""Making a compute: one with the same settings is taken over, one that cannot be made is taken away again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.backends.azureml import computed, faults, refusals
from jupyter_amltrain.backends.azureml.asked import ASKING
from jupyter_amltrain.backends.azureml.service import computes, entities, sdk
from jupyter_amltrain.backends.azureml.service.computes import Row, find, plainly, watch
from jupyter_amltrain.errors import AmlTrainError, CommandError, CreateUnsure, TargetError

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.service.cloud import Workspace
    from jupyter_amltrain.backends.azureml.service.operations import ServiceCall


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
    entity = entities.cluster if kind == "amlcompute" else entities.instance
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
    other = computed.differences(settings, there, kind=kind, group=group)
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
    if not faults.unsure(error):
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
            computes.ask_delete(ws, name, "Delete")
    texts = found["errors"] or [found["detail"]]
    raise refusals.plain(texts, name, size=str(settings.get("size") or ""), region=computes.region(ws, settings))


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
