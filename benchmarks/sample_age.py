"""How old a sample is when it arrives while a pure-Python cell runs, against a pynvml thread.

Ours is read in a process of its own, written to a file, read by the kernel's background
loop and sent as one binary message; the peer reads with plain pynvml in a thread of the
kernel and sends one comm message. Both kernels run the same cell in turn, 10 samples a
second of 8 fake GPUs whose every call takes 100 us. The peer's age counts from
the beginning of its reading to the arrival at a socket outside the kernel; ours from the
time that the sample bears, which is taken after the reading, and once more with the reading.
"""

from __future__ import annotations

import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.kernels import Kernel, running_kernel
from benchmarks.page import Page
from benchmarks.timing import line, p95, verdict
from tests.conftest import end_all
from tests.fakes import nvml

GPUS, RATE = 8, 10
SECONDS, ROUNDS = 5.0, 4
OURS, PEER = "ours", "a pynvml thread in the kernel"

_CELL = """
import time
end, x = time.monotonic() + {seconds}, 0
while time.monotonic() < end:
    for i in range(1000):
        x += i
"""

_PEER = f"""
import struct, threading, time
import pynvml
from comm import create_comm
pynvml.nvmlInit()
handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range({GPUS})]
pipe = create_comm(target_name="peer")
go = threading.Event()

def sample():
    values = []
    for handle in handles:  # six calls each
        values.append(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        values.append(pynvml.nvmlDeviceGetMemoryInfo(handle).used >> 20)
        values.append(pynvml.nvmlDeviceGetPowerUsage(handle) / 1000)
        values.append(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
        values.append(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
        pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return values

def loop():
    due = time.monotonic()
    while True:
        if not go.is_set():
            go.wait()
            due = time.monotonic()
        begin = time.time()
        values = sample()
        pipe.send({{"peer": 1}}, buffers=[struct.pack("<d%df" % len(values), begin, *values)])
        due = max(due + {1 / RATE}, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))

threading.Thread(target=loop, daemon=True).start()
"""


def reading() -> list[float]:
    """Seconds that our sampler's own reading takes, in its own process; it stamps a tick after it."""
    import time

    from jupyter_amltrain.agent.telemetry import sampler

    readings, _ = sampler.find_gpus(None, None, None)
    found = []
    for _ in range(40):
        begin = time.perf_counter()
        readings.read()
        found.append(time.perf_counter() - begin)
    return found


@contextmanager
def _kernels(environ: dict[str, str], folder: str) -> Iterator[tuple[Kernel, Kernel, str]]:
    """Ours with a run, the peer's with its thread, and the run's handle."""
    with running_kernel(environ, folder) as ours, running_kernel(environ, folder) as peer:
        ours.run("%load_ext jupyter_amltrain")
        ours.run(f"%%aml_submit --gpus {GPUS} --as run\nimport time; time.sleep(600)")
        handle = ours.run("print(run.handle)").strip()
        peer.run(_PEER)
        yield ours, peer, handle


def measure(environ: dict[str, str], folder: str) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Ages in ms, and the share of the due samples that arrived."""
    ages: dict[str, list[float]] = {OURS: [], PEER: []}
    with _kernels(environ, folder) as (ours, peer, handle):
        pages = {OURS: Page(ours), PEER: Page(peer)}
        pages[OURS].open(handle)
        pages[OURS].collect(60, pages[OURS].is_tick)
        for number in range(ROUNDS):
            for name, kernel in ((OURS, ours), (PEER, peer)) if number % 2 else ((PEER, peer), (OURS, ours)):
                page = pages[name]
                if name == PEER:
                    kernel.run("go.set()")
                cell = kernel.client.execute(_CELL.format(seconds=SECONDS + 1.5))
                page.collect(0.5)
                for message in page.collect(SECONDS):
                    wanted = page.is_tick(message) if name == OURS else "peer" in (message.content.get("data") or {})
                    if not wanted:
                        continue
                    data = b"".join(message.buffers)
                    # ours begins with the head of its only part: node, count, first (``kernel/samples.py``)
                    count, begin = (struct.unpack_from("<HHI", data)[1], 8) if name == OURS else (1, 0)
                    for t in struct.unpack_from(f"<{count}d", data, begin):
                        ages[name].append((message.at - t) * 1000)
                while kernel.client.get_shell_msg(timeout=60)["parent_header"].get("msg_id") != cell:
                    pass
                if name == PEER:
                    kernel.run("go.clear()")
        ours.run("run.cancel()")
    due = SECONDS * ROUNDS * RATE
    return ages, {name: len(values) / due for name, values in ages.items()}


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {
            **os.environ,
            "AMLTRAIN_HOME": f"{folder}/home",
            "AMLTRAIN_QUEUE": f"{folder}/queue",
            "AMLTRAIN_DISPATCHER_IDLE": "5",
            "AMLTRAIN_SAMPLE_PERIOD": str(1 / RATE),
            "IPYTHONDIR": f"{folder}/ipython",
            "LD_LIBRARY_PATH": str(nvml.build()),
            "AMLTRAIN_FAKE_NVML_GPUS": str(GPUS),
            "AMLTRAIN_FAKE_NVML_DELAY_US": "100",
        }
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.sample_age", "reading"],
            env=environ,
            stdout=subprocess.PIPE,
            check=True,
            timeout=60,
        )
        own = statistics.median(json.loads(done.stdout)) * 1000
        try:
            ages, share = measure(environ, folder)
        finally:
            end_all(Path(folder) / "home")
    print(f"Age of a sample of {GPUS} GPUs on arrival, {RATE} a second, while a pure-Python cell runs (wall)")
    for name, values in ages.items():
        print(line(name, values, "ms") + f"  p95 {p95(values):.1f}, {share[name]:.0%} of the due ones arrived")
    print(f"  (our reading itself takes {own:.1f} ms)")
    middle = {name: statistics.median(values) for name, values in ages.items()}
    print(verdict("age of a sample / pynvml thread", middle[OURS] / middle[PEER], 0.10))
    print(verdict("the same, with our reading", (middle[OURS] + own) / middle[PEER], 0.10))
    print(verdict("samples that did not arrive / due", max(0.0, 1 - share[OURS]), 0.05))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(reading()))
    else:
        main()
