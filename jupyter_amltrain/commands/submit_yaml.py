"""``submit job.yml``: a file of the ``az ml`` v2 schema; and a job of ours as such a file (``--dry-run --yaml``)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.spec import az_yaml, az_yaml_job

if TYPE_CHECKING:
    from jupyter_amltrain.backends.base import Plan
    from jupyter_amltrain.spec.job import JobSpec

#: Flags that a file's own keys take the place of: attribute of the parsed line -> key.
_KEYS = {
    "source": "code", "out": "outputs", "env_var": "environment_variables", "secret": "environment_variables",
    "gpus": "resources.instance_type", "require_gpu": "", "gpu_grace": "", "share_gpus": "", "gpu_ids": "",
    "timeout": "limits.timeout",
    "nodes": "resources.instance_count", "processes": "distribution.process_count_per_instance",
    "distribution": "distribution", "instance_type": "resources.instance_type", "shm_size": "resources.shm_size",
    "docker_args": "resources.docker_args", "env": "environment", "derive_env": "environment", "input": "inputs",
    "output": "outputs", "identity": "identity", "service": "services", "priority": "queue_settings.priority",
    "tier": "queue_settings.job_tier",
}  # fmt: skip


def spec_of(
    asked: argparse.Namespace, args: Sequence[str], prog: str, *, experiment: str, here: str
) -> tuple[JobSpec, str]:
    """The job of a file, and the name of the compute that it asks for.

    Parameters
    ----------
    experiment
        What holds when neither line nor file says one.

    Raises
    ------
    CommandError
        The line has flags that the file's keys decide, or the file is wrong; names line and key.
    """
    if args:
        raise CommandError(
            f"{prog}: a YAML job has no arguments after '--'.", hint="Write them in its command:, or use --param."
        )
    for name, key in _KEYS.items():
        if getattr(asked, name, None) not in (None, False, [], ()):
            flag = f"--{name.replace('_', '-')}"
            hint = f"Write it in {asked.script} as {key}:" if key else "Leave it out."
            if name == "input":
                hint = f"Set an input of {asked.script} by --param NAME=VALUE, or write it there as inputs:"
            raise CommandError(f"{flag} is not for a YAML job: the file says it.", hint=hint)
    job = az_yaml.with_params(az_yaml.load(asked.script), dict(asked.param))
    spec = az_yaml_job.spec_of(job)
    changed: dict[str, Any] = {
        "params": dict(asked.param),
        "tags": {**spec.tags, **dict(asked.tag)},
        "project": here,
        "experiment": asked.experiment or (spec.experiment if "experiment_name" in job.doc else experiment),
    }
    if asked.name is not None:
        changed["name"] = asked.name
    return msgspec.structs.replace(spec, **changed), job.compute


def target_of(compute: str) -> str:
    """The target whose compute a file asks for.

    Raises
    ------
    CommandError
        There is none.
    """
    from jupyter_amltrain import api

    targets = api.targets()
    for target in targets:
        if compute.lower() in (target.name.lower(), str(getattr(target, "compute", "")).lower()):
            return target.name
    raise CommandError(
        f"The file asks for the compute {compute!r}, and no target has it.",
        hint="Run it elsewhere by --target NAME, or see: %aml_compute list",
    )


def text_of(plan: Plan) -> str:
    """A planned job as a file for ``az ml job create``."""
    from jupyter_amltrain import requirements
    from jupyter_amltrain.backends.azureml import environments, job_body
    from jupyter_amltrain.spec import az_yaml_job

    spec, request = requirements.completed(plan.spec), plan.request
    if spec.job_type:
        if "job" not in request:
            return spec.cell
        job = {**request["job"], "tags": spec.tags}  # ours are of one run
        if not spec.tags:
            del job["tags"]
        return az_yaml_job.text_of(job, [f"Relative paths begin at {spec.notebook_dir}"])
    body = request.get("properties") or {}
    environment = dict(request.get("environment") or environments.environment_body(spec, None))
    for key in ("derive", "packages"):  # `packages` are the kernel's, which the spec has
        environment.pop(key, None)
    each = (body.get("distribution") or {}).get("processCountPerInstance")
    distribution = spec.distribution
    if each is not None:
        kind = str(body["distribution"]["distributionType"]).lower()
        distribution = msgspec.structs.replace(distribution, kind=kind, processes=int(each))
    size = str((body.get("resources") or {}).get("instanceType") or "")
    alone = len(plan.snapshot.files) == 1 and not spec.source
    sent = msgspec.structs.replace(
        spec,
        environment=msgspec.structs.replace(spec.environment, derive=False, **environment),
        distribution=distribution,
        resources=msgspec.structs.replace(spec.resources, instance_type=size or spec.resources.instance_type),
    )
    doc = az_yaml_job.doc_of(
        sent,
        argv=["python" if word == "@python" else word for word in job_body.argv_of(spec)],
        script=_script(plan) if alone or spec.script else "",
        code="" if alone else spec.source or spec.notebook_dir,
        compute=str(body.get("computeId") or "").rpartition("/")[2],
    )
    remarks = ["Send it by: az ml job create --file THIS_FILE"]
    if not alone and not spec.source:
        remarks.append("az ml sends the whole folder of code:, where %aml_submit sends the modules that are imported.")
    if spec.out:
        remarks.append(f"Values of --out are files of the job, {az_yaml_job.OUT_FOLDER}/NAME.json.")
    if spec.secrets:
        remarks.append(f"Not in it, because everybody could read them: {', '.join(spec.secrets)}.")
    return az_yaml_job.text_of(doc, [*remarks, *spec.notes, *plan.notes])


def _script(plan: Plan) -> str:
    """The text of the script as it will run."""
    if plan.spec.script:
        return plan.spec.script
    content = plan.snapshot.files[plan.spec.script_name]
    return (content if isinstance(content, bytes) else Path(content).read_bytes()).decode("utf-8-sig")
