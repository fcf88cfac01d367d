"""What crosses the wire between our front end and the kernel, as frozen Structs.

Requests come as ``amltrain_request`` on the kernel's control channel and are answered
by ``amltrain_reply``; both carry :data:`VERSION`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from jupyter_amltrain.spec.record import RunRecord

#: Grows when a change would confuse the other side.
VERSION = 1

REQUEST = "amltrain_request"
REPLY = "amltrain_reply"


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="hello"):
    """Is the extension there, and which?"""


class State(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="state"):
    """Targets and runs, without streams."""


class GetRun(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="run"):
    """The full record of one run."""

    handle: str


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="cancel"):
    """Ask for the end of a run."""

    handle: str


class OpenDashboard(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="dashboard"):
    """Give this page live widgets of a run (or monitor); asked again while they are being made.

    Attributes
    ----------
    page
        Names the load of a page: each has widgets of its own.
    window
        Seconds that the charts show at first; 0 for all.
    """

    handle: str
    page: str
    window: float = 600.0


class FollowFeed(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="follow"):
    """The page shows a feed, or has hidden it; a hidden one gets nothing.

    Attributes
    ----------
    seen
        Ticks that the page has, by node, when it is shown: later ones follow on the feed.
    """

    feed: str
    shown: bool
    seen: tuple[int, ...] = ()


Request = Hello | State | GetRun | Cancel | OpenDashboard | FollowFeed


class HelloReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to :class:`Hello`."""

    package: str
    kernel_busy: bool
    version: int = VERSION
    ok: bool = True


class StateReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to :class:`State`; the records carry no series and no log."""

    runs: tuple[RunRecord, ...]
    targets: tuple[dict[str, Any], ...]
    current: str
    version: int = VERSION
    ok: bool = True


class RunReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to :class:`GetRun`.

    Attributes
    ----------
    picture
        PNG of an ended run, base64, for the saved notebook; empty when it could not be drawn in time.
    width, height
        Its size in CSS pixels.
    """

    record: RunRecord
    picture: str = ""
    width: int = 0
    height: int = 0
    version: int = VERSION
    ok: bool = True


class CancelReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to :class:`Cancel`: accepted, not yet dead."""

    accepted: bool
    state: str
    version: int = VERSION
    ok: bool = True


class DashboardReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to :class:`OpenDashboard`.

    Attributes
    ----------
    feed
        Id of the feed whose widget model was sent; empty while it is being made.
    why
        Why there will be none (no samples to show, say); empty else.
    """

    feed: str = ""
    why: str = ""
    version: int = VERSION
    ok: bool = True


class FollowReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to :class:`FollowFeed`; `known` is false for a feed that was closed."""

    known: bool
    version: int = VERSION
    ok: bool = True


class ErrorReply(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong, one sentence."""

    error: str
    version: int = VERSION
    ok: bool = False


Reply = HelloReply | StateReply | RunReply | CancelReply | DashboardReply | FollowReply | ErrorReply


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
