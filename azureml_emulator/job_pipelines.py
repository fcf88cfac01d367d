"""Steps of a pipeline: converts the SDK's step bodies to job bodies, and runs them as soon as their inputs exist.

A step's body is the SDK's own (no contract has it): snake case and camel case are mixed, inputs with
``job_input_type``, bindings such as ``${{parent.jobs.prep.outputs.data}}``. Each becomes the body of a job of its own:
Command, Sweep, AutoML, Spark, a parallel step as a command that runs its entry script over the files of its input, a
pipeline component as a pipeline.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from azureml_emulator.job_runs import JobFailed, Run

if TYPE_CHECKING:
    from azureml_emulator.job_parents import Parent

_BOUND = re.compile(r"\$\{\{\s*parent\.(inputs|outputs|jobs)\.([\w.-]+)\s*\}\}")
_OPTIONAL = re.compile(r"\$?\[\[(.*?)\]\]", re.DOTALL)
_INPUT = re.compile(r"\$\{\{\s*inputs\.([\w-]+)\s*\}\}")
_MODES = {
    "ro_mount": "ReadOnlyMount", "rw_mount": "ReadWriteMount", "mount": "ReadWriteMount", "download": "Download",
    "upload": "Upload", "direct": "Direct", "eval_mount": "EvalMount", "eval_download": "EvalDownload",
}  # fmt: skip
_DISTRIBUTIONS = {"pytorch": "PyTorch", "mpi": "Mpi", "tensorflow": "TensorFlow", "ray": "Ray"}
_TYPES = {"automl": "AutoML", "spark": "Spark", "sweep": "Sweep", "pipeline": "Pipeline"}
#: The service's driver of a parallel step, reduced to its contract: init(), run(mini_batch), rows appended to a file.
_DRIVER = """
import importlib.util, os, pathlib, sys
entry, data, rows, size = sys.argv[1:5]
sys.argv = [entry, *sys.argv[5:]]
sys.path.insert(0, os.getcwd())
spec = importlib.util.spec_from_file_location("entry", entry)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
getattr(module, "init", lambda: None)()
root = pathlib.Path(data)
files = sorted(str(one) for one in root.rglob("*") if one.is_file()) if root.is_dir() else [data]
size = max(1, int(size) if size.isdigit() else len(files))
for at in range(0, len(files), size):
    found = module.run(files[at : at + size])
    if rows and found is not None:
        rows_at = pathlib.Path(rows, "parallel_run_step.txt") if os.path.isdir(rows) else pathlib.Path(rows)
        lines = found.to_csv(index=False, header=False, sep=" ") if hasattr(found, "to_csv") else "".join(
            f"{one}\\n" for one in found)
        with rows_at.open("a") as file:
            file.write(lines)
getattr(module, "shutdown", lambda: None)()
"""


def snake(name: str) -> str:
    """``jobInputType`` -> ``job_input_type``."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


def camel(name: str) -> str:
    """``job_input_type`` -> ``jobInputType``."""
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


def camels(value: Any) -> Any:
    """Return an object with its keys in camel case."""
    return {camel(key): item for key, item in value.items()} if isinstance(value, Mapping) else value


async def carry_out(parent: Parent) -> str:
    """Run each step when its dependencies have finished; independent steps continue when another fails.

    Raises
    ------
    JobFailed
    """
    return await _Pipeline(parent).carry_out()


class _Pipeline:
    def __init__(self, parent: Parent) -> None:
        self.parent, self.run, self.body = parent, parent.run, parent.body
        self.settings = self.body.get("settings") or {}
        self.done: dict[str, Run] = {}

    async def carry_out(self) -> str:
        steps: dict[str, Any] = dict(self.body["jobs"])
        await self.parent.say("logs/azureml/executionlogs.txt", f"{len(steps)} steps.\n")
        goes_on = self.settings.get("continue_on_step_failure", self.settings.get("continueOnStepFailure", True))
        running: dict[asyncio.Future[str], str] = {}
        failed: list[str] = []
        try:
            while steps or running:
                waited = steps.keys() | set(running.values()) | set(failed)
                stopped = bool(failed) and str(goes_on).lower() == "false"
                for name in [] if stopped else [one for one, step in steps.items() if not _needs(step) & waited]:
                    running[asyncio.ensure_future(self._one(name, steps.pop(name)))] = name
                if not running:
                    break
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    name = running.pop(task)
                    if task.result() != "Completed":
                        failed.append(name)
                        text = f"Step {name} ended as {task.result()}.\n"
                        await self.parent.say("logs/azureml/stderrlogs.txt", text)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        if failed:
            nodes = ", ".join(f"/{name}" for name in failed)
            raise JobFailed("UserError", f"Pipeline has failed child jobs. Failed nodes: {nodes}.")
        if steps:
            raise JobFailed("UserError", f"The steps wait for each other: {', '.join(sorted(steps))}.")
        return "Completed"

    async def _one(self, name: str, step: dict[str, Any]) -> str:
        sent = self.job(name, step)
        compute = step.get("computeId") or sent.get("computeId") or self.settings.get("default_compute")
        child = self.parent.begin(str(uuid.uuid4()), name, sent, compute or self.body.get("computeId"))
        status = await self.parent.ended(child)
        self.done[name] = child
        for output, output_body in (step.get("outputs") or {}).items():
            match = _BOUND.fullmatch(str(output_body.get("value", "")))
            if match is not None and match[1] == "outputs" and output in child.output_uris:
                self.run.output_uris[match[2]] = child.output_uris[output]
        return status

    def job(self, name: str, step: Mapping[str, Any]) -> dict[str, Any]:
        """Return the job body of a step.

        Raises
        ------
        JobFailed
            A component, an input or an output does not exist.
        """
        kind = str(step.get("type") or "command")
        source = step.get("trial") if kind == "sweep" else step
        spec = {} if kind in ("automl", "spark") and not step.get("componentId") else self._spec(source)
        kind = str(spec.get("type") or kind) if kind != "sweep" else kind
        inputs = self._inputs(step, spec)
        outputs = {
            key: self._output(key, (step.get("outputs") or {}).get(key), declared or {})
            for key, declared in {**(step.get("outputs") or {}), **(spec.get("outputs") or {})}.items()
        }
        common = {
            "jobType": _TYPES.get(kind, "Command"),
            "displayName": step.get("display_name") or name,
            "inputs": inputs,
            "outputs": outputs,
            "tags": step.get("tags") or {},
            "identity": step.get("identity"),
            "services": camels(step.get("services")),
        }
        if kind == "pipeline":
            return {**common, "jobs": spec["jobs"], "settings": self.settings}
        if kind == "automl":
            return {**common, "taskDetails": {"primaryMetric": step.get("primary_metric")}}
        if kind == "spark":
            entry = {**(spec.get("entry") or {}), **(step.get("entry") or {})}
            file = entry.get("file") or entry.get("entry")
            return {
                **common,
                "codeId": step.get("code") or spec.get("code"),
                "entry": {"sparkJobEntryType": "SparkJobPythonEntry", "file": file},
                "args": step.get("args") or spec.get("args"),
                "environmentId": step.get("environment") or spec.get("environment"),
            }
        command = self._command(step, spec, kind, inputs)
        if kind != "sweep":
            return {**common, **command}
        limits = {key: value for key, value in camels(step.get("limits") or {}).items() if value is not None}
        objective = camels(step.get("objective") or {})
        algorithm = step.get("sampling_algorithm")
        sampling = algorithm.get("type") if isinstance(algorithm, Mapping) else algorithm
        return {
            **common,
            "trial": command,
            "searchSpace": step.get("search_space") or {},
            "limits": limits,
            "objective": objective,
            "samplingAlgorithm": {"samplingAlgorithmType": str(sampling or "random")},
            "earlyTermination": camels(step.get("early_termination")),
            "resources": command["resources"],
        }

    def _command(
        self, step: Mapping[str, Any], spec: Mapping[str, Any], kind: str, inputs: Mapping[str, Any]
    ) -> dict[str, Any]:
        task = {**(spec.get("task") or {}), **(step.get("task") or {})} if kind == "parallel" else {}
        resources = camels({**(spec.get("resources") or {}), **(step.get("resources") or {})})
        if "instanceCount" in resources:
            resources["instanceCount"] = int(resources["instanceCount"])  # the service keeps it as text
        variables = {**(spec.get("environment_variables") or {}), **(step.get("environment_variables") or {})}
        text = self._parallel(step, spec, task) if task else str(spec.get("command") or "")
        # $[[ ... ]] is removed together with its optional input.
        text = _OPTIONAL.sub(lambda found: found[1] if set(_INPUT.findall(found[1])) <= inputs.keys() else "", text)
        environment = step.get("environmentId") or step.get("environment") or task.get("environment")
        return {
            "command": text,
            "codeId": step.get("code") or task.get("code") or spec.get("code"),
            "environmentId": environment or spec.get("environment"),
            "environmentVariables": variables or None,
            "distribution": _distribution(step.get("distribution") or spec.get("distribution")),
            "limits": camels(step.get("limits")) if kind != "sweep" else None,
            "resources": resources,
        }

    def _parallel(self, step: Mapping[str, Any], spec: Mapping[str, Any], task: Mapping[str, Any]) -> str:
        def setting(name: str, default: str = "") -> str:
            return str(step.get(name) or spec.get(name) or default)

        entry = task.get("entry_script") or task.get("entryScript")
        rows = task.get("append_row_to") or task.get("appendRowTo") or ""
        arguments = task.get("program_arguments") or task.get("programArguments") or ""
        command_line = (
            f"{shlex.quote(str(entry))} {setting('input_data')} '{rows}' {setting('mini_batch_size', '1')} {arguments}"
        )
        return f"python -c {shlex.quote(_DRIVER)} {command_line}"

    def _spec(self, step: Any) -> dict[str, Any]:
        if isinstance(step, Mapping) and isinstance(step.get("properties"), Mapping):  # a component in place
            return dict(step["properties"]["componentSpec"])
        name = str((step or {}).get("componentId") or (step or {}).get("component_id") or "")
        component = self.parent.world.resources.get(name.removeprefix("azureml:"))
        if component is None:
            raise JobFailed("UserError", f"Component {name} was not found.")
        return dict(component["properties"]["componentSpec"])

    # ---- inputs and outputs
    def _inputs(self, step: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
        inputs = {}
        for key, declared in (spec.get("inputs") or {}).items():
            if isinstance(declared, Mapping) and declared.get("default") is not None:
                inputs[key] = {"jobInputType": "literal", "value": str(declared["default"]), "description": None}
        for key, binding in (step.get("inputs") or {}).items():
            bound = self._bound(camels(binding) if isinstance(binding, Mapping) else {"value": binding})
            if bound is not None:
                inputs[key] = bound
        return inputs

    def _bound(self, binding: dict[str, Any]) -> dict[str, Any] | None:
        text = str(binding.get("value", binding.get("uri", "")))
        match = _BOUND.fullmatch(text.strip())
        mode = _mode(binding.get("mode"))
        if match is not None:
            value = self._named(match[1], match[2])
            return value if value is None or mode is None else {**value, "mode": mode}
        text = _BOUND.sub(lambda one: str((self._named(one[1], one[2]) or {}).get("value", "")), text)
        if binding.get("uri"):
            return {"description": None, **binding, "uri": text, "mode": mode or "ReadOnlyMount"}
        return {"description": None, "jobInputType": "literal", "value": text}

    def _named(self, what: str, name: str) -> dict[str, Any] | None:
        if what == "inputs":
            value = (self.body.get("inputs") or {}).get(name)
            return dict(value) if value is not None else None
        step, _, output = name.partition(".outputs.")
        child = self.done.get(step)
        stored_output = ((child.properties.get("outputs") or {}) if child else {}).get(output)
        if child is None or stored_output is None:
            raise JobFailed("UserError", f"There is no output {name} for the binding ${{{{parent.{what}.{name}}}}}.")
        uri = child.output_uris.get(output) or stored_output.get("uri")
        return {
            "description": None,
            "jobInputType": stored_output.get("jobOutputType") or "uri_folder",
            "uri": uri,
            "mode": "ReadOnlyMount",
        }

    def _output(self, name: str, output: Mapping[str, Any] | None, declared: Mapping[str, Any]) -> dict[str, Any]:
        output = camels(output or {})
        match = _BOUND.fullmatch(str(output.get("value", "")))
        if match is not None and match[1] == "outputs":
            output = {**camels((self.body.get("outputs") or {}).get(match[2]) or {}), **output}
        kind = output.get("jobOutputType") or declared.get("type") or "uri_folder"
        return {
            "description": None,
            "uri": output.get("uri"),
            "mode": _mode(output.get("mode")) or "ReadWriteMount",
            "jobOutputType": kind if kind != "literal" else "uri_folder",
        }


def _mode(mode: Any) -> str | None:
    return _MODES.get(str(mode).lower(), str(mode)) if mode else None


def _distribution(value: Any) -> dict[str, Any] | None:
    """Convert the SDK's or a component's distribution to ARM's form."""
    if not isinstance(value, Mapping) or not value:
        return None
    fields = camels(value)
    kind = str(fields.pop("distributionType", None) or fields.pop("type", ""))
    numbers = {key: int(value) if str(value).isdigit() else value for key, value in fields.items()}
    return {**numbers, "distributionType": _DISTRIBUTIONS.get(kind.lower(), kind)}


def _needs(step: Mapping[str, Any]) -> set[str]:
    """Return the steps whose outputs a step reads."""
    needed = set()
    for binding in (step.get("inputs") or {}).values():
        text = str(binding.get("value", binding.get("uri", ""))) if isinstance(binding, Mapping) else str(binding)
        needed |= {name.partition(".")[0] for what, name in _BOUND.findall(text) if what == "jobs"}
    return needed
