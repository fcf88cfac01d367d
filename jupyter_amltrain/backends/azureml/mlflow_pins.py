"""Whether MLflow of an environment can log, told from its pins; and the same environment with pins that can.

Pure: texts in, words out. The table is of azureml-mlflow's releases on PyPI; what it does not
know is not judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from jupyter_amltrain.errors import EnvironmentFailed
from jupyter_amltrain.schema.az_yaml import exceeded_limit

#: azureml-mlflow -> which mlflow-skinny it takes. Source: `Requires-Dist` of the releases on PyPI, 2026-11.
_TAKES = {
    "1.60.0": "",
    "1.60.0.post1": "<3.0.0",
    "1.61.0": "<=3.5.0",
    "1.62.0": "<=3.9.0",
    "1.62.0.post6": "<=3.15.0",
}
#: MLflow releases that stand for their neighbours where a pin is a range.
_PROBES = ("1.30.1", "2.3.0", "2.8.0", "2.16.2", "2.18.0", "2.22.0", "3.0.0", "3.5.0", "3.9.0", "3.15.0", "3.17.2")
#: Older clients make other REST calls than the agent's endpoint and the service have been tried with.
_OLDEST = "2.0.0"
#: From here on ``mlflow.<flavor>.log_model`` asks for ``logged-models``, which Azure ML answers 404
#: (azure-sdk-for-python#44896, azureml-examples#3885, #3891, #3902).
_LOGGED_MODELS = "2.17"
#: Pins of a derived environment; a later mlflow lets pip fall back to azureml-mlflow 1.60.0 of 2025.
GOOD = ("azureml-mlflow>=1.62.0.post6", "mlflow-skinny<=3.15")
#: By it MLflow 3.14 and later save models of scikit-learn; mlflow-skinny does not bring it.
_SKOPS = "skops<1"

_HOW = "Take another environment, or one made of it: --derive-env."
_OURS = ("mlflow", "mlflow-skinny", "azureml-mlflow")
#: conda writes ``name=1.2``, also ``channel::name=1.2=build``.
_CONDA = re.compile(r"(?:[\w.-]+::)?(?P<name>[A-Za-z0-9_.-]+)\s*(?P<rest>(?:[<>!=~].*)?)(?:\s+#.*)?", re.S)


class Verdict(NamedTuple):
    """What the pins of an environment say of MLflow in it.

    Attributes
    ----------
    logs
        Whether metrics and parameters can be logged; ``None`` where the pins do not tell.
    models
        Whether ``log_model`` of a script that speaks with the service itself works; through our agent it does.
    sentence
        Why it cannot log, for people; empty where it can or where it is not known.
    """

    logs: bool | None
    models: bool | None = None
    sentence: str = ""


def pip_pins(conda: str) -> list[str]:
    """Requirements of a conda file (YAML, or JSON as the service answers it), conda's own as pip writes them.

    Raises
    ------
    EnvironmentFailed
        It is no conda file.
    """
    return list(_pins(_read(conda)))


def judged(pins: Iterable[str] | None, name: str = "") -> Verdict:
    """What the requirements of an environment say.

    Parameters
    ----------
    pins
        As pip writes them; ``None`` where they are not known, e.g. of a bare image.
    name
        Of the environment, for the sentence.
    """
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    if pins is None:
        return Verdict(None)
    found = _ours(pins)
    what = f"Environment {name}" if name else "This environment"
    if not found:
        return Verdict(False, False, f"{what} has no MLflow: 'import mlflow' fails in it. --derive-env adds it.")
    asked = SpecifierSet(",".join(found[of] for of in ("mlflow", "mlflow-skinny") if found.get(of)))
    fits = [version for version in _versions(asked) if asked.contains(version, prereleases=True)]
    told = " and ".join(f"{of}{found[of]}" for of in _OURS if of in found)
    if not fits:
        return Verdict(False, False, f"{what} has pins of MLflow that exclude each other ({told}). {_HOW}")
    if all(Version(version) < Version(_OLDEST) for version in fits):
        return Verdict(False, False, f"{what} has {told}: MLflow before {_OLDEST} cannot log here. {_HOW}")
    bridge = found.get("azureml-mlflow")
    if bridge is not None:
        taken = [_TAKES[release] for release in _TAKES if SpecifierSet(bridge).contains(release, prereleases=True)]
        fits = [version for version in fits if not taken or any(SpecifierSet(t).contains(version) for t in taken)]
        if not fits:
            return Verdict(
                False, False, f"{what} has {told}, and that azureml-mlflow takes mlflow-skinny{taken[-1]} only. {_HOW}"
            )
    models = bridge is not None and any(Version(version) < Version(_LOGGED_MODELS) for version in fits)
    return Verdict(True, models)


def derived(conda: str) -> str:
    """The text of a conda file with MLflow pins that can log; all else stays.

    Raises
    ------
    EnvironmentFailed
        It is no conda file.
    """
    data = _read(conda)
    kept: list[Any] = []
    pip: list[str] = []
    for item in data.get("dependencies") or []:
        if isinstance(item, Mapping):
            pip += [str(pin) for pin in item.get("pip") or []]
        elif _conda_pin(str(item))[0] not in _OURS:
            kept.append(item)
    if not any(isinstance(item, str) and _conda_pin(item)[0] == "pip" for item in kept):
        kept.append("pip")  # else conda warns and adds one by itself
    pip = [pin for pin in pip if _name(pin) not in _OURS]
    names = {_name(pin) for pin in [*pip, *(item for item in kept if isinstance(item, str))]}
    more = (_SKOPS,) if "scikit-learn" in names and "skops" not in names else ()
    data["dependencies"] = [*kept, {"pip": [*pip, *GOOD, *more]}]
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
            f"The conda file cannot be read{where}.", hint="It is YAML: see conda env export"
        ) from None
    if not isinstance(data, dict) or not isinstance(data.get("dependencies"), list):
        raise EnvironmentFailed("The conda file has no list of dependencies.", hint="It is YAML: see conda env export")
    return data


def _pins(data: Mapping[str, Any]) -> Iterator[str]:
    for item in data["dependencies"]:
        if isinstance(item, Mapping):
            yield from (str(pin) for pin in item.get("pip") or [])
        else:
            name, version = _conda_pin(str(item))
            yield f"{name}{version}"


def _conda_pin(text: str) -> tuple[str, str]:
    """Name and version as pip writes them: conda's ``=1.2`` is ``==1.2.*``, a build is left out."""
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
    """Version specifiers of the packages that we look at."""
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


def _versions(asked: Any) -> list[str]:
    """Releases to try a range with: the probes, and what the pins name themselves."""
    named = [item.version.removesuffix(".*") for item in asked if item.operator in ("==", "===", "~=", ">=", "<=")]
    return [*dict.fromkeys([*named, *_PROBES])]
