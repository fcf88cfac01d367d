"""``submit --save``: a job as a file of ``az ml`` with its code beside it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from jupyter_amltrain.commands.new_files import write_new
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.plugins import parts
from jupyter_amltrain.schema import az_yaml
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.text import tilde

if TYPE_CHECKING:
    from jupyter_amltrain.backends.base import LaunchPlan


def save(spec: JobSpec, target: str | None, file: str, verb: str = "%aml_submit") -> str:
    """Write a job and its code; return one sentence.

    The code is in a folder beside the file, unless the job has a ``--source`` folder, which the file names.

    Parameters
    ----------
    file
        Path of the new file, ``job.yml``.
    verb
        Command that runs the file.

    Raises
    ------
    CommandError
        The job is a file already, the name has another suffix, or a file there has another content.
    """
    from jupyter_amltrain import api
    from jupyter_amltrain.jobs.project_files import project_files

    if spec.job_type:
        raise CommandError(
            f"--save: {spec.script_name} is a job file already.",
            hint="Copy it.",
            code="save.job_file",
            field="save",
        )
    folder, name = folder_and_name(file)
    whole = msgspec.structs.replace(spec, files=project_files(spec))  # as for another machine
    plan = api.plan_spec(whole, target=target)
    contents: dict[str, str | bytes] = {}
    if spec.source and not spec.script:
        code = os.path.relpath(spec.source, folder)
    else:
        code = f"{os.path.splitext(name)[0]}-code"
        contents |= {f"{code}/{part}": content for part, content in plan.snapshot.files.items()}
    code = _dotted(code)
    contents[name] = yaml_text(_with_relative_paths(plan, folder), code=code).encode()
    found = write_new(contents, folder, "--save")
    if not found.written:
        return f"{tilde(os.path.join(folder, name))} has this job already. To run it: {verb} {file}"
    shown = ", ".join(found.written[:5]) + (f" and {len(found.written) - 5} more" if len(found.written) > 5 else "")
    return f"Wrote {shown} to {tilde(folder)}. To run it: {verb} {file}"


def folder_and_name(file: str) -> tuple[str, str]:
    """Return the absolute folder and the name of the new file of ``--save``; raise if it is not named as a job file."""
    folder, name = os.path.split(os.path.abspath(os.path.expanduser(file)))
    if not az_yaml.is_file(name):
        raise CommandError(
            f"--save: {name!r} is not the name of a job file.",
            hint=f"Try: --save {os.path.splitext(file)[0]}.yml",
            code="save.suffix",
            field="save",
        )
    return folder, name


def _dotted(path: str) -> str:
    return path if path.startswith(".") or os.path.isabs(path) else f"./{path}"


def _with_relative_paths(plan: LaunchPlan, folder: str) -> LaunchPlan:
    """Return the plan with local data below the folder of the file relative to it: both can move together."""

    def path(text: str) -> str:
        inside = text.startswith(folder.rstrip(os.sep) + os.sep)
        return _dotted(os.path.relpath(text, folder)) if inside else text

    inputs = {
        name: msgspec.structs.replace(data, path=path(data.path)) if data.local else data
        for name, data in plan.spec.inputs.items()
    }
    environment = plan.spec.environment
    environment = msgspec.structs.replace(environment, conda=path(environment.conda), build=path(environment.build))
    spec = msgspec.structs.replace(plan.spec, inputs=inputs, environment=environment)
    return msgspec.structs.replace(plan, spec=spec)


def yaml_text(plan: LaunchPlan, code: str = "") -> str:
    """Return a planned job as a file for ``az ml job create``.

    Parameters
    ----------
    code
        Folder that has all the code, as the file names it; empty: the script is in the file, or its folder is named.

    Raises
    ------
    CommandError
        No plug-in writes such files.
    """
    for write in parts("job_file"):
        text: str = write(plan, code)
        return text
    raise CommandError("Nothing installed here writes job files.", code="save.job_file", field="save")
