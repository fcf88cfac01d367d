"""Writes ``labextension/src/protocol.ts`` from the operations and events of the frontend protocol.

``python -m tools.protocol_types`` writes it, ``python -m tools.protocol_types --check`` fails if it is outdated.
Runs in ``.venv``: it imports the package.
"""

from __future__ import annotations

import json
import sys
from typing import Any, get_args

import msgspec
from msgspec import inspect

from jupyter_amltrain.frontend import control, handlers, protocol
from jupyter_amltrain.schema.group import GROUP_MIME, GroupRow, RunGroup
from jupyter_amltrain.schema.record import RECORD_MIME, RECORD_SCHEMA, RunRecord
from jupyter_amltrain.schema.rows import RunRow
from jupyter_amltrain.schema.run import RunState
from tools.environment import ROOT

PATH = ROOT / "labextension" / "src" / "protocol.ts"

#: Modules whose import registers the operations.
REGISTERED = (control, handlers)

#: Events on the comm; the field `type` distinguishes them.
EVENTS: tuple[type[msgspec.Struct], ...] = get_args(protocol.Event)

#: Fields whose values are fewer than their Python type allows.
NARROWER: dict[tuple[type, str], str] = {(struct, "state"): "RunState" for struct in (RunRecord, RunRow, GroupRow)}


def typescript(kind: inspect.Type, found: dict[type, None]) -> str:
    """The TypeScript type of one field; Structs are collected in `found`."""
    if isinstance(kind, inspect.TupleType):
        return f"[{', '.join(typescript(part, found) for part in kind.item_types)}]"
    if isinstance(kind, inspect.StructType):
        found.setdefault(kind.cls)
        return f"I{kind.cls.__name__}"
    if isinstance(kind, inspect.UnionType):
        return " | ".join(typescript(part, found) for part in kind.types)
    if isinstance(kind, (inspect.VarTupleType, inspect.ListType)):
        inner = typescript(kind.item_type, found)
        return f"({inner})[]" if "|" in inner else f"{inner}[]"
    if isinstance(kind, inspect.DictType):
        return f"Record<string, {typescript(kind.value_type, found)}>"
    names: dict[type[inspect.Type], str] = {
        inspect.NoneType: "null",
        inspect.BoolType: "boolean",
        inspect.IntType: "number",
        inspect.FloatType: "number",
        inspect.StrType: "string",
        inspect.AnyType: "unknown",
    }
    return names[type(kind)]


def interface(struct: type, found: dict[type, None]) -> str:
    """One Struct as an interface; replies have a constant `ok`."""
    info: Any = inspect.type_info(struct)
    lines = [f"  {info.tag_field}: '{info.tag}';"] if info.tag_field else []
    for field in info.fields:
        text = NARROWER.get((struct, field.name)) or typescript(field.type, found)
        if field.name == "ok":
            text = str(field.default).lower()
        lines.append(f"  {field.encode_name}: {text};")
    return f"export interface I{struct.__name__} {{\n" + "\n".join(lines) + "\n}\n"


def shape(struct: type) -> str:
    """One Struct as a row of the table by which a page completes JSON: type and default of each field."""
    fields = []
    for field in inspect.type_info(struct).fields:  # type: ignore[attr-defined]
        kind = typescript(field.type, {})
        default = field.default if isinstance(field.default, bool | int | float | str) else None
        fields.append(f"{field.encode_name}: '{kind}{f'={json.dumps(default)}' if default else ''}'")
    return f"  I{struct.__name__}: {{ {', '.join(fields)} }},"


def shapes(structs: tuple[type, ...]) -> str:
    """The table of these Structs and those in them."""
    found: dict[type, None] = dict.fromkeys(structs)
    for struct in (waiting := list(found)):
        interface(struct, found)
        waiting += [other for other in found if other not in waiting]
    rows = "\n".join(shape(struct) for struct in found)
    return (
        "/** Type and default of the fields of what a notebook saves; see `complete`. */\n"
        f"export const SHAPES: Readonly<Record<string, Readonly<Record<string, string>>>> = {{\n{rows}\n}};\n"
    )


def payload(request: type) -> str:
    """The fields of a request without its operation."""
    info: Any = inspect.type_info(request)
    fields = [f"{field.encode_name}: {typescript(field.type, {})}" for field in info.fields]
    return f"{{ {'; '.join(fields)} }}" if fields else "Record<string, never>"


def text() -> str:
    """The whole file."""
    found: dict[type, None] = {}
    body: list[str] = []
    operations = sorted(protocol.OPERATIONS.items())
    for _, operation in operations:
        found.setdefault(operation.reply)
    found.setdefault(protocol.ErrorReply)
    found.update(dict.fromkeys(EVENTS))
    done: set[type] = set()
    while len(done) < len(found):
        for struct in [struct for struct in found if struct not in done]:
            done.add(struct)
            body.append(interface(struct, found))
    rows = [
        f"  {op}: {{ payload: {payload(request)}; reply: I{reply.__name__} }};" for op, (request, reply) in operations
    ]
    states = "\n".join(f"  | '{state.value}'" for state in RunState)
    return "\n".join(
        [
            "/** Frontend protocol. Written by `python -m tools.protocol_types`; do not edit. */\n",
            f"export const RUN_MIME = '{RECORD_MIME}';",
            f"export const GROUP_MIME = '{GROUP_MIME}';",
            f"export const RECORD_SCHEMA = {RECORD_SCHEMA};",
            f"export const PROTOCOL_VERSION = {protocol.VERSION};",
            f"export const REQUEST = '{protocol.REQUEST}';",
            f"export const EVENTS = '{protocol.EVENTS}';\n",
            f"export type RunState =\n{states};\n",
            *body,
            shapes((RunRecord, RunGroup)),
            "/** Events on the comm. */",
            "export type PanelEvent = " + " | ".join(f"I{struct.__name__}" for struct in EVENTS) + ";\n",
            "/** Payload and reply of every operation. */",
            "export interface IOperations {\n" + "\n".join(rows) + "\n}\n",
        ]
    )


def main(argv: list[str]) -> int:
    """Write the file, or compare it."""
    wanted = text()
    if "--check" not in argv:
        PATH.write_text(wanted)
        return 0
    if PATH.read_text() == wanted:
        return 0
    shown = PATH.relative_to(ROOT)
    print(f"{shown} is outdated. Run: .venv/bin/python -m tools.protocol_types", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
