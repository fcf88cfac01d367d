"""What crosses the wire between our front end and the kernel, as frozen Structs.

Requests come as ``amltrain_request`` on the kernel's control channel and are answered
by ``amltrain_reply``; both carry :data:`VERSION`. Events go out on a comm on which the kernel
only sends: the page chooses its id and opens it by the request ``events``.
The Structs themselves: :mod:`~.questions`, :mod:`~.replies`, :mod:`~.pushed`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from jupyter_amltrain.panel.pushed import (
    Beat,
    Changes,
    Event,
    Gpus,
    Meter,
    Notice,
    Snapshot,
)
from jupyter_amltrain.panel.questions import (
    Again,
    Cancel,
    Compose,
    Connect,
    DeleteRuns,
    DoAct,
    Events,
    FollowFeed,
    GetLog,
    GetRun,
    Hello,
    Kinds,
    OpenDashboard,
    OpenMlflow,
    Request,
    State,
)
from jupyter_amltrain.panel.replies import (
    VERSION,
    ActReply,
    AgainReply,
    CancelReply,
    ComposeReply,
    ConnectReply,
    DashboardReply,
    DeleteReply,
    ErrorReply,
    EventsReply,
    FollowReply,
    HelloReply,
    KindsReply,
    LogReply,
    MlflowReply,
    Reply,
    RunReply,
    StateReply,
)

__all__ = [
    "ActReply",
    "Again",
    "AgainReply",
    "Beat",
    "Cancel",
    "CancelReply",
    "Changes",
    "Compose",
    "ComposeReply",
    "Connect",
    "ConnectReply",
    "DashboardReply",
    "DeleteReply",
    "DeleteRuns",
    "DoAct",
    "EVENTS",
    "ErrorReply",
    "Event",
    "Events",
    "EventsReply",
    "FollowFeed",
    "FollowReply",
    "GetLog",
    "GetRun",
    "Gpus",
    "Hello",
    "HelloReply",
    "Kinds",
    "KindsReply",
    "LogReply",
    "Meter",
    "MlflowReply",
    "Notice",
    "OpenDashboard",
    "OpenMlflow",
    "REPLY",
    "REQUEST",
    "Reply",
    "Request",
    "RunReply",
    "Snapshot",
    "State",
    "StateReply",
    "VERSION",
    "decode",
]

REQUEST = "amltrain_request"
REPLY = "amltrain_reply"
#: Name of the events' comm target; nobody listens to it in the kernel.
EVENTS = "amltrain_events"


def decode(content: dict[str, Any]) -> Request:
    """A request from message content.

    Raises
    ------
    msgspec.ValidationError
        An unknown op or a field of a wrong type.
    """
    fields = {k: v for k, v in content.items() if k != "version"}
    request: Request = msgspec.convert(fields, Request)
    return request
