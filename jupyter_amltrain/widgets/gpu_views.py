"""Which charts of the GPUs a dashboard can show: one view at a time, chosen by the reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jupyter_amltrain.agent import gpu_columns
from jupyter_amltrain.agent.gpu_columns import GPU_COLUMNS, SLOW, GpuColumn, symbol


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


def _chart(column: GpuColumn) -> GpuChart:
    thin = next((other.name for other in GPU_COLUMNS if other.beside == column.name), "")
    return GpuChart(column.chart, column.name, thin, percent=column.maximum == 100)


VIEWS = tuple(
    GpuView(name, label, tuple(_chart(column) for column in GPU_COLUMNS if column.view == name))
    for name, label in gpu_columns.VIEWS
)
#: Unit of each series of a GPU, as charts write it.
UNITS = {column.name: symbol(column.unit) for column in GPU_COLUMNS if column.kind != SLOW}


def available(fields: Sequence[str]) -> tuple[GpuView, ...]:
    """Views, with the charts for which a GPU has one of these columns."""
    known = set(fields)
    found = (
        view._replace(charts=tuple(chart for chart in view.charts if known & {chart.field, chart.thin}))
        for view in VIEWS
    )
    return tuple(view for view in found if view.charts or view.name == USE)
