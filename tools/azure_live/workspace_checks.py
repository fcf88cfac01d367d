"""Checks of an empty workspace and of a cluster.

Each check queries the service directly, not through the product's parsing, and returns whether the assumption holds
and what was observed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from jupyter_amltrain.azure.environments import DEFAULT_ENVIRONMENT, DEFAULT_GPU_ENVIRONMENT
from jupyter_amltrain.azure.service import history, http
from jupyter_amltrain.azure.service.account import ARM_SCOPE
from jupyter_amltrain.azure.service.cloud import Workspace
from tools.azure_live.findings import ANY, Seen, attempt
from tools.azure_live.signed import seconds_left

ARM_HOST = "https://management.azure.com"

#: Switch -> how it is checked, as in the table of docs/azure-assumptions.md.
CHECKED: dict[str, str] = {}
_BEFORE: dict[str, Callable[[Workspace], Seen]] = {}


def before(switch: str, how: str) -> Callable[[Callable[[Workspace], Seen]], Callable[[Workspace], Seen]]:
    """Register a check of an empty workspace."""

    def register(check: Callable[[Workspace], Seen]) -> Callable[[Workspace], Seen]:
        CHECKED[switch], _BEFORE[switch] = how, check
        return check

    return register


def look_before(place: Workspace) -> dict[str, Seen]:
    """Run every check of a workspace; a check that raises counts as not checked."""
    return {switch: attempt(lambda check=check: check(place)) for switch, check in _BEFORE.items()}  # type: ignore[misc]


# ---- sign-in and the workspace


@before("challenge_tenant", "a request without a token")
def _tenant(place: Workspace) -> Seen:
    answer = http.Rest(ARM_HOST, "", None).get(f"/subscriptions/{place.subscription}", api=http.RESOURCES, ok=ANY)
    has_directory = "authorization_uri=" in answer.headers.get("www-authenticate", "")
    return (
        answer.status == 401 and has_directory,
        f"{answer.status}, the directory is {'named' if has_directory else 'not named'}",
    )


@before("permissions_readable", "GET permissions")
def _permissions(place: Workspace) -> Seen:
    path = "providers/Microsoft.Authorization/permissions"
    answer = place.arm.get(path, api="2022-04-01", ok=ANY)
    return answer.status == 200, f"{answer.status}"


@before("discovery", "GET discoveryUrl")
def _discovery(place: Workspace) -> Seen:
    found = (place.arm.get("", api=http.ARM).json or {})["properties"]
    answer = http.Rest("", "", None).get(str(found["discoveryUrl"]), ok=ANY)
    return bool((answer.json or {}).get("api")), f"{answer.status}, api {(answer.json or {}).get('api')}"


@before("data_audience", "run history with either token")
def _audience(place: Workspace) -> Seen:
    statuses = {}
    for name, scope in (("ml", "https://ml.azure.com/.default"), ("arm", ARM_SCOPE)):
        plain = http.Rest(place.api, "", None)
        token = str(place.credential.get_token(scope).token)
        path = f"{place.history}/runs/amltrain-nobody/details"
        statuses[name] = plain.get(path, api=http.HISTORY, headers={"Authorization": f"Bearer {token}"}, ok=ANY).status
    return all(status != 401 for status in statuses.values()), ", ".join(f"{n}: {s}" for n, s in statuses.items())


_CURATED = tuple(f"environments/{name.partition('@')[0]}" for name in (DEFAULT_ENVIRONMENT, DEFAULT_GPU_ENVIRONMENT))


def _container(place: Workspace, path: str) -> tuple[int, str]:
    """Return the status of a container and its latest version."""
    answer = place.arm.get(path, api=http.ARM, ok=ANY)
    return answer.status, str(((answer.json or {}).get("properties") or {}).get("latestVersion") or "")


def _some_version(place: Workspace, path: str) -> str:
    for found in place.arm.pages(f"{path}/versions", api=http.ARM):
        return str(found["name"])
    raise LookupError(f"{path} has no version")


def _containers(place: Workspace) -> Seen:
    found = {path.rpartition("/")[2]: _container(place, path) for path in _CURATED}
    texts = (f"{name}: {status}, latestVersion {version or 'null'}" for name, (status, version) in found.items())
    return all(version for _, version in found.values()), "; ".join(texts)


_BEFORE["curated_container"] = _containers


@before("curated_conda", "GET of the curated environments that are used by default")
def _curated(place: Workspace) -> Seen:
    seen = []
    for path, version in ((path, _container(place, path)[1] or _some_version(place, path)) for path in _CURATED):
        found = (place.arm.get(f"{path}/versions/{version}", api=http.ARM).json or {})["properties"]
        seen.append((path.rpartition("/")[2], version, bool(found.get("condaFile"))))
    texts = (
        f"{name}:{version} {'with a conda file' if conda else 'is an image alone'}" for name, version, conda in seen
    )
    return not any(conda for *_, conda in seen), ", ".join(texts)


# ---- computes


@before("prices", "GET vmSizes")
def _prices(place: Workspace) -> Seen:
    found = _location(place, "vmSizes")
    priced = sum("estimatedVMPrices" in size for size in found)
    return priced > 0, f"{priced} of {len(found)} sizes have a price"


@before("low_priority_pool", "GET usages")
def _pool(place: Workspace) -> Seen:
    names = [str(item["name"]["value"]) for item in _location(place, "usages")]
    kinds = [str(item.get("type")) for item in _location(place, "usages")]
    one = "TotalLowPriorityCores" in names
    many = sum("lowpriority" in kind.lower() for kind in kinds) - one
    return one and not many, f"TotalLowPriorityCores {'there' if one else 'absent'}, {many} other low-priority rows"


@before("delete_missing", "DELETE of a compute that is not there")
def _missing(place: Workspace) -> Seen:
    params = {"underlyingResourceAction": "Delete"}
    answer = place.arm.delete(f"computes/amlt-{uuid.uuid4().hex[:8]}", api=http.ARM, params=params, ok=ANY)
    return answer.status == 204, f"{answer.status}"


@before("compute_envelope", "PUT of a cluster of a size that does not exist (rejected, nothing is created)")
def _envelope(place: Workspace) -> Seen:
    name = f"amlt-{uuid.uuid4().hex[:8]}"
    body = {"computeType": "AmlCompute", "properties": {"vmSize": "Standard_Nothing"}}
    whole = {"location": place.location, "properties": body}
    answer = place.arm.put(f"computes/{name}", api=http.ARM, json=whole, ok=ANY)
    if answer.status < 300:
        place.arm.delete(f"computes/{name}", api=http.ARM, params={"underlyingResourceAction": "Delete"}, ok=ANY)
        return False, f"{answer.status}: it was accepted"
    names = set(answer.json or {})
    return {"error", "componentName"} <= names, f"{answer.status}, {', '.join(sorted(names)) or 'empty'}"


@before("datastore_secret", "POST listSecrets, reading only the kind")
def _secret(place: Workspace) -> Seen:
    wish = {"expirableSecret": True, "expireAfterHours": 1}
    path = "datastores/workspaceartifactstore/listSecrets"
    answer = place.arm.post(path, api=http.ARM_PREVIEW, json=wish, ok=ANY)
    kind = str((answer.json or {}).get("secretsType") or "none")
    return kind == "Sas", f"{answer.status}, {kind}"


@before("upload_sas_seconds", "the end of a signature of startPendingUpload")
def _upload(place: Workspace) -> Seen:
    path = f"codes/{uuid.uuid4()}/versions/1/startPendingUpload"
    found = place.arm.post(path, api=http.ARM, json={"pendingUploadType": "TemporaryBlobReference"}).json or {}
    signed = str(found["blobReferenceForConsumption"]["credential"]["sasUri"])
    seconds = seconds_left(signed)
    return seconds is not None and seconds > 600, f"holds for {seconds and seconds / 3600:.1f} hours"


def _location(place: Workspace, what: str) -> list[dict[str, Any]]:
    root = f"/subscriptions/{place.subscription}/providers/Microsoft.MachineLearningServices"
    return list(place.arm.pages(f"{root}/locations/{place.location}/{what}", api=http.ARM))


CHECKED["retry_after_header"] = CHECKED["long_poll_urls"] = "headers of a PATCH of the cluster; its poll url shortened"


def failure_found(instance: dict[str, Any]) -> Seen:
    """Return the finding for an instance whose start should have failed."""
    status = str((instance.get("lastOperation") or {}).get("operationStatus"))
    errors = [
        str((one.get("error") or one).get("code")) for one in instance.get("errors") or () if isinstance(one, dict)
    ]
    seen = f"state {instance.get('state')}, operationStatus {status}, errors {', '.join(errors) or 'none'}"
    if status == "Succeeded":
        return None, f"the start did not fail: {seen}"
    return status == "StartFailed" and bool(errors), seen


def look_at_list(place: Workspace, most: int = 50) -> dict[str, Seen]:
    """Check whether the job list starts with the newest job, using the first `most` jobs."""
    times = []
    for job in place.arm.pages("jobs", api=http.ARM, params={"listViewType": "ActiveOnly"}):
        times.append(history.unix((job.get("systemData") or {}).get("createdAt")))
        if len(times) >= most:
            break
    known = [time for time in times if time is not None]
    if len(known) < 2:
        return {"jobs_newest_first": (None, f"{len(known)} jobs with a time")}
    sound = all(a >= b for a, b in zip(known, known[1:], strict=False))
    way = "newest first" if sound else "oldest first" if known == sorted(known) else "no order"
    return {"jobs_newest_first": (sound, f"{len(known)} jobs, {way}")}


def look_at_cluster(place: Workspace, name: str) -> dict[str, Seen]:
    """Check the headers of a long operation without effect, and a shortened poll URL."""
    inner = (place.arm.get(f"computes/{name}", api=http.ARM).json or {})["properties"]["properties"]
    body = {"properties": {"properties": {"scaleSettings": inner["scaleSettings"]}}}
    answer = place.arm.patch(f"computes/{name}", api=http.ARM, json=body)
    url = answer.headers.get("azure-asyncoperation", "")
    wait = answer.headers.get("retry-after") or answer.headers.get("x-ms-retry-after-ms")
    found: dict[str, Seen] = {"retry_after_header": (wait is None, f"Retry-After: {wait or 'none'}")}
    if not url:
        return {**found, "long_poll_urls": (None, "no Azure-AsyncOperation")}
    short = place.arm.get(url.partition("&")[0], ok=ANY).status
    found["long_poll_urls"] = len(url) > 1000 and short >= 400, f"{len(url)} characters, shortened: {short}"
    return found
