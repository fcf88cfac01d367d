"""Connecting to a workspace: sign-in, lookup, and checks of permissions and packages."""

from __future__ import annotations

import difflib
import fnmatch
import importlib.util
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.azure import errors
from jupyter_amltrain.azure.service import auth, sdk
from jupyter_amltrain.azure.service.account import ARM_SCOPE, Account
from jupyter_amltrain.azure.service.cloud import ARM_HOST, arm_id
from jupyter_amltrain.azure.service.http import ARM, RESOURCES, Rest
from jupyter_amltrain.errors import AmlTrainError, AuthenticationError, CommandError

if TYPE_CHECKING:
    from jupyter_amltrain.azure.service.operations import ServiceCall

_GUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_TENANT = re.compile(r'authorization_uri="https?://[^/"]+/([^/"]+)', re.IGNORECASE)
#: Actions of a user and the permissions that they need (Azure's built-in roles for Azure ML).
_PERMISSIONS = {
    "submit jobs": "Microsoft.MachineLearningServices/workspaces/jobs/write",
    "create compute": "Microsoft.MachineLearningServices/workspaces/computes/write",
    "delete compute": "Microsoft.MachineLearningServices/workspaces/computes/delete",
}


def connect(
    call: ServiceCall,
    *,
    subscription: str,
    resource_group: str,
    workspace: str,
    tenant: str = "",
    method: str = "",
    name: str = "",
) -> dict[str, Any]:
    """Sign in and find the workspace.

    Returns
    -------
    dict
        The fields of :class:`jupyter_amltrain.azure.workspace_file.WorkspaceFacts`, ``how`` (the
        credential) and ``missing``: a sentence for each feature that will not work.

    Raises
    ------
    CommandError
        There is no such workspace, group or subscription; similar names are suggested.
    AuthenticationError
        Nobody is signed in, or the user may not read the workspace.
    """
    requested_tenant = tenant
    if not tenant and _GUID.fullmatch(subscription):
        call.progress("Looking up the directory of the subscription")
        tenant = tenant_of(subscription)
    accounts = _accounts(call, tenant, method, name)
    account, answer, subscription = _first_with_access(accounts, subscription, resource_group, workspace, tenant)
    who = account.user_and_tenant()
    call.progress(f"Signed in as {who['user']}, reading the workspace")
    facts = _facts(answer, subscription, resource_group, workspace)
    facts |= {
        "name": name or str(facts["workspace"]),
        "user": who["user"],
        "tenant": who["tenant"] or tenant or requested_tenant,
        "method": account.method,
        "account": account.record,
        "how": account.description,
    }
    facts["studio_url"] = f"https://ml.azure.com/?wsid={facts.pop('arm_id')}&tid={facts['tenant']}"
    missing = _add_api(facts)
    if facts.pop("state") not in ("Succeeded", ""):
        missing.append("The workspace is not ready yet. Check it in the studio.")
    added = call.cloud.add(facts, account)
    missing += [*_missing_permissions(added.arm), *_missing_sdk()]
    return {**facts, "missing": missing}


def _missing_sdk() -> list[str]:
    """Import the SDK in the background, or return the sentence that it is missing."""
    if importlib.util.find_spec("azure.ai") is None or importlib.util.find_spec("azure.ai.ml") is None:
        return ["The package azure-ai-ml is missing: pip install azure-ai-ml"]
    sdk.warm()
    return []


def _add_api(facts: dict[str, Any]) -> list[str]:
    """Replace the address at which a workspace names its services by theirs; return what will not work."""
    try:
        facts["api"] = _api(str(facts.pop("discovery")))
    except AmlTrainError as error:
        facts["api"] = f"https://{facts['location']}.api.azureml.ms"
        return [f"The workspace's services are not responding, so logs and metrics may be missing: {error}"]
    return []


def add(call: ServiceCall, *, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Add a workspace that was connected before. No network requests."""
    added = call.cloud.add(facts)
    return {"name": added.name}


def forget(call: ServiceCall, *, workspace: str) -> None:
    """Forget a workspace."""
    call.cloud.forget(workspace)
    sdk.forget(workspace)


def whoami(call: ServiceCall, *, workspace: str) -> dict[str, str]:
    """Return ``user``, ``tenant`` and ``how`` of the current sign-in."""
    account = call.cloud.workspace(workspace).credential
    return {**account.user_and_tenant(), "how": account.description}


def tenant_of(subscription: str) -> str:
    """Return the directory of a subscription, from ARM's challenge to a request without a token; empty if unknown.

    ``401 WWW-Authenticate: Bearer authorization_uri="https://login.windows.net/<tenant>"``.

    Raises
    ------
    CommandError
        There is no such subscription.
    """
    answer = Rest(ARM_HOST, "", None).get(f"/subscriptions/{subscription}", api=RESOURCES, ok=range(200, 600))
    if answer.status == 404:
        raise _no_subscription(subscription)
    match = _TENANT.search(answer.headers.get("www-authenticate", ""))
    return match[1] if match else ""


def _no_subscription(subscription: str) -> CommandError:
    return CommandError(
        f"--subscription: Azure has no subscription {subscription!r}.",
        hint="Check the id: the portal shows it on the overview page of the workspace.",
    )


def _first_with_access(
    accounts: Iterator[Account], subscription: str, group: str, workspace: str, tenant: str
) -> tuple[Account, dict[str, Any], str]:
    """Return the first account that may read the workspace, the workspace, and its subscription's id."""
    first_error: AmlTrainError | None = None
    for account in accounts:
        arm = Rest(ARM_HOST, "", account, ARM_SCOPE, where=workspace, user=account.user_and_tenant()["user"])
        if not account.tenant:
            account.tenant = tenant
        try:
            subscription_id = subscription if _GUID.fullmatch(subscription) else _by_name(arm, subscription)
            return account, _read(arm, subscription_id, group, workspace), subscription_id
        except AuthenticationError as error:
            first_error = first_error or error  # another account may have access
            first_error.hint = "Sign in with an account that has access: %aml_compute connect --sign-in device"
    assert first_error is not None
    raise first_error


def _accounts(call: ServiceCall, tenant: str, method: str, name: str) -> Iterator[Account]:
    if not method and (person := call.cloud.interactive_account(name)) is not None:
        yield person
    if method in ("", "auto"):
        any_account = False
        try:
            for account in auth.available_accounts(tenant, call.progress):
                any_account = True
                yield account
        except AuthenticationError as error:
            if error.code != auth.NOT_SIGNED_IN:
                raise
            call.progress(f"{error.message} Starting an interactive sign-in.")
        if any_account:
            return
    yield auth.sign_in(method or "auto", tenant, call.event)


def _by_name(arm: Rest, name: str) -> str:
    subscriptions = {
        str(one.get("displayName")): str(one.get("subscriptionId"))
        for one in arm.pages("/subscriptions", api=RESOURCES)
    }
    for display_name, guid in subscriptions.items():
        if display_name.lower() == name.lower():
            return guid
    matches = difflib.get_close_matches(name, subscriptions, 3, 0.4) or list(subscriptions)[:5]
    hint = f"Did you mean {' or '.join(map(repr, matches))}?" if matches else "You have no access to any subscription."
    raise CommandError(f"Subscription {name!r} does not exist, or you have no access to it.", hint=hint)


def _read(arm: Rest, subscription: str, group: str, workspace: str) -> dict[str, Any]:
    try:
        answer = arm.get(arm_id(subscription, group, workspace), api=ARM, act="read the workspace")
    except AmlTrainError as error:
        details = errors.details_of(error)
        if details.status == 404 or "SubscriptionNotFound" in details.codes:
            raise _not_found(arm, details.codes, subscription, group, workspace) from error
        raise
    return dict(answer.json or {})


def _not_found(arm: Rest, codes: tuple[str, ...], subscription: str, group: str, workspace: str) -> CommandError:
    """Return the error that names the missing resource and similar ones."""
    if "SubscriptionNotFound" in codes or "InvalidSubscriptionId" in codes:
        return _no_subscription(subscription)
    base = f"/subscriptions/{subscription}"
    if "ResourceGroupNotFound" in codes:
        names = _names(arm, f"{base}/resourcegroups", RESOURCES)
        return CommandError(
            f"There is no resource group {group!r} in the subscription.", hint=_suggestion(group, names)
        )
    names = _names(arm, f"{base}/resourceGroups/{group}/providers/Microsoft.MachineLearningServices/workspaces", ARM)
    text = f"There is no workspace {workspace!r} in the resource group {group!r}."
    if names:
        return CommandError(text, hint=_suggestion(workspace, names))
    groups = {
        str(one.get("name")): str(one.get("id", "")).split("/")[4]
        for one in _list(arm, f"{base}/providers/Microsoft.MachineLearningServices/workspaces", ARM)
        if str(one.get("id", "")).count("/") > 4
    }
    if workspace in groups:
        return CommandError(text, hint=f"There is one in {groups[workspace]!r}: --resource-group {groups[workspace]}")
    return CommandError(text, hint=_suggestion(workspace, list(groups)))


def _list(arm: Rest, path: str, api: str) -> list[dict[str, Any]]:
    try:
        return list(arm.pages(path, api=api))
    except AmlTrainError:  # without permission to list, the error has no suggestions
        return []


def _names(arm: Rest, path: str, api: str) -> list[str]:
    return [str(one.get("name")) for one in _list(arm, path, api)]


def _suggestion(word: str, names: list[str]) -> str:
    matches = difflib.get_close_matches(word, names, 3, 0.5)
    if matches:
        return f"Did you mean {' or '.join(matches)}?"
    return f"Available: {', '.join(names[:8])}." if names else "You have no access to any there."


def _facts(answer: Mapping[str, Any], subscription: str, group: str, workspace: str) -> dict[str, Any]:
    properties = answer.get("properties") or {}
    name = str(answer.get("name") or workspace)  # in the service's spelling
    return {
        "arm_id": arm_id(subscription, group, name),
        "subscription": subscription,
        "resource_group": group,
        "workspace": name,
        "id": str(properties.get("workspaceId") or ""),
        "location": str(answer.get("location") or ""),
        "tracking_uri": str(properties.get("mlFlowTrackingUri") or ""),
        "discovery": str(properties.get("discoveryUrl") or ""),
        "state": str(properties.get("provisioningState") or ""),
    }


def _api(discovery: str) -> str:
    """Return the URL of the data plane; requested without a token, as the SDK does."""
    answer = Rest("", "", None).get(discovery, act="find the workspace's services")
    return str((answer.json or {}).get("api") or "").rstrip("/")


def _missing_permissions(arm: Rest) -> list[str]:
    """Return a sentence about actions that the account may not perform; empty if permissions are unknown."""
    try:
        granted = list(arm.pages("providers/Microsoft.Authorization/permissions", api="2022-04-01"))
    except AmlTrainError:
        return []
    if not granted:
        return []
    denied = [action_name for action_name, action in _PERMISSIONS.items() if not _allowed(action, granted)]
    return [f"You do not have permission to {' or '.join(denied)}. Request a role that allows it."] if denied else []


def _allowed(action: str, granted: list[dict[str, Any]]) -> bool:
    def among(patterns: Any) -> bool:
        return any(fnmatch.fnmatchcase(action.lower(), str(pattern).lower()) for pattern in patterns or ())

    return any(among(one.get("actions")) and not among(one.get("notActions")) for one in granted)
