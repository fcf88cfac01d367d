"""Named outputs of a job: their places in the workspace's datastores, and the files there."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.agent.protocol import OUTPUTS
from jupyter_amltrain.azure import errors
from jupyter_amltrain.azure.job_body import CHECKPOINTS_OUTPUT
from jupyter_amltrain.azure.service import artifacts, http
from jupyter_amltrain.errors import AmlTrainError, UnknownRun

if TYPE_CHECKING:
    from jupyter_amltrain.azure.service.cloud import Workspace
    from jupyter_amltrain.azure.service.operations import ServiceCall

log = logging.getLogger("amltrain.azure")

#: Outputs that every job has, and those of the agent.
_NOT_NAMED = ("default", CHECKPOINTS_OUTPUT)
_OF_STORE = re.compile(r"azureml://(?:subscriptions/.+/)?datastores/(?P<store>[^/]+)/paths/(?P<path>.+)")
#: Answers about one datastore; the files of the others are listed.
_UNREADABLE_STATUSES = (400, 403, 404, 409)


def named_outputs(place: Workspace, job: str) -> dict[str, dict[str, Any]]:
    """Return the outputs that a job declares, by name, as the service describes them.

    Raises
    ------
    UnknownRun
        There is no such job.
    """
    answer = place.arm.get(f"jobs/{job}", api=http.ARM, ok=(200, 404), act=f"read job {job}")
    if answer.status == 404:
        raise UnknownRun(f"There is no job {job!r} in {place.name}.", hint="See %aml_runs.")
    outputs = ((answer.json or {}).get("properties") or {}).get("outputs") or {}
    return {name: output or {} for name, output in outputs.items() if name not in _NOT_NAMED}


def output_uri(place: Workspace, job: str, name: str, output: Mapping[str, Any]) -> str:
    """Return the URI of a named output: as the job names it, else of its data asset, else the service's default."""
    uri = str(output.get("uri") or "")
    if not uri:  # the service registers the output as a data asset when the job has ended
        asset = f"data/azureml_{job}_output_data_{name}/versions/1"
        answer = place.arm.get(asset, api=http.ARM, ok=(200, 404), act=f"find the output {name} of {job}")
        uri = str(((answer.json or {}).get("properties") or {}).get("dataUri") or "") if answer.status == 200 else ""
    uri = uri or f"azureml://datastores/workspaceblobstore/paths/azureml/{job}/{name}/"
    return uri.replace("${{name}}", job)


def store_path(uri: str) -> tuple[str, str] | None:
    """Return datastore and path of a URI; ``None`` if it names no datastore."""
    match = _OF_STORE.fullmatch(uri)
    return None if match is None else (match["store"], match["path"].rstrip("/"))


def list_named(call: ServiceCall, place: Workspace, job: str) -> Iterator[tuple[str, artifacts.StoredFile]]:
    """Yield datastore and file of all named outputs, with paths as a run has them: ``outputs/NAME/...``."""
    for name, output in named_outputs(place, job).items():
        address = store_path(output_uri(place, job, name, output))
        if address is None:
            continue
        store, path = address
        try:
            container = artifacts.container_of(call, place, store)
            for file in artifacts.files_in(call, container, "", [path]):
                below = file.name[len(path) :]
                if not below or below.startswith("/"):  # another folder may begin with the same letters
                    yield store, file._replace(path=f"{OUTPUTS}/{name}{below}")
        except AmlTrainError as error:
            if error.code != artifacts.NOT_BLOBS and errors.details_of(error).status not in _UNREADABLE_STATUSES:
                raise
            log.info("output %s of %s: %s", name, job, error)


def job_files(
    call: ServiceCall, *, workspace: str, name: str, paths: Sequence[str], named: bool = False
) -> list[dict[str, Any]]:
    """List the files of a job below `paths`: ``path``, ``size``, ``modified``, and ``stored`` for `read_job_file`.

    Parameters
    ----------
    named
        Also list the files of its named outputs, as ``outputs/NAME/...``.
    """
    place = call.cloud.workspace(workspace)
    found = [({"path": file.path}, file) for file in artifacts.list_job_files(call, place, name, paths)]
    if named:
        found += [({"path": f.name, "store": store}, f) for store, f in list_named(call, place, name)]
    return [{"path": f.path, "size": f.size, "modified": f.modified, "stored": stored} for stored, f in found]
