"""A job's ``az ml`` file as a :class:`JobSpec`, and the reverse. No I/O but of the files that it names.

Of ``type: command`` the fields that both have (:data:`FIELDS`), of other types name, experiment, tags and the text. A
file that we write is the plain job: the script, its environment, data and machines; what our agent adds (telemetry,
the watch over GPUs, ``--out``) is not in it. Names of the schema: ``commandJob.schema.json`` of the ``az ml``
extension, and the SDK's ``CommandJobSchema``.
"""

from __future__ import annotations

import base64
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.schema import az_yaml, azure_terms
from jupyter_amltrain.schema.az_yaml import JobFile, Keys, dumped
from jupyter_amltrain.schema.environment import Environment
from jupyter_amltrain.schema.inputs import INPUT_TYPES, JobInput, JobOutput, input_variable, is_address, output_variable
from jupyter_amltrain.schema.job import DISTRIBUTIONS, Distribution, JobSpec, Resources, validated
from jupyter_amltrain.state_dir import working_folder

Read = Callable[[Any, str], Any]
Write = Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


def _text(value: Any, folder: str) -> str:
    del folder
    return str(value)


def _number(value: Any, folder: str) -> int:
    del folder
    if isinstance(value, bool) or not re.fullmatch(r"\d+", str(value)):
        raise SpecError(f"{str(value)[:80]!r} is no number.")
    return int(value)


def _seconds(value: Any, folder: str) -> float:
    return float(_number(value, folder))


def _docker(value: Any, folder: str) -> str:
    del folder
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _folder(value: Any, folder: str) -> str | None:
    """The code folder; an address or a git reference is the service's alone."""
    text = str(value)
    if is_address(text) or text.startswith("git+"):
        return None
    path = absolute(text, folder)
    if not os.path.exists(path):
        raise SpecError(f"there is no folder {path}.")
    return path if os.path.isdir(path) else None


def absolute(text: str, folder: str) -> str:
    """A path of the file, from the file's folder."""
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
    return Environment(image=str(value["image"])) if value.get("image") and conda is None else None


def _environment_out(value: Environment) -> Any:
    if value.name:
        plain = value.name.startswith(("azureml:", "azureml://"))
        return value.name if plain else f"azureml:{value.name}"
    if value.build:
        return {"build": {"path": value.build}}
    found = {"image": value.image, "conda_file": value.conda_file if value.kernel else value.conda}
    return {key: part for key, part in found.items() if part}


def _inputs(value: Mapping[str, Any], folder: str) -> dict[str, JobInput]:
    return {str(name): _input(given, folder) for name, given in value.items()}


def _input(given: Any, folder: str) -> JobInput:
    if not isinstance(given, Mapping):
        return JobInput(type="literal", value=given)
    path, kind = given.get("path"), str(given.get("type") or "uri_folder")
    if path is None:
        return JobInput(type="literal", value=given.get("value", given.get("default")))
    if kind not in INPUT_TYPES:
        raise SpecError(f"{kind[:80]!r} is no type of an input.")
    text = str(path)
    # A place that binds to something else is known to the service only.
    there = text if is_address(text) or "${{" in text else absolute(text, folder)
    return JobInput(type=kind, path=there, mode=str(given.get("mode") or ""))


def _input_out(given: JobInput) -> Any:
    if given.type == "literal":
        return given.value
    return {"type": given.type, "path": given.path} | ({"mode": given.mode} if given.mode else {})


def _outputs(value: Mapping[str, Any], folder: str) -> dict[str, JobOutput]:
    del folder
    return {
        str(name): JobOutput(
            type=str((given or {}).get("type") or "uri_folder"),
            path=str((given or {}).get("path") or ""),
            mode=str((given or {}).get("mode") or ""),
        )
        for name, given in value.items()
    }


def _output_out(wanted: JobOutput) -> Any:
    found = {"type": wanted.type, "path": wanted.path, "mode": wanted.mode}
    return {key: part for key, part in found.items() if part}


def _distribution(value: Mapping[str, Any], folder: str) -> Distribution | None:
    row = azure_terms.DISTRIBUTIONS.of_yaml(str(value.get("type") or "").lower())
    if row is None:
        return None
    kind = row.ours
    if kind == "tensorflow":
        workers = value.get("worker_count")
        return Distribution(
            kind=kind,
            processes=None if workers is None else _number(workers, folder),
            parameter_servers=_number(value.get("parameter_server_count") or 0, folder),
        )
    each = value.get("process_count_per_instance")
    return Distribution(kind=kind, processes=None if each is None else _number(each, folder))


def _distribution_out(value: Distribution) -> Any:
    if value.kind not in DISTRIBUTIONS:
        return None
    if value.kind == "tensorflow":
        found: dict[str, Any] = {"type": azure_terms.DISTRIBUTIONS.yaml(value.kind), "worker_count": value.processes}
        found |= {"parameter_server_count": value.parameter_servers} if value.parameter_servers else {}
    else:
        found = {"type": azure_terms.DISTRIBUTIONS.yaml(value.kind), "process_count_per_instance": value.processes}
    return {key: part for key, part in found.items() if part is not None}


def _identity(value: Mapping[str, Any], folder: str) -> str | None:
    del folder
    row = azure_terms.IDENTITIES.of_yaml(str(value.get("type") or "").lower())
    word = row.ours if row else None
    client = value.get("client_id")
    return f"{word}:{client}" if word == "managed" and client else word


def _identity_out(word: str) -> Any:
    kind, _, client = word.partition(":")
    found = {"type": azure_terms.IDENTITIES.yaml(kind)}
    return found | ({"client_id": client} if client else {})


def _services(value: Mapping[str, Any], folder: str) -> tuple[str, ...] | None:
    del folder
    found = []
    for given in value.values():
        row = azure_terms.SERVICES.of_yaml(str((given or {}).get("type") or ""))
        if row is None:
            return None
        kind = row.ours
        rest = {"tensorboard": given.get("log_dir"), "ssh": given.get("ssh_public_keys")}.get(kind)
        found.append(f"{kind}:{rest}" if rest else kind)
    return tuple(found) if len({one.partition(":")[0] for one in found}) == len(found) else None


def _services_out(value: tuple[str, ...]) -> Any:
    found = {}
    for one in value:
        kind, _, rest = one.partition(":")
        said = {"type": azure_terms.SERVICES.yaml(kind)}
        if rest:
            said["log_dir" if kind == "tensorboard" else "ssh_public_keys"] = rest
        found[kind] = said
    return found


def _lower(value: Any, folder: str) -> str:
    del folder
    return str(value).lower()


def _each(write: Write) -> Write:
    return lambda value: {name: write(part) for name, part in value.items()}


#: Keys of a file -> field of a job, how it is read (value, folder of the file; ``None``: only the service knows it),
#: how it is written.
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


_BINDING = re.compile(r"\$\{\{\s*(inputs|outputs)\.([\w.-]+)\s*\}\}")


def spec_of(job: JobFile) -> JobSpec:
    """The job as one of ours.

    Of ``type: command`` it has the fields that both have; a field that only the service knows (``type: ray`` of a
    distribution, say) is left to it. Of other types it has name, experiment, tags and the text.

    Raises
    ------
    SpecError
        A value cannot be what it says; names line and key.
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
    _check_codes(job)
    az_yaml.check_files(job)
    if job.type == "command":
        if not isinstance(doc.get("command"), str) or not doc["command"].strip():
            raise job.fault(("command",), "what is to run?", "Write, say: command: python train.py")
        fields["command"] = doc["command"]
        _check_bindings(job)
        for key, (field, read, _) in FIELDS.items():
            given = _at(doc, key)
            if given is None:
                continue
            each = field in ("inputs", "outputs") and isinstance(given, dict)
            for part, value in {name: {name: one} for name, one in given.items()}.items() if each else [("", given)]:
                _take(job, fields, (*key, str(part)) if each else key, field, read, value)
    return _make_spec(fields)


def _check_codes(job: JobFile) -> None:
    """The code folders of steps and trials are there; the SDK would say that a step has no component."""
    steps = job.doc.get("jobs")
    places: list[Keys] = [("trial",), *((("jobs", name)) for name in steps or () if isinstance(steps, dict))]
    for place in places:
        _, read, _ = FIELDS[("code",)]
        code = _at(job.doc, [*map(str, place), "code"])
        if isinstance(code, str):
            try:
                read(code, job.folder)
            except SpecError as error:
                raise job.fault((*place, "code"), error.message) from None


def _take(job: JobFile, fields: dict[str, Any], key: Keys, field: str, read: Any, value: Any) -> None:
    """Read one key; what only the service knows is left to it."""
    try:
        understood = read(value, job.folder)
        if understood is not None:
            before = fields.get(field)
            _put(fields, field, {**before, **understood} if isinstance(before, dict) else understood)
            validated(_make_spec({**_PLAIN, **_only(fields, field)}))
    except SpecError as error:
        raise job.fault(key, _without_flag(error.message)) from None
    except (TypeError, ValueError, AttributeError):
        raise job.fault(key, "not what can stand here.", "See the schema: aka.ms/ml-cli-v2") from None


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
    for found in _BINDING.finditer(job.doc["command"]):
        kind, name = found[1], found[2].partition(".")[0]
        there = job.doc.get(kind)
        if not (isinstance(there, dict) and name in there) and not (kind == "outputs" and name == "default"):
            known = ", ".join(map(str, there)) if isinstance(there, dict) and there else "none"
            raise job.fault(("command",), f"it names {kind}.{name}, which is not there.", f"{kind} are: {known}.")


def fill_bindings(command: str, places: Mapping[str, str]) -> str:
    """A command line with its bindings put in, as the service does it: as text.

    Parameters
    ----------
    places
        By ``inputs.NAME`` and ``outputs.NAME``.
    """
    return _BINDING.sub(lambda found: places.get(f"{found[1]}.{found[2]}", found[0]), command)


def _name(text: str) -> str:
    shown = "".join(c for c in text if c.isprintable()).replace("/", "-").strip()
    return shown[:64] or "job"


def _without_flag(text: str) -> str:
    """An error about a flag, said of a key."""
    return re.sub(r"^--[\w-]+ ?(?:'[^']*'|[^:\s]*)?: ", "", text, count=1)


SCHEMA = "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json"
#: Where values of ``--out`` are written: below it the service keeps what a job leaves.
OUT_FOLDER = "outputs/amltrain"
_END = "AMLTRAIN_SCRIPT"
#: What the service would take for a binding, or a YAML block cannot hold.
_NOT_PLAIN = re.compile(r"\$\{\{|[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd]")


def doc_of(
    spec: JobSpec, *, argv: Sequence[str], script: str = "", code: str = "", compute: str = ""
) -> dict[str, Any]:
    """What the file says.

    Parameters
    ----------
    spec
        The job; its environment, distribution and size of machine are those that its target gives it.
    argv
        Program and arguments, in the code folder.
    script
        Text that the command writes to the script's place first; empty where the code folder has it.
    code
        The folder.
    compute
        Name at the service; empty for its own machines (serverless).
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
        said = write(value)
        if said is None:
            continue
        here = doc
        for key in keys[:-1]:
            here = here.setdefault(key, {})
        here[keys[-1]] = said
    if spec.out:
        doc.setdefault("environment_variables", {}).setdefault("AML_OUTPUT_DIR", OUT_FOLDER)
    if compute:
        doc["compute"] = f"azureml:{compute}"
    if spec.tags:
        doc["tags"] = dict(spec.tags)
    return doc


def command_of(spec: JobSpec, argv: Sequence[str], script: str) -> str:
    """The command line (POSIX sh)."""
    lines = [
        f'export {variable}="${{{{{kind}.{name}}}}}"'
        for kind, names, variable_of in (
            ("inputs", spec.inputs, input_variable),
            ("outputs", spec.outputs, output_variable),
        )
        for name, variable in ((name, variable_of(name)) for name in names)
    ]
    if script:
        place = shlex.quote(spec.script_name)
        if "/" in spec.script_name:
            lines.append(f"mkdir -p {shlex.quote(spec.script_name.rpartition('/')[0])}")
        lines += _written(place, script)
    return "\n".join([*lines, shlex.join(argv)])


def _written(place: str, script: str) -> list[str]:
    """Lines that write it at once: the other processes of the node do the same."""
    new = f"{place}.$$"
    if _NOT_PLAIN.search(script) or f"\n{_END}" in f"\n{script}" or not script.endswith("\n"):
        return [f"echo {base64.b64encode(script.encode()).decode()} | base64 -d > {new} && mv {new} {place}"]
    return [f"cat > {new} <<'{_END}' && mv {new} {place}", script[:-1], _END]


def text_of(doc: dict[str, Any], remarks: Sequence[str] = ()) -> str:
    """The file's text, remarks before it."""
    return "".join(f"# {line}\n" for line in remarks) + dumped(doc)
