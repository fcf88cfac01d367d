"""Check of an environment's MLflow pins, and environments derived from it with pins that can log. No I/O.

The table is from azureml-mlflow's releases on PyPI; versions outside the table are not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from jupyter_amltrain.errors import EnvironmentFailed
from jupyter_amltrain.schema.az_yaml import exceeded_limit

#: azureml-mlflow -> required mlflow-skinny. Source: `Requires-Dist` of the releases on PyPI, 2026-11.
_TAKES = {
    "1.60.0": "",
    "1.60.0.post1": "<3.0.0",
    "1.61.0": "<=3.5.0",
    "1.62.0": "<=3.9.0",
    "1.62.0.post6": "<=3.15.0",
}
#: MLflow releases that represent adjacent ones if a pin is a range.
_PROBES = ("1.30.1", "2.3.0", "2.8.0", "2.16.2", "2.18.0", "2.22.0", "3.0.0", "3.5.0", "3.9.0", "3.15.0", "3.17.2")
#: Older clients make REST calls that were not tested with the agent's endpoint and the service.
_OLDEST = "2.0.0"
#: From here on ``mlflow.<flavor>.log_model`` asks for ``logged-models``, which Azure ML answers 404
#: (azure-sdk-for-python#44896, azureml-examples#3885, #3891, #3902).
_LOGGED_MODELS = "2.17"
#: Pins of a derived environment; a later mlflow lets pip fall back to azureml-mlflow 1.60.0 of 2025.
WORKING_PINS = ("azureml-mlflow>=1.62.0.post6", "mlflow-skinny<=3.15")
#: By it MLflow 3.14 and later save models of scikit-learn; mlflow-skinny does not bring it.
_SKOPS = "skops<1"

_HOW = "Use another environment, or derive one from it with --derive-env."
_OURS = ("mlflow", "mlflow-skinny", "azureml-mlflow")
#: conda writes ``name=1.2``, also ``channel::name=1.2=build``.
_CONDA = re.compile(r"(?:[\w.-]+::)?(?P<name>[A-Za-z0-9_.-]+)\s*(?P<rest>(?:[<>!=~].*)?)(?:\s+#.*)?", re.S)


class Verdict(NamedTuple):
    """Result of the check of an environment's MLflow pins.

    Attributes
    ----------
    logs
        Whether metrics and parameters can be logged; ``None`` if the pins do not determine it.
    models
        Whether ``log_model`` works in a script that uses the service directly; through our agent it does.
    reason
        Reason for the user why MLflow cannot log; empty if it can or if that is unknown.
    """

    logs: bool | None
    models: bool | None = None
    reason: str = ""


def pip_pins(conda: str) -> list[str]:
    """Requirements of a conda file (YAML, or JSON as the service answers it), conda's own as pip writes them.

    Raises
    ------
    EnvironmentFailed
        The text is not a conda file.
    """
    return list(_pins(_read(conda)))


def check_pins(pins: Iterable[str] | None, name: str = "") -> Verdict:
    """Check the requirements of an environment.

    Parameters
    ----------
    pins
        Requirements in pip's syntax; ``None`` if unknown, e.g. of a bare image.
    name
        Name of the environment, for the sentence.
    """
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    if pins is None:
        return Verdict(None)
    versions = _ours(pins)
    subject = f"Environment {name}" if name else "This environment"
    if not versions:
        return Verdict(False, False, f"{subject} has no MLflow: 'import mlflow' fails in it. --derive-env adds it.")
    requested = SpecifierSet(
        ",".join(versions[package] for package in ("mlflow", "mlflow-skinny") if versions.get(package))
    )
    matching = [version for version in _versions(requested) if requested.contains(version, prereleases=True)]
    pinned = " and ".join(f"{package}{versions[package]}" for package in _OURS if package in versions)
    if not matching:
        return Verdict(False, False, f"{subject} pins versions of MLflow that exclude each other ({pinned}). {_HOW}")
    if all(Version(version) < Version(_OLDEST) for version in matching):
        return Verdict(False, False, f"{subject} has {pinned}: MLflow before {_OLDEST} cannot log here. {_HOW}")
    plugin = versions.get("azureml-mlflow")
    if plugin is not None:
        required = [_TAKES[release] for release in _TAKES if SpecifierSet(plugin).contains(release, prereleases=True)]
        matching = [
            version for version in matching if not required or any(SpecifierSet(t).contains(version) for t in required)
        ]
        if not matching:
            return Verdict(
                False,
                False,
                f"{subject} has {pinned}, but its azureml-mlflow needs mlflow-skinny{required[-1]}. {_HOW}",
            )
    models = plugin is not None and any(Version(version) < Version(_LOGGED_MODELS) for version in matching)
    return Verdict(True, models)


def with_working_pins(conda: str) -> str:
    """Return the text of a conda file with MLflow pins that can log; everything else is unchanged.

    Raises
    ------
    EnvironmentFailed
        The text is not a conda file.
    """
    data = _read(conda)
    dependencies: list[Any] = []
    pip: list[str] = []
    for item in data.get("dependencies") or []:
        if isinstance(item, Mapping):
            pip += [str(pin) for pin in item.get("pip") or []]
        elif _conda_pin(str(item))[0] not in _OURS:
            dependencies.append(item)
    if not any(isinstance(item, str) and _conda_pin(item)[0] == "pip" for item in dependencies):
        dependencies.append("pip")  # otherwise conda warns and adds pip itself
    pip = [pin for pin in pip if _name(pin) not in _OURS]
    names = {_name(pin) for pin in [*pip, *(item for item in dependencies if isinstance(item, str))]}
    added = (_SKOPS,) if "scikit-learn" in names and "skops" not in names else ()
    data["dependencies"] = [*dependencies, {"pip": [*pip, *WORKING_PINS, *added]}]
    text: str = _yaml().safe_dump(data, sort_keys=False)
    return text


# ---- reading


def _yaml() -> Any:
    import yaml  # type: ignore[import-untyped]  # comes with azure-ai-ml

    return yaml


def _read(conda: str) -> dict[str, Any]:
    yaml = _yaml()
    try:
        if reason := exceeded_limit(conda, yaml):
            raise EnvironmentFailed(f"The conda file cannot be read: {reason}.", hint="Shorten it.")
        data = yaml.safe_load(conda)
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = "" if line is None else f" (line {line + 1})"
        raise EnvironmentFailed(
            f"The conda file cannot be read{where}.", hint="Write valid YAML, as printed by: conda env export"
        ) from None
    if not isinstance(data, dict) or not isinstance(data.get("dependencies"), list):
        raise EnvironmentFailed(
            "The conda file has no list of dependencies.", hint="See the output of: conda env export"
        )
    return data


def _pins(data: Mapping[str, Any]) -> Iterator[str]:
    for item in data["dependencies"]:
        if isinstance(item, Mapping):
            yield from (str(pin) for pin in item.get("pip") or [])
        else:
            name, version = _conda_pin(str(item))
            yield f"{name}{version}"


def _conda_pin(text: str) -> tuple[str, str]:
    """Return name and version in pip's syntax: conda's ``=1.2`` is ``==1.2.*``; a build is left out."""
    match = _CONDA.fullmatch(text.strip())
    if match is None:
        return text.strip(), ""
    rest = match["rest"].strip()
    exact = re.fullmatch(r"(={1,2})\s*([\w.!+*-]+)(?:=[\w.*-]+)?", rest)
    if exact is not None:
        version = exact[2]
        rest = f"=={version}" if exact[1] == "==" or version.endswith("*") else f"=={version}.*"
    return _name(match["name"]), rest


def _name(pin: str) -> str:
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", pin)
    return re.sub(r"[-_.]+", "-", match[1]).lower() if match else ""


def _ours(pins: Iterable[str]) -> dict[str, str]:
    """Return the version specifiers of MLflow's packages."""
    from packaging.requirements import InvalidRequirement, Requirement

    found: dict[str, str] = {}
    for pin in pins:
        if _name(pin) not in _OURS:
            continue
        try:
            found[_name(pin)] = str(Requirement(pin.partition(" #")[0].strip()).specifier)
        except InvalidRequirement:
            found[_name(pin)] = ""  # an address, or a form of conda's: any version
    return found


def _versions(requested: Any) -> list[str]:
    """Return the releases to check a range with: the probes, and the versions in the pins."""
    named = [item.version.removesuffix(".*") for item in requested if item.operator in ("==", "===", "~=", ">=", "<=")]
    return [*dict.fromkeys([*named, *_PROBES])]
