"""A job's environment as plain words: what is printed, and what the process makes the SDK's object of. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

from jupyter_amltrain.backends.azureml import curated
from jupyter_amltrain.spec.environment import Environment
from jupyter_amltrain.spec.job import JobSpec

#: What conda packages are built on, without and with GPUs. Source: base images of the public definitions in
#: github.com/Azure/azureml-assets, commit 4b41f8c of 2026-07-23.
BASE_IMAGE = "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04:latest"
BASE_GPU_IMAGE = "mcr.microsoft.com/azureml/openmpi5.0-cuda12.4-ubuntu22.04:latest"


def environment_of(spec: JobSpec, gpus: int | None) -> dict[str, str]:
    """Where its Python comes from, plain: ``name``, ``image`` (with ``conda``, ``packages``), ``build``; ``derive``."""
    given: Environment = spec.environment
    name = given.name.removeprefix("azureml:") if not given.name.startswith("azureml://") else given.name
    found = {"name": name, "image": given.image, "conda": given.conda, "build": given.build}
    found = {key: value for key, value in found.items() if value}
    if given.kernel:
        found["packages"] = json.dumps(given.conda_file)
    if given.conda or given.kernel:
        found.setdefault("image", BASE_GPU_IMAGE if gpus else BASE_IMAGE)
    if not found:
        found = {"name": curated.default(bool(gpus))}
    if given.derive:
        found["derive"] = "yes"
    return found


def environment_shown(environment: Mapping[str, str]) -> str:
    """``environmentId`` in a printed request."""
    if name := environment.get("name"):
        return name if name.startswith(("azureml://", "/")) else f"azureml:{name}"
    if folder := environment.get("build"):
        return f"(environment built of {folder})"
    conda = f" with {environment['conda']}" if "conda" in environment else ""
    if "packages" in environment:
        python, _, *pip = json.loads(environment["packages"])["dependencies"]
        conda = f" with {', '.join([python, *(pip[0]['pip'] if pip else ())])}"
    return f"(environment of the image {environment['image']}{conda})"
