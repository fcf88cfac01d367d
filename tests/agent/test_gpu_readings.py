"""What is read of GPUs, with a fake driver library under the real pynvml."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent.telemetry.gpu_processes import ProcessOwners

from .scripted_sampler import UUIDS, ScriptedSampler

GIB = 1 << 30
#: Functions of a tick and the columns that need them.
FUNCTIONS = {
    "nvmlDeviceGetPowerUsage": {3},
    "nvmlDeviceGetTemperature": {4},
    "nvmlDeviceGetClockInfo": {5},
    "nvmlDeviceGetSamples": set(),
    "nvmlDeviceGetMemoryInfo_v2": set(),
}
SLOW_VALUES = {
    "nvmlDeviceGetClockInfo": {"mem_clock"},
    "nvmlDeviceGetTotalEccErrors": {"ecc"},
    "nvmlDeviceGetEnforcedPowerLimit": {"power_limit"},
    "nvmlDeviceGetCurrentClocksEventReasons": set(),
    "nvmlDeviceGetComputeRunningProcesses_v2": set(),
}
FULL = [[40, 40, 2000, 300, 50, 1500], [50, 50, 3000, 310, 51, 1501]]
ALL_SLOW = {"mem_clock": 2619, "throttle": 0, "ecc": 0, "power_limit": 700, "mine": 0, "others": 0, "own": False}


@pytest.fixture
def stage(tmp_path: Path) -> ScriptedSampler:
    return ScriptedSampler(tmp_path)


@pytest.fixture
def plain(stage: ScriptedSampler) -> ScriptedSampler:
    stage.curves(["0 0 40 2000 300 50 1500", "1 0 50 3000 310 51 1501"])
    return stage


@pytest.mark.parametrize("count", [1, 8, 64])
def test_gpu_readings_equal_curves(stage: ScriptedSampler, count: int) -> None:
    stage.switch(GPUS=count)
    curve = [
        (gpu, t, (7 * gpu + 13 * t) % 101, 1000 + 37 * gpu + t, 90.5 + gpu + t, 30 + t, 1000 + gpu)
        for gpu in range(count)
        for t in range(10)
    ]
    stage.curves(["{} {} {} {} {} {} {}".format(*point) for point in curve])
    found = stage.play([t + 0.95 for t in range(10)], uuids=UUIDS[:count])
    assert [gpu["uuid"] for gpu in found["gpus"]] == UUIDS[:count]
    assert found["gpus"][0]["memory_total"] == 80 * 1024 and found["gpus"][0]["power_limit"] == 700
    for gpu, t, util, memory, power, temperature, clock in curve:
        watts = power if power < 100 else int(power + 0.5)
        assert found["rows"][t][gpu] == [util, util, memory, watts, temperature, clock]


def test_gpu_peak_has_burst_between_samples(stage: ScriptedSampler) -> None:
    stage.curves(["* 0 0 1000 80", "0 2.35 90 1000 80", "0 2.65 0 1000 80"])
    rows = stage.play([1, 2, 3, 4], uuids=UUIDS[:2])["rows"]
    assert [row[0][:2] for row in rows] == [[0, 0], [0, 0], [27, 90], [0, 0]]
    assert all(row[1][:2] == [0, 0] for row in rows)


def test_utilization_without_new_samples_is_last(plain: ScriptedSampler) -> None:
    plain.switch(SAMPLE_HZ=0)
    assert plain.play([1, 2], uuids=UUIDS[:2])["rows"] == [FULL, FULL]


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["UNSUPPORTED", "MISSING", "no symbol"])
@pytest.mark.parametrize("function", sorted({*FUNCTIONS, *SLOW_VALUES}))
def test_gpu_readings_without_function_miss_its_value(plain: ScriptedSampler, how: str, function: str) -> None:
    if how == "no symbol":
        plain.without = (function,)
    else:
        plain.switch(**{how: function})
    found = plain.play([0.5 * k for k in range(1, 24)], uuids=UUIDS[:2], slow=True, every=0.5)
    lacks = FUNCTIONS.get(function, set())
    for rows in found["rows"][1:]:
        assert rows == [[None if k in lacks else x for k, x in enumerate(row)] for row in FULL]
    lacks_slow = SLOW_VALUES.get(function, set())
    for values in found["slow"]:
        assert values == [{key: None if key in lacks_slow else x for key, x in ALL_SLOW.items()}] * 2
    assert found["notes"] == [[]] * 23
    if how != "no symbol":  # who says no is not asked again, but for what was asked in opening
        assert plain.calls().get(function, 0) <= (6 if function != "nvmlDeviceGetClockInfo" else 12)


def test_gpu_readings_of_silent_gpu_are_none(plain: ScriptedSampler) -> None:
    everything = "Samples UtilizationRates MemoryInfo PowerUsage Temperature ClockInfo"
    plain.switch(UNSUPPORTED=",".join("nvmlDeviceGet" + name for name in everything.split()))
    found = plain.play([1, 2], uuids=UUIDS[:2])
    assert found["rows"] == [[[None] * 6] * 2] * 2
    assert found["gpus"][0]["memory_total"] is None and found["gpus"][0]["baseline"] is None


def test_gpu_readings_list_mig_instances(plain: ScriptedSampler) -> None:
    plain.switch(MIG="1:2")
    found = plain.play([1, 2], indices=[1])
    assert [(g["index"], g["mig"], g["uuid"][:4]) for g in found["gpus"]] == [
        (1, False, "GPU-"), (200, True, "MIG-"), (201, True, "MIG-"),
    ]  # fmt: skip
    assert found["rows"][1] == [FULL[1], [None, None, 428, None, None, None], [None, None, 428, None, None, None]]
    uuid = found["gpus"][2]["uuid"]
    again = plain.play([1], uuids=[uuid], slow=True)
    assert [g["uuid"] for g in again["gpus"]] == [uuid] and again["rows"][0][0][2] == 428
    assert again["slow"][0][0]["ecc"] is None and again["slow"][0][0]["mine"] == 0


def test_gpu_readings_of_lost_gpu_are_none_until_back(plain: ScriptedSampler) -> None:
    plain.switch(LOST="1:3.5:12")
    found = plain.play(range(1, 22), uuids=UUIDS[:2], slow=True)
    gone = [t for t, rows in enumerate(found["rows"], 1) if rows[1] == [None] * 6]
    assert gone == list(range(4, 14))  # tried every five seconds
    assert all(rows[0] == FULL[0] for rows in found["rows"])
    assert found["rows"][-1] == FULL
    assert [note for notes in found["notes"] for note in notes] == ["GPU 1 fell off the bus", "GPU 1 is back"]


def test_gpu_readings_during_driver_unload_are_none(plain: ScriptedSampler) -> None:
    plain.switch(UNLOAD="3.5:9.5")
    found = plain.play(range(1, 20), uuids=UUIDS[:2], slow=True)
    gone = [t for t, rows in enumerate(found["rows"], 1) if rows == [[None] * 6] * 2]
    assert gone == list(range(4, 14)) and found["rows"][-1] == FULL
    notes = [note for notes in found["notes"] for note in notes]
    assert notes == ["the NVIDIA driver was unloaded", "the NVIDIA driver is back"]


def test_gpu_readings_start_without_driver(plain: ScriptedSampler) -> None:
    plain.switch(BROKEN=1)
    found = plain.play([1, 2], uuids=UUIDS[:2])
    assert found["gpus"] == [] and "Driver Not Loaded" in found["note"]
    # An earlier sampler of the run knew them: they are looked for.
    found = plain.play([1, 2], known=[{"index": 0, "uuid": UUIDS[0]}])
    assert found["rows"] == [[[None] * 6]] * 2


def test_gpu_readings_calls_per_sample_are_bounded(stage: ScriptedSampler) -> None:
    stage.switch(GPUS=8)
    stage.curves(["* 0 50 1000 300"])
    stage.play([1], uuids=UUIDS[:8], slow=True)
    first = sum(stage.calls().values())
    (stage.folder / "calls").unlink()
    stage.play(range(1, 101), uuids=UUIDS[:8], slow=True)
    per_tick = (sum(stage.calls().values()) - first) / 99 / 8
    assert per_tick <= 6.5, stage.calls()
    assert not any("Pcie" in name for name in stage.calls())


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mode", "owners", "sums"),
    [
        ("", ["mine", "other"], {"mine": 1024, "others": 2048}),
        ("host", ["unknown", "unknown"], {"mine": None, "others": None}),
        ("mixed", ["mine", "unknown"], {"mine": 1024, "others": None}),
        ("empty", [], {"mine": None, "others": None}),
    ],
)
@pytest.mark.parametrize("true", [False, True])
def test_gpu_process_owner_follows_pid_mode(
    plain: ScriptedSampler, mode: str, owners: list[str], sums: dict[str, Any], true: bool
) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"]) as other:
        try:
            lines = [f"0 {os.getpid()} {GIB}\n", f"0 {other.pid} {2 * GIB}\n"]
            (plain.folder / "processes").write_text("".join(lines))
            plain.switch(PIDS=mode)
            found = plain.play([1], uuids=UUIDS[:1], slow=True, members=[os.getpid()], true=true)
        finally:
            other.kill()
    processes = [row for one in found["slow_rows"][0] for row in one.get("processes", ())]
    assert [row[2] for row in processes] == owners
    if mode == "empty" and true:
        sums = {"mine": 0, "others": 0}
    assert {key: found["slow"][0][0][key] for key in sums} == sums
    assert found["slow"][0][0]["own"] == ("mine" in owners)
    if owners[:1] == ["mine"]:
        assert processes[0][:4] == [0, os.getpid(), "mine", 1024] and processes[0][4]


def test_host_pid_of_other_process_is_unknown() -> None:
    # The driver lists the host's process 77; here 77 is a shell that has nothing to do with it.
    inside = ProcessOwners(true=False, here=lambda pid: pid == 77, holds=lambda pid: False)
    assert inside.classify([(77, 10)], {5, 6}) == [(77, "unknown", 10)]
    assert inside.sums(inside.classify([(77, 10)], {5, 6})) == {"mine": None, "others": None, "own": False}
    # It has the GPU open, or the driver is seen to list ours: it is another user of the GPU.
    open_ = ProcessOwners(true=False, here=lambda pid: pid == 77, holds=lambda pid: True)
    assert open_.classify([(77, 10)], {5}) == [(77, "other", 10)]
    assert inside.classify([(77, 10), (5, 20)], {5}) == [(77, "other", 10), (5, "mine", 20)]


def test_process_memory_unknown_is_none(plain: ScriptedSampler) -> None:
    (plain.folder / "processes").write_text(f"0 {os.getpid()} -1\n")
    found = plain.play([1], uuids=UUIDS[:1], slow=True, members=[os.getpid()])
    assert found["slow"][0][0]["own"] and found["slow"][0][0]["mine"] is None


def test_many_gpu_processes_are_limited(plain: ScriptedSampler) -> None:
    (plain.folder / "processes").write_text("".join(f"0 {100000 + k} {GIB}\n" for k in range(100)))
    found = plain.play([1], uuids=UUIDS[:1], slow=True)
    assert len(found["slow_rows"][0][-1]["processes"]) == 100
