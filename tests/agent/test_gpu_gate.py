"""The GPU-truth gate and monitors of a real agent, with a fake driver under the real pynvml."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent.processes import process_table
from tests.fakes import nvml
from tests.tiers import thorough

from .conftest import Agent, alive, until

#: GPU 0 does nothing, or works and holds 9 GiB, from its sampler's start on.
IDLE = "* 0 0 600 60"
NO_UTILIZATION = "nvmlDeviceGetUtilizationRates,nvmlDeviceGetSamples"
BUSY = "* 0 0 600 60\n* 0.4 80 9000 300"


class Machine:
    """An agent's machine with GPUs, and jobs that wait for a line of the test."""

    def __init__(self, agent: Agent, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.agent, self.folder, self._patch = agent, folder, monkeypatch
        self.go, self.curves, self.processes = folder / "go", folder / "curves", folder / "processes"
        monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml.needed()))
        self.switch(GPUS=2, CURVES=self.curves, PROCESSES=self.processes)
        self.curves.write_text(IDLE)

    def switch(self, **values: object) -> None:
        for name, value in values.items():
            self._patch.setenv(f"AMLTRAIN_FAKE_NVML_{name}", str(value))

    def submit(self, before: str = "", wrap: tuple[str, ...] = (), **payload: Any) -> str:
        """A job with one GPU that runs `before` and then waits for :attr:`go`."""
        code = f"import os, time; print('up')\n{before}\nwhile not os.path.exists({str(self.go)!r}): time.sleep(0.01)"
        payload = {"gpus": 1, "grace": 2, "gpu_grace": 0.6, **payload}
        return self.agent.submit("", argv=[*wrap, sys.executable, "-S", "-u", "-c", code], **payload)

    def truth(self, run: str) -> dict[str, str]:
        """What the run's state says of its GPUs, once it says something."""
        return until(lambda: self.agent.state(run).get("truth"), "a verdict")

    def end(self, run: str) -> dict[str, Any]:
        self.go.touch()
        return self.agent.wait(run)


@pytest.fixture
def machine(agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(agent, tmp_path, monkeypatch)


# -- the gate ---------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"PIDS": "host"},
        {"PIDS": "mixed"},
        {"PIDS": "empty"},
        {"UNSUPPORTED": "processes"},
        {"MIG": "0:2,1:2", "UNSUPPORTED": NO_UTILIZATION},
        {"MIG": "0:2,1:2", "UNSUPPORTED": NO_UTILIZATION + ",processes"},
        {"UNSUPPORTED": NO_UTILIZATION},
        {"UNSUPPORTED": "memory"},
    ],
    ids=lambda switches: "-".join(str(value) for value in switches.values()) or "plain",
)
def test_gpu_guard_keeps_busy_run(machine: Machine, switches: dict[str, str]) -> None:
    machine.curves.write_text(BUSY)
    machine.switch(**switches)
    listed = f"open({str(machine.processes)!r}, 'w').write('0 %d 9000000000' % os.getpid())"
    run = machine.submit(listed, require_gpu="stop")
    assert machine.truth(run)["verdict"] == "used"
    state = machine.end(run)
    assert (state["state"], state["truth"]["verdict"]) == ("completed", "used")
    assert (machine.agent.run_folder(run) / "telemetry" / "summary-0.json").exists()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "switches",
    [{"UNSUPPORTED": "memory"}, {"UNSUPPORTED": NO_UTILIZATION}, {"MIG": "0:2", "UNSUPPORTED": NO_UTILIZATION}],
    ids=["memory", "utilization", "MIG"],
)
def test_gpu_guard_without_evidence_keeps_run(machine: Machine, switches: dict[str, str]) -> None:
    machine.switch(**switches)
    run = machine.submit(require_gpu="stop")
    truth = machine.truth(run)
    assert truth["verdict"] == "cannot tell" and "does not report its" in truth["detail"] and not truth["cause"]
    assert machine.end(run)["state"] == "completed"


def test_gpu_guard_stops_idle_run_with_cause(machine: Machine) -> None:
    """The script holds a library of a framework without CUDA."""
    library = machine.folder / "libtorch_cpu.so"
    library.write_bytes(b"\0" * 4096)
    run = machine.submit(
        f"import mmap; f = open({str(library)!r}, 'r+b'); m = mmap.mmap(f.fileno(), 4096)", require_gpu="stop"
    )
    state = machine.agent.wait(run)
    assert (state["state"], state["reason"], state["signal"]) == ("failed", "gpu-unused", signal.SIGTERM)
    assert "GPU 0 stayed at 0 %" in state["detail"]
    assert "(CPU-only wheel): pip install torch" in state["detail"]
    assert state["truth"]["verdict"] == "not used" and "CPU-only wheel" in state["truth"]["cause"]
    running = next(phase for phase in state["phases"] if phase["name"] == "running")
    assert running["seconds"] >= 0.6


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("curves", "most"),
    [("* 0 3 600 60", "3 %"), *thorough(("* 0 98 600 60\n* 1.5 0 600 60", "98 %"))],
    ids=["display", "driver's start"],
)
def test_gpu_guard_stops_cpu_run_on_foreign_busy_gpu(machine: Machine, curves: str, most: str) -> None:
    machine.curves.write_text(curves)
    state = machine.agent.wait(machine.submit(require_gpu="stop", gpu_grace=3))
    assert (state["reason"], state["truth"]["verdict"]) == ("gpu-unused", "not used")
    assert most in state["detail"] and " 0 %" not in state["detail"]  # the charts show it, too


@pytest.mark.thorough
def test_gpu_guard_kills_job_ignoring_sigterm(machine: Machine) -> None:
    run = machine.submit("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)", require_gpu="stop", grace=0.2)
    state = machine.agent.wait(run)
    assert (state["reason"], state["signal"]) == ("gpu-unused", signal.SIGKILL)
    until(lambda: not machine.agent.left(), "the last process")


@pytest.mark.thorough
@pytest.mark.parametrize("require", ["", "warn"])
def test_gpu_guard_warning_keeps_run(machine: Machine, require: str) -> None:
    run = machine.submit(wrap=("/usr/bin/env", "CUDA_VISIBLE_DEVICES=-1"), require_gpu=require)
    truth = machine.truth(run)
    assert truth["verdict"] == "not used" and "CUDA_VISIBLE_DEVICES='-1'" in truth["cause"]
    assert machine.agent.state(run)["state"] == "running"
    state = machine.end(run)
    assert (state["state"], state["truth"]) == ("completed", truth)


def test_gpu_guard_late_use_clears_warning(machine: Machine) -> None:
    clock = machine.folder / "clock"
    nvml.set_clock(clock, 0.0)
    machine.switch(CLOCK=clock)
    machine.curves.write_text(f"{IDLE}\n* 5 60 5000 200")
    run = machine.submit()
    assert machine.truth(run)["verdict"] == "not used"
    nvml.set_clock(clock, 6.0)
    until(lambda: machine.truth(run)["verdict"] == "used", "the use")
    truth = machine.end(run)["truth"]
    assert "first after" in truth["detail"] and truth["cause"] == ""


def test_gpu_guard_of_short_or_cpu_run_is_neutral(machine: Machine) -> None:
    machine.go.touch()
    early, cpu = machine.submit(gpu_grace=60, require_gpu="stop"), machine.submit(gpus=0, require_gpu="stop")
    truth = machine.agent.wait(early)["truth"]
    assert truth["verdict"] == "cannot tell" and "the run ended" in truth["detail"]
    state = machine.agent.wait(cpu)
    assert state["state"] == "completed" and "truth" not in state
    assert not (machine.agent.run_folder(cpu) / "telemetry" / "truth-0.json").exists()


@pytest.mark.thorough
def test_gpu_guard_after_sampler_restart_keeps_verdict(machine: Machine) -> None:
    """A restart within the grace time goes on with what was seen before it."""
    run = machine.submit(gpu_grace=1.5, require_gpu="stop")
    state = machine.agent.running(run, "up")
    truth = machine.agent.run_folder(run) / "telemetry" / "truth-0.json"
    until(lambda: truth.exists() and '"began":null' not in truth.read_text(), "the first tick")

    def children() -> list[int]:
        parent, rank = state["supervisor"]["pid"], state["rank"]["pid"]
        return [pid for pid, row in process_table().items() if row.parent == parent and pid != rank]

    (sampler,) = until(lambda: found if len(found := children()) == 1 else None, "its only other process")
    os.kill(sampler, signal.SIGKILL)
    state = machine.agent.wait(run)
    assert state["reason"] == "gpu-unused", state
    rows = [line[0] for line in machine.agent.telemetry(run) if isinstance(line, list)]
    assert rows == list(range(len(rows)))


@pytest.mark.thorough
def test_slow_driver_delays_neither_cancel_nor_start(machine: Machine) -> None:
    machine.switch(HANG=4)
    late = machine.submit(require_gpu="stop")
    run = machine.submit()
    until(lambda: machine.agent.state(run)["state"] == "running", "its turn")
    assert machine.agent.state(run)["rank"] is None
    machine.agent.good("cancel", run=run)
    state = machine.agent.wait(run)
    # Without an answer of the driver no job is started: this one was canceled while it was waited for.
    assert (state["state"], state["detail"]) == ("canceled", "canceled before it started")
    machine.agent.running(late, "up")
    assert "not read in time" in (machine.agent.run_folder(late) / "log/agent.txt").read_text()
    truth = machine.truth(late)
    assert truth["verdict"] == "cannot tell" and "before the run is not known" in truth["detail"]
    assert machine.end(late)["state"] == "completed"


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"require_gpu": "maybe"}, "require_gpu"), ({"gpu_grace": 0}, "gpu_grace")],
)
def test_gpu_guard_invalid_field_is_refused(agent: Agent, fields: dict[str, Any], message: str) -> None:
    assert message in agent("submit", run="x", argv=["x"], **fields)["error"]["message"]


# -- monitors ---------------------------------------------------------------------------


def header(agent: Agent, name: str) -> dict[str, Any]:
    path = Path(agent.home, "monitors", name, "telemetry", "node-0.jsonl")
    until(lambda: path.exists() and path.read_bytes().count(b"\n") > 2, "ticks")
    return json.loads(path.read_text().splitlines()[0])


@pytest.mark.thorough
def test_monitor_ends_without_requests(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMLTRAIN_MONITOR_KEEP", "1")
    agent = machine.agent
    first = agent.good("monitor", id="w", gpus=[1], period=0.1)
    assert first["folder"] == str(Path(agent.home, "monitors", "w"))
    assert [gpu["index"] for gpu in header(agent, "w")["gpus"]] == [1]
    # It is kept for a second after each call; a longer pause of this test proves nothing.
    end = requested = time.monotonic()
    end += 2
    while time.monotonic() < end:
        answer = agent.good("monitor", id="w", gpus=[1], period=0.1)
        if time.monotonic() - requested < 0.9:
            assert answer == first
        first, requested = answer, time.monotonic()
        time.sleep(0.1)
    until(lambda: not Path(first["folder"]).exists(), "its end")
    until(lambda: not alive(first["pid"]), "its keeper's end")
    assert list(Path(agent.home, "monitors").iterdir()) == []
    assert not Path(agent.queue).exists()  # it needs no dispatcher


def test_monitor_stop_ends_monitor(machine: Machine) -> None:
    agent = machine.agent
    made = agent.good("monitor", id="w", gpus=None, period=0.1)
    assert [gpu["index"] for gpu in header(agent, "w")["gpus"]] == [0, 1]
    assert not (Path(made["folder"]) / "telemetry" / "truth-0.json").exists()
    assert agent.good("monitor", id="w", stop=True) == {"id": "w"}
    assert not alive(made["pid"]) and not Path(made["folder"]).exists()
    agent.good("monitor", id="w", stop=True)
    again = agent.good("monitor", id="w", gpus=None, period=0.1)
    assert again["pid"] != made["pid"]
    agent.good("monitor", id="w", stop=True)


def test_concurrent_monitor_requests_share_monitor(machine: Machine) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: machine.agent("monitor", id="w", gpus=None, period=0.1), range(16)))
    assert len({answer.get("pid") for answer in answers}) == 1, answers
    machine.agent.good("monitor", id="w", stop=True)


def test_monitor_after_process_kill_continues_file(machine: Machine) -> None:
    agent = machine.agent
    first = agent.good("monitor", id="w", gpus=[0], period=0.1)
    header(agent, "w")
    children = [pid for pid, row in process_table().items() if row.parent == first["pid"]]
    os.kill(first["pid"], signal.SIGKILL)
    until(lambda: not any(alive(pid) for pid in [first["pid"], *children]), "the sampler's end")
    path = Path(first["folder"], "telemetry", "node-0.jsonl")
    before = path.read_bytes()
    second = agent.good("monitor", id="w", gpus=[0], period=0.1)
    assert second["pid"] != first["pid"] and second["folder"] == first["folder"]
    until(lambda: len(path.read_bytes()) > len(before), "its next tick")
    assert path.read_bytes().startswith(before[: before.rfind(b"\n") + 1])
    agent.good("monitor", id="w", stop=True)


def test_killed_monitor_folder_is_removed(machine: Machine) -> None:
    agent = machine.agent
    first = agent.good("monitor", id="old", gpus=[], period=0.1)
    os.kill(first["pid"], signal.SIGKILL)
    until(lambda: not alive(first["pid"]), "its end")
    agent.good("monitor", id="one", gpus=[], period=0.1)
    assert Path(first["folder"]).exists()
    os.utime(Path(first["folder"], "kept"), (0, 0))
    agent.good("monitor", id="two", gpus=[], period=0.1)
    assert sorted(path.name for path in Path(agent.home, "monitors").iterdir()) == ["one", "two"]


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"gpus": [0, 5]}, "GPU 5"),
        ({"gpus": ["0"]}, "not a list of GPU indices"),
        ({"id": "../runs/x"}, "is not a monitor id"),
        ({"id": ".."}, "is not a monitor id"),
        ({"period": 0.001}, "0.1 to 3600"),
        ({"period": None}, "period must be"),
    ],
)
def test_monitor_invalid_request_is_refused(machine: Machine, payload: dict[str, Any], message: str) -> None:
    answer = machine.agent("monitor", **{"id": "w", "gpus": None, "period": 1.0, **payload})
    assert answer["error"]["type"] == "CommandError" and message in answer["error"]["message"]
    folder = Path(machine.agent.home, "monitors")
    assert not folder.exists() or list(folder.iterdir()) == []
