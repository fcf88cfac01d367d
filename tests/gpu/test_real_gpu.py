"""Our sampler on a real NVIDIA GPU, beside torch and nvidia-smi.

Needs Python, pytest, pynvml, torch and the agent, and no network. See ``bare.ini`` here.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
HOLD, COMPUTE = 4096, 8.0
MIB = 1 << 20

pytestmark = pytest.mark.gpu

SAMPLER = """
import os, sys
from jupyter_amltrain.agent.telemetry import sampler
sys.exit(sampler.run(sys.argv[1], os.getppid(), [sys.argv[2]], int(sys.argv[3])))
"""

COST = """
import json, sys, time
from jupyter_amltrain.agent.telemetry import sampler
from jupyter_amltrain.agent.telemetry.gpu_slow import SlowMetrics
readings, note = sampler.find_gpus([sys.argv[1]], None, None)
seldom, cpu, wall, slow = SlowMetrics(readings), [], [], []
seldom.read(1.0, ())
for _ in range(50):
    time.sleep(0.1)
    c, w = time.thread_time(), time.perf_counter()
    values = readings.read()
    cpu.append(1000 * (time.thread_time() - c)); wall.append(1000 * (time.perf_counter() - w))
    w = time.perf_counter()
    seldom.slow.read(0); seldom.slow.processes(0)
    slow.append(1000 * (time.perf_counter() - w))
calls = {}
for metric in readings._metrics:
    w = time.perf_counter()
    for _ in range(20): metric.calls[0]()
    calls["column %d" % metric.column] = 50 * (time.perf_counter() - w)
print(json.dumps({"cpu": cpu, "wall": wall, "slow": slow, "calls": calls, "sampled": len(readings._samplers)}))
"""


def until(check: Callable[[], Any], what: str, deadline: float = 60.0) -> Any:
    end = time.monotonic() + deadline
    while not (value := check()):
        assert time.monotonic() < end, f"waited {deadline} s for {what}"
        time.sleep(0.02)
    return value


@pytest.fixture(scope="module")
def gpu() -> tuple[Any, str]:
    """Handle and UUID of the first GPU that torch may use."""
    torch = pytest.importorskip("torch", reason="no torch on this machine")
    pynvml = pytest.importorskip("pynvml", reason="no pynvml on this machine")
    try:
        pynvml.nvmlInit()
        if not pynvml.nvmlDeviceGetCount() or not torch.cuda.device_count():
            pytest.skip("no NVIDIA GPU on this machine")
    except pynvml.NVMLError:
        pytest.skip("no NVIDIA GPU on this machine")
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    return handle, uuid.decode() if isinstance(uuid, bytes) else uuid


class Watched:
    """A load under our sampler, and what the sampler has written."""

    def __init__(self, folder: Path, uuid: str, *words: str) -> None:
        (folder / "telemetry").mkdir(parents=True)
        (folder / "job.json").write_text("{}")
        self.path = folder / "telemetry" / "node-0.jsonl"
        self.folder = folder
        environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
            "CUDA_VISIBLE_DEVICES": uuid,
        }
        reader, writer = os.pipe()
        command = [sys.executable, "-c", SAMPLER, str(folder), uuid, str(writer)]
        self.sampler = subprocess.Popen(command, env=environ, pass_fds=[writer], cwd=folder)
        os.close(writer)
        assert os.read(reader, 1) == b"r"
        os.close(reader)
        script = str(Path(__file__).with_name("load.py"))
        self.load = subprocess.Popen(
            [sys.executable, script, *words],
            env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def step(self) -> dict[str, Any]:
        assert self.load.stdin is not None and self.load.stdout is not None
        self.load.stdin.write("\n")
        self.load.stdin.flush()
        return json.loads(self.load.stdout.readline())

    def report(self) -> dict[str, Any]:
        assert self.load.stdout is not None
        return json.loads(self.load.stdout.readline())

    def lines(self) -> list[Any]:
        data = self.path.read_bytes()
        return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]

    def rows(self) -> list[dict[str, Any]]:
        head, *lines = self.lines()
        names = [*head["columns"], *head["gpu_columns"]]
        return [dict(zip(names, line, strict=False)) for line in lines if isinstance(line, list)]

    def rows_after(self, t: float, count: int) -> list[dict[str, Any]]:
        return until(lambda: found if len(found := [r for r in self.rows() if r["t"] > t]) >= count else None, "ticks")

    def close(self) -> None:
        self.sampler.terminate()
        self.load.kill()
        self.sampler.wait(10)
        self.load.wait(10)


@pytest.fixture
def watched(tmp_path: Path, gpu: tuple[Any, str]) -> Iterator[Watched]:
    made = Watched(tmp_path / "run", gpu[1], str(HOLD), str(COMPUTE))
    try:
        yield made
    finally:
        made.close()


def smi(uuid: str) -> list[float]:
    fields = "memory.used,utilization.gpu,temperature.gpu,clocks.sm,power.draw"
    command = ["nvidia-smi", f"--id={uuid}", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    return [float(x) if x.strip().replace(".", "").isdigit() else float("nan") for x in done.stdout.split(",")]


def test_real_gpu_load_is_measured(watched: Watched, gpu: tuple[Any, str]) -> None:
    head = until(lambda: watched.path.exists() and watched.lines() and watched.lines()[0], "the header")
    (facts,) = head["gpus"]
    print("\n", facts, head["gpu_note"])
    assert facts["uuid"] == gpu[1] and facts["baseline"] is not None
    held = watched.step()
    rows = watched.rows_after(held["t"] + 1, 2)
    ours = rows[-1]["memory"] * MIB
    print(f"memory: torch sees {held['used'] / MIB:.0f} MiB of the device used, we {ours / MIB:.0f} MiB")
    assert ours == pytest.approx(held["used"], rel=0.02)
    grown = ours - facts["baseline"] * MIB
    assert grown >= held["reserved"] and grown >= HOLD * MIB
    if shutil.which("nvidia-smi"):
        theirs = smi(gpu[1])
        now = watched.rows()[-1]
        print("nvidia-smi", theirs, "ours", now)
        assert now["memory"] == pytest.approx(theirs[0], rel=0.02)
        assert theirs[2] != theirs[2] or now["temperature"] == pytest.approx(theirs[2], abs=4)

    begins, ends = watched.step(), watched.report()
    rows = watched.rows_after(ends["t"] + 3, 1)
    seen = [row["t"] - begins["t"] for row in rows_between(watched, begins["t"], ends["t"]) if (row["peak"] or 0) >= 50]
    print(f"utilization seen after {seen[0]:.2f} s" if seen else "utilization not seen")
    assert seen and seen[0] <= 2.0
    busy = rows_between(watched, begins["t"] + 2, ends["t"])
    assert statistics.mean(row["util"] for row in busy) >= 80
    assert watched.rows()[-1]["util"] <= 5
    print("busy:", busy[len(busy) // 2])

    whose = [row for line in watched.lines() if "processes" in line for row in line["processes"]]
    print("processes:", whose or "none listed", "- the load is", watched.load.pid)
    assert all((row[2] == "mine") == (row[1] == watched.load.pid) for row in whose)
    watched.close()
    summary = json.loads((watched.folder / "telemetry" / "summary-0.json").read_text())["gpus"][0]
    print("summary:", summary)
    assert summary["energy_wh"] > 0 and summary["memory_peak"] * MIB >= held["used"] * 0.98
    assert summary["first_use"] is not None
    truth = json.loads((watched.folder / "telemetry" / "truth-0.json").read_text())
    print("truth:", truth["verdict"], truth["detail"])
    assert truth["verdict"] == "used"


def rows_between(watched: Watched, start: float, end: float) -> list[dict[str, Any]]:
    return [row for row in watched.rows() if start < row["t"] <= end]


def test_real_gpu_sample_age_is_small(watched: Watched) -> None:
    ages: list[float] = []
    last = -1
    end = time.monotonic() + 8
    while time.monotonic() < end:
        rows = watched.rows() if watched.path.exists() else []
        if rows and rows[-1]["seq"] > last:
            last = rows[-1]["seq"]
            ages.append(time.time() - rows[-1]["t"])
        time.sleep(0.005)
    print(f"\nage of a tick in the file: median {1000 * statistics.median(ages):.0f} ms, n={len(ages)}")
    assert len(ages) >= 6 and statistics.median(ages) < 0.5


def test_real_gpu_sample_cost_is_small(gpu: tuple[Any, str]) -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", COST, gpu[1]]
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    found = json.loads(done.stdout)
    print(f"\none sample of one GPU, ms: CPU {statistics.median(found['cpu']):.3f}", end="")
    print(f" wall {statistics.median(found['wall']):.3f} (max {max(found['wall']):.3f})", end="")
    print(f"; seldom values {statistics.median(found['slow']):.3f}; a call:", found["calls"], end="")
    print("; the driver has samples" if found["sampled"] else "; the driver keeps no samples")


KEEP = """
import torch
model = torch.nn.Linear(3, 1).cuda()
optimizer = torch.optim.Adam(model.parameters())
model(torch.ones(2, 3, device="cuda")).sum().backward()
optimizer.step()
import amltrain_kept
amltrain_kept.keep(["optimizer", "model"], [], [], True)
"""


def test_values_of_a_gpu_are_read_without_one(tmp_path: Path, gpu: tuple[Any, str]) -> None:
    from jupyter_amltrain.agent.supervise import job_hooks

    environ = {**os.environ, "AML_OUTPUT_DIR": str(tmp_path / "outputs")}
    job_hooks.add(environ, str(tmp_path), str(tmp_path), gpus=False, cell="script.py")
    (tmp_path / "script.py").write_text(KEEP)
    subprocess.run([sys.executable, str(tmp_path / "script.py")], env=environ, check=True, timeout=300)
    read = (
        "import json, sys; sys.path.insert(0, sys.argv[2]); from jupyter_amltrain.agent import values\n"
        "nodes = json.load(open(sys.argv[1] + '/_amltrain_kept.json'))['value']['nodes']\n"
        "found = values.read(nodes['model'], sys.argv[1] + '/_amltrain_kept.values', True)\n"
        "print(found.weight.device.type, list(found.weight.shape))"
    )
    command = [sys.executable, "-c", read, str(tmp_path / "outputs"), str(REPOSITORY)]
    done = subprocess.run(
        command, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, stdout=subprocess.PIPE, text=True, timeout=300
    )
    assert done.stdout.strip() == "cpu [1, 3]"
