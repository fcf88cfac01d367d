from __future__ import annotations

from typing import Any

import msgspec
import pytest

from jupyter_amltrain.magics import door
from jupyter_amltrain.panel import protocol


@pytest.mark.parametrize(
    ("content", "request_"),
    [
        ({"version": protocol.VERSION, "op": "hello"}, protocol.Hello()),
        ({"version": protocol.VERSION, "op": "state"}, protocol.State()),
        (
            {"version": protocol.VERSION, "op": "run", "handle": "local/a-22222"},
            protocol.GetRun(handle="local/a-22222"),
        ),
        ({"version": protocol.VERSION, "op": "cancel", "handle": "x"}, protocol.Cancel(handle="x")),
        (
            {"version": protocol.VERSION, "op": "events", "comm": "c", "looks": ["local/a-22222"], "meter": 2},
            protocol.Events(comm="c", looks=("local/a-22222",), meter=2.0),
        ),
        (
            {"version": protocol.VERSION, "op": "act", "verb": "scale", "target": "big", "values": {"nodes": 4}},
            protocol.DoAct(verb="scale", target="big", values={"nodes": 4}),
        ),
        ({"version": protocol.VERSION, "op": "compose", "cell": None}, protocol.Compose()),
        ({"op": "hello", "of a later minor version": 1}, protocol.Hello()),
    ],
)
def test_requests_are_read(content: dict[str, Any], request_: protocol.Request) -> None:
    assert protocol.decode(content) == request_


@pytest.mark.parametrize(
    "content", [{}, {"op": "fly"}, {"op": "run"}, {"op": "run", "handle": 3}, {"op": None}, {"op": ["hello"]}]
)
def test_what_is_no_request_is_refused(content: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        protocol.decode({"version": protocol.VERSION, **content})


def test_every_answer_carries_version_and_ok() -> None:
    replies: list[protocol.Reply] = [
        protocol.HelloReply(package="1", kernel_busy=False),
        protocol.StateReply(runs=(), targets=(), current="local"),
        protocol.CancelReply(accepted=True, state="running"),
        protocol.EventsReply(snapshot=True),
        protocol.KindsReply(kinds=(), submit=()),
        protocol.ActReply(accepted=True),
        protocol.DeleteReply(),
        protocol.AgainReply(handle="local/a-22222"),
        protocol.LogReply(text="", start=0, offset=0, ended=False),
        protocol.MlflowReply(),
        protocol.ComposeReply(line="%%aml_submit"),
        protocol.ConnectReply(line="%aml_compute connect"),
        protocol.ErrorReply(error="no"),
    ]
    for reply in replies:
        wire = msgspec.json.decode(msgspec.json.encode(reply))
        assert wire["version"] == protocol.VERSION == 2
        assert wire["ok"] is (not isinstance(reply, protocol.ErrorReply))


def test_the_door_listens_for_the_protocols_message() -> None:
    assert door._REQUEST == protocol.REQUEST


def test_every_event_has_its_type_and_number_in_what_is_sent() -> None:
    events: list[protocol.Event] = [
        protocol.Snapshot(seq=0, current="local", targets=(), runs=()),
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
