"""How a parameter of a file is written on its command line: the words that its parser takes.

A form is a kind and the words of the parser, such as ``value --lr`` or ``pair --amp --no-amp``:

``value --x``
    the word and the value
``list --x``
    the word and all items of a list
``repeat --x``
    the word and the value for each item
``joined --x=``
    one word with the value behind it; of Hydra it is ``joined x=``
``literal --x=``
    the same with a Python literal, for Fire
``on --x``, ``off --x``
    the word alone, for true, or for false
``flag --x``
    the word alone for true, the word and the value for what is neither true nor false
``pair --x --no-x``
    one word for true, the other for false
``positional``
    the value alone
``environment``
    an environment variable
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from jupyter_amltrain.errors import SpecError

#: Name of the form of parameters that have none of their own.
OTHERS = "*"
#: Values of ``--style``, and the form of a parameter in each, by the format of its name.
STYLES = {
    "argparse": "value --{}",
    "flag": "flag --{}",
    "absl": "joined --{}=",
    "fire": "literal --{}=",
    "hydra": "joined {}=",
    "env": "environment",
}


def form_of(name: str, forms: Mapping[str, str]) -> str:
    """Return the form of a parameter; ``--name value`` if nothing is known of it."""
    return forms.get(name) or forms.get(OTHERS, STYLES["argparse"]).format(name)


def words_of(name: str, value: Any, form: str) -> list[str]:
    """Return the words of a parameter on a command line.

    Parameters
    ----------
    value
        JSON value, or the reference to a value that a service puts there.

    Raises
    ------
    SpecError
        The parser has a switch, and the value is neither true nor false.
    """
    kind, *words = form.split(" ")
    if kind == "flag" and not isinstance(value, bool):
        return [words[0], text_of(value)]
    if kind in ("flag", "on", "off", "pair"):
        return _switch(name, value, kind, words)
    if kind == "environment":
        return []
    if kind == "positional":
        return [text_of(value)]
    items = value if isinstance(value, list | tuple) else [value]
    if kind == "list":
        return [words[0], *map(text_of, items)]
    if kind == "repeat":
        return [word for item in items for word in (words[0], text_of(item))]
    if kind == "joined":
        return [words[0] + (text_of(value) if words[0].startswith("-") else hydra_text(value))]
    if kind == "literal":
        return [words[0] + (value if isinstance(value, str) else repr(value))]
    return [words[0], text_of(value)]


def switch_of(form: str) -> tuple[str, str] | None:
    """Return the words of a switch for true and for false, empty for none; ``None`` for another form."""
    kind, *words = form.split(" ")
    if kind in ("on", "flag"):
        return words[0], ""
    if kind == "off":
        return "", words[0]
    return (words[0], words[1]) if kind == "pair" else None


def variables_of(params: Mapping[str, Any], forms: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters that are environment variables."""
    return {name: text_of(value) for name, value in params.items() if form_of(name, forms) == "environment"}


def _switch(name: str, value: Any, kind: str, words: list[str]) -> list[str]:
    state = {"true": True, "false": False}.get(str(value).lower())
    if state is None:
        state = {1: True, 0: False}.get(value) if isinstance(value, int) else None
    if state is None:
        raise SpecError(
            f"--param {name}={text_of(value)}: the script has {' and '.join(words)} without a value.",
            hint=f"Write: --param {name}=true",
            code="param.switch",
            field="params",
        )
    if kind == "pair":
        return [words[0] if state else words[1]]
    return [words[0]] if state == (kind != "off") else []


def text_of(value: Any) -> str:
    """Return a JSON value as a word."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (Mapping, list, tuple)):
        return msgspec.json.encode(value).decode()
    return str(value)


def hydra_text(value: Any) -> str:
    """Return a JSON value as Hydra and OmegaConf read it."""
    if value is None:
        return "null"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(hydra_text, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{hydra_text(item)}" for key, item in value.items()) + "}"
    return text_of(value)
