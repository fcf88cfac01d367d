"""The wire form of every operation and event: a page of the last release and this kernel understand each other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jupyter_amltrain.frontend import protocol
from jupyter_amltrain.frontend.protocol import OPERATIONS
from tools.protocol_types import EVENTS

from .wire import GOLDEN, round_trip

GOLD = json.loads(GOLDEN.read_text())
STRUCTS: dict[tuple[str, ...], type] = {("error",): protocol.ErrorReply}
for _op, (_request, _reply) in OPERATIONS.items():
    STRUCTS |= {("operations", _op, "request"): _request, ("operations", _op, "reply"): _reply}
for _event in EVENTS:
    STRUCTS["events", str(_event.__struct_config__.tag)] = _event


def contains(new: Any, old: Any) -> bool:
    """Whether all of `old` is in `new`: a reader ignores fields that it does not know."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(name in new and contains(new[name], old[name]) for name in old)
    if isinstance(old, list):
        return len(new) == len(old) and all(map(contains, new, old))
    return bool(new == old and type(new) is type(old))


def gold_of(path: tuple[str, ...]) -> dict[str, Any]:
    gold = GOLD
    for part in path:
        gold = gold[part]
    return gold


@pytest.mark.parametrize("path", STRUCTS, ids="-".join)
def test_message_of_released_version_keeps_its_wire_form(path: tuple[str, ...]) -> None:
    gold, struct = gold_of(path), STRUCTS[path]
    tag = {"type": path[1]} if path[0] == "events" else {}
    assert contains(round_trip({**tag, **gold["full"]}, struct), gold["full"])
    assert contains(round_trip({**tag, **gold["required"]}, struct), gold["with defaults"])


@pytest.mark.parametrize("op", GOLD["operations"])
def test_request_of_released_page_is_decoded(op: str) -> None:
    content = {"version": protocol.VERSION, "op": op, **GOLD["operations"][op]["request"]["full"]}
    assert type(protocol.decode(content)) is OPERATIONS[op].request


def test_golden_file_has_every_operation_and_event() -> None:
    assert set(GOLD["operations"]) == set(OPERATIONS), "new ones are added by: python -m tests.frontend.wire"
    assert set(GOLD["events"]) == {event.__struct_config__.tag for event in EVENTS}
