"""Files of ``az ml`` with ``type: pipeline``: their command steps as steps; others are refused. Blocks."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.pipelines.plan import DATA, Link, PlannedStep
from jupyter_amltrain.pipelines.steps import NAME, Need, StepDefinition
from jupyter_amltrain.schema import az_yaml, az_yaml_job
from jupyter_amltrain.schema.az_yaml import JobFile, Keys
from jupyter_amltrain.schema.inputs import is_address
from jupyter_amltrain.schema.job import JobSpec

#: Keys of a command that a component has for its steps.
_OF_COMPONENT = ("code", "command", "environment", "environment_variables", "distribution", "resources")
#: Keys of a step that a job has as well.
_OF_STEP = (*_OF_COMPONENT, "inputs", "outputs", "identity", "limits", "queue_settings", "display_name", "tags")
_PARENT = re.compile(r"\$\{\{\s*parent\.(inputs|outputs|jobs)\.([\w-]+)(?:\.outputs\.([\w-]+))?\s*\}\}")
#: A part of a command that is left out without its optional input.
_OPTIONAL = re.compile(r"\$\[\[(.*?)\]\]", re.S)
_BINDING = re.compile(r"\$\{\{\s*inputs\.([\w-]+)\s*\}\}")


def steps_of_file(spec: JobSpec) -> list[StepDefinition]:
    """Return the steps of a file, with parameters and inputs of its line.

    Raises
    ------
    SpecError
        The file is invalid, or has a step that only the service can run.
    """
    job = az_yaml_job.file_of(spec)
    steps = job.doc.get("jobs")
    if not isinstance(steps, Mapping) or not steps:
        raise job.error(("jobs",), "the pipeline has no steps.", "Add jobs: with a step that has a command:.")
    return [_step(job, spec, str(name), node) for name, node in steps.items()]


def planned_step(name: str, node: Mapping[str, Any], target: str) -> PlannedStep:
    """Return a step of any type as the graph shows it: where it runs, and what it takes of other steps."""
    links: dict[str, Link] = {}
    for key, value in (node.get("inputs") or {}).items():
        source = value.get("path") if isinstance(value, Mapping) else value
        found = _PARENT.fullmatch(source.strip()) if isinstance(source, str) else None
        if found is not None and found[1] == "jobs" and found[3]:
            links[str(key)] = Link(step=found[2], output=found[3], kind=DATA)
    compute = str(node.get("compute") or "").rpartition(":")[2]
    return PlannedStep(name=name, target=compute or target, links=links)


def _step(job: JobFile, spec: JobSpec, name: str, node: Any) -> StepDefinition:
    path: Keys = ("jobs", name)
    if not isinstance(node, Mapping):
        raise job.error(path, "a step has keys of its own.", "Example: command: python train.py")
    if not NAME.fullmatch(name):
        raise job.error(path, "the name of a step has letters, digits and _ only.", "Rename it.")
    component, folder = _component(job, path, node)
    kind = str(node.get("type") or component.get("type") or "command")
    if kind != "command":
        raise job.error(
            path, f"a step of type {kind} runs on a service only.", "Run the file there, or make it a command."
        )
    doc: dict[str, Any] = {"type": "command", "display_name": name}
    for key in _OF_COMPONENT:
        value = node.get(key, component.get(key))
        if value is not None:
            doc[key] = _absolute(value, folder if key not in node else job.folder, key)
    doc |= {key: node[key] for key in _OF_STEP if key not in _OF_COMPONENT and node.get(key) is not None}
    inputs, needs = _inputs(job, path, node, component)
    doc["inputs"] = inputs
    outputs = _outputs(job, node, component)
    notes = tuple(
        f"{name} stays with the run of the step: only a service writes to {row['path']}"
        for name, row in outputs.items()
        if row.get("path")
    )
    doc["outputs"] = {name: {key: row[key] for key in row if key != "path"} for name, row in outputs.items()}
    known = {*inputs, *(need.name for need in needs)}
    if isinstance(doc.get("command"), str):
        doc["command"] = _OPTIONAL.sub(lambda part: _kept(part[1], known), doc["command"])
    lines = {keys[2:]: line for keys, line in job.lines.items() if keys[:2] == path}
    whole = {**doc, "inputs": {**inputs, **{need.name: {"type": "uri_folder", "path": "/"} for need in needs}}}
    text = az_yaml.to_yaml({key: value for key, value in whole.items() if key != "code"})
    found = az_yaml_job.spec_of(
        msgspec.structs.replace(job, doc={k: v for k, v in whole.items() if v}, lines=lines, text=text)
    )
    found = msgspec.structs.replace(
        found,
        name=name,
        inputs={key: value for key, value in found.inputs.items() if key in inputs},
        experiment=spec.experiment,
        project=spec.project,
        tags={**spec.tags, **found.tags},
        notes=(*found.notes, *notes),
    )
    compute = str(node.get("compute") or "").rpartition(":")[2]
    return StepDefinition(name=name, spec=found, target=compute, needs=tuple(needs))


def _component(job: JobFile, path: Keys, node: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """Return the component of a step and the folder of its paths; empty for a step without one."""
    component = node.get("component")
    if component is None:
        return {}, job.folder
    if isinstance(component, Mapping):
        return component, job.folder
    text = str(component).removeprefix("file:")
    if is_address(text) or not az_yaml.is_file(text):
        raise job.error(
            (*path, "component"), "this component is in a workspace.", "Run the file there, or name a file."
        )
    file = az_yaml_job.absolute(text, job.folder)
    try:
        return az_yaml.load_doc(file), os.path.dirname(file)
    except SpecError as error:
        raise job.error((*path, "component"), error.message) from None


def _absolute(value: Any, folder: str, key: str) -> Any:
    """Return the paths of a component as absolute ones."""
    if isinstance(value, Mapping):
        inner = ("conda_file", "build", "path")
        return {k: _absolute(v, folder, "code") if k in inner else v for k, v in value.items()}
    if not isinstance(value, str) or key not in ("code", "environment") or is_address(value):
        return value
    if value.startswith("git+") or (key == "environment" and not az_yaml.is_file(value.removeprefix("file:"))):
        return value
    return az_yaml_job.absolute(value.removeprefix("file:"), folder)


def _inputs(
    job: JobFile, path: Keys, node: Mapping[str, Any], component: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Need]]:
    """Return the inputs that a step has itself, and what it takes of other steps."""
    declared = component.get("inputs") or {}
    inputs: dict[str, Any] = {
        str(name): row["default"]
        for name, row in declared.items()
        if isinstance(row, Mapping) and row.get("default") is not None
    }
    needs: list[Need] = []
    for key, value in (node.get("inputs") or {}).items():
        name = str(key)
        source = value.get("path") if isinstance(value, Mapping) else value
        found = _PARENT.fullmatch(source.strip()) if isinstance(source, str) else None
        if found is None:
            inputs[name] = value
        elif found[1] == "jobs" and found[3]:
            inputs.pop(name, None)
            needs.append(Need(name, found[2], found[3]))
        else:
            given = job.doc.get(found[1]) or {}
            if found[1] != "inputs" or found[2] not in given:
                known = ", ".join(map(str, job.doc.get("inputs") or ())) or "none"
                raise job.error((*path, "inputs", name), f"{source} is not defined.", f"Inputs: {known}.")
            inputs[name] = given[found[2]]
    return inputs, needs


def _outputs(job: JobFile, node: Mapping[str, Any], component: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    outputs: dict[str, Any] = {str(name): dict(row or {}) for name, row in (component.get("outputs") or {}).items()}
    for key, value in (node.get("outputs") or {}).items():
        name, source = str(key), value.get("path") if isinstance(value, Mapping) else value
        found = _PARENT.fullmatch(source.strip()) if isinstance(source, str) else None
        if found is not None:
            value = (job.doc.get("outputs") or {}).get(found[2]) or {}
        outputs[name] = {**outputs.get(name, {}), **(value if isinstance(value, Mapping) else {})}
    return outputs


def _kept(text: str, known: set[str]) -> str:
    """Return an optional part of a command; empty if an input of it is not given."""
    return text if all(name in known for name in _BINDING.findall(text)) else ""
