"""Forms as data, derived from the parsers, so that forms and flags cannot differ; and the lines that forms write.

A form keeps the text that a user typed, with its quotes and ``$names``, where the values are the same. A line is
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
from jupyter_amltrain.commands.magic_line import flag_with_value, quote, words
from jupyter_amltrain.commands.parser import HelpRequested, Parser, field_of, read_value
from jupyter_amltrain.commands.registry import Defaults, parser_of
from jupyter_amltrain.errors import AmlTrainError, CommandError
from jupyter_amltrain.jobs import flag_types
from jupyter_amltrain.schema.fields import Field

#: Fields that a form shows at first, in this order; the others are advanced fields.
BASIC_FIELDS = ("target", "param", "gpus", "name", "wait")
#: Group and label of each field of a submit, in the order of the form; an empty label is derived from the flag.
_LABELS = {
    "what": {"name": "", "source": "Folder to include", "experiment": "", "tag": "Tags", "as": "Assign to variable"},
    "params": {"param": "Parameters", "env-var": "Environment variables", "secret": "Secrets"},
    "where": {
        "target": "",
        "gpus": "",
        "instance-type": "Machine size",
        "nodes": "",
        "processes": "Processes on each node",
        "env": "Environment (packages)",
        "pip": "Additional packages",
        "python": "Interpreter",
        "timeout": "Time limit",
        "wait": "Wait until it ends",
        "priority": "",
        "tier": "",
    },
    "data": {
        "input": "Inputs",
        "output": "Outputs",
        "out": "Variables to return",
        "identity": "Identity for data",
    },
    "sweep": {
        "goal": "",
        "sampler": "",
        "max-trials": "Number of trials",
        "max-concurrent": "Trials at the same time",
        "trials-per-gpu": "Trials on each GPU",
        "policy": "Early stopping",
        "seed": "",
        "max-duration": "Time limit of the sweep",
        "trial-timeout": "Time limit of a trial",
    },
    "advanced": {
        "require-gpu": "If the GPUs are not used",
        "gpu-grace": "Time to start using GPUs",
        "share-gpus": "Share GPUs",
        "gpu-ids": "Format of GPU ids",
        "distribution": "Distributed framework",
        "derive-env": "Derive an environment",
        "shm-size": "Shared memory",
        "cpus": "Processors",
        "mem": "Memory",
        "option": "Options of the scheduler",
        "docker-args": "Docker arguments",
        "service": "Services",
        "yaml": "Print as YAML",
    },
}
_GPU_FIELDS = ("gpus", "trials-per-gpu", "require-gpu", "gpu-grace", "share-gpus", "gpu-ids")
#: Not fields: the help, the script, and flags that change what the command does.
_NO_FIELDS = ("help", "script", "dry_run")
_MAGIC = re.compile(
    r"^(?P<before>\s*(?:[\w,\s.\[\]'\"]+=\s*)?)(?P<magic>%{1,2}aml_(?:submit|sweep))(?:\s+|$)(?P<rest>.*)$", re.S
)


# ---- forms


def field_name(action: argparse.Action) -> str:
    """Return the name of the form's field for an action of a parser; empty if there is none."""
    if action.dest in _NO_FIELDS or not action.option_strings:
        return ""
    return action.option_strings[-1].lstrip("-")


@functools.lru_cache(maxsize=1)
def submit_actions() -> dict[str, argparse.Action]:
    """Return the actions of the submit parser by field name, and the further ones of a sweep."""
    submit, sweep = (actions_of(parser_of(noun, f"%aml_{noun}")) for noun in ("submit", "sweep"))
    return submit | {name: action for name, action in sweep.items() if name not in submit}


@functools.lru_cache(maxsize=1)
def sweep_fields() -> frozenset[str]:
    """Return the names of the fields that make a submit a sweep."""
    submit, sweep = (actions_of(parser_of(noun, f"%aml_{noun}")) for noun in ("submit", "sweep"))
    return frozenset(sweep.keys() - submit.keys())


def actions_of(parser: Parser) -> dict[str, argparse.Action]:
    """Return the actions of a parser by field name, in the order of the help."""
    return {name: action for action in parser._actions if (name := field_name(action))}


def submit_fields(defaults: Defaults | None = None) -> tuple[Field, ...]:
    """Return the fields of a submit form: first those shown at first, then the others in the order of the help.

    Parameters
    ----------
    defaults
        Values of fields that the line does not set.
    """
    values = defaults._asdict() if defaults is not None else {}
    values["timeout"] = flag_types.duration_text(values["timeout"]) if values.get("timeout") else None
    return tuple(
        msgspec.structs.replace(field, default=values[field.name]) if values.get(field.name) else field
        for field in _fields()
    )


@functools.lru_cache(maxsize=1)
def _fields() -> tuple[Field, ...]:
    actions = submit_actions()
    from jupyter_amltrain.backends.honored import kinds_without
    from jupyter_amltrain.backends.target_kinds import target_kinds

    places = {name: (group, label) for group, labels in _LABELS.items() for name, label in labels.items()}
    order = [*BASIC_FIELDS, *(name for name in places if name not in BASIC_FIELDS)]
    order += [name for name in actions if name not in order]
    fields = []
    for name in order:
        group, label = places.get(name, ("advanced", ""))
        field = form_field(name, actions[name], BASIC_FIELDS)
        fields.append(
            msgspec.structs.replace(
                field,
                group=group,
                label=label,
                not_for=kinds_without(name, target_kinds()),
                needs_gpus=name in _GPU_FIELDS,
            )
        )
    return tuple(fields)


def form_field(name: str, action: argparse.Action, shown: Collection[str]) -> Field:
    """Return a flag as a field of a form.

    Parameters
    ----------
    shown
        Names of the fields that the form shows at first.
    """
    kind, reader = "text", action.type
    choices = reader.choices if isinstance(reader, flag_types.OneOf) else tuple(action.choices or ())
    if reader in (flag_types.count, flag_types.trials_per_gpu):
        kind = "int"
    elif reader is flag_types.gpus:
        kind = "number"
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
    """Whether a flag may be repeated."""
    return isinstance(action.default, list)


# ---- the line of a submit


@dataclasses.dataclass
class SubmitLine:
    """A submit line, its values by field, and its errors by field (``""``: the line or the code below it).

    Attributes
    ----------
    notes
        Remarks that do not prevent a submit, one sentence each.
    """

    line: str
    values: dict[str, Any]
    errors: dict[str, str]
    notes: tuple[str, ...] = ()


@dataclasses.dataclass
class _Item:
    """One flag with its value, or one other word: the text as written, and its meaning."""

    raw: str
    name: str = ""  #: name of the field; empty for other words
    text: str = ""


def compose(
    old: str,
    values: Mapping[str, Any] | None,
    *,
    cell: str | None = None,
    script: str = "",
    defaults: Defaults | None = None,
) -> SubmitLine:
    """Write the submit line for the values of a form, or only read `old`.

    Parameters
    ----------
    old
        The existing line; empty for none.
    values
        By name of a field; fields without a value are left out of the line. ``None`` leaves the line unchanged.
    cell
        Code below the line; ``None`` for the line form, with a script.
    script
        The script of the line form; empty keeps the one of the old line.
    defaults
        Values of flags that the line does not set.
    """
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
        items = _with_values(items, values, errors)
    if cell is None and script:
        items = _with_script(items, script)
    noun = "sweep" if any(item.name in sweep_fields() for item in items) else "submit"
    magic = f"{'%%' if cell is not None else '%'}aml_{noun}"
    line = before + " ".join([magic, *(item.raw for item in items), *([rest] if rest else [])])
    if values is None and old.strip():
        line = old.strip()
    line_values = _values(items, errors)
    notes: tuple[str, ...] = ()
    if not errors:
        # Without a magic line the code starts one line higher than it will after the line is written.
        check_errors, notes = _checked(items, rest, cell, magic, defaults, first_line=2 if old.strip() else 1)
        errors |= check_errors
    return SubmitLine(line, line_values, errors, notes)


# ---- reading


def _read(line: str) -> tuple[str, list[_Item], str]:
    """Return the text before the magic, its items, and the text from ``--`` on."""
    match = _MAGIC.match(line.strip())
    if match is None:
        raise CommandError(
            f"{line.strip()[:80]!r} is not a submit line.",
            hint="Start the line with %%aml_submit",
            code="submit.no_line",
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
    tokens = magic_line.split(f"{raw} ;")  # keeps a semicolon of the word itself
    return tokens[0] if tokens else ""


# ---- writing


def _with_values(items: list[_Item], values: Mapping[str, Any], errors: dict[str, str]) -> list[_Item]:
    """Return `items` with the values of their fields replaced by `values`."""
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
    added: set[str] = set()

    def add(name: str) -> None:
        if name in added:
            return
        added.add(name)
        for item in requested[name]:
            same = existing.get((name, item.text))
            result.append(same.pop(0) if same else item)

    for item in items:
        if item.name:
            add(item.name)
        else:
            result.append(item)
    for name in actions:
        add(name)
    return result


def _requested(action: argparse.Action, name: str, value: Any) -> list[_Item]:
    flag = action.option_strings[-1]
    if value is None or value is False or value == "" or value == []:
        return []
    if action.nargs == 0:
        return [_Item(flag, name)]
    if isinstance(value, Mapping):
        value = [f"{key}={flag_types.parameter_text(part)}" for key, part in value.items()]
    parts = list(value) if isinstance(value, list | tuple) else [value]
    texts = [text for part in parts if (text := _text(part))]
    if not is_list(action) and len(texts) > 1:
        raise CommandError(f"{flag}: expected one value.", code="flag.value", field=field_of(action))
    return [_Item(flag_with_value(flag, text), name, text) for text in texts]


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
    """Return the values of a line by field; adds errors of single values to `errors`."""
    values: dict[str, Any] = {}
    for item in items:
        if not item.name:
            continue
        action = submit_actions()[item.name]
        if action.nargs == 0:
            values[item.name] = True
            continue
        value: Any = item.text
        if not magic_line.unexpanded([item.text]):  # only IPython knows the values of ``$names``
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
    """Return what the magic would report about the line and the code: errors by field, and notes."""
    from jupyter_amltrain.commands import submit, sweep

    tokens: list[str] = []
    for item in items:
        if item.name and magic_line.unexpanded([item.text]):
            continue
        tokens += magic_line.split(f"{item.raw} ;") if item.raw else []
    tokens += magic_line.split(rest) if rest else []
    try:
        parse = sweep.parse_sweep if magic.endswith("sweep") else submit.parse_submit
        spec = parse(tokens, cell, prog=magic, defaults=defaults, first_line=first_line).spec
    except HelpRequested:
        return {}, ()
    except AmlTrainError as error:
        return {_form_name(error.field): str(error)}, ()
    return {}, spec.notes


def _form_name(field: str) -> str:
    """Return the form's name for the field of an error; empty if the form has no such field."""
    names = {field_of(action): name for name, action in submit_actions().items()}
    return names.get(field, "")
