"""What a page asks of the kernel; ``op`` says which."""

from __future__ import annotations

from typing import Any

import msgspec


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
    view
        Name of the GPU charts that the reader has chosen; empty for those that are shown.
    """

    feed: str
    shown: bool
    seen: tuple[int, ...] = ()
    view: str = ""


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
    """The forms: of every kind of target, of a submit, and of connecting a workspace."""


class DoAct(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="act"):
    """Do something with a target; the same as ``%aml_compute <verb>``.

    Attributes
    ----------
    target
        Its name; with the verb ``disconnect`` that of a workspace.
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
    """Remove ended runs; without `confirmed` it only says what would be lost.

    Attributes
    ----------
    unrecorded
        Of the runs that are to be removed although MLflow has no record of them, as the reply named them.
    """

    handles: tuple[str, ...]
    confirmed: bool = False
    unrecorded: tuple[str, ...] = ()


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
    child
        Id of a step or trial, whose log is wanted; empty for the run's own.
    """

    handle: str
    offset: int = 0
    limit: int = 1 << 17
    child: str = ""


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


class Connect(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="connect"):
    """Write the line that connects an Azure ML workspace and check it as the magic would; signs nobody in.

    Attributes
    ----------
    values
        By name of a field of a connect; empty values are left out of the line.
    """

    values: dict[str, Any] = {}


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
    | Connect
)
