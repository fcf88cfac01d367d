"""Azure's own SDK, imported in the background: its client, and its job objects.

Its import takes 4-7 s and its first request another 5 s where ``azureml-mlflow`` is installed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.schema import azure_terms
from jupyter_amltrain.schema.azure_terms import Terms

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.service.cloud import Cloud, Workspace

log = logging.getLogger("amltrain.azure")

_guard = threading.Lock()
_clients: dict[str, tuple[Any, Any]] = {}  # by workspace: its account, the client
_warm: threading.Thread | None = None


def warm() -> None:
    """Import it soon, in the background; twice is harmless. ``AMLTRAIN_AZURE_WARM``: seconds until then, < 0 never."""
    global _warm
    after = float(os.environ.get("AMLTRAIN_AZURE_WARM") or 2)
    with _guard:
        if _warm is None and after >= 0:
            _warm = threading.Thread(target=_import, args=(after,), name="amltrain-azure-sdk", daemon=True)
            _warm.start()


def _import(after: float) -> None:
    time.sleep(after)  # what the user waits for now comes first
    began = time.monotonic()
    try:
        import azure.ai.ml  # noqa: F401
    except Exception as error:  # whoever needs it is told then
        log.info("azure-ai-ml cannot be imported: %s", error)
        return
    log.info("azure-ai-ml imported in %.1f s", time.monotonic() - began)


def client(cloud: Cloud, workspace: Workspace | str) -> Any:
    """The MLClient of a workspace; waits until the SDK is imported.

    Raises
    ------
    ModuleNotFoundError
        ``azure-ai-ml`` is not installed; see :mod:`..errors`.
    """
    place = cloud.workspace(workspace) if isinstance(workspace, str) else workspace
    with _guard:
        known = _clients.get(place.name)
    if known is not None and known[0] is place.credential:
        return known[1]
    os.environ.setdefault("AZURE_ML_CLI_PRIVATE_FEATURES_ENABLED", "false")
    with quiet():
        from azure.ai.ml import MLClient

        made = MLClient(
            place.credential,
            place.subscription,
            place.resource_group,
            place.workspace,
            enable_telemetry=False,  # in a notebook it would phone home
            **_retries(),
        )
    with _guard:
        _clients[place.name] = (place.credential, made)
    return made


def _retries() -> dict[str, Any]:
    """Return the keywords by which its retries are ours, and each ends with its operation.

    Policies have one successor each and cannot be shared by the SDK's many clients; their settings can.
    """
    from jupyter_amltrain.backends.azureml.service import http

    return {"transport": http.transport(), **http.retry_policy().keywords()}


def forget(name: str) -> None:
    """Let go of the client of a workspace."""
    with _guard:
        _clients.pop(name, None)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Its notes on experimental classes are for developers."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def field(thing: Any, name: str, default: Any = None) -> Any:
    """A field of an object of the SDK, whichever way its version spells it.

    From 1.35.0 on objects that were made of REST answers have ``currentValue`` where older ones have
    ``current_value``; and names with letters like ``vCPUs`` were ``v_cp_us``.
    """
    wanted = name.replace("_", "").lower()
    found = getattr(thing, name, None)
    if found is not None:
        return found
    fields = thing if isinstance(thing, dict) else getattr(thing, "__dict__", {})
    for key, value in fields.items():
        if key.replace("_", "").lower() == wanted and value is not None:
            return value
    return default


def command_of(name: str, body: Mapping[str, Any], code: str, environment: Any) -> Any:
    """``azure.ai.ml.command`` of ``properties`` as ARM takes them.

    Parameters
    ----------
    code
        Id of a code asset, or a folder here.
    environment
        An id, or the SDK's ``Environment``.
    """
    from azure.ai.ml import command

    resources = body.get("resources") or {}
    queue = body.get("queueSettings") or {}
    keywords: dict[str, Any] = {
        "name": name,
        "display_name": body.get("displayName"),
        "experiment_name": body.get("experimentName"),
        "command": body["command"],
        "code": code,
        "environment": environment,
        "environment_variables": dict(body.get("environmentVariables") or {}),
        "inputs": {key: _input(value) for key, value in (body.get("inputs") or {}).items()},
        "outputs": {key: _output(value) for key, value in (body.get("outputs") or {}).items()},
        "tags": dict(body.get("tags") or {}),
        "properties": dict(body.get("properties") or {}),
        "compute": body.get("computeId"),
        "distribution": _distribution(body.get("distribution")),
        "instance_count": resources.get("instanceCount"),
        "instance_type": resources.get("instanceType"),
        "shm_size": resources.get("shmSize"),
        "docker_args": resources.get("dockerArgs"),
        "timeout": _seconds((body.get("limits") or {}).get("timeout")),
        "identity": _identity(body.get("identity")),
        "services": {key: _service(value) for key, value in (body.get("services") or {}).items()} or None,
        "job_tier": queue.get("jobTier"),
        "priority": _ours(azure_terms.PRIORITIES, str(queue.get("priority", ""))),
    }
    return command(**{key: value for key, value in keywords.items() if value is not None})


def _input(value: Mapping[str, Any]) -> Any:
    from azure.ai.ml import Input

    if value["jobInputType"] == "literal":
        return value["value"]
    return Input(type=value["jobInputType"], path=value["uri"], mode=_ours(azure_terms.MODES, value.get("mode", "")))


def _output(value: Mapping[str, Any]) -> Any:
    from azure.ai.ml import Output

    mode = _ours(azure_terms.MODES, value.get("mode", ""))
    more = {"mode": mode, "path": value.get("uri")}
    return Output(type=value["jobOutputType"], **{key: part for key, part in more.items() if part})


def _ours(terms: Terms, arm: str) -> str | None:
    """Return the SDK's own name of a setting, which is also ours, from ARM's."""
    row = terms.of_arm(arm)
    return row.ours if row else None


def _made(terms: Terms, arm: str, **keywords: Any) -> Any:
    """Return the SDK's object of a setting, from ARM's name of it."""
    import azure.ai.ml

    row = terms.of_arm(arm)
    assert row is not None, arm
    home = azure.ai.ml if hasattr(azure.ai.ml, row.sdk) else azure.ai.ml.entities
    return getattr(home, row.sdk)(**keywords)


def _distribution(value: Mapping[str, Any] | None) -> Any:
    if not value:
        return None
    kind, terms = value["distributionType"], azure_terms.DISTRIBUTIONS
    if "workerCount" in value:
        servers = value.get("parameterServerCount", 0)
        return _made(terms, kind, worker_count=value["workerCount"], parameter_server_count=servers)
    return _made(terms, kind, process_count_per_instance=value["processCountPerInstance"])


def _identity(value: Mapping[str, Any] | None) -> Any:
    if not value:
        return None
    client = {"client_id": value["clientId"]} if value.get("clientId") else {}
    return _made(azure_terms.IDENTITIES, value["identityType"], **client)


def _service(value: Mapping[str, Any]) -> Any:
    properties = value.get("properties") or {}
    names = {"logDir": "log_dir", "sshPublicKeys": "ssh_public_keys"}
    return _made(
        azure_terms.SERVICES, value["jobServiceType"], **{names[key]: text for key, text in properties.items()}
    )


def _seconds(text: str | None) -> int | None:
    """Seconds of ``P1DT2H3M4S``, of which we only write whole ones."""
    if not text:
        return None
    total, number, units = 0, "", {"D": 86400, "H": 3600, "M": 60, "S": 1}
    for char in text:
        if char.isdigit():
            number += char
        elif number:
            total += int(number) * units[char]
            number = ""
    return total
