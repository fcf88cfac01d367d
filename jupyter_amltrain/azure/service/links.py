"""Links of a job: its page in the studio, and its interactive services while it runs.

Service URLs: ``GET {api}/history/v1.0{WS}/runs/{name}/serviceinstances/{node}`` (the SDK's ``jobs.show_services``).
Links are stripped of query and user, because a URL that contains a key would be a secret.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit, urlunsplit

from jupyter_amltrain.azure.service import http
from jupyter_amltrain.azure.service.account import env_seconds
from jupyter_amltrain.errors import AmlTrainError

if TYPE_CHECKING:
    from jupyter_amltrain.azure.service.cloud import Workspace

log = logging.getLogger("amltrain.azure")

_TITLES = {"jupyterlab": "JupyterLab", "vscode": "VS Code", "tensorboard": "TensorBoard", "ssh": "SSH"}
#: Services that every job has; they are not links.
_COMMON_SERVICES = ("tracking", "studio")
#: Poll interval of a job's services in seconds: while some are not open yet, and afterwards.
_INTERVAL_S, _COMPLETE_INTERVAL_S = 5.0, 60.0
_MAX_CACHED = 500


def links_of(ws: Workspace, row: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the links of a job with a known row. Errors of the services are logged, not raised."""
    name = str(row["name"])
    links = [studio_link(ws, name)]
    if row.get("status") != "Running":
        return links
    try:
        return links + _services(ws, name)
    except AmlTrainError as error:
        log.info("services of %s: %s", name, error)
        return links


def studio_link(ws: Workspace, name: str) -> dict[str, str]:
    """Return the link to the job's studio page, which is valid during and after the job."""
    return {"kind": "studio", "title": "Azure ML studio", "url": studio_url(ws, name)}


def studio_url(ws: Workspace, name: str) -> str:
    """Return the URL of a job's page in the studio."""
    below = f"/subscriptions/{ws.subscription}/resourcegroups/{ws.resource_group}/workspaces/{ws.workspace}"
    tenant = f"&tid={ws.tenant}" if ws.tenant else ""
    return f"https://ml.azure.com/runs/{name}?wsid={below}{tenant}"


def record_services(ws: Workspace, name: str, services: Mapping[str, Any]) -> None:
    """Record the services that a job was submitted with, so that they need not be requested."""
    kinds = {key: kind for key, service in services.items() if (kind := _kind((service or {}).get("jobServiceType")))}
    with _lock:
        for cache in (_requested_services, _services_cache):
            while len(cache) >= _MAX_CACHED:
                del cache[next(iter(cache))]
        _requested_services[ws.name, name] = kinds


def safe_url(url: Any) -> str:
    """Return an https URL without the parts that could contain a secret; empty for any other URL."""
    try:
        parts = urlsplit(str(url or ""))
        if parts.scheme != "https" or not parts.hostname:
            return ""
        return urlunsplit(("https", parts.netloc.rpartition("@")[2], parts.path, "", ""))
    except ValueError:
        return ""


def _services(ws: Workspace, name: str) -> list[dict[str, str]]:
    key = (ws.name, name)
    with _lock:
        requested, (fetched_at, links) = _requested_services.get(key), _services_cache.get(key, (-1e9, []))
    if requested is None:
        requested = _read_requested(ws, name)
    if not requested:
        return []
    all_open = len(links) >= len(requested) and all(link.get("url") or link["kind"] == "ssh" for link in links)
    if time.monotonic() - fetched_at < (_COMPLETE_INTERVAL_S if all_open else env_seconds("LINKS", _INTERVAL_S)):
        return links
    answer = ws.data.get(
        f"{ws.history}/runs/{quote(name, safe='')}/serviceinstances/0",
        api=http.HISTORY,
        ok=(200, 404),
        act=f"find the services of job {name}",
    )
    instances = ((answer.json or {}).get("instances") or {}) if answer.status == 200 else {}
    links = [
        _link(ws, name, key, instance, requested.get(key, ""))
        for key, instance in instances.items()
        if isinstance(instance, dict)
    ]
    with _lock:
        _services_cache[ws.name, name] = time.monotonic(), links
    return links


def _read_requested(ws: Workspace, name: str) -> dict[str, str]:
    """Read the services of a job that another user or an earlier process submitted."""
    answer = ws.arm.get(f"jobs/{quote(name, safe='')}", api=http.ARM, ok=(200, 404), act=f"read job {name}")
    body = (answer.json or {}).get("properties") or {} if answer.status == 200 else {}
    record_services(ws, name, body.get("services") or {})
    with _lock:
        return _requested_services[ws.name, name]


def _link(ws: Workspace, job: str, name: str, instance: Mapping[str, Any], requested: str) -> dict[str, str]:
    kind = _kind(instance.get("type")) or requested or "other"
    link = {"kind": kind, "title": _TITLES.get(kind, name)}
    if error := _message(instance.get("error")):
        return {**link, "hint": f"not open: {error[:200]}"}
    if kind == "ssh":
        workspace = f"--resource-group {ws.resource_group} --workspace-name {ws.workspace}"
        return {**link, "hint": f"az ml job connect-ssh --name {job} {workspace} --private-key-file-path KEY"}
    url = safe_url(instance.get("endpoint"))
    return {**link, "url": url} if url else {**link, "hint": "opens soon"}


def _message(error: Any) -> str:
    """Return the message of an error, which is a text or an object of the API (``ErrorResponse``)."""
    if not isinstance(error, dict):
        return " ".join(str(error or "").split())
    nested = error.get("error")
    inner = nested if isinstance(nested, dict) else error
    return " ".join(str(inner.get("message") or inner.get("code") or "the service gives no reason").split())


def _kind(text: Any) -> str:
    """Normalize the service's spelling of a kind (``JupyterLab``, ``jupyter_lab``); empty for services of every job."""
    word = re.sub(r"[^a-z]", "", str(text or "").lower())
    return "" if word in _COMMON_SERVICES else word if word in _TITLES else "other" if word else ""


_lock = threading.Lock()
_requested_services: dict[tuple[str, str], dict[str, str]] = {}
_services_cache: dict[tuple[str, str], tuple[float, list[dict[str, str]]]] = {}
