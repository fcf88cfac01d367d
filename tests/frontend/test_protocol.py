from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.frontend import control, protocol
from jupyter_amltrain.frontend.clients import Subscribe
from jupyter_amltrain.frontend.control import Hello
from jupyter_amltrain.frontend.handlers import RequestHandlers
from jupyter_amltrain.frontend.protocol import OPERATIONS, ErrorReply, Request
from jupyter_amltrain.frontend.run_handlers import CancelReply, CancelRun, GetRun
from jupyter_amltrain.frontend.target_handlers import ActOnTarget, ComposeSubmit
from jupyter_amltrain.magics import control_channel
from tests.helpers import api_of


@pytest.mark.parametrize(
    ("content", "request_"),
    [
        ({"version": protocol.VERSION, "op": "hello"}, Hello()),
        ({"version": protocol.VERSION, "op": "run", "handle": "local/a-22222"}, GetRun(handle="local/a-22222")),
        ({"version": protocol.VERSION, "op": "cancel", "handle": "x"}, CancelRun(handle="x")),
        (
            {"version": protocol.VERSION, "op": "events", "comm": "c", "looks": ["local/a-22222"], "meter": 2},
            Subscribe(comm="c", looks=("local/a-22222",), meter=2.0),
        ),
        (
            {"version": protocol.VERSION, "op": "act", "verb": "scale", "target": "big", "values": {"nodes": 4}},
            ActOnTarget(verb="scale", target="big", values={"nodes": 4}),
        ),
        ({"version": protocol.VERSION, "op": "compose", "cell": None}, ComposeSubmit()),
        ({"op": "hello", "of a later minor version": 1}, Hello()),
    ],
)
def test_request_is_decoded(content: dict[str, Any], request_: Request) -> None:
    assert protocol.decode(content) == request_


@pytest.mark.parametrize(
    "content", [{}, {"op": "fly"}, {"op": "run"}, {"op": "run", "handle": 3}, {"op": None}, {"op": ["hello"]}]
)
def test_content_of_no_request_is_refused(content: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        protocol.decode({"version": protocol.VERSION, **content})


def test_every_reply_has_version_and_ok() -> None:
    for operation in OPERATIONS.values():
        fields = {field.name: field.default for field in msgspec.structs.fields(operation.reply)}
        assert fields["version"] == protocol.VERSION == 4 and fields["ok"] is True
    assert ErrorReply(error="no").ok is False


def test_error_reply_has_code_field_and_details() -> None:
    error = CommandError("Bad.", hint="Good.", code="flag.bad", field="gpus", details={"most": 4})
    wire = msgspec.json.decode(msgspec.json.encode(ErrorReply.of(error)))
    assert wire["error"] == "Bad. Good."
    assert (wire["code"], wire["field"], wire["details"]) == ("flag.bad", "gpus", {"most": 4})
    assert ErrorReply.of(CommandError("Bad.")).code == "CommandError"


def test_second_handler_of_an_operation_is_refused() -> None:
    async def cancel(request: CancelRun) -> CancelReply:
        raise AssertionError

    with pytest.raises(ValueError, match="cancel"):
        protocol.op("cancel")(cancel)


def test_every_operation_has_a_handler(tmp_path: Path) -> None:
    with api_of(tmp_path) as api:
        handled = set(RequestHandlers(api.controller()).by_request)
    handled |= {request for request, _ in protocol.handlers_of(control.RequestServer(None, lambda: None, "1", bool))}
    assert handled == {operation.request for operation in OPERATIONS.values()}


def test_control_channel_handles_the_message_type_of_the_protocol() -> None:
    assert control_channel._REQUEST == protocol.REQUEST


def test_event_encodes_type_and_sequence_number() -> None:
    events: list[protocol.Event] = [
        protocol.StateSnapshot(seq=0, current="local", targets=(), runs=()),
        protocol.Changes(seq=1),
        protocol.Gpus(seq=2, source="target:local"),
        protocol.Notice(seq=3, level="error", text="no"),
        protocol.Meter(seq=4, target="local", gpus=0, util=None),
        protocol.Beat(seq=5),
    ]
    wire = [msgspec.json.decode(msgspec.json.encode(event)) for event in events]
    assert [event["seq"] for event in wire] == list(range(len(events)))
    assert [event["type"] for event in wire] == ["snapshot", "changes", "gpus", "notice", "meter", "beat"]
    assert wire[0]["version"] == protocol.VERSION
