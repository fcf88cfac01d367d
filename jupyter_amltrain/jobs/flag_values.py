"""Values of flags about data, environments and services, as text or as Python values, and their parsers."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.schema.asset_names import ASSET, is_versioned
from jupyter_amltrain.schema.environment import KERNEL, Environment
from jupyter_amltrain.schema.inputs import (
    INPUT_MODES,
    INPUT_TYPES,
    OUTPUT_MODES,
    OUTPUT_TYPES,
    JobInput,
    JobOutput,
    is_address,
)
from jupyter_amltrain.schema.job import Distribution
from jupyter_amltrain.text import close_matches, did_you_mean

#: Word after a comma of an input that is to be uploaded.
UPLOAD = "upload"
#: Accounts of a cloud's storage, whose addresses may be folders.
_STORAGE = re.compile(r"https?://[^/]+\.(?:blob|dfs)\.[^/]+/")
_DOUBLE_BRACES = re.compile(r"\$\{\{(\w+)\}\}")
_WORD = re.compile(r"[a-z]+_?[a-z]+")
#: Prefixes of a reference to an environment; everything else with a slash is an image or a folder.
_NAMED = (ASSET, "/subscriptions/")
_REFERENCE = re.compile(r"[A-Za-z0-9_.-]+(?:[:@][A-Za-z0-9_.-]+)?")


def input_pair(text: str) -> tuple[str, JobInput]:
    """``NAME=URI[,mode][,type][,upload]``, or ``NAME=VALUE,literal``.

    A path of this machine becomes absolute; without a type the type is detected from the path; an
    address is a file if its last part has an extension, or it is a web page's, else a folder.

    Raises
    ------
    SpecError
        There is no ``=``, or a word after a comma is misspelled.
    """
    name, equals, rest = text.partition("=")
    if not equals or not name.strip():
        raise SpecError(
            f"--input {text[:80]!r} has no '='.",
            hint="Example: --input data=data/train.csv",
            code="flag.value",
            field="inputs",
        )
    return name.strip(), input_of(rest, name.strip())


def input_of(text: str, name: str = "NAME") -> JobInput:
    """``URI[,mode][,type][,upload]`` of an input; see :func:`input_pair`."""
    location, words = _split(text, INPUT_TYPES, INPUT_MODES, "input", name, (UPLOAD,))
    if words.get("type") == "literal":
        return JobInput(type="literal", value=_literal(location), mode=words.get("mode", ""))
    if not location:
        raise SpecError(
            f"--input {name}: the path is missing.",
            hint=f"Example: --input {name}=data/ or {name}={ASSET}NAME:1",
            code="flag.value",
            field="inputs",
        )
    # Two braces are one for IPython, unless it leaves the line as it is.
    path = _DOUBLE_BRACES.sub(r"${\1}", location) if is_address(location) else _absolute(location)
    return JobInput(
        type=words.get("type") or _type(path), path=path, mode=words.get("mode", ""), upload="option" in words
    )


def output_pair(text: str) -> tuple[str, JobOutput]:
    """``NAME``, ``NAME=URI``, each with ``,mode`` and ``,type`` optionally.

    Raises
    ------
    SpecError
        A word after a comma is misspelled.
    """
    name, equals, rest = text.partition("=")
    if not equals:
        name, comma, rest = text.partition(",")
        rest = f",{rest}" if comma else ""
    return name.strip(), output_of(rest, name.strip())


def output_of(text: str, name: str = "NAME") -> JobOutput:
    """``[URI][,mode][,type]`` of an output."""
    location, words = _split(text, OUTPUT_TYPES, OUTPUT_MODES, "output", name)
    return JobOutput(type=words.get("type", "uri_folder"), path=location, mode=words.get("mode", ""))


def inputs_of(values: Mapping[str, Any]) -> dict[str, JobInput]:
    """Convert inputs of the functions: an address or path, a number or truth value, or a :class:`JobInput`."""
    result: dict[str, JobInput] = {}
    for name, value in values.items():
        if isinstance(value, JobInput):
            result[name] = value
        elif isinstance(value, str | os.PathLike):
            result[name] = input_of(os.fspath(value), name)
        else:
            result[name] = JobInput(type="literal", value=value)
    return result


def inputs_of_file(inputs: Mapping[str, JobInput], declared: Any) -> dict[str, JobInput]:
    """Return inputs of a line that replace those of a job's file.

    An address has the type that the file declares, unless the line names another one than its address suggests.

    Parameters
    ----------
    declared
        ``inputs`` of the file.
    """
    types = declared if isinstance(declared, dict) else {}
    result = dict(inputs)
    for name, data in inputs.items():
        kind = types[name].get("type") if isinstance(types.get(name), dict) else None
        if kind in INPUT_TYPES and data.type != "literal" and is_address(data.path) and data.type == _type(data.path):
            result[name] = msgspec.structs.replace(data, type=kind)
    return result


def outputs_of(values: Mapping[str, Any] | Iterable[str]) -> dict[str, JobOutput]:
    """Convert outputs of the functions: names, or addresses or :class:`JobOutput` by name."""
    if isinstance(values, Mapping):
        return {name: of if isinstance(of, JobOutput) else output_of(of, name) for name, of in values.items()}
    return dict(output_pair(name) for name in values)


#: A project file or its lock, with extras.
_PROJECT = re.compile(r"(?P<path>[^,]*(?:\.toml|uv\.lock))(?:\[(?P<extras>[\w.,\s-]*)\])?")


def environment_of(text: str, derive: bool = False) -> Environment:
    """Parse ``--env``: ``kernel``, ``NAME:3``, an image, a file with packages, a folder.

    ``kernel`` and a conda file may have an image to build on after a comma.

    A bare name is its latest version. A name with a slash in it is an image unless a folder of
    that name exists or it begins with ``./``, ``../``, ``~`` or ``/``.
    """
    if not text:
        return Environment(derive=derive)
    if text == KERNEL:
        return Environment(kernel=True, derive=derive)
    if text.startswith(_NAMED):
        return Environment(name=text, derive=derive)
    if project := _PROJECT.fullmatch(text):
        path = re.sub(r"uv\.lock$", "pyproject.toml", project["path"])
        extras = tuple(extra for extra in re.split(r"[,\s]+", project["extras"] or "") if extra)
        return Environment(project=_absolute(path), extras=extras, derive=derive)
    first, comma, second = text.partition(",")
    if comma:
        parts = [environment_of(first), environment_of(second)]
        if sorted((bool(part.conda or part.kernel), bool(part.image)) for part in parts) != [
            (False, True),
            (True, False),
        ]:
            raise SpecError(
                f"--env {text[:200]}: expected {KERNEL} or a conda file, a comma, and the image to build on.",
                hint="Example: --env conda.yml,ubuntu:22.04",
                code="flag.value",
                field="environment",
            )
        return Environment(
            conda=parts[0].conda or parts[1].conda,
            image=parts[0].image or parts[1].image,
            kernel=parts[0].kernel or parts[1].kernel,
            derive=derive,
        )
    if text.endswith((".yml", ".yaml")):
        return Environment(conda=_absolute(text), derive=derive)
    if text.endswith((".txt", ".in")):
        return Environment(requirements=_absolute(text), derive=derive)
    path = os.path.expanduser(text)
    if text.startswith(("./", "../", "~", "/", ".\\", "..\\")) or text in (".", "..") or os.path.isdir(path):
        return Environment(build=_absolute(text), derive=derive)
    if "/" in text or not _REFERENCE.fullmatch(text):
        return Environment(image=text, derive=derive)
    return Environment(name=text if ":" in text or "@" in text else f"{text}@latest", derive=derive)


def parse_environment(text: str) -> str:
    """Return the text of ``--env``; raise an error if it is an environment variable."""
    if re.match(r"[A-Za-z_]\w*=", text):
        name = text.partition("=")[0]  # the value may be a secret
        raise SpecError(
            f"--env {name}=...: expected an environment, got an environment variable.",
            hint=f"Did you mean --env-var {name}=...?",
            code="flag.value",
            field="environment",
        )
    return text


def parse_distribution(text: str) -> Distribution:
    """One of the kinds of distributions, or ``tensorflow:2`` (with two parameter servers)."""
    kind, colon, servers = text.partition(":")
    if colon and not (kind == "tensorflow" and servers.isascii() and servers.isdigit()):
        raise SpecError(
            f"--distribution {text[:80]!r}: only 'tensorflow:' takes a number of parameter servers.",
            hint="Example: --distribution tensorflow:1",
            code="flag.value",
            field="distribution.kind",
        )
    return Distribution(kind=kind, parameter_servers=int(servers or 0))


def deepspeed_config(text: str) -> str | dict[str, Any]:
    """Return the configuration in a JSON file; the name of a variable, which the notebook resolves, stays as it is.

    Raises
    ------
    SpecError
        There is no such file, or it holds no JSON object.
    """
    path = Path(text).expanduser()
    if text.isidentifier() and not path.exists():
        return text
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason, hint = f"cannot be read: {error.strerror or error}.", "Give a JSON file, or a dict of the notebook."
    except ValueError as error:
        reason, hint = f"is not valid JSON: {error}.", "See: https://www.deepspeed.ai/docs/config-json"
    else:
        if isinstance(found, dict):
            return found
        reason, hint = "holds no JSON object.", 'Example: {"train_batch_size": 32, "zero_optimization": {"stage": 1}}'
    raise SpecError(reason, hint=hint, code="flag.value", field="distribution.config").about(f"--deepspeed {text}")


def deepspeed_dict(value: Any) -> dict[str, Any]:
    """Return a configuration as a dict of JSON values; a text is the path of its file.

    Raises
    ------
    SpecError
        It is no dict, or JSON cannot hold it.
    """
    found = deepspeed_config(value) if isinstance(value, str) else value
    if not isinstance(found, dict):
        raise SpecError(
            "there is no such file, and no such dict in a notebook.",
            hint="Give a JSON file, or run the cell that defines the dict first.",
            code="flag.value",
            field="distribution.config",
        ).about(f"--deepspeed {value!r}"[:200])
    try:
        return dict(json.loads(json.dumps(found)))
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"JSON cannot hold the configuration ({error}).",
            hint="Use numbers, texts, lists and dicts.",
            code="flag.value",
            field="distribution.config",
        ).about("--deepspeed") from None


def parse_service(text: str) -> str:
    """Return a service as the job stores it: ``ssh:FILE`` becomes the public key in the file."""
    kind, _, rest = text.partition(":")
    if kind != "ssh" or not rest or rest.startswith(("ssh-", "ecdsa-", "sk-")):
        return text
    path = Path(rest).expanduser()
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        raise SpecError(
            f"--service ssh:{rest}: the public key cannot be read.",
            hint="To create one: ssh-keygen -t ed25519",
            code="flag.value",
            field="services",
        ) from None
    return f"ssh:{key}"  # the spec rejects a private key without quoting it


def _split(
    text: str, types: tuple[str, ...], modes: tuple[str, ...], noun: str, name: str, options: tuple[str, ...] = ()
) -> tuple[str, dict[str, str]]:
    """Return the part of `text` before the words at its end, and those words as ``type``, ``mode``, ``option``."""
    words: dict[str, str] = {}
    while "," in text:
        rest, _, word = text.rpartition(",")
        word = word.strip()
        what = "type" if word in types else "mode" if word in modes else "option" if word in options else ""
        if not what:
            near = close_matches(word, (*types, *modes, *options), 1, 0.7) if _WORD.fullmatch(word) else []
            if near:
                raise SpecError(
                    f"--{noun} {name}: unknown type or mode {word!r}.",
                    hint=did_you_mean(near),
                    code="flag.value",
                    field=f"{noun}s",
                )
            break  # a comma of the path
        if what in words:
            raise SpecError(
                f"--{noun} {name}: two values for its {what}: {word} and {words[what]}.",
                hint="Keep one of them.",
                code="flag.twice",
                field=f"{noun}s",
            )
        words[what], text = word, rest
    return text.strip(), words


def _type(path: str) -> str:
    if not is_address(path):
        if os.path.isdir(path):
            return "mltable" if os.path.isfile(os.path.join(path, "MLTable")) else "uri_folder"
        return "uri_file"
    last = path.partition("?")[0].rpartition("/")[2]
    if path.startswith(("https://", "http://")) and last and not _STORAGE.match(path):
        return "uri_file"
    return "uri_file" if not is_versioned(path) and "." in last.lstrip(".") else "uri_folder"


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().resolve())


def _literal(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text
