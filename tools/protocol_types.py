"""Writes ``labextension/src/protocol.ts`` from the Structs that cross the wire.

``python -m tools.protocol_types`` writes it, ``python -m tools.protocol_types --check`` says whether it is
fresh. Runs in ``.venv``: it imports the package.
"""

from __future__ import annotations

import sys
from typing import Any, get_args

import msgspec
from msgspec import inspect

from jupyter_amltrain.panel import protocol
from jupyter_amltrain.spec.record import RECORD_MIME, RECORD_SCHEMA, RunRecord
from jupyter_amltrain.spec.rows import RunRow
from jupyter_amltrain.spec.run import RunState
from tools.environment import ROOT

PLACE = ROOT / "labextension" / "src" / "protocol.ts"

#: Operation -> (request, reply).
OPERATIONS: dict[str, tuple[type[msgspec.Struct], type[msgspec.Struct]]] = {
    "hello": (protocol.Hello, protocol.HelloReply),
    "state": (protocol.State, protocol.StateReply),
    "run": (protocol.GetRun, protocol.RunReply),
    "cancel": (protocol.Cancel, protocol.CancelReply),
    "dashboard": (protocol.OpenDashboard, protocol.DashboardReply),
    "follow": (protocol.FollowFeed, protocol.FollowReply),
    "events": (protocol.Events, protocol.EventsReply),
    "kinds": (protocol.Kinds, protocol.KindsReply),
    "act": (protocol.DoAct, protocol.ActReply),
    "delete": (protocol.DeleteRuns, protocol.DeleteReply),
    "again": (protocol.Again, protocol.AgainReply),
    "log": (protocol.GetLog, protocol.LogReply),
    "mlflow": (protocol.OpenMlflow, protocol.MlflowReply),
    "compose": (protocol.Compose, protocol.ComposeReply),
    "connect": (protocol.Connect, protocol.ConnectReply),
}

#: What comes on the events' comm; `type` tells them apart.
EVENTS: tuple[type[msgspec.Struct], ...] = get_args(protocol.Event)

#: Fields whose Python type says less than what is sent.
NARROWER: dict[tuple[type, str], str] = {(RunRecord, "state"): "RunState", (RunRow, "state"): "RunState"}


def typescript(kind: inspect.Type, found: dict[type, None]) -> str:
    """The TypeScript type of one field; Structs are collected in `found`."""
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


def payload(request: type) -> str:
    """The fields of a request without its operation."""
    info: Any = inspect.type_info(request)
    fields = [f"{field.encode_name}: {typescript(field.type, {})}" for field in info.fields]
    return f"{{ {'; '.join(fields)} }}" if fields else "Record<string, never>"


def text() -> str:
    """The whole file."""
    found: dict[type, None] = {}
    body: list[str] = []
    for _, reply in OPERATIONS.values():
        found.setdefault(reply)
    found.setdefault(protocol.ErrorReply)
    found.update(dict.fromkeys(EVENTS))
    done: set[type] = set()
    while len(done) < len(found):
        for struct in [struct for struct in found if struct not in done]:
            done.add(struct)
            body.append(interface(struct, found))
    operations = [
        f"  {op}: {{ payload: {payload(request)}; reply: I{reply.__name__} }};"
        for op, (request, reply) in OPERATIONS.items()
    ]
    states = "\n".join(f"  | '{state.value}'" for state in RunState)
    return "\n".join(
        [
            "/** The wire. Written by `python -m tools.protocol_types`; do not edit. */\n",
            f"export const RUN_MIME = '{RECORD_MIME}';",
            f"export const RECORD_SCHEMA = {RECORD_SCHEMA};",
            f"export const PROTOCOL_VERSION = {protocol.VERSION};",
            f"export const REQUEST = '{protocol.REQUEST}';",
            f"export const EVENTS = '{protocol.EVENTS}';\n",
            f"export type RunState =\n{states};\n",
            *body,
            "/** What comes on the events' comm. */",
            "export type PanelEvent = " + " | ".join(f"I{struct.__name__}" for struct in EVENTS) + ";\n",
            "/** Operation -> its payload and its reply. */",
            "export interface IOperations {\n" + "\n".join(operations) + "\n}\n",
        ]
    )


def main(argv: list[str]) -> int:
    """Write the file, or compare it."""
    wanted = text()
    if "--check" not in argv:
        PLACE.write_text(wanted)
        return 0
    if PLACE.read_text() == wanted:
        return 0
    shown = PLACE.relative_to(ROOT)
    print(
        f"{shown} is not what panel/protocol.py says. Type: .venv/bin/python -m tools.protocol_types", file=sys.stderr
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
