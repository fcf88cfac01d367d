"""Conversion of the SDK's validation errors of an ``az ml`` file to one line with the file's line and key. No I/O.

The SDK's messages contain a page of JSON with every schema alternative that did not match; only the alternative that
the author most likely meant is reported.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.schema import az_yaml

_UNKNOWN, _MISSING = "Unknown field.", "Missing data for required field."
_SETS = re.compile(r"Value (.+?) passed is not in set \[(.*?)\]")
#: The SDK's message about every value of the wrong type.
_BINDING = "Value passed is not a data binding string"
#: Words that the SDK adds to the path of a key.
_BETWEEN = ("component", "value", "_schema")
_MAX_TEXT = 300
_COLORS = re.compile(r"\x1b\[[\d;]*m")
Leaf = tuple[tuple[str, ...], str]


def is_validation(error: BaseException) -> bool:
    """Return whether the SDK rejects the job (marshmallow's ``ValidationError``, its own ``MlException``)."""
    names = [cls.__name__ for cls in type(error).__mro__]
    return "MlException" in names or any("Validation" in name for name in names)


def error_of_exception(error: BaseException, text: str, name: str, folder: str) -> SpecError:
    """Return one error for an exception of ``load_job``.

    Parameters
    ----------
    text, name, folder
        Text, name and folder of the file.
    """
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or current.__context__
    message_sets: list[Any] = [m for one in chain if isinstance(m := getattr(one, "messages", None), dict)]
    message_sets += [m for one in chain if isinstance(m := _json_in(str(one)), dict)]
    for messages in message_sets:
        if leaves := list(_leaves(messages)):
            return _error_of(leaves, text, name, folder)
    file = az_yaml.parse(text, name, folder)
    messages = getattr(error, "messages", None)
    if isinstance(messages, list) and messages:  # of one field, whose place it does not say
        what = next((str(one) for one in messages if not str(one).startswith(_BINDING)), str(messages[0]))
        return _error_of([(_key(file, str(getattr(error, "field_name", ""))), what)], text, name, folder)
    return file.error(_named(str(error), file), first_line(str(error)))


def error_of_messages(messages: Mapping[str, Any], text: str, name: str, folder: str) -> SpecError:
    """Return one error for the result of the SDK's own check of a loaded job: messages by dotted path."""
    file = az_yaml.parse(text, name, folder)
    for path, what in messages.items():
        keys = tuple(part for part in re.split(r"[.\[\]]+", str(path)) if part and part != "*")
        return _error_of([(keys, str(what))], text, name, folder)
    return file.error((), "the SDK rejects the job.")


def first_line(text: str) -> str:
    """Return the first sentence or so of a long message."""
    lines = [line.strip(" \t{}\"',") for line in _COLORS.sub("", text).splitlines()]
    sentence = next((line for line in lines if line), "the SDK rejects the job")
    # Its long form has a heading ("1) One or more ..."), then what it is about ("(x) No such file ...").
    sentence = next((line[3:].strip() for line in lines if line.startswith("(x)")), sentence)
    sentence = re.sub(r"\s+", " ", sentence)
    return sentence if len(sentence) <= _MAX_TEXT else sentence[:_MAX_TEXT] + "…"


def _json_in(text: str) -> Any:
    """Return the JSON object in a message, unwrapped if nested in another."""
    start = text.find("{")
    if start < 0 or "alidation for" not in text[:start]:
        return None
    try:
        found, _ = json.JSONDecoder().raw_decode(text[start:])
    except ValueError:
        return None
    if isinstance(found, dict) and set(found) == {"result", "errors"}:
        for one in found["errors"]:
            inner = _json_in(str(one.get("message") or ""))
            if inner is not None:
                return inner
            return {str(one.get("path") or "").replace("*", "") or "": [str(one.get("message") or "")]}
    return found


def _leaves(found: Any, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    if isinstance(found, Mapping):
        for key, part in found.items():
            yield from _leaves(part, path if key == "" and path else (*path, str(key)))
    elif isinstance(found, list) and any(isinstance(part, Mapping) for part in found):
        yield from _alternative([part for part in found if isinstance(part, Mapping)], path)
    elif isinstance(found, list):
        for part in found:
            yield path, str(part)
    else:
        yield path, str(found)


def _alternative(found: list[Mapping[str, Any]], path: tuple[str, ...]) -> Iterator[Leaf]:
    """Yield the errors of the alternative that the author most likely meant: the one with the fewest errors."""
    choices = [list(_leaves(part, path)) for part in found]
    choices = [leaves for leaves in choices if leaves and not all(text.startswith(_BINDING) for _, text in leaves)]
    if not choices:
        return

    def rank(leaves: list[Leaf]) -> tuple[bool, int]:
        only_component = [at[len(path) :] for at, _ in leaves] == [("component",)]
        wrong = all(text == _MISSING for _, text in leaves)
        return only_component or (wrong and len(leaves) > 1), len(leaves)

    every = [(at, one) for leaves in choices for at, text in leaves if (one := _SETS.search(text))]
    for at, text in min(choices, key=rank):
        if one := _SETS.search(text):  # each alternative knows its own words
            words = ", ".join(dict.fromkeys(other[2].replace("'", "") for there, other in every if there == at))
            text = f"Value {one[1]} passed is not in set [{words}]"
        yield at, text


def _error_of(leaves: list[Leaf], text: str, name: str, folder: str) -> SpecError:
    file = az_yaml.parse(text, name, folder)
    order = {_UNKNOWN: 0, _MISSING: 2}
    keys, message = min(leaves, key=lambda leaf: order.get(leaf[1], 1))
    path = tuple(key for n, key in enumerate(keys) if key not in _BETWEEN or keys[: n + 1] in file.lines)
    hint = ""
    if message == _UNKNOWN:
        missing = [at[-1] for at, keys in leaves if keys == _MISSING and at[:-1] == path[:-1]]
        near = difflib.get_close_matches(path[-1], missing, 1, 0.6) if path else []
        message = f"unknown key in the schema of type: {file.type}."
        hint = f"Did you mean {near[0]}?" if near else ""
    elif message == _MISSING and keys[-1:] == ("component",) and keys != path:
        message = "the SDK does not recognize the kind of step."  # the SDK gives no other detail
    elif message == _MISSING:
        message = "the key is missing."
    elif match := _SETS.search(message):
        message = f"{match[1]} is not one of {match[2].replace(chr(39), '')}."
    else:
        message = first_line(message)
    return file.error(path, message, hint)


def _key(file: az_yaml.JobFile, key: str) -> tuple[str, ...]:
    """Return the path of the first occurrence of a key."""
    return next((tuple(map(str, path)) for path in file.lines if path[-1] == key), (key,) if key else ())


def _named(text: str, file: az_yaml.JobFile) -> tuple[str | int, ...]:
    """Return the path of the key whose value a message quotes, e.g. the binding of a step."""
    for quoted in re.findall(r"\$\{\{.*?\}\}|'([^']{3,})'", text) or ():
        for line_path, value in _scalars(file.doc):
            if quoted and quoted in value:
                return line_path
    last = text.strip().rpartition(": ")[2].strip(" .")
    if last and (exact := [path for path, value in _scalars(file.doc) if value == last]):
        return exact[0]
    binding = re.search(r"\$\{\{.*?\}\}", text)
    if binding:
        return next((path for path, value in _scalars(file.doc) if binding[0] in value), ())
    return ()


def _scalars(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    pairs: Any = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, part in pairs:
        if isinstance(part, Mapping | list):
            yield from _scalars(part, (*path, key))
        else:
            yield (*path, key), str(part)
