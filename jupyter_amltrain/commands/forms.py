"""Forms as data, made of the parsers, and the line that a form writes, so that form and flags cannot differ.

What a person typed stays as it is where the form says the same, quotes and ``$names`` included. A line is
checked, never run.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from jupyter_amltrain.commands import magic_line
from jupyter_amltrain.commands.magic_line import flagged, quote, words
from jupyter_amltrain.commands.parser import HelpRequested, Parser, field_of, read_value
from jupyter_amltrain.commands.registry import Defaults, parser_of
from jupyter_amltrain.errors import AmlTrainError, CommandError
from jupyter_amltrain.jobs import flag_types
from jupyter_amltrain.schema.fields import Field

#: Fields that a form shows at once, in this order; the others when they are asked for.
SHOWN = ("target", "param", "gpus")
#: The first of the others: the most used.
_NEXT = ("name", "out", "timeout", "require-gpu", "wait")
#: Not fields: help, the script itself, and flags that make another command of it.
_NO_FIELDS = ("help", "script", "dry_run")
_MAGIC = re.compile(r"^(?P<before>\s*(?:[\w,\s.\[\]'\"]+=\s*)?)(?P<magic>%{1,2}aml_submit)(?:\s+|$)(?P<rest>.*)$", re.S)


# ---- forms


def field_name(action: argparse.Action) -> str:
    """Name of the form's field for an action of a parser; empty for none."""
    if action.dest in _NO_FIELDS or not action.option_strings:
        return ""
    return action.option_strings[-1].lstrip("-")


@functools.lru_cache(maxsize=1)
def submit_actions() -> dict[str, argparse.Action]:
    """Actions of the submit parser by name of their field."""
    return actions_of(parser_of("submit", "%aml_submit"))


def actions_of(parser: Parser) -> dict[str, argparse.Action]:
    """Actions of a parser by name of their field, in the order of its help."""
    return {name: action for action in parser._actions if (name := field_name(action))}


def submit_fields(defaults: Defaults | None = None) -> tuple[Field, ...]:
    """What can be given to a submit: first what a form shows, then the rest in the order of the help.

    Parameters
    ----------
    defaults
        What a submit takes where nothing is given.
    """
    values = dataclasses.asdict(defaults) if defaults is not None else {}
    values["timeout"] = flag_types.duration_text(values["timeout"]) if values.get("timeout") else None
    return tuple(
        msgspec.structs.replace(field, default=values[field.name]) if values.get(field.name) else field
        for field in _fields()
    )


@functools.lru_cache(maxsize=1)
def _fields() -> tuple[Field, ...]:
    actions = submit_actions()
    first = (*SHOWN, *_NEXT)
    order = [*first, *(name for name in actions if name not in first)]
    return tuple(form_field(name, actions[name], SHOWN) for name in order)


def form_field(name: str, action: argparse.Action, shown: Collection[str]) -> Field:
    """A flag as a field of a form.

    Parameters
    ----------
    shown
        Names of the fields that the form shows at once.
    """
    kind, reader = "text", action.type
    choices = reader.choices if isinstance(reader, flag_types.OneOf) else tuple(action.choices or ())
    if reader is flag_types.count:
        kind = "int"
    elif choices:
        kind = "choice"
    if name == "target":
        kind = "target"
    elif action.nargs == 0:
        kind = "bool"
    elif is_list(action):
        kind = "list"
    return Field(
        name=name,
        flag=action.option_strings[-1],
        kind=kind,
        help=(action.help or "").replace("%%", "%"),
        default=False if kind == "bool" else None,
        choices=choices,
        metavar=str(action.metavar or ""),
        advanced=name not in shown,
    )


def is_list(action: argparse.Action) -> bool:
    """Whether a flag may be given several times."""
    return isinstance(action.default, list)


# ---- the line of a submit


@dataclasses.dataclass
class SubmitLine:
    """A line, its values by field, and its errors by field (``""``: the line or the code below).

    Attributes
    ----------
    notes
        Remarks that prevent nothing, one sentence each.
    """

    line: str
    values: dict[str, Any]
    errors: dict[str, str]
    notes: tuple[str, ...] = ()


@dataclasses.dataclass
class _Item:
    """One flag with its value, or one other word: as written, and what it stands for."""

    raw: str
    name: str = ""  #: of a field; empty for what no field names
    text: str = ""


def compose(
    old: str,
    values: Mapping[str, Any] | None,
    *,
    cell: str | None = None,
    script: str = "",
    defaults: Defaults | None = None,
) -> SubmitLine:
    """Write a line that says what `values` do, or only read `old`.

    Parameters
    ----------
    old
        The existing line; empty for none.
    values
        By name of a field; a field without a value is left out of the line. ``None`` leaves the line as it is.
    cell
        Code below the line; ``None`` for the form with a script.
    script
        The script of that form; empty keeps the old line's.
    defaults
        What a submit takes where the line says nothing.
    """
    magic = "%%aml_submit" if cell is not None else "%aml_submit"
    errors: dict[str, str] = {}
    items: list[_Item] = []
    before = rest = ""
    if old.strip():
        try:
            before, items, rest = _read(old)
        except CommandError as error:
            errors[""] = str(error)
    before = "" if cell is not None else before
    if values is not None:
        items = _written(items, values, errors)
    if cell is None and script:
        items = _with_script(items, script)
    line = before + " ".join([magic, *(item.raw for item in items), *([rest] if rest else [])])
    if values is None and old.strip():
        line = old.strip()
    line_values = _values(items, errors)
    notes: tuple[str, ...] = ()
    if not errors:
        # Without a line of its own the cell begins one line higher than it will.
        found, notes = _checked(items, rest, cell, magic, defaults, first_line=2 if old.strip() else 1)
        errors |= found
    return SubmitLine(line, line_values, errors, notes)


# ---- reading


def _read(line: str) -> tuple[str, list[_Item], str]:
    """What stands before the magic, its items, and what follows ``--`` (with it)."""
    match = _MAGIC.match(line.strip())
    if match is None:
        raise CommandError(
            f"{line.strip()[:80]!r} is not a line that submits.", hint="Write: %%aml_submit", code="submit.no_line"
        )
    parts = words(match["rest"].rstrip().removesuffix(";"))
    rest = ""
    if "--" in parts:
        at = parts.index("--")
        parts, rest = parts[:at], " ".join(parts[at:])
    return match["before"].lstrip(), _items(parts), rest


def _items(parts: Sequence[str]) -> list[_Item]:
    actions = {flag: name for name, action in submit_actions().items() for flag in action.option_strings}
    items: list[_Item] = []
    left = list(parts)
    while left:
        raw = left.pop(0)
        word = _word(raw)
        flag, equals, text = word.partition("=")
        name = actions.get(flag, "")
        if not name:
            items.append(_Item(raw, "", word))
        elif submit_actions()[name].nargs == 0:
            items.append(_Item(raw, name))
        elif equals or not left:
            items.append(_Item(raw, name, text))
        else:
            value = left.pop(0)
            items.append(_Item(f"{raw} {value}", name, _word(value)))
    return items


def _word(raw: str) -> str:
    tokens = magic_line.split(f"{raw} ;")  # its own semicolon does not end the line here
    return tokens[0] if tokens else ""


# ---- writing


def _written(items: list[_Item], values: Mapping[str, Any], errors: dict[str, str]) -> list[_Item]:
    """`items` with what `values` say in place of what they said."""
    actions = submit_actions()
    for name in values:
        if name not in actions:
            errors[name] = f"submit has no field {name!r}."
    requested: dict[str, list[_Item]] = {}
    for name, action in actions.items():
        try:
            requested[name] = _requested(action, name, values.get(name))
        except CommandError as error:
            errors[name] = str(error)
            requested[name] = []
    existing: dict[tuple[str, str], list[_Item]] = {}
    for item in items:
        existing.setdefault((item.name, item.text), []).append(item)
    result: list[_Item] = []
    placed: set[str] = set()

    def place(name: str) -> None:
        if name in placed:
            return
        placed.add(name)
        for item in requested[name]:
            same = existing.get((name, item.text))
            result.append(same.pop(0) if same else item)

    for item in items:
        if item.name:
            place(item.name)
        else:
            result.append(item)
    for name in actions:
        place(name)
    return result


def _requested(action: argparse.Action, name: str, value: Any) -> list[_Item]:
    flag = action.option_strings[-1]
    if value is None or value is False or value == "" or value == []:
        return []
    if action.nargs == 0:
        return [_Item(flag, name)]
    if isinstance(value, Mapping):
        value = [f"{key}={flag_types.parameter_text(part)}" for key, part in value.items()]
    several = list(value) if isinstance(value, list | tuple) else [value]
    texts = [text for one in several if (text := _text(one))]
    if not is_list(action) and len(texts) > 1:
        raise CommandError(f"{flag}: expected one value.", code="flag.value", field=field_of(action))
    return [_Item(flagged(flag, text), name, text) for text in texts]


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value.strip() if isinstance(value, str) else flag_types.parameter_text(value)


def _with_script(items: list[_Item], script: str) -> list[_Item]:
    for item in items:
        if not item.name and not item.text.startswith("-"):
            if item.text == script:
                return items
            return [_Item(quote(script), "", script) if other is item else other for other in items]
    return [_Item(quote(script), "", script), *items]


def _values(items: Sequence[_Item], errors: dict[str, str]) -> dict[str, Any]:
    """What the line says, by field; errors of single values go into `errors`."""
    values: dict[str, Any] = {}
    for item in items:
        if not item.name:
            continue
        action = submit_actions()[item.name]
        if action.nargs == 0:
            values[item.name] = True
            continue
        value: Any = item.text
        if not magic_line.unexpanded([item.text]):  # only IPython knows the values of names
            try:
                value = read_value(action, item.text)
            except CommandError as error:
                errors.setdefault(item.name, str(error))
        if is_list(action):
            values.setdefault(item.name, []).append(item.text)
        else:
            values[item.name] = value if isinstance(value, int) else item.text
    return values


def _checked(
    items: Sequence[_Item], rest: str, cell: str | None, magic: str, defaults: Defaults | None, *, first_line: int
) -> tuple[dict[str, str], tuple[str, ...]]:
    """What the magic would report of the line and the code: errors by field, and notes."""
    from jupyter_amltrain.commands import submit

    tokens: list[str] = []
    for item in items:
        if item.name and magic_line.unexpanded([item.text]):
            continue
        tokens += magic_line.split(f"{item.raw} ;") if item.raw else []
    tokens += magic_line.split(rest) if rest else []
    try:
        spec = submit.parse_submit(tokens, cell, prog=magic, defaults=defaults, first_line=first_line).spec
    except HelpRequested:
        return {}, ()
    except AmlTrainError as error:
        return {_form_name(error.field): str(error)}, ()
    return {}, spec.notes


def _form_name(field: str) -> str:
    """The form's name for the field of an error; empty for what no field of the form is."""
    names = {field_of(action): name for name, action in submit_actions().items()}
    return names.get(field, "")
