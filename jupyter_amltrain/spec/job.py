"""What to run, as frozen data: JSON round trip, checked once by :func:`validated`."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.spec.confidential import check_confidential
from jupyter_amltrain.spec.environment import Environment, check_environment
from jupyter_amltrain.spec.inputs import JobInput, JobOutput, check_data
from jupyter_amltrain.spec.references import check_references
from jupyter_amltrain.spec.resources import Distribution, Resources, check_resources
from jupyter_amltrain.spec.service import check_service

__all__ = ["GPU_IDS", "MAX_NAME", "REQUIRE_GPU", "Distribution", "JobSpec", "Resources", "validated"]

#: MLflow names, run folders and process titles must all hold it.
MAX_NAME = 64
#: What may be done about a job that does not use its GPUs; empty is ``warn``.
REQUIRE_GPU = ("", "stop", "warn")
#: By what a job is told its GPUs; empty is ``uuid``.
GPU_IDS = ("", "uuid", "index")
_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One job.

    Attributes
    ----------
    script
        Text of the training script as it will run.
    script_name
        File name under which it is stored in the run's ``source/``; with
        `source` it is a path inside that folder and `script` is empty.
    source
        Folder that is copied with the run; ``None`` takes the script and the
        local modules that it imports.
    params
        Values assigned on the script's first line, or ``--name value`` arguments
        of a file. JSON values; ``${{inputs.NAME}}`` and ``${{outputs.NAME}}`` in them are the
        paths of data (:mod:`.references`).
    args
        Further arguments of the script, with the same references.
    out
        Names of variables whose JSON value comes home at the end.
    env
        Public environment variables. Never secrets.
    secrets
        *Names* of environment variables whose values are handed to the agent
        over its socket and stored nowhere.
    timeout
        Seconds of run time after which the job is stopped; ``None`` for no limit.
    require_gpu
        ``stop``: end the job when it does not use the GPUs that it owns; ``warn`` or
        empty: only say so.
    gpu_grace
        Seconds of run time after which that may be said; ``None`` takes the target's 60.
    share_gpus
        It may be given GPUs on which processes of others compute.
    gpu_ids
        What ``CUDA_VISIBLE_DEVICES`` of the job holds: ``index`` for tools that parse numbers, ``uuid`` or empty.
    notebook_dir
        Folder of the notebook: the job's working folder, and ``$AML_NOTEBOOK_DIR``.
    project
        Folder whose ``.amltrain`` holds the MLflow store of the run.
    tracking
        ``sink``: the agent's own endpoint; ``direct``: the user's tracking server.
    python
        Interpreter on the target; empty takes the target's default.
    cell
        The text as the user wrote it (for run-again and for the record).
    line_offset
        Script line minus cell line, so that errors can name the cell's line.
    environment
        Where its interpreter and packages come from; empty takes the target's default.
    inputs, outputs
        Data by name; the script finds their places in ``$AML_INPUT_<NAME>`` and ``$AML_OUTPUT_<NAME>``.
    distribution
        Who tells the processes of a job about each other.
    identity
        As whom it reads data: ``user``, ``managed``, ``managed:<client id>``, ``aml``; empty for the
        target's default.
    services
        What one can open while it runs: ``jupyterlab``, ``vscode``, ``tensorboard:<folder>``,
        ``ssh:<public key>``.
    priority
        ``low``, ``medium``, ``high``, or empty.
    tier
        Of machines that the service finds by itself: ``spot`` (low priority), ``basic``, ``standard``,
        ``premium``, or empty.
    job_type
        ``type`` of an ``az ml`` job whose YAML is `cell` (:mod:`.azure_yaml`); empty for a script. Such a job
        has no `script`, `script_name` is its file's name, `notebook_dir` the folder of the file.
    command
        Of ``type: command``: what ``sh`` runs in the code folder, bindings as written.
    notes
        What a person should know of how the text became `script`, one sentence each.
    parent
        Handle of the run that this one is part of, such as a sweep or a pipeline; empty for a run of its own.
    """

    name: str
    script: str = ""
    script_name: str = "script.py"
    source: str | None = None
    params: dict[str, Any] = {}
    args: tuple[str, ...] = ()
    out: tuple[str, ...] = ()
    env: dict[str, str] = {}
    secrets: tuple[str, ...] = ()
    resources: Resources = Resources()
    experiment: str = "default"
    tags: dict[str, str] = {}
    timeout: float | None = None
    require_gpu: str = ""
    gpu_grace: float | None = None
    share_gpus: bool = False
    gpu_ids: str = ""
    notebook_dir: str = ""
    project: str = ""
    tracking: str = "sink"
    python: str = ""
    cell: str = ""
    line_offset: int = 0
    source_sha256: str = ""
    environment: Environment = Environment()
    inputs: dict[str, JobInput] = {}
    outputs: dict[str, JobOutput] = {}
    distribution: Distribution = Distribution()
    identity: str = ""
    services: tuple[str, ...] = ()
    priority: str = ""
    tier: str = ""
    job_type: str = ""
    command: str = ""
    notes: tuple[str, ...] = ()
    parent: str = ""


def validated(spec: JobSpec) -> JobSpec:
    """Return `spec`, or raise :class:`SpecError` that names the field and what it may be."""
    check_confidential(spec)  # first: other messages quote what they complain of
    if not spec.name or len(spec.name) > MAX_NAME or "/" in spec.name or not spec.name.isprintable():
        raise SpecError(
            f"--name {spec.name[:80]!r}: a name has 1 to {MAX_NAME} printable characters and no '/'"
            f" (this one has {len(spec.name)}).",
            hint="Try: --name digits",
            code="spec.value",
            field="name",
        )
    if not spec.experiment or len(spec.experiment) > 250:
        raise SpecError(
            "--experiment: a name has 1 to 250 characters.",
            hint="Try: --experiment digits",
            code="spec.value",
            field="experiment",
        )
    check_resources(spec.resources, spec.distribution)
    if spec.timeout is not None and not 0 < spec.timeout < 10**9:
        raise SpecError(
            f"--timeout {spec.timeout:g}: not a time.", hint="Try: --timeout 30m", code="spec.value", field="timeout"
        )
    if spec.require_gpu not in REQUIRE_GPU:
        raise SpecError(
            f"--require-gpu {spec.require_gpu[:80]}: it is one of stop and warn.",
            hint="Try: --require-gpu stop|warn",
            code="spec.value",
            field="require_gpu",
        )
    if spec.require_gpu == "stop" and spec.resources.gpus == 0:
        raise SpecError(
            "--require-gpu stop with --gpus 0: a run that owns no GPU cannot use one.",
            hint="Try: --gpus 1",
            code="spec.value",
            field="require_gpu",
        )
    if spec.gpu_ids not in GPU_IDS:
        raise SpecError(
            f"--gpu-ids {spec.gpu_ids[:80]}: it is one of uuid and index.",
            hint="Try: --gpu-ids uuid|index",
            code="spec.value",
            field="gpu_ids",
        )
    if spec.gpu_grace is not None and not 0 < spec.gpu_grace < 10**9:
        raise SpecError(
            f"gpu_grace {spec.gpu_grace:g}: not a time in seconds.",
            hint="Try: gpu_grace=60",
            code="spec.value",
            field="gpu_grace",
        )
    for kind, names in (("--env-var", spec.env), ("--secret", spec.secrets)):
        for name in names:
            if not _ENV.fullmatch(name):
                raise SpecError(
                    f"{kind} {name!r} is not a name for an environment variable.",
                    hint=f"Try: {kind} MY_NAME",
                    code="spec.value",
                    field="env" if kind == "--env-var" else "secrets",
                )
    for name in spec.out:
        if not name.isidentifier():
            raise SpecError(
                f"--out {name!r} is not a variable name.", hint="Try: --out accuracy", code="spec.value", field="out"
            )
    if both := sorted(set(spec.env) & set(spec.secrets)):
        raise SpecError(
            f"{both[0]} is given by --env-var and by --secret.", hint="Give it once.", code="spec.value", field="env"
        )
    for key, value in spec.tags.items():
        if len(key) > 250 or len(value) > 5000:
            raise SpecError(
                f"--tag {key[:40]}…: MLflow takes 250 characters of name and 5000 of value.",
                hint="Shorten it.",
                code="spec.value",
                field="tags",
            )
    check_environment(spec.environment)
    check_data(spec.inputs, spec.outputs)
    if not spec.job_type:  # in a file of az ml the service resolves them
        check_references(spec.params, spec.args, spec.inputs, spec.outputs)
    check_service(spec.identity, spec.services, spec.priority, spec.tier)
    return spec
