"""The SDK's command job, made of the body that was planned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_INPUT_MODES = {
    "ReadOnlyMount": "ro_mount", "ReadWriteMount": "rw_mount", "Download": "download", "Direct": "direct",
    "EvalMount": "eval_mount", "EvalDownload": "eval_download", "Upload": "upload",
}  # fmt: skip
_PRIORITIES = {1: "low", 2: "medium", 3: "high"}


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
        "priority": _PRIORITIES.get(queue.get("priority", 0)),
    }
    return command(**{key: value for key, value in keywords.items() if value is not None})


def _input(value: Mapping[str, Any]) -> Any:
    from azure.ai.ml import Input

    if value["jobInputType"] == "literal":
        return value["value"]
    return Input(type=value["jobInputType"], path=value["uri"], mode=_INPUT_MODES.get(value.get("mode", "")))


def _output(value: Mapping[str, Any]) -> Any:
    from azure.ai.ml import Output

    mode = _INPUT_MODES.get(value.get("mode", ""))
    more = {"mode": mode, "path": value.get("uri")}
    return Output(type=value["jobOutputType"], **{key: part for key, part in more.items() if part})


def _distribution(value: Mapping[str, Any] | None) -> Any:
    if not value:
        return None
    from azure.ai.ml import MpiDistribution, PyTorchDistribution, TensorFlowDistribution

    kind = value["distributionType"]
    if kind == "TensorFlow":
        return TensorFlowDistribution(
            worker_count=value["workerCount"], parameter_server_count=value.get("parameterServerCount", 0)
        )
    make = {"PyTorch": PyTorchDistribution, "Mpi": MpiDistribution}[kind]
    return make(process_count_per_instance=value["processCountPerInstance"])


def _identity(value: Mapping[str, Any] | None) -> Any:
    if not value:
        return None
    from azure.ai.ml.entities import (
        AmlTokenConfiguration,
        ManagedIdentityConfiguration,
        UserIdentityConfiguration,
    )

    if value["identityType"] == "Managed":
        return ManagedIdentityConfiguration(client_id=value.get("clientId"))
    return {"UserIdentity": UserIdentityConfiguration, "AMLToken": AmlTokenConfiguration}[value["identityType"]]()


def _service(value: Mapping[str, Any]) -> Any:
    from azure.ai.ml.entities import (
        JupyterLabJobService,
        SshJobService,
        TensorBoardJobService,
        VsCodeJobService,
    )

    properties = value.get("properties") or {}
    kind = value["jobServiceType"]
    if kind == "TensorBoard":
        return TensorBoardJobService(log_dir=properties["logDir"])
    if kind == "SSH":
        return SshJobService(ssh_public_keys=properties["sshPublicKeys"])
    return {"JupyterLab": JupyterLabJobService, "VSCode": VsCodeJobService}[kind]()


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
