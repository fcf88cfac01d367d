"""Errors made of what the SDK says of a bad ``az ml`` file: one line with the file's line and key. No I/O.

Its messages hold a page of JSON of every alternative that did not fit; here is the first that a person meant.
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
#: What it says of every value that is not of the type that is wanted.
_BINDING = "Value passed is not a data binding string"
#: Words of its own in the path of a key.
_BETWEEN = ("component", "value", "_schema")
_MAX_TEXT = 300
_COLORS = re.compile(r"\x1b\[[\d;]*m")
Leaf = tuple[tuple[str, ...], str]


def is_validation(error: BaseException) -> bool:
    """Whether the SDK refuses the job itself (marshmallow's ``ValidationError``, its own ``MlException``)."""
    names = [cls.__name__ for cls in type(error).__mro__]
    return "MlException" in names or any("Validation" in name for name in names)


def of_exception(error: BaseException, text: str, name: str, folder: str) -> SpecError:
    """One error for what ``load_job`` raised.

    Parameters
    ----------
    text, name, folder
        The file as it was written.
    """
    chain: list[BaseException] = []
    said: BaseException | None = error
    while said is not None and said not in chain:
        chain.append(said)
        said = said.__cause__ or said.__context__
    found: list[Any] = [m for one in chain if isinstance(m := getattr(one, "messages", None), dict)]
    found += [m for one in chain if isinstance(m := _json_in(str(one)), dict)]
    for messages in found:
        if leaves := list(_leaves(messages)):
            return _told(leaves, text, name, folder)
    file = az_yaml.parse(text, name, folder)
    messages = getattr(error, "messages", None)
    if isinstance(messages, list) and messages:  # of one field, whose place it does not say
        what = next((str(one) for one in messages if not str(one).startswith(_BINDING)), str(messages[0]))
        return _told([(_key(file, str(getattr(error, "field_name", ""))), what)], text, name, folder)
    return file.fault(_named(str(error), file), first_line(str(error)))


def of_messages(messages: Mapping[str, Any], text: str, name: str, folder: str) -> SpecError:
    """One error for what the SDK's own check of a loaded job found: messages by dotted path."""
    file = az_yaml.parse(text, name, folder)
    for path, what in messages.items():
        keys = tuple(part for part in re.split(r"[.\[\]]+", str(path)) if part and part != "*")
        return _told([(keys, str(what))], text, name, folder)
    return file.fault((), "the SDK refuses it.")


def first_line(text: str) -> str:
    """The first sentence or so of a long message."""
    lines = [line.strip(" \t{}\"',") for line in _COLORS.sub("", text).splitlines()]
    found = next((line for line in lines if line), "the SDK refuses it")
    # Its long form has a heading ("1) One or more ..."), then what it is about ("(x) No such file ...").
    found = next((line[3:].strip() for line in lines if line.startswith("(x)")), found)
    found = re.sub(r"\s+", " ", found)
    return found if len(found) <= _MAX_TEXT else found[:_MAX_TEXT] + "…"


def _json_in(text: str) -> Any:
    """The JSON object in a message; one that is wrapped in another is taken out."""
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
    """Of alternatives that did not fit, the one that was meant: where the fewest things are wrong that stand there."""
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


def _told(leaves: list[Leaf], text: str, name: str, folder: str) -> SpecError:
    file = az_yaml.parse(text, name, folder)
    order = {_UNKNOWN: 0, _MISSING: 2}
    said, what = min(leaves, key=lambda leaf: order.get(leaf[1], 1))
    path = tuple(key for n, key in enumerate(said) if key not in _BETWEEN or said[: n + 1] in file.lines)
    hint = ""
    if what == _UNKNOWN:
        missing = [at[-1] for at, said in leaves if said == _MISSING and at[:-1] == path[:-1]]
        near = difflib.get_close_matches(path[-1], missing, 1, 0.6) if path else []
        what = f"the schema of type: {file.type} has no such key."
        hint = f"Did you mean {near[0]}?" if near else ""
    elif what == _MISSING and said[-1:] == ("component",) and said != path:
        what = "the SDK understands it as no kind of step."  # it says no more
    elif what == _MISSING:
        what = "it is missing."
    elif found := _SETS.search(what):
        what = f"{found[1]} is not among {found[2].replace(chr(39), '')}."
    else:
        what = first_line(what)
    return file.fault(path, what, hint)


def _key(file: az_yaml.JobFile, key: str) -> tuple[str, ...]:
    """The first place of a key."""
    return next((tuple(map(str, path)) for path in file.lines if path[-1] == key), (key,) if key else ())


def _named(text: str, file: az_yaml.JobFile) -> tuple[str | int, ...]:
    """The key whose value a message quotes; the binding of a step, say."""
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
