"""Jobs of ``az ml`` files: loaded and sent by the SDK, so that they mean here what they mean to ``az ml``."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.backends.azureml import faults, yaml_faults, yaml_jobs
from jupyter_amltrain.backends.azureml.service import jobs, sdk, submits
from jupyter_amltrain.errors import AmlTrainError, SpecError, SubmitError

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.service.operations import ServiceCall


def check(call: ServiceCall, *, workspace: str, job: Mapping[str, Any]) -> None:
    """Load a job and send nothing.

    Raises
    ------
    SpecError
        The SDK refuses it; names line and key.
    """
    del workspace
    call.progress("Reading the job.")
    _loaded(job)


def submit(call: ServiceCall, *, workspace: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """Send a job (see :func:`..yaml_jobs.payload_of`); as :func:`.submits.submit`.

    Raises
    ------
    SpecError, SubmitError
        The SDK or the service refuses it.
    """
    place = call.cloud.workspace(workspace)
    name = str(job["name"])
    entity = _loaded(job)
    if jobs.is_taken(place, name):
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
        if isinstance(plain, AmlTrainError) and (there := submits.accepted(call, place, name, plain)) is not None:
            return there
        if isinstance(plain, AmlTrainError):
            environment = getattr(entity, "environment", None)
            raise submits.plain_refusal(plain, _compute_of(entity, job), environment) from error
        raise plain from error
    return submits.answer_of(made, place, name)


def _compute_of(entity: Any, job: Mapping[str, Any]) -> str:
    """Return the name of the compute that a job goes to; of a pipeline that of its target."""
    named = getattr(entity, "compute", None)
    named = named if isinstance(named, str) else job["properties"].get(yaml_jobs.COMPUTE)
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
            raise yaml_faults.of_exception(error, job["said"], job["file"], job["folder"]) from None
        if found is not None and not found.passed:
            raise yaml_faults.of_messages(found.error_messages, job["said"], job["file"], job["folder"])
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
    plain = faults.of_exception(error, where)
    if plain is not None and not yaml_faults.is_validation(error):
        return plain
    if yaml_faults.is_validation(error):
        return yaml_faults.of_exception(error, job["said"], job["file"], job["folder"])
    return SpecError(f"{job['file']}: {yaml_faults.first_line(str(error))}")
