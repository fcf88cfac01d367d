"""Rows of the lists of targets, workspaces and runs: small, flat, cheap to send when they change."""

from __future__ import annotations

from typing import Any

import msgspec

from jupyter_amltrain.schema.child_run import ChildRun
from jupyter_amltrain.schema.fields import TargetAction
from jupyter_amltrain.schema.run import RunLink


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """Operation on a target that is in progress or has failed.

    Attributes
    ----------
    since
        Unix seconds.
    detail
        Progress, one sentence.
    error
        Reason of the failure and what to do, one sentence; empty while in progress. A failed
        operation stays until the next one starts, or until it is dismissed (verb ``dismiss``).
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
        ``failed``, ``unreachable``, or ``unknown`` (not checked yet).
    detail
        One sentence about the state, e.g. why the target is unreachable.
    size
        The service's name of the VM size, or a description of the machine.
    nodes
        Current number of machines, at most `max_nodes`; ``None`` for a single machine that cannot be scaled.
    memory
        Bytes of one machine.
    gpus
        GPUs of one machine; ``None`` while unknown.
    price
        Current price per hour of all machines; ``None`` if nothing is charged.
    price_node
        Price per hour of one machine.
    quota
        One phrase, e.g. ``12 of 24 cores``; empty if there is no quota.
    stops
        When the machine starts and stops automatically, as one phrase; empty where nothing is known.
    checked_at
        Unix seconds of the last check; 0 before the first.
    fields
        The stored fields of the target (never secrets).
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
    gpu_rows: tuple[tuple[str, str], ...] = ()  #: name of each GPU, with its use and its users
    gpus_text: str = ""  #: of GPUs of several kinds: ``1 x A100, 3 x A100 MIG 1g.10gb``
    price: float | None = None
    price_node: float | None = None
    currency: str = ""
    quota: str = ""
    stops: str = ""
    running: int = 0
    queued: int = 0
    checked_at: float = 0.0
    fields: dict[str, Any] = {}
    acts: tuple[TargetAction, ...] = ()
    work: Operation | None = None


class WorkspaceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A connected workspace in a list.

    Attributes
    ----------
    name
        Local name; `workspace` is its name at the service.
    current
        Whether commands use this workspace if none is named.
    user
        User who was signed in at the last connect.
    targets
        Names of the workspace's targets.
    studio_url
        Address of the workspace in the studio.
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
        Name of the current phase; empty after the end.
    phase_start
        Unix seconds.
    gpus
        GPUs that the run owns, on all nodes.
    metric, value
        The metric that was logged last, and its value; ``nan``, ``inf`` and ``-inf`` as text.
    metrics
        The last finite values of the metrics by name, at most 20; in the order of their first log calls.
    spark
        Mean utilization of the run's GPUs over time; of a run without GPUs the metric that was logged last, from its
        minimum to its maximum. At most 40 numbers 0 to 100, -1 for a gap.
    attention
        One sentence that needs the user's attention: the run failed, its GPUs are idle, its target does not
        answer; empty otherwise.
    log_bytes
        Bytes of the log that were read so far.
    known
        Whether metric, spark and log size were read; for past runs they are read on demand.
    again
        Whether the run can be resubmitted with the same code and settings.
    links
        Links: the run's page at the service, and services of the run while it is running.
    children
        Steps of a pipeline, or trials of a sweep or AutoML job, at most 20: the best, the unfinished, the newest.
    children_hidden
        Number of children that are not listed.
    parent
        Handle of the run that this one is part of; empty for a run of its own.
    attempt
        Number of the current attempt; above 1 for a run that was started again.
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
    value: float | str | None = None
    metrics: dict[str, float] = {}
    spark: tuple[int, ...] = ()
    verdict: str = ""
    attention: str = ""
    log_bytes: int = 0
    known: bool = False
    again: bool = False
    tracking: str = ""
    params: dict[str, str] = {}
    links: tuple[RunLink, ...] = ()
    children: tuple[ChildRun, ...] = ()
    children_hidden: int = 0
    parent: str = ""
    attempt: int = 1
