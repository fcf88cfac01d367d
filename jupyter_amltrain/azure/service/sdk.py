"""Azure's SDK, imported in the background: clients and job entities.

The import takes 4-7 s, and the first request another 5 s if ``azureml-mlflow`` is installed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.azure import terms as azure_terms
from jupyter_amltrain.azure.terms import Terms

if TYPE_CHECKING:
    from jupyter_amltrain.azure.service.cloud import Cloud, Workspace

log = logging.getLogger("amltrain.azure")

_lock = threading.Lock()
_clients: dict[str, tuple[Any, Any]] = {}  # account and client by workspace
_import_thread: threading.Thread | None = None
#: Attempts to create what another process uploads at the same time; they wait 1, 2, 3 and 4 s.
_UPLOAD_ATTEMPTS = 5


def warm() -> None:
    """Import the SDK in the background, once. ``AMLTRAIN_AZURE_WARM``: delay in seconds, < 0 for never."""
    global _import_thread
    delay_s = float(os.environ.get("AMLTRAIN_AZURE_WARM") or 2)
    with _lock:
        if _import_thread is None and delay_s >= 0:
            _import_thread = threading.Thread(target=_import, args=(delay_s,), name="amltrain-azure-sdk", daemon=True)
            _import_thread.start()


def _import(delay_s: float) -> None:
    time.sleep(delay_s)  # operations that the user is waiting for run first
    started_at = time.monotonic()
    try:
        import azure.ai.ml  # noqa: F401
    except Exception as error:  # operations that need the SDK report the error
        log.info("azure-ai-ml cannot be imported: %s", error)
        return
    log.info("azure-ai-ml imported in %.1f s", time.monotonic() - started_at)


def client(cloud: Cloud, workspace: Workspace | str) -> Any:
    """Return the MLClient of a workspace; waits until the SDK is imported.

    Raises
    ------
    ModuleNotFoundError
        ``azure-ai-ml`` is not installed; see :mod:`..errors`.
    """
    ws = cloud.workspace(workspace) if isinstance(workspace, str) else workspace
    with _lock:
        cached = _clients.get(ws.name)
    if cached is not None and cached[0] is ws.credential:
        return cached[1]
    os.environ.setdefault("AZURE_ML_CLI_PRIVATE_FEATURES_ENABLED", "false")
    with quiet():
        from azure.ai.ml import MLClient

        created = MLClient(
            ws.credential,
            ws.subscription,
            ws.resource_group,
            ws.workspace,
            enable_telemetry=False,  # in a notebook it would phone home
            **_retries(),
        )
    with _lock:
        _clients[ws.name] = (ws.credential, created)
    return created


def _retries() -> dict[str, Any]:
    """Return keywords that give the SDK our transport and retry policy, so that waits end with their operation.

    Policy objects have one successor each and cannot be shared by the SDK's many clients; their settings can.
    """
    from jupyter_amltrain.azure.service import http

    return {"transport": http.transport(), **http.retry_policy().keywords()}


def forget(name: str) -> None:
    """Discard the client of a workspace."""
    with _lock:
        _clients.pop(name, None)


def create(operations: Any, entity: Any, **keywords: Any) -> Any:
    """Return the result of ``operations.create_or_update(entity)``, which also uploads the entity's local files.

    The SDK looks whether a file is stored, then sends it and forbids to overwrite. If another process sends the same
    file in between, the storage answers 409 ``BlobAlreadyExists``. The next attempt finds the file.
    """
    attempt = 1
    while True:
        try:
            return operations.create_or_update(entity, **keywords)
        except Exception as error:  # azure-core's ResourceExistsError, whose import takes a second
            if getattr(error, "error_code", None) != "BlobAlreadyExists" or attempt == _UPLOAD_ATTEMPTS:
                raise
            log.info("another process uploads the same files: %s", error)
        time.sleep(attempt)
        attempt += 1


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress the SDK's warnings about experimental classes."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def field(thing: Any, name: str, default: Any = None) -> Any:
    """Return a field of an SDK object, in any spelling.

    Since 1.35.0 objects made from REST responses have ``currentValue`` instead of ``current_value``; names such as
    ``vCPUs`` were ``v_cp_us``.
    """
    normalized = name.replace("_", "").lower()
    result = getattr(thing, name, None)
    if result is not None:
        return result
    fields = thing if isinstance(thing, dict) else getattr(thing, "__dict__", {})
    for key, value in fields.items():
        if key.replace("_", "").lower() == normalized and value is not None:
            return value
    return default


def command_of(name: str, body: Mapping[str, Any], code: str, environment: Any) -> Any:
    """Return ``azure.ai.ml.command`` from ARM's ``properties``.

    Parameters
    ----------
    code
        Id of a code asset, or a local folder.
    environment
        An id, or the SDK's ``Environment``.
    """
    from azure.ai.ml import command

    keywords: dict[str, Any] = {
        **_job_fields(name, body),
        **_resources(body.get("resources") or {}),
        **_queue(body.get("queueSettings") or {}),
        "command": body["command"],
        "code": code,
        "environment": environment,
        "environment_variables": dict(body.get("environmentVariables") or {}),
        "distribution": _distribution(body.get("distribution")),
        "timeout": _seconds((body.get("limits") or {}).get("timeout")),
        "services": {key: _service(value) for key, value in (body.get("services") or {}).items()} or None,
    }
    return command(**{key: value for key, value in keywords.items() if value is not None})


def _job_fields(name: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the SDK's fields that jobs of every type have."""
    return {
        "name": name,
        "display_name": body.get("displayName"),
        "experiment_name": body.get("experimentName"),
        "tags": dict(body.get("tags") or {}),
        "properties": dict(body.get("properties") or {}),
        "inputs": {key: _input(value) for key, value in (body.get("inputs") or {}).items()},
        "outputs": {key: _output(value) for key, value in (body.get("outputs") or {}).items()},
        "compute": body.get("computeId"),
        "identity": _identity(body.get("identity")),
    }


def _resources(value: Mapping[str, Any]) -> dict[str, Any]:
    names = {
        "instance_count": "instanceCount",
        "instance_type": "instanceType",
        "shm_size": "shmSize",
        "docker_args": "dockerArgs",
    }
    return {name: value[arm] for name, arm in names.items() if value.get(arm) is not None}


def _queue(value: Mapping[str, Any]) -> dict[str, Any]:
    priority = _sdk_name(azure_terms.PRIORITIES, str(value.get("priority", "")))
    return {"job_tier": value.get("jobTier"), "priority": priority}


def _input(value: Mapping[str, Any]) -> Any:
    from azure.ai.ml import Input

    if value["jobInputType"] == "literal":
        return value["value"]
    return Input(
        type=value["jobInputType"], path=value["uri"], mode=_sdk_name(azure_terms.MODES, value.get("mode", ""))
    )


def _output(value: Mapping[str, Any]) -> Any:
    from azure.ai.ml import Output

    mode = _sdk_name(azure_terms.MODES, value.get("mode", ""))
    options = {"mode": mode, "path": value.get("uri")}
    return Output(type=value["jobOutputType"], **{key: part for key, part in options.items() if part})


def _sdk_name(terms: Terms, arm: str) -> str | None:
    """Return the SDK's name of a setting, which amltrain uses too, from ARM's name."""
    row = terms.of_arm(arm)
    return row.name if row else None


def _sdk_object(terms: Terms, arm: str, **keywords: Any) -> Any:
    """Return the SDK's object of a setting, from ARM's name."""
    import azure.ai.ml

    row = terms.of_arm(arm)
    assert row is not None, arm
    module = azure.ai.ml if hasattr(azure.ai.ml, row.sdk) else azure.ai.ml.entities
    return getattr(module, row.sdk)(**keywords)


def _distribution(value: Mapping[str, Any] | None) -> Any:
    if not value:
        return None
    kind, terms = value["distributionType"], azure_terms.DISTRIBUTIONS
    if "workerCount" in value:
        servers = value.get("parameterServerCount", 0)
        return _sdk_object(terms, kind, worker_count=value["workerCount"], parameter_server_count=servers)
    return _sdk_object(terms, kind, process_count_per_instance=value["processCountPerInstance"])


def _identity(value: Mapping[str, Any] | None) -> Any:
    if not value:
        return None
    client = {"client_id": value["clientId"]} if value.get("clientId") else {}
    return _sdk_object(azure_terms.IDENTITIES, value["identityType"], **client)


def _service(value: Mapping[str, Any]) -> Any:
    properties = value.get("properties") or {}
    names = {"logDir": "log_dir", "sshPublicKeys": "ssh_public_keys"}
    return _sdk_object(
        azure_terms.SERVICES, value["jobServiceType"], **{names[key]: text for key, text in properties.items()}
    )


def _seconds(text: str | None) -> int | None:
    seconds = azure_terms.iso_seconds(text)
    return None if seconds is None else round(seconds)


def job_of(name: str, body: Mapping[str, Any], code: str, environment: Any) -> Any:
    """Return the SDK's job of ARM's ``properties``: :func:`command_of` or :func:`sweep_of`."""
    make = sweep_of if body["jobType"] == "Sweep" else command_of
    return make(name, body, code, environment)


def sweep_of(name: str, body: Mapping[str, Any], code: str, environment: Any) -> Any:
    """Return ``azure.ai.ml.sweep.SweepJob`` from ARM's ``properties``; parameters as of :func:`command_of`."""
    from azure.ai.ml.entities import JobResourceConfiguration, QueueSettings
    from azure.ai.ml.entities._job.parameterized_command import ParameterizedCommand
    from azure.ai.ml.entities._job.sweep.search_space import SweepDistribution
    from azure.ai.ml.sweep import Objective, SweepJob, SweepJobLimits

    trial, limits, queue = body["trial"], body["limits"], body.get("queueSettings") or {}
    resources = _resources(trial["resources"])
    keywords: dict[str, Any] = {
        **_job_fields(name, body),
        "queue_settings": QueueSettings(**_queue(queue)) if queue else None,
        "resources": JobResourceConfiguration(**resources),
        "trial": ParameterizedCommand(
            command=trial["command"],
            code=code,
            environment=environment,
            environment_variables=dict(trial.get("environmentVariables") or {}),
            distribution=_distribution(trial.get("distribution")),
            resources=JobResourceConfiguration(**resources),
        ),
        "search_space": {key: SweepDistribution._from_rest_object(e) for key, e in body["searchSpace"].items()},
        "sampling_algorithm": _sampling(body["samplingAlgorithm"]),
        "objective": Objective(
            goal=body["objective"]["goal"].lower(), primary_metric=body["objective"]["primaryMetric"]
        ),
        "early_termination": _policy(body.get("earlyTermination")),
        "limits": SweepJobLimits(
            max_total_trials=limits.get("maxTotalTrials"),
            max_concurrent_trials=limits.get("maxConcurrentTrials"),
            timeout=_seconds(limits.get("timeout")),
            trial_timeout=_seconds(limits.get("trialTimeout")),
        ),
    }
    return SweepJob(**{key: value for key, value in keywords.items() if value is not None})


def _sampling(value: Mapping[str, Any]) -> Any:
    from azure.ai.ml import sweep

    kind = value["samplingAlgorithmType"]
    if kind != "Random":
        return getattr(sweep, f"{kind}SamplingAlgorithm")()
    return sweep.RandomSamplingAlgorithm(rule=str(value.get("rule") or "random").lower(), seed=value.get("seed"))


def _policy(value: Mapping[str, Any] | None) -> Any:
    if not value:
        return None
    from azure.ai.ml import sweep

    names = {
        "evaluationInterval": "evaluation_interval",
        "delayEvaluation": "delay_evaluation",
        "slackFactor": "slack_factor",
        "slackAmount": "slack_amount",
        "truncationPercentage": "truncation_percentage",
    }
    fields = {names[key]: number for key, number in value.items() if key in names}
    if value["policyType"] == "Bandit":  # the SDK would send 0 for the other one
        fields = {"slack_factor": None, "slack_amount": None, **fields}
    return getattr(sweep, f"{value['policyType']}Policy")(**fields)
