"""A planned job as a file of ``az ml``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from jupyter_amltrain.azure import environments, job_body
from jupyter_amltrain.backends.base import LaunchPlan
from jupyter_amltrain.jobs import requirements
from jupyter_amltrain.jobs.environments import for_service, is_built
from jupyter_amltrain.schema import az_yaml, az_yaml_job
from jupyter_amltrain.schema.job import JobSpec


def yaml_text(plan: LaunchPlan, code: str = "") -> str:
    """Return a planned job as a file for ``az ml job create``.

    Parameters
    ----------
    code
        Folder that has all the code, as the file names it; empty: the script is in the file, or its folder is named.
    """
    spec, request = requirements.completed(plan.spec), plan.request
    if spec.job_type:
        return _file_text(spec, request)
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


def _file_text(spec: JobSpec, request: Mapping[str, Any]) -> str:
    """Return a job of a file as a file; its values may have been changed."""
    if "job" not in request:
        plain, changed = az_yaml.parse(spec.cell, spec.script_name), az_yaml_job.file_of(spec)
        return spec.cell if changed.doc == plain.doc else az_yaml.to_yaml(changed.doc)
    job = {**request["job"], "tags": spec.tags}  # those of the request identify one run
    if not spec.tags:
        del job["tags"]
    return az_yaml_job.text_of(job, [f"Relative paths start at {spec.notebook_dir}"])


def _script(plan: LaunchPlan) -> str:
    """Return the text of the script as it will run."""
    if plan.spec.script:
        return plan.spec.script
    content = plan.snapshot.files[plan.spec.script_name]
    return (content if isinstance(content, bytes) else Path(content).read_bytes()).decode("utf-8-sig")
