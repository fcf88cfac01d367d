"""Environments of jobs: references and entities for the SDK, and their conda files at the service."""

from __future__ import annotations

import difflib
import json
import logging
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.azure import environments, errors, mlflow_pins
from jupyter_amltrain.azure.service import http
from jupyter_amltrain.errors import AmlTrainError, EnvironmentFailed, WorkspaceGone
from jupyter_amltrain.schema.az_yaml import exceeded_limit

if TYPE_CHECKING:
    from jupyter_amltrain.azure.service.cloud import Workspace
    from jupyter_amltrain.azure.service.operations import ServiceCall

log = logging.getLogger("amltrain.azure")

_LABEL = re.compile(r"(?P<name>[^@/:]+)@(?P<label>[^@/:]+)")
_VERSION = re.compile(r"(?P<name>[^@/:]+):(?P<version>[^@/:]+)")
#: Maximum number of environment versions in the cache.
_MAX_CACHED = 200
_properties_cache: dict[tuple[str, str, str], dict[str, Any]] = {}
_cache_lock = threading.Lock()


def resolve(workspace: Workspace, environment: Mapping[str, str]) -> Any:
    """Return the id (text) of an existing environment, or a new ``Environment`` entity of the SDK.

    Parameters
    ----------
    environment
        See :func:`..environments.environment_body`.

    Raises
    ------
    EnvironmentFailed
        There is no environment of that name, or one of its files cannot be read.
    """
    name = environment.get("name", "")
    if name:
        version_id = _resolve_label(workspace, name)
        return _derive(workspace, version_id) if environment.get("derive") else version_id
    return _new_environment(environment)


def conda(call: ServiceCall, *, workspace: str, environment: Mapping[str, str]) -> str:
    """Return the conda file (JSON or YAML) of a named environment; empty if there is none or it cannot be read."""
    ws = call.cloud.workspace(workspace)
    name = environment.get("name", "")
    return conda_of(ws, _resolve_label(ws, name)) if name else ""


def conda_of(workspace: Workspace, environment: Any) -> str:
    """Return the conda file of a result of :func:`resolve`. Versions are immutable, so it is cached. Never raises."""
    match = _VERSION.fullmatch(environment.removeprefix("azureml:")) if isinstance(environment, str) else None
    if match is None:
        return ""
    try:
        return str(_properties(workspace, match["name"], match["version"]).get("condaFile") or "")
    except (AmlTrainError, KeyError) as error:
        log.info("environment %s: %s", environment, error)
        return ""


def _properties(workspace: Workspace, name: str, version: str) -> dict[str, Any]:
    key = (workspace.name, name, version)
    with _cache_lock:
        if key in _properties_cache:
            return _properties_cache[key]
    path = f"environments/{name}/versions/{version}"
    answer = workspace.arm.get(path, api=http.ARM, act=f"read environment {name}:{version}")
    properties: dict[str, Any] = (answer.json or {})["properties"]
    with _cache_lock:
        if len(_properties_cache) >= _MAX_CACHED:
            del _properties_cache[next(iter(_properties_cache))]
        _properties_cache[key] = properties
    return properties


def _resolve_label(workspace: Workspace, name: str) -> str:
    """Resolve a label to a version, with one request and a clear error if the environment does not exist.

    For a curated environment the label is enough: the service resolves it, as it does for the SDK.
    """
    labeled = _LABEL.fullmatch(name)
    if labeled is None:
        return name if name.startswith(("azureml:", "/")) else f"azureml:{name}"
    if labeled["label"] != "latest":
        return f"azureml:{name}"
    try:
        answer = workspace.arm.get(f"environments/{labeled['name']}", api=http.ARM, act=f"find environment {name}")
    except AmlTrainError as error:
        if errors.details_of(error).status != 404 or isinstance(error, WorkspaceGone):
            raise
        if environments.is_curated(name):
            log.info("environment %s is not listed; sending its label", name)
            return f"azureml:{name}"
        raise EnvironmentFailed(
            f"--env: there is no environment {labeled['name']!r} in {workspace.name}.",
            hint=_missing_hint(labeled["name"]),
        ) from error
    version = ((answer.json or {}).get("properties") or {}).get("latestVersion")
    return f"azureml:{labeled['name']}:{version}" if version else f"azureml:{name}"


def _newest_version(workspace: Workspace, name: str) -> str:
    """Return the newest listed version of an environment; empty if none is listed."""
    answer = workspace.arm.get(
        f"environments/{name}/versions",
        api=http.ARM,
        params={"$top": "1", "$orderBy": "createdtime desc"},
        ok=(200, 404),
        act=f"find versions of {name}",
    )
    versions = ((answer.json or {}).get("value") or []) if answer.status == 200 else []
    return str(versions[0].get("name") or "") if versions else ""


def _missing_hint(name: str) -> str:
    if difflib.get_close_matches(name.lower(), ["kernel"], 1):
        return "Did you mean --env kernel? The studio lists all environments under Environments."
    return "The studio lists all environments under Environments. Or use --env kernel or --env conda.yml."


def new_version(environment: Mapping[str, str], name: str, version: str) -> Any:
    """Return an entity of the SDK for a new version of a named environment.

    Raises
    ------
    EnvironmentFailed
        One of its files cannot be read.
    """
    return _new_environment(environment, name, version)


def _new_environment(environment: Mapping[str, str], name: str | None = None, version: str | None = None) -> Any:
    from azure.ai.ml.entities import BuildContext, Environment

    if folder := environment.get("build"):
        if not Path(folder, "Dockerfile").is_file():
            raise EnvironmentFailed(f"--env {folder}: the folder has no Dockerfile.", hint="Check the path.")
        return Environment(build=BuildContext(path=folder), name=name, version=version)
    packages: Any = json.loads(environment["packages"]) if "packages" in environment else None
    if path := environment.get("conda"):
        try:
            packages = _conda(Path(path).read_text(encoding="utf-8"), path)
        except (OSError, ValueError) as error:
            raise EnvironmentFailed(f"--env: cannot read the conda file {path}.", hint="Check the path.") from error
    return Environment(image=environment["image"], conda_file=packages, name=name, version=version)


def _derive(workspace: Workspace, name: str) -> Any:
    """Return an environment derived from a named one, with MLflow packages added."""
    from azure.ai.ml.entities import Environment

    labeled = _LABEL.fullmatch(name.removeprefix("azureml:"))
    if labeled is not None and (version := _newest_version(workspace, labeled["name"])):
        name = f"azureml:{labeled['name']}:{version}"
    match = _VERSION.fullmatch(name.removeprefix("azureml:"))
    if match is None:
        raise EnvironmentFailed(
            f"--derive-env: {name} is not NAME:VERSION of this workspace.", hint="Omit --derive-env."
        )
    properties = _properties(workspace, match["name"], match["version"])
    if not properties.get("image"):
        raise EnvironmentFailed(
            f"--derive-env: {name} is built from a Dockerfile, so packages cannot be added.",
            hint="Use your own conda file: --env conda.yml",
        )
    curated = environments.find_curated(name)
    text = str(properties.get("condaFile") or "") or (environments.conda_of(curated) if curated else "")
    if not text:  # a new environment on the same image would not have the packages of the image's own environment
        raise EnvironmentFailed(
            f"--derive-env: {name} is an image, and its packages are unknown.",
            hint="Use --env kernel, or your own conda file: --env conda.yml",
        )
    return Environment(image=properties["image"], conda_file=_conda(mlflow_pins.with_working_pins(text), name))


def _conda(text: str, where: str) -> dict[str, Any]:
    import yaml  # type: ignore[import-untyped]  # comes with azure-ai-ml

    try:
        if reason := exceeded_limit(text, yaml):
            raise EnvironmentFailed(f"Cannot read the conda file {where}: {reason}.", hint="Shorten it.")
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise EnvironmentFailed(f"Cannot read the conda file {where}: {line}.", hint="Write valid YAML.") from error
    if not isinstance(content, dict) or "dependencies" not in content:
        raise EnvironmentFailed(
            f"{where} is not a conda file: the key dependencies is missing.", hint="Try: conda env export"
        )
    return content
