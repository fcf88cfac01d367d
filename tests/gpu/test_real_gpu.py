"""Our sampler on a real NVIDIA GPU, beside torch and nvidia-smi.

Needs Python, pytest, pynvml, torch and the agent, and no network. ``python -m tests.gpu.report`` runs all of it.
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
LOAD = Path(__file__).with_name("load.py")
HOLD, COMPUTE = 4096, 8.0
MIB = 1 << 20

pytestmark = pytest.mark.gpu

SAMPLER = """
import os, sys
from jupyter_amltrain.agent.telemetry import sampler
sys.exit(sampler.run(sys.argv[1], os.getppid(), [sys.argv[2]], int(sys.argv[3])))
"""

#: A second between two samples, as in a run; the first ones also measure what each call costs.
COST = """
import json, sys, time
from jupyter_amltrain.agent.telemetry import sampler
from jupyter_amltrain.agent.telemetry.gpu_figures import GpuFigures
from jupyter_amltrain.agent.telemetry.gpu_slow import SlowMetrics
readings, note = sampler.find_gpus([sys.argv[1]], None, None)
figures, seldom, cpu, wall = GpuFigures(readings), SlowMetrics(readings), [], []
for tick in range(25):
    time.sleep(1.0 if tick > 4 else 0.2)
    c, w = time.thread_time(), time.perf_counter()
    readings.read(); figures.read(); seldom.read(1.0, ())
    if tick > 4:
        cpu.append(1000 * (time.thread_time() - c)); wall.append(1000 * (time.perf_counter() - w))
print(json.dumps({"cpu": cpu, "wall": wall, "sources": figures.sources(0)}))
"""


def until(check: Callable[[], Any], what: str, deadline: float = 60.0) -> Any:
    end = time.monotonic() + deadline
    while not (value := check()):
        assert time.monotonic() < end, f"waited {deadline} s for {what}"
        time.sleep(0.02)
    return value


@pytest.fixture(scope="module")
def device() -> tuple[Any, str]:
    """Handle and UUID of the first GPU of the driver."""
    pynvml = pytest.importorskip("pynvml", reason="no pynvml on this machine")
    try:
        pynvml.nvmlInit()
        if not pynvml.nvmlDeviceGetCount():
            pytest.skip("no NVIDIA GPU on this machine")
    except pynvml.NVMLError:
        pytest.skip("no NVIDIA GPU on this machine")
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    return handle, uuid.decode() if isinstance(uuid, bytes) else uuid


@pytest.fixture(scope="module")
def gpu(device: tuple[Any, str]) -> tuple[Any, str]:
    """The same, where torch can use it."""
    torch = pytest.importorskip("torch", reason="no torch on this machine")
    if not torch.cuda.device_count():
        pytest.skip("torch finds no GPU")
    return device


def report(what: str, text: str) -> None:
    """Print a finding, and add it to the file of :mod:`tests.gpu.report`."""
    print(f"\n{what}: {text}")
    if path := os.environ.get("AMLTRAIN_GPU_REPORT"):
        with open(path, "a") as file:
            file.write(json.dumps([what, text]) + "\n")


class Watched:
    """A script under our sampler, and what the sampler has written."""

    def __init__(self, folder: Path, uuid: str, *words: str, script: Path = LOAD) -> None:
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
        self.load = subprocess.Popen(
            [sys.executable, str(script), *words],
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
    assert facts["uuid"] == gpu[1] and facts["baseline"] is not None
    held = watched.step()
    rows = watched.rows_after(held["t"] + 1, 2)
    ours = rows[-1]["memory"] * MIB
    report("memory in use", f"torch {held['used'] / MIB:.0f} MiB, ours {ours / MIB:.0f} MiB")
    assert ours == pytest.approx(held["used"], rel=0.02)
    grown = ours - facts["baseline"] * MIB
    assert grown >= held["reserved"] and grown >= HOLD * MIB
    if shutil.which("nvidia-smi"):
        theirs = smi(gpu[1])
        now = watched.rows()[-1]
        own = [now[name] for name in ("memory", "util", "temperature", "sm_clock", "power")]
        report("memory, utilization, °C, MHz, W", f"nvidia-smi {theirs}, ours {own}")
        assert now["memory"] == pytest.approx(theirs[0], rel=0.02)
        assert theirs[2] != theirs[2] or now["temperature"] == pytest.approx(theirs[2], abs=4)

    begins, ends = watched.step(), watched.report()
    rows = watched.rows_after(ends["t"] + 3, 1)
    seen = [row["t"] - begins["t"] for row in rows_between(watched, begins["t"], ends["t"]) if (row["peak"] or 0) >= 50]
    report("first use seen", f"after {seen[0]:.2f} s" if seen else "never")
    assert seen and seen[0] <= 2.0
    busy = rows_between(watched, begins["t"] + 2, ends["t"])
    assert statistics.mean(row["util"] for row in busy) >= 80
    assert watched.rows()[-1]["util"] <= 5
    activity = [row.get("sm_activity") for row in busy if row.get("sm_activity") is not None]
    middle = busy[len(busy) // 2]
    report("a matrix product", ", ".join(f"{name} {middle[name]}" for name in head["gpu_columns"]))
    assert not activity or statistics.mean(activity) >= 50  # GPM: Hopper and newer
    after = watched.rows()[-1]
    assert (after.get("sm_activity") or 0) <= 10, "it falls with the utilization"

    whose = [row for line in watched.lines() if "processes" in line for row in line["processes"]]
    report("processes", f"{whose or 'none listed'}; the load is {watched.load.pid}")
    assert all((row[2] == "mine") == (row[1] == watched.load.pid) for row in whose)
    watched.close()
    summary = json.loads((watched.folder / "telemetry" / "summary-0.json").read_text())["gpus"][0]
    sources = {name: summary[name] for name in summary if name.endswith("_source")}
    report("energy and sources", f"{summary['energy_wh']} Wh, {sources}")
    assert summary["energy_wh"] > 0 and summary["memory_peak"] * MIB >= held["used"] * 0.98
    assert summary["first_use"] is not None
    truth = json.loads((watched.folder / "telemetry" / "truth-0.json").read_text())
    report("verdict", f"{truth['verdict']}: {truth['detail']}")
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
    report("age of a tick in the file", f"median {1000 * statistics.median(ages):.0f} ms, n={len(ages)}")
    assert len(ages) >= 6 and statistics.median(ages) < 0.5


COPY = """
import sys, time, torch
sys.stdin.readline()
host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
there = torch.empty_like(host, device="cuda")
print("{}", flush=True)
end = time.time() + 6
while time.time() < end:
    there.copy_(host, non_blocking=True)
    torch.cuda.synchronize()
print("{}", flush=True)
sys.stdin.readline()
"""


def script(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "script.py"
    path.write_text(text)
    return path


def test_real_gpu_copies_are_not_computing(tmp_path: Path, gpu: tuple[Any, str]) -> None:
    watched = Watched(tmp_path / "run", gpu[1], script=script(tmp_path, COPY))
    try:
        watched.step()
        begin = time.time()
        watched.report()
        rows = rows_between(watched, begin + 2, time.time() - 1)
        names = ("util", "sm_activity", "pcie_rx")
        report("copies to the GPU", f"{ {name: [row.get(name) for row in rows] for name in names} }")
        if any(row.get("sm_activity") is not None for row in rows):
            assert max(row["sm_activity"] or 0 for row in rows) <= 5
        watched.close()
        summary = json.loads((watched.folder / "telemetry" / "summary-0.json").read_text())["gpus"][0]
        truth = json.loads((watched.folder / "telemetry" / "truth-0.json").read_text())
        report("verdict on copies", f"{truth['detail']}; only copying {summary['copy_share']} of the time")
    finally:
        watched.close()


#: A write far outside of the memory with CuPy, else a failed assertion of a kernel of torch.
FAULT = """
import sys
sys.stdin.readline()
try:
    import cupy
except ImportError:
    import torch
    torch.zeros(2, device="cuda")[torch.tensor([5], device="cuda")].cpu()
else:
    code = 'extern "C" __global__ void f(int* p) { p[1LL << 36] = 1; }'
    cupy.RawKernel(code, "f")((1,), (1,), (cupy.zeros(1, dtype="i4"),))
    cupy.cuda.Device().synchronize()
"""


def test_real_gpu_fault_is_reported(tmp_path: Path, gpu: tuple[Any, str]) -> None:
    watched = Watched(tmp_path / "run", gpu[1], script=script(tmp_path, FAULT))
    path = watched.folder / "telemetry" / "gpu-incidents-0.json"
    try:
        assert watched.load.stdin is not None
        watched.load.stdin.write("\n")
        watched.load.stdin.flush()
        assert watched.load.wait(120)
        found = until(
            lambda: (
                [one for one in json.loads(path.read_text()).get("errors", ()) if one["kind"] == "xid"]
                if path.exists()
                else None
            ),
            "an Xid",
            15,
        )
        report("Xid of a faulty kernel", str([one["number"] for one in found]))
        assert found[0]["number"] in (13, 31, 43)
    finally:
        watched.close()


HOLD_ONLY = """
import os, sys, time
if len(sys.argv) > 1:
    os.setgroups([]); os.setresgid(*3 * [int(sys.argv[1])]); os.setresuid(*3 * [int(sys.argv[1])])
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
assert not cuda.cuInit(0)
assert not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
assert not cuda.cuCtxSetCurrent(context)
assert not cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(2 << 30))
print("holds", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("uid", [None, 65534])
def test_real_gpu_other_process_is_listed(tmp_path: Path, gpu: tuple[Any, str], uid: int | None) -> None:
    if uid is not None and os.geteuid() != 0:
        pytest.skip("another user's process needs root")
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu[1]}
    words = [sys.executable, "-S", "-c", HOLD_ONLY, *([str(uid)] if uid else [])]
    other = subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, text=True, cwd="/")
    watched = None
    try:
        assert other.stdout is not None and other.stdout.readline() == "holds\n", "it has no memory on the GPU"
        watched = Watched(tmp_path / "run", gpu[1], "64", "1")

        def listed() -> Any:
            rows = [row for line in watched.lines()[1:] if "processes" in line for row in line["processes"]]
            return [row for row in rows if row[1] == other.pid]

        row = until(listed, "the other process in the list", 20)[-1]
        report("a process of " + ("another user" if uid else "ours beside the run"), str(row))
        assert row[2] == "other" and row[3] >= 2048
    finally:
        other.kill()
        other.wait()
        if watched is not None:
            watched.close()


def test_real_gpu_sample_cost_is_small(device: tuple[Any, str]) -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", COST, device[1]]
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    found = json.loads(done.stdout)
    text = "median {:.3f} ms, mean {:.3f}, max {:.3f}"
    cpu, wall = (text.format(statistics.median(x), statistics.mean(x), max(x)) for x in (found["cpu"], found["wall"]))
    report("one sample, everything included", f"CPU {cpu}; wall {wall}")
    report("sources", str(found["sources"]))


#: Calls of the sampler, those that it avoids where they are dear, and their arguments after the device.
CALLS: dict[str, tuple[Any, ...]] = {
    "nvmlDeviceGetUtilizationRates": (),
    "nvmlDeviceGetMemoryInfo": (),
    "nvmlDeviceGetPowerUsage": (),
    "nvmlDeviceGetTemperature": (0,),
    "nvmlDeviceGetClockInfo": (1,),
    "nvmlDeviceGetCurrentClocksThrottleReasons": (),
    "nvmlDeviceGetComputeRunningProcesses": (),
    "nvmlDeviceGetTotalEccErrors": (1, 0),
    "nvmlDeviceGetSamples": (1, 0),
    "nvmlDeviceGetTotalEnergyConsumption": (),
    "nvmlDeviceGetViolationStatus": (0,),
    "nvmlDeviceGetProcessUtilization": (0,),
    "nvmlDeviceGetFieldValues": ([138, 139, 197, 198],),
}


def test_real_gpu_cost_of_calls(device: tuple[Any, str]) -> None:
    import pynvml

    times = {}
    for name, arguments in CALLS.items():
        function, spent, error = getattr(pynvml, name, None), [], ""
        for _ in range(15 if function else 0):
            begin = time.thread_time()
            try:
                function(device[0], *arguments)
            except pynvml.NVMLError as refused:
                error = f" (NVML {refused.value})"
            spent.append(1e6 * (time.thread_time() - begin))
        if spent:
            times[name.removeprefix("nvmlDeviceGet")] = f"{statistics.median(spent):.0f}{error}"
    report("CPU of a call, us", ", ".join(f"{name} {text}" for name, text in times.items()))
    assert len(times) >= 10


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
