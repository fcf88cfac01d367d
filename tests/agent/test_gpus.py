"""GPU slots, with a fake driver library under the real pynvml."""

from __future__ import annotations

import os
import selectors
from pathlib import Path

import pytest

from jupyter_amltrain.agent.queue import gpu_probe
from jupyter_amltrain.agent.telemetry import nvml as nvml_of_agent
from jupyter_amltrain.agent.telemetry.nvml import library
from tests.fakes import nvml

from .conftest import Agent, stranger, until

UUIDS = [f"GPU-fa4e0000-0000-0000-0000-{index:012x}" for index in range(4)]
SHOW = "import os, time; print('has', os.environ.get('CUDA_VISIBLE_DEVICES')); "
HOLD = SHOW + "time.sleep(600)"


@pytest.fixture
def gpus(agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Agent:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml.needed()))
    monkeypatch.setenv("AMLTRAIN_FAKE_NVML_GPUS", "2")
    monkeypatch.setenv("AMLTRAIN_FAKE_NVML_PROCESSES", str(tmp_path / "processes"))
    monkeypatch.setenv("AMLTRAIN_FAKE_NVML_LOG", str(tmp_path / "inits"))
    return agent


def test_info_lists_gpus_and_slots(gpus: Agent, tmp_path: Path) -> None:
    info = gpus.good("info")
    assert [g["uuid"] for g in info["gpus"]] == UUIDS[:2]
    assert info["gpus"][0]["name"] == "Fake H100 80GB" and info["gpus"][0]["memory_total"] == 80 << 30
    assert info["slots"]["gpu"] == {"total": 2, "free": 2}
    inits = {int(pid) for pid in (tmp_path / "inits").read_text().split()}
    assert info["pid"] not in inits and os.getpid() not in inits  # only short-lived children


def test_gpu_job_owns_gpus(gpus: Agent) -> None:
    first, second = gpus.submit(HOLD), gpus.submit(HOLD, gpus=1)
    third, cpu = gpus.submit(SHOW, gpus=2), gpus.submit(SHOW, gpus=0)
    # One that waits for GPUs does not block a CPU job behind it, which sees no GPU.
    assert gpus.wait(cpu)["state"] == "completed"
    assert gpus.log(cpu) == "has \n"
    for run, uuid in ((first, UUIDS[0]), (second, UUIDS[1])):
        assert gpus.running(run, "has")["devices"] == [uuid]
        assert gpus.log(run) == f"has {uuid}\n"
    state = gpus.state(third)
    assert state["state"] == "queued"
    assert state["detail"] == f"next in line for 2 GPUs; busy with {first}, {second}"
    gpus.good("cancel", run=first)
    assert gpus.wait(first)["state"] == "canceled"
    small = gpus.submit(SHOW, gpus=1)  # would fit, but its turn is after the third
    until(lambda: "position 2 in the queue" in gpus.state(small)["detail"], "the order")
    gpus.good("cancel", run=second)
    assert gpus.wait(third)["devices"] == UUIDS[:2]
    assert gpus.wait(small)["state"] == "completed"


def test_submit_with_too_many_gpus_is_refused(gpus: Agent) -> None:
    answer = gpus("submit", run="big", argv=["x"], gpus=3)
    assert answer["error"]["type"] == "CapacityError"
    assert "2 GPUs (Fake H100 80GB)" in answer["error"]["message"]
    assert not gpus.run_folder("big").exists()


def test_submit_with_gpu_without_driver_is_refused(agent: Agent) -> None:
    answer = agent("submit", run="big", argv=["x"], gpus=1)
    assert answer["error"]["type"] == "CapacityError" and "no NVIDIA driver" in answer["error"]["message"]
    assert agent.good("info")["gpus"] == []


@pytest.mark.thorough
def test_gpu_used_by_others_is_skipped(gpus: Agent, tmp_path: Path) -> None:
    with stranger() as other:
        (tmp_path / "processes").write_text(f"0 {other} 1000\n")
        first = gpus.submit(HOLD, gpus=1)
        assert gpus.running(first, "has")["devices"] == [UUIDS[1]]
        second = gpus.submit(SHOW, gpus=1)
        state = until(lambda: s if "used by" in (s := gpus.state(second))["detail"] else None, "the reason")
        assert f"GPU 0 used by pid {other} (" in state["detail"] and "python" in state["detail"]
        # A job's own processes do not make it a stranger to itself.
        rank = gpus.state(first)["rank"]["pid"]
        (tmp_path / "processes").write_text(f"1 {rank} 1000\n")
        assert gpus.wait(second)["devices"] == [UUIDS[0]]
        gpus.good("cancel", run=first)
        gpus.wait(first)


def test_share_variable_uses_busy_gpu(gpus: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMLTRAIN_SHARE_GPUS", "1")
    (tmp_path / "processes").write_text("0 1 1000\n1 1 1000\n")
    assert gpus.wait(gpus.submit(SHOW, gpus=1))["devices"] == [UUIDS[0]]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "value", "count", "note"),
    [
        ("AMLTRAIN_FAKE_NVML_UNSUPPORTED", "name,memory,processes", 2, ""),
        ("AMLTRAIN_FAKE_NVML_BROKEN", "1", 0, "Driver Not Loaded"),
        ("AMLTRAIN_FAKE_NVML_GPUS", "0", 0, "knows no GPU"),
    ],
)
def test_info_with_failing_driver_has_note(
    gpus: Agent, name: str, value: str, count: int, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    info = gpus.good("info")
    assert len(info["gpus"]) == count and note in info["gpu_note"]
    assert gpus.wait(gpus.submit(SHOW))["devices"] == UUIDS[: min(count, 1)]


@pytest.mark.thorough
def test_gpu_slots_outlive_dispatcher(gpus: Agent) -> None:
    first = gpus.submit(HOLD, gpus=1)
    gpus.running(first, "has")
    gpus.kill_dispatcher()
    second = gpus.submit(SHOW, gpus=1)
    assert gpus.wait(second)["devices"] == [UUIDS[1]]
    gpus.good("cancel", run=first)
    assert gpus.wait(first)["state"] == "canceled"
    until(lambda: gpus.good("info")["slots"]["gpu"]["free"] == 2, "the freed slot")


@pytest.mark.parametrize("vendor", ["", "0x8086", "0x10de"])
def test_missing_driver_of_a_device_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vendor: str
) -> None:
    device = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text(vendor + "\n")
    (device / "class").write_text("0x030000\n")
    monkeypatch.setenv("AMLTRAIN_DEVICE_ROOT", str(tmp_path))
    monkeypatch.setattr("jupyter_amltrain.agent.telemetry.nvml.LIBRARY", "libnvidia-of-nobody.so.1")
    module, reason = library()
    assert module is None and "no NVIDIA driver" in reason
    assert ("ubuntu-drivers" in reason) == (vendor == "0x10de")


@pytest.mark.parametrize("library", ["libnot-there.so.1", "libc.so.6"])
def test_machine_without_driver_is_probed_again_once_there_is_a_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library: str
) -> None:
    monkeypatch.setattr(nvml_of_agent, "LIBRARY", library)
    watch = gpu_probe.GpuWatch(selectors.DefaultSelector(), lambda: None, gpu_probe.KnownGpus(str(tmp_path)))
    assert watch.doubtful  # nothing is known yet
    watch.known = True
    assert watch.doubtful == (library == "libc.so.6")
