"""A pipeline as a file of ``az ml`` with the code of its steps beside it; values travel as folders there."""

from __future__ import annotations

import hashlib
import importlib.resources
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from jupyter_amltrain import api
from jupyter_amltrain.agent import values as nodes
from jupyter_amltrain.backends.agent_backend import AgentBackend
from jupyter_amltrain.commands.new_files import write_new
from jupyter_amltrain.commands.saved_job import folder_and_name, yaml_text
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.jobs import notebook_source, script, values
from jupyter_amltrain.jobs.project_files import project_files
from jupyter_amltrain.kernel.session import controller
from jupyter_amltrain.pipelines.pipeline_job import PipelineRequest, stand_in
from jupyter_amltrain.pipelines.plan import DATA, NEVER, VALUE, PlannedStep, ordered
from jupyter_amltrain.pipelines.steps import StepDefinition, linked, with_params
from jupyter_amltrain.schema import az_yaml, az_yaml_job
from jupyter_amltrain.schema.inputs import JobInput, JobOutput, input_variable, output_variable
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.state_dir import default_path
from jupyter_amltrain.text import tilde

SCHEMA = az_yaml_job.SCHEMA.replace("command", "pipeline")
FILE_NAME = "pipeline.yml"
#: Module beside the scripts that reads and writes values.
MODULE = "_amltrain_steps"
#: Keys of a job that the pipeline has.
_OF_PIPELINE = ("$schema", "display_name", "experiment_name")
_EPILOGUE = """
# ---- added by amltrain: values for other steps ----
for _amltrain_name, _amltrain_folder in {outputs}:
    __import__({module!r}).write(globals()[_amltrain_name], __import__("os").environ[_amltrain_folder])
"""


class PipelineFile(NamedTuple):
    """A file and the code beside it.

    Attributes
    ----------
    text
        Of the file.
    code
        By path relative to its folder, the bytes or the path of a file here.
    """

    text: str
    code: dict[str, str | bytes]


def save(request: PipelineRequest, file: str) -> str:
    """Write a pipeline and its code; return one sentence.

    Raises
    ------
    CommandError
        The name has another suffix, a step cannot be written, or a file there has another content.
    """
    folder, name = folder_and_name(file)
    made = file_of(request, f"{os.path.splitext(name)[0]}-code")
    found = write_new({**made.code, name: made.text.encode()}, folder, "--save")
    if not found.written:
        return f"{tilde(os.path.join(folder, name))} has this pipeline already. To run it: %aml_pipeline submit {file}"
    return f"Wrote {name} and the code of its steps to {tilde(folder)}. To run it: %aml_pipeline submit {file}"


def file_of(request: PipelineRequest, folder: str) -> PipelineFile:
    """Return the file of a pipeline; its code is in `folder`."""
    definitions = {one.name: one for one in with_params(request.steps, request.params)}
    steps = ordered(linked(list(definitions.values()), request.target))
    if wrong := next((one for one in steps if one.split or one.after or definitions[one.name].sweep), None):
        flag = "--map" if wrong.split else "--after" if wrong.after else "--goal"
        raise CommandError(
            f"Step {wrong.name!r}: {flag} has no form in a file of az ml.", hint="Run the pipeline from the notebook.",
            code="save.step",
        )  # fmt: skip
    given = {(link.step, link.output) for step in steps for link in step.links.values() if link.kind == VALUE}
    code: dict[str, str | bytes] = {}
    jobs: dict[str, Any] = {}
    for step in steps:
        outputs = [name for name in step.values if (step.name, name) in given]
        doc, files = _job(step, definitions[step.name], outputs, f"./{folder}/{step.name}", request.target)
        jobs[step.name] = doc
        code |= {f"{folder}/{step.name}/{name}": content for name, content in files.items()}
    doc = {
        "$schema": SCHEMA,
        "type": "pipeline",
        "display_name": request.name,
        "experiment_name": request.experiment,
        **({"tags": dict(request.tags)} if request.tags else {}),
        "jobs": jobs,
    }
    settings = {"continue_on_step_failure": True} if request.keep_going else {}
    if request.reuse == NEVER:
        settings["force_rerun"] = True
    return PipelineFile(az_yaml.to_yaml({**doc, **({"settings": settings} if settings else {})}), code)


def service_job(request: PipelineRequest, target: str) -> JobSpec:
    """Return the job of a service that runs pipelines itself; its files are kept in the state root."""
    made = file_of(request._replace(target=target), "code")
    digest = hashlib.sha256(made.text.encode())
    for name, content in sorted(made.code.items()):
        digest.update(name.encode() + b"\0" + (content if isinstance(content, bytes) else Path(content).read_bytes()))
    folder = default_path() / "pipelines" / "files" / digest.hexdigest()[:32]
    write_new({**made.code, FILE_NAME: made.text.encode()}, str(folder), "%aml_pipeline")
    spec = az_yaml_job.spec_of(az_yaml.load(folder / FILE_NAME))
    return msgspec.structs.replace(spec, project=request.project, name=request.name)


def _job(
    step: PlannedStep, definition: StepDefinition, outputs: list[str], code: str, target: str
) -> tuple[dict[str, Any], dict[str, str | bytes]]:
    """Return a step of the file, and its code."""
    if definition.spec.job_type:
        raise CommandError(f"Step {step.name!r} is of a file already.", hint="Copy it.", code="save.job_file")
    name = step.target or target or api.current_target()
    backend = controller().loop.call(_backend(name))
    spec = _with_folders(definition.spec, step, outputs, stand_in(backend))
    plan = api.plan_spec(msgspec.structs.replace(spec, files=project_files(spec)), target=name)
    doc = dict(az_yaml.parse(yaml_text(plan, code=code)).doc)
    compute = {} if isinstance(backend, AgentBackend) and name == "local" else {"compute": doc.get("compute") or name}
    inputs = dict(doc.get("inputs") or {})
    for own, link in step.links.items():
        kept = {"type": link.type} if link.kind == DATA else {}
        bound = f"${{{{parent.jobs.{link.step}.outputs.{link.output}}}}}"
        inputs[own] = {**kept, "path": bound} if kept else bound
    doc = {key: value for key, value in doc.items() if key not in (*_OF_PIPELINE, "compute")}
    return {**doc, **compute, **({"inputs": inputs} if inputs else {})}, dict(plan.snapshot.files)


async def _backend(name: str) -> Any:
    return controller().backend(name)


def _with_folders(spec: JobSpec, step: PlannedStep, outputs: list[str], data: JobInput) -> JobSpec:
    """Return the job of a step that reads what it takes from folders, and writes what others take to folders."""
    taken = {name: link for name, link in step.links.items() if link.kind == VALUE}
    paths = [name for name, link in step.links.items() if link.kind == DATA]
    spec = msgspec.structs.replace(
        spec,
        inputs={**spec.inputs, **dict.fromkeys(step.links, data)},
        outputs={**spec.outputs, **{name: JobOutput() for name in outputs}},
        out=tuple(name for name in spec.out if name not in outputs),
    )
    if not spec.script or not (taken or outputs or paths):
        return spec
    read = [f"{name} = __import__({MODULE!r}).read({_variable(input_variable(name))})" for name in taken]
    read += [f"{name} = {_variable(input_variable(name))}" for name in paths]
    cell = script.from_cell(
        spec.cell,
        params=spec.params,
        out=spec.out,
        before=[*values.statements(spec.values, notebook_source.RUN if spec.modules else ""), *read],
        known=(*spec.values, *step.links),
        helpers="\n".join(spec.modules.values()),
    )
    folders = [(name, output_variable(name)) for name in outputs]
    end = _EPILOGUE.format(outputs=folders, module=MODULE) if outputs else ""
    return msgspec.structs.replace(spec, script=cell.text + end, modules={**spec.modules, **_modules()})


def _variable(name: str) -> str:
    return f"__import__('os').environ[{name!r}]"


def _modules() -> Mapping[str, str]:
    """Return the modules that read and write values, by name."""
    ours = importlib.resources.files("jupyter_amltrain.pipelines").joinpath("step_files.py").read_text("utf-8")
    theirs = importlib.resources.files("jupyter_amltrain.agent").joinpath("values.py").read_text("utf-8")
    return {MODULE: ours, nodes.MODULE: theirs}
