"""What is there already and is made known to a workspace: by the SDK where it has a class, else by ARM itself.

HDInsight, Databricks and Data Lake Analytics are in the published contract (`computeType` of the ARM schema
2024-10-01) and have no class in the SDK.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.backends.azureml.asked import ASKING
from jupyter_amltrain.backends.azureml.service import computes, entities, provisioning
from jupyter_amltrain.backends.azureml.service.computes import API, Row, detach
from jupyter_amltrain.errors import AmlTrainError

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.service.cloud import Workspace
    from jupyter_amltrain.backends.azureml.service.operations import ServiceCall

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
    there = provisioning.taken_over(call, ws, kind, name, settings)
    if there is not None:
        return there
    given = dict(secrets or {})
    if kind in ("vm", "kubernetes", "synapse-spark"):
        provisioning.begin(call, ws, lambda: entities.attached(kind, name, settings, given), name, settings)
    else:
        call.progress(ASKING)
        try:
            ws.arm.put(f"computes/{name}", api=API, json=body(kind, ws, settings, given), act=f"attach {name}")
        except AmlTrainError as error:
            raise computes.plainly(error, ws, name, settings) from error
    return provisioning.made(call, ws, name, settings, "Attaching")


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
