"""A job's environment as the SDK takes it, and the packages that the service says are in it."""

from __future__ import annotations

import difflib
import json
import logging
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.backends.azureml import curated, faults, mlflow_pins
from jupyter_amltrain.backends.azureml.process import rest
from jupyter_amltrain.errors import AmlTrainError, EnvironmentFailed, WorkspaceGone
from jupyter_amltrain.spec.yaml_limits import exceeded

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.process.cloud import Workspace
    from jupyter_amltrain.backends.azureml.process.serve import Call

log = logging.getLogger("amltrain.azure")

_LABEL = re.compile(r"(?P<name>[^@/:]+)@(?P<label>[^@/:]+)")
_VERSION = re.compile(r"(?P<name>[^@/:]+):(?P<version>[^@/:]+)")
#: Versions of environments as they were told.
_KEPT = 200
_known: dict[tuple[str, str, str], dict[str, Any]] = {}
_guard = threading.Lock()


def resolved(workspace: Workspace, environment: Mapping[str, str]) -> Any:
    """An id (text) of an environment that is there, or the SDK's ``Environment``, not made yet.

    Parameters
    ----------
    environment
        See :func:`..job_environment.environment_of`.

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


def conda(call: Call, *, workspace: str, environment: Mapping[str, str]) -> str:
    """The conda file (as JSON or YAML) of a named environment; empty where it has none, or it cannot be read."""
    place = call.cloud.workspace(workspace)
    name = environment.get("name", "")
    return conda_of(place, _latest(place, name)) if name else ""


def conda_of(workspace: Workspace, resolved: Any) -> str:
    """The same of what :func:`resolved` gave; a version never changes, so it is asked for once. Never fails."""
    found = _VERSION.fullmatch(resolved.removeprefix("azureml:")) if isinstance(resolved, str) else None
    if found is None:
        return ""
    try:
        return str(_properties(workspace, found["name"], found["version"]).get("condaFile") or "")
    except (AmlTrainError, KeyError) as error:
        log.info("environment %s: %s", resolved, error)
        return ""


def _properties(workspace: Workspace, name: str, version: str) -> dict[str, Any]:
    key = (workspace.name, name, version)
    with _guard:
        if key in _known:
            return _known[key]
    path = f"environments/{name}/versions/{version}"
    answer = workspace.arm.get(path, api=rest.ARM, act=f"look at environment {name}:{version}")
    found: dict[str, Any] = (answer.json or {})["properties"]
    with _guard:
        if len(_known) >= _KEPT:
            del _known[next(iter(_known))]
        _known[key] = found
    return found


def _latest(workspace: Workspace, name: str) -> str:
    """Return the version of a label with one request; raises our own error when the environment does not exist.

    Of a curated environment the label is enough: the service resolves it, as it does for the SDK, which never asks.
    """
    labelled = _LABEL.fullmatch(name)
    if labelled is None:
        return name if name.startswith(("azureml:", "/")) else f"azureml:{name}"
    if labelled["label"] != "latest":
        return f"azureml:{name}"
    try:
        answer = workspace.arm.get(f"environments/{labelled['name']}", api=rest.ARM, act=f"look for environment {name}")
    except AmlTrainError as error:
        if faults.told(error).status != 404 or isinstance(error, WorkspaceGone):
            raise
        if curated.is_curated(name):
            log.info("environment %s is not listed: its label is sent", name)
            return f"azureml:{name}"
        raise EnvironmentFailed(
            f"There is no environment {labelled['name']!r} in {workspace.name}.",
            hint=_try_instead(labelled["name"]),
        ) from error
    version = ((answer.json or {}).get("properties") or {}).get("latestVersion")
    return f"azureml:{labelled['name']}:{version}" if version else f"azureml:{name}"


def _newest(workspace: Workspace, name: str) -> str:
    """Return the newest version of an environment whose latest one is not told; empty where none is listed."""
    answer = workspace.arm.get(
        f"environments/{name}/versions",
        api=rest.ARM,
        params={"$top": "1", "$orderBy": "createdtime desc"},
        ok=(200, 404),
        act=f"look for versions of {name}",
    )
    found = ((answer.json or {}).get("value") or []) if answer.status == 200 else []
    return str(found[0].get("name") or "") if found else ""


def _try_instead(name: str) -> str:
    if difflib.get_close_matches(name.lower(), ["kernel"], 1):
        return "Did you mean --env kernel? Else the studio lists them under Environments."
    return "The studio lists them under Environments. Try: --env kernel, or --env conda.yml"


def _anonymous(environment: Mapping[str, str]) -> Any:
    from azure.ai.ml.entities import BuildContext, Environment

    if folder := environment.get("build"):
        if not Path(folder, "Dockerfile").is_file():
            raise EnvironmentFailed(f"--env {folder}: there is no Dockerfile in it.", hint="Is the path right?")
        return Environment(build=BuildContext(path=folder))
    packages: Any = json.loads(environment["packages"]) if "packages" in environment else None
    if path := environment.get("conda"):
        try:
            packages = _conda(Path(path).read_text(encoding="utf-8"), path)
        except (OSError, ValueError) as error:
            raise EnvironmentFailed(f"The conda file {path} cannot be read.", hint="Is the path right?") from error
    return Environment(image=environment["image"], conda_file=packages)


def _derived(workspace: Workspace, name: str) -> Any:
    """An environment made of a named one, with packages that can log."""
    from azure.ai.ml.entities import Environment

    labelled = _LABEL.fullmatch(name.removeprefix("azureml:"))
    if labelled is not None and (version := _newest(workspace, labelled["name"])):
        name = f"azureml:{labelled['name']}:{version}"
    found = _VERSION.fullmatch(name.removeprefix("azureml:"))
    if found is None:
        raise EnvironmentFailed(f"--derive-env: {name} is not NAME:VERSION of this workspace.", hint="Leave it out.")
    properties = _properties(workspace, found["name"], found["version"])
    if not properties.get("image"):
        raise EnvironmentFailed(
            f"--derive-env: {name} is built of a Dockerfile, nothing can be added to it.",
            hint="Make your own: --env conda.yml",
        )
    known = curated.find(name)
    text = str(properties.get("condaFile") or "") or (curated.conda_of(known) if known else "")
    if not text:  # a new one on the same image would have nothing of what is in the image's own
        raise EnvironmentFailed(
            f"--derive-env: {name} is an image, and which packages are in it is not told.",
            hint="Try: --env kernel, or make your own: --env conda.yml",
        )
    return Environment(image=properties["image"], conda_file=_conda(mlflow_pins.derived(text), name))


def _conda(text: str, where: str) -> dict[str, Any]:
    import yaml  # type: ignore[import-untyped]  # comes with azure-ai-ml

    try:
        if reason := exceeded(text, yaml):
            raise EnvironmentFailed(f"The conda file {where} cannot be read: {reason}.", hint="Shorten it.")
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise EnvironmentFailed(f"The conda file {where} cannot be read: {line}.", hint="It is YAML.") from error
    if not isinstance(found, dict) or "dependencies" not in found:
        raise EnvironmentFailed(f"{where} is not a conda file: it has no dependencies.", hint="Try: conda env export")
    return found
