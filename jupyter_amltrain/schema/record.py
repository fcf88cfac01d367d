"""The record: the content of a run's cell output, displayed with or without a kernel.

It is the data of the MIME type ``application/vnd.amltrain.run+json`` and the
reply to the panel's ``run`` request; its size is below 200 kB for any run.
"""

from __future__ import annotations

from typing import Any

import msgspec

from jupyter_amltrain.schema.chart import ChartSet
from jupyter_amltrain.schema.child_run import ChildRun
from jupyter_amltrain.schema.failure import FrameTable
from jupyter_amltrain.schema.run import Phase, Poke, RunLink
from jupyter_amltrain.schema.run_graph import RunGraph
from jupyter_amltrain.schema.run_lines import RunLines
from jupyter_amltrain.schema.scaling import Measurement
from jupyter_amltrain.schema.sweep_board import SweepBoard
from jupyter_amltrain.schema.table import Table
from jupyter_amltrain.schema.taken import Taken

RECORD_MIME = "application/vnd.amltrain.run+json"
RECORD_SCHEMA = 1


class MetricSeries(msgspec.Struct, frozen=True, kw_only=True):
    """One metric, downsampled to at most 300 points by min and max.

    Attributes
    ----------
    value
        ``None`` for NaN and infinite values.
    last
        The value of the metric; ``nan``, ``inf`` and ``-inf`` as text.
    seconds
        Times of the points, from the submit; empty in records of older versions.
    rank
        Place among the metrics, which a notebook file sorts by name.
    source
        Where the points are from if not from MLflow: ``TensorBoard``, ``printed lines``.
    """

    step: tuple[int, ...]
    value: tuple[float | None, ...]
    seconds: tuple[float, ...] = ()
    last: float | str | None
    n: int  #: points before downsampling
    rank: int = 0
    source: str = ""


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


class GpuSeries(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU; the series use the record's common ``t``, ``None`` for a gap.

    Attributes
    ----------
    util
        Percent of the time in which a GPU kernel ran, mean of each interval.
    peak
        The same, the highest sample of the driver within each interval.
    memory, memory_total
        Bytes used on the device (by all processes), and its size.
    power, power_limit
        Watts.
    lost
        Whether the driver has lost the GPU, so that there are no readings.
    label
        ``GPU 3``, ``GPU 0 MIG 1``; use this instead of `index`, which numbers MIG instances arbitrarily.
    sm_activity
        Percent of active SMs, if the device reports it.
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
        One per row, ``"node:index"``; rows are sorted by node, then index.
    columns
        Number of columns of equal duration; they span ``t[0]`` to ``t[-1]`` of the record.
    cells
        Two hex digits per cell, row by row: 0 to 100 percent, ``ff`` for a gap.
    """

    labels: tuple[str, ...] = ()
    columns: int = 0
    cells: str = ""


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One process on a GPU, as the driver lists it.

    Attributes
    ----------
    owner
        ``mine`` (of this run), ``other``, or ``unknown`` if process ids cannot be distinguished.
    memory
        Bytes; ``None`` if the driver does not report it.
    name
        Program and script.
    sm
        Percent of the GPU's SMs that it uses; ``None`` if the driver does not report it.
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
        GPUs, with their series for up to 8 GPUs; without series if there are more.
    util, memory, power
        Bands over all GPUs (percent, bytes, watts); only with more than 8 GPUs.
    heat
        Utilization of each GPU over time; from 6 GPUs on, whose lines cross.
    nodes
        Host name of each node, by node number.
    source
        Source of the samples, e.g. ``agent, every 1 s``.
    age
        Seconds since the last sample; ``None`` when the run has ended.
    note
        Reason for missing data, or an event of the driver; one sentence.
    now
        Newest readings of each GPU, in the order of `gpus`; empty for more than 64 GPUs. ``util``,
        ``sm_activity``, ``tensor_activity``, ``dram_bandwidth``, ``memory_busy`` (percent), ``memory`` (bytes),
        ``power`` (W), ``pcie_rx``, ``pcie_tx``, ``nvlink_rx``, ``nvlink_tx`` (MiB/s), ``temperature`` (C),
        ``sm_clock``, ``mem_clock`` (MHz), ``throttle`` (words), ``ecc`` (uncorrected errors), ``mine``,
        ``others`` (bytes).
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
        Observation, one sentence.
    cause
        Likely causes of *not used*, one sentence with what to do; else empty.
    """

    verdict: str = ""
    detail: str = ""
    cause: str = ""


class LogTail(msgspec.Struct, frozen=True, kw_only=True):
    """End of a log, ``\\r`` progress bars collapsed, at most 8 kB, and as much text of displayed values."""

    tail: str = ""
    bytes: int = 0
    lines_hidden: int = 0
    path: str = ""


class CodeExcerpt(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of a cell around the one that raised the error.

    Attributes
    ----------
    first
        Number of the first line in the cell; the magic's line is 1.
    lines
        The lines, at most five.
    line
        Number of the line that raised.
    """

    first: int
    lines: tuple[str, ...]
    line: int


class RunDisplay(msgspec.Struct, frozen=True, kw_only=True):
    """A value that the script has displayed, with its rich forms.

    Attributes
    ----------
    number, version
        Its file in the run's folder, and how often the script has updated it.
    line
        Line of the log's tail before which it stands; -1 above the first one.
    blocks
        First line and number of lines of each text in the tail that it replaces.
    data
        Forms by MIME type: HTML without scripts, styles and external addresses; images in base64.
    sizes
        ``width`` and ``height`` in CSS pixels, by MIME type.
    partial
        Whether the run has more of it: larger forms, or images of which this has a small copy.
    picture
        Path in the run's folder of the figure that it shows; empty for other values.
    title
        What its image shows, as text.
    """

    number: int
    version: int = 0
    line: int = -1
    blocks: tuple[tuple[int, ...], ...] = ()
    data: dict[str, Any] = {}
    sizes: dict[str, dict[str, float]] = {}
    partial: bool = False
    picture: str = ""
    title: str = ""


class RunPicture(msgspec.Struct, frozen=True, kw_only=True):
    """A figure that the script has shown, or an image file that it has logged, which no display of a record shows.

    Attributes
    ----------
    path
        Path in the run's folder.
    name
        For display: the file's name, or key and step of ``mlflow.log_image``.
    kind
        ``figure`` (shown by ``plt.show()``) or ``artifact`` (logged by MLflow).
    width, height
        Pixels; 0 if unknown.
    bytes
        Size of the file.
    time
        Unix seconds of its last change.
    title
        Title of the figure, for readers that do not see it.
    thumbnail
        ``data:`` URL of a small copy, at most 12 kB; empty if there is none.
    """

    path: str
    name: str
    kind: str = "artifact"
    width: int = 0
    height: int = 0
    bytes: int = 0
    time: float = 0.0
    title: str = ""
    thumbnail: str = ""


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
    models: tuple[str, ...] = ()  #: models among its files, as ``%aml_model register --path`` takes them
    error: str | None = None
    excerpt: CodeExcerpt | None = None  #: where a failed cell raised
    frames: tuple[FrameTable, ...] = ()  #: variables of the lines at which the script failed, the innermost first
    tracking: dict[str, str] = {}
    source_sha256: str = ""
    notes: tuple[str, ...] = ()  #: notes of the submit, one sentence each
    taken: Taken = Taken()  #: what the cell took from the notebook
    #: Its page at the service, and services of the run while it is running; the wire has an older name.
    links: tuple[RunLink, ...] = msgspec.field(default=(), name="doors")
    children: tuple[ChildRun, ...] = ()  #: steps of a pipeline, trials of a sweep or AutoML job, oldest first
    children_hidden: int = 0  #: further ones
    parent: str = ""  #: handle of the run that this one is part of
    pokes: tuple[Poke, ...] = ()  #: the newest statements that somebody has run in it
    attempt: int = 1  #: above 1 for a run that was started again
    scaling: Measurement | None = None  #: of a run that only measures the job's speed at one width
    sweep: SweepBoard | None = None  #: of a sweep, in place of its children
    pictures: tuple[RunPicture, ...] = ()  #: the newest, oldest first
    pictures_hidden: int = 0  #: further ones, in the run's folder
    displays: tuple[RunDisplay, ...] = ()  #: the newest, in the order of the log
    displays_hidden: int = 0  #: earlier ones, whose text the log has
    lines: RunLines | None = None  #: of a run that was submitted with ``--lines``
    graph: RunGraph | None = None  #: of a pipeline with a driver: its steps and what they take of each other
    charts: ChartSet = ChartSet()
    tables: tuple[Table, ...] = ()
