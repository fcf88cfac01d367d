"""What a job may ask for that a single machine under our agent does not have, in words."""

from __future__ import annotations

import os
from collections.abc import Iterator

from jupyter_amltrain.spec.environment import Environment
from jupyter_amltrain.spec.inputs import is_address
from jupyter_amltrain.spec.job import JobSpec

#: Where the things work that a machine without a service does not have.
_AZURE = "an Azure target (%aml_compute connect)"


def refused(spec: JobSpec, target: str) -> str:
    """Why the machine `target` cannot run `spec`; empty when it can. Blocks on the disk where inputs lie."""
    if spec.job_type not in ("", "command"):
        from jupyter_amltrain.backends.azureml.support import refusal_of_type

        return refusal_of_type("local", spec.job_type) or ""
    return next(_reasons(spec, target), "")


def _reasons(spec: JobSpec, target: str) -> Iterator[str]:
    asked = spec.resources
    if asked.nodes > 1:
        yield f"--nodes {asked.nodes}: {target!r} is one machine. Several nodes are had on {_cluster()}."
    if spec.distribution.kind:
        said = f"--processes {spec.distribution.processes}" if spec.distribution.processes else "--distribution"
        yield f"{said}: a run on {target!r} is one process. Several are had on {_AZURE}."
    if asked.instance_type:
        yield (
            f"--instance-type {asked.instance_type}: {target!r} is a machine already."
            f" A size is chosen on a serverless or Kubernetes target of Azure (%aml_compute create)."
        )
    for flag, given, what in (
        ("--shm-size", asked.shm_size, "runs jobs without a container"),
        ("--docker-args", asked.docker_args, "runs jobs without a container"),
        ("--identity", spec.identity, "reads data as you"),
        ("--service", ", ".join(service.partition(":")[0] for service in spec.services), "has no doors to open"),
        ("--priority", spec.priority, "starts runs in the order of their submission"),
        ("--tier", spec.tier, "has one kind of machine"),
    ):
        if given:
            yield f"{flag} {given}: {target!r} {what}. That is for {_AZURE}."
    if spec.job_type:
        yield from _beyond(spec, target)
    elif spec.environment and not spec.environment.chosen and spec.environment != Environment(kernel=True):
        # Of a file it is taken as what is here, and what nobody asked for is left out.
        yield (
            f"--env {spec.environment.shown or '(derived)'}: {target!r} runs jobs with the kernel's own Python and"
            f" makes no environment. Install what is missing here (%pip install), or use {_AZURE}."
        )
    yield from _about_data(spec, target)


def _beyond(spec: JobSpec, target: str) -> Iterator[str]:
    """What a file asks for that a job of ours has no words for."""
    from jupyter_amltrain.spec import azure_yaml

    job = azure_yaml.parse(spec.cell, spec.script_name, spec.notebook_dir)
    for key, has in (("code", spec.source), ("distribution", spec.distribution.kind), ("services", spec.services)):
        if job.doc.get(key) and not has:
            yield str(job.fault((key,), f"{target!r} cannot do it.", f"That is for {_AZURE}."))


def _about_data(spec: JobSpec, target: str) -> Iterator[str]:
    for name, given in spec.inputs.items():
        if given.type == "literal":
            continue
        if is_address(given.path):
            yield (
                f"--input {name}={given.path}: {target!r} reads files and folders of this machine only."
                f" Give a path, or use {_AZURE}."
            )
        elif not os.path.exists(given.path):
            yield f"--input {name}={given.path}: there is no such file or folder."
        elif given.type == "uri_folder" and not os.path.isdir(given.path):
            yield f"--input {name}={given.path}: that is a file. Say so, by ',uri_file', or leave the type out."
        elif given.type == "uri_file" and os.path.isdir(given.path):
            yield f"--input {name}={given.path}: that is a folder. Say so, by ',uri_folder', or leave the type out."
    for name, wanted in spec.outputs.items():
        if wanted.path:
            yield (
                f"--output {name}={wanted.path}: on {target!r} an output is a folder of the run."
                f" Write --output {name}, or use {_AZURE}."
            )


def _cluster() -> str:
    return "a cluster of Azure (%aml_compute create NAME --kind amlcompute)"
