"""GPUs and the queue: a driver that comes, breaks and loses GPUs; who uses them; sharing."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent.queue.gpu_users import ancestors, foreign_processes
from tests.fakes import driver as fake
from tests.fakes.driver import Process, SwitchableDriver

from .conftest import Agent, stranger, until

SHOW = "import os; print('has', os.environ.get('CUDA_VISIBLE_DEVICES'))"
UUID = SwitchableDriver.uuid


@pytest.fixture
def driver(agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SwitchableDriver:
    monkeypatch.setenv("AMLTRAIN_DEVICE_ROOT", str(tmp_path / "root"))
    made = fake.needed(tmp_path, gpus=2).use(monkeypatch)
    hardware(tmp_path)
    return made


def hardware(folder: Path, there: bool = True) -> None:
    """Let the machine have an NVIDIA device, or none."""
    device = folder / "root" / "sys" / "bus" / "pci" / "devices" / "0000:01:00.0"
    device.mkdir(parents=True, exist_ok=True)
    (device / "vendor").write_text("0x10de\n" if there else "0x8086\n")
    (device / "class").write_text("0x030200\n")


def refused(agent: Agent, **payload: Any) -> dict[str, Any]:
    """The error of a submit."""
    agent.count += 1
    answer = agent("submit", run=f"refused-{agent.count}", argv=["x"], environ={}, **payload)
    assert "error" in answer, answer
    assert ".." not in answer["error"]["message"]
    return answer["error"]


def devices(agent: Agent, count: int, **payload: Any) -> list[str]:
    """Devices of a run that is submitted until it gets `count`.

    A submit waits 0.2 s for a fresh reading of the GPUs; a busy machine may need longer.
    """

    def attempt() -> Any:
        agent.count += 1
        run = f"try-{agent.count}"
        argv = [sys.executable, "-S", "-u", "-c", SHOW]
        answer = agent("submit", run=run, argv=argv, environ=dict(os.environ), **payload)
        if "error" in answer:
            assert answer["error"]["type"] in ("GpuDriverError", "CapacityError"), answer
            return None
        owned = agent.wait(run)["devices"]
        return owned if len(owned) == count else None

    return list(until(attempt, f"a run with {count} GPUs"))


def detail(agent: Agent, run: str, *words: str) -> str:
    """What a waiting run waits for, once the text has these words."""

    def check() -> str:
        state = agent.state(run)
        assert state["state"] == "queued", state
        return str(state["detail"]) if all(word in state["detail"] for word in words) else ""

    return str(until(check, f"{words} in {agent.state(run)}"))


# -- the driver is asked again ---------------------------------------------------------


@pytest.mark.parametrize("code", [9, 18, 999])
def test_submit_after_driver_repair_gets_gpu(agent: Agent, driver: SwitchableDriver, code: int) -> None:
    driver.answer("nvmlInit", code)
    assert refused(agent, gpus=1)["type"] == "GpuDriverError"
    driver.answer("nvmlInit", 0)
    assert devices(agent, 1) and devices(agent, 1, gpus=1)


def test_submit_without_known_device_probes_again(agent: Agent, driver: SwitchableDriver, tmp_path: Path) -> None:
    hardware(tmp_path, there=False)
    driver.answer("nvmlInit", 9)
    assert refused(agent, gpus=1)["type"] == "CapacityError"
    driver.answer("nvmlInit", 0)
    assert devices(agent, 1) == [UUID(0)]


def test_submit_after_driver_install_gets_gpu(agent: Agent, driver: SwitchableDriver) -> None:
    driver.uninstall()
    assert agent.wait(agent.submit(SHOW))["devices"] == []
    assert refused(agent, gpus=1)["type"] == "CapacityError"
    driver.install()
    assert devices(agent, 1) == [UUID(0)]


def test_submit_after_gpu_return_gets_both(agent: Agent, driver: SwitchableDriver) -> None:
    driver.lose(1)
    assert len(agent.good("info")["gpus"]) == 1
    driver.restore(1)
    assert len(devices(agent, 2, gpus=2)) == 2


def test_submit_with_slow_probe_uses_known_gpus(agent: Agent, driver: SwitchableDriver) -> None:
    driver.lose(1)
    agent.good("info")
    driver.slow("nvmlInit", 600)
    answered = agent.good("submit", run="known", argv=[sys.executable, "-c", "pass"], environ={}, gpus=1)
    assert answered["state"] == "queued"  # the probe still waits in the driver
    assert agent.good("ping")["pid"]
    driver.slow("nvmlInit", 0)
    assert agent.wait("known")["devices"] == [UUID(0)]


def test_submit_without_gpus_does_not_probe(agent: Agent, driver: SwitchableDriver) -> None:
    driver.down()
    agent.good("info")

    def probes() -> bool:
        driver.forget_calls()
        assert agent.wait(agent.submit(SHOW, gpus=0))["state"] == "completed"
        return any(name.startswith("nvmlInit") for name in driver.calls())

    # A dispatcher that a busy machine made start again probes once by itself.
    assert not all(probes() for _ in range(3))


# -- three states of a driver ------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "remedy"), [(18, "module"), (999, "container"), (9, "modprobe"), (4, "/dev/nvidia"), (77, "dmesg")]
)
def test_submit_with_broken_driver_is_refused_with_action(
    agent: Agent, driver: SwitchableDriver, code: int, remedy: str
) -> None:
    driver.answer("nvmlInit", code)
    for gpus in (None, 1, 2):
        error = refused(agent, gpus=gpus)
        assert error["type"] == "GpuDriverError" and remedy in error["message"] and "--gpus 0" in error["message"]
    assert remedy in agent.good("info")["gpu_note"]


def test_submit_with_hidden_gpus_ignores_broken_driver(agent: Agent, driver: SwitchableDriver) -> None:
    driver.answer("nvmlInit", 18)
    run = agent.submit("pass", environ={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert agent.wait(run)["state"] == "completed"


@pytest.mark.thorough
def test_cpu_run_with_broken_driver_has_note(agent: Agent, driver: SwitchableDriver) -> None:
    driver.answer("nvmlInit", 18)
    state = agent.wait(agent.submit(SHOW, gpus=0))
    assert state["state"] == "completed" and "mismatch" in state["notes"][0]
    driver.answer("nvmlInit", 0)
    devices(agent, 1, gpus=1)
    assert not agent.wait(agent.submit(SHOW, gpus=0)).get("notes")


def test_submit_with_slow_driver_names_persistence_mode(
    agent: Agent, driver: SwitchableDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMLTRAIN_NVML_TIMEOUT", "0.5")
    driver.slow("nvmlInit", 600)
    error = refused(agent)
    assert error["type"] == "GpuDriverError" and "persistence" in error["message"]
    driver.slow("nvmlInit", 0)


def test_library_without_device_is_cpu_machine(agent: Agent, driver: SwitchableDriver, tmp_path: Path) -> None:
    hardware(tmp_path, there=False)
    driver.answer("nvmlInit", 9)
    state = agent.wait(agent.submit(SHOW))
    assert state["state"] == "completed" and state["devices"] == [] and not state.get("notes")
    assert refused(agent, gpus=1)["type"] == "CapacityError"


@pytest.mark.thorough
@pytest.mark.parametrize("node", ["dev/nvidia0", "dev/nvidiactl", "dev/dxg"])
def test_library_with_device_file_is_broken_driver(
    agent: Agent, driver: SwitchableDriver, tmp_path: Path, node: str
) -> None:
    hardware(tmp_path, there=False)
    path = tmp_path / "root" / node
    path.parent.mkdir()
    path.touch()
    driver.answer("nvmlInit", 9)
    assert refused(agent)["type"] == "GpuDriverError"


@pytest.mark.thorough
def test_submit_with_only_gpu_lost_is_refused(agent: Agent, driver: SwitchableDriver) -> None:
    driver.set_gpus(1)
    agent.good("info")
    agent.kill_dispatcher()
    driver.lose(0)
    error = refused(agent)
    assert error["type"] == "GpuDriverError" and "GPU 0 is lost" in error["message"]


@pytest.mark.thorough
def test_driver_missing_after_gpus_is_broken(agent: Agent, driver: SwitchableDriver) -> None:
    agent.good("info")
    agent.kill_dispatcher()
    driver.uninstall()
    assert refused(agent)["type"] == "GpuDriverError"


# -- who uses a GPU ------------------------------------------------------------------------


KERNEL = "import sys, time; print('up', flush=True); time.sleep(600)"


@contextlib.contextmanager
def kernel() -> Iterator[int]:
    """The pid of a process that looks like a kernel of Python."""
    words = [sys.executable, "-S", "-u", "-c", KERNEL, "ipykernel_launcher"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline()
        yield process.pid
    finally:
        process.kill()
        process.communicate()


@pytest.mark.thorough
def test_queue_detail_names_submitting_kernel(agent: Agent, driver: SwitchableDriver) -> None:
    driver.set_gpus(1)
    with kernel() as pid:
        driver.processes(0, [Process(pid, 1 << 30)])
        run = agent.submit(SHOW, gpus=1, submitter=ancestors(pid))
        text = detail(agent, run, "this notebook's kernel")
        for word in (str(pid), "Restart the kernel", "--gpus 0", "--share-gpus"):
            assert word in text
        other = agent.submit(SHOW, gpus=1, submitter=[])
        assert "this notebook" not in detail(agent, other, "position 2")
    driver.processes(0, [])
    assert agent.wait(run)["state"] == agent.wait(other)["state"] == "completed"


def test_queue_detail_names_kernel_of_command_line(agent: Agent, driver: SwitchableDriver) -> None:
    driver.set_gpus(1)
    with kernel() as pid:
        driver.processes(0, [Process(pid)])
        run = agent.submit(SHOW, gpus=1, submitter=[{"pid": 1 << 22, "start": 1}, *ancestors(pid)])
        detail(agent, run, "this notebook's kernel", str(pid))
        agent.good("cancel", run=run)


def test_queue_detail_names_child_of_submitter(agent: Agent, driver: SwitchableDriver) -> None:
    driver.set_gpus(1)
    with kernel() as pid:
        driver.processes(0, [Process(pid)])
        run = agent.submit(SHOW, gpus=1)  # by this process
        detail(agent, run, "used by this notebook's kernel")
        agent.good("cancel", run=run)


def test_reused_pid_is_not_submitter(agent: Agent, driver: SwitchableDriver) -> None:
    driver.set_gpus(1)
    with stranger() as pid:
        who = ancestors(pid)[0]
        driver.processes(0, [Process(pid)])
        run = agent.submit(SHOW, gpus=1, submitter=[{**who, "start": who["start"] - 1}])
        assert "this" not in detail(agent, run, f"pid {pid}", "--share-gpus").split("pid")[0]
        agent.good("cancel", run=run)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["nvidia-cuda-mps-server", "nvidia-cuda-mps-control", "Xorg", "gnome-shell"])
def test_gpu_with_system_process_is_free(agent: Agent, driver: SwitchableDriver, name: str) -> None:
    driver.set_gpus(1)
    named = f"import time; open('/proc/self/comm', 'w').write({name!r}); time.sleep(600)"
    with stranger(named) as pid:
        until(lambda: Path(f"/proc/{pid}/comm").read_text().strip() == name[:15], "the name")
        driver.processes(0, [Process(pid)])
        assert agent.good("info")["slots"]["gpu"]["free"] == 1
        assert agent.wait(agent.submit(SHOW, gpus=1))["devices"] == [UUID(0)]


@pytest.mark.parametrize(("own", "row", "count"), [(None, None, 1), (3, 3, 1), (3, 5, 0), (3, None, 1), (None, 3, 1)])
def test_process_of_other_mig_instance_is_ignored(own: int | None, row: int | None, count: int) -> None:
    gpu = {"gpu_instance": own, "processes": [{"pid": 1 << 22, "instance": row}]}
    assert len(foreign_processes(gpu, set())) == count


# -- sharing -------------------------------------------------------------------------------


@pytest.fixture
def busy(driver: SwitchableDriver) -> Iterator[int]:
    """The pid of a stranger on the only GPU."""
    driver.set_gpus(1)
    with stranger() as pid:
        driver.processes(0, [Process(pid)])
        yield pid


@pytest.mark.thorough
@pytest.mark.parametrize("how", [{"share_gpus": True}, {"environ": {**os.environ, "AMLTRAIN_SHARE_GPUS": "1"}}])
def test_submit_with_sharing_starts_on_busy_gpu(agent: Agent, busy: int, how: dict[str, Any]) -> None:
    waiting = agent.submit(SHOW, gpus=1)  # the dispatcher lives
    detail(agent, waiting, str(busy))
    agent.good("cancel", run=waiting)
    agent.wait(waiting)
    state = agent.wait(agent.submit(SHOW, gpus=1, **how))
    assert state["devices"] == [UUID(0)] and "shared" in state["notes"][0].lower() and str(busy) in state["notes"][0]


@pytest.mark.thorough
def test_share_variable_of_dispatcher_is_ignored(agent: Agent, busy: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMLTRAIN_SHARE_GPUS", "1")
    agent.dispatcher()
    environ = {name: value for name, value in os.environ.items() if name != "AMLTRAIN_SHARE_GPUS"}
    run = agent.submit(SHOW, gpus=1, environ=environ)
    detail(agent, run, str(busy))
    agent.good("cancel", run=run)


@pytest.mark.thorough
def test_share_setting_starts_waiting_jobs(agent: Agent, busy: int) -> None:
    run = agent.submit(SHOW, gpus=1)
    detail(agent, run, str(busy))
    assert agent.good("configure", share_gpus=True) == {"share_gpus": True}
    assert agent.wait(run)["notes"] and agent.good("info")["share_gpus"]
    agent.kill_dispatcher()
    assert agent.wait(agent.submit(SHOW, gpus=1))["devices"]  # it outlives the dispatcher
    agent.good("configure", share_gpus=False)
    later = agent.submit(SHOW, gpus=1)
    detail(agent, later, str(busy))
    agent.good("cancel", run=later)
    assert agent("configure", share_gpus="yes")["error"]["type"] == "CommandError"


def test_sharing_job_prefers_free_gpu(agent: Agent, driver: SwitchableDriver) -> None:
    with stranger() as pid:
        driver.processes(0, [Process(pid)])
        assert agent.wait(agent.submit(SHOW, gpus=1, share_gpus=True))["devices"] == [UUID(1)]


def test_sharing_jobs_of_queue_get_different_gpus(agent: Agent, busy: int) -> None:
    first = agent.gated(gpus=1, share_gpus=True)
    agent.running(first, "up")
    second = agent.submit(SHOW, gpus=1, share_gpus=True)
    detail(agent, second, f"busy with {first}")
    agent.open_gate()
    assert agent.wait(second)["state"] == "completed"


# -- jobs that cannot start, and lost GPUs -----------------------------------------------------


@pytest.mark.thorough
def test_waiting_job_with_lost_gpu_lets_others_pass(agent: Agent, driver: SwitchableDriver) -> None:
    blocking = agent.gated(gpus=1)
    agent.running(blocking, "up")
    big = agent.submit(SHOW, gpus=2)
    detail(agent, big, "next in line for 2 GPUs")
    driver.lose(1)
    detail(agent, big, "GPU 1 is lost", "2 GPUs")
    small = agent.submit(SHOW, gpus=1)
    detail(agent, small, "next in line for 1 GPU")
    agent.open_gate()
    assert agent.wait(small)["devices"] == [UUID(0)]
    detail(agent, big, "GPU 1 is lost")
    driver.restore(1)
    assert agent.wait(big)["devices"] == [UUID(0), UUID(1)]


@pytest.mark.thorough
def test_waiting_job_starts_after_driver_repair(agent: Agent, driver: SwitchableDriver) -> None:
    driver.set_gpus(1)
    blocking = agent.gated(gpus=1)
    agent.running(blocking, "up")
    run = agent.submit(SHOW, gpus=1)
    detail(agent, run, "next in line")
    driver.answer("nvmlInit", 18)
    detail(agent, run, "mismatch")
    cpu = agent.submit(SHOW, gpus=0)
    assert agent.wait(cpu)["state"] == "completed"
    agent.open_gate()
    agent.wait(blocking)
    driver.answer("nvmlInit", 0)
    assert agent.wait(run)["devices"] == [UUID(0)]


LOSSES: dict[str, Callable[[SwitchableDriver], None]] = {
    "handle": lambda driver: driver.lose(1),
    "no handle": lambda driver: driver.lose(1, handle=False),
    "reset": lambda driver: driver.lose(1, fake.RESET_REQUIRED),
    "unknown": lambda driver: driver.lose(1, fake.UNKNOWN),
    "not counted": lambda driver: driver.lose(1, counted=False),
    "memory": lambda driver: driver.answer("nvmlDeviceGetMemoryInfo", fake.GPU_IS_LOST, gpu=1),
    "uuid": lambda driver: driver.set(1, uuid=None),
}


@pytest.mark.thorough
@pytest.mark.parametrize("how", LOSSES)
def test_lost_gpu_stays_in_info(agent: Agent, driver: SwitchableDriver, how: str) -> None:
    agent.good("info")
    agent.kill_dispatcher()  # it is remembered in the folder
    LOSSES[how](driver)
    info = agent.good("info")
    assert [gpu["uuid"] for gpu in info["gpus"]] == [UUID(0)]
    (lost,) = info["gpus_lost"]
    assert (lost["index"], lost["uuid"], lost["name"]) == (1, UUID(1), "NVIDIA H100 80GB HBM3") and lost["reason"]
    assert info["slots"]["gpu"] == {"total": 2, "free": 1, "lost": 1}
    assert agent.wait(agent.submit(SHOW))["devices"] == [UUID(0)]
    error = refused(agent, gpus=2)
    assert error["type"] == "GpuDriverError" and "GPU 1 is lost" in error["message"]


@pytest.mark.thorough
def test_lost_first_gpu_is_identified_by_uuid(agent: Agent, driver: SwitchableDriver) -> None:
    agent.good("info")
    agent.kill_dispatcher()
    driver.lose(0, counted=False)
    info = agent.good("info")
    assert [gpu["uuid"] for gpu in info["gpus"]] == [UUID(1)]
    assert [gpu["uuid"] for gpu in info["gpus_lost"]] == [UUID(0)]


def test_gpu_of_earlier_boot_is_not_lost(agent: Agent, driver: SwitchableDriver) -> None:
    agent.good("info")
    agent.kill_dispatcher()
    path = Path(agent.queue, "gpus.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "boot": "earlier"}))
    driver.set_gpus(1)
    assert agent.good("info")["gpus_lost"] == []


@pytest.mark.thorough
@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 99}', '{"gpus": [1, {"uuid": 2}]}'])
def test_damaged_known_gpus_file_is_ignored(agent: Agent, driver: SwitchableDriver, text: str) -> None:
    Path(agent.queue).mkdir(mode=0o700)
    Path(agent.queue, "gpus.json").write_text(text)
    assert agent.good("info")["gpus_lost"] == []


def monitored(agent: Agent) -> tuple[dict[str, Any], dict[int, dict[str, Any]], list[Any]]:
    """Header, slow values of each GPU, and ticks of a monitor's file, read from its beginning."""
    path = Path(agent.home, "monitors", "m", "telemetry", "node-0.jsonl")
    data = path.read_bytes() if path.exists() else b""
    lines = [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]
    slow: dict[int, dict[str, Any]] = {}
    for line in lines:
        for i, values in line.get("gpu", ()) if isinstance(line, dict) else ():
            slow.setdefault(i, {}).update(values)
    return lines[0] if lines else {}, slow, [line for line in lines if isinstance(line, list)]


@pytest.mark.thorough
@pytest.mark.parametrize("how", [how for how in LOSSES if how != "memory"])
def test_monitor_shows_lost_gpu_until_back(agent: Agent, driver: SwitchableDriver, how: str) -> None:
    agent.good("info")
    LOSSES[how](driver)
    agent.good("monitor", id="m", gpus=None, period=0.1)
    until(lambda: monitored(agent)[1].get(1, {}).get("lost") == 1, "the loss in the file")
    header, slow, ticks = monitored(agent)
    assert [gpu["index"] for gpu in header["gpus"]] == [0, 1] and header["gpus"][1]["uuid"] == UUID(1)
    assert "lost" not in slow[0]
    assert "GPU 1" in header["gpu_note"] and header["driver"] and header["cuda"] and ticks[-1][-1] is None
    with driver.changes():
        driver.restore(1)
        driver.answer("nvmlDeviceGetMemoryInfo", 0, gpu=1)
        driver.set(1, uuid=UUID(1))

    def back() -> bool:
        agent.good("monitor", id="m", gpus=None, period=0.1)
        return monitored(agent)[1][1]["lost"] == 0

    until(back, "its return")
    agent.good("monitor", id="m", stop=True)


@pytest.mark.thorough
def test_monitor_of_lost_gpu_is_accepted(agent: Agent, driver: SwitchableDriver) -> None:
    agent.good("info")
    driver.lose(1)
    assert "pid" in agent.good("monitor", id="m", gpus=[1], period=0.1)
    assert "no GPU 2" in agent("monitor", id="n", gpus=[2], period=0.1)["error"]["message"]
    agent.good("monitor", id="m", stop=True)
