"""Forms as data: the fields of a target serve flags, help, errors and the panel's form."""

from __future__ import annotations

import difflib
import functools
import inspect
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
    """One value that a person can give.

    Attributes
    ----------
    name
        Key of the value: a field of a target's Struct, or what the command's parser calls it.
    flag
        What is typed for it, ``--max-nodes``; empty for the positional name.
    kind
        ``text``, ``int``, ``number``, ``bool``, ``choice``, ``list`` (texts), ``target`` (name of a target).
    help
        One sentence, the same as in the command's help.
    default
        JSON value that holds when nothing is given; ``None`` for none.
    metavar
        A word for the value, with its unit: ``SECONDS``, ``K=V``.
    advanced
        Not shown until asked for.
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


class TargetKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of target that can be created or attached here.

    Attributes
    ----------
    verb
        ``create`` (something is made) or ``attach`` (it is there already).
    title, help
        What a person calls it; one sentence about it.
    """

    kind: str
    verb: str
    title: str
    help: str = ""
    fields: tuple[Field, ...] = ()


class TargetAction(msgspec.Struct, frozen=True, kw_only=True):
    """Something that can be done with a target now.

    Attributes
    ----------
    verb
        Of ``%aml_compute``: ``use``, ``test``, ``start``, ``stop``, ``scale``, ``delete``, ...
    ask
        What it costs or loses, one or two sentences; empty where nothing has to be asked. Where the
        fields decide, the answer of the ``act`` request asks instead.
    why_not
        Why it cannot be done now; empty when it can.
    fields
        What has to be given, e.g. the number of nodes for ``scale``.
    """

    verb: str
    ask: str = ""
    why_not: str = ""
    fields: tuple[Field, ...] = ()


#: What is said of a field that is empty and may not be.
REQUIRED_TEXT = "This must be given."

NAME = Field(
    name="name",
    help="2 to 32 letters, digits, - and _; it begins with a letter or digit",
    required=True,
    metavar="NAME",
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{1,31}")

_KINDS = {IntType: "int", FloatType: "number", BoolType: "bool", LiteralType: "choice", VarTupleType: "list"}


def name_error(name: object) -> str:
    """Why no target can have that name; empty when one can."""
    if not isinstance(name, str) or not name:
        return "A name is missing. Write for example gpu-cluster."
    if not _NAME.fullmatch(name):
        return f"{name[:80]!r} is not a valid name: {NAME.help}."
    return "'local' is this machine. Choose another name." if name == "local" else ""


@functools.lru_cache(maxsize=32)
def fields_of(target_type: type[ComputeTarget]) -> tuple[Field, ...]:
    """What can be given for a target of that type, in the order of the form; its name is the first."""
    found = [NAME]
    texts = described(target_type)
    for name, (kind, extra, default, required) in _parts(target_type).items():
        if name == NAME.name:
            continue
        choices = tuple(str(value) for value in kind.values) if isinstance(kind, LiteralType) else ()
        found.append(
            Field(
                name=name,
                flag=f"--{name.replace('_', '-')}",
                kind=_KINDS.get(type(kind), "text"),
                help=texts.get(name, ""),
                default=default,
                required=required,
                choices=choices,
                metavar=extra.get("metavar", ""),
                advanced=extra.get("advanced", False),
            )
        )
    return tuple(found)


def kind_of_type(target_type: type[ComputeTarget]) -> TargetKind:
    """A kind of target as a form."""
    return TargetKind(
        kind=str(target_type.__struct_config__.tag),
        verb=target_type.verb,
        title=target_type.title,
        help=inspect.cleandoc(target_type.__doc__ or "").partition("\n\n")[0].replace("\n", " "),
        fields=fields_of(target_type),
    )


def described(target_type: type[ComputeTarget]) -> dict[str, str]:
    """The sentences of the docstrings' `Attributes` by field, without their full stop; bases come first."""
    found: dict[str, str] = {}
    for base in reversed(target_type.__mro__):
        if issubclass(base, ComputeTarget):
            found |= _described(base)
    return found


def _described(target_type: type[ComputeTarget]) -> dict[str, str]:
    """What the docstring of one class says."""
    _, _, section = inspect.cleandoc(target_type.__doc__ or "").partition("Attributes\n----------\n")
    found: dict[str, str] = {}
    names: list[str] = []
    for line in section.splitlines():
        if line and not line[0].isspace():
            names = [name.strip() for name in line.partition(":")[0].split(",")]
        elif line.strip():
            for name in names:
                found[name] = f"{found.get(name, '')} {line.strip()}".strip()
    return {name: text.removesuffix(".") for name, text in found.items()}


def checked(
    target_type: type[ComputeTarget], name: object, values: Mapping[str, Any]
) -> tuple[ComputeTarget | None, dict[str, str]]:
    """A target of `values`, or one sentence for every field that is wrong.

    Parameters
    ----------
    values
        By field: JSON values of a form, or texts as they were typed. ``None``, and an empty text where no
        text is wanted, take the default.
    """
    parts = _parts(target_type)
    wrong: dict[str, str] = {}
    good: dict[str, Any] = {}
    if sentence := name_error(name):
        wrong[NAME.name] = sentence
    for field, value in values.items():
        if field == NAME.name:
            continue
        if field not in parts:
            wrong[field] = no_such_text(field, parts, "field")
            continue
        kind, _, _, _ = parts[field]
        if value is None or (value == "" and not isinstance(kind, (StrType, LiteralType))):
            continue
        good[field], sentence = _value(kind, value)
        if sentence:
            wrong[field] = sentence
    for field, (_, _, _, required) in parts.items():
        if required and field != NAME.name and good.get(field, "") == "" and field not in wrong:
            wrong[field] = REQUIRED_TEXT
    if wrong:
        return None, wrong
    target = target_type(name=str(name), **good)
    wrong = target.wrong()
    return (None, wrong) if wrong else (target, {})


def _literals(hint: Any) -> tuple[Any, ...]:
    """The choices of a literal type in the order in which they stand there (msgspec sorts them)."""
    if typing.get_origin(hint) is typing.Literal:
        return typing.get_args(hint)
    return next((found for part in typing.get_args(hint) if (found := _literals(part))), ())


def checked_scale(
    target: ComputeTarget, fields: Iterable[Field], values: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """New scale settings of a cluster, or one sentence for every one that is wrong.

    Parameters
    ----------
    fields
        Those that can be changed; defaults are the settings now.
    values
        By field; ``nodes`` is another name of ``min_nodes``.
    """
    parts, now = _parts(type(target)), {field.name: field.default for field in fields}
    typed = {name: value for name, value in values.items() if value is not None and value != ""}
    least = "nodes" if "nodes" in typed and "min_nodes" not in typed else "min_nodes"  # errors name what was typed
    good: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    if not typed:
        wrong[""] = "Nothing to change: give --min-nodes, --max-nodes or --idle-minutes."
    for name in ("max_nodes", "idle_minutes"):
        if name in typed:
            good[name], sentence = _value(parts[name][0], typed[name])
            wrong |= {name: sentence} if sentence else {}
    most = good.get("max_nodes") if "max_nodes" not in wrong else None
    most = now["max_nodes"] if most is None else most
    if least in typed:
        good["min_nodes"], sentence = _value(IntType(ge=0, le=most), typed[least])
        wrong |= {least: sentence} if sentence else {}
    elif "max_nodes" in good and not wrong and most < (now["min_nodes"] or 0):
        wrong["max_nodes"] = f"{most} is less than the minimum of {now['min_nodes']}. Lower --min-nodes too."
    return good, wrong


@functools.lru_cache(maxsize=32)
def _parts(target_type: type[ComputeTarget]) -> dict[str, tuple[Type, dict[str, Any], Any, bool]]:
    """By field: its type, what a form wants to know beside, its default as JSON, whether it must be given."""
    shape, hints = type_info(target_type), typing.get_type_hints(target_type, include_extras=True)
    assert isinstance(shape, StructType)
    found: dict[str, tuple[Type, dict[str, Any], Any, bool]] = {}
    for field in shape.fields:
        kind: Type = field.type
        extra: dict[str, Any] = {}
        while isinstance(kind, (Metadata, UnionType)):
            if isinstance(kind, Metadata):
                extra = {**(kind.extra or {}), **extra}
                kind = kind.type
            else:  # of a kind or nothing
                kind = next(part for part in kind.types if not isinstance(part, NoneType))
        if isinstance(kind, LiteralType):
            kind = LiteralType(values=_literals(hints[field.name]))
        default = field.default
        if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        none = default is msgspec.NODEFAULT
        found[field.name] = (kind, extra, None if none else msgspec.to_builtins(default), field.required)
    return found


def _value(kind: Type, value: Any) -> tuple[Any, str]:
    """A value as its field wants it, and what is wrong with it."""
    shown = repr(value[:80] if isinstance(value, str) else value)
    if isinstance(kind, LiteralType):
        by_text = {str(choice): choice for choice in kind.values}
        if str(value) in by_text:
            return by_text[str(value)], ""
        return None, f"{shown} is none of the choices. {_near(str(value), by_text)}"
    if isinstance(kind, BoolType):
        truth = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        found = value if isinstance(value, bool) else truth.get(str(value).lower())
        return found, "" if found is not None else f"{shown} is neither true nor false."
    if isinstance(kind, (IntType, FloatType)):
        return _number(kind, value, shown)
    if isinstance(kind, VarTupleType):
        parts = [value] if isinstance(value, str) else value
        if not isinstance(parts, (list, tuple)):
            return None, f"{shown} is not a list."
        pairs = [_value(kind.item_type, part) for part in parts]
        return tuple(part for part, _ in pairs), next((sentence for _, sentence in pairs if sentence), "")
    if not isinstance(value, str):
        return None, f"{shown} is not a text."
    if isinstance(kind, StrType):
        if kind.min_length is not None and len(value) < kind.min_length:
            return None, f"{shown} is too short: {kind.min_length} characters at least."
        if kind.max_length is not None and len(value) > kind.max_length:
            return None, f"{shown} is too long: {kind.max_length} characters at most."
        if kind.pattern is not None and not re.search(kind.pattern, value):
            return None, f"{shown} is not of the form {kind.pattern}."
    return value, ""


def _number(kind: IntType | FloatType, value: Any, shown: str) -> tuple[Any, str]:
    whole = isinstance(kind, IntType)
    wanted = f"{'a whole number' if whole else 'a number'}{_bounds(kind)}"
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
    if math.isfinite(number):  # typed or from a form: the same words
        shown = f"{number:g}"
    return (None, f"{shown} is not {wanted}.") if outside else (int(number) if whole else number, "")


def _bounds(kind: IntType | FloatType) -> str:
    low = f" from {kind.ge:g}" if kind.ge is not None else f" above {kind.gt:g}" if kind.gt is not None else ""
    high = f" to {kind.le:g}" if kind.le is not None else f" below {kind.lt:g}" if kind.lt is not None else ""
    return low + (high if kind.ge is not None else high.replace(" to ", " up to "))


def no_such_text(word: str, words: Iterable[str], what: str) -> str:
    """There is no such field, kind or the like; names the near ones."""
    if not word:
        return f"A {what} is missing. {_near(word, words)}"
    return f"There is no {what} {word[:80]!r} here. {_near(word, words)}"


def _near(word: str, words: Iterable[str]) -> str:
    words = [w for w in words if w and w != NAME.name]
    near = difflib.get_close_matches(word, words, 2, 0.5)
    if near or not words:
        return f"Did you mean {' or '.join(near)}?" if near else "There is none."
    return f"There {'are' if len(words) > 1 else 'is'}: {', '.join(words)}."
