"""Writing the line of a submit: from a form's values, and back; what it says is checked, nothing is run.

What a person typed stays as it is where the form says the same, quotes and ``$names`` included.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jupyter_amltrain.commands import lexing, submit, values
from jupyter_amltrain.commands.forms import is_list, submit_actions
from jupyter_amltrain.commands.parsing import HelpWanted
from jupyter_amltrain.commands.quoting import flagged, quote, words
from jupyter_amltrain.errors import AmlTrainError, CommandError

_MAGIC = re.compile(r"^(?P<before>\s*(?:[\w,\s.\[\]'\"]+=\s*)?)(?P<magic>%{1,2}aml_submit)(?:\s+|$)(?P<rest>.*)$", re.S)
_FLAG = re.compile(r"--[a-z][a-z-]*")


@dataclasses.dataclass
class Composed:
    """A line, what it says by field, and what is wrong by field (``""``: the line or the code below).

    Attributes
    ----------
    notes
        What a person should know and what stops nothing, one sentence each.
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
    given: Mapping[str, Any] | None,
    *,
    cell: str | None = None,
    script: str = "",
    defaults: submit.Defaults | None = None,
) -> Composed:
    """Write a line that says what `given` does, or only read `old`.

    Parameters
    ----------
    old
        The line that is there; empty for none.
    given
        By name of a field; a field without a value is left out of the line. ``None`` leaves the line as it is.
    cell
        Code below the line; ``None`` for the form with a script.
    script
        The script of that form; empty keeps the old line's.
    defaults
        What holds where the line says nothing.
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
    if given is not None:
        items = _written(items, given, errors)
    if cell is None and script:
        items = _with_script(items, script)
    line = before + " ".join([magic, *(item.raw for item in items), *([rest] if rest else [])])
    if given is None and old.strip():
        line = old.strip()
    found = _said(items, errors)
    notes: tuple[str, ...] = ()
    if not errors:
        wrong, notes = _checked(items, rest, cell, magic, defaults)
        errors |= wrong
        if not old.strip():
            errors = {name: _as_seen(text) for name, text in errors.items()}
            notes = tuple(map(_as_seen, notes))
    return Composed(line, found, errors, notes)


# ---- reading


def _read(line: str) -> tuple[str, list[_Item], str]:
    """What stands before the magic, its items, and what follows ``--`` (with it)."""
    match = _MAGIC.match(line.strip())
    if match is None:
        raise CommandError(f"{line.strip()[:80]!r} is no line of a submit.", hint="Write: %%aml_submit")
    written = words(match["rest"].rstrip().removesuffix(";"))
    rest = ""
    if "--" in written:
        at = written.index("--")
        written, rest = written[:at], " ".join(written[at:])
    return match["before"].lstrip(), _items(written), rest


def _items(written: Sequence[str]) -> list[_Item]:
    actions = {flag: name for name, action in submit_actions().items() for flag in action.option_strings}
    items: list[_Item] = []
    left = list(written)
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
    found = lexing.split(f"{raw} ;")  # its own semicolon is no end of a line here
    return found[0] if found else ""


# ---- writing


def _written(items: list[_Item], given: Mapping[str, Any], errors: dict[str, str]) -> list[_Item]:
    """`items` with what `given` says in the place of what they said."""
    actions = submit_actions()
    for name in given:
        if name not in actions:
            errors[name] = f"A submit has no field {name!r}."
    wanted: dict[str, list[_Item]] = {}
    for name, action in actions.items():
        try:
            wanted[name] = _wanted(action, name, given.get(name))
        except CommandError as error:
            errors[name] = str(error)
            wanted[name] = []
    kept: dict[tuple[str, str], list[_Item]] = {}
    for item in items:
        kept.setdefault((item.name, item.text), []).append(item)
    done: list[_Item] = []
    placed: set[str] = set()

    def place(name: str) -> None:
        if name in placed:
            return
        placed.add(name)
        for item in wanted[name]:
            same = kept.get((name, item.text))
            done.append(same.pop(0) if same else item)

    for item in items:
        if item.name:
            place(item.name)
        else:
            done.append(item)
    for name in actions:
        place(name)
    return done


def _wanted(action: argparse.Action, name: str, value: Any) -> list[_Item]:
    flag = action.option_strings[-1]
    if value is None or value is False or value == "" or value == []:
        return []
    if action.nargs == 0:
        return [_Item(flag, name)]
    if isinstance(value, Mapping):
        value = [f"{key}={values.parameter_text(of)}" for key, of in value.items()]
    several = list(value) if isinstance(value, list | tuple) else [value]
    texts = [text for one in several if (text := _text(one))]
    if not is_list(action) and len(texts) > 1:
        raise CommandError(f"{flag}: one value is wanted.")
    return [_Item(flagged(flag, text), name, text) for text in texts]


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value.strip() if isinstance(value, str) else values.parameter_text(value)


def _with_script(items: list[_Item], script: str) -> list[_Item]:
    for item in items:
        if not item.name and not item.text.startswith("-"):
            if item.text == script:
                return items
            return [_Item(quote(script), "", script) if other is item else other for other in items]
    return [_Item(quote(script), "", script), *items]


# ---- what it says, and whether it can be carried out


def _said(items: Sequence[_Item], errors: dict[str, str]) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for item in items:
        if not item.name:
            continue
        action = submit_actions()[item.name]
        if action.nargs == 0:
            said[item.name] = True
            continue
        open_ = lexing.left_over([item.text])  # IPython knows their values, we do not look
        found: Any = item.text
        if callable(action.type) and not open_:
            try:
                found = action.type(item.text)
            except CommandError as error:
                errors.setdefault(item.name, str(error))
        if is_list(action):
            said.setdefault(item.name, []).append(item.text)
        else:
            said[item.name] = found if isinstance(found, int) else item.text
    return said


def _checked(
    items: Sequence[_Item], rest: str, cell: str | None, magic: str, defaults: submit.Defaults | None
) -> tuple[dict[str, str], tuple[str, ...]]:
    """What the magic would say to the line and the code: errors by field, and notes."""
    tokens: list[str] = []
    for item in items:
        if item.name and lexing.left_over([item.text]):
            continue
        tokens += lexing.split(f"{item.raw} ;") if item.raw else []
    tokens += lexing.split(rest) if rest else []
    try:
        spec = submit.understand(tokens, cell, prog=magic, defaults=defaults).spec
    except HelpWanted:
        return {}, ()
    except AmlTrainError as error:
        match = _FLAG.search(str(error).partition(": ")[0]) or _FLAG.search(str(error))
        name = match[0].lstrip("-") if match else ""
        return {name if name in submit_actions() and _is_of(error) else "": str(error)}, ()
    return {}, spec.notes


def _as_seen(text: str) -> str:
    """An error about a cell that has no line yet: its code begins one line higher than it will."""
    return re.sub(r"\b(Cell line|line) (\d+)", lambda found: f"{found[1]} {int(found[2]) - 1}", text, count=1)


def _is_of(error: AmlTrainError) -> bool:
    """Whether an error is about a flag: those about code name its line, and flags as a way out."""
    return not re.match(r"(Cell line|Line|%{0,2}aml_submit: (?:unknown|nothing|the cell))", str(error))
