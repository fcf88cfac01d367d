"""Checks a PUT's body against the published ARM schema (azureml_emulator/data/arm-schemas, MIT).

A small reader of its own: the published files close their base classes (``additionalProperties: false`` beside an
``allOf``), so that a validator by the book accepts no body at all, and its errors would name every alternative.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "data" / "arm-schemas"
VERSION = "2024-10-01"

# Fields of previews later than the schema that the SDK sends or that the service answered (recordings 01b, 11a,
# command_job_serverless; azure-ai-ml 1.33-1.35).
NEWER = {
    "secretsConfiguration", "autoDeleteSetting", "dockerArgsList", "parentJobName", "stage", "intellectualProperty",
    "pathOnCompute", "assetName", "assetVersion", "priority", "locations", "maxInstanceCount", "jobType", "sku",
    "sweepConcurrentTrials", "sweepTrials",
}  # fmt: skip
NEWER_VALUES = {"distributionType": {"Ray"}}


@functools.cache
def _definitions() -> dict[str, Any]:
    whole = json.loads((FOLDER / f"{VERSION}.json").read_text(encoding="utf-8"))
    return {**whole["definitions"], **{"/" + name: value for name, value in whole["resourceDefinitions"].items()}}


def problems(resource: str, body: Any) -> list[str]:
    """What the schema says against a body, a line each.

    Parameters
    ----------
    resource
        As in the schema's ``resourceDefinitions``: ``workspaces_jobs``.
    body
        The PUT's body, with ``properties``.
    """
    if not isinstance(body, dict) or "properties" not in body:
        return ["properties: The Properties field is required."]
    kind = _definitions()["/" + resource]["properties"]["properties"]
    return list(_check(kind, body["properties"], "properties"))


def _check(kind: dict[str, Any], value: Any, where: str) -> Iterator[str]:
    kind = _resolved(kind)
    if value is None:
        return
    if "allOf" in kind:
        kind = yield from _chosen(kind, value, where)
    match kind.get("type"):
        case "object":
            yield from _object(kind, value, where)
        case "array":
            if not isinstance(value, list):
                yield f"{where}: a list is wanted, not {value!r}"
            else:
                for number, item in enumerate(value):
                    yield from _check(kind.get("items", {}), item, f"{where}[{number}]")
        case "string":
            if not isinstance(value, str):
                yield f"{where}: text is wanted, not {value!r}"
            elif value.lower() not in map(str.lower, kind.get("enum", [value])):  # azure-ai-ml sends "minimize"
                yield f"{where}: {value!r} is none of {', '.join(kind['enum'])}"
            elif not re.search(kind.get("pattern", ""), value):
                yield f"{where}: {value!r} does not match {kind['pattern']}"
        case "integer":
            if not isinstance(value, int) or isinstance(value, bool):
                yield f"{where}: an integer is wanted, not {value!r}"
        case "number":
            if not isinstance(value, int | float) or isinstance(value, bool):
                yield f"{where}: a number is wanted, not {value!r}"
        case "boolean":
            if not isinstance(value, bool):
                yield f"{where}: true or false is wanted, not {value!r}"


def _resolved(kind: dict[str, Any]) -> dict[str, Any]:
    """Follow references; of "this or a template's expression", this."""
    while True:
        if "$ref" in kind:
            kind = _definitions().get(kind["$ref"].rpartition("/")[2], {})
        elif "oneOf" in kind and (own := [one for one in kind["oneOf"] if "expression" not in one.get("$ref", "")]):
            if len(own) != 1:
                return {}
            kind = own[0]
        else:
            return kind


def _chosen(kind: dict[str, Any], value: Any, where: str) -> Any:
    """The class that the discriminator names, with the fields of its base."""
    base, choice = kind["allOf"]
    classes = choice["oneOf"]
    key = classes[0]["allOf"][1]["required"][0]
    said = value.get(key) if isinstance(value, dict) else None
    for one in classes:
        reference, constant = one["allOf"]
        if constant["properties"][key]["const"] == said:
            own = _resolved(reference)
            fields = {**base.get("properties", {}), **own.get("properties", {})}
            return {"type": "object", "properties": fields, "required": own.get("required", [])}
    if said not in NEWER_VALUES.get(key, ()):
        yield f"{where}.{key}: {said!r} is none of {', '.join(base['properties'][key]['enum'])}"
    return {}


def _object(kind: dict[str, Any], value: Any, where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where}: an object is wanted, not {value!r}"
        return
    fields, others = kind.get("properties", {}), kind.get("additionalProperties")
    for name in kind.get("required", []):
        if value.get(name) is None:
            yield f"{where}.{name}: is required"
    for name, item in value.items():
        if name in fields:
            yield from _check(fields[name], item, f"{where}.{name}")
        elif isinstance(others, dict):
            if others.get("type") == "string" and isinstance(item, bool | int | float):
                continue  # The service takes them and answers text: azure-ai-ml sends hash_version as a number.
            yield from _check(others, item, f"{where}.{name}")
        elif fields and name not in NEWER:
            yield f"{where}.{name}: there is no such field"
