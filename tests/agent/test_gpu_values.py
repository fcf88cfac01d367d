"""GPU readings under a driver that misbehaves: stale samples, sentinels, refusals in passing, errors, counters."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import driver as fake
from tests.fakes.driver import ALL_ONES_32, ALL_ONES_64, Fails, Process, SwitchableDriver

from .live_sampler import EPOCH, LiveSampler

MIB = 1 << 20
S = 1_000_000  # microseconds
Start = Callable[..., LiveSampler]


@pytest.fixture
def driver(tmp_path: Path) -> SwitchableDriver:
    return fake.needed(tmp_path, gpus=2)


@pytest.fixture
def start(driver: SwitchableDriver, tmp_path: Path) -> Iterator[Start]:
    made: list[LiveSampler] = []

    def start(**how: Any) -> LiveSampler:
        made.append(LiveSampler(driver, tmp_path / "run", **how))
        return made[-1]

    yield start
    for one in made:
        one.kill()


# -- samples ------------------------------------------------------------------------------


def test_repeated_samples_are_dropped(driver: SwitchableDriver, start: Start) -> None:
    driver.samples(0, [(1 * S, 90), (2 * S, 90)], honor_time=False)
    sampler = start()
    driver.samples(0, [(1 * S, 90), (2 * S, 90), (3 * S, 20)], honor_time=False)
    assert sampler.tick(1)[0]["util"] == 20 and sampler.rows[0]["peak"] == 20
    # Nothing is new: the driver's number of now counts.
    assert sampler.tick(2)[0]["util"] == 0 and sampler.rows[0]["peak"] == 0


def test_samples_without_time_are_dropped(driver: SwitchableDriver, start: Start) -> None:
    driver.samples(0, [(1 * S, 40)])
    sampler = start()
    driver.samples(0, [(0, 0), (2 * S, 40), (0, 0), (ALL_ONES_64, 7)])
    assert sampler.tick(1)[0]["util"] == 40
    driver.samples(0, [(3 * S, 60), (0, 0)])
    assert sampler.tick(2)[0]["util"] == 60


def test_samples_after_clock_set_back_are_used(driver: SwitchableDriver, start: Start) -> None:
    driver.samples(0, [(100 * S, 40)], honor_time=False)
    sampler = start()
    driver.samples(0, [(1 * S, 70)], honor_time=False)
    sampler.tick(1)
    driver.samples(0, [(1 * S, 70), (2 * S, 30)], honor_time=False)
    assert sampler.tick(2)[0]["util"] == 30


# -- sentinels ------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("values", "columns"),
    [
        ({"utilization": (ALL_ONES_32, ALL_ONES_32)}, ["util", "peak"]),
        ({"utilization": (101, 0)}, ["util", "peak"]),
        ({"samples.1": [(9 * S, ALL_ONES_32)], "utilization": (ALL_ONES_32, 0)}, ["util", "peak"]),
        ({"power": ALL_ONES_32}, ["power"]),
        ({"power": 20_000_000}, ["power"]),
        ({"temperature": ALL_ONES_32}, ["temperature"]),
        ({"sm_clock": ALL_ONES_32}, ["sm_clock"]),
        ({"memory_clock": ALL_ONES_32}, ["mem_clock"]),
        ({"memory": (80 << 30, 0, 90 << 30)}, ["memory"]),
        ({"memory": (ALL_ONES_64,) * 3}, ["memory"]),
        ({"memory": (80 << 30, 0, ALL_ONES_64)}, ["memory"]),
        ({"clock_reasons": ALL_ONES_64}, ["throttle"]),
        ({"ecc.1.0": ALL_ONES_64}, ["ecc"]),
        ({"ecc.1.0": ALL_ONES_32}, ["ecc"]),
        ({"power_limit": ALL_ONES_32}, ["power_limit"]),
    ],
)
def test_sentinel_value_of_gpu_is_none(
    driver: SwitchableDriver, start: Start, values: dict[str, Any], columns: list[str]
) -> None:
    sampler = start()
    driver.set(0, **values)
    for t in range(1, 8):
        first, second = sampler.tick(t)
    unknown = {name: value for name, value in first.items() if value is None}
    assert sorted(unknown) == sorted(columns)
    assert all(value is not None for value in second.values())


def test_sentinel_values_at_start_are_none(driver: SwitchableDriver, start: Start) -> None:
    driver.set(0, memory=(ALL_ONES_64,) * 3, power_limit=ALL_ONES_32, energy=ALL_ONES_64)
    gpu = start().gpus[0]
    assert [gpu.get(name) for name in ("memory_total", "power_limit", "baseline", "energy")] == [None] * 4


@pytest.mark.parametrize("size", [None, 1 << 60])
def test_process_memory_impossible_is_none(driver: SwitchableDriver, start: Start, size: Any) -> None:
    driver.processes(0, [Process(os.getpid(), size)])
    gpu = start(members=[os.getpid()]).tick(1)[0]
    assert gpu["own"] and gpu["mine"] is None


def test_process_listed_twice_is_counted_once(driver: SwitchableDriver, start: Start) -> None:
    mine, other = os.getpid(), os.getppid()
    driver.processes(0, [Process(mine, 3072 * MIB), Process(other, 100 * MIB)] * 2)
    gpu = start(members=[mine]).tick(1)[0]
    assert (gpu["mine"], gpu["others"]) == (3072, 100) and len(gpu["processes"]) == 2


# -- refusals ----------------------------------------------------------------------------------


def test_memory_after_temporary_refusal_does_not_jump(driver: SwitchableDriver, start: Start) -> None:
    driver.set(0, memory=(80 << 30, 600 * MIB, 1000 * MIB))
    sampler = start()
    assert sampler.gpus[0]["baseline"] == 1000 and sampler.gpus[0]["reserved"] == 600
    rows = [sampler.tick(t)[0]["memory"] for t in (1, 2)]
    driver.answer("nvmlDeviceGetMemoryInfo_v2", 3)
    rows += [sampler.tick(t)[0]["memory"] for t in (3, 4, 5)]
    assert driver.calls()["nvmlDeviceGetMemoryInfo"] > 0
    driver.answer("nvmlDeviceGetMemoryInfo_v2", 0)
    rows += [sampler.tick(t)[0]["memory"] for t in range(6, 200, 3)]
    assert set(rows) <= {1000, None} and rows.count(None) <= 1  # the tick of the refusal


def test_memory_function_is_fixed_at_start(driver: SwitchableDriver, start: Start, tmp_path: Path) -> None:
    driver.set(0, memory=(80 << 30, 600 * MIB, 1000 * MIB))
    driver.answer("nvmlDeviceGetMemoryInfo_v2", 3)
    first = start()
    assert first.gpus[0]["baseline"] == 1600
    driver.answer("nvmlDeviceGetMemoryInfo_v2", 0)
    assert {first.tick(t)[0]["memory"] for t in range(1, 150, 5)} == {1600}
    first.kill()
    again = start(t=150.0)
    assert {again.tick(t)[0]["memory"] for t in range(151, 200, 5)} == {1600}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("function", "column"),
    [
        ("nvmlDeviceGetPowerUsage", "power"),
        ("nvmlDeviceGetTemperature", "temperature"),
        ("nvmlDeviceGetEnforcedPowerLimit", "power_limit"),
        ("nvmlDeviceGetComputeRunningProcesses*", "mine"),
        ("nvmlDeviceGetTotalEccErrors", "ecc"),
    ],
)
@pytest.mark.parametrize("code", [2, 3, 4])
def test_function_refused_temporarily_is_retried(
    driver: SwitchableDriver, start: Start, function: str, column: str, code: int
) -> None:
    driver.answer(function, code, gpu=1)
    sampler = start()
    assert sampler.tick(1)[1][column] is None
    driver.forget_calls()
    for t in range(2, 50):
        assert sampler.tick(t)[1][column] is None
    driver.answer(function, 0, gpu=1)
    for t in range(50, 200):
        last = sampler.tick(t)
    assert last[1][column] is not None


def test_function_refused_permanently_is_retried_rarely(driver: SwitchableDriver, start: Start) -> None:
    driver.answer("nvmlDeviceGetTemperature", 3)
    sampler = start()
    driver.forget_calls()
    for t in range(1, 301):
        sampler.tick(t)
    assert 2 <= driver.calls()["nvmlDeviceGetTemperature"] <= 20


# -- notes --------------------------------------------------------------------------------------


def test_summary_has_notes_with_times(driver: SwitchableDriver, start: Start) -> None:
    sampler = start()
    sampler.tick(1)
    driver.lose(1)
    sampler.tick(2)
    driver.restore(1)
    sampler.tick(8)
    driver.lose(1, fake.RESET_REQUIRED)
    sampler.tick(9)
    driver.restore(1)
    sampler.tick(15)
    driver.down()
    sampler.tick(16)
    driver.up()
    sampler.tick(22)
    notes = sampler.close()["notes"]
    assert [t - EPOCH for t, _ in notes] == [2, 8, 9, 15, 16, 22]
    words = ["fell off", "GPU 1 is back", "GPU 1 requires a reset", "GPU 1 is back", "unloaded", "driver is back"]
    for word, (_, note) in zip(words, notes, strict=True):
        assert word in note


def test_read_error_is_noted_once(driver: SwitchableDriver, start: Start) -> None:
    sampler = start()
    driver.answer("nvmlDeviceGetPowerUsage", 999, gpu=1)
    for t in range(1, 10):
        sampler.tick(t)
    (note,) = sampler.notes()
    assert "GPU 1" in note and "power" in note and "999" in note and "temperature" not in note
    driver.answer("nvmlDeviceGetPowerUsage", 0, gpu=1)
    for t in range(10, 20):
        sampler.tick(t)
    assert "GPU 1 responds again" in sampler.notes()[1]


def test_gpu_with_only_errors_is_noted(driver: SwitchableDriver, start: Start) -> None:
    sampler = start()
    driver.answer("nvmlDeviceGet*", 999, gpu=0)
    gpu = sampler.tick(1)[0]
    assert [gpu[name] for name in ("util", "memory", "power", "temperature", "sm_clock")] == [None] * 5
    assert any("GPU 0 does not answer" in note for note in sampler.notes())


def test_intermittent_errors_are_bounded(driver: SwitchableDriver, start: Start) -> None:
    sampler = start()
    for t in range(1, 400, 8):
        driver.answer("nvmlDeviceGetPowerUsage", 999, gpu=1)
        sampler.tick(t)
        driver.answer("nvmlDeviceGetPowerUsage", 0, gpu=1)
        sampler.tick(t + 1)
        sampler.tick(t + 7)
    assert 2 < len(sampler.notes()) <= 20
    assert len(sampler.close()["notes"]) <= 20


def test_gpu_requiring_reset_stays_lost(driver: SwitchableDriver, start: Start) -> None:
    sampler = start()
    # Names and ids are answered, readings are not.
    for name in ("MemoryInfo", "MemoryInfo_v2", "PowerUsage", "Temperature", "ClockInfo", "Samples"):
        driver.answer(f"nvmlDeviceGet{name}", fake.RESET_REQUIRED, gpu=0)
    for t in range(1, 40):
        sampler.tick(t)
    assert len(sampler.notes()) == 1


# -- energy ---------------------------------------------------------------------------------------


def energy(driver: SwitchableDriver, start: Start, counts: list[Any]) -> dict[str, Any]:
    """The first GPU's figures of a run of 360 W with these counters (mJ), one each ten seconds."""
    driver.set(0, power=360_000, energy=counts[0])
    sampler = start()
    for k, count in enumerate(counts):
        driver.set(0, energy=count)
        for t in range(10 * k + 1, 10 * k + 11):
            sampler.tick(t)
    return sampler.close()["gpus"][0]


def test_energy_is_counter_difference(driver: SwitchableDriver, start: Start) -> None:
    figures = energy(driver, start, [5_000_000, 8_000_000, 14_000_000])
    assert (figures["energy_wh"], figures["energy_source"]) == (2.5, "counter")


@pytest.mark.parametrize(
    "counts",
    [
        [9_000_000, 12_000_000, 1_000],
        [9_000_000, 9_000_000 + (1 << 50), 9_000_001],
        [9_000_000, 9_000_000 + (1 << 50), 9_000_001 + (1 << 50)],
        [9_000_000] * 3,
        [Fails(3), 9_000_000, 12_000_000],
        [Fails(3)] * 3,
    ],
    ids=["reset", "jump and back", "jump", "stands still", "late", "none"],
)
def test_energy_without_counter_is_summed_from_power(driver: SwitchableDriver, start: Start, counts: list[Any]) -> None:
    figures = energy(driver, start, counts)
    assert figures["energy_source"] == "power" and figures["energy_wh"] == pytest.approx(2.9, abs=0.01)


def test_energy_after_sampler_restart_continues(driver: SwitchableDriver, start: Start) -> None:
    driver.set(0, energy=1_000_000)
    first = start()
    for t in range(1, 70):
        first.tick(t)
    first.kill()
    driver.set(0, energy=10_000_000)
    second = start(t=80.0)
    second.tick(81)
    figures = second.close()["gpus"][0]
    assert (figures["energy_wh"], figures["energy_source"]) == (2.5, "counter")
