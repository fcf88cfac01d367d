"""Inputs and outputs of a job, and references to them in the job's arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.schema.asset_names import ASSET, STORE_ADDRESS

#: Types of data in the job schema of ``az ml``.
INPUT_TYPES = ("uri_folder", "uri_file", "mltable", "mlflow_model", "custom_model", "triton_model", "literal")

OUTPUT_TYPES = ("uri_folder", "uri_file", "mltable", "mlflow_model", "custom_model", "triton_model")

#: Access modes; empty leaves the choice to the service, which mounts inputs read-only and outputs read-write.
INPUT_MODES = ("ro_mount", "rw_mount", "download", "direct", "eval_mount", "eval_download")

OUTPUT_MODES = ("rw_mount", "upload", "direct")

#: Names of inputs and outputs are keys of the service's job and, in upper case, suffixes of environment variables.
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")

#: Variables of jupyter_amltrain that an output's name must not hide.
_TAKEN = {"output": ("AML_OUTPUT_DIR",), "input": ()}

#: A scheme has at least two letters: ``C:\data`` is a path.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")

_SIGNED = re.compile(
    r"[?&](?:sig|signature|x-amz-signature|x-amz-security-token|x-goog-signature|(?:access_|auth_|api_)?token"
    r"|api[_-]?key|password|secret)=[^&]|://[^/\s:@]*:[^/\s@]+@|https?://[^/\s:@?#]+@|AccountKey=|SharedAccessSignature=",
    re.I,
)
#: A reference to a secret in a web address: ``${NAME}`` of ``--secret NAME``.
_SECRET_REFERENCE = re.compile(r"\$\{\w+\}")


class JobInput(msgspec.Struct, frozen=True, kw_only=True):
    """Data that a job reads.

    Attributes
    ----------
    type
        One of :data:`INPUT_TYPES`.
    path
        A file or folder of this machine (absolute), a name of a workspace
        (:mod:`~jupyter_amltrain.schema.asset_names`), or an address: ``https://...``, ``wasbs://...``; empty for a
        literal.
    value
        Value of a ``literal``: a JSON number, string or boolean.
    mode
        One of :data:`INPUT_MODES`, or empty.
    upload
        Whether a target that does not see this machine's files gets a copy in its storage.
    """

    type: str = "uri_folder"
    path: str = ""
    value: Any = None
    mode: str = ""
    upload: bool = False

    @property
    def local(self) -> bool:
        """Whether the data is on the submitter's machine."""
        return self.type != "literal" and not is_address(self.path)


class JobOutput(msgspec.Struct, frozen=True, kw_only=True):
    """Location that a job writes to.

    Attributes
    ----------
    type
        One of :data:`OUTPUT_TYPES`.
    path
        An address of a datastore; empty for the run's own output folder.
    mode
        One of :data:`OUTPUT_MODES`, or empty.
    """

    type: str = "uri_folder"
    path: str = ""
    mode: str = ""


def uploads(inputs: Mapping[str, JobInput]) -> dict[str, str]:
    """Return the paths of this machine that are sent to a target that does not see them, by the name of the input."""
    return {name: data.path for name, data in inputs.items() if data.upload}


def is_address(text: str) -> bool:
    """Return whether `text` has a scheme, and so is not a path of this machine."""
    return _SCHEME.match(text) is not None


def input_variable(name: str) -> str:
    """Return the environment variable that holds the path of an input."""
    return f"AML_INPUT_{name.upper()}"


def output_variable(name: str) -> str:
    """Return the environment variable that holds the path of an output."""
    return f"AML_OUTPUT_{name.upper()}"


def literal_text(value: Any) -> str:
    """Return the environment variable's value for a literal: text unchanged, else JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _invalid(kind: str, name: str, text: str, hint: str = "") -> SpecError:
    """Return the error of an input or output; `name` is as its message shows it."""
    return SpecError(text, hint=hint, code="spec.value", field=f"{kind}s").about(f"--{kind} {name}")


def check_data(inputs: Mapping[str, JobInput], outputs: Mapping[str, JobOutput]) -> None:
    """Raise :class:`SpecError` for invalid inputs or outputs.

    The target checks whether they exist (:meth:`Backend.check_job`).
    """
    _check_names("input", inputs)
    _check_names("output", outputs)
    for name, data in inputs.items():
        _one_of("input", name, "type", data.type, INPUT_TYPES)
        _one_of("input", name, "mode", data.mode, ("", *INPUT_MODES))
        _check_source(name, data)
        _no_signature("input", name, data.path)
        if data.upload and not data.local:
            text = "only a file or folder of this machine can be uploaded."
            raise _invalid("input", name, text, "Leave ',upload' out.")
        if data.local and data.mode and data.mode not in ("ro_mount", "download"):
            text = f"mode {data.mode} does not support files or folders of this machine."
            raise _invalid("input", name, text, "Leave the mode out, or try: download")
    for name, output in outputs.items():
        _one_of("output", name, "type", output.type, OUTPUT_TYPES)
        _one_of("output", name, "mode", output.mode, ("", *OUTPUT_MODES))
        _no_signature("output", name, output.path)
        if output.path and not is_address(output.path):
            text = "an output must be on a datastore or in the run's own folder."
            hint = f"Try: --output {name} or --output {name}={STORE_ADDRESS}"
            raise _invalid("output", f"{name}={output.path}", text, hint)


def _check_source(name: str, data: JobInput) -> None:
    if data.type == "literal":
        if data.path or data.mode:
            raise _invalid("input", name, "a literal is a value and has no path or mode.")
        if not isinstance(data.value, str | int | float | bool):
            hint = f"Give lists and mappings as a parameter: --param {name}=..."
            raise _invalid("input", name, "a literal must be a number, a string or true/false.", hint)
    elif not data.path:
        raise _invalid("input", name, "the path is missing.", f"Try: --input {name}=data/ or {name}={ASSET}NAME:1")
    elif data.value is not None:
        raise _invalid("input", name, "has both a path and a value.", "Give one of them.")


def _check_names(kind: str, names: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if not NAME.fullmatch(name):
            text = "a name starts with a letter and has letters, digits and _ (at most 63)."
            raise _invalid(kind, repr(name[:80]), text, f"Try: --{kind} data=...")
        variable = input_variable(name) if kind == "input" else output_variable(name)
        if variable in _TAKEN[kind]:
            text = f"${variable} is reserved for the folder of the run's own outputs."
            raise _invalid(kind, name, text, f"Try: --{kind} {name}_files")
        if variable in seen:
            text = f"{seen[variable]!r} and {name!r} would both be ${variable}."
            raise _invalid(kind, name, text, "Use names that differ by more than upper and lower case.")
        seen[variable] = name


def _one_of(kind: str, name: str, what: str, value: str, words: tuple[str, ...]) -> None:
    if value not in words:
        supported = ", ".join(word for word in words if word)
        raise _invalid(kind, name, f"unknown {what} {value[:80]!r}. Supported: {supported}.")


def _no_signature(kind: str, name: str, path: str) -> None:
    # The message does not repeat the address, because it holds a secret.
    if _SIGNED.search(_SECRET_REFERENCE.sub("", path)):
        hint = f"Reach it through a datastore: {STORE_ADDRESS}"
        if path.lower().startswith("http"):
            hint += "; or keep the secret out of the address: ${NAME} with --secret NAME, or ~/.netrc"
        text = "the address contains a key or signature, which would be stored with the run."
        raise _invalid(kind, name, text, hint)


#: The agent has the same pattern.
_REFERENCE = re.compile(r"\$\{\{\s*(inputs|outputs)\.([\w.-]+)\s*\}\}")

#: A reference in a magic's line after IPython's expansion, in which ``{{`` becomes ``{``.
_EXPANDED = re.compile(r"\$\{\s*(inputs|outputs)\.([\w.-]+)\s*\}(?!\})")


def restore_references(value: Any) -> Any:
    """Return `value` of a magic's line with references as typed, at any depth."""
    return _mapped(value, lambda text: _EXPANDED.sub(r"${{\1.\2}}", text))


def references(value: Any) -> Iterator[tuple[str, str]]:
    """Yield kind (``inputs``, ``outputs``) and name of every reference in a JSON value."""
    if isinstance(value, str):
        for match in _REFERENCE.finditer(value):
            yield match[1], match[2]
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from references(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from references(part)


def with_literals(value: Any, inputs: Mapping[str, JobInput]) -> Any:
    """Return `value` with references to literal inputs replaced by their values.

    Text that consists of one reference becomes the literal itself, a number for example.
    """

    def replaced(text: str) -> Any:
        whole = _REFERENCE.fullmatch(text)
        if whole is not None and (literal := _literal(whole[1], whole[2], inputs)) is not None:
            return literal.value
        return _REFERENCE.sub(_text_of, text)

    def _text_of(match: re.Match[str]) -> str:
        literal = _literal(match[1], match[2], inputs)
        return match[0] if literal is None else literal_text(literal.value)

    return _mapped(value, replaced)


def with_paths(value: Any, env: Mapping[str, str]) -> Any:
    """Return `value` with references replaced by the paths of data, which the variables `env` hold."""

    def path_of(match: re.Match[str]) -> str:
        return env.get(variable_of(match[1], match[2]), match[0])

    return _mapped(value, lambda text: _REFERENCE.sub(path_of, text))


def expression_of(text: str) -> str:
    """Return text with references as a one-line Python expression that reads the variables of the run."""
    parts: list[str] = []
    end = 0
    for match in _REFERENCE.finditer(text):
        if match.start() > end:
            parts.append(repr(text[end : match.start()]))
        parts.append(f'__import__("os").environ[{variable_of(match[1], match[2])!r}]')
        end = match.end()
    if end < len(text) or not parts:
        parts.append(repr(text[end:]))
    return parts[0] if len(parts) == 1 else f"({' + '.join(parts)})"


def variable_of(kind: str, name: str) -> str:
    """Return the environment variable with the path of an input or output."""
    return input_variable(name) if kind == "inputs" else output_variable(name)


def check_references(
    params: Mapping[str, Any], args: Iterable[str], inputs: Mapping[str, Any], outputs: Mapping[str, Any]
) -> None:
    """Raise :class:`SpecError` for a reference to an input or output that the job does not have."""
    named_params = [("params", f"--param {name}", value) for name, value in params.items()]
    words = [("args", "The arguments after --", word) for word in args]
    for field, source, checked in [*named_params, *words]:
        for kind, name in references(checked):
            existing = inputs if kind == "inputs" else outputs
            if name not in existing:
                noun = kind.removesuffix("s")
                known = f"The job has: {', '.join(existing)}." if existing else f"The job has no {kind}."
                value = "=PATH" if kind == "inputs" else ""
                raise SpecError(
                    f"${{{{{kind}.{name}}}}} refers to an unknown {noun}. {known}",
                    hint=f"Add it: --{noun} {name}{value}",
                    code="spec.reference",
                    field=field,
                ).about(source)


def _literal(kind: str, name: str, inputs: Mapping[str, JobInput]) -> JobInput | None:
    data = inputs.get(name) if kind == "inputs" else None
    return data if data is not None and data.type == "literal" else None


def _mapped(value: Any, change: Callable[[str], Any]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(part, change) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(part, change) for part in value]
    return value
