"""Jobs at the service: submit (of a body or an ``az ml`` file), poll, list, cancel, archive."""

from __future__ import annotations

import io
import logging
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jupyter_amltrain.agent import testing
from jupyter_amltrain.backends.azureml import errors, job_body, yaml_errors
from jupyter_amltrain.backends.azureml.service import code_upload, history, http, images, links, sdk
from jupyter_amltrain.backends.azureml.service.account import setting
from jupyter_amltrain.errors import (
    AmlTrainError,
    AuthenticationError,
    CommandError,
    EnvironmentFailed,
    SpecError,
    SubmitError,
    SubmitUnsure,
)
from jupyter_amltrain.rpc import server

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.service.cloud import Workspace
    from jupyter_amltrain.backends.azureml.service.operations import ServiceCall

log = logging.getLogger("amltrain.azure")

#: Jobs of a workspace that are looked at for a list, newest first: a busy one has a hundred thousand.
_MAX_LISTED = 2000
#: Of jobs in a list that did not complete, so many are asked for why.
_MAX_REASONS = 20
#: Properties of a job that are ours.
_OURS = "amltrain."
_TERMINAL = ("Completed", "Failed", "Canceled")


def is_taken(place: Workspace, name: str) -> bool:
    """Whether the workspace has a job of that name."""
    return job_of(place, name) is not None


def job_of(place: Workspace, name: str) -> dict[str, Any] | None:
    """A job's JSON; ``None`` when there is none of that name."""
    answer = place.arm.get(f"jobs/{quote(name, safe='')}", api=http.ARM, ok=(200, 404), act=f"look at job {name}")
    return answer.json if answer.status == 200 else None


def poll(call: ServiceCall, *, workspace: str, names: Sequence[str]) -> dict[str, Any]:
    """Rows (:mod:`..status`) of jobs by name, asked for at the same time; absent ones are left out."""
    place = call.cloud.workspace(workspace)

    def one(name: str) -> dict[str, Any] | None:
        try:
            row = history.look(place, name)
        except AmlTrainError as error:
            if errors.details_of(error).status in (403, 410):
                job_of(place, name)  # what run history says for a workspace that is gone nobody has recorded
            raise
        if row is None or row["status"] in history.ENDED_BADLY:
            job = job_of(place, name)
            if row is None and job is None:  # absent means lost to who asks: only where both do not know it
                return None
            # ARM alone knows the limit, by which a run that was canceled at it is told from others.
            told = history.row_of_job(job or {})
            row = told if row is None else {**row, "limit": told["limit"]}
        return {**row, "doors": links.of_row(place, row)}

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
    return {"row": {**row, "doors": links.of_row(place, row)}, "job": shown(job)}


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
    pages = place.arm.pages("jobs", api=http.ARM, params={"listViewType": "ActiveOnly"}, act="list the jobs")
    whole = True
    for number, job in enumerate(pages):
        call.check()
        if number >= _MAX_LISTED or len(names) >= limit:
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
    asked = sorted(asked, key=lambda one: one["row"]["status"] == "Canceled")[:_MAX_REASONS]
    for one, more in zip(asked, history.all_of(lambda o: _more(place, o["row"]["name"]), asked), strict=True):
        one["row"] = history.completed(one["row"], more)
    for one in found:
        one["row"]["doors"] = [links.page(place, one["row"]["name"])]
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
        place.arm.post(path, api=http.ARM, ok=(200, 202, 204, 404), act=f"cancel job {name}")
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
        plain = errors.of_exception(error, place.name)
        if plain is None:
            raise
        raise plain from error


def outputs(call: ServiceCall, *, workspace: str, name: str, folder: str, paths: Sequence[str] = ("outputs/",)) -> Any:
    """Download files of a job below `paths` into `folder`: ``{"files", "bytes"}``."""
    from jupyter_amltrain.backends.azureml.service import artifacts

    return artifacts.download(call, call.cloud.workspace(workspace), name, folder, paths)


#: Seconds that an accepted job waits for what is said of its environment, which was asked for long ago.
_NOTE_TIMEOUT_S = 3.0

_pool = ThreadPoolExecutor(8, "amltrain-azure-submit")


def submit(
    call: ServiceCall, *, workspace: str, job: Mapping[str, Any], files: Mapping[str, str | bytes]
) -> dict[str, Any]:
    """Send a job; the code before it.

    Parameters
    ----------
    job
        ``name``; ``body``: ``properties`` of the job as ARM takes them, without code and environment;
        ``environment`` (see :func:`..environments.environment_body`); ``code``: ``script``, ``digest``,
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
    environment = _pool.submit(here, images.resolved, place, job["environment"])
    conda = _pool.submit(here, _told, place, environment)  # waits for what stands before it in the queue only
    git = _pool.submit(_git, str(job.get("git") or ""))
    code = code_upload.send(call, place, files=files, **job["code"])
    staged = not code.startswith("/subscriptions/") and os.path.isdir(code)
    try:
        if taken.result():
            raise SubmitError(f"{workspace} has a job {name} already.", hint="Submit it again under another name.")
        body["properties"] = {**git.result(), **(body.get("properties") or {})}
        call.check()
        call.progress("Submitting the job.")
        testing.hit("azure_before_put")
        links.expected(place, name, body.get("services") or {})
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
    return images.conda_of(place, found)


def _soon(conda: Future[str]) -> str:
    """Return it if it is there soon: an accepted job does not wait for a note."""
    try:
        return conda.result(_NOTE_TIMEOUT_S)
    except TimeoutError:
        return ""


def _created(
    call: ServiceCall, place: Workspace, name: str, body: Mapping[str, Any], code: str, environment: Any
) -> dict[str, Any]:
    from jupyter_amltrain.backends.azureml.service import sdk

    for again in (False, True):
        entity = sdk.command_of(name, body, code, environment)
        try:
            made = sdk.client(call.cloud, place).jobs.create_or_update(entity, skip_validation=True)
            break
        except Exception as error:
            plain = errors.of_exception(error, place.name, "take the job")
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
    testing.hit("azure_after_put")
    return answer_of(made, place, name)


def accepted(call: ServiceCall, place: Workspace, name: str, error: AmlTrainError) -> dict[str, Any] | None:
    """The job, when it is there although no good answer came.

    A refusal may be that of a second try, whose name the first one has taken.

    Raises
    ------
    SubmitUnsure
        That cannot be found out within half a minute (``AMLTRAIN_AZURE_UNSURE``, seconds).
    """
    refused = not errors.is_unconfirmed(error)
    if refused and errors.details_of(error).status not in (400, 409):
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
        "studio_url": shown(job)["studio_url"] or links.studio_url(place, name),
        "created": row["created"] or time.time(),
    }


def unsure(name: str, why: str) -> SubmitUnsure:
    """Nobody knows whether the service has a job."""
    return SubmitUnsure(
        f"{why} Whether {name} was accepted is not known.",
        hint="When Azure answers again, %aml_runs lists it if it was; look there before you submit it again.",
    )


def answer_of(made: Any, place: Workspace, name: str) -> dict[str, Any]:
    """Return the answer about a job that the SDK has sent."""
    services = made.services or {}
    studio = services.get("Studio")
    created = made.creation_context.created_at if made.creation_context else None
    return {
        "name": made.name,
        "status": made.status,
        "studio_url": str((studio.endpoint if studio else "") or links.studio_url(place, name)),
        "created": created.timestamp() if created else time.time(),
    }


def _status(error: Exception) -> int:
    """HTTP status of an error of azure-core; 0 without one."""
    return int(getattr(error, "status_code", 0) or 0)


#: What the service says of a compute that is not there (recorded: "Compute Not Found").
_NO_COMPUTE = re.compile(r"compute (?:target )?(?:was )?not found", re.I)


def plain_refusal(error: AmlTrainError, compute: str, environment: Any) -> AmlTrainError:
    """Return a refused submit in words for what a person asked for; the error itself where there are none.

    Parameters
    ----------
    compute
        Name of the compute; empty for serverless.
    environment
        An id, or the SDK's object.
    """
    answer = errors.details_of(error)
    codes = " ".join(answer.codes)
    missing = "UnknownTargetType" in codes or _NO_COMPUTE.search(answer.message)
    if missing and compute:
        return SubmitError(
            f"There is no compute {compute!r} in the workspace.",
            hint="%aml_compute list shows what is there.",
            code="azure.no_compute",
            details=error.details,
        )
    if "EnvironmentNotFound" in codes and isinstance(environment, str):
        return EnvironmentFailed(
            f"There is no environment {shown_environment(environment)!r}{_home(environment)}.",
            hint="The studio lists them under Environments. Try: --env NAME@latest, or --env conda.yml",
            code="azure.no_environment",
            field="environment",
            details=error.details,
        )
    if answer.status in (400, 404) and "environment" in f"{codes} {answer.message}".lower():
        return EnvironmentFailed(
            error.message,
            hint="Try another: --env NAME@latest, or --env conda.yml",
            code="azure.environment",
            field="environment",
            details=error.details,
        )
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


def check_yaml(call: ServiceCall, *, workspace: str, job: Mapping[str, Any]) -> None:
    """Load a job and send nothing.

    Raises
    ------
    SpecError
        The SDK refuses it; names line and key.
    """
    del workspace
    call.progress("Reading the job.")
    _loaded(job)


def submit_yaml(call: ServiceCall, *, workspace: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """Send a job (see :func:`..job_body.yaml_payload_of`); as :func:`submit`.

    Raises
    ------
    SpecError, SubmitError
        The SDK or the service refuses it.
    """
    place = call.cloud.workspace(workspace)
    name = str(job["name"])
    entity = _loaded(job)
    if is_taken(place, name):
        raise SubmitError(f"{workspace} has a job {name} already.", hint="Submit it again.")
    call.check()
    call.progress("Submitting the job.")
    client = sdk.client(call.cloud, place)
    entity.name = name
    entity.tags = {**(entity.tags or {}), **job["tags"]}
    _take_properties(entity, {**(entity.properties or {}), **job["properties"]})
    _repair_automl(entity)
    try:
        with sdk.quiet():
            made = client.jobs.create_or_update(entity, skip_validation=True)
    except Exception as error:
        plain = _plain(error, job, place.name)
        if isinstance(plain, AmlTrainError) and (there := accepted(call, place, name, plain)) is not None:
            return there
        if isinstance(plain, AmlTrainError):
            environment = getattr(entity, "environment", None)
            raise plain_refusal(plain, _compute_of(entity, job), environment) from error
        raise plain from error
    return answer_of(made, place, name)


def _compute_of(entity: Any, job: Mapping[str, Any]) -> str:
    """Return the name of the compute that a job goes to; of a pipeline that of its target."""
    named = getattr(entity, "compute", None)
    named = named if isinstance(named, str) else job["properties"].get(job_body.COMPUTE_PROPERTY)
    return str(named or "").rpartition("/")[2].removeprefix("azureml:")


def _loaded(job: Mapping[str, Any]) -> Any:
    with sdk.quiet():
        from azure.ai.ml import load_job

        try:
            # It takes the folder of this path for the relative ones of the text.
            entity = load_job(io.StringIO(job["text"]), relative_origin=os.path.join(job["folder"], job["file"]))
            if getattr(entity, "training_data", None) is not None:
                entity._base_path = job["folder"]  # the SDK takes the working folder for AutoML's data alone
            found = entity._validate() if hasattr(entity, "_validate") else None
        except AmlTrainError:
            raise
        except Exception as error:
            raise yaml_errors.of_exception(error, job["said"], job["file"], job["folder"]) from None
        if found is not None and not found.passed:
            raise yaml_errors.of_messages(found.error_messages, job["said"], job["file"], job["folder"])
    return entity


def _take_properties(entity: Any, properties: dict[str, str]) -> None:
    entity.properties = properties
    if type(entity).__name__ != "Spark":
        return
    # The SDK (1.33 to 1.35) makes a SparkJob of it and leaves the properties behind.
    make = entity._to_job

    def with_properties() -> Any:
        made = make()
        made.properties_sparkJob = properties
        return made

    object.__setattr__(entity, "_to_job", with_properties)


def _repair_automl(entity: Any) -> None:
    """Have an AutoML job send its ``resources`` and ``queue_settings`` as the API names them.

    The SDK (1.35) puts its own objects into the body, which go out in snake case: the size of a serverless machine
    would be lost.
    """
    if str(getattr(entity, "type", "")).lower() != "automl":
        return
    make = entity._to_rest_object

    def with_resources() -> Any:
        made = make()
        for name in ("resources", "queue_settings"):
            own: Any = getattr(entity, name, None)
            if hasattr(own, "_to_rest_object") and hasattr(made.properties, "_is_model"):
                setattr(made.properties, name, own._to_rest_object())
        return made

    object.__setattr__(entity, "_to_rest_object", with_resources)


def _plain(error: Exception, job: Mapping[str, Any], where: str) -> Exception:
    """What the service or the SDK says, in one line."""
    if isinstance(error, AmlTrainError):
        return error
    plain = errors.of_exception(error, where)
    if plain is not None and not yaml_errors.is_validation(error):
        return plain
    if yaml_errors.is_validation(error):
        return yaml_errors.of_exception(error, job["said"], job["file"], job["folder"])
    return SpecError(f"{job['file']}: {yaml_errors.first_line(str(error))}")
