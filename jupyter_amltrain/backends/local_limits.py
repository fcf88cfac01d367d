"""What a job may request that a single machine under our agent does not support, as sentences."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from jupyter_amltrain.backends.job_support import unsupported_type_reason
from jupyter_amltrain.schema import az_yaml
from jupyter_amltrain.schema.environment import Environment
from jupyter_amltrain.schema.inputs import is_address
from jupyter_amltrain.schema.job import JobSpec

#: Where the things work that a machine without a service does not have.
_AZURE = "an Azure target (%aml_compute connect)"


def unsupported(spec: JobSpec, target: str, has_our_disk: bool = True) -> str:
    """Why the machine `target` cannot run `spec`; empty when it can. Blocks on the disk where inputs are.

    Parameters
    ----------
    has_our_disk
        Whether paths of this machine mean the same there: else nobody here knows whether an input exists.
    """
    if spec.job_type not in ("", "command"):
        return unsupported_type_reason("local", spec.job_type) or ""
    return next(_reasons(spec, target, has_our_disk), "")


class _Words:
    """Names what a job asks for as its author wrote it: flags of a line, or keys of a file of ``az ml``."""

    def __init__(self, spec: JobSpec) -> None:
        self._job = az_yaml.parse(spec.cell, spec.script_name, spec.notebook_dir) if spec.job_type else None

    def __call__(self, flag: str, keys: Sequence[str], why: str, cure: str) -> str:
        """One sentence or two.

        Parameters
        ----------
        flag, keys
            How it is asked for in a line and in a file.
        """
        if self._job is None:
            return f"{flag}: {why} {cure}"
        return str(self._job.fault(tuple(keys), why, cure))

    @property
    def of_file(self) -> bool:
        return self._job is not None


def _reasons(spec: JobSpec, target: str, has_our_disk: bool) -> Iterator[str]:
    given, words = spec.resources, _Words(spec)
    for_azure = f"That is for {_AZURE}."
    if given.nodes > 1:
        why = f"{target!r} is one machine."
        cure = f"For several nodes use {_cluster()}."
        yield words(f"--nodes {given.nodes}", ("resources", "instance_count"), why, cure)
    distribution = spec.distribution
    # One process is what runs here anyway; a file that says no number means one, a line one for each GPU.
    one = (distribution.processes or (1 if words.of_file else 0)) == 1 and not distribution.parameter_servers
    if distribution.kind and not one:
        flag = f"--processes {distribution.processes}" if distribution.processes else "--distribution"
        why = f"a run on {target!r} is one process."
        yield words(flag, ("distribution",), why, f"For several processes use {_AZURE}.")
    if given.instance_type:
        yield words(
            f"--instance-type {given.instance_type}",
            ("resources", "instance_type"),
            f"{target!r} is a machine already.",
            "A size is chosen on a serverless or Kubernetes target of Azure (%aml_compute create).",
        )
    asked: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
        ("--shm-size", ("resources", "shm_size"), given.shm_size, "runs jobs without a container"),
        ("--docker-args", ("resources", "docker_args"), given.docker_args, "runs jobs without a container"),
        ("--identity", ("identity",), spec.identity, "reads data as you"),
        (
            "--service",
            ("services",),
            ", ".join(service.partition(":")[0] for service in spec.services),
            "opens no services of a run",
        ),
        ("--priority", ("queue_settings", "priority"), spec.priority, "starts runs in the order of their submission"),
        ("--tier", ("queue_settings", "job_tier"), spec.tier, "has one kind of machine"),
    )
    for flag, keys, value, what in asked:
        if value:
            yield words(f"{flag} {value}", keys, f"{target!r} {what}.", for_azure)
    if spec.job_type:
        yield from _beyond(spec, target)
    elif spec.environment and not spec.environment.chosen and spec.environment != Environment(kernel=True):
        # Of a file it is taken as what is here, and what nobody asked for is left out.
        yield (
            f"--env {spec.environment.shown or '(derived)'}: {target!r} runs jobs with the kernel's own Python and"
            f" makes no environment. Install what is missing here (%pip install), or use {_AZURE}."
        )
    yield from _about_data(spec, target, words, has_our_disk)


def _beyond(spec: JobSpec, target: str) -> Iterator[str]:
    """What a file asks for that a job of ours has no words for."""
    job = az_yaml.parse(spec.cell, spec.script_name, spec.notebook_dir)
    for key, has in (("code", spec.source), ("distribution", spec.distribution.kind), ("services", spec.services)):
        if job.doc.get(key) and not has:
            yield str(job.fault((key,), f"{target!r} cannot do it.", f"That is for {_AZURE}."))


def _about_data(spec: JobSpec, target: str, words: _Words, has_our_disk: bool) -> Iterator[str]:
    for name, given in spec.inputs.items():
        if given.type == "literal":
            continue
        flag, keys = f"--input {name}={given.path}", ("inputs", name, "path")
        there = f" Set it by --param {name}=PATH" if words.of_file else " Give a path"
        typed = "Write type: {}" if words.of_file else "Say so, by ',{}'"
        otherwise = "." if words.of_file else ", or leave the type out."
        if is_address(given.path):
            shown = f", not {given.path}" if words.of_file else ""
            why = f"{target!r} reads files and folders of this machine only{shown}."
            yield words(flag, keys, why, f"{there.strip()}, or use {_AZURE}.")
        elif not has_our_disk:
            continue
        elif not os.path.exists(given.path):
            why = f"there is no such file or folder{f': {given.path}' if words.of_file else ''}."
            yield words(flag, keys, why, f"{there.strip()}.")
        elif given.type == "uri_folder" and not os.path.isdir(given.path):
            yield words(flag, keys, "that is a file.", typed.format("uri_file") + otherwise)
        elif given.type == "uri_file" and os.path.isdir(given.path):
            yield words(flag, keys, "that is a folder.", typed.format("uri_folder") + otherwise)
    for name, wanted in spec.outputs.items():
        if wanted.path:
            why = f"on {target!r} an output is a folder of the run."
            cure = "Leave the path out" if words.of_file else f"Write --output {name}"
            yield words(f"--output {name}={wanted.path}", ("outputs", name, "path"), why, f"{cure}, or use {_AZURE}.")


def _cluster() -> str:
    return "a cluster of Azure (%aml_compute create NAME --kind amlcompute)"
