"""Connecting to a workspace: who is signed in, where it is, and what is missing."""

from __future__ import annotations

import difflib
import fnmatch
import importlib.util
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.backends.azureml import errors
from jupyter_amltrain.backends.azureml.service import auth, sdk
from jupyter_amltrain.backends.azureml.service.account import ARM_SCOPE, Account
from jupyter_amltrain.backends.azureml.service.cloud import ARM_HOST, arm_id
from jupyter_amltrain.backends.azureml.service.http import ARM, RESOURCES, Rest
from jupyter_amltrain.errors import AmlTrainError, AuthenticationError, CommandError

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.service.operations import ServiceCall

_GUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_TENANT = re.compile(r'authorization_uri="https?://[^/"]+/([^/"]+)', re.IGNORECASE)
#: What one wants to do, by the permission that it needs (Azure's built-in roles for Azure ML).
_WISHES = {
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
        The fields of :class:`jupyter_amltrain.backends.azureml.workspace_file.WorkspaceFacts`, ``how`` (what
        signed us in) and ``missing``: a sentence for each thing that will not work.

    Raises
    ------
    CommandError
        There is no such workspace, group or subscription; near ones are named.
    AuthenticationError
        Nobody is signed in, or not allowed to read it.
    """
    given = tenant
    if not tenant and _GUID.fullmatch(subscription):
        call.progress("Asking which directory the subscription belongs to")
        tenant = tenant_of(subscription)
    accounts = _accounts(call, tenant, method, name)
    account, answer, subscription = _signed_in(accounts, subscription, resource_group, workspace, tenant)
    who = account.who()
    call.progress(f"Signed in as {who['user']}, reading the workspace")
    found = _facts(answer, subscription, resource_group, workspace)
    found |= {
        "name": name or str(found["workspace"]),
        "user": who["user"],
        "tenant": who["tenant"] or tenant or given,
        "method": account.method,
        "account": account.record,
        "how": account.how,
    }
    found["studio_url"] = f"https://ml.azure.com/?wsid={found.pop('arm_id')}&tid={found['tenant']}"
    missing: list[str] = []
    discovery = str(found.pop("discovery"))
    try:
        found["api"] = _api(discovery)
    except AmlTrainError as error:
        found["api"] = f"https://{found['location']}.api.azureml.ms"
        missing.append(f"The workspace's own services do not answer, so logs and metrics may be absent: {error}")
    if found.pop("state") not in ("Succeeded", ""):
        missing.append("The workspace is not ready yet: see the studio.")
    made = call.cloud.add(found, account)
    missing += _forbidden(made.arm)
    if importlib.util.find_spec("azure.ai") is None or importlib.util.find_spec("azure.ai.ml") is None:
        missing.append("The package azure-ai-ml is missing: pip install azure-ai-ml")
    else:
        sdk.warm()
    return {**found, "missing": missing}


def add(call: ServiceCall, *, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Add a workspace that was connected before. No network."""
    made = call.cloud.add(facts)
    return {"name": made.name}


def forget(call: ServiceCall, *, workspace: str) -> None:
    """Forget a workspace."""
    call.cloud.forget(workspace)
    sdk.forget(workspace)


def whoami(call: ServiceCall, *, workspace: str) -> dict[str, str]:
    """``user``, ``tenant`` and ``how`` of who is signed in now."""
    account = call.cloud.workspace(workspace).credential
    return {**account.who(), "how": account.how}


def tenant_of(subscription: str) -> str:
    """The directory of a subscription, from ARM's challenge to a request without a token; empty when it is not told.

    ``401 WWW-Authenticate: Bearer authorization_uri="https://login.windows.net/<tenant>"``.

    Raises
    ------
    CommandError
        ARM knows no such subscription.
    """
    answer = Rest(ARM_HOST, "", None).get(f"/subscriptions/{subscription}", api=RESOURCES, ok=range(200, 600))
    if answer.status == 404:
        raise _no_subscription(subscription)
    found = _TENANT.search(answer.headers.get("www-authenticate", ""))
    return found[1] if found else ""


def _no_subscription(subscription: str) -> CommandError:
    return CommandError(
        f"Azure knows no subscription {subscription!r}.",
        hint="Check --subscription (the portal's overview page of the workspace shows it).",
    )


def _signed_in(
    accounts: Iterator[Account], subscription: str, group: str, workspace: str, tenant: str
) -> tuple[Account, dict[str, Any], str]:
    """The account that may read the workspace, the workspace, and its subscription's id."""
    refusal: AmlTrainError | None = None
    for account in accounts:
        arm = Rest(ARM_HOST, "", account, ARM_SCOPE, where=workspace, user=account.who()["user"])
        if not account.tenant:
            account.tenant = tenant
        try:
            known = subscription if _GUID.fullmatch(subscription) else _by_name(arm, subscription)
            return account, _read(arm, known, group, workspace), known
        except AuthenticationError as error:
            refusal = refusal or error  # perhaps somebody else is signed in, too
            refusal.hint = "Sign in as somebody who may: %aml_compute connect --sign-in device"
    assert refusal is not None
    raise refusal


def _accounts(call: ServiceCall, tenant: str, method: str, name: str) -> Iterator[Account]:
    if not method and (person := call.cloud.person(name)) is not None:
        yield person
    if method in ("", "auto"):
        found = False
        try:
            for account in auth.candidates(tenant, call.progress):
                found = True
                yield account
        except AuthenticationError as error:
            if error.code != auth.NOT_SIGNED_IN:
                raise
            call.progress(f"{error.message} Asking you.")
        if found:
            return
    yield auth.interactive(method or "auto", tenant, call.event)


def _by_name(arm: Rest, name: str) -> str:
    there = {
        str(one.get("displayName")): str(one.get("subscriptionId"))
        for one in arm.pages("/subscriptions", api=RESOURCES)
    }
    for known, guid in there.items():
        if known.lower() == name.lower():
            return guid
    near = difflib.get_close_matches(name, there, 3, 0.4) or list(there)[:5]
    hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else "You have access to none."
    raise CommandError(f"Subscription {name!r} does not exist, or you have no access to it.", hint=hint)


def _read(arm: Rest, subscription: str, group: str, workspace: str) -> dict[str, Any]:
    try:
        answer = arm.get(arm_id(subscription, group, workspace), api=ARM, act="read the workspace")
    except AmlTrainError as error:
        said = errors.details_of(error)
        if said.status == 404 or "SubscriptionNotFound" in said.codes:
            raise _not_found(arm, said.codes, subscription, group, workspace) from error
        raise
    return dict(answer.json or {})


def _not_found(arm: Rest, codes: tuple[str, ...], subscription: str, group: str, workspace: str) -> CommandError:
    """What is not there, and what is like it."""
    if "SubscriptionNotFound" in codes or "InvalidSubscriptionId" in codes:
        return _no_subscription(subscription)
    base = f"/subscriptions/{subscription}"
    if "ResourceGroupNotFound" in codes:
        names = _names(arm, f"{base}/resourcegroups", RESOURCES)
        return CommandError(f"There is no resource group {group!r} in the subscription.", hint=_near(group, names))
    names = _names(arm, f"{base}/resourceGroups/{group}/providers/Microsoft.MachineLearningServices/workspaces", ARM)
    text = f"There is no workspace {workspace!r} in the resource group {group!r}."
    if names:
        return CommandError(text, hint=_near(workspace, names))
    everywhere = {
        str(one.get("name")): str(one.get("id", "")).split("/")[4]
        for one in _list(arm, f"{base}/providers/Microsoft.MachineLearningServices/workspaces", ARM)
        if str(one.get("id", "")).count("/") > 4
    }
    if workspace in everywhere:
        return CommandError(
            text, hint=f"There is one in {everywhere[workspace]!r}: --resource-group {everywhere[workspace]}"
        )
    return CommandError(text, hint=_near(workspace, list(everywhere)))


def _list(arm: Rest, path: str, api: str) -> list[dict[str, Any]]:
    try:
        return list(arm.pages(path, api=api))
    except AmlTrainError:  # who may not list them is told less
        return []


def _names(arm: Rest, path: str, api: str) -> list[str]:
    return [str(one.get("name")) for one in _list(arm, path, api)]


def _near(word: str, words: list[str]) -> str:
    near = difflib.get_close_matches(word, words, 3, 0.5)
    if near:
        return f"Did you mean {' or '.join(near)}?"
    return f"There is: {', '.join(words[:8])}." if words else "You have access to none there."


def _facts(answer: Mapping[str, Any], subscription: str, group: str, workspace: str) -> dict[str, Any]:
    properties = answer.get("properties") or {}
    name = str(answer.get("name") or workspace)  # as it is written there
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
    """Address of the data plane; asked without a token, as the SDK does."""
    answer = Rest("", "", None).get(discovery, act="find the workspace's services")
    return str((answer.json or {}).get("api") or "").rstrip("/")


def _forbidden(arm: Rest) -> list[str]:
    """What the account may not do, one sentence; nothing when Azure does not tell."""
    try:
        granted = list(arm.pages("providers/Microsoft.Authorization/permissions", api="2022-04-01"))
    except AmlTrainError:
        return []
    if not granted:
        return []
    lacking = [wish for wish, action in _WISHES.items() if not _allowed(action, granted)]
    return [f"You may not {' or '.join(lacking)} there: ask for a role that allows it."] if lacking else []


def _allowed(action: str, granted: list[dict[str, Any]]) -> bool:
    def among(patterns: Any) -> bool:
        return any(fnmatch.fnmatchcase(action.lower(), str(pattern).lower()) for pattern in patterns or ())

    return any(among(one.get("actions")) and not among(one.get("notActions")) for one in granted)
