"""Judge of a PUT's body: the published contract of its api-version (``data/contract``, by tools/azure_contract.py).

A contract is what Microsoft's generated client of that api-version knows: classes, types, enumerations. It is no ARM
template schema, which has integers where the API takes numbers, and lacks fields. What recordings and the SDK send
beside it stands in `BESIDE`, each with its source.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "data" / "contract"

#: (class, field) -> type, of what real bodies have and the contract does not.
BESIDE: dict[tuple[str, str], str] = {
    # Recorded, answered 201: MLflow flavors have objects and numbers in `data`.
    ("FlavorData", "data"): "{object}",
    # azure-ai-ml 1.33 to 1.35 sends these under api-versions that do not have them.
    ("JobResourceConfiguration", "dockerArgsList"): "[str]",
    ("JobResourceConfiguration", "maxInstanceCount"): "int",
    ("JobResourceConfiguration", "locations"): "[str]",
    ("QueueSettings", "priority"): "int",
    ("CommandJob", "parentJobName"): "str",
    ("SparkJob", "parentJobName"): "str",
    ("AutoMLJob", "parentJobName"): "str",
    ("SweepJob", "parentJobName"): "str",
    ("PipelineJob", "parentJobName"): "str",
    ("Cron", "triggerType"): "str",
    # Recorded of 2023-08-01-preview (06b): computes.
    ("ComputeInstanceProperties", "releaseQuotaOnStop"): "bool",
    ("ComputeInstanceProperties", "enableSSO"): "bool",
}
#: Letters that an enumeration has beside its values: recorded (11a), before its contract.
BESIDE_VALUES = {"DistributionConfiguration": {"Ray": "Ray"}}


@functools.cache
def versions() -> tuple[str, ...]:
    """Api-versions with a contract, oldest first."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


@functools.cache
def contract(api_version: str) -> dict[str, Any]:
    """The contract that holds for an api-version: its own, else the newest before it, else the oldest."""
    known = versions()
    # A preview comes before the version of its date.
    chosen = max((one for one in known if one[:10] <= api_version[:10]), default=known[0]) if api_version else known[-1]
    found: dict[str, Any] = json.loads((FOLDER / f"{chosen}.json").read_text(encoding="utf-8"))
    return found


def problems(resource: str, body: Any, api_version: str = "", strict: bool = True) -> list[str]:
    """Return what the contract says against a body, a line each.

    Parameters
    ----------
    resource
        ``workspaces_jobs``, ``workspaces_models_versions``: the collection of the PUT.
    body
        The PUT's body, with ``properties``.
    api_version
        The request's; empty for the newest.
    strict
        A field that the contract does not have is a problem (switch ``unknown_fields``).
    """
    if not isinstance(body, dict) or "properties" not in body:
        return ["properties: The Properties field is required."]
    judge = _Judge(contract(api_version), strict)
    root = judge.contract["roots"][resource.removeprefix("workspaces_").removesuffix("_versions")]
    return list(judge.check(root, body["properties"], "properties"))


def class_problems(name: str, body: Any, api_version: str = "") -> list[str]:
    """The same of a body that is an object of one class of the contract, as actions have it."""
    return list(_Judge(contract(api_version), True).check(name, body, name))


class _Judge:
    def __init__(self, found: dict[str, Any], strict: bool) -> None:
        self.contract, self.strict = found, strict

    def check(self, kind: str, value: Any, where: str) -> Iterator[str]:
        """What is wrong with a value of a type in a contract's words: ``str``, ``[int]``, ``{JobInput}``."""
        if value is None or kind == "object":
            return
        if kind.startswith("["):
            if not isinstance(value, list):
                yield f"{where}: a list is wanted, not {value!r}"
                return
            for number, item in enumerate(value):
                yield from self.check(kind[1:-1], item, f"{where}[{number}]")
        elif kind.startswith("{"):
            if not isinstance(value, dict):
                yield f"{where}: an object is wanted, not {value!r}"
                return
            for name, item in value.items():
                if kind == "{str}" and isinstance(item, bool | int | float):
                    continue  # The service takes them and answers text: azure-ai-ml sends hash_version as a number.
                yield from self.check(kind[1:-1], item, f"{where}.{name}")
        elif kind in self.contract["classes"]:
            yield from self._class(kind, value, where)
        else:
            yield from self._plain(kind, value, where)

    def _plain(self, kind: str, value: Any, where: str) -> Iterator[str]:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if kind in ("int", "long"):
            if not number or int(value) != value:
                yield f"{where}: an integer is wanted, not {value!r}"
        elif kind == "float":
            if not number:
                yield f"{where}: a number is wanted, not {value!r}"
        elif kind == "bool":
            if not isinstance(value, bool):
                yield f"{where}: true or false is wanted, not {value!r}"
        elif not isinstance(value, str):
            yield f"{where}: text is wanted, not {value!r}"
        elif kind == "duration" and not re.fullmatch(r"-?P(?=.)[\dDYMW.]*(T(?=.)[\dHMS.]*)?", value):
            yield f"{where}: {value!r} is no duration"
        else:
            choices = self.contract["enums"].get(kind, [value])
            if value.lower() not in map(str.lower, choices):  # azure-ai-ml sends "minimize"
                yield f"{where}: {value!r} is not one of {', '.join(choices)}"

    def _class(self, name: str, value: Any, where: str) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{where}: an object is wanted, not {value!r}"
            return
        while (choice := self.contract["classes"][name].get("subtypes")) is not None:
            discriminator = value.get(choice["key"])
            found = {key.lower(): other for key, other in choice["classes"].items()}.get(str(discriminator).lower())
            if found is None:
                if str(discriminator) not in BESIDE_VALUES.get(name, {}):
                    yield f"{where}.{choice['key']}: {discriminator!r} is not one of {', '.join(choice['classes'])}"
                return
            name = found
        one = self.contract["classes"][name]
        for field in one.get("required", ()):
            if value.get(field) is None:
                yield f"{where}.{field}: is required"
        for field, item in value.items():
            kind = BESIDE.get((name, field)) or one["fields"].get(field)
            if kind is not None:
                yield from self.check(kind, item, f"{where}.{field}")
            elif self.strict:
                yield f"{where}.{field}: there is no such field"
