"""What telemetry, its readers and a probe say of GPUs and their processes, on a driver that the test switches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent.processes import command_of, short_command, user_of
from jupyter_amltrain.kernel.gpu_record import gpu_record
from jupyter_amltrain.kernel.gpu_summary import figure_groups
from jupyter_amltrain.kernel.telemetry import RunTelemetry
from jupyter_amltrain.kernel.watcher import _valid_summary
from jupyter_amltrain.output.tables import table_html
from jupyter_amltrain.output.telemetry_frame import frame_of
from jupyter_amltrain.tracking import telemetry_table
from tests.fakes import driver as fake
from tests.fakes.driver import GIB, Process, SwitchableDriver

#: Samples a machine at given times, by clocks of the test's.
SAMPLER = """
import json, sys
from jupyter_amltrain.agent import protocol as clock
from jupyter_amltrain.agent.telemetry import sampler
now = [0.0]
clock.wall = lambda: 1_700_000_000.0 + now[0]
clock.mono = lambda: 1000.0 + now[0]
one = sampler.Sampler(sys.argv[1], None, 1.0, None)
for line in sys.stdin:
    if line.strip() == "close":
        break
    now[0] = float(line)
    one.tick()
    print("ticked", flush=True)
one.close()
"""
PROBE = "import json; from jupyter_amltrain.agent.telemetry import nvml; print(json.dumps(nvml.read_gpus()))"


class Machine:
    """A sampler under the driver."""

    def __init__(self, driver: SwitchableDriver, folder: Path) -> None:
        self.folder = folder
        (folder / "telemetry").mkdir(parents=True, exist_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-c", SAMPLER, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **driver.environment()},
            text=True,
        )

    def tick(self, *times: float) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        for seconds in times:
            self.process.stdin.write(f"{seconds}\n")
            self.process.stdin.flush()
            assert self.process.stdout.readline() == "ticked\n"

    def close(self) -> None:
        self.process.communicate("close\n", timeout=60)

    @property
    def data(self) -> bytes:
        return (self.folder / "telemetry" / "node-0.jsonl").read_bytes()

    def telemetry(self) -> RunTelemetry:
        found = RunTelemetry()
        found.feed(0, self.data)
        return found


@pytest.fixture
def driver(tmp_path: Path) -> SwitchableDriver:
    found = fake.needed(tmp_path, gpus=2)
    for gpu in range(2):
        found.gpm(gpu, {2: 60 + gpu, 5: 30, 10: 45})
    return found


def test_figures_reach_every_reader(driver: SwitchableDriver, tmp_path: Path) -> None:
    machine = Machine(driver, tmp_path / "run")
    machine.tick(1, 2, 3)
    driver.gpm(0, {2: 90})
    machine.tick(*range(4, 130))
    machine.close()
    telemetry = machine.telemetry()
    node = telemetry.node(0)
    _, rows = node.since(0)
    activity = rows[node.index["gpu0.sm_activity"]]
    assert activity[:3].tolist() == [60] * 3 and activity[3:].tolist() == [90] * 126  # in the tick that it is of
    frame = frame_of({0: machine.data})
    assert frame["gpu0_sm_activity"].tolist() == activity.tolist()
    assert frame.attrs["units"]["gpu0_sm_activity"] == "percent"
    _, tables = telemetry_table.tables(machine.folder, True)
    assert tables[0].column("gpu1.sm_activity")[-1] == 61
    minutes = [json.loads(line) for line in (machine.folder / "telemetry" / "minutes-0.jsonl").open()]
    assert minutes[0]["columns"] == node.columns
    part = gpu_record(telemetry, False)
    assert part is not None and part.gpus[0].sm_activity[-1] == 90 and part.now[1]["sm_activity"] == 61
    summary = json.loads((machine.folder / "telemetry" / "summary-0.json").read_text())
    assert summary["gpus"][1]["sm_activity_mean"] == 61 and 85 < summary["gpus"][0]["sm_activity_mean"] < 90
    assert any(text.startswith("SM 61 to ") for group in figure_groups({"gpus": []}, summary) for text in group.texts)
    assert _valid_summary(summary), "the kernel takes it"


def test_restarted_sampler_keeps_file_columns(driver: SwitchableDriver, tmp_path: Path) -> None:
    machine = Machine(driver, tmp_path / "run")
    machine.tick(1, 2, 3)
    machine.process.kill()
    machine.process.communicate()
    for gpu in range(2):
        driver.gpm(gpu, None)
    again = Machine(driver, tmp_path / "run")
    again.tick(10, 11, 70)
    again.close()
    node = again.telemetry().node(0)
    _, rows = node.since(0)
    assert rows.shape[1] == 6 and rows[node.index["gpu0.sm_activity"]][0] == 60
    assert rows[node.index["gpu0.sm_activity"]][-1] != 60


def test_summary_has_throttled_seconds(driver: SwitchableDriver, tmp_path: Path) -> None:
    machine = Machine(driver, tmp_path / "run")
    for t in range(1, 40):
        driver.violation(0, 0, t * 500_000_000)
        machine.tick(t)
    machine.close()
    summary = json.loads((machine.folder / "telemetry" / "summary-0.json").read_text())
    assert summary["gpus"][0]["throttled_power_s"] == pytest.approx(19, abs=2.5)
    assert summary["gpus"][1]["throttled_power_s"] == 0
    assert any("(power limit)" in text for group in figure_groups({}, summary) for text in group.texts)


def test_gpu_processes_have_user_command_and_utilization(driver: SwitchableDriver, tmp_path: Path) -> None:
    own = os.getpid()
    driver.processes(1, [Process(own, 3 * GIB)])
    driver.process_utilization(1, [(own, 1000, 80), (own, 2000, 84), (own, 3000, 101), (0, 4000, 50), (own, 0, 9)])
    machine = Machine(driver, tmp_path / "run")
    machine.tick(1)
    part = gpu_record(machine.telemetry(), False)
    assert part is not None
    (process,) = part.processes
    assert (process.pid, process.index, process.sm, process.user) == (own, 1, 82, user_of(own))
    assert process.name == command_of(own) and process.name
    text = table_html(part)
    assert process.user in text and "82 %" in text and "60 %" in text and "of 80" in text and "of 700 W" in text
    driver.process_utilization(1, [(own, 5000, 12)])
    machine.tick(*range(2, 9))
    part = gpu_record(machine.telemetry(), False)
    assert part is not None and part.processes[0].sm == 12
    driver.process_utilization(1, fake.Fails(fake.NOT_SUPPORTED))
    machine.tick(*range(9, 16))
    part = gpu_record(machine.telemetry(), False)
    assert part is not None and part.processes[0].sm is None
    machine.close()


@pytest.mark.parametrize("held", [[], [70, 5, 71, 6]])
def test_telemetry_of_earlier_version_is_read(driver: SwitchableDriver, tmp_path: Path, held: list[int]) -> None:
    machine = Machine(driver, tmp_path / "run")
    machine.tick(1, 2)
    machine.close()
    head, *lines = (json.loads(line) for line in machine.data.splitlines())
    head["gpu_columns"], head["gpu_units"], width = (
        head["gpu_columns"][:6],
        head["gpu_units"][:6],
        len(head["gpu_columns"]),
    )
    if held:  # figures that apply to the ticks after them
        head.update(gpu_figures=["sm_activity", "tensor_activity"], gpu_figure_units=["percent"] * 2)
    rows = [line for line in lines if isinstance(line, list)]
    ticks = [[*row[: -2 * width], *row[-2 * width : 6 - 2 * width], *row[-width : 6 - width]] for row in rows]
    old = [head, *([{"seq": 0, "figures": held}] if held else []), *ticks]
    telemetry = RunTelemetry()
    telemetry.feed(0, b"".join(json.dumps(line).encode() + b"\n" for line in old))
    node, part = telemetry.node(0), gpu_record(telemetry, False)
    assert node.ticks == 2 and ("gpu0.sm_activity" in node.index) == bool(held)
    assert part is not None and ("71" in table_html(part)) == bool(held)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["/usr/bin/python3", "-u", "/home/a/train.py", "--token", "secret"], "python3 train.py"),
        (["python", "-m", "torch.distributed.run", "--x"], "python -m torch.distributed.run"),
        (["python", "-c", "key='secret'"], "python"),
        (["python", "-W", "ignore", "secret.txt"], "python"),
        (["/opt/ollama", "serve", "--key=secret"], "ollama"),
        (["nginx: worker process secret"], "nginx:"),
        ([""], ""),
        ([], ""),
    ],
)
def test_process_command_is_short_and_redacted(line: list[str], words: str) -> None:
    assert short_command(line) == words


def probe(driver: SwitchableDriver) -> dict[str, Any]:
    environ = {**os.environ, **driver.environment()}
    done = subprocess.run([sys.executable, "-c", PROBE], env=environ, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def test_probe_has_driver_and_cuda_version(driver: SwitchableDriver) -> None:
    assert {(gpu["driver"], gpu["cuda"]) for gpu in probe(driver)["gpus"]} == {("580.65.06", "13.0")}
    driver.set_system(driver_version=fake.Fails(999), cuda_version=12080)
    assert {(gpu["driver"], gpu["cuda"]) for gpu in probe(driver)["gpus"]} == {(None, "12.8")}
