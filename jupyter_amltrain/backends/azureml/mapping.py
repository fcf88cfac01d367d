"""A :class:`~jupyter_amltrain.spec.job.JobSpec` as the service's command job: pure, asks nobody.

The body has the shape of ``properties`` in ARM's ``PUT .../jobs/NAME`` (api 2024-10-01, schema ``CommandJob``).
It is what ``--dry-run`` prints; the process makes the SDK's object of it (:mod:`.service.jobs`), so that both
say the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from jupyter_amltrain.backends.azureml.job_command import command_of, job_file
from jupyter_amltrain.backends.azureml.job_environment import environment_of, environment_shown
from jupyter_amltrain.errors import CommandError, SpecError
from jupyter_amltrain.snapshot import Snapshot
from jupyter_amltrain.spec.inputs import JobInput, JobOutput, input_variable, literal_text
from jupyter_amltrain.spec.job import JobSpec

#: Stands in a printed request where the service gives the id.
CODE_OF = "(code asset with the content {})"

_MODES = {
    "ro_mount": "ReadOnlyMount",
    "rw_mount": "ReadWriteMount",
    "download": "Download",
    "upload": "Upload",
    "direct": "Direct",
    "eval_mount": "EvalMount",
    "eval_download": "EvalDownload",
}
_TIERS = {"spot": "Spot", "basic": "Basic", "standard": "Standard", "premium": "Premium"}
_PRIORITIES = {"low": 1, "medium": 2, "high": 3}
_SERVICES = {"jupyterlab": "JupyterLab", "vscode": "VSCode", "tensorboard": "TensorBoard", "ssh": "SSH"}
#: The service's limit is later than the agent's by this: the agent lets the script end by itself and says why, the
#: service kills what the agent could not stop.
SERVICE_LIMIT_MARGIN_S = 60.0
_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,254}")


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job goes.

    Attributes
    ----------
    arm_id
        Of the workspace.
    compute
        Name of the compute; empty for the service's own machines (serverless).
    size
        Of a machine, for serverless.
    gpus
        Of one machine; ``None`` when that is not known.
    tier
        As in :class:`~jupyter_amltrain.spec.job.JobSpec`, for serverless.
    own_machines
        Whether the size and the tier are the compute's (a cluster, an instance).
    """

    arm_id: str
    compute: str = ""
    size: str = ""
    gpus: int | None = None
    tier: str = ""
    own_machines: bool = False


def job_name(run_id: str) -> str:
    """The job's name at the service: letters, digits, ``-`` and ``_``."""
    name = re.sub(r"[^A-Za-z0-9_-]", "-", run_id).lstrip("-_")[:255]
    return name or "run"


def is_job_name(text: str) -> bool:
    """Whether a job of the service can have this name."""
    return _JOB_NAME.fullmatch(text) is not None


def tracking_id(name: str) -> str:
    """MLflow run id (32 hex digits) of a job in the project's own store: the same from every kernel."""
    return hashlib.sha256(f"amltrain:{name}".encode()).hexdigest()[:32]


def body_of(spec: JobSpec, place: Place, code: str) -> dict[str, Any]:
    """``properties`` of the job, without its environment (see :func:`environment_of`).

    Parameters
    ----------
    code
        Id of the code asset, or what is printed in its place.
    """
    body: dict[str, Any] = {
        "jobType": "Command",
        "displayName": spec.name,
        "experimentName": spec.experiment,
        "command": command_of(spec),
        "codeId": code,
        "environmentVariables": _environ(spec),
        "inputs": {name: _input(given) for name, given in spec.inputs.items()},
        "outputs": {name: _output(wanted) for name, wanted in spec.outputs.items()},
        "resources": _resources(spec, place),
        "tags": dict(spec.tags),
    }
    if place.compute:
        body["computeId"] = f"{place.arm_id}/computes/{place.compute}"
    optional = {
        "distribution": _distribution(spec, place),
        "limits": _limits(spec),
        "queueSettings": _queue(spec, place),
        "identity": _identity(spec.identity),
        "services": {of.partition(":")[0]: _service(of) for of in spec.services} or None,
    }
    return body | {key: value for key, value in optional.items() if value}


def check(spec: JobSpec, place: Place) -> None:
    """Raise :class:`SpecError` for what a job there cannot have.

    Raises
    ------
    SpecError
        Secrets (their values would lie in the job's text), data of this machine, a folder of this
        machine as working folder.
    """
    if spec.secrets:
        raise SpecError(
            f"--secret {spec.secrets[0]}: a job of Azure ML keeps its variables in its text, where everybody in the"
            " workspace reads them.",
            hint="Put it in the workspace's Key Vault and read it in the script with azure-keyvault-secrets and"
            " --identity managed.",
        )
    if spec.gpu_ids:
        raise SpecError(
            f"--gpu-ids {spec.gpu_ids}: a job of Azure ML has all GPUs of its machine and sees them by index.",
            hint="Leave it out.",
        )
    for name, given in spec.inputs.items():
        if given.local:
            raise SpecError(
                f"--input {name}={given.path}: it lies on this machine only, the job runs in Azure.",
                hint=f"Upload it once and give its address: --input {name}=azureml://datastores/workspaceblobstore/"
                "paths/...; or take it along with the code: --source FOLDER",
            )
    if spec.python:
        raise SpecError(
            f"--python {spec.python}: a job of Azure ML has the interpreter of its environment.",
            hint="Leave it out, and choose one by: --env conda.yml",
        )
    if spec.share_gpus:
        raise SpecError(
            "--share-gpus is for GPUs of this machine: a job of Azure ML has its GPUs to itself.", hint="Leave it out."
        )
    if place.own_machines and (spec.tier or spec.resources.instance_type):
        flag = f"--tier {spec.tier}" if spec.tier else f"--instance-type {spec.resources.instance_type}"
        raise SpecError(
            f"{flag}: {place.compute} has machines of its own, chosen when it was created.",
            hint="Leave it out, or submit to a serverless target.",
        )
    wanted = spec.resources.gpus
    if wanted and place.gpus is not None and wanted > place.gpus:
        what = f"{place.gpus} GPU{'s' * (place.gpus != 1)}" if place.gpus else "no GPU"
        raise SpecError(
            f"--gpus {wanted}: a machine of {place.compute or place.size} has {what}.",
            hint="See: %aml_compute sizes --gpu",
        )
    if not place.compute and not (spec.resources.instance_type or place.size):
        raise SpecError(
            "Serverless: which size of machine?", hint="Try: --instance-type Standard_DS3_v2 (%aml_compute sizes)"
        )


def check_files(snapshot: Snapshot) -> None:
    """Raise :class:`CommandError` where a file of the snapshot would take the place of one of ours."""
    for name in snapshot.files:
        if name.split("/")[0] == ".amltrain":
            raise CommandError(f"{name}: the folder .amltrain of the code is ours in the job.", hint="Leave it out.")


def request_of(spec: JobSpec, snapshot: Snapshot, place: Place, name: str, tags: Mapping[str, str]) -> dict[str, Any]:
    """The exact request, printable; `tags` are the job's own and ours."""
    body = {**body_of(spec, place, CODE_OF.format(snapshot.digest[:16])), "tags": dict(tags)}
    environment = environment_of(spec, place.gpus)
    return {
        "request": f"PUT {place.arm_id}/jobs/{name}",
        "properties": body | {"environmentId": environment_shown(environment)},
        "environment": environment,
        "code": {
            "digest": snapshot.digest,
            "bytes": snapshot.bytes,
            "files": {file: sized(snapshot.files[file]) for file in sorted(snapshot.files)[:200]},
            "more": max(0, len(snapshot.files) - 200),
            ".amltrain/job.json": job_file(spec),
        },
    }


def sized(content: str | bytes) -> int | None:
    """Bytes of a file of the snapshot, where that is known without a look."""
    return len(content) if isinstance(content, bytes) else None


def duration(seconds: float) -> str:
    """ISO 8601 in whole seconds, as the SDK writes it: ``PT90S`` is ``PT1M30S``."""
    rest = max(1, round(seconds))
    days, rest = divmod(rest, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    time = "".join(f"{n}{unit}" for n, unit in ((hours, "H"), (minutes, "M"), (rest, "S")) if n)
    return "P" + (f"{days}D" if days else "") + (f"T{time}" if time else "")


def _limits(spec: JobSpec) -> dict[str, Any] | None:
    if not spec.timeout:
        return None
    return {"jobLimitsType": "Command", "timeout": duration(spec.timeout + SERVICE_LIMIT_MARGIN_S)}


def _environ(spec: JobSpec) -> dict[str, str]:
    literals = {
        input_variable(name): literal_text(given.value)
        for name, given in spec.inputs.items()
        if given.type == "literal"
    }
    return {**literals, **spec.env}


def _input(given: JobInput) -> dict[str, Any]:
    if given.type == "literal":
        return {"jobInputType": "literal", "value": literal_text(given.value)}
    found = {"jobInputType": given.type, "uri": given.path}
    return found | ({"mode": _MODES[given.mode]} if given.mode else {})


def _output(wanted: JobOutput) -> dict[str, Any]:
    found = {"jobOutputType": wanted.type}
    found |= {"uri": wanted.path} if wanted.path else {}
    return found | ({"mode": _MODES[wanted.mode]} if wanted.mode else {})


def _resources(spec: JobSpec, place: Place) -> dict[str, Any]:
    given = spec.resources
    found: dict[str, Any] = {"instanceCount": given.nodes}
    size = given.instance_type or ("" if place.compute else place.size)
    found |= {"instanceType": size} if size else {}
    found |= {"shmSize": given.shm_size} if given.shm_size else {}
    return found | ({"dockerArgs": given.docker_args} if given.docker_args else {})


def _distribution(spec: JobSpec, place: Place) -> dict[str, Any] | None:
    given, nodes = spec.distribution, spec.resources.nodes
    each = given.processes or spec.resources.gpus or place.gpus or 1
    if given.kind == "tensorflow":
        return {
            "distributionType": "TensorFlow",
            "workerCount": given.processes or nodes,
            "parameterServerCount": given.parameter_servers,
        }
    kind = {"pytorch": "PyTorch", "mpi": "Mpi"}.get(given.kind)
    if kind is None and nodes > 1:  # else each of them would run the same, and none would know of the others
        kind = "PyTorch"
    return {"distributionType": kind, "processCountPerInstance": each} if kind else None


def _queue(spec: JobSpec, place: Place) -> dict[str, Any] | None:
    tier = spec.tier or ("" if place.compute else place.tier)
    found: dict[str, Any] = {"jobTier": _TIERS[tier]} if tier else {}
    found |= {"priority": _PRIORITIES[spec.priority]} if spec.priority else {}
    return found or None


def _identity(word: str) -> dict[str, Any] | None:
    kind, _, client = word.partition(":")
    if kind == "managed":
        return {"identityType": "Managed"} | ({"clientId": client} if client else {})
    return {"user": {"identityType": "UserIdentity"}, "aml": {"identityType": "AMLToken"}}.get(kind)


def _service(text: str) -> dict[str, Any]:
    kind, _, rest = text.partition(":")
    found: dict[str, Any] = {"jobServiceType": _SERVICES[kind]}
    if kind == "tensorboard":
        found["properties"] = {"logDir": rest or "outputs/tensorboard"}
    elif kind == "ssh":
        found["properties"] = {"sshPublicKeys": rest}
    return found
