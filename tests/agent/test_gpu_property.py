"""Random behaviors of a driver: nothing crashes, no number is made up, no busy GPU is given away."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent.queue import slots
from jupyter_amltrain.agent.telemetry import nvml
from tests.fakes import driver as fake
from tests.fakes.driver import (
    ALL_ONES_32,
    ALL_ONES_64,
    GENERATIONS,
    Fails,
    Instance,
    Process,
    exported,
)

from .live_sampler import LiveSampler

MIB = 1 << 20
GPUS, RESERVED = 2, 600
OURS, STRANGER = os.getpid(), 1
#: Behaviors of one live sampler, and what `make test` and `make soak` play.
EACH, FAST, ALL = 20, 3, 50
CODES = (1, 2, 3, 4, 6, 7, 9, 12, 13, 15, 16, 17, 18, 19, 23, 25, 28, 999)
FUNCTIONS = sorted(name for name in exported() if name.startswith("nvmlDeviceGet"))
NAMES = {"power": "power", "temperature": "temperature", "sm_clock": "sm_clock", "memory_clock": "mem_clock"}
SENTINELS: dict[str, Any] = {
    "utilization": (ALL_ONES_32, ALL_ONES_32), "power": ALL_ONES_32, "temperature": ALL_ONES_32,
    "sm_clock": ALL_ONES_32, "memory_clock": ALL_ONES_32, "power_limit": ALL_ONES_32, "ecc.1.0": ALL_ONES_64,
    "clock_reasons": ALL_ONES_64, "energy": ALL_ONES_64,
}  # fmt: skip
#: The lists of older drivers are read by the probe since it has its own reader of them.
READS_ALL_LISTS = hasattr(nvml, "ProcessLists")


class Play:
    """A driver that gets worse step by step, and what it has said."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.generation = self.dice.choice(sorted(GENERATIONS))
        self.driver = fake.needed(folder, GPUS, self.generation)
        self.micros, self.t = 1_000_000, 0.0
        #: Of each GPU and column what the driver said: in this step, and ever.
        self.now: list[dict[str, set[float]]] = []
        self.ever: list[dict[str, set[float]]] = [{} for _ in range(GPUS)]
        self.samples: list[set[int]] = []
        self.busy: list[set[str]] = []
        self.hidden: list[bool] = []
        self.story: list[str] = []
        self.heal()

    def say(self, gpu: int, column: str, value: float) -> None:
        self.now[gpu].setdefault(column, set()).add(value)
        self.ever[gpu].setdefault(column, set()).add(value)

    def heal(self) -> None:
        """A driver without a fault, with other values than before."""
        driver = self.driver
        self.now, self.samples = [{} for _ in range(GPUS)], [set() for _ in range(GPUS)]
        self.busy, self.hidden, self.story = [set() for _ in range(GPUS)], [False] * GPUS, []
        with driver.changes():
            driver._values.clear()
            driver._gpus, driver._uncounted = [], set()
            driver.install(self.generation)
            driver.set_gpus(GPUS)
            for gpu in range(GPUS):
                self.values(gpu)

    def values(self, gpu: int) -> None:
        driver, dice = self.driver, self.dice
        used, util = dice.randrange(1, 70_000), dice.randrange(0, 101)
        values: dict[str, Any] = {
            "power": dice.randrange(20, 99) * 1000, "temperature": dice.randrange(20, 95),
            "sm_clock": dice.randrange(300, 2000), "memory_clock": dice.randrange(400, 3000),
        }  # fmt: skip
        driver.set(gpu, memory=(80 << 30, RESERVED * MIB, used * MIB), utilization=(util, 7), **values)
        for size in (used, used + RESERVED):  # the older function counts what the driver keeps
            self.say(gpu, "memory", size)
        self.say(gpu, "memory_total", 80 << 30)
        for key, name in NAMES.items():
            self.say(gpu, name, values[key] / 1000 if key == "power" else values[key])
        limit, errors, reasons = dice.randrange(100, 800), dice.randrange(9), dice.choice([0, 1, 4, 0x40])
        driver.set(gpu, power_limit=1000 * limit, clock_reasons=reasons, **{"ecc.1.0": errors})
        for name, value in (("power_limit", limit), ("ecc", errors), ("throttle", reasons)):
            self.say(gpu, name, value)
        self.samples[gpu] = {util}
        rows = []
        for _ in range(dice.randrange(4)):
            self.micros += 1000
            value = dice.randrange(101)
            rows.append((self.micros, value))
            self.samples[gpu].add(value)
        driver.samples(gpu, rows, honor_time=dice.random() < 0.5)
        listed = [Process(OURS, 100 * MIB)] * dice.randrange(3) + [Process(STRANGER, 50 * MIB)] * dice.randrange(3)
        driver.processes(gpu, listed)
        self.busy[gpu] = {driver.uuid(gpu)} if any(p.pid == STRANGER for p in listed) else set()

    # -- what goes wrong -----------------------------------------------------------------

    def worsen(self) -> None:
        names = [name for name in dir(self) if name.startswith("fault_")]
        with self.driver.changes():
            for name in self.dice.sample(names, self.dice.randrange(1, 4)):
                gpu = self.dice.randrange(GPUS)
                self.story.append(f"{name} {gpu} {getattr(self, name)(gpu)}")

    def fault_codes(self, gpu: int) -> Any:
        where = self.dice.choice([None, gpu])
        function, code = self.dice.choice([*FUNCTIONS, "nvmlDeviceGet*"]), self.dice.choice(CODES)
        self.driver.answer(function, code, where)
        if function.endswith("*") or "RunningProcesses" in function:
            for one in range(GPUS) if where is None else [where]:
                self.hidden[one] = True
        return function, code, where

    def fault_sentinels(self, gpu: int) -> Any:
        name = self.dice.choice(sorted(SENTINELS))
        self.driver.set(gpu, **{name: SENTINELS[name]})
        return name

    def fault_failing_value(self, gpu: int) -> Any:
        names, code = [*sorted(SENTINELS), "memory", "uuid", "name", "samples.1"], self.dice.choice(CODES)
        name = self.dice.choice(names)
        self.driver.set(gpu, **{name: Fails(code)})
        return name, code

    def fault_memory(self, gpu: int) -> Any:
        rows = [(80 << 30, 0, 81 << 30), (ALL_ONES_64,) * 3, (0, 0, 0), (80 << 30, 0, ALL_ONES_64), (0, 0, 5 << 30)]
        row = self.dice.choice(rows)
        self.driver.set(gpu, memory=row)
        return row

    def fault_samples(self, gpu: int) -> Any:
        rows = [(0, 99), (ALL_ONES_64, 98), (1, 97), (self.micros + 5, 4_000_000_000), (self.micros + 6, 200)]
        rows = self.dice.sample(rows, self.dice.randrange(1, 5))
        self.driver.samples(gpu, rows, honor_time=False)
        return rows

    def fault_lost(self, gpu: int) -> Any:
        how = {"code": self.dice.choice([15, 16, 28]), "handle": self.dice.random() < 0.5}
        self.driver.lose(gpu, counted=self.dice.random() < 0.7, **how)
        return how

    def fault_down(self, gpu: int) -> Any:
        code = self.dice.choice([1, 9, 12, 18, 999])
        self.driver.down(code)
        return code

    def fault_init(self, gpu: int) -> Any:
        code = self.dice.choice(CODES)
        self.driver.answer("nvmlInit", code)
        return code

    def fault_processes(self, gpu: int) -> Any:
        size = self.dice.choice([None, ALL_ONES_64 - 1, 5 * MIB])
        many = self.dice.choice([1, 2, 100])
        rows = [Process(STRANGER + k // 2, size) for k in range(many)]
        self.driver.processes(gpu, rows)
        self.busy[gpu] = {self.driver.uuid(gpu)}
        return many, size

    def fault_mig(self, gpu: int) -> Any:
        self.driver.mig(gpu, [Instance(0, 1, used=7 * MIB), Instance(1, 2, used=9 * MIB)])
        self.driver.processes(gpu, [Process(STRANGER, 50 * MIB, 1, 0)])
        self.busy[gpu] = {self.driver.uuid(gpu), self.driver.uuid(gpu, 0)}

    def fault_energy(self, gpu: int) -> Any:
        count = self.dice.choice([0, 5, 1 << 40, ALL_ONES_64 - 1])
        self.driver.set(gpu, energy=count)
        return count

    # -- what must hold --------------------------------------------------------------------

    def check_tick(self, rows: list[dict[str, Any]]) -> None:
        for gpu, row in enumerate(rows):
            samples = self.samples[gpu]
            util, peak = row["util"], row["peak"]
            assert util is None or min(samples) <= util <= max(samples), (self.generation, self.story, gpu, row)
            assert peak is None or peak in samples, (self.generation, self.story, gpu, row)
            for name in ("memory", "power", "temperature", "sm_clock"):
                assert row[name] is None or row[name] in self.now[gpu][name], (self.generation, self.story, name, row)
            for name in ("mem_clock", "power_limit", "ecc", "throttle"):
                value = row.get(name)  # asked in turn: it may be of an earlier step
                assert value is None or value in self.ever[gpu][name], (self.generation, self.story, name, row)
            pids = [pid for _, pid, *_ in row["processes"]]
            assert len(pids) == len(set(pids)), (self.story, pids)
            if READS_ALL_LISTS or self.generation == "current":
                assert all(pid == OURS or STRANGER <= pid < STRANGER + 50 for pid in pids), (self.story, pids)

    def check_probe(self, found: dict[str, Any]) -> None:
        assert isinstance(found["gpus"], list) and isinstance(found["note"], str)
        uuids = {self.driver.uuid(gpu): gpu for gpu in range(GPUS)}
        for row in found["gpus"]:
            if row["uuid"] in uuids:
                current = self.now[uuids[row["uuid"]]]
                assert row["memory_total"] is None or row["memory_total"] in current["memory_total"], (self.story, row)
                used = row["memory_used"]
                assert used is None or used >> 20 in current["memory"], (self.story, row)
        if not (READS_ALL_LISTS or self.generation == "current"):
            return
        free = slots.free_gpus(found["gpus"], [], {OURS}, False)
        for gpu in range(GPUS):
            if not self.hidden[gpu]:
                assert not self.busy[gpu].intersection(free), (self.generation, self.story, gpu, found)


def play(folder: Path, seed: int) -> None:
    scene = Play(folder, seed)
    sampler = LiveSampler(scene.driver, folder / "run", [scene.driver.uuid(gpu) for gpu in range(GPUS)], [OURS])
    try:
        for _ in range(EACH):
            scene.heal()
            scene.worsen()
            for _ in range(scene.dice.randrange(1, 4)):
                scene.t += scene.dice.choice([0.3, 1, 1, 6, 61])
                scene.check_tick(sampler.tick(scene.t))
            scene.check_probe(sampler.probe())
        summary = sampler.close()
    finally:
        sampler.kill()
    for gpu, figures in enumerate(summary["gpus"]):
        assert figures["memory_peak"] is None or figures["memory_peak"] in scene.ever[gpu]["memory"]
        if figures["energy_wh"] is not None:
            assert figures["energy_wh"] * 3600 / max(1.0, scene.t) <= 10_000


@pytest.mark.parametrize("seed", range(FAST))
def test_random_driver_readings_are_correct(tmp_path: Path, seed: int) -> None:
    play(tmp_path, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(FAST, ALL))
def test_thousand_random_drivers_readings_are_correct(tmp_path: Path, seed: int) -> None:
    play(tmp_path, seed)
