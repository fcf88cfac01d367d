"""Jobs of a workspace: submit (from a body or an ``az ml`` file), poll, list, cancel, archive."""

from __future__ import annotations

import io
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jupyter_amltrain.agent import testing
from jupyter_amltrain.azure import errors, job_body, yaml_errors
from jupyter_amltrain.azure.service import code_upload, history, http, images, links, sdk
from jupyter_amltrain.azure.service.account import env_seconds
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
    from jupyter_amltrain.azure.service.cloud import Workspace
    from jupyter_amltrain.azure.service.operations import ServiceCall

log = logging.getLogger("amltrain.azure")

#: Maximum number of jobs to read for a list, newest first; a busy workspace has a hundred thousand.
_MAX_LISTED = 2000
#: Maximum number of jobs in a list whose reason for not completing is read.
_MAX_REASONS = 20
#: Prefix of amltrain's properties of a job.
_OWN_PROPERTY_PREFIX = "amltrain."
_TERMINAL = ("Completed", "Failed", "Canceled")


def is_taken(ws: Workspace, name: str) -> bool:
    """Return whether the workspace has a job of that name."""
    return job_of(ws, name) is not None


def job_of(ws: Workspace, name: str) -> dict[str, Any] | None:
    """Return a job's JSON; ``None`` if there is no job of that name."""
    answer = ws.arm.get(f"jobs/{quote(name, safe='')}", api=http.ARM, ok=(200, 404), act=f"read job {name}")
    return answer.json if answer.status == 200 else None


def poll(call: ServiceCall, *, workspace: str, names: Sequence[str]) -> dict[str, Any]:
    """Return rows (:mod:`..status`) of jobs by name, read concurrently; missing jobs are omitted."""
    ws = call.cloud.workspace(workspace)

    def one(name: str) -> dict[str, Any] | None:
        try:
            row = history.poll_run(ws, name)
        except AmlTrainError as error:
            if errors.details_of(error).status in (403, 410):
                job_of(ws, name)  # raises a clear error for a deleted workspace; run history's response is not recorded
            raise
        if row is None or row["status"] in history.ENDED_BADLY:
            job = job_of(ws, name)
            if row is None and job is None:  # callers treat a missing job as lost, so both services must not know it
                return None
            # Only ARM has the time limit, which distinguishes a timeout from other cancellations.
            arm_row = history.row_of_job(job or {})
            row = arm_row if row is None else {**row, "limit": arm_row["limit"]}
        return {**row, "links": links.links_of(ws, row)}

    rows = history.all_of(one, list(names))
    return {name: row for name, row in zip(names, rows, strict=True) if row is not None}


def get(call: ServiceCall, *, workspace: str, name: str) -> dict[str, Any] | None:
    """Return a job of any kind: ``{"row", "job"}``, its row and the parts of its JSON that make its spec."""
    ws = call.cloud.workspace(workspace)
    job, more = history.all_of(lambda read: read(ws, name), [job_of, history.details])
    if job is None:
        return None
    history_row = None if more is None else history.row(name, more)
    if history_row is not None and history_row["status"] in (*history.QUEUED, *history.ENDED_BADLY):
        history_row = history.with_reason(history_row, history.record(ws, name))
    row = history.merge_rows(history.row_of_job(job), history_row)
    return {"row": {**row, "links": links.links_of(ws, row)}, "job": shown(job)}


def list_all(
    call: ServiceCall, *, workspace: str, compute: str | None = None, known: Sequence[str] = (), limit: int = 500
) -> dict[str, Any]:
    """List command jobs, and the sweeps and YAML jobs that amltrain submitted, newest first.

    Parameters
    ----------
    compute
        Only jobs of this compute; ``""`` for serverless ones.
    known
        Names of known jobs, for which no rows are returned.

    Returns
    -------
    dict
        ``names`` of all; ``jobs``: as :func:`get`, for those not in `known`; ``whole``: the list is complete,
        otherwise there may be older jobs.
    """
    ws = call.cloud.workspace(workspace)
    names: list[str] = []
    listed: list[dict[str, Any]] = []
    known_names = frozenset(known)
    pages = ws.arm.pages("jobs", api=http.ARM, params={"listViewType": "ActiveOnly"}, act="list the jobs")
    whole = True
    for number, job in enumerate(pages):
        call.check()
        if number >= _MAX_LISTED or len(names) >= limit:
            whole = False
            break
        if not number % 100:
            call.progress(f"Listing the jobs: {number}")
        body = job.get("properties") or {}
        # Of pipelines, sweeps and similar jobs only our own: the compute of others is unknown.
        own = "amltrain.compute" in (body.get("properties") or {})
        if (body.get("jobType") != "Command" and not own) or body.get("isArchived"):
            continue
        row = history.row_of_job(job)
        if compute is not None and row["compute"].lower() != compute.lower():
            continue
        names.append(row["name"])
        if row["name"] not in known_names:
            listed.append({"row": row, "job": shown(job)})
    _add_history(ws, listed)
    for one in listed:
        one["row"]["links"] = [links.studio_link(ws, one["row"]["name"])]
    return {"names": names, "jobs": listed, "whole": whole}


def _add_history(ws: Workspace, listed: list[dict[str, Any]]) -> None:
    """Add what the list lacks: the reason of a failed or canceled job, and the progress of a running one."""
    unfinished = [one for one in listed if one["row"]["status"] != "Completed"]
    unfinished = sorted(unfinished, key=lambda one: one["row"]["status"] == "Canceled")[:_MAX_REASONS]
    rows = history.all_of(lambda one: _history_row(ws, one["row"]["name"]), unfinished)
    for one, more in zip(unfinished, rows, strict=True):
        one["row"] = history.merge_rows(one["row"], more)


def _history_row(ws: Workspace, name: str) -> dict[str, Any] | None:
    record = history.record(ws, name)
    return None if record is None else history.row(name, record)


def shown(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a job's JSON that make its spec."""
    body = job.get("properties") or {}
    keys = (
        "jobType", "displayName", "experimentName", "command", "resources", "distribution", "environmentId",
        "environmentVariables", "tags", "computeId", "codeId", "isArchived",
        "searchSpace", "samplingAlgorithm", "objective", "earlyTermination", "limits",
    )  # fmt: skip
    studio = ((body.get("services") or {}).get("Studio") or {}).get("endpoint")
    properties = {k: v for k, v in (body.get("properties") or {}).items() if str(k).startswith(_OWN_PROPERTY_PREFIX)}
    parts = {key: body.get(key) for key in keys if body.get(key) is not None}
    return {**parts, "properties": properties, "studio_url": studio or ""}


def cancel(call: ServiceCall, *, workspace: str, name: str) -> None:
    """Cancel a job; no error if it has ended or does not exist."""
    ws = call.cloud.workspace(workspace)
    path = f"jobs/{quote(name, safe='')}/cancel"
    try:
        ws.arm.post(path, api=http.ARM, ok=(200, 202, 204, 404), act=f"cancel job {name}")
    except AmlTrainError as error:
        job = job_of(ws, name)
        status = ((job or {}).get("properties") or {}).get("status")
        if job is None or status in (*_TERMINAL, "CancelRequested"):
            return
        raise error


def archive(call: ServiceCall, *, workspace: str, name: str) -> None:
    """Archive an ended job, which hides it from lists. The service cannot delete jobs.

    Raises
    ------
    CommandError
        The job has not ended.
    """
    ws = call.cloud.workspace(workspace)
    job = job_of(ws, name)
    if job is None:
        return
    if (job.get("properties") or {}).get("status") not in _TERMINAL:
        raise CommandError(f"{name} cannot be archived: it is still running.", hint="Cancel it first.")
    from jupyter_amltrain.azure.service import sdk

    try:
        sdk.client(call.cloud, ws).jobs.archive(name)
    except Exception as error:  # the SDK raises the errors of several libraries
        plain = errors.error_of_exception(error, ws.name)
        if plain is None:
            raise
        raise plain from error


def outputs(call: ServiceCall, *, workspace: str, name: str, folder: str, paths: Sequence[str] = ("outputs/",)) -> Any:
    """Download files of a job below `paths` into `folder`: ``{"files", "bytes"}``."""
    from jupyter_amltrain.azure.service import artifacts

    return artifacts.download(call, call.cloud.workspace(workspace), name, folder, paths)


#: Seconds to wait for the environment's conda file, requested earlier, after the job was accepted.
_CONDA_TIMEOUT_S = 3.0

_pool = ThreadPoolExecutor(8, "amltrain-azure-submit")


def submit(
    call: ServiceCall, *, workspace: str, job: Mapping[str, Any], files: Mapping[str, str | bytes]
) -> dict[str, Any]:
    """Upload the code and submit a job.

    Parameters
    ----------
    job
        ``name``; ``body``: ``properties`` of the job as ARM takes them, without code and environment;
        ``environment`` (see :func:`..environments.environment_body`); ``code``: ``script``, ``digest``,
        ``job_file``.
    files
        The snapshot.

    Returns
    -------
    dict
        ``name``, ``status``, ``studio_url``, ``created``; ``conda``: the conda file of its environment.
    """
    ws = call.cloud.workspace(workspace)
    name, body = str(job["name"]), dict(job["body"])

    def run_in_call(work: Any, *args: Any, **keywords: Any) -> Any:
        with server.working_for(call):
            return work(*args, **keywords)

    # These requests are independent, and the SDK may still be loading.
    taken = _pool.submit(run_in_call, is_taken, ws, name)
    environment = _pool.submit(run_in_call, images.resolve, ws, job["environment"])
    conda = _pool.submit(run_in_call, _conda_of, ws, environment)  # waits only for work submitted before it
    code = code_upload.send(call, ws, files=files, **job["code"])
    staged = not code.startswith("/subscriptions/") and os.path.isdir(code)
    try:
        if taken.result():
            raise SubmitError(
                f"Workspace {workspace} already has a job {name}.", hint="Submit it again under another name."
            )
        call.check()
        call.progress("Submitting the job.")
        testing.hit("azure_before_put")
        links.record_services(ws, name, body.get("services") or {})
        result = _create(call, ws, name, body, code, environment.result())
        return {**result, "conda": _conda_if_ready(conda)}
    finally:
        if staged:
            shutil.rmtree(code, ignore_errors=True)


def _conda_of(ws: Workspace, environment: Future[Any]) -> str:
    """Return the conda file of the environment; empty if the environment cannot be resolved, which fails elsewhere."""
    try:
        resolved = environment.result()
    except Exception:  # reported where the environment itself is awaited
        return ""
    return images.conda_of(ws, resolved)


def _conda_if_ready(conda: Future[str]) -> str:
    """Return the conda file if it arrives soon; an accepted job does not wait for it."""
    try:
        return conda.result(_CONDA_TIMEOUT_S)
    except TimeoutError:
        return ""


def _create(
    call: ServiceCall, ws: Workspace, name: str, body: Mapping[str, Any], code: str, environment: Any
) -> dict[str, Any]:
    from jupyter_amltrain.azure.service import sdk

    for is_retry in (False, True):
        entity = sdk.job_of(name, body, code, environment)
        try:
            created = sdk.create(sdk.client(call.cloud, ws).jobs, entity, skip_validation=True)
            break
        except Exception as error:  # the SDK raises the errors of several libraries
            plain = errors.error_of_exception(error, ws.name, "accept the job")
            if plain is None:
                raise
            if (existing := accepted(call, ws, name, plain)) is not None:
                return existing
            if isinstance(plain, AuthenticationError) and not is_retry and _status(error) == 401:
                # A token that was revoked early: our own client gets a new one, but the SDK keeps the old one.
                sdk.forget(ws.name)
                is_taken(ws, name)
                continue
            compute = str(body.get("computeId") or "").rpartition("/")[2]
            raise plain_refusal(plain, compute, environment) from error
    testing.hit("azure_after_put")
    return answer_of(created, ws, name)


def accepted(call: ServiceCall, ws: Workspace, name: str, error: AmlTrainError) -> dict[str, Any] | None:
    """Return the job if it exists although the submit request failed.

    The error may be that of a retry whose first attempt already created the job.

    Raises
    ------
    SubmitUnsure
        This cannot be determined within half a minute (``AMLTRAIN_AZURE_UNSURE``, seconds).
    """
    rejected = not errors.is_unconfirmed(error)
    if rejected and errors.details_of(error).status not in (400, 409):
        return None
    until = time.monotonic() + env_seconds("UNSURE", 30.0)
    while True:
        try:
            job = job_of(ws, name)
            break
        except AmlTrainError as poll_error:
            if rejected:
                return None
            if time.monotonic() > until:
                raise unconfirmed_error(name, error.message) from poll_error
            call.progress(f"Checking whether the job was accepted: {poll_error.message}"[:200])
            call.wait(env_seconds("POLL", 2.0))
    if job is None:
        return None
    log.info("%s was accepted despite an error: %s", name, error)
    row = history.row_of_job(job)
    return {
        "name": name,
        "status": row["status"],
        "studio_url": shown(job)["studio_url"] or links.studio_url(ws, name),
        "created": row["created"] or time.time(),
    }


def unconfirmed_error(name: str, reason: str) -> SubmitUnsure:
    """Return the error for a job that the service may or may not have accepted."""
    return SubmitUnsure(
        f"{reason} It is not known whether {name} was accepted.",
        hint="Check with %aml_runs when Azure responds again, before you resubmit.",
    )


def answer_of(created: Any, ws: Workspace, name: str) -> dict[str, Any]:
    """Return the result for a job that the SDK submitted."""
    services = created.services or {}
    studio = services.get("Studio")
    created_at = created.creation_context.created_at if created.creation_context else None
    return {
        "name": created.name,
        "status": created.status,
        "studio_url": str((studio.endpoint if studio else "") or links.studio_url(ws, name)),
        "created": created_at.timestamp() if created_at else time.time(),
    }


def _status(error: Exception) -> int:
    """Return the HTTP status of an azure-core error; 0 without one."""
    return int(getattr(error, "status_code", 0) or 0)


#: The service's message for a missing compute (recorded: "Compute Not Found").
_NO_COMPUTE = re.compile(r"compute (?:target )?(?:was )?not found", re.I)


def plain_refusal(error: AmlTrainError, compute: str, environment: Any) -> AmlTrainError:
    """Translate a rejected submit to an error that names the user's flag; returns other errors unchanged.

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
            hint="See %aml_compute list.",
            code="azure.no_compute",
            details=error.details,
        )
    if "EnvironmentNotFound" in codes and isinstance(environment, str):
        return EnvironmentFailed(
            f"There is no environment {shown_environment(environment)!r}{_registry_or_workspace(environment)}.",
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
    """Return the id of an environment in the form of ``--env``; registry references start with ``azureml://``."""
    return reference if reference.startswith("azureml://") else reference.removeprefix("azureml:")


def _registry_or_workspace(environment: str) -> str:
    registry = re.match(r"azureml://registries/([^/]+)/", environment)
    return f" in the registry {registry[1]!r}" if registry else " in the workspace"


def check_yaml(call: ServiceCall, *, workspace: str, job: Mapping[str, Any]) -> None:
    """Validate a job without submitting it.

    Raises
    ------
    SpecError
        The SDK rejects the job; the message names line and key.
    """
    del workspace
    call.progress("Reading the job.")
    load(job)


def submit_yaml(call: ServiceCall, *, workspace: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """Submit a YAML job (see :func:`..job_body.yaml_payload_of`); returns the same as :func:`submit`.

    Raises
    ------
    SpecError, SubmitError
        The SDK or the service rejects the job.
    """
    ws = call.cloud.workspace(workspace)
    name = str(job["name"])
    entity = load(job)
    if is_taken(ws, name):
        raise SubmitError(f"Workspace {workspace} already has a job {name}.", hint="Submit it again.")
    call.check()
    call.progress("Submitting the job.")
    client = sdk.client(call.cloud, ws)
    entity.name = name
    entity.tags = {**(entity.tags or {}), **job["tags"]}
    _set_properties(entity, {**(entity.properties or {}), **job["properties"]})
    _repair_automl(entity)
    try:
        with sdk.quiet():
            created = sdk.create(client.jobs, entity, skip_validation=True)
    except Exception as error:  # the SDK raises the errors of several libraries
        plain = plain_error(error, job, ws.name)
        if isinstance(plain, AmlTrainError) and (existing := accepted(call, ws, name, plain)) is not None:
            return existing
        if isinstance(plain, AmlTrainError):
            environment = getattr(entity, "environment", None)
            raise plain_refusal(plain, _compute_of(entity, job), environment) from error
        raise plain from error
    return answer_of(created, ws, name)


def _compute_of(entity: Any, job: Mapping[str, Any]) -> str:
    """Return the name of a job's compute; for a pipeline, that of its target."""
    compute = getattr(entity, "compute", None)
    compute = compute if isinstance(compute, str) else job["properties"].get(job_body.COMPUTE_PROPERTY)
    return str(compute or "").rpartition("/")[2].removeprefix("azureml:")


#: The SDK's schemas register their classes while they load: two threads would change one dict.
_LOADING = threading.Lock()


def load(job: Mapping[str, Any]) -> Any:
    """Return the SDK's object of a YAML job.

    Raises
    ------
    SpecError
        The SDK rejects it; the message names line and key.
    """
    with sdk.quiet(), _LOADING:
        from azure.ai.ml import load_job

        try:
            # Relative paths in the text are resolved against the folder of this path.
            entity = load_job(io.StringIO(job["text"]), relative_origin=os.path.join(job["folder"], job["file"]))
            if getattr(entity, "training_data", None) is not None:
                entity._base_path = job["folder"]  # for AutoML data the SDK would use the working folder
            validation = entity._validate() if hasattr(entity, "_validate") else None
        except AmlTrainError:
            raise
        except Exception as error:  # the SDK's loaders raise the errors of several libraries
            raise yaml_errors.error_of_exception(error, job["source_text"], job["file"], job["folder"]) from None
        if validation is not None and not validation.passed:
            raise yaml_errors.error_of_messages(
                validation.error_messages, job["source_text"], job["file"], job["folder"]
            )
    return entity


def _set_properties(entity: Any, properties: dict[str, str]) -> None:
    entity.properties = properties
    if type(entity).__name__ != "Spark":
        return
    # The SDK (1.33 to 1.35) converts the entity to a SparkJob and drops the properties.
    to_job = entity._to_job

    def with_properties() -> Any:
        job = to_job()
        job.properties_sparkJob = properties
        return job

    object.__setattr__(entity, "_to_job", with_properties)


def _repair_automl(entity: Any) -> None:
    """Convert ``resources`` and ``queue_settings`` of an AutoML job to the API's names.

    The SDK (1.35) puts its own objects into the body, which are serialized in snake case, so the size of a
    serverless machine would be lost.
    """
    if str(getattr(entity, "type", "")).lower() != "automl":
        return
    to_rest_object = entity._to_rest_object

    def with_resources() -> Any:
        rest_object = to_rest_object()
        for name in ("resources", "queue_settings"):
            value: Any = getattr(entity, name, None)
            if hasattr(value, "_to_rest_object") and hasattr(rest_object.properties, "_is_model"):
                setattr(rest_object.properties, name, value._to_rest_object())
        return rest_object

    object.__setattr__(entity, "_to_rest_object", with_resources)


def plain_error(error: Exception, job: Mapping[str, Any], where: str) -> Exception:
    """Translate an error of the service or the SDK to one line."""
    if isinstance(error, AmlTrainError):
        return error
    plain = errors.error_of_exception(error, where)
    if plain is not None and not yaml_errors.is_validation(error):
        return plain
    if yaml_errors.is_validation(error):
        return yaml_errors.error_of_exception(error, job["source_text"], job["file"], job["folder"])
    return SpecError(f"{job['file']}: {yaml_errors.first_line(str(error))}")
