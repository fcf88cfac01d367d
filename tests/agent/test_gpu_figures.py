"""Activity, transfers and throttling of GPUs, on a driver that the test switches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_amltrain.agent.telemetry.telemetry_files import FIGURES_HOLD_S, HeldFigures
from tests.fakes import driver as fake
from tests.fakes.driver import ALL_ONES_32, ALL_ONES_64, Fails, Instance, SwitchableDriver

#: A process that reads figures at given times, by a clock of the test's.
CHILD = """
import json, sys
from jupyter_amltrain.agent import protocol as clock
from jupyter_amltrain.agent.telemetry import sampler
from jupyter_amltrain.agent.telemetry.gpu_figures import GpuFigures
now = [1000.0]
clock.mono = lambda: now[0]
readings, note = sampler.find_gpus(None, None, None)
figures = GpuFigures(readings)
names = [name for name, _ in figures.columns]
print(json.dumps(names), flush=True)
for line in sys.stdin:
    now[0] = 1000 + float(line)
    readings.read()
    rows = [dict(zip(names, row)) for row in figures.read()]
    print(json.dumps({"rows": rows, "sources": figures.sources(0)}), flush=True)
"""
SM, OCCUPANCY, TENSOR, DRAM = 2, 3, 5, 10
BUSY = {SM: 87.4, OCCUPANCY: 25, TENSOR: 45.5, DRAM: 61.0}
PCIE_TX, PCIE_RX, ALL_LINKS = 197, 198, ALL_ONES_32
LINK_TX, LINK_RX = (138, ALL_LINKS), (139, ALL_LINKS)


class Reader:
    """The process of :data:`CHILD`."""

    def __init__(self, driver: SwitchableDriver) -> None:
        environ = {**os.environ, **driver.environment()}
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, text=True
        )
        self.columns = self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def at(self, seconds: float) -> list[dict[str, Any]]:
        """Rows of the GPUs then."""
        return self._ask(seconds)["rows"]

    def sources(self, seconds: float) -> dict[str, str]:
        """Where the figures of the first GPU come from then."""
        return self._ask(seconds)["sources"]

    def _ask(self, seconds: float) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


Start = Callable[[SwitchableDriver], Reader]


@pytest.fixture
def driver(tmp_path: Path) -> SwitchableDriver:
    return fake.needed(tmp_path)


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[Reader] = []

    def begin(driver: SwitchableDriver) -> Reader:
        made.append(Reader(driver))
        return made[-1]

    yield begin
    for reader in made:
        reader.close()


def test_activity_of_hopper_comes_from_gpm(driver: SwitchableDriver, start: Start) -> None:
    driver.gpm(0, BUSY)
    reader = start(driver)
    assert reader.columns[:4] == ["sm_activity", "sm_occupancy", "tensor_activity", "dram_bandwidth"]
    assert "memory_busy" not in reader.columns
    row = reader.at(1)[0]
    assert [row[name] for name in reader.columns[:4]] == [87, 25, 46, 61]
    driver.gpm(0, {SM: 12})
    assert reader.at(2)[0]["sm_activity"] == 12
    assert reader.sources(3)["activity_source"] == "GPM"


def test_gpm_samples_are_reused(driver: SwitchableDriver, start: Start) -> None:
    driver.gpm(0, BUSY)
    reader = start(driver)
    for tick in range(1, 200):
        reader.at(5 * tick)
    assert driver.calls()["nvmlGpmSampleAlloc"] == 2
    assert 200 <= driver.calls()["nvmlGpmSampleGet"] <= 202  # one a tick, and the first ones
    assert "nvmlDeviceGetPcieThroughput" not in driver.calls()


def test_activity_of_older_gpu_is_memory_utilization(tmp_path: Path, start: Start) -> None:
    driver = fake.needed(tmp_path, generation="r470")
    driver.set(0, utilization=(90, 37))
    reader = start(driver)
    assert "memory_busy" in reader.columns and "sm_activity" not in reader.columns
    assert reader.at(1)[0]["memory_busy"] == 37
    driver.set(0, utilization=(90, ALL_ONES_32))
    assert reader.at(6)[0]["memory_busy"] is None


def test_activity_without_gpm_is_memory_utilization(driver: SwitchableDriver, start: Start) -> None:
    driver.gpm(0, None)
    driver.set(0, utilization=(90, 37))
    reader = start(driver)
    assert "sm_activity" not in reader.columns and reader.at(1)[0]["memory_busy"] == 37


def test_activity_of_mig_instance_is_own(driver: SwitchableDriver, start: Start) -> None:
    driver.mig(0, [Instance(0, gpu_instance=7), Instance(1, gpu_instance=9)])
    driver.gpm(0, {SM: 11, DRAM: 12}, gpu_instance=7)
    driver.gpm(0, {SM: 21, DRAM: 22}, gpu_instance=9)
    rows = start(driver).at(1)
    found = [(row["sm_activity"], row["dram_bandwidth"]) for row in rows]
    assert found[1:] == [(11, 12), (21, 22)]


@pytest.mark.parametrize("value", [Fails(3), Fails(999), -1.0, 101.5, float("nan"), float("inf"), 1e300])
def test_gpm_value_out_of_range_is_unknown(driver: SwitchableDriver, start: Start, value: Any) -> None:
    driver.gpm(0, {SM: value, TENSOR: 50, DRAM: 0})
    row = start(driver).at(1)[0]
    assert (row.get("sm_activity"), row["tensor_activity"], row["dram_bandwidth"]) == (None, 50, 0)


def test_gpm_metric_that_the_device_lacks_has_no_column(driver: SwitchableDriver, start: Start) -> None:
    driver.gpm(0, {SM: 87, TENSOR: 50, DRAM: 0})
    columns = start(driver).columns
    assert "sm_activity" in columns and "sm_occupancy" not in columns


@pytest.mark.thorough
@pytest.mark.parametrize("code", [1, 3, 4, 15, 999])
@pytest.mark.parametrize("function", ["nvmlGpmMetricsGet", "nvmlGpmSampleGet", "nvmlGpmMigSampleGet"])
def test_gpm_refused_is_unknown_until_back(driver: SwitchableDriver, start: Start, function: str, code: int) -> None:
    driver.gpm(0, BUSY)
    reader = start(driver)
    assert reader.at(1)[0]["sm_activity"] == 87
    driver.answer(function, code)
    values = {reader.at(t)[0]["sm_activity"] for t in (6, 11, 16)}
    assert values == ({87} if function == "nvmlGpmMigSampleGet" else {None})
    driver.answer(function, 0)
    again = [reader.at(t)[0]["sm_activity"] for t in range(21, 120, 5)]
    assert again[-1] == 87


def test_gpm_after_gpu_loss_continues(driver: SwitchableDriver, start: Start) -> None:
    driver.gpm(0, BUSY)
    reader = start(driver)
    driver.lose(0)
    assert reader.at(6)[0]["sm_activity"] is None
    driver.restore(0)
    assert [reader.at(t)[0]["sm_activity"] for t in range(12, 100, 6)][-1] == 87


def test_transfer_rates_are_counter_differences(driver: SwitchableDriver, start: Start) -> None:
    driver.fields(0, {PCIE_RX: 10 << 30, PCIE_TX: 5 << 30, LINK_RX: 1 << 30, LINK_TX: 2 << 30})
    reader = start(driver)
    reader.at(1)
    driver.fields(0, {PCIE_RX: (10 << 30) + (5000 << 20), PCIE_TX: (5 << 30) + (1 << 20)})
    driver.fields(0, {LINK_RX: (1 << 30) + 5 * (300 << 10), LINK_TX: 2 << 30})
    row = reader.at(6)[0]
    assert (row["pcie_rx"], row["pcie_tx"], row["nvlink_rx"], row["nvlink_tx"]) == (1000, 0.2, 300, 0)
    before = driver.calls()["nvmlDeviceGetFieldValues"]
    assert reader.sources(7)["transfers_source"] == "counters"
    assert driver.calls()["nvmlDeviceGetFieldValues"] == before + 1  # all four by one call


def test_transfer_without_counter_has_no_column(driver: SwitchableDriver, start: Start) -> None:
    driver.fields(0, {PCIE_RX: 1, PCIE_TX: 1})
    reader = start(driver)
    assert {"pcie_rx", "pcie_tx"} < set(reader.columns) and "nvlink_rx" not in reader.columns


@pytest.mark.parametrize("after", [0, ALL_ONES_64, Fails(3), 1 << 62])
def test_transfer_counter_jump_is_unknown(driver: SwitchableDriver, start: Start, after: Any) -> None:
    driver.fields(0, {PCIE_RX: 7 << 30, PCIE_TX: 0})
    reader = start(driver)
    driver.fields(0, {PCIE_RX: after})
    assert reader.at(1)[0]["pcie_rx"] is None


def test_throttling_is_share_of_violation_time(driver: SwitchableDriver, start: Start) -> None:
    driver.violation(0, 0, 5_000_000_000)
    reader = start(driver)
    reader.at(1)
    driver.violation(0, 0, 7_500_000_000)
    driver.violation(0, 1, 50_000_000)
    row = reader.at(6)[0]
    assert (row["throttled_power"], row["throttled_heat"]) == (50, 1)


@pytest.mark.parametrize(
    ("bits", "power", "heat"), [(0, 0, 0), (1, 0, 0), (4, 100, 0), (0x40, 0, 100), (0xA4, 100, 100), (0x8, 0, 100)]
)
def test_throttling_without_counters_uses_reasons(
    driver: SwitchableDriver, start: Start, bits: int, power: int, heat: int
) -> None:
    driver.answer("nvmlDeviceGetViolationStatus", 3)
    driver.set(0, clock_reasons=bits)
    row = start(driver).at(1)[0]
    assert (row["throttled_power"], row["throttled_heat"]) == (power, heat)


def test_unsupported_device_is_not_polled(tmp_path: Path, start: Start) -> None:
    driver = fake.needed(tmp_path)
    for name in (
        "nvmlGpm*",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetViolationStatus",
    ):
        driver.answer(name, 3)
    driver.answer("nvmlDeviceGetCurrentClocksEventReasons", 3)
    driver.answer("nvmlDeviceGetCurrentClocksThrottleReasons", 3)
    reader = start(driver)
    assert reader.columns == [] and reader.at(1) == [{}] * len(reader.at(2))
    driver.forget_calls()
    assert not any(reader.at(120)) and "nvmlDeviceGetFieldValues" not in driver.calls()


@pytest.mark.thorough
@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.floats(0, 100, allow_nan=False).map(lambda pause: ("tick", pause)),
            st.lists(st.one_of(st.none(), st.integers(0, 100)), min_size=1, max_size=3).map(lambda x: ("figures", x)),
            st.sampled_from([("figures", "x"), ("figures", None), ("figures", [1, "x"])]),
        )
    )
)
def test_held_slow_metrics_are_last_and_recent(lines: list[tuple[str, Any]]) -> None:
    held, now, last, since = HeldFigures(2), 0.0, None, None
    for kind, value in lines:
        if kind == "figures":
            held.set_values(value)
            if isinstance(value, list) and len(value) == 2:
                last, since = [x if isinstance(x, int) else None for x in value], None
            continue
        now += value
        if last is not None and since is None:
            since = now
        good = since is not None and now - since <= FIGURES_HOLD_S
        assert held.at(now) == (last if good else [None, None])
