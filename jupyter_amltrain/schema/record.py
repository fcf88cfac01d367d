"""The record: what one cell output says of a run, with or without a kernel.

It is the content of the MIME type ``application/vnd.amltrain.run+json`` and the
answer to the panel's ``run`` request; it stays under 200 kB for any run.
"""

from __future__ import annotations

from typing import Any

import msgspec

from jupyter_amltrain.schema.child_run import ChildRun
from jupyter_amltrain.schema.run import Phase, RunLink

RECORD_MIME = "application/vnd.amltrain.run+json"
RECORD_SCHEMA = 1


class MetricSeries(msgspec.Struct, frozen=True, kw_only=True):
    """One metric, downsampled to at most 300 points by min and max."""

    step: tuple[int, ...]
    value: tuple[float | None, ...]
    last: float | None
    n: int  #: points before downsampling


class TelemetrySeries(msgspec.Struct, frozen=True, kw_only=True):
    """Host use of the run's processes, on the run's first node.

    Attributes
    ----------
    t
        Unix seconds.
    cpu
        Percent of one core.
    memory
        Bytes, resident.
    age
        Seconds since the last sample; ``None`` when the run has ended.
    """

    t: tuple[float, ...] = ()
    cpu: tuple[float | None, ...] = ()
    memory: tuple[float | None, ...] = ()
    memory_total: float | None = None
    cpus: int | None = None
    age: float | None = None


class GpuSeries(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU; the series run along the record's common ``t``, ``None`` for a hole.

    Attributes
    ----------
    util
        Percent of the time in which a kernel ran, mean of each stretch.
    peak
        The same, the highest of what the driver saw within each stretch.
    memory, memory_total
        Bytes used on the device (by anybody), and its size.
    power, power_limit
        Watts.
    lost
        The driver has lost it: there are no readings now.
    label
        ``GPU 3``, ``GPU 0 MIG 1``; the numbers of instances in `index` mean nothing else.
    sm_activity
        Percent of the SMs that worked, where the device tells it.
    """

    node: int
    index: int
    label: str = ""
    name: str = ""
    uuid: str = ""
    memory_total: float | None = None
    power_limit: float | None = None
    util: tuple[float | None, ...] = ()
    peak: tuple[float | None, ...] = ()
    memory: tuple[float | None, ...] = ()
    power: tuple[float | None, ...] = ()
    lost: bool = False
    sm_activity: tuple[float | None, ...] = ()


class GpuBand(msgspec.Struct, frozen=True, kw_only=True):
    """Mean, least and most over many GPUs, along the record's common ``t``."""

    mean: tuple[float | None, ...] = ()
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()


class GpuHeat(msgspec.Struct, frozen=True, kw_only=True):
    """Utilization of every GPU over the run.

    Attributes
    ----------
    labels
        One a row, ``"node:index"``; rows are sorted by node, then index.
    columns
        Columns of equal time; they span ``t[0]`` to ``t[-1]`` of the record.
    cells
        Two hex digits a cell, rows one after the other: 0 to 100 percent, ``ff`` for a hole.
    """

    labels: tuple[str, ...] = ()
    columns: int = 0
    cells: str = ""


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One process on a GPU, as the driver lists it.

    Attributes
    ----------
    owner
        ``mine`` (of this run), ``other``, or ``unknown`` where ids cannot be told apart.
    memory
        Bytes; ``None`` where the driver does not say.
    name
        Program and script.
    sm
        Percent of the GPU's SMs that it uses; ``None`` where the driver does not say.
    """

    node: int
    index: int
    pid: int
    owner: str
    memory: float | None = None
    name: str = ""
    label: str = ""  #: of its GPU
    user: str = ""
    sm: float | None = None


class GpuTelemetry(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs of a run.

    Attributes
    ----------
    t
        Unix seconds, at most 150, for every series here.
    gpus
        Up to 8 GPUs with their series; more of them without.
    util, memory, power
        Bands over all GPUs (percent, bytes, watts); only with more than 8 GPUs.
    nodes
        Host name of each node, by node number.
    source
        Where the samples come from, in words, e.g. ``agent, every 1 s``.
    age
        Seconds since the last sample; ``None`` when the run has ended.
    note
        Why there is nothing, or what happened to the driver; one sentence.
    now
        Newest readings of each GPU, in the order of `gpus`: ``util``, ``sm_activity``, ``tensor_activity``,
        ``dram_bandwidth``, ``memory_busy`` (percent), ``memory`` (bytes), ``power`` (W), ``pcie_rx``, ``pcie_tx``,
        ``nvlink_rx``, ``nvlink_tx`` (MiB/s), ``temperature`` (C), ``sm_clock``, ``mem_clock`` (MHz),
        ``throttle`` (words), ``ecc`` (uncorrected errors), ``mine``, ``others`` (bytes).
    """

    t: tuple[float, ...] = ()
    gpus: tuple[GpuSeries, ...] = ()
    util: GpuBand | None = None
    memory: GpuBand | None = None
    power: GpuBand | None = None
    heat: GpuHeat | None = None
    nodes: tuple[str, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    source: str = ""
    age: float | None = None
    note: str = ""
    now: tuple[dict[str, Any], ...] = ()


class GpuTruth(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the run used the GPUs that it owns.

    Attributes
    ----------
    verdict
        ``used``, ``not used``, ``cannot tell``; empty while the grace time runs.
    detail
        What was seen, one sentence.
    cause
        Likely causes of *not used*, one sentence with what to do; else empty.
    """

    verdict: str = ""
    detail: str = ""
    cause: str = ""


class LogTail(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a log, ``\\r`` bars collapsed, at most 8 kB."""

    tail: str = ""
    bytes: int = 0
    lines_hidden: int = 0
    path: str = ""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """See the module's docstring; fields are documented by their types."""

    schema: int = RECORD_SCHEMA
    handle: str
    run_id: str
    name: str
    target: str
    experiment: str
    state: str
    detail: str = ""
    reason: str | None = None
    exit_code: int | None = None
    done: bool = False
    cancel_requested: bool = False
    reachable: bool = True
    created: float = 0.0
    seen_at: float = 0.0
    phases: tuple[Phase, ...] = ()
    params: dict[str, Any] = {}
    tags: dict[str, str] = {}
    metrics: dict[str, MetricSeries] = {}
    metrics_hidden: int = 0  #: further metrics, which only MLflow shows
    telemetry: TelemetrySeries = TelemetrySeries()
    gpu: GpuTelemetry | None = None
    truth: GpuTruth | None = None
    summary: dict[str, Any] = {}  #: of an ended run, see ``agent/telemetry/summary.py``
    kind: str = "run"  #: or "monitor": GPUs of a target, without a run
    view: str = "run"  #: or "dashboard": charts only
    window: float = 600.0  #: seconds that live charts show at first; 0 for all
    log: LogTail = LogTail()
    outputs: dict[str, Any] = {}
    error: str | None = None
    tracking: dict[str, str] = {}
    source_sha256: str = ""
    notes: tuple[str, ...] = ()  #: what was to be known when it was submitted, one sentence each
    doors: tuple[RunLink, ...] = ()  #: its page at the service, and while it runs ways into it
    children: tuple[ChildRun, ...] = ()  #: steps of a pipeline, trials of a sweep or AutoML job, oldest first
    children_hidden: int = 0  #: further ones
    parent: str = ""  #: handle of the run that this one is part of
