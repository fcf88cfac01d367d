"""Artifacts of runs on the data plane: lists, and urls of contents.

Paths and shapes: the published swagger of run history (``/history/v1.0/.../artifacts``) and, the same below
``/artifact/v2.0``, what Azure ML's MLflow plugin calls.
"""

from __future__ import annotations

from typing import Any

from azureml_emulator import arm
from azureml_emulator.blob import ARTIFACTS
from azureml_emulator.datastores import storage
from azureml_emulator.history import each, find
from azureml_emulator.job_runs import Run
from azureml_emulator.routing import Call, Refused, Routes

routes = Routes()
_FROM = "/artifact/v2.0{ws}/artifacts"


async def _names(call: Call, run: Run, prefix: str = "") -> list[str]:
    start = run.prefix
    found = await storage(call.world).list(ARTIFACTS, start + prefix)
    return [name[len(start) :] for name, _ in found]


def _artifact(run: Run, path: str) -> dict[str, Any]:
    container = f"dcid.{run.name}"
    return {
        "artifactId": f"ExperimentRun/{container}/{path}",
        "origin": "ExperimentRun",
        "container": container,
        "path": path,
        "etag": None,
        "createdTime": run.modified_at,
        "dataPath": {
            "dataStoreName": "workspaceartifactstore",
            "relativePath": f"{run.prefix}{path}",
            "sqlQuery": None,
        },
    }


def _content(call: Call, run: Run, path: str) -> dict[str, Any]:
    seconds = float(call.world.switches["log_sas_seconds"])
    return {
        "contentUri": storage(call.world).url(ARTIFACTS, run.prefix + path, seconds=seconds),
        "origin": "ExperimentRun",
        "container": f"dcid.{run.name}",
        "path": path,
        "tags": {},
    }


def _page(call: Call, items: list[Any]) -> dict[str, Any]:
    size = int(call.world.switches["page_size"])
    at = int(call.query.get("continuationToken") or 0)
    more = str(at + size) if at + size < len(items) else None
    return {"value": items[at : at + size], "continuationToken": more, "nextLink": None}


def _run(call: Call) -> Run:
    if "container" in call.params:
        return find(call, call.params["container"].removeprefix("dcid."))
    return find(call)


@routes.data("GET", _FROM + "/ExperimentRun/{container}")
@each("GET", "/artifacts", routes)
@each("GET", "/artifacts/path", routes)
async def list_artifacts(call: Call) -> Any:
    """Artifacts, below ``path`` if there is one."""
    run = _run(call)
    names = await _names(call, run, call.query.get("path", ""))
    return _page(call, [_artifact(run, name) for name in names])


@routes.data("GET", _FROM + "/contentinfo/ExperimentRun/{container}")
@routes.data("GET", _FROM + "/contentinfo/ExperimentRun/{container}/{path*}")
@each("GET", "/artifacts/contentinfo", routes)
async def content(call: Call) -> Any:
    """Url of one artifact."""
    run = _run(call)
    path = call.params.get("path") or call.query.get("path", "")
    if path not in await _names(call, run, path):
        raise Refused(arm.compute_error(call.world, 404, f"Artifact {path} of run {run.name} was not found"))
    return _content(call, run, path)


@routes.data("GET", _FROM + "/prefix/contentinfo/ExperimentRun/{container}")
@routes.data("GET", _FROM + "/prefix/contentinfo/ExperimentRun/{container}/{path*}")
@each("GET", "/artifacts/prefix/contentinfo", routes)
async def contents(call: Call) -> Any:
    """Urls of all artifacts below a prefix."""
    run = _run(call)
    prefix = call.params.get("path") or call.query.get("path", "")
    return _page(call, [_content(call, run, name) for name in await _names(call, run, prefix)])


@each("POST", "/artifacts/batch/metadata", routes)
async def register(call: Call) -> Any:
    """Where empty artifacts may be written: for each path a url that takes a PUT; at most 100 (recording 11f)."""
    run = find(call)
    paths = [str(one["path"]) for one in (call.json() or {}).get("paths") or []]
    if len(paths) > 100:
        raise Refused(arm.compute_error(call.world, 400, "Artifact batch size exceeded the limit of 100"))
    blob = storage(call.world)
    found = {}
    for path in paths:
        url = blob.url(ARTIFACTS, run.prefix + path, permission="rcw", seconds=3600)
        found[path] = {**_content(call, run, path), "contentUri": url}
    return {
        "artifacts": {path: _artifact(run, path) for path in paths},
        "artifactContentInformation": found,
        "errors": {},
    }
