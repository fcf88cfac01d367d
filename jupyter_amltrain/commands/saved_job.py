"""``submit --save``: a job as a file of ``az ml`` with its code beside it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from jupyter_amltrain.commands.new_files import write_new
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.schema import az_yaml, az_yaml_job
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

    path = os.path.abspath(os.path.expanduser(file))
    folder, name = os.path.split(path)
    if spec.job_type:
        raise CommandError(
            f"--save: {spec.script_name} is a job file already.",
            hint="Copy it.",
            code="save.job_file",
            field="save",
        )
    if not az_yaml.is_file(name):
        stem = os.path.splitext(file)[0]
        raise CommandError(
            f"--save: {name!r} is not the name of a job file.",
            hint=f"Try: --save {stem}.yml",
            code="save.suffix",
            field="save",
        )
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
        return f"{tilde(path)} has this job already. To run it: {verb} {file}"
    shown = ", ".join(found.written[:5]) + (f" and {len(found.written) - 5} more" if len(found.written) > 5 else "")
    return f"Wrote {shown} to {tilde(folder)}. To run it: {verb} {file}"


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
    """
    from jupyter_amltrain.backends.azureml import environments, job_body
    from jupyter_amltrain.jobs import requirements
    from jupyter_amltrain.jobs.environments import for_service, is_built

    spec, request = requirements.completed(plan.spec), plan.request
    if spec.job_type:
        if "job" not in request:
            plain, changed = az_yaml.parse(spec.cell, spec.script_name), az_yaml_job.file_of(spec)
            return spec.cell if changed.doc == plain.doc else az_yaml.to_yaml(changed.doc)
        job = {**request["job"], "tags": spec.tags}  # those of the request identify one run
        if not spec.tags:
            del job["tags"]
        return az_yaml_job.text_of(job, [f"Relative paths start at {spec.notebook_dir}"])
    body = request.get("properties") or {}
    if "argv" in request and is_built(spec):  # planned for a machine; the file is for the service
        spec = msgspec.structs.replace(spec, environment=for_service(spec.environment))
    environment = dict(request.get("environment") or {}) if "argv" not in request else {}
    environment = environment or dict(environments.environment_body(spec, None))
    for key in ("derive", "packages"):  # `packages` are those of the kernel, which the spec has
        environment.pop(key, None)
    processes = (body.get("distribution") or {}).get("processCountPerInstance")
    distribution = spec.distribution
    if processes is not None:
        kind = str(body["distribution"]["distributionType"]).lower()
        distribution = msgspec.structs.replace(distribution, kind=kind, processes=int(processes))
    size = str((body.get("resources") or {}).get("instanceType") or "")
    single_file = len(plan.snapshot.files) == 1 and not spec.source
    planned = msgspec.structs.replace(
        spec,
        environment=msgspec.structs.replace(spec.environment, derive=False, **environment),
        distribution=distribution,
        resources=msgspec.structs.replace(spec.resources, instance_type=size or spec.resources.instance_type),
    )
    doc = az_yaml_job.doc_of(
        planned,
        argv=["python" if word == "@python" else word for word in job_body.argv_of(spec)],
        script=_script(plan) if not code and (single_file or spec.script) else "",
        code=code or ("" if single_file else spec.code_root),
        compute=str(body.get("computeId") or "").rpartition("/")[2],
    )
    remarks = ["Send it with: az ml job create --file THIS_FILE"]
    if not code and not single_file and not spec.source:
        remarks.append("az ml sends the whole folder code:, while %aml_submit sends only the imported modules.")
    if spec.out:
        remarks.append(f"Values of --out are files of the job, {az_yaml_job.OUT_FOLDER}/NAME.json.")
    if spec.secrets:
        remarks.append(f"Not included, because everybody could read them: {', '.join(spec.secrets)}.")
    notes = () if "argv" in request else plan.notes  # those of a machine are about its own environments
    return az_yaml_job.text_of(doc, [*remarks, *spec.notes, *notes])


def _script(plan: LaunchPlan) -> str:
    """Return the text of the script as it will run."""
    if plan.spec.script:
        return plan.spec.script
    content = plan.snapshot.files[plan.spec.script_name]
    return (content if isinstance(content, bytes) else Path(content).read_bytes()).decode("utf-8-sig")
