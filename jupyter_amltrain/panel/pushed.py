"""What the kernel says unasked: data of comm messages, numbered without a gap from 0 on each comm."""

from __future__ import annotations

import msgspec

from jupyter_amltrain.panel.replies import VERSION
from jupyter_amltrain.spec.rows import RunRow, TargetRow, WorkspaceRow


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="snapshot"):
    """All there is, newest run first.

    Attributes
    ----------
    runs
        The newest 500.
    more
        Past runs that are not among them.
    trouble
        Why the targets cannot be read, one sentence; empty when they can.
    """

    seq: int
    current: str
    targets: tuple[TargetRow, ...]
    runs: tuple[RunRow, ...]
    more: int = 0
    workspaces: tuple[WorkspaceRow, ...] = ()
    trouble: str = ""
    version: int = VERSION


class Changes(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="changes"):
    """What is new since the last event; at most two a second.

    Attributes
    ----------
    targets
        All of them when any has changed, else ``None``.
    workspaces
        The connected workspaces when any has changed, else ``None``.
    current
        Name of the target in use when that or `targets` has changed, else ``None``.
    trouble
        As in a snapshot, when that has changed; else ``None``.
    renew
        The page is asked to send its ``events`` request again: is it still there?
    """

    seq: int
    runs: tuple[RunRow, ...] = ()
    gone: tuple[str, ...] = ()
    targets: tuple[TargetRow, ...] | None = None
    workspaces: tuple[WorkspaceRow, ...] | None = None
    current: str | None = None
    trouble: str | None = None
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
    titles
        What each is called, ``GPU 0 MIG 1``; only with `first`.
    names
        Of the GPUs, in the same order; only with `first`.
    memory
        Bytes of each GPU; only with `first`. `None` where unknown.
    lost
        Places, in `labels`, of the GPUs that the driver has lost.
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
    titles: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    memory: tuple[float | None, ...] = ()
    lost: tuple[int, ...] = ()
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
