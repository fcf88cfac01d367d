"""The table of GPU columns: released names and units stay, and every reader goes by it."""

from __future__ import annotations

import pytest

from jupyter_amltrain.agent.telemetry import gpu_columns
from jupyter_amltrain.agent.telemetry.gpu_columns import (
    BY_NAME,
    FIGURES,
    GPU_COLUMNS,
    MEAN,
    SLOW,
    SLOWS,
    TICKS,
    mlflow_name,
    summary_names,
)
from jupyter_amltrain.agent.telemetry.gpu_figures import GpuActivity, Throttling, Transfers
from jupyter_amltrain.output.layout import VIEWS
from jupyter_amltrain.tracking import system_metrics

MEBI = 2**20 / 1e6

#: Of released versions, in the order of their files.
RELEASED_TICKS = (
    ("util", "percent"), ("peak", "percent"), ("memory", "MiB"), ("power", "W"), ("temperature", "C"),
    ("sm_clock", "MHz"),
)  # fmt: skip
RELEASED_FIGURES = (
    ("sm_activity", "percent"), ("tensor_activity", "percent"), ("dram_bandwidth", "percent"),
    ("memory_busy", "percent"), ("pcie_rx", "MiB/s"), ("pcie_tx", "MiB/s"), ("nvlink_rx", "MiB/s"),
    ("nvlink_tx", "MiB/s"), ("throttled_power", "percent"), ("throttled_heat", "percent"),
)  # fmt: skip
RELEASED_SLOW = (
    ("mem_clock", "MHz"), ("throttle", "bits"), ("ecc", "errors"), ("power_limit", "W"), ("mine", "MiB"),
    ("others", "MiB"),
)  # fmt: skip
#: What stands in users' MLflow stores.
RELEASED_MLFLOW = {
    "util": ("utilization_percentage", 1.0),
    "memory": ("memory_usage_megabytes", MEBI),
    "power": ("power_usage_watts", 1.0),
    "peak": ("peak_utilization_percentage", 1.0),
    "temperature": ("temperature_celsius", 1.0),
    "sm_clock": ("sm_clock_megahertz", 1.0),
    "mem_clock": ("memory_clock_megahertz", 1.0),
    "throttle": ("throttle_reasons", 1.0),
    "ecc": ("uncorrected_ecc_errors", 1.0),
    "power_limit": ("power_limit_watts", 1.0),
    "mine": ("run_memory_megabytes", 1e-6),
    "others": ("other_memory_megabytes", 1e-6),
    "sm_activity": ("sm_activity_percentage", 1.0),
    "throttled_heat": ("throttled_heat_percentage", 1.0),
    "pcie_rx": ("pcie_rx_megabytes_per_second", MEBI),
}
RELEASED_SUMMARY = {
    "util_mean": ("utilization_percentage_mean", 1.0),
    "util_p50": ("utilization_percentage_p50", 1.0),
    "util_p95": ("utilization_percentage_p95", 1.0),
    "memory_peak": ("memory_peak_megabytes", MEBI),
    "memory_mean": ("memory_mean_megabytes", MEBI),
    "power_mean": ("power_usage_watts_mean", 1.0),
    "energy_wh": ("energy_wh", 1.0),
    "idle_share": ("idle_share", 1.0),
    "first_use": ("first_use_seconds", 1.0),
    "temperature_max": ("temperature_max_celsius", 1.0),
    "sm_activity_mean": ("sm_activity_percentage_mean", 1.0),
    "tensor_activity_mean": ("tensor_activity_percentage_mean", 1.0),
    "dram_bandwidth_mean": ("dram_bandwidth_percentage_mean", 1.0),
    "memory_busy_mean": ("memory_busy_percentage_mean", 1.0),
    "throttled_power_s": ("throttled_by_power_seconds", 1.0),
    "throttled_heat_s": ("throttled_by_heat_seconds", 1.0),
}


def test_tick_columns_keep_released_names_and_order() -> None:
    assert tuple((column.name, column.unit) for column in TICKS)[: len(RELEASED_TICKS)] == RELEASED_TICKS


@pytest.mark.parametrize("released, columns", [(RELEASED_FIGURES, FIGURES), (RELEASED_SLOW, SLOWS)])
def test_other_columns_keep_released_names_and_units(
    released: tuple[tuple[str, str], ...], columns: tuple[gpu_columns.GpuColumn, ...]
) -> None:
    assert set(released) <= {(column.name, column.unit) for column in columns}


@pytest.mark.parametrize("name", RELEASED_MLFLOW)
def test_mlflow_name_of_released_column_is_kept(name: str) -> None:
    assert mlflow_name(name, system_metrics._unit(name, "")) == RELEASED_MLFLOW[name]


def test_mlflow_name_of_unknown_column_tells_its_unit() -> None:
    assert mlflow_name("fan", "percent") == ("fan_percentage", 1.0)
    assert mlflow_name("xid") == ("xid", 1.0)


def test_summary_keys_of_released_versions_keep_their_mlflow_names() -> None:
    assert RELEASED_SUMMARY.items() <= system_metrics._GPU_SUMMARY.items()


def test_figure_without_summary_gets_its_mean() -> None:
    fan = gpu_columns.GpuColumn("fan", "1", gpu_columns.FIGURE, "Fan", MEAN)
    assert summary_names(fan) == (("fan_mean", "fan_mean"),)


def test_every_figure_has_one_reader() -> None:
    read = [*GpuActivity.NAMES, *Transfers.NAMES, *Throttling.NAMES]
    assert sorted(read) == sorted(column.name for column in FIGURES)


def test_charts_of_the_table_are_consistent() -> None:
    assert len(BY_NAME) == len(GPU_COLUMNS)
    known = {name for name, _ in gpu_columns.VIEWS}
    for column in GPU_COLUMNS:
        assert column.view in known | {""} and bool(column.view) == bool(column.chart)
        assert not column.beside or BY_NAME[column.beside].view
    drawn = {field for view in VIEWS for field in view.fields}
    with_history = {column.name for column in GPU_COLUMNS if column.kind != SLOW}
    assert drawn == with_history, "every column with a history is in a chart"
