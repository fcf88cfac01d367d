"""What a 403 means: which permission is missing, whose policy or which network forbids it. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from jupyter_amltrain.errors import AmlTrainError, AuthenticationError, TargetUnreachable

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.faults import Told

_DOES = re.compile(r"perform action '([^']+)'(?:\s+over scope '([^']+)')?")
#: The built-in role that has a permission (learn.microsoft.com/azure/role-based-access-control/built-in-roles).
_ROLES = (
    ("/computes/", "AzureML Compute Operator"),
    ("/workspaces/write", "Contributor"),
    ("/workspaces/delete", "Contributor"),
    ("microsoft.insights/", "Monitoring Reader"),
    ("microsoft.storage/", "Storage Blob Data Contributor"),
    ("/workspaces/read", "Reader"),
    ("microsoft.machinelearningservices/", "AzureML Data Scientist"),
)


def forbidden(said: Told, place: str, asked: str, user: str) -> AmlTrainError:
    """Which permission is missing, on what.

    Parameters
    ----------
    place, asked
        ``" in lab"``, ``" to take the job"``: as they stand in a sentence, or empty.
    user
        Who asked, when known.
    """
    who, lacks = user or "You", "lacks" if user else "lack"
    low = f"{said.message} {' '.join(said.codes)}".lower()
    if "publicnetwork" in low or "private link" in low or "private endpoint" in low or "public access" in low:
        return TargetUnreachable(
            f"The workspace{place} takes requests from its private network only.", hint="Connect to that network (VPN)."
        )
    if "disallowedbypolicy" in low:
        return AuthenticationError(
            f"A policy of your organisation forbids it{place}: {said.message.rstrip('.')}.",
            hint="Ask its administrator.",
        )
    if said.code == "AuthorizationPermissionMismatch":  # of the storage service, which names no permission
        return AuthenticationError(
            f"{who} may not read or write the storage of the workspace{place}.",
            hint="Ask its owner for the role 'Storage Blob Data Contributor' there.",
        )
    found = _DOES.search(said.message)
    if found is None:
        reason = said.message.rstrip(".") or "no reason given"
        return AuthenticationError(
            f"{who} may not do that{place}{asked and f' ({asked.strip()})'}: {reason}.",
            hint="Ask its owner for a role.",
        )
    action, scope = found[1], (found[2] or "").rstrip("/").rpartition("/")[2]
    on = f" on {scope!r}" if scope else place
    role = next((role for part, role in _ROLES if part in action.lower()), "")
    return AuthenticationError(
        f"{who} {lacks} the permission {action}{on}.",
        hint=f"Ask its owner for the role {role!r}." if role else "Ask its owner for a role that has it.",
    )
