"""The demonstration: targets and runs that cost nothing and touch no machine; a guest behind the hook for backends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from jupyter_amltrain.plugins import BackendKind
from jupyter_amltrain.schema.target import MACHINE_LIMITS, ComputeTarget, Limit, form_field


class FakeTarget(ComputeTarget, frozen=True, kw_only=True, tag="fake"):
    """Target of kind ``fake``."""

    summary: ClassVar[str] = (
        "A simulated target in memory with invented prices: for trying things out, documentation and tests."
    )
    title: ClassVar[str] = "Demonstration (runs nothing)"
    verb: ClassVar[str] = "create"
    honors: ClassVar[frozenset[str] | None] = None
    limits: ClassVar[Mapping[str, Limit]] = MACHINE_LIMITS

    size: Annotated[
        Literal["", "cpu-4", "cpu-32", "gpu-v100", "gpu-8xa100", "gpu-8xh100"],
        form_field("VM size; without it the machine is free of charge and has no start or stop"),
    ] = ""
    max_nodes: Annotated[
        int,
        form_field(
            "Maximum number of nodes; 1 is a single machine that is started and stopped, more are a cluster",
            metavar="N",
            ge=1,
            le=20,
        ),
    ] = 1
    min_nodes: Annotated[int, form_field("Nodes of a cluster to keep running when idle", metavar="N", ge=0, le=20)] = 0
    idle_minutes: Annotated[
        float, form_field("Minutes before an idle node of a cluster is released", metavar="MINUTES", gt=0, le=1440)
    ] = 15.0
    low_priority: Annotated[bool, form_field("Cheaper machines that can be preempted at any time")] = False
    provisioning: Annotated[
        float,
        form_field(
            "Seconds that creating, starting, stopping and scaling take", metavar="SECONDS", ge=0, le=600, advanced=True
        ),
    ] = 0.0
    quota: Annotated[
        int, form_field("Quota of processor cores; 0 for no limit", metavar="CORES", ge=0, advanced=True)
    ] = 0
    fails: Annotated[
        Literal["", "create", "start", "stop", "scale", "delete", "test"],
        form_field("Operation that fails on this target", advanced=True),
    ] = ""
    queued: Annotated[
        float, form_field("Seconds that a run stays in the queue", metavar="SECONDS", ge=0, advanced=True)
    ] = 0.05
    running: Annotated[float, form_field("Seconds that a run runs", metavar="SECONDS", ge=0, advanced=True)] = 0.2
    exit_code: Annotated[int, form_field("Exit code of every run", metavar="CODE", advanced=True)] = 0
    unreachable: Annotated[bool, form_field("The target does not respond", advanced=True)] = False
    nodes: Annotated[
        int, form_field("Number of machines of each run and each monitor", metavar="N", ge=1, le=128, advanced=True)
    ] = 1
    gpus: Annotated[int, form_field("GPUs of each machine without a size", metavar="N", ge=0, le=64, advanced=True)] = 0
    idle: Annotated[bool, form_field("Runs do not use their GPUs", advanced=True)] = False
    period: Annotated[float, form_field("Seconds between telemetry ticks", metavar="SECONDS", gt=0, advanced=True)] = (
        1.0
    )

    def field_errors(self) -> dict[str, str]:
        """See :meth:`ComputeTarget.field_errors`."""
        if self.min_nodes > self.max_nodes:
            return {"min_nodes": f"{self.min_nodes} is more than the maximum ({self.max_nodes})."}
        return {}


KIND = BackendKind("jupyter_amltrain.demo:FakeTarget", "jupyter_amltrain.demo.fake_backend:FakeBackend")
