"""Fields that a ``type: command`` file of ``az ml`` and a job of ours both have: how each is read and written.

Words of the schema: ``commandJob.schema.json`` of the ``az ml`` extension, and the SDK's ``CommandJobSchema``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.spec.environment import Environment
from jupyter_amltrain.spec.inputs import INPUT_TYPES, JobInput, JobOutput, is_address
from jupyter_amltrain.spec.resources import DISTRIBUTIONS, Distribution
from jupyter_amltrain.state import working_folder

Read = Callable[[Any, str], Any]
Write = Callable[[Any], Any]

_DISTRIBUTIONS = {"pytorch": "pytorch", "mpi": "mpi", "tensorflow": "tensorflow"}
_IDENTITIES = {"user_identity": "user", "user": "user", "managed_identity": "managed", "managed": "managed",
               "aml_token": "aml", "amltoken": "aml"}  # fmt: skip
_DOORS = {"jupyter_lab": "jupyterlab", "vs_code": "vscode", "tensor_board": "tensorboard", "ssh": "ssh"}


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
    kind = _DISTRIBUTIONS.get(str(value.get("type") or "").lower())
    if kind is None:
        return None
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
        found: dict[str, Any] = {"type": "tensorflow", "worker_count": value.processes}
        found |= {"parameter_server_count": value.parameter_servers} if value.parameter_servers else {}
    else:
        found = {"type": value.kind, "process_count_per_instance": value.processes}
    return {key: part for key, part in found.items() if part is not None}


def _identity(value: Mapping[str, Any], folder: str) -> str | None:
    del folder
    word = _IDENTITIES.get(str(value.get("type") or "").lower())
    client = value.get("client_id")
    return f"{word}:{client}" if word == "managed" and client else word


def _identity_out(word: str) -> Any:
    kind, _, client = word.partition(":")
    found = {"type": {"user": "user_identity", "managed": "managed", "aml": "aml_token"}[kind]}
    return found | ({"client_id": client} if client else {})


def _services(value: Mapping[str, Any], folder: str) -> tuple[str, ...] | None:
    del folder
    found = []
    for given in value.values():
        kind = _DOORS.get(str((given or {}).get("type") or ""))
        if kind is None:
            return None
        rest = {"tensorboard": given.get("log_dir"), "ssh": given.get("ssh_public_keys")}.get(kind)
        found.append(f"{kind}:{rest}" if rest else kind)
    return tuple(found) if len({one.partition(":")[0] for one in found}) == len(found) else None


def _services_out(value: tuple[str, ...]) -> Any:
    found = {}
    words = {ours: theirs for theirs, ours in _DOORS.items()}
    for one in value:
        kind, _, rest = one.partition(":")
        said = {"type": words[kind]}
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
