"""References of a job's arguments to its data: ``${{inputs.data}}`` is the path of the input ``data``.

The syntax is that of Azure ML's job command. A script gets the path in the place of the reference: in a cell as a
Python expression, as an argument of a file when the job starts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.spec.inputs import JobInput, input_variable, literal_text, output_variable

#: The agent has the same pattern (``agent/service_job.py``).
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
