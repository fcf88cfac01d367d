"""What the kernel answers; ``ok`` is false of :class:`ErrorReply` alone."""

from __future__ import annotations

from typing import Any

import msgspec

from jupyter_amltrain.spec.fields import Field, TargetKind
from jupyter_amltrain.spec.record import RunRecord

#: Version of the protocol: grows when a change would confuse the other side.
VERSION = 2


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


class EventsReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to :class:`Events`.

    Attributes
    ----------
    snapshot
        Whether a snapshot follows on the comm.
    why
        Why there are no GPUs to stream, or why a target cannot be sampled; empty else.
    """

    snapshot: bool
    why: str = ""
    version: int = VERSION
    ok: bool = True


class KindsReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to :class:`Kinds`."""

    kinds: tuple[TargetKind, ...]
    submit: tuple[Field, ...]
    connect: tuple[Field, ...] = ()
    version: int = VERSION
    ok: bool = True


class ActReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to :class:`DoAct`.

    Attributes
    ----------
    accepted
        It is done, or has begun: the target's row tells the rest (its ``work``).
    ask
        Not accepted: a person has to agree to this first, then `confirmed`.
    errors
        Not accepted: what is wrong, by field; the key ``""`` is about all of them.
    said
        What the magic would print; empty for what takes longer.
    line
        The same as a magic, e.g. ``%aml_compute scale big --nodes 4``: what a click did can be typed.
    """

    accepted: bool
    ask: str = ""
    errors: dict[str, str] = {}
    said: str = ""
    line: str = ""
    version: int = VERSION
    ok: bool = True


class DeleteReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to :class:`DeleteRuns`; `unrecorded`: of `ask`, the runs that MLflow has no record of."""

    deleted: tuple[str, ...] = ()
    ask: str = ""
    unrecorded: tuple[str, ...] = ()
    errors: dict[str, str] = {}  #: by handle
    version: int = VERSION
    ok: bool = True


class AgainReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to :class:`Again`: the handle of the new run."""

    handle: str
    version: int = VERSION
    ok: bool = True


class LogReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to :class:`GetLog`.

    Attributes
    ----------
    text
        Whole characters only; carriage returns as they are.
    start, offset
        Byte where `text` begins, and where to go on.
    ended
        The run has ended and this is the end of its log.
    path
        Where the whole log lies.
    restarts
        How often the job has rewritten its log; where it has since the last answer, nothing that was read holds.
    """

    text: str
    start: int
    offset: int
    ended: bool
    path: str = ""
    restarts: int = 0
    version: int = VERSION
    ok: bool = True


class MlflowReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to :class:`OpenMlflow`: the address, or empty while the server starts, or why not."""

    url: str = ""
    why: str = ""
    version: int = VERSION
    ok: bool = True


class ComposeReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to :class:`Compose`.

    Attributes
    ----------
    line
        The line as it would be written; flags of the old one that no field names are kept.
    values
        What the line says, by name of a submit field.
    errors
        By name of a field; the key ``""`` is about the line or the code below it.
    notes
        What is worth knowing and stops nothing, one sentence each.
    """

    line: str
    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    version: int = VERSION
    ok: bool = True


class ConnectReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to :class:`Connect`.

    Attributes
    ----------
    errors
        By name of a field; the key ``""`` is about the whole line.
    note
        What it would connect where the values alone do not tell; may be empty.
    """

    line: str
    errors: dict[str, str] = {}
    note: str = ""
    version: int = VERSION
    ok: bool = True


class ErrorReply(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong, one sentence."""

    error: str
    version: int = VERSION
    ok: bool = False


Reply = (
    HelloReply
    | StateReply
    | RunReply
    | CancelReply
    | DashboardReply
    | FollowReply
    | EventsReply
    | KindsReply
    | ActReply
    | DeleteReply
    | AgainReply
    | LogReply
    | MlflowReply
    | ComposeReply
    | ConnectReply
    | ErrorReply
)
