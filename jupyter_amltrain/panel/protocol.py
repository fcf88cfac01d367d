"""What crosses the wire between our front end and the kernel, as frozen Structs.

Requests come as ``amltrain_request`` on the kernel's control channel and are answered
by ``amltrain_reply``; both carry :data:`VERSION`. Events go out on a comm on which the kernel
only sends: the page chooses its id and opens it by the request ``events``.
"""

from __future__ import annotations

from typing import Any

import msgspec

from jupyter_amltrain.spec.fields import Field, TargetKind
from jupyter_amltrain.spec.record import RunRecord
from jupyter_amltrain.spec.rows import RunRow, TargetRow

#: Grows when a change would confuse the other side.
VERSION = 2

REQUEST = "amltrain_request"
REPLY = "amltrain_reply"
#: Name of the events' comm target; nobody listens to it in the kernel.
EVENTS = "amltrain_events"


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


class Events(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="events"):
    """What a page wants to hear now; the whole of it, each time. Opens the comm when it is unknown.

    A new comm, a gap (`seq` is older than what was sent), or a panel that is shown again gets a snapshot.

    Attributes
    ----------
    comm
        Id of the page's comm: one for each page and kernel connection.
    shown
        ``panel``: the panel is seen, send everything. ``status``: only runs that begin, end or need
        attention. Empty: nothing more; the comm is forgotten.
    seq
        Number of the last event that the page has; -1 for none.
    gpus
        Whose GPUs to stream: a run's handle, or ``target:<name>`` (which samples the target); empty for none.
    looks
        Handles whose streams somebody follows (log views, GPU charts): they are read as they grow.
    details
        Handles of past runs that are in view and whose metric, sparkline and log size are wanted; at most 30.
    meter
        With ``status``: seconds between two ``meter`` events about the current target's GPUs; 0 for none.
    """

    comm: str
    shown: str = "panel"
    seq: int = -1
    gpus: str = ""
    looks: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    meter: float = 0.0


class Kinds(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="kinds"):
    """The forms: of every kind of target, and of a submit."""


class DoAct(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="act"):
    """Do something with a target; the same as ``%aml_compute <verb>``.

    Attributes
    ----------
    kind
        For ``create`` and ``attach``; else empty.
    values
        By field name; what is absent has its default.
    dry
        Only check the values.
    confirmed
        A person has read what it costs or loses.
    """

    verb: str
    target: str
    kind: str = ""
    values: dict[str, Any] = {}
    dry: bool = False
    confirmed: bool = False


class DeleteRuns(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="delete"):
    """Remove ended runs; without `confirmed` it only says what would be lost."""

    handles: tuple[str, ...]
    confirmed: bool = False


class Again(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="again"):
    """Submit a run's job once more, as it was: the same code, parameters and target."""

    handle: str


class GetLog(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="log"):
    """Part of a log.

    Attributes
    ----------
    offset
        Byte to begin at; negative counts from the end.
    limit
        Bytes at most; the kernel may give fewer.
    """

    handle: str
    offset: int = 0
    limit: int = 1 << 17


class OpenMlflow(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="mlflow"):
    """The address of a run's page in MLflow; asked again while the server starts."""

    handle: str


class Compose(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="compose"):
    """Write or read the line of a submit, and check it as the magic would; sends nothing.

    Attributes
    ----------
    old
        The line that is there already (``%%aml_submit ...`` or ``%aml_submit ...``); empty for none.
    cell
        The code below it; ``None`` for the line form.
    script
        Path of a ``.py`` file for the line form, relative to `folder`.
    folder
        Folder of the notebook relative to the server's root; only to name files in messages.
    values
        By name of a submit field; empty values are left out of the line. ``None``: only read `old`.
    """

    old: str = ""
    cell: str | None = None
    script: str = ""
    folder: str = ""
    values: dict[str, Any] | None = None


Request = (
    Hello
    | State
    | GetRun
    | Cancel
    | OpenDashboard
    | FollowFeed
    | Events
    | Kinds
    | DoAct
    | DeleteRuns
    | Again
    | GetLog
    | OpenMlflow
    | Compose
)


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
    """Answer to :class:`DeleteRuns`."""

    deleted: tuple[str, ...] = ()
    ask: str = ""
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
    """

    text: str
    start: int
    offset: int
    ended: bool
    path: str = ""
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
    """

    line: str
    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
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
    | ErrorReply
)


# ---- events: data of comm messages; numbered without a gap from 0 on each comm


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="snapshot"):
    """All there is, newest run first.

    Attributes
    ----------
    runs
        The newest 500.
    more
        Past runs that are not among them.
    """

    seq: int
    current: str
    targets: tuple[TargetRow, ...]
    runs: tuple[RunRow, ...]
    more: int = 0
    version: int = VERSION


class Changes(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="changes"):
    """What is new since the last event; at most two a second.

    Attributes
    ----------
    targets
        All of them when any has changed, else ``None``.
    current
        Name of the target in use when that or `targets` has changed, else ``None``.
    renew
        The page is asked to send its ``events`` request again: is it still there?
    """

    seq: int
    runs: tuple[RunRow, ...] = ()
    gone: tuple[str, ...] = ()
    targets: tuple[TargetRow, ...] | None = None
    current: str | None = None
    renew: bool = False


class Gpus(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="gpus"):
    """Ticks of the GPUs that the page asked for; at most two messages a second.

    Buffers of n ticks and G GPUs: float64 ``(n,)`` unix seconds; uint8 ``(n, G)`` percent utilization;
    uint8 ``(n, G)`` percent of memory; float32 ``(n, 2)`` host: percent of one core, bytes of memory. 255 and
    NaN stand for *cannot tell*.

    Attributes
    ----------
    source
        As it was asked for.
    first
        These ticks replace what the page has: up to 600 of the past.
    labels
        One a GPU, ``"node:index"``; only with `first`.
    names
        Of the GPUs, in the same order; only with `first`.
    memory
        Bytes of each GPU; only with `first`. `None` where unknown.
    cpus, host_memory
        Of the first node; only with `first`.
    period
        Seconds between ticks.
    note
        Why there is nothing, or what happened to the driver; one sentence.
    ended
        No more ticks will come.
    """

    seq: int
    source: str
    n: int = 0
    first: bool = False
    labels: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    memory: tuple[float | None, ...] = ()
    cpus: int | None = None
    host_memory: float | None = None
    period: float = 1.0
    note: str = ""
    ended: bool = False


class Notice(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="notice"):
    """A work on a target has ended: to be told to the person.

    Attributes
    ----------
    level
        ``success``, ``warning`` or ``error``.
    """

    seq: int
    level: str
    text: str
    target: str = ""


class Meter(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="meter"):
    """Mean utilization of the current target's GPUs in percent, for the status bar; `None`: nothing is measured."""

    seq: int
    target: str
    gpus: int
    util: float | None
    renew: bool = False


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="beat"):
    """The kernel is alive although a cell keeps it busy; every 2 s while a cell runs and a panel is shown."""

    seq: int
    renew: bool = False


Event = Snapshot | Changes | Gpus | Notice | Meter | Beat


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
