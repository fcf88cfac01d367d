"""Ways to look at a job and into it: its page in the studio, and while it runs its interactive services.

Addresses of services: ``GET {api}/history/v1.0{WS}/runs/{name}/serviceinstances/{node}`` (the SDK's
``jobs.show_services``). What is told has no query and no user: an address that carried a key would be a secret.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit, urlunsplit

from jupyter_amltrain.backends.azureml.service import http
from jupyter_amltrain.backends.azureml.service.account import setting
from jupyter_amltrain.errors import AmlTrainError

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.service.cloud import Workspace

log = logging.getLogger("amltrain.azure")

_TITLES = {"jupyterlab": "JupyterLab", "vscode": "VS Code", "tensorboard": "TensorBoard", "ssh": "SSH"}
#: Services that every job has; they are no doors.
_EVERY = ("tracking", "studio")
#: Seconds between two looks at the services of a job: while some are not open yet, and afterwards.
_INTERVAL_S, _COMPLETE_INTERVAL_S = 5.0, 60.0
_MAX_CACHED = 500


def of_row(place: Workspace, row: Mapping[str, Any]) -> list[dict[str, str]]:
    """The doors of a job whose row is known; never fails for them."""
    name = str(row["name"])
    found = [page(place, name)]
    if row.get("status") != "Running":
        return found
    try:
        return found + _services(place, name)
    except AmlTrainError as error:
        log.info("services of %s: %s", name, error)
        return found


def page(place: Workspace, name: str) -> dict[str, str]:
    """The door that every job has, now and when it has ended."""
    return {"kind": "studio", "title": "Azure ML studio", "url": studio_url(place, name)}


def studio_url(place: Workspace, name: str) -> str:
    """The job's page."""
    below = f"/subscriptions/{place.subscription}/resourcegroups/{place.resource_group}/workspaces/{place.workspace}"
    tenant = f"&tid={place.tenant}" if place.tenant else ""
    return f"https://ml.azure.com/runs/{name}?wsid={below}{tenant}"


def expected(place: Workspace, name: str, services: Mapping[str, Any]) -> None:
    """What was asked for with a job: it need not be asked whether it has any."""
    kinds = {key: kind for key, one in services.items() if (kind := _kind((one or {}).get("jobServiceType")))}
    with _guard:
        for known in (_asked, _told):
            while len(known) >= _MAX_CACHED:
                del known[next(iter(known))]
        _asked[place.name, name] = kinds


def plain(url: Any) -> str:
    """An address that a browser can open, without what could be a secret; empty for any other."""
    try:
        parts = urlsplit(str(url or ""))
        if parts.scheme != "https" or not parts.hostname:
            return ""
        return urlunsplit(("https", parts.netloc.rpartition("@")[2], parts.path, "", ""))
    except ValueError:
        return ""


def _services(place: Workspace, name: str) -> list[dict[str, str]]:
    key = (place.name, name)
    with _guard:
        asked, (at, told) = _asked.get(key), _told.get(key, (-1e9, []))
    if asked is None:
        asked = _ask(place, name)
    if not asked:
        return []
    whole = len(told) >= len(asked) and all(door.get("url") or door["kind"] == "ssh" for door in told)
    if time.monotonic() - at < (_COMPLETE_INTERVAL_S if whole else setting("DOORS", _INTERVAL_S)):
        return told
    answer = place.data.get(
        f"{place.history}/runs/{quote(name, safe='')}/serviceinstances/0",
        api=http.HISTORY,
        ok=(200, 404),
        act=f"look for the services of job {name}",
    )
    there = ((answer.json or {}).get("instances") or {}) if answer.status == 200 else {}
    told = [_door(place, name, key, one, asked.get(key, "")) for key, one in there.items() if isinstance(one, dict)]
    with _guard:
        _told[place.name, name] = time.monotonic(), told
    return told


def _ask(place: Workspace, name: str) -> dict[str, str]:
    """The services of a job that somebody else, or an earlier process, has sent."""
    answer = place.arm.get(f"jobs/{quote(name, safe='')}", api=http.ARM, ok=(200, 404), act=f"look at job {name}")
    body = (answer.json or {}).get("properties") or {} if answer.status == 200 else {}
    expected(place, name, body.get("services") or {})
    with _guard:
        return _asked[place.name, name]


def _door(place: Workspace, job: str, name: str, told: Mapping[str, Any], asked: str) -> dict[str, str]:
    kind = _kind(told.get("type")) or asked or "other"
    door = {"kind": kind, "title": _TITLES.get(kind, name)}
    if error := _message(told.get("error")):
        return {**door, "hint": f"not open: {error[:200]}"}
    if kind == "ssh":
        where = f"--resource-group {place.resource_group} --workspace-name {place.workspace}"
        return {**door, "hint": f"az ml job connect-ssh --name {job} {where} --private-key-file-path KEY"}
    url = plain(told.get("endpoint"))
    return {**door, "url": url} if url else {**door, "hint": "opens soon"}


def _message(error: Any) -> str:
    """Return the sentence of an error: a text, or an object of the API (``ErrorResponse``), which has one in it."""
    if not isinstance(error, dict):
        return " ".join(str(error or "").split())
    nested = error.get("error")
    inner = nested if isinstance(nested, dict) else error
    return " ".join(str(inner.get("message") or inner.get("code") or "the service gives no reason").split())


def _kind(text: Any) -> str:
    """The kind in any spelling of the service (``JupyterLab``, ``jupyter_lab``); empty for those of every job."""
    word = re.sub(r"[^a-z]", "", str(text or "").lower())
    return "" if word in _EVERY else word if word in _TITLES else "other" if word else ""


_guard = threading.Lock()
_asked: dict[tuple[str, str], dict[str, str]] = {}
_told: dict[tuple[str, str], tuple[float, list[dict[str, str]]]] = {}
