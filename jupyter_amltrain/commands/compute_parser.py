"""The parser of ``compute``; the flags of create come from the fields of the targets."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import msgspec

from jupyter_amltrain.backends.lifecycle import SCALE_FIELDS
from jupyter_amltrain.backends.registry import forms
from jupyter_amltrain.commands import azure_sizes, connect, values
from jupyter_amltrain.commands.parsing import Parser, examples
from jupyter_amltrain.spec.fields import Field, TargetKind

#: What stands before a field's name in a parsed line.
VALUE = "value_"
_VERBS = {
    "list": "The compute targets; * marks the one in use.",
    "show": "What a target has: processors, memory, GPUs, slots, and what a run survives there.",
    "use": "Make a target the default of every notebook.",
    "edit": "Change settings of a target; they hold at once, also for runs that wait.",
    "test": "Ask a target whether it can run jobs now.",
    "create": "Make a new target.",
    "attach": "Make a machine that is there already a target.",
    "start": "Start the machine of a target.",
    "stop": "Stop the machine of a target; the runs on it end.",
    "restart": "Restart the machine of a target; the runs on it end.",
    "scale": "Change the nodes and the idle time of a cluster.",
    "delete": "Delete a target with its machines.",
}
#: Verbs that take a while, and may cost or lose something.
WORKS = ("create", "attach", "start", "stop", "restart", "scale", "delete")


def compute_parser(prog: str = "%aml_compute") -> Parser:
    """The parser of ``compute``."""
    parser = Parser(
        prog=prog,
        description="List, check, choose, create and delete the places where runs can run.",
        examples=examples(
            prog,
            cell=(
                "%aml_compute",
                "%aml_compute use local",
                "%aml_compute create lab --kind fake --size gpu-v100 --max-nodes 4 --yes",
                "%aml_compute scale lab --nodes 2 --yes --wait",
                "%aml_compute delete lab",
            ),
            line=(
                "amltrain compute",
                "amltrain compute show local --json",
                "amltrain compute create lab --kind fake --size gpu-v100 --yes",
            ),
        ),
    )
    magic = prog.startswith("%")
    there = forms()
    for name, description in _VERBS.items():
        mine = [kind for kind in there if kind.verb == name]
        if name in WORKS and not magic:
            description = f"{description[:-1]}, and wait until that is done."
        verb = parser.verb(name, description)
        if mine:
            verb.add_argument("name", metavar="NAME", help=mine[0].fields[0].help)
            _offering(verb.add_argument("--kind", metavar="KIND", default="", help=_kinds_text(mine)), mine)
            _add_fields(verb, mine)
        elif name == "edit":
            verb.add_argument("target", help="name of the target")
            verb.add_argument(
                "--share-gpus", metavar="yes|no", type=values.share_gpus,
                help="whether its runs may get GPUs that other processes use",
            )  # fmt: skip
        elif name in ("show", "test"):
            verb.add_argument("target", nargs="?", help="name of the target; default the one in use")
        elif name != "list":
            verb.add_argument("target", help="name of the target")
        if name == "scale":
            for field in SCALE_FIELDS:
                _add_field(verb, field)
            verb.add_argument(
                "--nodes", dest=f"{VALUE}nodes", metavar="N", default=argparse.SUPPRESS, help="the same as --min-nodes"
            )
        if name in WORKS:
            verb.add_argument("-y", "--yes", action="store_true", help="agree to what it costs or loses")
            text = "wait until it is done; an error if it fails" if magic else "accepted: a terminal always waits"
            verb.add_argument("--wait", action="store_true", help=text)
    connect.add_verbs(parser)
    azure_sizes.add_verbs(parser)
    if not magic:
        for verb in parser.verbs.values():
            verb.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _offering(action: argparse.Action, kinds: Sequence[TargetKind]) -> None:
    action.offers = tuple(kind.kind for kind in kinds)  # type: ignore[attr-defined]


def _kinds_text(kinds: Sequence[TargetKind]) -> str:
    return "; ".join(f"{kind.kind}: {kind.title}" for kind in kinds)


def _add_fields(parser: Parser, kinds: Sequence[TargetKind]) -> None:
    """A flag for each field of any kind; whether the kind at hand has it is checked with the values."""
    known = {flag for action in parser._actions for flag in action.option_strings}
    by_flag: dict[str, list[tuple[str, Field]]] = {}
    for kind in kinds:
        for field in kind.fields:
            if field.flag and field.flag not in known:
                by_flag.setdefault(field.flag, []).append((kind.kind, field))
    for of in by_flag.values():
        _add_field(parser, *_merged(of, len(kinds)))


def _merged(of: Sequence[tuple[str, Field]], kinds: int) -> tuple[Field, str]:
    """One flag for the fields of that name of several kinds, and its help, which says which have it."""
    first = of[0][1]
    texts: dict[str, list[str]] = {}
    for kind, field in of:
        texts.setdefault(_said(field), []).append(kind)
    if len(of) == kinds and len(texts) == 1:
        return first, _said(first)
    choices = tuple(dict.fromkeys(choice for _, field in of for choice in field.choices))
    text = "; ".join(f"{', '.join(names)}: {text}" for text, names in texts.items())
    return msgspec.structs.replace(first, choices=choices), text


def _said(field: Field) -> str:
    """The help of one kind's field, with its choices and default."""
    choices = [choice for choice in field.choices if choice]
    text = field.help + (f" ({', '.join(choices)})" if choices else "")
    if field.kind != "bool" and field.default not in (None, "", (), []):
        shown = field.default
        text += f", default {f'{shown:g}' if isinstance(shown, float) else shown}"
    return text


def _add_field(parser: Parser, field: Field, text: str = "") -> None:
    text = text or _said(field)
    rest: dict[str, Any] = {"dest": VALUE + field.name, "default": argparse.SUPPRESS}
    flag = field.flag
    if field.kind == "bool":
        rest |= {"action": "store_const", "const": not field.default}
        if field.default:
            flag, text = f"--no-{flag[2:]}", f"not: {text}"
    else:
        rest["metavar"] = field.metavar or field.name.upper()
        if field.kind == "list":
            rest["action"] = "append"
    action = parser.add_argument(flag, help=text.replace("%", "%%"), **rest)
    action.offers = tuple(choice for choice in field.choices if choice)  # type: ignore[attr-defined]
