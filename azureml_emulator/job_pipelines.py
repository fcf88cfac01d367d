"""Steps of a pipeline: bodies of jobs made of what the SDK sends, run as soon as their inputs are there.

A step's body is the SDK's own (no contract has it): snake case and camel case beside each other, inputs with
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
#: The service's own driver of a parallel step, cut to its contract: init(), run(mini_batch), rows appended to a file.
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


def camels(said: Any) -> Any:
    """An object with its keys in camel case, whatever they were."""
    return {camel(key): value for key, value in said.items()} if isinstance(said, Mapping) else said


async def carry_out(parent: Parent) -> str:
    """Run every step once what it waits for is there; independent ones go on when another fails.

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
        for output, said in (step.get("outputs") or {}).items():
            found = _BOUND.fullmatch(str(said.get("value", "")))
            if found is not None and found[1] == "outputs" and output in child.output_uris:
                self.run.output_uris[found[2]] = child.output_uris[output]
        return status

    def job(self, name: str, step: Mapping[str, Any]) -> dict[str, Any]:
        """The body of a step's own job.

        Raises
        ------
        JobFailed
            A component, an input or an output that is not there.
        """
        kind = str(step.get("type") or "command")
        known = step.get("trial") if kind == "sweep" else step
        spec = {} if kind in ("automl", "spark") and not step.get("componentId") else self._spec(known)
        kind = str(spec.get("type") or kind) if kind != "sweep" else kind
        inputs = self._inputs(step, spec)
        outputs = {
            key: self._output(key, (step.get("outputs") or {}).get(key), said or {})
            for key, said in {**(step.get("outputs") or {}), **(spec.get("outputs") or {})}.items()
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
        # $[[ ... ]] goes with its optional input.
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
        def said(name: str, default: str = "") -> str:
            return str(step.get(name) or spec.get(name) or default)

        entry = task.get("entry_script") or task.get("entryScript")
        rows = task.get("append_row_to") or task.get("appendRowTo") or ""
        arguments = task.get("program_arguments") or task.get("programArguments") or ""
        words = f"{shlex.quote(str(entry))} {said('input_data')} '{rows}' {said('mini_batch_size', '1')} {arguments}"
        return f"python -c {shlex.quote(_DRIVER)} {words}"

    def _spec(self, step: Any) -> dict[str, Any]:
        if isinstance(step, Mapping) and isinstance(step.get("properties"), Mapping):  # a component in place
            return dict(step["properties"]["componentSpec"])
        name = str((step or {}).get("componentId") or (step or {}).get("component_id") or "")
        found = self.parent.world.resources.get(name.removeprefix("azureml:"))
        if found is None:
            raise JobFailed("UserError", f"Component {name} was not found.")
        return dict(found["properties"]["componentSpec"])

    # ---- inputs and outputs
    def _inputs(self, step: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
        found = {}
        for key, declared in (spec.get("inputs") or {}).items():
            if isinstance(declared, Mapping) and declared.get("default") is not None:
                found[key] = {"jobInputType": "literal", "value": str(declared["default"]), "description": None}
        for key, said in (step.get("inputs") or {}).items():
            bound = self._bound(camels(said) if isinstance(said, Mapping) else {"value": said})
            if bound is not None:
                found[key] = bound
        return found

    def _bound(self, said: dict[str, Any]) -> dict[str, Any] | None:
        text = str(said.get("value", said.get("uri", "")))
        whole = _BOUND.fullmatch(text.strip())
        mode = _mode(said.get("mode"))
        if whole is not None:
            found = self._named(whole[1], whole[2])
            return found if found is None or mode is None else {**found, "mode": mode}
        text = _BOUND.sub(lambda one: str((self._named(one[1], one[2]) or {}).get("value", "")), text)
        if said.get("uri"):
            return {"description": None, **said, "uri": text, "mode": mode or "ReadOnlyMount"}
        return {"description": None, "jobInputType": "literal", "value": text}

    def _named(self, what: str, name: str) -> dict[str, Any] | None:
        if what == "inputs":
            found = (self.body.get("inputs") or {}).get(name)
            return dict(found) if found is not None else None
        step, _, output = name.partition(".outputs.")
        child = self.done.get(step)
        kept = ((child.properties.get("outputs") or {}) if child else {}).get(output)
        if child is None or kept is None:
            raise JobFailed("UserError", f"There is no output {name} for the binding ${{{{parent.{what}.{name}}}}}.")
        uri = child.output_uris.get(output) or kept.get("uri")
        return {
            "description": None,
            "jobInputType": kept.get("jobOutputType") or "uri_folder",
            "uri": uri,
            "mode": "ReadOnlyMount",
        }

    def _output(self, name: str, said: Mapping[str, Any] | None, declared: Mapping[str, Any]) -> dict[str, Any]:
        said = camels(said or {})
        bound = _BOUND.fullmatch(str(said.get("value", "")))
        if bound is not None and bound[1] == "outputs":
            said = {**camels((self.body.get("outputs") or {}).get(bound[2]) or {}), **said}
        kind = said.get("jobOutputType") or declared.get("type") or "uri_folder"
        return {
            "description": None,
            "uri": said.get("uri"),
            "mode": _mode(said.get("mode")) or "ReadWriteMount",
            "jobOutputType": kind if kind != "literal" else "uri_folder",
        }


def _mode(said: Any) -> str | None:
    return _MODES.get(str(said).lower(), str(said)) if said else None


def _distribution(said: Any) -> dict[str, Any] | None:
    """A distribution as ARM has it, of the SDK's or a component's words for it."""
    if not isinstance(said, Mapping) or not said:
        return None
    found = camels(said)
    kind = str(found.pop("distributionType", None) or found.pop("type", ""))
    numbers = {key: int(value) if str(value).isdigit() else value for key, value in found.items()}
    return {**numbers, "distributionType": _DISTRIBUTIONS.get(kind.lower(), kind)}


def _needs(step: Mapping[str, Any]) -> set[str]:
    """Steps whose outputs a step reads."""
    found = set()
    for said in (step.get("inputs") or {}).values():
        text = str(said.get("value", said.get("uri", ""))) if isinstance(said, Mapping) else str(said)
        found |= {name.partition(".")[0] for what, name in _BOUND.findall(text) if what == "jobs"}
    return found
