"""YAML jobs (:mod:`jupyter_amltrain.spec.azure_yaml`) on a target of Azure: what is asked of the process. Pure.

The process lets the SDK load the file (:mod:`.service.jobs`), so that it means what it means to ``az ml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jupyter_amltrain.backends.azureml import job_tags
from jupyter_amltrain.backends.azureml.mapping import Place
from jupyter_amltrain.spec import azure_yaml
from jupyter_amltrain.spec.job import JobSpec

#: Property of a job that says on which of the workspace's computes it counts; ARM says it of command jobs alone.
COMPUTE = "amltrain.compute"


def doc_of(spec: JobSpec, place: Place) -> dict[str, Any]:
    """The file as it is sent: on the target's compute, with the line's parameters, named as the run."""
    job = azure_yaml.parse(spec.cell, spec.script_name, spec.notebook_dir)
    doc = azure_yaml.placed(azure_yaml.with_params(job, spec.params), place.compute, place.size)
    doc.pop("name", None)  # the run's id, which nobody else has
    doc["display_name"] = spec.name
    doc["experiment_name"] = spec.experiment
    return doc


def payload_of(spec: JobSpec, place: Place, name: str, tags: Mapping[str, str]) -> dict[str, Any]:
    """``job`` of the operations ``jobs.yaml`` and ``jobs.yaml_check``."""
    return {
        "name": name,
        "text": azure_yaml.dumped(doc_of(spec, place)),
        "said": spec.cell,
        "file": spec.script_name,
        "folder": spec.notebook_dir,
        "tags": dict(tags),
        "properties": {**job_tags.properties_of(spec), COMPUTE: place.compute},
    }


def request_of(spec: JobSpec, place: Place, name: str, tags: Mapping[str, str]) -> dict[str, Any]:
    """What ``--dry-run`` prints."""
    doc = doc_of(spec, place)
    return {
        "request": f"PUT {place.arm_id}/jobs/{name}",
        "type": spec.job_type,
        "job": {**doc, "tags": {**doc.get("tags", {}), **tags}},
        "folder": spec.notebook_dir,
    }
