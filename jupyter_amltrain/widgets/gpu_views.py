"""Which charts of the GPUs a dashboard can show: one view at a time, chosen by the reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class GpuChart(NamedTuple):
    """One chart of a view.

    Attributes
    ----------
    field
        Column of each GPU that is drawn.
    thin
        Another one, drawn thin and pale beside it.
    """

    title: str
    field: str
    thin: str = ""
    percent: bool = False


class GpuView(NamedTuple):
    """A view."""

    name: str
    label: str
    charts: tuple[GpuChart, ...]

    @property
    def fields(self) -> tuple[str, ...]:
        """Columns of each GPU that it draws."""
        return tuple(field for chart in self.charts for field in (chart.field, chart.thin) if field)


#: Drawn by hand: it has sizes, limits and peaks.
USE = "use"
#: Column that the first view draws beside the utilization, where there is one.
ACTIVITY = "sm_activity"
VIEWS = (
    GpuView(
        USE,
        "Utilization, memory, power",
        (
            GpuChart("GPU utilization (%)", "util", "peak", percent=True),
            GpuChart("GPU memory", "memory"),
            GpuChart("GPU power (W)", "power"),
        ),
    ),
    GpuView(
        "activity",
        "SM, tensor cores, DRAM",
        (
            GpuChart("SM activity (%)", "sm_activity", percent=True),
            GpuChart("Tensor core activity (%)", "tensor_activity", percent=True),
            GpuChart("DRAM bandwidth (%)", "dram_bandwidth", percent=True),
            GpuChart("Memory controller busy (%)", "memory_busy", percent=True),
        ),
    ),
    GpuView(
        "clocks",
        "Temperature, clocks, throttling",
        (
            GpuChart("Temperature (°C)", "temperature"),
            GpuChart("SM clock (MHz)", "sm_clock"),
            GpuChart(
                "Throttled by heat, thin: by power (% of time)", "throttled_heat", "throttled_power", percent=True
            ),
        ),
    ),
    GpuView(
        "transfers",
        "PCIe, NVLink",
        (
            GpuChart("PCIe to the GPU, thin: from it (MiB/s)", "pcie_rx", "pcie_tx"),
            GpuChart("NVLink to the GPU, thin: from it (MiB/s)", "nvlink_rx", "nvlink_tx"),
        ),
    ),
)
UNITS = {
    **dict.fromkeys(("util", "peak", "sm_activity", "tensor_activity", "dram_bandwidth", "memory_busy"), "%"),
    **dict.fromkeys(("throttled_heat", "throttled_power"), "%"),
    **dict.fromkeys(("pcie_rx", "pcie_tx", "nvlink_rx", "nvlink_tx"), "MiB/s"),
    "memory": "MiB", "power": "W", "temperature": "°C", "sm_clock": "MHz",
}  # fmt: skip


def available(fields: Sequence[str]) -> tuple[GpuView, ...]:
    """Views, with the charts for which a GPU has one of these columns."""
    known = set(fields)
    found = (
        view._replace(charts=tuple(chart for chart in view.charts if known & {chart.field, chart.thin}))
        for view in VIEWS
    )
    return tuple(view for view in found if view.charts or view.name == USE)
