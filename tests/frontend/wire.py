"""Example messages of every operation and event of the frontend protocol, and the file that pins their wire form.

``python -m tests.frontend.wire`` adds what is new to the file; it never changes what is there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from jupyter_amltrain.frontend import protocol
from tools.protocol_types import EVENTS

GOLDEN = Path(__file__).parents[1] / "golden" / "frontend-protocol-4.json"


def example(kind: inspect.Type, name: str = "") -> Any:
    """A JSON value of a type; texts are the name of their field."""
    if isinstance(kind, inspect.StructType):
        return fields_of(kind.cls)
    if isinstance(kind, inspect.UnionType):
        return example(next(part for part in kind.types if not isinstance(part, inspect.NoneType)), name)
    if isinstance(kind, inspect.TupleType):
        return [example(part, name) for part in kind.item_types]
    if isinstance(kind, (inspect.VarTupleType, inspect.ListType)):
        return [example(kind.item_type, name)]
    if isinstance(kind, inspect.DictType):
        return {name: example(kind.value_type, name)}
    values: dict[type[inspect.Type], Any] = {
        inspect.BoolType: True,
        inspect.IntType: 7,
        inspect.FloatType: 7.5,
        inspect.StrType: name,
        inspect.AnyType: name,
    }
    return values[type(kind)]


def fields_of(struct: type, *, required: bool = False) -> dict[str, Any]:
    """Every field of a Struct with a value, or only those without a default."""
    info: Any = inspect.type_info(struct)
    constants = {"version": protocol.VERSION, "ok": struct.__name__ != "ErrorReply"}
    return {
        field.encode_name: constants.get(field.encode_name, example(field.type, field.encode_name))
        for field in info.fields
        if field.required or not required
    }


def round_trip(content: dict[str, Any], struct: type) -> dict[str, Any]:
    """`content` as the struct reads and writes it, without the fields that name its type."""
    wire: dict[str, Any] = json.loads(msgspec.json.encode(msgspec.convert(content, struct)))
    return {name: value for name, value in wire.items() if name not in ("op", "type")}


def main() -> None:
    """Add new operations and events to the file."""
    gold = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {"operations": {}, "events": {}}
    for name, operation in protocol.OPERATIONS.items():
        pair = {"request": pinned(operation.request), "reply": pinned(operation.reply)}
        gold["operations"].setdefault(name, pair)
    for event in EVENTS:
        gold["events"].setdefault(event.__struct_config__.tag, pinned(event))
    GOLDEN.write_text(json.dumps(gold, indent=1) + "\n")


def pinned(struct: type) -> dict[str, Any]:
    """The wire form of a Struct: with every field, and with its defaults."""
    info: Any = inspect.type_info(struct)
    tag = {info.tag_field: info.tag} if info.tag_field else {}
    full, least = fields_of(struct), fields_of(struct, required=True)
    return {
        "full": round_trip({**tag, **full}, struct),
        "required": least,
        "with defaults": round_trip({**tag, **least}, struct),
    }


if __name__ == "__main__":
    main()
