"""Published contract of Azure ML's REST API, read from the clients that Microsoft generates of its specification.

``python -m tools.azure_contract`` writes ``azureml_emulator/data/contract/API-VERSION.json``: of every body that a PUT
may have, its classes with the types of their fields, required ones, discriminators and enumerations. Source: the
generated clients in azure-ai-ml 1.33.0, one for each api-version (MIT), which 1.34 and later do not have any more.
Nothing of them is imported.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

from tools import azure_sdk
from tools.environment import ROOT, say

FOLDER = ROOT / "azureml_emulator" / "data" / "contract"
#: The api-versions in which the SDK (1.33 to 1.35) and the product send bodies.
VERSIONS = (
    "2023-04-01-preview",
    "2023-08-01-preview",
    "2024-01-01-preview",
    "2024-10-01-preview",
    "2025-01-01-preview",
)
#: Collection below the workspace -> class of ``properties`` of its PUT.
ROOTS = {
    "jobs": "JobBaseProperties",
    "codes": "CodeVersionProperties",
    "environments": "EnvironmentVersionProperties",
    "data": "DataVersionBaseProperties",
    "models": "ModelVersionProperties",
    "components": "ComponentVersionProperties",
    "computes": "Compute",
    "schedules": "ScheduleProperties",
    "pendingUploads": "PendingUploadRequestDto",
}


def contract(version: str) -> dict[str, Any]:
    """Return the contract of an api-version."""
    folder = azure_sdk.place() / "azure" / "ai" / "ml" / "_restclient" / f"v{version.replace('-', '_')}" / "models"
    classes = _classes(folder / "_models_py3.py")
    enums = _enums(folder / "_azure_machine_learning_workspaces_enums.py")
    used: dict[str, Any] = {}
    named: dict[str, list[str]] = {}
    waiting = list(ROOTS.values())
    while waiting:
        name = waiting.pop()
        if name in used:
            continue
        one = used[name] = _whole(name, classes)
        waiting += one.get("subtypes", {}).get("classes", {}).values()
        for kind in one["fields"].values():
            inner = kind.strip("[]{}")
            if inner in classes:
                waiting.append(inner)
            elif inner in enums:
                named[inner] = enums[inner]
    return {
        "source": f"generated client of api-version {version} in azure-ai-ml {azure_sdk.VERSION} (MIT)",
        "roots": ROOTS,
        "enums": dict(sorted(named.items())),
        "classes": dict(sorted(used.items())),
    }


def _classes(path: Path) -> dict[str, ast.ClassDef]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _enums(path: Path) -> dict[str, list[str]]:
    found = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = [ast.literal_eval(one.value) for one in node.body if isinstance(one, ast.Assign)]
    return found


def _whole(name: str, classes: dict[str, ast.ClassDef]) -> dict[str, Any]:
    node = classes[name]
    attributes = {
        one.targets[0].id: ast.literal_eval(one.value)
        for one in node.body
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)
    }
    enums = {}
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name == "__init__":
            for argument in one.args.kwonlyargs:
                text = ast.unparse(argument.annotation) if argument.annotation is not None else ""
                if (choice := re.search(r"Union\[str, '(\w+)'\]", text)) is not None:
                    enums[argument.arg] = choice[1]
    fields, required = {}, []
    for attribute, how in attributes.get("_attribute_map", {}).items():
        kind = str(how["type"])
        if attribute in enums:
            kind = kind.replace("str", enums[attribute])
        fields[how["key"]] = kind
        if attributes.get("_validation", {}).get(attribute, {}).get("required"):
            required.append(how["key"])
    result: dict[str, Any] = {"fields": fields}
    if required:
        result["required"] = required
    for attribute, choices in attributes.get("_subtype_map", {}).items():
        result["subtypes"] = {"key": attributes["_attribute_map"][attribute]["key"], "classes": choices}
    return result


def text(version: str) -> str:
    """Return the file of an api-version: a line for each class, so that versions can be compared."""
    found = contract(version)
    lines = [f' "{key}": {json.dumps(found[key])}' for key in ("source", "roots")]
    for key in ("enums", "classes"):
        inner = ",\n".join(f'  "{name}": {json.dumps(one)}' for name, one in found[key].items())
        lines.append(f' "{key}": {{\n{inner}\n }}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> int:
    """Write every file."""
    azure_sdk.ensure()
    FOLDER.mkdir(exist_ok=True)
    for version in VERSIONS:
        (FOLDER / f"{version}.json").write_text(text(version), encoding="utf-8")
        say(f"{version}: {len(contract(version)['classes'])} classes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
