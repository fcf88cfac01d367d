"""Lists of processes as drivers of all generations give them: of the probe and of the sampler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import driver as fake
from tests.fakes.driver import GENERATIONS, Fails, Instance, Process, SwitchableDriver

MIB = 1 << 20
#: Prints what the probe reads, and what a sampler lists of each device.
READER = """
import json, sys
from jupyter_amltrain.agent.telemetry import nvml, sampler
from jupyter_amltrain.agent.telemetry.gpu_slow import SlowReader
probe = nvml.read_gpus()
readings, _ = sampler.find_gpus(None, None, None)
slow = SlowReader(readings)
listed = {gpu["uuid"]: slow.processes(i) for i, gpu in enumerate(readings.gpus)}
json.dump({"probe": probe, "listed": listed, "header": readings.gpus}, sys.stdout)
"""
WITHOUT_SECOND = ("*RunningProcesses_v2",)


def look(driver: SwitchableDriver) -> dict[str, Any]:
    """What both readers say, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", READER], env={**os.environ, **driver.environment()}, capture_output=True, text=True,
        cwd=Path(__file__).parents[2], timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def processes(found: dict[str, Any], uuid: str) -> tuple[Any, Any]:
    """Pid and MiB of each process of a device, by the probe and by the sampler."""
    gpu = next(gpu for gpu in found["probe"]["gpus"] if gpu["uuid"] == uuid)
    rows = gpu["processes"]
    probed = None if rows is None else [(p["pid"], None if p["memory"] is None else p["memory"] // MIB) for p in rows]
    listed = found["listed"][uuid]
    return probed, None if listed is None else [tuple(row) for row in listed]


@pytest.mark.thorough
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("without", [(), WITHOUT_SECOND], ids=["all", "no-second"])
def test_process_list_of_driver_generation_is_complete(
    tmp_path: Path, generation: str, without: tuple[str, ...]
) -> None:
    counts = [0, 1, 3, 48, 64, 65, 150]
    driver = fake.needed(tmp_path, len(counts), generation, without)
    expected = {}
    with driver.changes():
        for gpu, count in enumerate(counts):
            rows = [(5000 + k, None if k == 2 else k + 1) for k in range(count)]
            driver.processes(gpu, [Process(pid, None if size is None else size * MIB) for pid, size in rows])
            expected[driver.uuid(gpu)] = (rows, rows)
    found = look(driver)
    assert {uuid: processes(found, uuid) for uuid in expected} == expected


@pytest.mark.parametrize("generation", GENERATIONS)
def test_process_list_repeated_pid_is_counted_once(tmp_path: Path, generation: str) -> None:
    driver = fake.needed(tmp_path, 1, generation)
    driver.processes(0, [Process(7, 3072 * MIB), Process(8, MIB), Process(7, 3072 * MIB)])
    expected = [(7, 3072), (8, 1)]
    assert processes(look(driver), driver.uuid(0)) == (expected, expected)


def test_process_list_refused_is_unknown(tmp_path: Path) -> None:
    driver = fake.needed(tmp_path, 1)
    driver.processes(0, Fails(fake.NOT_SUPPORTED))
    assert processes(look(driver), driver.uuid(0)) == (None, None)


def test_process_list_of_mig_instance_is_own(tmp_path: Path) -> None:
    driver = fake.needed(tmp_path, 2)
    driver.mig(0, [Instance(0, 3), Instance(1, 4), Instance(2, 5)])
    driver.processes(0, [Process(7, MIB, 3, 0), Process(8, 2 * MIB, 4, 0), Process(8, 2 * MIB, 4, 0)])
    found = look(driver)
    assert processes(found, driver.uuid(0, 0)) == ([(7, 1)], [(7, 1)])
    assert processes(found, driver.uuid(0, 1)) == ([(8, 2)], [(8, 2)])
    assert processes(found, driver.uuid(0, 2)) == ([], [])


def test_process_list_of_mig_instance_falls_back_to_gpu(tmp_path: Path) -> None:
    driver = fake.needed(tmp_path, 1)
    driver.mig(0, [Instance(0, 3), Instance(1, 4)])
    driver.processes(0, [Process(7, MIB, 3, 0)])
    for part in (0, 1):
        driver.processes(0, Fails(fake.NOT_SUPPORTED), instance=part)
    probed = {gpu["uuid"]: gpu["processes"] for gpu in look(driver)["probe"]["gpus"]}
    assert probed == {driver.uuid(0, 0): [{"pid": 7, "memory": MIB}], driver.uuid(0, 1): []}


def test_process_list_buffer_is_never_overrun(tmp_path: Path) -> None:
    """A driver that has room for `n` rows may write `n` of its longest: the room behind them stays as it was."""
    from jupyter_amltrain.agent.telemetry import nvml

    rooms = []

    def function(device: Any, count: Any, buffer: Any) -> int:
        rooms.append((count._obj.value, len(buffer._obj)))
        count._obj.value = 1000
        return 0 if len(rooms) > 1 else 7

    lists = nvml.ProcessLists(lambda name: function if name.endswith("_v3") else None)
    assert lists.of(None) is not None
    assert all(room * 32 <= size for room, size in rooms) and len(rooms) == 2
