"""What GPM, PCIe, NVLink and throttling cost a sampler of 8 GPUs: CPU, NVML calls and bytes a tick.

The driver is the tests' switchable one; its calls look up a text file, so that a real
driver's are cheaper in our process and dearer in its own.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.timing import line
from tests.fakes import driver as fake
from tests.fakes.driver import ALL_ONES_32, GIB, SwitchableDriver

GPUS, TICKS, EVERY = 8, 300, 5

_CHILD = """
import sys, time
from jupyter_amltrain.agent import protocol as clock
from jupyter_amltrain.agent.telemetry import sampler
now = [0.0]
clock.wall = lambda: 1_700_000_040.0 + now[0]
clock.mono = lambda: 1000.0 + now[0]
one = sampler.Sampler(sys.argv[1], None, 1.0, None)
for line in sys.stdin:
    now[0] = float(line)
    start = time.thread_time()
    one.tick()
    print(1000 * (time.thread_time() - start), flush=True)
one.close()
"""


def play(driver: SwitchableDriver, folder: Path, step: int, dice: random.Random, full: bool) -> None:
    """Let GPUs train for some seconds."""
    with driver.changes():
        for gpu in range(GPUS):
            driver.set(
                gpu, utilization=(dice.randint(88, 100), dice.randint(30, 60)), power=dice.randint(550_000, 680_000),
                memory=(80 * GIB, 512 << 20, 61 * GIB), sm_clock=dice.randrange(1700, 1980, 15),
                temperature=dice.randint(58, 64),
            )  # fmt: skip
            if full:
                driver.gpm(gpu, {2: dice.uniform(60, 95), 5: dice.uniform(20, 60), 10: dice.uniform(30, 80)})
                moved = step * dice.randint(9, 11) * GIB
                links = {(138, ALL_ONES_32): moved >> 8, (139, ALL_ONES_32): moved >> 8}
                driver.fields(gpu, {197: moved >> 4, 198: moved, **links})
                driver.violation(gpu, 0, step * dice.randint(1, 9) * 10**8)


def measure(full: bool) -> tuple[list[float], dict[str, int], float]:
    """CPU of each tick (ms), NVML calls and bytes a GPU and tick."""
    with tempfile.TemporaryDirectory() as name:
        driver = SwitchableDriver(Path(name), GPUS)
        folder, dice = Path(name) / "run", random.Random(1)
        (folder / "telemetry").mkdir(parents=True)
        if not full:
            for function in ("nvmlGpm*", "nvmlDeviceGetFieldValues", "nvmlDeviceGetViolationStatus"):
                driver.answer(function, fake.NOT_SUPPORTED)
            driver.answer("nvmlDeviceGetCurrentClocks*", fake.NOT_SUPPORTED)
        play(driver, folder, 0, dice, full)
        process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **driver.environment()},
        )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        spent = []
        for tick in range(1, TICKS + 1):
            if tick % EVERY == 0:
                play(driver, folder, tick, dice, full)
            print(tick, file=process.stdin, flush=True)
            spent.append(float(process.stdout.readline()))
        process.communicate()
        size = sum(path.stat().st_size for path in (folder / "telemetry").glob("*.jsonl"))
        return spent, driver.calls(), size / TICKS / GPUS


def main() -> None:
    """Print the table."""
    print(f"A sampler of {GPUS} GPUs, {TICKS} ticks; without the run's own columns")
    for full, name in ((False, "without figures but memory busy"), (True, "GPM, PCIe, NVLink, throttling")):
        spent, calls, size = measure(full)
        print(line(name, spent, "ms") + f"  mean {statistics.mean(spent):.2f} ms")
        print(f"    {sum(calls.values()) / TICKS / GPUS:.1f} NVML calls and {size:.1f} bytes a GPU and tick")


if __name__ == "__main__":
    main()
