"""The switchable driver: what the real pynvml sees of what a test switches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import driver as fake
from tests.fakes.driver import ALL_ONES_32, ALL_ONES_64, Fails, Instance, Process, SwitchableDriver

from .conftest import Agent, until

#: A process that evaluates expressions with pynvml, one a line; errors are their codes.
CHILD = """
import json, sys
import pynvml as n
def plain(value):
    if isinstance(value, n.Structure): return {f: getattr(value, f) for f, _ in value._fields_}
    if isinstance(value, n.Union): return value.ullVal
    return value.value if hasattr(value, "value") else vars(value)
for line in sys.stdin:
    try:
        answer = eval(line, globals())
    except n.NVMLError as error:
        answer = {"error": error.value}
    print(json.dumps(answer, default=plain), flush=True)
"""


class Child:
    """A process with pynvml that lives while the test switches."""

    def __init__(self, driver: SwitchableDriver, init: bool = True) -> None:
        environ = {**os.environ, **driver.environment()}
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, text=True
        )
        if init:
            assert self("n.nvmlInit()") is None
            self.let("g", "n.nvmlDeviceGetHandleByIndex(0)")

    def ask(self, expression: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def __call__(self, expression: str) -> Any:
        self.ask(expression)
        return self.answer()

    def let(self, name: str, expression: str) -> None:
        """Keep a value in the child."""
        assert self(f"globals().__setitem__({name!r}, {expression})") is None

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def driver(tmp_path: Path) -> SwitchableDriver:
    return fake.needed(tmp_path, gpus=2)


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    made: list[Child] = []

    def start(*args: Any, **how: Any) -> Child:
        made.append(Child(*args, **how))
        return made[-1]

    yield start
    for child in made:
        child.close()


Start = Callable[..., Child]


def error(code: int) -> dict[str, int]:
    return {"error": code}


def test_fake_identity_change_is_seen_by_live_process(driver: SwitchableDriver, start: Start) -> None:
    child = start(driver)
    assert child("n.nvmlDeviceGetCount()") == 2
    assert child("n.nvmlDeviceGetUUID(g)") == driver.uuid(0)
    assert child("n.nvmlSystemGetDriverVersion()") == "580.65.06"
    assert child("n.nvmlSystemGetCudaDriverVersion_v2()") == 13000
    assert child("n.nvmlDeviceGetPciInfo(g).busId") == "00000000:01:00.0"
    assert child("n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId('00000000:02:00.0'))") == 1
    assert child(f"n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID({driver.uuid(1)!r}))") == 1
    driver.set_gpus(3)
    driver.set(0, uuid=Fails(3), name="Tesla T4", bus_id="00010000:AF:00.0")
    driver.set_system(driver_version="999.1", cuda_version=14000, nvml_version="14.999.1")
    assert child("n.nvmlDeviceGetCount()") == 3
    assert child("n.nvmlDeviceGetUUID(g)") == error(3)
    assert child("n.nvmlDeviceGetName(g)") == "Tesla T4"
    assert child("n.nvmlDeviceGetPciInfo(g).bus") == 0xAF
    assert child("n.nvmlSystemGetDriverVersion()") == "999.1"
    assert child("n.nvmlSystemGetCudaDriverVersion()") == 14000
    assert child("n.nvmlSystemGetNVMLVersion()") == "14.999.1"
    assert child("n.nvmlDeviceGetHandleByUUID('GPU-none')") == error(6)


@pytest.mark.parametrize("code", [9, 18, 999])
def test_fake_init_failure_recovers(driver: SwitchableDriver, start: Start, code: int) -> None:
    child = start(driver, init=False)
    driver.answer("nvmlInit", code)
    assert child("n.nvmlInit()") == error(code)
    driver.answer("nvmlInit", 0)
    assert child("n.nvmlInit()") is None
    driver.down()
    assert child("n.nvmlDeviceGetCount()") == error(9)
    driver.up()
    assert child("n.nvmlDeviceGetCount()") == 2


def test_fake_call_before_init_is_uninitialized(driver: SwitchableDriver, start: Start) -> None:
    child = start(driver)
    assert child("n.nvmlShutdown()") is None
    assert child("n.nvmlDeviceGetCount()") == error(1)


def test_fake_error_of_one_gpu_keeps_other(driver: SwitchableDriver, start: Start) -> None:
    child = start(driver)
    memory = "n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(%d), n.nvmlMemory_v2)"
    driver.answer("nvmlDeviceGetMemoryInfo_v2", 3, gpu=1)
    assert child(memory % 0)["total"] == 80 << 30
    assert child(memory % 1) == error(3)
    driver.answer("nvmlDeviceGet*", 4)
    assert child(memory % 0) == error(4)
    driver.answer("nvmlDeviceGet*", 0)
    assert child(memory % 1) == error(3)
    driver.answer("nvmlDeviceGetMemoryInfo_v2", 0, gpu=1)
    assert child(memory % 1)["used"] == 0


def test_fake_unknown_function_is_refused(driver: SwitchableDriver) -> None:
    with pytest.raises(ValueError, match="nvmlDeviceGetNothing"):
        driver.answer("nvmlDeviceGetNothing", 3)


def test_fake_unknown_value_is_refused(driver: SwitchableDriver) -> None:
    with pytest.raises(ValueError, match="powr"):
        driver.set(0, powr=5)


def test_fake_slow_call_ends_when_switched_off(driver: SwitchableDriver, start: Start) -> None:
    child = start(driver, init=False)
    driver.slow("nvmlInit_v2", 3600)
    child.ask("n.nvmlInit()")
    while not driver.calls().get("nvmlInitWithFlags"):
        assert child.process.poll() is None
    driver.slow("nvmlInit_v2", 0)
    assert child.answer() is None


@pytest.mark.thorough
def test_fake_generations_have_functions_and_rows(tmp_path: Path, start: Start) -> None:
    driver = fake.needed(tmp_path)
    rows = [Process(10, 1 << 20), Process(11, None), Process(11, 2 << 20)]
    driver.processes(0, rows)
    seen: dict[str, Any] = {}
    for generation in fake.GENERATIONS:
        driver.install(generation)
        child = start(driver)
        assert child("n.nvmlSystemGetDriverVersion()") == fake.GENERATIONS[generation].driver_version
        found = child("n.nvmlDeviceGetComputeRunningProcesses_v3(g)")
        seen[generation] = found if isinstance(found, dict) else [row["pid"] for row in found]
        old = child("n.nvmlDeviceGetComputeRunningProcesses_v2(g)")
        assert [(row["pid"], row["usedGpuMemory"]) for row in old] == [row[:2] for row in rows]
        memory = child("n.nvmlDeviceGetMemoryInfo(g, n.nvmlMemory_v2)")
        assert (memory == error(13)) is (generation == "r470")
    # Rows of 32 bytes, read as ones of 24, shift.
    assert seen["r535.54"] != [10, 11, 11] and seen["r535.54"][0] == 10
    assert seen == {"current": [10, 11, 11], "r535.98": error(13), "r535.54": seen["r535.54"], "r470": error(13)}
    driver.uninstall()
    assert start(driver, init=False)("n.nvmlInit()") == error(12)


def test_fake_samples_and_rates_are_seen(driver: SwitchableDriver, start: Start) -> None:
    child = start(driver)
    take = "[(s.timeStamp, s.sampleValue.uiVal) for s in n.nvmlDeviceGetSamples(g, 1, %d)[1]]"
    assert child(take % 0) == error(6)
    driver.samples(0, [(1000, 50), (2000, 101), (0, 0), (3000, ALL_ONES_32)])
    assert child(take % 1000) == [[2000, 101], [0, 0], [3000, ALL_ONES_32]]
    driver.samples(0, [(1000, 50), (2000, 60)], honor_time=False)
    assert child(take % 2000) == [[1000, 50], [2000, 60]]
    driver.samples(0, None)
    assert child(take % 0) == error(3)
    driver.stream(0, 77, kept=5)
    rows = child(take % 0)
    assert [value for _, value in rows] == [77] * 5 and rows == sorted(rows)
    driver.set(0, utilization=(99, ALL_ONES_32))
    assert child("n.nvmlDeviceGetUtilizationRates(g)") == {"gpu": 99, "memory": ALL_ONES_32}


def test_fake_processes_of_all_kinds_are_listed(driver: SwitchableDriver, start: Start) -> None:
    child = start(driver)
    driver.processes(0, [Process(7, 5), Process(7, None, 1, 2)])
    driver.processes(0, [Process(8, 6)], "graphics")
    driver.processes(0, [Process(9, 7)], "mps")
    driver.process_utilization(0, [(7, 100, 40), (8, 200, 60)])
    compute = child("n.nvmlDeviceGetComputeRunningProcesses(g)")
    assert [tuple(row.values()) for row in compute] == [(7, 5, ALL_ONES_32, ALL_ONES_32), (7, None, 1, 2)]
    assert [row["pid"] for row in child("n.nvmlDeviceGetGraphicsRunningProcesses(g)")] == [8]
    details = child("n.nvmlDeviceGetRunningProcessDetailList(g, n.nvmlProcessDetailList_v1, 1)")
    assert [(row["pid"], row["usedGpuMemory"]) for row in details] == [(8, 6)]
    assert [row["pid"] for row in child("n.nvmlDeviceGetMPSComputeRunningProcesses(g)")] == [9]
    sm = "[(s.pid, s.smUtil) for s in n.nvmlDeviceGetProcessUtilization(g, %d)]"
    assert child(sm % 0) == [[7, 40], [8, 60]]
    driver.process_utilization(0, Fails(3))
    assert child(sm % 0) == error(3)
    driver.processes(0, [Process(pid, 1) for pid in range(1, 201)])
    assert len(child("n.nvmlDeviceGetComputeRunningProcesses(g)")) == 200


def test_fake_values_are_seen(driver: SwitchableDriver, start: Start) -> None:
    child = start(driver)
    driver.set(0, memory=(1000, 100, 300), power=ALL_ONES_32, power_limit=300_000, temperature=91, sm_clock=1410)
    driver.set(0, clock_reasons=0x48, performance_state=2, energy=123_456_789_012, persistence=0)
    driver.set(0, display_mode=1, display_active=1, compute_mode=3, remapped_rows=(1, 2, 1, 0))
    driver.ecc(0, 5)
    driver.ecc(0, 9, uncorrected=False, aggregate=True)
    driver.retired_pages(0, 3)
    driver.violation(0, 1, 777)
    driver.fields(0, {82: 85, (138, 2): 1 << 40, 198: Fails(4), 1: 2.5})
    assert child("n.nvmlDeviceGetMemoryInfo(g)") == {"total": 1000, "free": 600, "used": 400}
    second = child("n.nvmlDeviceGetMemoryInfo(g, n.nvmlMemory_v2)")
    assert (second["reserved"], second["free"], second["used"]) == (100, 600, 300)
    assert child("n.nvmlDeviceGetPowerUsage(g)") == ALL_ONES_32
    assert child("n.nvmlDeviceGetEnforcedPowerLimit(g)") == 300_000
    assert child("[n.nvmlDeviceGetTemperature(g, 0), n.nvmlDeviceGetTemperatureV(g, 0)]") == [91, 91]
    assert child("n.nvmlDeviceGetClockInfo(g, 1)") == 1410
    assert child("n.nvmlDeviceGetCurrentClocksEventReasons(g)") == 0x48
    assert child("n.nvmlDeviceGetCurrentClocksThrottleReasons(g)") == 0x48
    assert child("n.nvmlDeviceGetPerformanceState(g)") == 2
    assert child("n.nvmlDeviceGetTotalEnergyConsumption(g)") == 123_456_789_012
    assert child("n.nvmlDeviceGetPersistenceMode(g)") == 0
    assert child("[n.nvmlDeviceGetDisplayMode(g), n.nvmlDeviceGetDisplayActive(g)]") == [1, 1]
    assert child("n.nvmlDeviceGetComputeMode(g)") == 3
    assert child("n.nvmlDeviceGetRemappedRows(g)") == [1, 2, 1, 0]
    assert child("[n.nvmlDeviceGetTotalEccErrors(g, e, c) for e in (0, 1) for c in (0, 1)]") == [0, 9, 5, 0]
    assert len(child("n.nvmlDeviceGetRetiredPages(g, 1)")) == 3
    assert child("n.nvmlDeviceGetViolationStatus(g, 1).violationTime") == 777
    fields = child("[(f.nvmlReturn, f.value.ullVal) for f in n.nvmlDeviceGetFieldValues(g, [82, (138, 2), 198, 83])]")
    assert fields == [[0, 85], [0, 1 << 40], [4, 0], [3, 0]]
    assert child("n.nvmlDeviceGetFieldValues(g, [1])[0].value.dVal") == 2.5
    driver.set(0, power=None, memory=(1000, 0, ALL_ONES_64))
    assert child("n.nvmlDeviceGetPowerUsage(g)") == error(3)
    assert child("n.nvmlDeviceGetMemoryInfo(g).used") == ALL_ONES_64


@pytest.mark.parametrize("code", [fake.GPU_IS_LOST, fake.RESET_REQUIRED])
def test_fake_lost_gpu_returns_code_until_restored(driver: SwitchableDriver, start: Start, code: int) -> None:
    child = start(driver)
    driver.lose(0, code)
    assert child("n.nvmlDeviceGetPowerUsage(g)") == error(code)
    assert child("n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(0))") == error(code)
    assert child("n.nvmlDeviceGetCount()") == 2
    driver.lose(0, code, handle=False)
    assert child("n.nvmlDeviceGetHandleByIndex(0)") == error(code)
    driver.lose(0, code, counted=False)
    assert child("n.nvmlDeviceGetCount()") == 1
    assert child("n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(0))") == driver.uuid(1)
    driver.restore(0)
    assert child("[n.nvmlDeviceGetPowerUsage(g), n.nvmlDeviceGetIndex(g)]") == [70_000, 0]


def test_fake_event_after_registration_is_delivered(driver: SwitchableDriver, start: Start) -> None:
    child = start(driver)
    driver.xid(0, 13)  # before anybody has registered
    assert child("n.nvmlDeviceGetSupportedEventTypes(g) & 8") == 8
    child.let("events", "n.nvmlEventSetCreate()")
    assert child("n.nvmlDeviceRegisterEvents(g, n.nvmlEventTypeXidCriticalError, events)") is None
    wait = "(lambda e: [n.nvmlDeviceGetIndex(e.device), e.eventType, e.eventData])(n.nvmlEventSetWait_v2(events, %d))"
    assert child(wait % 20) == error(10)
    child.ask(wait % 60_000)
    while not driver.calls().get("nvmlEventSetWait_v2", 0) > 1:
        assert child.process.poll() is None
    driver.event(1, fake.XID, 1)  # of a GPU that is not registered
    driver.event(0, 4)  # of another kind
    driver.xid(0, 79)
    assert child.answer() == [0, 8, 79]
    assert child(wait % 20) == error(10)
    assert child("n.nvmlEventSetFree(events)") is None


def test_fake_mig_instances_are_listed(driver: SwitchableDriver, start: Start) -> None:
    child = start(driver)
    driver.mig(0, [Instance(0, 7), Instance(2, 9, 1, used=4096)])
    driver.processes(0, [Process(5, 1, 7, 0), Process(6, 2, 9, 1)])
    assert child("n.nvmlDeviceGetMigMode(g)") == [1, 1]
    assert child("n.nvmlDeviceGetMaxMigDeviceCount(g)") == 7
    assert child("n.nvmlDeviceGetMigDeviceHandleByIndex(g, 1)") == error(6)
    child.let("m", "n.nvmlDeviceGetMigDeviceHandleByIndex(g, 2)")
    assert child("n.nvmlDeviceGetUUID(m)") == driver.uuid(0, 2)
    assert child("[n.nvmlDeviceGetGpuInstanceId(m), n.nvmlDeviceGetComputeInstanceId(m)]") == [9, 1]
    assert child("[n.nvmlDeviceIsMigDeviceHandle(d) for d in (g, m)]") == [0, 1]
    assert child("n.nvmlDeviceGetIndex(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(m))") == 0
    assert child(f"n.nvmlDeviceIsMigDeviceHandle(n.nvmlDeviceGetHandleByUUID({driver.uuid(0, 2)!r}))") == 1
    assert child("n.nvmlDeviceGetMemoryInfo(m).used") == 4096
    assert child("[p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(m)]") == [6]
    assert child("[p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(g)]") == [5, 6]
    assert child("n.nvmlDeviceGetAttributes_v2(m).memorySizeMB") == 10240
    for function in ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit"):
        assert child(f"n.{function}(m)") == error(3)
    driver.answer("nvmlDeviceGetName", 999, gpu=0, instance=2)
    assert child("n.nvmlDeviceGetName(m)") == error(999)
    driver.mig(0, None)
    assert child("n.nvmlDeviceGetMigMode(g)") == [0, 0]
    assert child("n.nvmlDeviceGetUUID(m)") == error(3)
    assert child("n.nvmlDeviceGetUtilizationRates(g).gpu") == 0


def test_fake_gpm_metrics_are_seen(driver: SwitchableDriver, start: Start) -> None:
    child = start(driver)
    driver.gpm(0, {2: 81.5, 5: Fails(27), 20: 1024.0})
    driver.gpm(0, {2: 12.25}, gpu_instance=9)
    assert child("n.nvmlGpmQueryDeviceSupport(g).isSupportedDevice") == 1
    child.let("a", "n.nvmlGpmSampleAlloc()")
    child.let("b", "n.nvmlGpmSampleAlloc()")
    child.let("get", "n.c_nvmlGpmMetricsGet_t(1, 4, a, b)")
    for k, metric in enumerate((2, 5, 20, 3)):
        child(f"setattr(get.metrics[{k}], 'metricId', {metric})")
    measure = "[(m.nvmlReturn, m.value) for m in n.nvmlGpmMetricsGet(get).metrics[:4]]"
    assert child(measure) == error(2)  # no samples yet
    child("[n.nvmlGpmSampleGet(g, s) and None for s in (a, b)]")
    assert child(measure) == [[0, 81.5], [27, 0], [0, 1024], [3, 0]]
    driver.gpm(0, {2: 5.0})
    assert child(measure)[0] == [0, 5]
    child("[n.nvmlGpmMigSampleGet(g, 9, s) and None for s in (a, b)]")
    assert child(measure)[:2] == [[0, 12.25], [3, 0]]
    driver.gpm(0, None)
    assert child("n.nvmlGpmQueryDeviceSupport(g).isSupportedDevice") == 0
    assert child("n.nvmlGpmSampleGet(g, a)") == error(3)
    assert child("[n.nvmlGpmSampleFree(s) for s in (a, b)]") == [None, None]


def test_fake_calls_are_counted_over_processes(driver: SwitchableDriver, start: Start) -> None:
    for _ in range(2):
        start(driver)("n.nvmlDeviceGetPowerUsage(g)")
    assert driver.calls()["nvmlDeviceGetPowerUsage"] == 2
    driver.forget_calls()
    assert driver.calls() == {}


def test_fake_repeated_changes_are_seen(driver: SwitchableDriver, start: Start) -> None:
    child = start(driver)
    for power in range(100, 400):  # of the same size, some with the inode of an older one
        driver.set(0, power=power)
        assert child("n.nvmlDeviceGetPowerUsage(g)") == power


def test_agent_reads_changed_driver_values_during_job(
    driver: SwitchableDriver, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.use(monkeypatch)
    driver.set(0, power=321_000)
    assert [gpu["uuid"] for gpu in agent.good("info")["gpus"]] == [driver.uuid(0), driver.uuid(1)]
    run = agent.gated(gpus=1)
    assert agent.running(run, "up")["devices"] == [driver.uuid(0)]
    until(lambda: any(321 in row for row in agent.telemetry(run) if isinstance(row, list)), "the first power")
    driver.set(0, power=654_000)
    until(lambda: any(654 in row for row in agent.telemetry(run) if isinstance(row, list)), "the second power")
    agent.open_gate()
    assert agent.wait(run)["state"] == "completed"
