"""Table of GPU columns: name, unit, and how each column is read, reduced, drawn and exported.

One row is one metric. Everything that reads, writes or draws GPU telemetry uses this table: the
sampler (file header, ticks, figures, slow values), summaries, CSV and Parquet, MLflow's system metrics,
the dashboard's views and tables, and the charts of a record.

A metric that one NVML function returns needs only a row here: use kind :data:`TICK` or :data:`SLOW` and set its
:class:`NvmlCall`. Metrics that need several calls have a reader of their own, which lists their names
(``gpu_figures``, ``gpu_readings``, ``gpu_processes``).

Readers of a telemetry file follow the header's ``gpu_columns``: the order here may change; names and units of
released columns must not.
"""

from __future__ import annotations

import math
from typing import Dict, NamedTuple, Optional, Tuple

#: Upper bounds of plausible values; the largest boards of 2026 draw 3 kW.
MAX_WATTS, MAX_CELSIUS, MAX_MHZ = 10_000, 250, 100_000

#: Kinds of columns. A *tick* column is in every line of the telemetry file. A *figure* is, too, where the device has
#: it. A *slow* value is written when it changes.
TICK, FIGURE, SLOW = "tick", "figure", "slow"
#: How the values of an interval become one number. ``SUM`` is for shares of time: a chart shows their mean, a
#: summary their sum in seconds.
MIN, MEAN, MAX, LAST, SUM = "min", "mean", "max", "last", "sum"

#: Views of a dashboard: name and label.
VIEWS: Tuple[Tuple[str, str], ...] = (
    ("use", "Utilization, memory, power"),
    ("activity", "SM, tensor cores, DRAM"),
    ("clocks", "Temperature, clocks, throttling"),
    ("transfers", "PCIe, NVLink"),
)
#: Column drawn in the charts of the utilization, where the device has it.
ACTIVITY = "sm_activity"


class NvmlCall(NamedTuple):
    """An NVML function that returns one number.

    Attributes
    ----------
    functions
        Names; the first one that the driver has and the device supports is called.
    constants
        Arguments between the device and the result.
    divisor
        Divides the number to get the column's unit.
    maximum
        The largest number that a device can return; a larger one is a sentinel.
    """

    functions: Tuple[str, ...]
    constants: Tuple[int, ...] = ()
    divisor: int = 1
    maximum: float = math.inf


class GpuColumn(NamedTuple):
    """One metric of a GPU.

    Attributes
    ----------
    name
        Key in the telemetry file, in CSV columns (``gpu<index>_<name>``) and in records.
    unit
        As in the header of a telemetry file.
    label
        Name in charts and lists, without unit.
    nvml
        How the column is read, if one call is enough.
    maximum
        Upper end of its scale; ``None``: the scale follows the data.
    mlflow
        Name after ``system/gpu_<index>_`` in MLflow; empty: name and unit.
    summary
        Keys of a GPU's summary that come from this column, each with its name in MLflow; see :func:`summary_names`.
    view, chart
        View of the dashboard with a chart of it, and the chart's title, with a unit that is too long for its axis.
    beside
        Column in whose chart this one is drawn as a thin second line.
    legend
        Text after the GPU's name in the legend.
    heading
        Heading in the dashboard's table; columns of one heading share a table column.
    meaning
        Explains the heading.
    """

    name: str
    unit: str
    kind: str
    label: str
    reducer: str = MEAN
    nvml: Optional[NvmlCall] = None
    maximum: Optional[float] = None
    mlflow: str = ""
    summary: Tuple[Tuple[str, str], ...] = ()
    view: str = ""
    chart: str = ""
    beside: str = ""
    legend: str = ""
    heading: str = ""
    meaning: str = ""


_THROTTLE = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")

GPU_COLUMNS: Tuple[GpuColumn, ...] = (
    GpuColumn(
        "util", "percent", TICK, "GPU utilization", maximum=100, mlflow="utilization_percentage",
        summary=(
            ("util_mean", "utilization_percentage_mean"), ("util_p50", "utilization_percentage_p50"),
            ("util_p95", "utilization_percentage_p95"),
        ),
        view="use", chart="GPU utilization", heading="utilization",
        meaning="Share of the time in which any kernel ran. One small kernel makes it 100 %.",
    ),
    GpuColumn(
        "peak", "percent", TICK, "GPU utilization, peak", MAX, maximum=100, mlflow="peak_utilization_percentage",
        beside="util", legend=" peak",
    ),
    GpuColumn(
        "memory", "MiB", TICK, "GPU memory", MAX, mlflow="memory_usage_megabytes",
        summary=(("memory_peak", "memory_peak_megabytes"), ("memory_mean", "memory_mean_megabytes")),
        view="use", chart="GPU memory", heading="memory",
    ),
    GpuColumn(
        "power", "W", TICK, "GPU power",
        nvml=NvmlCall(("nvmlDeviceGetPowerUsage",), (), 1000, 1000 * MAX_WATTS),
        mlflow="power_usage_watts", summary=(("power_mean", "power_usage_watts_mean"),),
        view="use", chart="GPU power", heading="power",
    ),
    GpuColumn(
        "temperature", "C", TICK, "Temperature",
        nvml=NvmlCall(("nvmlDeviceGetTemperature",), (0,), 1, MAX_CELSIUS),
        summary=(("temperature_max", "temperature_max_celsius"),),
        view="clocks", chart="Temperature", heading="temperature",
    ),
    GpuColumn(
        "sm_clock", "MHz", TICK, "SM clock",
        nvml=NvmlCall(("nvmlDeviceGetClockInfo",), (1,), 1, MAX_MHZ),
        view="clocks", chart="SM clock", heading="SM clock",
    ),
    GpuColumn(
        "sm_activity", "percent", FIGURE, "SM activity", maximum=100,
        view="activity", chart="SM activity", legend=" SM activity", heading="SM activity",
        meaning="Share of the streaming multiprocessors that were working, averaged over time.",
    ),
    GpuColumn(
        "sm_occupancy", "percent", FIGURE, "SM occupancy", maximum=100,
        view="activity", chart="SM occupancy", heading="occupancy",
        meaning="Warps that were active, of those that the multiprocessors can hold, averaged over time.",
    ),
    GpuColumn(
        "tensor_activity", "percent", FIGURE, "Tensor core activity", maximum=100,
        view="activity", chart="Tensor core activity", heading="tensor",
        meaning="Share of the time in which the tensor cores worked: mixed-precision matrix products.",
    ),
    GpuColumn(
        "dram_bandwidth", "percent", FIGURE, "DRAM bandwidth", maximum=100,
        view="activity", chart="DRAM bandwidth", heading="DRAM",
        meaning="Share of the memory bandwidth that was used. Near 80 % the memory is the limit.",
    ),
    GpuColumn(
        "memory_busy", "percent", FIGURE, "Memory controller busy", maximum=100,
        view="activity", chart="Memory controller busy", heading="memory busy",
        meaning="Share of the time in which the memory was read or written, however little.",
    ),
    GpuColumn(
        "pcie_rx", "MiB/s", FIGURE, "PCIe to the GPU",
        view="transfers", chart="PCIe to the GPU, thin: from it (MiB/s)", legend=" in", heading="PCIe in, out",
        meaning="Data transferred over PCIe from and to the host.",
    ),
    GpuColumn(
        "pcie_tx", "MiB/s", FIGURE, "PCIe from the GPU", beside="pcie_rx", legend=" out", heading="PCIe in, out",
    ),
    GpuColumn(
        "nvlink_rx", "MiB/s", FIGURE, "NVLink to the GPU",
        view="transfers", chart="NVLink to the GPU, thin: from it (MiB/s)", legend=" in", heading="NVLink in, out",
        meaning="Data transferred over NVLink from and to other GPUs.",
    ),
    GpuColumn(
        "nvlink_tx", "MiB/s", FIGURE, "NVLink from the GPU",
        beside="nvlink_rx", legend=" out", heading="NVLink in, out",
    ),
    GpuColumn(
        "throttled_power", "percent", FIGURE, "Throttled by power", SUM, maximum=100,
        summary=(("throttled_power_s", "throttled_by_power_seconds"),), beside="throttled_heat", legend=" power",
    ),
    GpuColumn(
        "throttled_heat", "percent", FIGURE, "Throttled by heat", SUM, maximum=100,
        summary=(("throttled_heat_s", "throttled_by_heat_seconds"),),
        view="clocks", chart="Throttled by heat, thin: by power", legend=" heat",
    ),
    GpuColumn(
        "mem_clock", "MHz", SLOW, "Memory clock", LAST, heading="memory clock", mlflow="memory_clock_megahertz",
        nvml=NvmlCall(("nvmlDeviceGetClockInfo",), (2,), 1, MAX_MHZ),
    ),
    GpuColumn(
        "throttle", "bits", SLOW, "Throttle reasons", LAST, nvml=NvmlCall(_THROTTLE), mlflow="throttle_reasons",
        heading="throttled by", meaning="Current reasons why the clocks are below their maximum.",
    ),
    GpuColumn(  # uncorrected, since the driver was loaded
        "ecc", "errors", SLOW, "ECC errors", LAST, nvml=NvmlCall(("nvmlDeviceGetTotalEccErrors",), (1, 0)),
        mlflow="uncorrected_ecc_errors", heading="ECC errors",
    ),
    GpuColumn(
        "power_limit", "W", SLOW, "Power limit", LAST,
        nvml=NvmlCall(("nvmlDeviceGetEnforcedPowerLimit",), (), 1000, 1000 * MAX_WATTS),
    ),
    GpuColumn("mine", "MiB", SLOW, "Memory of the run", LAST, mlflow="run_memory_megabytes"),
    GpuColumn("others", "MiB", SLOW, "Memory of other processes", LAST, mlflow="other_memory_megabytes"),
)  # fmt: skip

BY_NAME: Dict[str, GpuColumn] = {column.name: column for column in GPU_COLUMNS}
TICKS, FIGURES, SLOWS = (
    tuple(column for column in GPU_COLUMNS if column.kind == kind) for kind in (TICK, FIGURE, SLOW)
)
#: Values of one GPU in a line of the telemetry file.
TICK_WIDTH = len(TICKS)
#: Positions of the columns that are used outside tables and charts.
UTIL, PEAK, MEMORY = ([column.name for column in TICKS].index(name) for name in ("util", "peak", "memory"))

#: Unit -> suffix of a name in MLflow, and factor. MLflow's megabytes are 10^6 bytes.
_MLFLOW_UNITS: Dict[str, Tuple[str, float]] = {
    "percent": ("_percentage", 1.0), "MiB": ("_megabytes", 2**20 / 1e6), "bytes": ("_megabytes", 1e-6),
    "W": ("_watts", 1.0), "C": ("_celsius", 1.0), "MHz": ("_megahertz", 1.0), "s": ("_seconds", 1.0),
    "MiB/s": ("_megabytes_per_second", 2**20 / 1e6), "MB/s": ("_megabytes_per_second", 1.0),
}  # fmt: skip


def unit_of(name: str) -> str:
    """Return the unit of a column; ``1`` for a name that is not in the table."""
    return BY_NAME[name].unit if name in BY_NAME else "1"


def symbol(unit: str) -> str:
    """Return a unit as charts write it."""
    return {"percent": "%", "C": "°C"}.get(unit, unit)


def mlflow_name(name: str, unit: str = "") -> Tuple[str, float]:
    """Return the name after ``system/gpu_<index>_`` in MLflow, and the factor from the column's unit to MLflow's.

    Parameters
    ----------
    name
        A column; one that is not in the table is named by its name and `unit`.
    """
    column = BY_NAME.get(name)
    end, factor = _MLFLOW_UNITS.get(unit or (column.unit if column else ""), ("", 1.0))
    if column and column.mlflow:
        return column.mlflow, factor
    return (name if name.endswith(end) else name + end), factor


def summary_names(column: GpuColumn) -> Tuple[Tuple[str, str], ...]:
    """Return the keys of a GPU's summary that come from a column, each with its name in MLflow."""
    if column.summary or column.kind != FIGURE:
        return column.summary
    return ((column.name + "_mean", mlflow_name(column.name)[0] + "_mean"),)
