"""What a list says of a target and of a run: small, flat, cheap to send when it changes."""

from __future__ import annotations

from typing import Any

import msgspec

from jupyter_amltrain.schema.child_run import ChildRun
from jupyter_amltrain.schema.fields import TargetAction
from jupyter_amltrain.schema.run import RunLink


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is being done with a target, or was and failed.

    Attributes
    ----------
    since
        Unix seconds.
    detail
        How far it is, one sentence.
    error
        Why it failed, one sentence with what to do; empty while it goes on. A failed
        work stays until the next one, or until it is dismissed (verb ``dismiss``).
    """

    verb: str
    since: float
    detail: str = ""
    error: str = ""


class TargetRow(msgspec.Struct, frozen=True, kw_only=True):
    """One compute target in a list.

    Attributes
    ----------
    state
        ``ready``, ``stopped``, ``creating``, ``starting``, ``stopping``, ``scaling``, ``deleting``,
        ``failed``, ``unreachable``, or ``unknown`` (not asked yet).
    detail
        One sentence about the state: why it is unreachable, say.
    size
        What the service calls the machine, or a word for it.
    nodes
        Machines now, of at most `max_nodes`; ``None`` for a single machine that cannot be scaled.
    memory
        Bytes of one machine.
    gpus
        GPUs of one machine; ``None`` while unknown.
    price
        What it costs now, per hour, all machines; ``None`` where nobody charges.
    price_node
        What one machine costs per hour.
    quota
        One phrase, e.g. ``12 of 24 cores``; empty where there is none.
    checked_at
        Unix seconds of the last check; 0 before the first.
    fields
        The target as it is stored (never secrets).
    """

    name: str
    kind: str
    title: str = ""
    current: bool = False
    state: str = "unknown"
    detail: str = ""
    size: str = ""
    nodes: int | None = None
    max_nodes: int | None = None
    cpus: int | None = None
    memory: float | None = None
    gpus: int | None = None
    gpu_name: str = ""
    gpus_text: str = ""  #: of GPUs of several kinds: ``1 x A100, 3 x A100 MIG 1g.10gb``
    price: float | None = None
    price_node: float | None = None
    currency: str = ""
    quota: str = ""
    running: int = 0
    queued: int = 0
    checked_at: float = 0.0
    fields: dict[str, Any] = {}
    acts: tuple[TargetAction, ...] = ()
    work: Operation | None = None


class WorkspaceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A connected Azure ML workspace in a list.

    Attributes
    ----------
    name
        What it is called here; `workspace` is its name at Azure.
    current
        It is meant where no workspace is named.
    user
        Who was signed in at the last connect.
    targets
        Names of its targets.
    studio_url
        Its pages.
    """

    name: str
    current: bool = False
    workspace: str = ""
    resource_group: str = ""
    subscription: str = ""
    location: str = ""
    user: str = ""
    targets: tuple[str, ...] = ()
    studio_url: str = ""


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run in a list.

    Attributes
    ----------
    started, ended
        Unix seconds of the first ``running`` phase's start and of the run's end; ``None`` before.
    phase
        Name of the phase that lasts; empty after the end.
    phase_start
        Unix seconds.
    gpus
        GPUs that it owns, of all nodes.
    metric, value
        The metric that was logged last, and its value.
    spark
        Mean utilization of its GPUs over its life, at most 40 numbers 0 to 100, -1 for a hole.
    attention
        What a person should know now, one sentence: it failed, its GPUs are idle, its target does not
        answer; empty when all is well.
    log_bytes
        Bytes of the log so far, as far as they were read.
    known
        Whether metric, spark and log size were read; of past runs only on demand.
    again
        Whether it can be submitted again as it was.
    doors
        Its page at the service, and while it runs ways into it.
    children
        Steps of a pipeline, or trials of a sweep or AutoML job, at most 20: the best, those that go on, the newest.
    children_hidden
        Further ones.
    parent
        Handle of the run that this one is part of; empty for a run of its own.
    """

    handle: str
    name: str
    target: str
    experiment: str = ""
    state: str
    detail: str = ""
    reason: str = ""
    exit_code: int | None = None
    error: str = ""
    created: float = 0.0
    started: float | None = None
    ended: float | None = None
    phase: str = ""
    phase_start: float | None = None
    cancel_requested: bool = False
    reachable: bool = True
    gpus: int = 0
    metric: str = ""
    value: float | None = None
    spark: tuple[int, ...] = ()
    verdict: str = ""
    attention: str = ""
    log_bytes: int = 0
    known: bool = False
    again: bool = False
    tracking: str = ""
    params: dict[str, str] = {}
    doors: tuple[RunLink, ...] = ()
    children: tuple[ChildRun, ...] = ()
    children_hidden: int = 0
    parent: str = ""
