"""The line that connects a workspace, written and checked from a form's values; nobody is asked."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from jupyter_amltrain.commands import lexing
from jupyter_amltrain.commands.connect import KEYS, config_of, place_of
from jupyter_amltrain.commands.forms import actions_of, field_of
from jupyter_amltrain.commands.parsers import parser_of
from jupyter_amltrain.commands.parsing import Parser
from jupyter_amltrain.commands.quoting import flagged
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.naming import tilde
from jupyter_amltrain.spec.fields import Field

if TYPE_CHECKING:
    import argparse

    from jupyter_amltrain.connections import Place

MAGIC = "%aml_compute connect"
#: Fields that are asked for seldom.
_LATER = ("tenant",)


@dataclasses.dataclass
class Composed:
    """A line, what is wrong by field (``""``: all of it), what it would connect, and a word about that."""

    line: str
    errors: dict[str, str]
    place: Place | None = None  #: none while something is wrong, or when only IPython knows the values
    note: str = ""


@functools.lru_cache(maxsize=1)
def _parser() -> Parser:
    return parser_of("compute", "%aml_compute").verbs["connect"]


@functools.lru_cache(maxsize=1)
def connect_fields() -> tuple[Field, ...]:
    """What can be given to a connect, in the order of its help."""
    shown = [name for name in actions_of(_parser()) if name not in _LATER]
    fields = (field_of(name, action, shown) for name, action in actions_of(_parser()).items())
    # `S` and `G` stand for nothing in a form.
    return tuple(replace(field, metavar="" if len(field.metavar) == 1 else field.metavar) for field in fields)


def compose(given: Mapping[str, Any], known: Sequence[str], folder: Path | None = None) -> Composed:
    """Write the line that says what `given` does, and check it as the magic would.

    Parameters
    ----------
    given
        By name of a field; a field without a value is left out of the line.
    known
        Names of the connected workspaces.
    folder
        Where a ``config.json`` is looked for; default the kernel's folder.
    """
    actions = actions_of(_parser())
    errors = {name: f"A connect has no field {name!r}." for name in given if name not in actions}
    texts = {name: text for name in actions if (text := str(given.get(name) or "").strip())}
    words = [MAGIC]
    for name, text in texts.items():
        try:
            words.append(flagged(actions[name].option_strings[-1], text))
        except CommandError as error:
            errors[name] = str(error)
    made = Composed(" ".join(words), errors)
    if errors or lexing.left_over(texts.values()):
        return made
    try:
        asked = _parser().parse([f"{actions[name].option_strings[-1]}={text}" for name, text in texts.items()])
    except CommandError as error:
        made.errors[""] = str(error)
        return made
    try:
        made.place = place_of(asked, folder, known)
    except CommandError as error:
        made.errors[_field_of_error(asked)] = str(error)
    else:
        made.note = _note(asked, made.place, folder)
    return made


def _field_of_error(asked: argparse.Namespace) -> str:
    """Which field is to blame that there is no place: a part of it that is missing, or its file."""
    if asked.config or not any(getattr(asked, key) for key in KEYS):
        return "config"
    return next(key for key in KEYS if not getattr(asked, key)).replace("_", "-")


def _note(asked: argparse.Namespace, place: Place, folder: Path | None) -> str:
    if all(getattr(asked, key) for key in KEYS):
        return ""
    path = config_of(asked, folder)
    if path is None or not place.workspace:
        return ""
    return f"{tilde(str(path))} names {place.workspace} in {place.resource_group}."
