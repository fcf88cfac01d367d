"""Jobs at the service: submit, look, list, cancel, archive."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jupyter_amltrain.agent import failpoints
from jupyter_amltrain.backends.azureml import faults
from jupyter_amltrain.backends.azureml.process import code_assets, environments, history, rest, serve
from jupyter_amltrain.errors import (
    AmlTrainError,
    AuthenticationError,
    CommandError,
    EnvironmentFailed,
    SubmitError,
    SubmitUnsure,
)

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.process.cloud import Workspace
    from jupyter_amltrain.backends.azureml.process.serve import Call

log = logging.getLogger("amltrain.azure")

#: Jobs of a workspace that are looked at for a list, newest first: a busy one has a hundred thousand.
_LOOKED = 2000
#: Of failed jobs in a list, so many are asked for why.
_ASKED_WHY = 20
#: Properties of a job that are ours.
_OURS = "amltrain."
_TERMINAL = ("Completed", "Failed", "Canceled")

_pool = ThreadPoolExecutor(8, "amltrain-azure-submit")


def submit(call: Call, *, workspace: str, job: Mapping[str, Any], files: Mapping[str, str | bytes]) -> dict[str, Any]:
    """Send a job; the code before it.

    Parameters
    ----------
    job
        ``name``; ``body``: ``properties`` of the job as ARM takes them, without code and environment;
        ``environment`` (see :func:`..mapping.environment_of`); ``code``: ``script``, ``digest``,
        ``job_file``; ``git``: a folder whose git facts the job gets.
    files
        The snapshot.

    Returns
    -------
    dict
        ``name``, ``status``, ``studio_url``, ``created``.
    """
    place = call.cloud.workspace(workspace)
    name, body = str(job["name"]), dict(job["body"])

    def here(work: Any, *args: Any, **keywords: Any) -> Any:
        with serve.working_for(call):
            return work(*args, **keywords)

    # None of them needs another's answer; the SDK may still be on its way into memory.
    taken = _pool.submit(here, is_taken, place, name)
    environment = _pool.submit(here, environments.resolved, place, job["environment"])
    git = _pool.submit(_git, str(job.get("git") or ""))
    code = code_assets.send(call, place, files=files, **job["code"])
    staged = not code.startswith("/subscriptions/") and os.path.isdir(code)
    try:
        if taken.result():
            raise SubmitError(f"{workspace} has a job {name} already.", hint="Submit it again under another name.")
        body["properties"] = {**git.result(), **(body.get("properties") or {})}
        call.check()
        call.progress("Submitting the job.")
        failpoints.hit("azure_before_put")
        return _created(call, place, name, body, code, environment.result())
    finally:
        if staged:
            shutil.rmtree(code, ignore_errors=True)


def _created(
    call: Call, place: Workspace, name: str, body: Mapping[str, Any], code: str, environment: Any
) -> dict[str, Any]:
    from jupyter_amltrain.backends.azureml.process import sdk, sdk_jobs

    for again in (False, True):
        entity = sdk_jobs.command_of(name, body, code, environment)
        try:
            made = sdk.client(call.cloud, place).jobs.create_or_update(entity, skip_validation=True)
            break
        except Exception as error:
            plain = faults.of_exception(error, place.name, "take the job")
            if plain is None:
                raise
            if (there := accepted(call, place, name, plain)) is not None:
                return there
            if isinstance(plain, AuthenticationError) and not again and _status(error) == 401:
                # A token that was taken back before its time: our own client gets a new one, the SDK keeps the old.
                sdk.forget(place.name)
                is_taken(place, name)
                continue
            raise _refused(plain, body, environment) from error
    failpoints.hit("azure_after_put")
    return answer_of(made, place, name)


def accepted(call: Call, place: Workspace, name: str, error: AmlTrainError) -> dict[str, Any] | None:
    """The job, when it is there although no good answer came.

    A refusal may be that of a second try, whose name the first one has taken.

    Raises
    ------
    SubmitUnsure
        That cannot be found out within half a minute (``AMLTRAIN_AZURE_UNSURE``, seconds).
    """
    refused = not faults.unsure(error)
    if refused and faults.told(error).status not in (400, 409):
        return None
    until = time.monotonic() + rest.setting("UNSURE", 30.0)
    while True:
        try:
            job = _job(place, name)
            break
        except AmlTrainError as silent:
            if refused:
                return None
            if time.monotonic() > until:
                raise unsure(name, error.message) from silent
            call.progress(f"Asking whether the job was accepted: {silent.message}"[:200])
            call.wait(rest.setting("POLL", 2.0))
    if job is None:
        return None
    log.info("%s was accepted all the same: %s", name, error)
    row = history.row_of_job(job)
    return {
        "name": name,
        "status": row["status"],
        "studio_url": _shown(job)["studio_url"] or studio_url(place, name),
        "created": row["created"] or time.time(),
    }


def unsure(name: str, why: str) -> SubmitUnsure:
    """Nobody knows whether the service has a job."""
    return SubmitUnsure(
        f"{why} Whether {name} was accepted is not known.",
        hint="When Azure answers again, %aml_runs lists it if it was; look there before you submit it again.",
    )


def answer_of(made: Any, place: Workspace, name: str) -> dict[str, Any]:
    """What is told of a job that the SDK has sent."""
    services = made.services or {}
    studio = services.get("Studio")
    created = made.creation_context.created_at if made.creation_context else None
    return {
        "name": made.name,
        "status": made.status,
        "studio_url": str((studio.endpoint if studio else "") or studio_url(place, name)),
        "created": created.timestamp() if created else time.time(),
    }


def _status(error: Exception) -> int:
    """HTTP status of an error of azure-core; 0 without one."""
    return int(getattr(error, "status_code", 0) or 0)


def _refused(error: AmlTrainError, body: Mapping[str, Any], environment: Any) -> AmlTrainError:
    """In words for what a person asked for."""
    codes = " ".join(faults.told(error).codes)
    compute = str(body.get("computeId") or "").rpartition("/")[2]
    if "UnknownTargetType" in codes and compute:
        return SubmitError(
            f"There is no compute {compute!r} in the workspace any more.",
            hint="%aml_compute list shows what is there.",
        )
    if "EnvironmentNotFound" in codes and isinstance(environment, str):
        return EnvironmentFailed(
            f"There is no environment {environment.removeprefix('azureml:')!r} in the workspace.",
            hint="The studio lists them under Environments. Try: --env NAME@latest, or --env conda.yml",
        )
    if re.search(r"environment", f"{codes} {error.message}", re.I) and faults.told(error).status in (400, 404):
        return EnvironmentFailed(error.message, hint="Try another: --env NAME@latest, or --env conda.yml")
    return error


def is_taken(place: Workspace, name: str) -> bool:
    """Whether the workspace has a job of that name."""
    return _job(place, name) is not None


def _job(place: Workspace, name: str) -> dict[str, Any] | None:
    answer = place.arm.get(f"jobs/{quote(name, safe='')}", api=rest.ARM, ok=(200, 404), act=f"look at job {name}")
    return answer.json if answer.status == 200 else None


def _git(folder: str) -> dict[str, str]:
    """Git facts under the SDK's names; the SDK itself would take those of our own working folder."""
    if not folder or not os.path.isdir(folder) or shutil.which("git") is None:
        return {}

    def asked(*words: str) -> str:
        try:
            done = subprocess.run(
                ["git", "-C", folder, *words], capture_output=True, text=True, timeout=5, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = asked("rev-parse", "HEAD")
    if not commit:
        return {}
    url = re.sub(r"//[^/@]*@", "//", asked("ls-remote", "--get-url"))  # it may hold a token
    found = {
        "mlflow.source.git.repoURL": "" if url == "origin" else url,
        "mlflow.source.git.branch": asked("symbolic-ref", "--short", "HEAD"),
        "mlflow.source.git.commit": commit,
        "azureml.git.dirty": str(bool(asked("status", "--porcelain", "--untracked-files=no"))),
    }
    return {key: value[:1000] for key, value in found.items() if value}


def studio_url(place: Workspace, name: str) -> str:
    """The job's page."""
    below = f"/subscriptions/{place.subscription}/resourcegroups/{place.resource_group}/workspaces/{place.workspace}"
    return f"https://ml.azure.com/runs/{name}?wsid={below}"


def poll(call: Call, *, workspace: str, names: Sequence[str]) -> dict[str, Any]:
    """Rows (:mod:`..job_rows`) of jobs by name, asked for at the same time; absent ones are left out."""
    place = call.cloud.workspace(workspace)

    def one(name: str) -> dict[str, Any] | None:
        found = history.details(place, name)
        if found is not None:
            return history.row(name, found)
        job = _job(place, name)  # absent means lost to who asks: only where both do not know it
        return None if job is None else history.row_of_job(job)

    rows = history.all_of(one, list(names))
    return {name: row for name, row in zip(names, rows, strict=True) if row is not None}


def get(call: Call, *, workspace: str, name: str) -> dict[str, Any] | None:
    """A job of any kind: ``{"row", "job"}``, its row and the parts of its JSON that tell its spec."""
    place = call.cloud.workspace(workspace)
    job, more = history.all_of(lambda ask: ask(place, name), [_job, history.details])
    if job is None:
        return None
    row = history.row_of_job(job)
    return {"row": history.completed(row, None if more is None else history.row(name, more)), "job": _shown(job)}


def list_all(
    call: Call, *, workspace: str, compute: str | None = None, known: Sequence[str] = (), limit: int = 500
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
            found.append({"row": row, "job": _shown(job)})
    # The list says neither why a job failed nor how far a live one is.
    asked = [one for one in found if one["row"]["status"] not in ("Completed", "Canceled")][:_ASKED_WHY]
    for one, more in zip(asked, history.all_of(lambda o: _more(place, o["row"]["name"]), asked), strict=True):
        one["row"] = history.completed(one["row"], more)
    return {"names": names, "jobs": found, "whole": whole}


def _more(place: Workspace, name: str) -> dict[str, Any] | None:
    found = history.details(place, name)
    return None if found is None else history.row(name, found)


def _shown(job: Mapping[str, Any]) -> dict[str, Any]:
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


def cancel(call: Call, *, workspace: str, name: str) -> None:
    """Ask for the end of a job; one that has ended or is not there is left alone."""
    place = call.cloud.workspace(workspace)
    path = f"jobs/{quote(name, safe='')}/cancel"
    try:
        place.arm.post(path, api=rest.ARM, ok=(200, 202, 204, 404), act=f"cancel job {name}")
    except AmlTrainError as error:
        job = _job(place, name)
        status = ((job or {}).get("properties") or {}).get("status")
        if job is None or status in (*_TERMINAL, "CancelRequested"):
            return
        raise error


def archive(call: Call, *, workspace: str, name: str) -> None:
    """Take an ended job out of the lists. The service deletes no job.

    Raises
    ------
    CommandError
        It has not ended.
    """
    place = call.cloud.workspace(workspace)
    job = _job(place, name)
    if job is None:
        return
    if (job.get("properties") or {}).get("status") not in _TERMINAL:
        raise CommandError(f"{name} has not ended.", hint="Cancel it first.")
    from jupyter_amltrain.backends.azureml.process import sdk

    try:
        sdk.client(call.cloud, place).jobs.archive(name)
    except Exception as error:
        plain = faults.of_exception(error, place.name)
        if plain is None:
            raise
        raise plain from error


def outputs(call: Call, *, workspace: str, name: str, folder: str, paths: Sequence[str] = ("outputs/",)) -> Any:
    """Download files of a job below `paths` into `folder`: ``{"files", "bytes"}``."""
    from jupyter_amltrain.backends.azureml.process import artifacts

    return artifacts.download(call, call.cloud.workspace(workspace), name, folder, paths)
