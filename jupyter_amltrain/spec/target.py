"""Where jobs run, as data, and what a check of a target finds."""

from __future__ import annotations

from typing import Any

import msgspec


class ComputeTarget(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """A place that can run jobs. Subclasses add the fields of their backend."""

    name: str


class LocalTarget(ComputeTarget, frozen=True, kw_only=True, tag="local"):
    """This machine: the embedded default.

    Attributes
    ----------
    python
        Interpreter of the jobs; empty takes the kernel's own.
    """

    python: str = ""


class TargetInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What ``%aml_compute test`` found.

    Attributes
    ----------
    memory
        Bytes of main memory.
    gpus
        One mapping a GPU: ``index, name, uuid, memory_total, memory_used``
        (bytes; ``None`` where the device cannot tell).
    slots
        ``{"cpu": {"total", "free"}, "gpu": {"total", "free"}}``.
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
    slots: dict[str, dict[str, int]] = {}
    queued: int = 0
    running: int = 0
    survives: dict[str, dict[str, str]] = {}
    python: str = ""
    platform: str = ""
    home: str = ""
    detail: str = ""


class FakeTarget(ComputeTarget, frozen=True, kw_only=True, tag="fake"):
    """A target in memory with a scripted life: for documentation and tests.

    Attributes
    ----------
    queued, running
        Seconds that a run stays in the queue, and that it runs.
    exit_code
        How every run ends.
    unreachable
        The target does not answer.
    nodes, gpus
        Machines of every run and of a monitor, and GPUs of each.
    idle
        Runs do not use their GPUs.
    period
        Seconds between telemetry ticks.
    """

    queued: float = 0.05
    running: float = 0.2
    exit_code: int = 0
    unreachable: bool = False
    nodes: int = 1
    gpus: int = 0
    idle: bool = False
    period: float = 1.0
