"""Conversion of an ``az ml`` job file to a :class:`JobSpec` and back. No I/O except for the files that it names.

For ``type: command`` the shared fields (:data:`FIELDS`) are converted, for other types name, experiment, tags and the
text. A written file is the plain job: script, environment, data and machines, without the agent's features
(telemetry, GPU checks, ``--out``). Names of the schema: ``commandJob.schema.json`` of the ``az ml`` extension, and the
SDK's ``CommandJobSchema``.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.schema import az_yaml, searched_values
from jupyter_amltrain.schema.asset_names import prefixed
from jupyter_amltrain.schema.az_yaml import JobFile, Keys, to_yaml
from jupyter_amltrain.schema.environment import Environment
from jupyter_amltrain.schema.inputs import INPUT_TYPES, JobInput, JobOutput, input_variable, is_address, output_variable
from jupyter_amltrain.schema.job import LAUNCHED_AS, Distribution, JobSpec, Resources, validated
from jupyter_amltrain.schema.sweep import Sweep
from jupyter_amltrain.schema.sweep_file import sweep_from_yaml, sweep_to_yaml
from jupyter_amltrain.state_dir import working_folder
from jupyter_amltrain.text import close_matches, did_you_mean

Read = Callable[[Any, str], Any]
Write = Callable[[Any], Any]

#: Types of ``distribution`` in the schema; their names are ours.
FILE_DISTRIBUTIONS = ("pytorch", "mpi", "tensorflow")
#: Types of ``identity`` in the schema by ours; of several the first is written.
IDENTITY_NAMES = {
    "user_identity": "user",
    "user": "user",
    "managed": "managed",
    "managed_identity": "managed",
    "aml_token": "aml",
    "amltoken": "aml",
}
#: Types of ``services`` in the schema.
SERVICE_NAMES = {"jupyter_lab": "jupyterlab", "vs_code": "vscode", "tensor_board": "tensorboard", "ssh": "ssh"}


def _same(value: Any) -> Any:
    return value


def _text(value: Any, folder: str) -> str:
    del folder
    return str(value)


def _number(value: Any, folder: str) -> int:
    del folder
    if isinstance(value, bool) or not re.fullmatch(r"\d+", str(value)):
        raise SpecError(f"{str(value)[:80]!r} is not a whole number.")
    return int(value)


def _seconds(value: Any, folder: str) -> float:
    return float(_number(value, folder))


def _docker(value: Any, folder: str) -> str:
    del folder
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _folder(value: Any, folder: str) -> str | None:
    """Return the code folder; ``None`` for an address or a git reference, which only the service can use."""
    text = str(value)
    if is_address(text) or text.startswith("git+"):
        return None
    path = absolute(text, folder)
    if not os.path.exists(path):
        raise SpecError(f"there is no folder {path}.")
    return path if os.path.isdir(path) else None


def absolute(text: str, folder: str) -> str:
    """Return a path of the file as an absolute path; it is relative to the file's folder."""
    return os.path.normpath(os.path.join(folder or working_folder(), os.path.expanduser(text)))


def _variables(value: Mapping[str, Any], folder: str) -> dict[str, str]:
    del folder
    return {str(k): v if isinstance(v, str) else _plain(v) for k, v in value.items()}


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


def _environment(value: Any, folder: str) -> Environment | None:
    if isinstance(value, str):
        return None if value.startswith("file:") else Environment(name=value)
    if isinstance(value.get("build"), Mapping):
        return Environment(build=absolute(str(value["build"].get("path") or "."), folder))
    conda = value.get("conda_file")
    if isinstance(conda, str):
        return Environment(image=str(value.get("image") or ""), conda=absolute(conda, folder))
    if isinstance(conda, Mapping):
        return Environment(image=str(value.get("image") or ""), conda_text=to_yaml(dict(conda)))
    return Environment(image=str(value["image"])) if value.get("image") and conda is None else None


def _environment_out(value: Environment) -> Any:
    if value.name:
        return prefixed(value.name)
    if value.build:
        return {"build": {"path": value.build}}
    fields = {"image": value.image, "conda_file": value.conda_file if value.kernel or value.conda_text else value.conda}
    return {key: part for key, part in fields.items() if part}


def _inputs(value: Mapping[str, Any], folder: str) -> dict[str, JobInput]:
    return {str(name): _input(data, folder) for name, data in value.items()}


def _input(data: Any, folder: str) -> JobInput:
    if not isinstance(data, Mapping):
        return JobInput(type="literal", value=data)
    path, kind = data.get("path"), str(data.get("type") or "uri_folder")
    if path is None:
        return JobInput(type="literal", value=data.get("value", data.get("default")))
    if kind not in INPUT_TYPES:
        raise SpecError(f"{kind[:80]!r} is not a valid input type.")
    text = str(path)
    # Only the service can resolve a path with a binding.
    location = text if is_address(text) or "${{" in text else absolute(text, folder)
    return JobInput(type=kind, path=location, mode=str(data.get("mode") or ""))


def _input_out(data: JobInput) -> Any:
    if data.type == "literal":
        return data.value
    return {"type": data.type, "path": data.path} | ({"mode": data.mode} if data.mode else {})


def _outputs(value: Mapping[str, Any], folder: str) -> dict[str, JobOutput]:
    del folder
    return {
        str(name): JobOutput(
            type=str((data or {}).get("type") or "uri_folder"),
            path=str((data or {}).get("path") or ""),
            mode=str((data or {}).get("mode") or ""),
        )
        for name, data in value.items()
    }


def _output_out(output: JobOutput) -> Any:
    fields = {"type": output.type, "path": output.path, "mode": output.mode}
    return {key: part for key, part in fields.items() if part}


def _distribution(value: Mapping[str, Any], folder: str) -> Distribution | None:
    kind = str(value.get("type") or "").lower()
    if kind not in FILE_DISTRIBUTIONS:
        return None
    if kind == "tensorflow":
        workers = value.get("worker_count")
        return Distribution(
            kind=kind,
            processes=None if workers is None else _number(workers, folder),
            parameter_servers=_number(value.get("parameter_server_count") or 0, folder),
        )
    processes = value.get("process_count_per_instance")
    return Distribution(kind=kind, processes=None if processes is None else _number(processes, folder))


def _distribution_out(value: Distribution) -> Any:
    kind = LAUNCHED_AS.get(value.kind, value.kind)
    if kind not in FILE_DISTRIBUTIONS:
        return None
    if value.kind == "tensorflow":
        fields: dict[str, Any] = {"type": kind, "worker_count": value.processes}
        fields |= {"parameter_server_count": value.parameter_servers} if value.parameter_servers else {}
    else:
        fields = {"type": kind, "process_count_per_instance": value.processes}
    return {key: part for key, part in fields.items() if part is not None}


def _identity(value: Mapping[str, Any], folder: str) -> str | None:
    del folder
    word = IDENTITY_NAMES.get(str(value.get("type") or "").lower())
    client = value.get("client_id")
    return f"{word}:{client}" if word == "managed" and client else word


def _identity_out(word: str) -> Any:
    kind, _, client = word.partition(":")
    fields = {"type": next(name for name, ours in IDENTITY_NAMES.items() if ours == kind)}
    return fields | ({"client_id": client} if client else {})


def _services(value: Mapping[str, Any], folder: str) -> tuple[str, ...] | None:
    del folder
    services = []
    for service in value.values():
        kind = SERVICE_NAMES.get(str((service or {}).get("type") or ""))
        if kind is None:
            return None
        rest = {"tensorboard": service.get("log_dir"), "ssh": service.get("ssh_public_keys")}.get(kind)
        services.append(f"{kind}:{rest}" if rest else kind)
    return tuple(services) if len({one.partition(":")[0] for one in services}) == len(services) else None


def _services_out(value: tuple[str, ...]) -> Any:
    services = {}
    for service in value:
        kind, _, rest = service.partition(":")
        fields = {"type": next(name for name, ours in SERVICE_NAMES.items() if ours == kind)}
        if rest:
            fields["log_dir" if kind == "tensorboard" else "ssh_public_keys"] = rest
        services[kind] = fields
    return services


def _lower(value: Any, folder: str) -> str:
    del folder
    return str(value).lower()


def _each(write: Write) -> Write:
    return lambda value: {name: write(part) for name, part in value.items()}


#: Keys of a file -> field of a job, function to read it (value, folder of the file; ``None``: only the service
#: supports it), function to write it.
FIELDS: dict[tuple[str, ...], tuple[str, Read, Write]] = {
    ("code",): ("source", _folder, _same),
    ("environment",): ("environment", _environment, _environment_out),
    ("environment_variables",): ("env", _variables, dict),
    ("inputs",): ("inputs", _inputs, _each(_input_out)),
    ("outputs",): ("outputs", _outputs, _each(_output_out)),
    ("distribution",): ("distribution", _distribution, _distribution_out),
    ("resources", "instance_count"): ("resources.nodes", _number, _same),
    ("resources", "instance_type"): ("resources.instance_type", _text, _same),
    ("resources", "shm_size"): ("resources.shm_size", _text, _same),
    ("resources", "docker_args"): ("resources.docker_args", _docker, _same),
    ("limits", "timeout"): ("timeout", _seconds, lambda value: max(1, round(value))),
    ("queue_settings", "job_tier"): ("tier", _lower, _same),
    ("queue_settings", "priority"): ("priority", _lower, _same),
    ("identity",): ("identity", _identity, _identity_out),
    ("services",): ("services", _services, _services_out),
}


#: Keys of ``type: command`` (``CommandJobSchema`` of the SDK), with the keys below those whose values are closed.
KEYS: dict[str, frozenset[str] | None] = {
    **dict.fromkeys(
        (
            *("$schema", "type", "name", "id", "description", "tags", "properties", "display_name", "experiment_name"),
            *("command", "code", "compute", "environment_variables", "inputs", "outputs", "distribution", "identity"),
            *("services", "parent_job_name", "status", "creation_context", "log_files", "parameters"),
        )
    ),
    "environment": frozenset(
        (
            *("$schema", "name", "id", "description", "tags", "version", "latest_version", "build", "image"),
            *("conda_file", "inference_config", "os_type", "datastore", "auto_delete_setting", "creation_context"),
            *("properties", "intellectual_property"),
        )
    ),
    "resources": frozenset(
        (
            *("instance_count", "instance_type", "properties", "locations", "shm_size", "max_instance_count"),
            "docker_args",
        )
    ),
    "limits": frozenset(("timeout",)),
    "queue_settings": frozenset(("job_tier", "priority")),
}


def _check_keys(job: JobFile) -> None:
    """Raise :class:`SpecError` for a key that the schema does not have, with its line."""
    for key, value in job.doc.items():
        if key not in KEYS:
            raise job.error((str(key),), f"unknown key {str(key)!r}.", _key_hint(str(key), KEYS))
        allowed = KEYS[key]
        if allowed is None or not isinstance(value, Mapping):
            continue
        for inner in value:
            if inner not in allowed:
                raise job.error((key, str(inner)), f"unknown key {str(inner)!r}.", _key_hint(str(inner), allowed))


def _key_hint(key: str, keys: Collection[str]) -> str:
    return did_you_mean(close_matches(key, keys, 1), f"Keys: {', '.join(sorted(keys)[:20])}.")


_BINDING = re.compile(r"\$\{\{\s*(inputs|outputs)\.([\w.-]+)\s*\}\}")


def spec_of(job: JobFile) -> JobSpec:
    """Convert a job file to a :class:`JobSpec`.

    For ``type: command`` the shared fields are set; a value that only the service supports (e.g. ``type: ray`` of a
    distribution) is left out. For other types name, experiment, tags and the text are set.

    Raises
    ------
    SpecError
        A value is invalid; the message names line and key.
    """
    doc = job.doc
    fields: dict[str, Any] = {
        "name": _name(str(doc.get("display_name") or doc.get("name") or Path(job.name).stem)),
        "job_type": job.type,
        "cell": job.text,
        "script_name": job.name,
        "notebook_dir": job.folder,
        "experiment": str(doc.get("experiment_name") or "default")[:250],
        "tags": {str(k): str(v) for k, v in (doc.get("tags") or {}).items()},
    }
    if job.type == "command":
        _check_keys(job)
    _check_codes(job)
    az_yaml.check_files(job)
    if job.type == "sweep":
        with contextlib.suppress(SpecError):  # of a file that only the service reads
            fields["sweep"] = sweep_from_yaml(doc)
    if job.type == "command":
        if not isinstance(doc.get("command"), str) or not doc["command"].strip():
            raise job.error(("command",), "the command is missing.", "Example: command: python train.py")
        fields["command"] = doc["command"]
        _check_bindings(job)
        for key, (field, read, _) in FIELDS.items():
            value = _at(doc, key)
            if value is None:
                continue
            is_mapping = field in ("inputs", "outputs") and isinstance(value, dict)
            for item_name, item in (
                {name: {name: one} for name, one in value.items()}.items() if is_mapping else [("", value)]
            ):
                _take(job, fields, (*key, str(item_name)) if is_mapping else key, field, read, item)
    return _make_spec(fields)


def spec_of_line(job: JobFile, params: Mapping[str, Any], inputs: Mapping[str, JobInput]) -> JobSpec:
    """Convert a job file with the parameters and inputs of the line that names it; see :func:`spec_of`.

    Raises
    ------
    SpecError
        The job has no such input, or a line gives it twice.
    """
    if twice := next((name for name in inputs if name in params), ""):
        raise SpecError(
            f"{twice} is given by --param and by --input.", hint="Give it once.", code="flag.twice", field="inputs"
        )
    spec = spec_of(az_yaml.with_inputs(az_yaml.with_params(job, params), inputs))
    return msgspec.structs.replace(spec, params=dict(params), inputs={**inputs, **spec.inputs})


def file_of(spec: JobSpec) -> JobFile:
    """Return the file of a job as its line has changed it."""
    job = az_yaml.with_params(az_yaml.parse(spec.cell, spec.script_name, spec.notebook_dir), spec.params)
    return az_yaml.with_inputs(job, _inputs_of_line(spec, job))


def with_line_params(spec: JobSpec, params: Mapping[str, Any]) -> JobSpec:
    """Return the job of a file with these parameters instead, and the inputs of its line that they do not set."""
    plain = az_yaml.parse(spec.cell, spec.script_name, spec.notebook_dir)
    inputs = _inputs_of_line(spec, az_yaml.with_params(plain, spec.params))
    changed = {name for name, value in params.items() if name not in spec.params or spec.params[name] != value}
    other = spec_of_line(plain, params, {name: data for name, data in inputs.items() if name not in changed})
    return msgspec.structs.replace(spec, params=other.params, inputs=other.inputs)


def _inputs_of_line(spec: JobSpec, job: JobFile) -> dict[str, JobInput]:
    """Return the inputs of a job that are not those of its file."""
    own = _inputs(job.doc.get("inputs") or {}, job.folder) if job.type == "command" else {}
    return {name: data for name, data in spec.inputs.items() if own.get(name) != data}


def _check_codes(job: JobFile) -> None:
    """Raise an error for a missing code folder of a step or trial; the SDK would report a missing component."""
    steps = job.doc.get("jobs")
    paths: list[Keys] = [("trial",), *((("jobs", name)) for name in steps or () if isinstance(steps, dict))]
    for path in paths:
        _, read, _ = FIELDS[("code",)]
        code = _at(job.doc, [*map(str, path), "code"])
        if isinstance(code, str):
            try:
                read(code, job.folder)
            except SpecError as error:
                raise job.error((*path, "code"), error.reason) from None


def _take(job: JobFile, fields: dict[str, Any], key: Keys, field: str, read: Any, value: Any) -> None:
    """Read one key; skip a value that only the service supports."""
    try:
        converted = read(value, job.folder)
        if converted is not None:
            existing = fields.get(field)
            _put(fields, field, {**existing, **converted} if isinstance(existing, dict) else converted)
            validated(_make_spec({**_PLAIN, **_only(fields, field)}))
    except SpecError as error:
        raise job.error(key, error.reason) from None
    except (TypeError, ValueError, AttributeError):
        raise job.error(key, "invalid value.", "See the schema: aka.ms/ml-cli-v2") from None


_PLAIN = {"name": "job", "job_type": "command"}


def _only(fields: Mapping[str, Any], field: str) -> dict[str, Any]:
    head = field.partition(".")[0]
    return {head: fields[head]}


def _put(fields: dict[str, Any], field: str, value: Any) -> None:
    head, _, tail = field.partition(".")
    if tail:
        fields.setdefault(head, {})[tail] = value
    else:
        fields[head] = value


def _make_spec(fields: Mapping[str, Any]) -> JobSpec:
    resources = Resources(**fields.get("resources", {}))
    return JobSpec(**{**fields, "resources": resources})


def _at(doc: Any, path: Sequence[str]) -> Any:
    for key in path:
        doc = doc.get(key) if isinstance(doc, dict) else None
    return doc


def _check_bindings(job: JobFile) -> None:
    for match in _BINDING.finditer(job.doc["command"]):
        kind, name = match[1], match[2].partition(".")[0]
        section = job.doc.get(kind)
        if not (isinstance(section, dict) and name in section) and not (kind == "outputs" and name == "default"):
            existing = ", ".join(map(str, section)) if isinstance(section, dict) and section else "none"
            raise job.error(("command",), f"{kind}.{name} is not defined.", f"The job's {kind}: {existing}.")


def fill_bindings(command: str, places: Mapping[str, str]) -> str:
    """Return a command line with its bindings replaced textually, as the service does.

    Parameters
    ----------
    places
        Paths by ``inputs.NAME`` and ``outputs.NAME``.
    """
    return _BINDING.sub(lambda found: places.get(f"{found[1]}.{found[2]}", found[0]), command)


def references(command: str) -> set[str]:
    """Return the inputs and outputs that a command line refers to, as ``inputs.NAME``."""
    return {f"{found[1]}.{found[2]}" for found in _BINDING.finditer(command)}


def _name(text: str) -> str:
    shown = "".join(c for c in text if c.isprintable()).replace("/", "-").strip()
    return shown[:64] or "job"


SCHEMA = "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json"
SWEEP_SCHEMA = SCHEMA.replace("command", "sweep")
#: Keys that the job of a trial has below ``trial``.
TRIAL_KEYS = ("code", "command", "environment", "environment_variables", "distribution", "resources")
#: Folder for values of ``--out``: the service stores the files in ``outputs``.
OUT_FOLDER = "outputs/amltrain"
_END = "AMLTRAIN_SCRIPT"
#: Text that the service would interpret as a binding, or that a YAML block cannot contain.
_NOT_PLAIN = re.compile(r"\$\{\{|[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd]")


def doc_of(
    spec: JobSpec, *, argv: Sequence[str], script: str = "", code: str = "", compute: str = ""
) -> dict[str, Any]:
    """Return the content of a file for a job.

    Parameters
    ----------
    spec
        The job, with environment, distribution and VM size of its target.
    argv
        Program and arguments, in the code folder.
    script
        Text that the command first writes to the script's path; empty if the code folder contains the script.
    code
        The code folder.
    compute
        Name of the compute at the service; empty for serverless.
    """
    doc: dict[str, Any] = {
        "$schema": SCHEMA,
        "type": "command",
        "display_name": spec.name,
        "experiment_name": spec.experiment,
        "command": command_of(spec, argv, script),
    }
    if code:
        doc["code"] = code
    for keys, (field, _, write) in FIELDS.items():
        if keys == ("code",):
            continue
        value: Any = spec
        for part in field.split("."):
            value = getattr(value, part)
        if not value or (field == "resources.nodes" and value == 1):
            continue
        written = write(value)
        if written is None:
            continue
        section = doc
        for key in keys[:-1]:
            section = section.setdefault(key, {})
        section[keys[-1]] = written
    if spec.out:
        doc.setdefault("environment_variables", {}).setdefault("AML_OUTPUT_DIR", OUT_FOLDER)
    if compute:
        doc["compute"] = prefixed(compute)
    if spec.tags:
        doc["tags"] = dict(spec.tags)
    return doc if spec.sweep is None else _sweep_doc(doc, spec.sweep)


def _sweep_doc(job: Mapping[str, Any], sweep: Sweep) -> dict[str, Any]:
    """Return the content of a file with ``type: sweep`` for the job of a trial."""
    trial = {key: job[key] for key in TRIAL_KEYS if key in job}
    outer = {key: value for key, value in job.items() if key not in (*TRIAL_KEYS, "limits", "$schema", "type")}
    if "resources" in job:  # the service takes those of the sweep
        outer["resources"] = job["resources"]
    doc = {"$schema": SWEEP_SCHEMA, "type": "sweep", **outer, "trial": trial, **sweep_to_yaml(sweep)}
    if timeout := (job.get("limits") or {}).get("timeout"):
        doc["limits"].setdefault("trial_timeout", timeout)
    return doc


def command_of(spec: JobSpec, argv: Sequence[str], script: str) -> str:
    """Return the command line (POSIX sh)."""
    lines = [
        f'export {variable}="${{{{{kind}.{name}}}}}"'
        for kind, names, variable_of in (
            ("inputs", spec.inputs, input_variable),
            ("outputs", spec.outputs, output_variable),
        )
        for name, variable in ((name, variable_of(name)) for name in names)
    ]
    if script:
        path = shlex.quote(spec.script_name)
        if "/" in spec.script_name:
            lines.append(f"mkdir -p {shlex.quote(spec.script_name.rpartition('/')[0])}")
        lines += _write_script_lines(path, script)
    lines += place_lines(spec)
    line = shlex.join(argv)
    searched = () if spec.sweep is None else spec.sweep.space
    switches = searched_values.switches(spec)
    for name in searched:
        variable, reference = searched_values.variable(name), searched_values.reference(name)
        lines.insert(0, f'export {variable}="{reference}"')
        word = searched_values.shell_word(name, switches.get(name))
        line = line.replace(shlex.quote(reference), word)  # it is not replaced in single quotes
    return "\n".join([*lines, line])


def place_lines(spec: JobSpec) -> list[str]:
    """Return lines that lead from the code folder to the job's working folder, and Python to its modules."""
    lines: list[str] = []
    if spec.search:
        folders = ":".join(f'"$PWD"/{shlex.quote(folder)}' for folder in spec.search)
        lines.append(f"export PYTHONPATH={folders}${{PYTHONPATH:+:$PYTHONPATH}}")
    if spec.working_place:
        place = shlex.quote(spec.working_place)
        lines.append(f"mkdir -p {place} && cd {place}")
    return lines


def _write_script_lines(path: str, script: str) -> list[str]:
    """Return lines that write the script atomically: other processes of the node write the same file."""
    new = f"{path}.$$"
    if _NOT_PLAIN.search(script) or f"\n{_END}" in f"\n{script}" or not script.endswith("\n"):
        return [f"echo {base64.b64encode(script.encode()).decode()} | base64 -d > {new} && mv {new} {path}"]
    return [f"cat > {new} <<'{_END}' && mv {new} {path}", script[:-1], _END]


def text_of(doc: dict[str, Any], remarks: Sequence[str] = ()) -> str:
    """Return the file's text, with remarks as comments before it."""
    return "".join(f"# {line}\n" for line in remarks) + to_yaml(doc)
