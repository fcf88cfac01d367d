"""Forms as data: flags, help, errors and the panel's form are generated from the fields of a target."""

from __future__ import annotations

import difflib
import functools
import math
import re
import typing
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.inspect import (
    BoolType,
    FloatType,
    IntType,
    LiteralType,
    Metadata,
    NoneType,
    StrType,
    StructType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)

from jupyter_amltrain.schema.target import ComputeTarget


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One input field of a form or command.

    Attributes
    ----------
    name
        Key of the value: a field of a target's Struct, or its name in the command's parser.
    flag
        Command-line flag, ``--max-nodes``; empty for the positional name.
    kind
        ``text``, ``int``, ``number``, ``bool``, ``choice``, ``list`` (texts), ``target`` (name of a target).
    help
        One sentence, the same as in the command's help.
    default
        Default as a JSON value; ``None`` for none.
    metavar
        Placeholder for the value, with its unit: ``SECONDS``, ``K=V``.
    advanced
        Whether a form hides the field until the user expands the advanced fields.
    label
        Words for the field in a form; empty to derive them from the flag.
    group
        Group of the field in a large form: ``what``, ``params``, ``where``, ``data`` or ``advanced``; empty for none.
    not_for
        Kinds of targets that do not understand the field.
    needs_gpus
        Whether the field only matters on machines with GPUs.
    choose
        ``size``: a form offers the table of VM sizes; empty for nothing.
    joined
        Whether the values of a flag that is given several times are joined with commas.
    """

    name: str
    flag: str = ""
    kind: str = "text"
    help: str = ""
    default: Any = None
    required: bool = False
    choices: tuple[str, ...] = ()
    metavar: str = ""
    advanced: bool = False
    label: str = ""
    group: str = ""
    not_for: tuple[str, ...] = ()
    needs_gpus: bool = False
    choose: str = ""
    joined: bool = False


class TargetKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of target that can be created or attached here.

    Attributes
    ----------
    verb
        ``create`` (a new resource) or ``attach`` (an existing one).
    title, help
        Display name; one sentence of description.
    """

    kind: str
    verb: str
    title: str
    help: str = ""
    fields: tuple[Field, ...] = ()


class TargetAction(msgspec.Struct, frozen=True, kw_only=True):
    """An action on a target.

    Attributes
    ----------
    verb
        Verb of ``%aml_compute``: ``use``, ``test``, ``start``, ``stop``, ``scale``, ``delete``, ...
    confirmation
        Costs or losses in one or two sentences; empty if no confirmation is needed. If the
        text depends on the fields, the reply to the ``act`` request has it instead.
    disabled_reason
        Reason why the action is disabled now; empty if it is enabled.
    fields
        Values that the action needs, e.g. the number of nodes for ``scale``.
    """

    verb: str
    confirmation: str = ""
    disabled_reason: str = ""
    fields: tuple[Field, ...] = ()


#: Message for an empty field that is required.
REQUIRED_TEXT = "This field is required."

NAME = Field(
    name="name",
    help="2 to 32 letters, digits, - and _, starting with a letter or digit",
    required=True,
    metavar="NAME",
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{1,31}")

_KINDS = {IntType: "int", FloatType: "number", BoolType: "bool", LiteralType: "choice", VarTupleType: "list"}


def name_error(name: object) -> str:
    """Return why a target cannot have that name; empty if it can."""
    if not isinstance(name, str) or not name:
        return "A name is missing. Example: gpu-cluster."
    if not _NAME.fullmatch(name):
        return f"{name[:80]!r} is not a valid name: {NAME.help}."
    return "'local' is reserved for this machine. Choose another name." if name == "local" else ""


@functools.lru_cache(maxsize=32)
def fields_of(target_type: type[ComputeTarget]) -> tuple[Field, ...]:
    """Return the fields of a target type in the order of the form, the name first."""
    fields = [NAME]
    for name, (value_type, extra, default, required) in _parts(target_type).items():
        if name == NAME.name or extra.get("hidden"):
            continue
        choices = tuple(str(value) for value in value_type.values) if isinstance(value_type, LiteralType) else ()
        fields.append(
            Field(
                name=name,
                flag=f"--{name.replace('_', '-')}",
                kind=_KINDS.get(type(value_type), "text"),
                help=extra.get("description", ""),
                default=default,
                required=required,
                choices=choices,
                metavar=extra.get("metavar", ""),
                advanced=extra.get("advanced", False),
                choose=extra.get("choose", ""),
                joined=extra.get("joined", False),
                label=extra.get("label", ""),
            )
        )
    return tuple(fields)


def kind_of_type(target_type: type[ComputeTarget]) -> TargetKind:
    """Return the form of a target type."""
    return TargetKind(
        kind=str(target_type.__struct_config__.tag),
        verb=target_type.verb,
        title=target_type.title,
        help=target_type.summary,
        fields=fields_of(target_type),
    )


def checked_target(
    target_type: type[ComputeTarget], name: object, values: Mapping[str, Any]
) -> tuple[ComputeTarget | None, dict[str, str]]:
    """Return a target made from `values`, or one error sentence per invalid field.

    Parameters
    ----------
    values
        By field: JSON values of a form, or text as typed. ``None``, and empty text in a field that is not
        textual, mean the default.
    """
    parts = _parts(target_type)
    errors: dict[str, str] = {}
    valid: dict[str, Any] = {}
    if error := name_error(name):
        errors[NAME.name] = error
    for field, value in values.items():
        if field == NAME.name:
            continue
        if field not in parts:
            errors[field] = unknown_name_text(field, parts, "field")
            continue
        value_type, _, _, _ = parts[field]
        if value is None or (value == "" and not isinstance(value_type, (StrType, LiteralType))):
            continue
        valid[field], error = _value(value_type, value)
        if error:
            errors[field] = error
    for field, (_, _, _, required) in parts.items():
        if required and field != NAME.name and valid.get(field, "") == "" and field not in errors:
            errors[field] = REQUIRED_TEXT
    if errors:
        return None, errors
    target = target_type(name=str(name), **valid)
    errors = target.field_errors()
    return (None, errors) if errors else (target, {})


def _literals(hint: Any) -> tuple[Any, ...]:
    """Return the choices of a literal type in the order of their declaration (msgspec sorts them)."""
    if typing.get_origin(hint) is typing.Literal:
        return typing.get_args(hint)
    return next((choices for part in typing.get_args(hint) if (choices := _literals(part))), ())


def checked_scale(
    target: ComputeTarget, fields: Iterable[Field], values: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return new scale settings of a cluster, or one error sentence per invalid one.

    Parameters
    ----------
    fields
        Settings that can be changed; their defaults are the current values.
    values
        By field; ``nodes`` is an alias of ``min_nodes``.
    """
    parts, current = _parts(type(target)), {field.name: field.default for field in fields}
    typed = {name: value for name, value in values.items() if value is not None and value != ""}
    min_key = "nodes" if "nodes" in typed and "min_nodes" not in typed else "min_nodes"  # errors name what was typed
    valid: dict[str, Any] = {}
    errors: dict[str, str] = {}
    if not typed:
        errors[""] = "Nothing to change: give --min-nodes, --max-nodes or --idle-minutes."
    for name in ("max_nodes", "idle_minutes"):
        if name in typed:
            valid[name], error = _value(parts[name][0], typed[name])
            errors |= {name: error} if error else {}
    max_nodes = valid.get("max_nodes") if "max_nodes" not in errors else None
    max_nodes = current["max_nodes"] if max_nodes is None else max_nodes
    if min_key in typed:
        valid["min_nodes"], error = _value(IntType(ge=0, le=max_nodes), typed[min_key])
        errors |= {min_key: error} if error else {}
    elif "max_nodes" in valid and not errors and max_nodes < (current["min_nodes"] or 0):
        errors["max_nodes"] = f"{max_nodes} is less than the minimum of {current['min_nodes']}. Lower --min-nodes too."
    return valid, errors


@functools.lru_cache(maxsize=32)
def _parts(target_type: type[ComputeTarget]) -> dict[str, tuple[Type, dict[str, Any], Any, bool]]:
    """Return by field: its type, its help and form data, its default as JSON, and whether it is required."""
    shape, hints = type_info(target_type), typing.get_type_hints(target_type, include_extras=True)
    assert isinstance(shape, StructType)
    parts: dict[str, tuple[Type, dict[str, Any], Any, bool]] = {}
    for field in shape.fields:
        value_type: Type = field.type
        extra: dict[str, Any] = {}
        while isinstance(value_type, (Metadata, UnionType)):
            if isinstance(value_type, Metadata):
                extra = {**(value_type.extra_json_schema or {}), **(value_type.extra or {}), **extra}
                value_type = value_type.type
            else:  # optional: a type or None
                value_type = next(part for part in value_type.types if not isinstance(part, NoneType))
        if isinstance(value_type, LiteralType):
            value_type = LiteralType(values=_literals(hints[field.name]))
        default = field.default
        if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        no_default = default is msgspec.NODEFAULT
        parts[field.name] = (value_type, extra, None if no_default else msgspec.to_builtins(default), field.required)
    return parts


def _value(kind: Type, value: Any) -> tuple[Any, str]:
    """Return a value converted to the type of its field, and an error sentence if it is invalid."""
    shown = repr(value[:80] if isinstance(value, str) else value)
    if isinstance(kind, LiteralType):
        by_text = {str(choice): choice for choice in kind.values}
        if str(value) in by_text:
            return by_text[str(value)], ""
        return None, f"{shown} is not one of the choices. {_near(str(value), by_text)}"
    if isinstance(kind, BoolType):
        booleans = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        boolean = value if isinstance(value, bool) else booleans.get(str(value).lower())
        return boolean, "" if boolean is not None else f"{shown} is neither true nor false."
    if isinstance(kind, (IntType, FloatType)):
        return _number(kind, value, shown)
    if isinstance(kind, VarTupleType):
        parts = [value] if isinstance(value, str) else value
        if not isinstance(parts, (list, tuple)):
            return None, f"{shown} is not a list."
        pairs = [_value(kind.item_type, part) for part in parts]
        return tuple(part for part, _ in pairs), next((error for _, error in pairs if error), "")
    if not isinstance(value, str):
        return None, f"{shown} is not text."
    if isinstance(kind, StrType):
        if kind.min_length is not None and len(value) < kind.min_length:
            return None, f"{shown} is too short: {kind.min_length} characters at least."
        if kind.max_length is not None and len(value) > kind.max_length:
            return None, f"{shown} is too long: {kind.max_length} characters at most."
        if kind.pattern is not None and not re.search(kind.pattern, value):
            return None, f"{shown} does not match the pattern {kind.pattern}."
    return value, ""


def _number(kind: IntType | FloatType, value: Any, shown: str) -> tuple[Any, str]:
    whole = isinstance(kind, IntType)
    expected = f"{'a whole number' if whole else 'a number'}{_bounds(kind)}"
    try:
        number = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    outside = (
        not math.isfinite(number)
        or (whole and number != int(number))
        or (kind.ge is not None and number < kind.ge)
        or (kind.gt is not None and number <= kind.gt)
        or (kind.le is not None and number > kind.le)
        or (kind.lt is not None and number >= kind.lt)
    )
    if math.isfinite(number):  # the same text for typed values and values of a form
        shown = f"{number:g}"
    return (None, f"{shown} is not {expected}.") if outside else (int(number) if whole else number, "")


def _bounds(kind: IntType | FloatType) -> str:
    low = f" from {kind.ge:g}" if kind.ge is not None else f" above {kind.gt:g}" if kind.gt is not None else ""
    high = f" to {kind.le:g}" if kind.le is not None else f" below {kind.lt:g}" if kind.lt is not None else ""
    return low + (high if kind.ge is not None else high.replace(" to ", " up to "))


def unknown_name_text(word: str, words: Iterable[str], what: str) -> str:
    """Return the message for an unknown field, kind or the like, with similar ones."""
    if not word:
        return f"A {what} is missing. {_near(word, words)}"
    return f"Unknown {what} {word[:80]!r}. {_near(word, words)}"


def _near(word: str, words: Iterable[str]) -> str:
    words = [w for w in words if w and w != NAME.name]
    near = difflib.get_close_matches(word, words, 2, 0.5)
    if near or not words:
        return f"Did you mean {' or '.join(near)}?" if near else "None is available."
    return f"Available: {', '.join(words)}."
