"""A job's environment as the SDK takes it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.backends.azureml import faults
from jupyter_amltrain.backends.azureml.process import rest
from jupyter_amltrain.errors import AmlTrainError, EnvironmentFailed

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.process.cloud import Workspace

#: What a derived environment has so that a script's MLflow can speak with the agent.
_MLFLOW = "mlflow-skinny<=3.15"
_LABEL = re.compile(r"(?P<name>[^@/:]+)@(?P<label>[^@/:]+)")
_VERSION = re.compile(r"(?P<name>[^@/:]+):(?P<version>[^@/:]+)")


def resolved(workspace: Workspace, environment: Mapping[str, str]) -> Any:
    """An id (text) of an environment that is there, or the SDK's ``Environment``, not made yet.

    Parameters
    ----------
    environment
        See :func:`..mapping.environment_of`.

    Raises
    ------
    EnvironmentFailed
        There is none of that name, or a file of it cannot be read.
    """
    name = environment.get("name", "")
    if name:
        found = _latest(workspace, name)
        return _derived(workspace, found) if environment.get("derive") else found
    return _anonymous(environment)


def _latest(workspace: Workspace, name: str) -> str:
    """A label's version, asked for by us: one request, and our words when there is none of that name."""
    labelled = _LABEL.fullmatch(name)
    if labelled is None:
        return name if name.startswith(("azureml:", "/")) else f"azureml:{name}"
    if labelled["label"] != "latest":
        return f"azureml:{name}"
    try:
        answer = workspace.arm.get(f"environments/{labelled['name']}", api=rest.ARM, act=f"look for environment {name}")
    except AmlTrainError as error:
        if faults.told(error).status != 404:
            raise
        raise EnvironmentFailed(
            f"There is no environment {labelled['name']!r} in {workspace.name}.",
            hint="The studio lists them under Environments. Try: --env conda.yml",
        ) from error
    version = ((answer.json or {}).get("properties") or {}).get("latestVersion")
    return f"azureml:{labelled['name']}:{version}" if version else f"azureml:{name}"


def _anonymous(environment: Mapping[str, str]) -> Any:
    from azure.ai.ml.entities import BuildContext, Environment

    if folder := environment.get("build"):
        if not Path(folder, "Dockerfile").is_file():
            raise EnvironmentFailed(f"--env {folder}: there is no Dockerfile in it.", hint="Is the path right?")
        return Environment(build=BuildContext(path=folder))
    conda: Any = None
    if path := environment.get("conda"):
        conda = _conda(path)
    return Environment(image=environment["image"], conda_file=conda)


def _conda(path: str) -> dict[str, Any]:
    import yaml

    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise EnvironmentFailed(f"The conda file {path} cannot be read: {line}.", hint="Is the path right?") from error
    if not isinstance(found, dict) or "dependencies" not in found:
        raise EnvironmentFailed(f"{path} is not a conda file: it has no dependencies.", hint="Try: conda env export")
    return found


def _derived(workspace: Workspace, name: str) -> Any:
    """An environment made of a named one, with packages that can log."""
    import yaml
    from azure.ai.ml.entities import Environment

    found = _VERSION.fullmatch(name.removeprefix("azureml:"))
    if found is None:
        raise EnvironmentFailed(f"--derive-env: {name} is not NAME:VERSION of this workspace.", hint="Leave it out.")
    path = f"environments/{found['name']}/versions/{found['version']}"
    properties = (workspace.arm.get(path, api=rest.ARM, act=f"look at environment {name}").json or {})["properties"]
    if not properties.get("image"):
        raise EnvironmentFailed(
            f"--derive-env: {name} is built of a Dockerfile, nothing can be added to it.",
            hint="Make your own: --env conda.yml",
        )
    conda = yaml.safe_load(properties.get("condaFile") or "{}") or {}
    packages = list(conda.get("dependencies") or ["python=3.11", "pip"])
    pip = next((part for part in packages if isinstance(part, dict) and "pip" in part), None)
    if pip is None:
        packages.append(pip := {"pip": []})
    pip["pip"] = [p for p in pip["pip"] if not re.match(r"(azureml-)?mlflow\b|mlflow-", str(p))] + [_MLFLOW]
    return Environment(image=properties["image"], conda_file={**conda, "dependencies": packages})
