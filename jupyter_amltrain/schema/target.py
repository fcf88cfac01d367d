"""Where jobs run, as data, and what a check of a target finds."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, cast

import msgspec


def limits(*, metavar: str = "", advanced: bool = False, **bounds: float) -> msgspec.Meta:
    """What may stand in a number's field (`ge`, `gt`, `le`, `lt`), and how a form shows it."""
    return msgspec.Meta(extra={"metavar": metavar, "advanced": advanced}, **cast(Any, bounds))


class ComputeTarget(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """A place that can run jobs. Subclasses add the fields of their backend.

    Types, limits, defaults and the docstring's `Attributes` of the fields make the flags and the forms
    (:mod:`jupyter_amltrain.schema.fields`).
    """

    #: What a person calls such a target, and how one comes to be: ``create``, ``attach``, or not by a person.
    title: ClassVar[str] = ""
    verb: ClassVar[str] = ""

    name: str

    def wrong(self) -> dict[str, str]:
        """What is wrong with the fields together: a sentence by field."""
        return {}


class LocalTarget(ComputeTarget, frozen=True, kw_only=True, tag="local"):
    """This machine: the embedded default.

    Attributes
    ----------
    python
        Interpreter of the jobs; empty takes the kernel's own.
    """

    title: ClassVar[str] = "This machine"

    python: str = ""


class TargetInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What ``%aml_compute test`` found.

    Attributes
    ----------
    memory
        Bytes of main memory.
    gpus
        One mapping a GPU: ``index, name, uuid, memory_total, memory_used``
        (bytes; ``None`` where the device cannot tell), and ``driver``, ``cuda``: their versions.
    gpus_lost
        GPUs of this boot that cannot be used now: ``index, name, uuid`` (``None`` where nobody knows it), ``reason``.
    share_gpus
        Whether every run may be given GPUs on which other processes compute.
    slots
        ``{"cpu": {"total", "free"}, "gpu": {"total", "free"}}``; ``lost`` of the GPUs where there are some.
    survives
        What a run outlives here: ``{"kernel": {"answer", "why"}, ...}`` with the
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
    """A target in memory with a scripted life and invented prices: for trying things out, documentation and tests.

    Attributes
    ----------
    size
        Kind of machine; without one it is a machine that costs nothing and has no start or stop.
    max_nodes
        Machines at most; 1 is a single machine that is started and stopped, more are a cluster.
    min_nodes
        Machines of a cluster that are kept on although nothing runs.
    idle_minutes
        A cluster lets unused machines go after so long.
    low_priority
        Cheaper machines that may be taken away at any time.
    provisioning
        Seconds that creating, starting, stopping and scaling take.
    quota
        Processor cores that may be had; 0 for any number.
    fails
        What does not succeed here.
    queued
        Seconds that a run stays in the queue.
    running
        Seconds that a run runs.
    exit_code
        How every run ends.
    unreachable
        The target does not answer.
    nodes
        Machines of every run and of a monitor.
    gpus
        GPUs of each machine where it has no size.
    idle
        Runs do not use their GPUs.
    period
        Seconds between telemetry ticks.
    """

    title: ClassVar[str] = "Demonstration (runs nothing)"
    verb: ClassVar[str] = "create"

    size: Literal["", "cpu-4", "cpu-32", "gpu-v100", "gpu-8xa100", "gpu-8xh100"] = ""
    max_nodes: Annotated[int, limits(ge=1, le=20, metavar="N")] = 1
    min_nodes: Annotated[int, limits(ge=0, le=20, metavar="N")] = 0
    idle_minutes: Annotated[float, limits(gt=0, le=1440, metavar="MINUTES")] = 15.0
    low_priority: bool = False
    provisioning: Annotated[float, limits(ge=0, le=600, metavar="SECONDS", advanced=True)] = 0.0
    quota: Annotated[int, limits(ge=0, metavar="CORES", advanced=True)] = 0
    fails: Annotated[
        Literal["", "create", "start", "stop", "scale", "delete", "test"], msgspec.Meta(extra={"advanced": True})
    ] = ""
    queued: Annotated[float, limits(ge=0, metavar="SECONDS", advanced=True)] = 0.05
    running: Annotated[float, limits(ge=0, metavar="SECONDS", advanced=True)] = 0.2
    exit_code: Annotated[int, limits(metavar="CODE", advanced=True)] = 0
    unreachable: Annotated[bool, msgspec.Meta(extra={"advanced": True})] = False
    nodes: Annotated[int, limits(ge=1, le=64, metavar="N", advanced=True)] = 1
    gpus: Annotated[int, limits(ge=0, le=64, metavar="N", advanced=True)] = 0
    idle: Annotated[bool, msgspec.Meta(extra={"advanced": True})] = False
    period: Annotated[float, limits(gt=0, metavar="SECONDS", advanced=True)] = 1.0

    def wrong(self) -> dict[str, str]:
        """See :meth:`ComputeTarget.wrong`."""
        if self.min_nodes > self.max_nodes:
            return {"min_nodes": f"{self.min_nodes} is more than there are at most ({self.max_nodes})."}
        return {}
