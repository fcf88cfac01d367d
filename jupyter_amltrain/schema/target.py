"""Compute targets as data, and the result of a target's check."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, cast

import msgspec


def number_field(*, metavar: str = "", advanced: bool = False, **bounds: float) -> msgspec.Meta:
    """Return metadata of a number's field: its bounds (`ge`, `gt`, `le`, `lt`) and its display in a form."""
    return msgspec.Meta(extra={"metavar": metavar, "advanced": advanced}, **cast(Any, bounds))


class ComputeTarget(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Named target that runs jobs. Subclasses add the fields of their backend.

    Flags and forms are generated from the types, limits, defaults and documented `Attributes` of the fields
    (:mod:`jupyter_amltrain.schema.fields`).
    """

    #: Display name, and the verb that makes such a target: ``create``, ``attach``, or empty for built-in targets.
    title: ClassVar[str] = ""
    verb: ClassVar[str] = ""

    name: str

    def field_errors(self) -> dict[str, str]:
        """Return errors of the combination of fields: a sentence by field."""
        return {}


class LocalTarget(ComputeTarget, frozen=True, kw_only=True, tag="local"):
    """This machine: the embedded default.

    Attributes
    ----------
    python
        Interpreter of the jobs; empty: the kernel's own.
    """

    title: ClassVar[str] = "This machine"

    python: str = ""


class TargetInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Result of ``%aml_compute test``.

    Attributes
    ----------
    memory
        Bytes of main memory.
    gpus
        One mapping per GPU: ``index, name, uuid, memory_total, memory_used``
        (bytes; ``None`` if the device does not report it), and ``driver``, ``cuda``: their versions.
    gpus_lost
        GPUs of this boot that cannot be used now: ``index, name, uuid`` (``None`` if unknown), ``reason``.
    share_gpus
        Whether every run may get GPUs on which other processes compute.
    slots
        ``{"cpu": {"total", "free"}, "gpu": {"total", "free"}}``; ``lost`` of the GPUs if there are lost ones.
    survives
        Events that a run survives on this target: ``{"kernel": {"answer", "why"}, ...}`` with the
        answers ``yes``, ``no`` and ``unknown``.
    """

    target: str
    kind: str
    reachable: bool = True
    cpus: int | None = None
    memory: int | None = None
    gpus: tuple[dict[str, Any], ...] = ()
    gpu_note: str = ""
    gpus_lost: tuple[dict[str, Any], ...] = ()
    share_gpus: bool = False
    slots: dict[str, dict[str, int]] = {}
    queued: int = 0
    running: int = 0
    survives: dict[str, dict[str, str]] = {}
    python: str = ""
    platform: str = ""
    home: str = ""
    detail: str = ""


class FakeTarget(ComputeTarget, frozen=True, kw_only=True, tag="fake"):
    """A simulated target in memory with invented prices: for trying things out, documentation and tests.

    Attributes
    ----------
    size
        VM size; without it the machine is free of charge and has no start or stop.
    max_nodes
        Maximum number of nodes; 1 is a single machine that is started and stopped, more are a cluster.
    min_nodes
        Nodes of a cluster to keep running when idle.
    idle_minutes
        Minutes before an idle node of a cluster is released.
    low_priority
        Cheaper machines that can be preempted at any time.
    provisioning
        Seconds that creating, starting, stopping and scaling take.
    quota
        Quota of processor cores; 0 for no limit.
    fails
        Operation that fails on this target.
    queued
        Seconds that a run stays in the queue.
    running
        Seconds that a run runs.
    exit_code
        Exit code of every run.
    unreachable
        The target does not answer.
    nodes
        Machines of every run and of a monitor.
    gpus
        GPUs of each machine without a size.
    idle
        Runs do not use their GPUs.
    period
        Seconds between telemetry ticks.
    """

    title: ClassVar[str] = "Demonstration (runs nothing)"
    verb: ClassVar[str] = "create"

    size: Literal["", "cpu-4", "cpu-32", "gpu-v100", "gpu-8xa100", "gpu-8xh100"] = ""
    max_nodes: Annotated[int, number_field(ge=1, le=20, metavar="N")] = 1
    min_nodes: Annotated[int, number_field(ge=0, le=20, metavar="N")] = 0
    idle_minutes: Annotated[float, number_field(gt=0, le=1440, metavar="MINUTES")] = 15.0
    low_priority: bool = False
    provisioning: Annotated[float, number_field(ge=0, le=600, metavar="SECONDS", advanced=True)] = 0.0
    quota: Annotated[int, number_field(ge=0, metavar="CORES", advanced=True)] = 0
    fails: Annotated[
        Literal["", "create", "start", "stop", "scale", "delete", "test"], msgspec.Meta(extra={"advanced": True})
    ] = ""
    queued: Annotated[float, number_field(ge=0, metavar="SECONDS", advanced=True)] = 0.05
    running: Annotated[float, number_field(ge=0, metavar="SECONDS", advanced=True)] = 0.2
    exit_code: Annotated[int, number_field(metavar="CODE", advanced=True)] = 0
    unreachable: Annotated[bool, msgspec.Meta(extra={"advanced": True})] = False
    nodes: Annotated[int, number_field(ge=1, le=64, metavar="N", advanced=True)] = 1
    gpus: Annotated[int, number_field(ge=0, le=64, metavar="N", advanced=True)] = 0
    idle: Annotated[bool, msgspec.Meta(extra={"advanced": True})] = False
    period: Annotated[float, number_field(gt=0, metavar="SECONDS", advanced=True)] = 1.0

    def field_errors(self) -> dict[str, str]:
        """See :meth:`ComputeTarget.field_errors`."""
        if self.min_nodes > self.max_nodes:
            return {"min_nodes": f"{self.min_nodes} is more than the maximum ({self.max_nodes})."}
        return {}
