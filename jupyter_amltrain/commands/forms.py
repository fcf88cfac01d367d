"""Forms as data, made of the parsers: the panel's form and the magic's flags cannot drift apart."""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Collection

import msgspec

from jupyter_amltrain.commands import values
from jupyter_amltrain.commands.parsers import parser_of
from jupyter_amltrain.commands.parsing import Parser
from jupyter_amltrain.commands.submit import Defaults
from jupyter_amltrain.spec.fields import Field

#: Fields that a form shows at once, in this order; the others when they are asked for.
SHOWN = ("target", "param", "gpus")
#: The first of the others: what is asked for most.
_NEXT = ("name", "out", "timeout", "require-gpu", "wait")
#: What is no field: help, the script itself, and flags that make another command of it.
_NONE = ("help", "script", "dry_run")


def field_name(action: argparse.Action) -> str:
    """Name of the field that an action of the submit parser is; empty for none."""
    if action.dest in _NONE or not action.option_strings:
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
        What holds where nothing is given.
    """
    given = dataclasses.asdict(defaults) if defaults is not None else {}
    given["timeout"] = values.duration_text(given["timeout"]) if given.get("timeout") else None
    return tuple(
        msgspec.structs.replace(field, default=given[field.name]) if given.get(field.name) else field
        for field in _fields()
    )


@functools.lru_cache(maxsize=1)
def _fields() -> tuple[Field, ...]:
    actions = submit_actions()
    first = (*SHOWN, *_NEXT)
    order = [*first, *(name for name in actions if name not in first)]
    return tuple(field_of(name, actions[name], SHOWN) for name in order)


def field_of(name: str, action: argparse.Action, shown: Collection[str]) -> Field:
    """A flag as a field of a form.

    Parameters
    ----------
    shown
        Names of the fields that the form shows at once.
    """
    kind, reader = "text", action.type
    choices = reader.choices if isinstance(reader, values.OneOf) else tuple(action.choices or ())
    if reader is values.count:
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
