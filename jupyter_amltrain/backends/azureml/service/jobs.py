"""Jobs at the service: look, list, cancel, archive."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jupyter_amltrain.backends.azureml import faults
from jupyter_amltrain.backends.azureml.service import doors, history, rest
from jupyter_amltrain.errors import (
    AmlTrainError,
    CommandError,
)

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.service.cloud import Workspace
    from jupyter_amltrain.backends.azureml.service.operations import ServiceCall

log = logging.getLogger("amltrain.azure")

#: Jobs of a workspace that are looked at for a list, newest first: a busy one has a hundred thousand.
_LOOKED = 2000
#: Of jobs in a list that did not complete, so many are asked for why.
_ASKED_WHY = 20
#: Properties of a job that are ours.
_OURS = "amltrain."
_TERMINAL = ("Completed", "Failed", "Canceled")


def is_taken(place: Workspace, name: str) -> bool:
    """Whether the workspace has a job of that name."""
    return job_of(place, name) is not None


def job_of(place: Workspace, name: str) -> dict[str, Any] | None:
    """A job's JSON; ``None`` when there is none of that name."""
    answer = place.arm.get(f"jobs/{quote(name, safe='')}", api=rest.ARM, ok=(200, 404), act=f"look at job {name}")
    return answer.json if answer.status == 200 else None


def poll(call: ServiceCall, *, workspace: str, names: Sequence[str]) -> dict[str, Any]:
    """Rows (:mod:`..job_rows`) of jobs by name, asked for at the same time; absent ones are left out."""
    place = call.cloud.workspace(workspace)

    def one(name: str) -> dict[str, Any] | None:
        try:
            row = history.look(place, name)
        except AmlTrainError as error:
            if faults.told(error).status in (403, 410):
                job_of(place, name)  # what run history says for a workspace that is gone nobody has recorded
            raise
        if row is None or row["status"] in history.ENDED_BADLY:
            job = job_of(place, name)
            if row is None and job is None:  # absent means lost to who asks: only where both do not know it
                return None
            # ARM alone knows the limit, by which a run that was canceled at it is told from others.
            told = history.row_of_job(job or {})
            row = told if row is None else {**row, "limit": told["limit"]}
        return {**row, "doors": doors.of_row(place, row)}

    rows = history.all_of(one, list(names))
    return {name: row for name, row in zip(names, rows, strict=True) if row is not None}


def get(call: ServiceCall, *, workspace: str, name: str) -> dict[str, Any] | None:
    """A job of any kind: ``{"row", "job"}``, its row and the parts of its JSON that tell its spec."""
    place = call.cloud.workspace(workspace)
    job, more = history.all_of(lambda ask: ask(place, name), [job_of, history.details])
    if job is None:
        return None
    better = None if more is None else history.row(name, more)
    if better is not None and better["status"] in (*history.QUEUED, *history.ENDED_BADLY):
        better = history.with_reason(better, history.record(place, name))
    row = history.completed(history.row_of_job(job), better)
    return {"row": {**row, "doors": doors.of_row(place, row)}, "job": shown(job)}


def list_all(
    call: ServiceCall, *, workspace: str, compute: str | None = None, known: Sequence[str] = (), limit: int = 500
) -> dict[str, Any]:
    """Command jobs, and those of YAML files that we have sent, newest first.

    Parameters
    ----------
    compute
        Only those of this compute; ``""`` for serverless ones.
    known
        Of these only the names are told.

    Returns
    -------
    dict
        ``names`` of all; ``jobs``: as :func:`get`, of those that are not `known`; ``whole``: there are no
        others, else there may be older ones.
    """
    place = call.cloud.workspace(workspace)
    names: list[str] = []
    found: list[dict[str, Any]] = []
    left = frozenset(known)
    pages = place.arm.pages("jobs", api=rest.ARM, params={"listViewType": "ActiveOnly"}, act="list the jobs")
    whole = True
    for number, job in enumerate(pages):
        call.check()
        if number >= _LOOKED or len(names) >= limit:
            whole = False
            break
        if not number % 100:
            call.progress(f"Listing the jobs: {number}")
        body = job.get("properties") or {}
        # Of pipelines, sweeps and the like only ours: nobody says on which compute the others count.
        own = "amltrain.compute" in (body.get("properties") or {})
        if (body.get("jobType") != "Command" and not own) or body.get("isArchived"):
            continue
        row = history.row_of_job(job)
        if compute is not None and row["compute"].lower() != compute.lower():
            continue
        names.append(row["name"])
        if row["name"] not in left:
            found.append({"row": row, "job": shown(job)})
    # The list says neither why a job failed or was canceled nor how far a live one is.
    asked = [one for one in found if one["row"]["status"] != "Completed"]
    asked = sorted(asked, key=lambda one: one["row"]["status"] == "Canceled")[:_ASKED_WHY]
    for one, more in zip(asked, history.all_of(lambda o: _more(place, o["row"]["name"]), asked), strict=True):
        one["row"] = history.completed(one["row"], more)
    for one in found:
        one["row"]["doors"] = [doors.page(place, one["row"]["name"])]
    return {"names": names, "jobs": found, "whole": whole}


def _more(place: Workspace, name: str) -> dict[str, Any] | None:
    found = history.record(place, name)
    return None if found is None else history.row(name, found)


def shown(job: Mapping[str, Any]) -> dict[str, Any]:
    """What of a job's JSON tells its spec."""
    body = job.get("properties") or {}
    kept = (
        "jobType", "displayName", "experimentName", "command", "resources", "distribution", "environmentId",
        "environmentVariables", "tags", "computeId", "codeId", "isArchived",
    )  # fmt: skip
    studio = ((body.get("services") or {}).get("Studio") or {}).get("endpoint")
    ours = {k: v for k, v in (body.get("properties") or {}).items() if str(k).startswith(_OURS)}
    shown = {key: body.get(key) for key in kept if body.get(key) is not None}
    return {**shown, "properties": ours, "studio_url": studio or ""}


def cancel(call: ServiceCall, *, workspace: str, name: str) -> None:
    """Ask for the end of a job; one that has ended or is not there is left alone."""
    place = call.cloud.workspace(workspace)
    path = f"jobs/{quote(name, safe='')}/cancel"
    try:
        place.arm.post(path, api=rest.ARM, ok=(200, 202, 204, 404), act=f"cancel job {name}")
    except AmlTrainError as error:
        job = job_of(place, name)
        status = ((job or {}).get("properties") or {}).get("status")
        if job is None or status in (*_TERMINAL, "CancelRequested"):
            return
        raise error


def archive(call: ServiceCall, *, workspace: str, name: str) -> None:
    """Take an ended job out of the lists. The service deletes no job.

    Raises
    ------
    CommandError
        It has not ended.
    """
    place = call.cloud.workspace(workspace)
    job = job_of(place, name)
    if job is None:
        return
    if (job.get("properties") or {}).get("status") not in _TERMINAL:
        raise CommandError(f"{name} has not ended.", hint="Cancel it first.")
    from jupyter_amltrain.backends.azureml.service import sdk

    try:
        sdk.client(call.cloud, place).jobs.archive(name)
    except Exception as error:
        plain = faults.of_exception(error, place.name)
        if plain is None:
            raise
        raise plain from error


def outputs(call: ServiceCall, *, workspace: str, name: str, folder: str, paths: Sequence[str] = ("outputs/",)) -> Any:
    """Download files of a job below `paths` into `folder`: ``{"files", "bytes"}``."""
    from jupyter_amltrain.backends.azureml.service import artifacts

    return artifacts.download(call, call.cloud.workspace(workspace), name, folder, paths)
