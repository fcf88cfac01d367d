"""Check of a job for settings that a single machine with our agent does not support."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from jupyter_amltrain.agent.data.cache import is_web_address
from jupyter_amltrain.backends.honored import Messages, hint_of
from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.jobs.environments import docker_args, is_image
from jupyter_amltrain.jobs.launch import is_downloaded, is_single_process
from jupyter_amltrain.plugins import offers, parts
from jupyter_amltrain.schema import az_yaml
from jupyter_amltrain.schema.environment import Environment
from jupyter_amltrain.schema.inputs import JobInput, is_address
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.target import MACHINE_LIMITS

#: Version that ``--env NAME`` has if it names none.
_LATEST = "@latest"
#: Text that a file of ``az ml`` would have replaced.
_PLACEHOLDER = re.compile(r"\$\{\{.*?\}\}")


def check_machine(
    spec: JobSpec, target: str, has_our_disk: bool = True, *, has_agent: bool = True, machines: int = 1
) -> None:
    """Raise :class:`SpecError` if the machine `target` cannot run `spec`. Blocks on the disk with the inputs.

    Parameters
    ----------
    has_our_disk
        Whether the machine has the same paths as this one: otherwise the existence of inputs is not checked.
    has_agent
        Whether an agent runs there, which builds environments from files with packages, and downloads inputs.
    machines
        Number of machines of the target.
    """
    if spec.job_type not in ("", "command"):
        reasons = [reason("local", spec.job_type) for reason in parts("job_types")]
        otherwise = f"{target!r} cannot run a job of type {spec.job_type}: use {offers()}."
        raise SpecError(next(filter(None, reasons), otherwise))
    for error in _errors(spec, target, has_our_disk, has_agent, machines):
        raise error


def _errors(spec: JobSpec, target: str, has_our_disk: bool, has_agent: bool, machines: int) -> Iterator[SpecError]:
    messages, distribution = Messages(spec), spec.distribution
    yield from _node_errors(spec, target, machines, messages)
    if (not has_agent or is_image(spec)) and not is_single_process(spec):
        flag = f"--processes {distribution.processes}" if distribution.processes else "--distribution"
        where = f"a container on {target!r}" if has_agent else f"a run on {target!r}"
        yield messages(flag, ("distribution",), f"{where} is one process.", f"For several processes use {offers()}.")
    if spec.job_type:
        yield from _unsupported_keys(spec, target)
    else:
        yield from map(SpecError, _environment_reasons(spec.environment, target, has_agent))
        if spec.resources.docker_args and has_agent and is_image(spec):
            docker_args(spec)  # raises for options that cannot be used
    yield from _data_errors(spec, target, messages, has_our_disk, has_agent)
    if spec.max_restarts and not has_agent:
        yield messages(
            f"--max-restarts {spec.max_restarts}",
            ("limits",),
            f"{target!r} starts runs once.",
            "Leave it out, or use another target.",
        )


def _node_errors(spec: JobSpec, target: str, machines: int, messages: Messages) -> Iterator[SpecError]:
    """Yield why a job cannot run on several machines."""
    nodes = spec.resources.nodes
    if nodes == 1:
        return
    flag, keys = f"--nodes {nodes}", ("resources", "instance_count")
    if nodes > machines:
        has, hint = (
            "is one machine" if machines == 1 else f"has {machines} machines",
            hint_of(MACHINE_LIMITS["resources.nodes"]),
        )
        yield messages(flag, keys, f"{target!r} {has}.", hint)
    elif not spec.distribution.kind:  # a file of `az ml`
        yield messages(flag, keys, "the processes on several machines need a launcher.", "Add distribution: pytorch.")
    elif spec.distribution.kind == "ray":
        reason = "a cluster of Ray has one machine here."
        yield messages(flag, keys, reason, "Use one machine, or --distribution pytorch.")
    elif is_image(spec):
        yield messages(flag, keys, f"a container on {target!r} is on one machine.", f"Use packages, or {offers()}.")


def _environment_reasons(environment: Environment, target: str, builds: bool) -> Iterator[str]:
    """Yield why a machine cannot provide an environment; one that was not requested is ignored."""
    if not environment or environment.chosen or environment == Environment(kernel=True):
        return
    only_pip = environment.pip and environment == Environment(pip=environment.pip)
    value = environment.flag_value.removesuffix("@latest") or "(derived)"
    flag = f"--pip {environment.pip[0]}" if only_pip else f"--env {value}"
    if builds and environment.is_buildable and not environment.derive:
        return
    if not builds:
        yield (
            f"{flag}: {target!r} runs jobs with the kernel's own Python and creates no environment."
            f" Install missing packages here (%pip install), or use {offers()}."
        )
    elif environment.image:
        if environment.kernel or environment.conda:
            yield (
                f"{flag}: {target!r} installs no packages in an image. Use the image alone, or packages alone; or"
                f" {offers()}."
            )
    elif environment.build:
        yield (
            f"{flag}: {target!r} builds no image from a Dockerfile. Build it there (docker build -t"
            f" amltrain/mine FOLDER) and use --env amltrain/mine; or use {offers()}."
        )
    else:
        yield (
            f"{flag}: {target!r} has no environment of that name; names with a version are those of a workspace."
            " Name a file: --env requirements.txt, pyproject.toml or conda.yml; or an image with its registry:"
            f" --env docker.io/library/{environment.name.removesuffix(_LATEST)}; or use {offers()}."
        )


def _unsupported_keys(spec: JobSpec, target: str) -> Iterator[SpecError]:
    """Yield settings of a file that a :class:`JobSpec` cannot represent, and placeholders that nothing fills."""
    from jupyter_amltrain.schema.az_yaml_job import fill_bindings, references

    job = az_yaml.parse(spec.cell, spec.script_name, spec.notebook_dir)
    for key, has in (("code", spec.source), ("distribution", spec.distribution.kind), ("services", spec.services)):
        if job.doc.get(key) and not has:
            yield job.error((key,), f"{target!r} does not support it.", f"Supported by: {offers()}.")
    for name, data in spec.inputs.items():
        if data.type == "literal" and "${{" in str(data.value):
            yield job.error(("inputs", name), "an input cannot refer to another one.", "Write its value.")
    rest = fill_bindings(spec.command, dict.fromkeys(references(spec.command), ""))
    if unknown := _PLACEHOLDER.search(rest):
        reason = f"unknown placeholder {unknown[0][:80]}."
        yield job.error(("command",), reason, "There are ${{inputs.NAME}} and ${{outputs.NAME}}.")


def _data_errors(
    spec: JobSpec, target: str, messages: Messages, has_our_disk: bool, has_agent: bool
) -> Iterator[SpecError]:
    for name, data in spec.inputs.items():
        if data.type == "literal":
            continue
        flag, keys = f"--input {name}={data.path}", ("inputs", name, "path")
        correction = f" Set it with --input {name}=PATH" if messages.of_file else " Give a path"
        typed = "Write type: {}" if messages.of_file else "Add the type ',{}'"
        otherwise = "." if messages.of_file else ", or leave the type out."
        if has_agent and is_web_address(data.path):
            if is_downloaded(data) and data.type != "uri_file":
                reason = "a web address is one file."
                yield messages(flag, ("inputs", name, "type"), reason, typed.format("uri_file") + ".")
            elif data.mode not in ("", "ro_mount", "download", "direct"):
                reason = f"mode {data.mode} does not support web addresses on {target!r}."
                yield messages(flag, ("inputs", name, "mode"), reason, "Leave it out, or use download or direct.")
        elif is_address(data.path):
            shown = f", not {data.path}" if messages.of_file else ""
            web = ", and web addresses," if has_agent else ""
            reason = f"{target!r} reads files and folders of this machine{web} only{shown}."
            yield messages(flag, keys, reason, f"{correction.strip()}, or use {offers()}.")
        elif not has_our_disk and not data.upload:
            continue  # the machine is asked
        elif not (found := data_type_of(data)):
            reason = f"there is no such file or folder{f': {data.path}' if messages.of_file else ''}."
            yield messages(flag, keys, reason, f"{correction.strip()}.")
        elif found != data.type:
            kind = "file" if found == "uri_file" else "folder"
            yield messages(flag, keys, f"the path is a {kind}.", typed.format(found) + otherwise)
    for name, output in spec.outputs.items():
        if output.path:
            reason = f"on {target!r} an output is a folder of the run."
            hint = "Leave the path out" if messages.of_file else f"Write --output {name}"
            yield messages(
                f"--output {name}={output.path}", ("outputs", name, "path"), reason, f"{hint}, or use {offers()}."
            )


def data_type_of(data: JobInput) -> str:
    """Return the type of an input that is a path of this machine, by what is there; empty if nothing is.

    That is its own type unless it says file of a folder, or folder of a file. Blocks on the disk.
    """
    if not os.path.exists(data.path):
        return ""
    if data.type == "uri_folder" and not os.path.isdir(data.path):
        return "uri_file"
    return "uri_folder" if data.type == "uri_file" and os.path.isdir(data.path) else data.type
