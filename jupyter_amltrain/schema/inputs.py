"""Data that goes into a job and comes out of it, and how the job's arguments refer to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from jupyter_amltrain.errors import SpecError

#: What data can be; words of Azure ML's job schema.
INPUT_TYPES = ("uri_folder", "uri_file", "mltable", "mlflow_model", "custom_model", "triton_model", "literal")

OUTPUT_TYPES = ("uri_folder", "uri_file", "mltable", "mlflow_model", "custom_model", "triton_model")

#: How it is reached; empty leaves it to the service, which mounts inputs read-only and outputs read-write.
INPUT_MODES = ("ro_mount", "rw_mount", "download", "direct", "eval_mount", "eval_download")

OUTPUT_MODES = ("rw_mount", "upload", "direct")

#: Names of inputs and outputs are keys of the service's job and, in upper case, ends of environment variables.
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")

#: Variables of ours that an output's name must not hide.
_TAKEN = {"output": ("AML_OUTPUT_DIR",), "input": ()}

#: A scheme has two letters at least: ``C:\data`` is a path.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")

_SIGNED = re.compile(r"[?&]sig=|://[^/\s:@]+:[^/\s@]+@|AccountKey=|SharedAccessSignature=", re.I)


class JobInput(msgspec.Struct, frozen=True, kw_only=True):
    """Data that a job reads.

    Attributes
    ----------
    type
        One of :data:`INPUT_TYPES`.
    path
        A file or folder of this machine (absolute), or an address: ``azureml:NAME:VERSION``,
        ``azureml://datastores/...``, ``https://...``, ``wasbs://...``; empty for a literal.
    value
        Of a ``literal``: a JSON number, text or truth value.
    mode
        One of :data:`INPUT_MODES`, or empty.
    """

    type: str = "uri_folder"
    path: str = ""
    value: Any = None
    mode: str = ""

    @property
    def local(self) -> bool:
        """Whether it lies on the submitter's machine."""
        return self.type != "literal" and not is_address(self.path)


class JobOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A place that a job writes to.

    Attributes
    ----------
    type
        One of :data:`OUTPUT_TYPES`.
    path
        An address of a datastore; empty for a place of the run's own.
    mode
        One of :data:`OUTPUT_MODES`, or empty.
    """

    type: str = "uri_folder"
    path: str = ""
    mode: str = ""


def is_address(text: str) -> bool:
    """Whether `text` has a scheme, so that it is no path of this machine."""
    return _SCHEME.match(text) is not None


def input_variable(name: str) -> str:
    """Environment variable that tells the script where an input is."""
    return f"AML_INPUT_{name.upper()}"


def output_variable(name: str) -> str:
    """Environment variable that tells the script where an output goes."""
    return f"AML_OUTPUT_{name.upper()}"


def literal_text(value: Any) -> str:
    """What a script finds in the variable of a literal: text as it is, else JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


#: Fields of a job by the flags of its data.
_FIELDS = {"--input": "inputs", "--output": "outputs"}


def check_data(inputs: Mapping[str, JobInput], outputs: Mapping[str, JobOutput]) -> None:
    """Raise :class:`SpecError` where a job's inputs or outputs cannot be what they say.

    Whether they are there is asked of the target (:meth:`Backend.refuses`), not here.
    """
    _check_names("input", inputs)
    _check_names("output", outputs)
    for name, given in inputs.items():
        _one_of(f"--input {name}", "type", given.type, INPUT_TYPES)
        _one_of(f"--input {name}", "mode", given.mode, ("", *INPUT_MODES))
        if given.type == "literal":
            if given.path or given.mode:
                raise SpecError(
                    f"--input {name}: a literal is a value and has no place or mode.", code="spec.value", field="inputs"
                )
            if not isinstance(given.value, str | int | float | bool):
                raise SpecError(
                    f"--input {name}: a literal is a number, a text or true/false.",
                    hint=f"Give lists and mappings as a parameter: --param {name}=...",
                    code="spec.value",
                    field="inputs",
                )
        elif not given.path:
            raise SpecError(
                f"--input {name}: where is it?",
                hint=f"Try: --input {name}=data/ or {name}=azureml:NAME:1",
                code="spec.value",
                field="inputs",
            )
        elif given.value is not None:
            raise SpecError(
                f"--input {name}: it has a path and a value.",
                hint="Give one of them.",
                code="spec.value",
                field="inputs",
            )
        _no_signature(f"--input {name}", given.path)
        if given.local and given.mode and given.mode not in ("ro_mount", "download"):
            raise SpecError(
                f"--input {name}: a file or folder of this machine cannot be reached by {given.mode}.",
                hint="Leave the mode out, or try: download",
                code="spec.value",
                field="inputs",
            )
    for name, wanted in outputs.items():
        _one_of(f"--output {name}", "type", wanted.type, OUTPUT_TYPES)
        _one_of(f"--output {name}", "mode", wanted.mode, ("", *OUTPUT_MODES))
        _no_signature(f"--output {name}", wanted.path)
        if wanted.path and not is_address(wanted.path):
            raise SpecError(
                f"--output {name}={wanted.path}: an output goes to a datastore, or to a place of the run's own.",
                hint=f"Try: --output {name} or --output {name}=azureml://datastores/workspaceblobstore/paths/...",
                code="spec.value",
                field="outputs",
            )


def _check_names(kind: str, names: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if not NAME.fullmatch(name):
            raise SpecError(
                f"--{kind} {name[:80]!r}: a name begins with a letter and has letters, digits and _ (at most 63).",
                hint=f"Try: --{kind} data=...",
                code="spec.value",
                field=f"{kind}s",
            )
        variable = input_variable(name) if kind == "input" else output_variable(name)
        if variable in _TAKEN[kind]:
            raise SpecError(
                f"--{kind} {name}: ${variable} is the folder of the run's own outputs.",
                hint=f"Try: --{kind} {name}_files",
                code="spec.value",
                field=f"{kind}s",
            )
        if variable in seen:
            raise SpecError(
                f"--{kind} {name}: {seen[variable]!r} and {name!r} would both be ${variable}.",
                hint="Names differ by more than upper and lower case.",
                code="spec.value",
                field=f"{kind}s",
            )
        seen[variable] = name


def _one_of(flag: str, what: str, value: str, words: tuple[str, ...]) -> None:
    if value not in words:
        raise SpecError(
            f"{flag}: {what} {value[:80]!r} is none of {', '.join(word for word in words if word)}.",
            code="spec.value",
            field=_FIELDS[flag.partition(" ")[0]],
        )


def _no_signature(flag: str, path: str) -> None:
    # The address would be stored with the run: it is not repeated here either.
    if _SIGNED.search(path):
        raise SpecError(
            f"{flag}: its address holds a key or signature, which would be stored with the run.",
            hint="Reach it through a datastore: azureml://datastores/NAME/paths/...",
            code="spec.value",
            field=_FIELDS[flag.partition(" ")[0]],
        )


#: The agent has the same pattern (``agent/azure/job.py``).
_REFERENCE = re.compile(r"\$\{\{\s*(inputs|outputs)\.([\w.-]+)\s*\}\}")

#: What IPython makes of a reference in a magic's line: ``{{`` is its way to write ``{``.
_EXPANDED = re.compile(r"\$\{\s*(inputs|outputs)\.([\w.-]+)\s*\}(?!\})")


def restored(value: Any) -> Any:
    """`value` of a magic's line with references as they were typed, at any depth."""
    return _mapped(value, lambda text: _EXPANDED.sub(r"${{\1.\2}}", text))


def references(value: Any) -> Iterator[tuple[str, str]]:
    """Kind (``inputs``, ``outputs``) and name of every reference in a JSON value."""
    if isinstance(value, str):
        for found in _REFERENCE.finditer(value):
            yield found[1], found[2]
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from references(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from references(part)


def with_literals(value: Any, inputs: Mapping[str, JobInput]) -> Any:
    """`value` with references to literal inputs replaced by what those are.

    A text that is one reference and nothing else becomes the literal itself, a number for example.
    """

    def replaced(text: str) -> Any:
        whole = _REFERENCE.fullmatch(text)
        if whole is not None and (given := _literal(whole[1], whole[2], inputs)) is not None:
            return given.value
        return _REFERENCE.sub(_text_of, text)

    def _text_of(found: re.Match[str]) -> str:
        given = _literal(found[1], found[2], inputs)
        return found[0] if given is None else literal_text(given.value)

    return _mapped(value, replaced)


def with_places(value: Any, env: Mapping[str, str]) -> Any:
    """`value` with references replaced by the paths of data, which stand in the variables `env`."""

    def place(found: re.Match[str]) -> str:
        return env.get(variable_of(found[1], found[2]), found[0])

    return _mapped(value, lambda text: _REFERENCE.sub(place, text))


def expression_of(text: str) -> str:
    """A text with references as a Python expression on one line, which reads the variables of the run."""
    parts: list[str] = []
    end = 0
    for found in _REFERENCE.finditer(text):
        if found.start() > end:
            parts.append(repr(text[end : found.start()]))
        parts.append(f'__import__("os").environ[{variable_of(found[1], found[2])!r}]')
        end = found.end()
    if end < len(text) or not parts:
        parts.append(repr(text[end:]))
    return parts[0] if len(parts) == 1 else f"({' + '.join(parts)})"


def variable_of(kind: str, name: str) -> str:
    """Environment variable with the path of an input or output."""
    return input_variable(name) if kind == "inputs" else output_variable(name)


def check_references(
    params: Mapping[str, Any], args: Iterable[str], inputs: Mapping[str, Any], outputs: Mapping[str, Any]
) -> None:
    """Raise :class:`SpecError` for a reference to an input or output that the job does not have."""
    given = [(f"--param {name}", value) for name, value in params.items()]
    for where, words in [*given, *(("The arguments after --", word) for word in args)]:
        for kind, name in references(words):
            existing = inputs if kind == "inputs" else outputs
            if name not in existing:
                one = kind.removesuffix("s")
                known = f"The job has: {', '.join(existing)}." if existing else f"The job has no {kind}."
                value = "=PATH" if kind == "inputs" else ""
                raise SpecError(
                    f"{where}: ${{{{{kind}.{name}}}}} refers to an unknown {one}. {known}",
                    hint=f"Add it: --{one} {name}{value}",
                    code="spec.reference",
                    field="params" if where.startswith("--param") else "args",
                )


def _literal(kind: str, name: str, inputs: Mapping[str, JobInput]) -> JobInput | None:
    given = inputs.get(name) if kind == "inputs" else None
    return given if given is not None and given.type == "literal" else None


def _mapped(value: Any, change: Callable[[str], Any]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(part, change) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(part, change) for part in value]
    return value
