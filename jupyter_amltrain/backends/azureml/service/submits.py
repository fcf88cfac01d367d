"""Submitting a job: its code, its environment, and then what the service says, whatever becomes of the answer."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.agent import failpoints
from jupyter_amltrain.backends.azureml import faults
from jupyter_amltrain.backends.azureml.service import code_assets, doors, environments, history
from jupyter_amltrain.backends.azureml.service.jobs import is_taken, job_of, shown
from jupyter_amltrain.backends.azureml.service.operations import setting
from jupyter_amltrain.errors import (
    AmlTrainError,
    AuthenticationError,
    EnvironmentFailed,
    SubmitError,
    SubmitUnsure,
)
from jupyter_amltrain.rpc import server

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.service.cloud import Workspace
    from jupyter_amltrain.backends.azureml.service.operations import ServiceCall

log = logging.getLogger("amltrain.azure")

#: Seconds that an accepted job waits for what is said of its environment, which was asked for long ago.
_NOTE = 3.0

_pool = ThreadPoolExecutor(8, "amltrain-azure-submit")


def submit(
    call: ServiceCall, *, workspace: str, job: Mapping[str, Any], files: Mapping[str, str | bytes]
) -> dict[str, Any]:
    """Send a job; the code before it.

    Parameters
    ----------
    job
        ``name``; ``body``: ``properties`` of the job as ARM takes them, without code and environment;
        ``environment`` (see :func:`..job_environment.environment_of`); ``code``: ``script``, ``digest``,
        ``job_file``; ``git``: a folder whose git facts the job gets.
    files
        The snapshot.

    Returns
    -------
    dict
        ``name``, ``status``, ``studio_url``, ``created``; ``conda``: what the service says is in its environment.
    """
    place = call.cloud.workspace(workspace)
    name, body = str(job["name"]), dict(job["body"])

    def here(work: Any, *args: Any, **keywords: Any) -> Any:
        with server.working_for(call):
            return work(*args, **keywords)

    # None of them needs another's answer; the SDK may still be on its way into memory.
    taken = _pool.submit(here, is_taken, place, name)
    environment = _pool.submit(here, environments.resolved, place, job["environment"])
    conda = _pool.submit(here, _told, place, environment)  # waits for what stands before it in the queue only
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
        doors.expected(place, name, body.get("services") or {})
        made = _created(call, place, name, body, code, environment.result())
        return {**made, "conda": _soon(conda)}
    finally:
        if staged:
            shutil.rmtree(code, ignore_errors=True)


def _told(place: Workspace, environment: Future[Any]) -> str:
    """The conda file of the environment; nothing where it is not there, which its own answer says."""
    try:
        found = environment.result()
    except Exception:  # told by who waits for the environment itself
        return ""
    return environments.conda_of(place, found)


def _soon(conda: Future[str]) -> str:
    """What there is of it: nobody waits for a note about a job that is accepted."""
    try:
        return conda.result(_NOTE)
    except TimeoutError:
        return ""


def _created(
    call: ServiceCall, place: Workspace, name: str, body: Mapping[str, Any], code: str, environment: Any
) -> dict[str, Any]:
    from jupyter_amltrain.backends.azureml.service import sdk, sdk_jobs

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
            compute = str(body.get("computeId") or "").rpartition("/")[2]
            raise plain_refusal(plain, compute, environment) from error
    failpoints.hit("azure_after_put")
    return answer_of(made, place, name)


def accepted(call: ServiceCall, place: Workspace, name: str, error: AmlTrainError) -> dict[str, Any] | None:
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
    until = time.monotonic() + setting("UNSURE", 30.0)
    while True:
        try:
            job = job_of(place, name)
            break
        except AmlTrainError as silent:
            if refused:
                return None
            if time.monotonic() > until:
                raise unsure(name, error.message) from silent
            call.progress(f"Asking whether the job was accepted: {silent.message}"[:200])
            call.wait(setting("POLL", 2.0))
    if job is None:
        return None
    log.info("%s was accepted all the same: %s", name, error)
    row = history.row_of_job(job)
    return {
        "name": name,
        "status": row["status"],
        "studio_url": shown(job)["studio_url"] or doors.studio_url(place, name),
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
        "studio_url": str((studio.endpoint if studio else "") or doors.studio_url(place, name)),
        "created": created.timestamp() if created else time.time(),
    }


def _status(error: Exception) -> int:
    """HTTP status of an error of azure-core; 0 without one."""
    return int(getattr(error, "status_code", 0) or 0)


def plain_refusal(error: AmlTrainError, compute: str, environment: Any) -> AmlTrainError:
    """Return a refused submit in words for what a person asked for; the error itself where there are none.

    Parameters
    ----------
    compute
        Name of the compute; empty for serverless.
    environment
        An id, or the SDK's object.
    """
    codes = " ".join(faults.told(error).codes)
    missing = "UnknownTargetType" in codes or re.search(r"compute (?:target )?(?:was )?not found", error.message, re.I)
    if missing and compute:
        return SubmitError(
            f"There is no compute {compute!r} in the workspace any more.",
            hint="%aml_compute list shows what is there.",
        )
    if "EnvironmentNotFound" in codes and isinstance(environment, str):
        return EnvironmentFailed(
            f"There is no environment {shown_environment(environment)!r}{_home(environment)}.",
            hint="The studio lists them under Environments. Try: --env NAME@latest, or --env conda.yml",
        )
    if re.search(r"environment", f"{codes} {error.message}", re.I) and faults.told(error).status in (400, 404):
        return EnvironmentFailed(error.message, hint="Try another: --env NAME@latest, or --env conda.yml")
    return error


def shown_environment(reference: str) -> str:
    """Return the id of an environment as ``--env`` takes it: addresses of registries begin with ``azureml://``."""
    return reference if reference.startswith("azureml://") else reference.removeprefix("azureml:")


def _home(environment: str) -> str:
    registry = re.match(r"azureml://registries/([^/]+)/", environment)
    return f" in the registry {registry[1]!r}" if registry else " in the workspace"


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
