"""One sample of 1, 8 and 64 GPUs: CPU, NVML calls and bytes, against nvitop and plain pynvml.

All three read the same fake driver in the same process, in turn. First its calls cost what a recorded H100 took, then
next to nothing, which shows what our own code takes.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.timing import interleaved, line, verdict
from tests.agent.scripted_sampler import UUIDS, ScriptedSampler
from tests.fakes import nvml
from tests.fakes.nvml import h100

OURS, RAW, NVITOP, WHOLE = "our sample", "plain pynvml, same readings", "nvitop Device.as_snapshot", "our whole tick"
#: All that a tick does for GPUs, without the processes and the files of the host.
PART = "our sample with all figures"
#: Without what is asked of a few GPUs a tick: clocks, limits, errors, energy and processes.
EACH = "our readings of each tick"
ROUNDS, TICKS, WARM = 120, 600, 20
#: CPU of ``Device.as_snapshot`` of nvitop for the recorded GPU.
NVITOP_H100_MS = 11.2
HOST = 9


def curves(count: int, seconds: int) -> list[str]:
    """GPUs in training."""
    dice = random.Random(1)
    return [
        f"{gpu} {t} {dice.randint(88, 100)} {61000 + gpu + t // 30 * 7} {dice.uniform(550, 680):.1f}"
        f" {dice.randint(58, 64)} {dice.randrange(1700, 1980, 15)} 95 93 14 90 25 6 15"
        for gpu in range(count)
        for t in range(seconds)
    ]


def plain(pynvml: Any, count: int) -> Callable[[int], list[Any]]:
    """The same readings as ours, as one writes them with pynvml."""
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    since = [0] * count

    def read(number: int) -> list[Any]:
        values: list[Any] = []
        for i, handle in enumerate(handles):
            kind = pynvml.NVML_GPU_UTILIZATION_SAMPLES
            samples = pynvml.nvmlDeviceGetSamples(handle, kind, since[i])[1]
            since[i] = max(sample.timeStamp for sample in samples)
            utils = [sample.sampleValue.uiVal for sample in samples]
            values += [int(sum(utils) / len(utils) + 0.5), max(utils)]
            values.append(pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2).used >> 20)
            values.append(int(pynvml.nvmlDeviceGetPowerUsage(handle) / 1000 + 0.5))
            values.append(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
            values.append(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
            if (i + number) % 5 == 0:  # what changes seldom, as often as we
                pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)
                pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
                pynvml.nvmlDeviceGetTotalEccErrors(handle, 1, 0)
                pynvml.nvmlDeviceGetEnforcedPowerLimit(handle)
                pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return values

    return read


def probe(count: int, clock: Path, folder: str, rounds: int) -> dict[str, Any]:
    """Measure, in a process that has the fake driver."""
    import ctypes

    import pynvml
    from nvitop import Device

    from jupyter_amltrain.agent import protocol
    from jupyter_amltrain.agent.telemetry import sampler
    from jupyter_amltrain.agent.telemetry.gpu_figures import GpuFigures
    from jupyter_amltrain.agent.telemetry.gpu_slow import SlowMetrics

    now = [1.0]
    protocol.mono = lambda: now[0]  # type: ignore[assignment]  # a second between two samples of each, as in a run
    uuids = UUIDS[:count]
    nvml.set_clock(clock, 1.0)
    readings, _ = sampler.find_gpus(uuids, None, None)
    each, _ = sampler.find_gpus(uuids, None, None)
    seldom = SlowMetrics(readings)
    devices = Device.all()
    whole = sampler.Sampler(folder, os.getpid(), 1.0, uuids)
    raw = plain(pynvml, count)
    counter = pynvml.nvmlLib.amltrain_fake_calls
    counter.restype = ctypes.c_ulonglong
    number = dict.fromkeys((EACH, OURS, PART, RAW, NVITOP, WHOLE), 1)
    full, _ = sampler.find_gpus(uuids, None, None)
    full_seldom, full_figures = SlowMetrics(full), GpuFigures(full)
    calls: dict[str, list[int]] = {}
    pcie: dict[str, int] = {}
    seen: dict[str, list[Any]] = {}

    def ours() -> list[Any]:
        values = readings.read()
        seldom.read(1.0, ())
        return values

    def all_figures() -> list[Any]:
        values = full.read()
        full_seldom.read(1.0, ())
        full_figures.read()
        return values

    def timed(name: str, read: Callable[[], Any]) -> Callable[[], float]:
        def one() -> float:
            number[name] += 1  # a second after its own last sample
            nvml.set_clock(clock, number[name] + 0.95)
            now[0] = number[name] + 0.95
            before, pci = counter(None), counter(b"nvmlDeviceGetPcieThroughput")
            start = time.thread_time()
            seen[name] = read()
            spent = time.thread_time() - start
            calls.setdefault(name, []).append(counter(None) - before)
            pcie[name] = pcie.get(name, 0) + counter(b"nvmlDeviceGetPcieThroughput") - pci
            return spent * 1000

        return one

    contenders = {
        EACH: timed(EACH, each.read),
        OURS: timed(OURS, ours),
        PART: timed(PART, all_figures),
        RAW: timed(RAW, lambda: raw(number[RAW])),
        NVITOP: timed(NVITOP, lambda: [device.as_snapshot() for device in devices]),
        WHOLE: timed(WHOLE, whole.tick),
    }
    for _ in range(WARM):  # the first of each also opens and asks everything, and measures what the calls cost
        for name in contenders:
            contenders[name]()
    calls.clear()
    pcie.clear()
    for name in contenders:
        contenders[name]()
    assert seen[EACH] == seen[OURS]
    if not os.environ.get("AMLTRAIN_FAKE_NVML_PRICES"):  # where it is a mean by GPM
        assert seen[OURS] == seen[RAW], "the same readings"
        assert [s.gpu_utilization for s in seen[NVITOP]] == seen[OURS][0::6]
    figures = interleaved(contenders, rounds)
    return {"figures": figures, "calls": {k: statistics.mean(v) for k, v in calls.items()}, "pcie": pcie}


def measure(count: int, rounds: int, **environ: str) -> tuple[dict[str, Any], float]:
    """Figures of the probe; bytes on disk per GPU and tick."""
    with tempfile.TemporaryDirectory() as name:
        stage = ScriptedSampler(Path(name))
        stage.switch(GPUS=count)
        del stage.environ["AMLTRAIN_FAKE_NVML_CALLS"]  # counted in the process: a shared file would cost time
        stage.curves(curves(count, max(ROUNDS + WARM + 10, TICKS)))
        done = subprocess.run(
            [
                *(sys.executable, "-m", "benchmarks.gpu_sample"),
                *(str(count), str(stage.folder / "clock"), str(stage.run), str(rounds)),
            ],
            env={**os.environ, **stage.environ, "LD_LIBRARY_PATH": str(nvml.build()), **environ},
            stdout=subprocess.PIPE,
            text=True,
            timeout=300,
            check=True,
        )
        files = list((stage.run / "telemetry").glob("*"))
        for path in files:
            path.unlink()
        if environ:  # what a real GPU did, again and again
            stage.curves([line for start in range(0, TICKS, 47) for line in h100.curves(start)])
        stage.environ.update(environ)
        stage.play([t + 0.37 for t in range(1, TICKS)], sampler=True, uuids=UUIDS[:count])
        rows = len(stage.rows())
        # There is no run: its columns are five times null, in place of some 34 characters; and after a day
        # numbers and counters have six more.
        files = list((stage.run / "telemetry").glob("*.jsonl"))
        size = sum(path.stat().st_size for path in files) + 20 * rows
        return json.loads(done.stdout), size / rows / count


def with_prices() -> None:
    """Print what a sample costs where the calls have the prices of an H100."""
    for count in (1, 8, 64):
        found, size = measure(count, ROUNDS, AMLTRAIN_FAKE_NVML_PRICES=str(h100.PRICES))
        print(f"One sample of {count} GPU{'s' if count > 1 else ''} (CPU of the thread; calls as those of an H100)")
        for name, values in found["figures"].items():
            print(line(name, values, "ms") + f"  {found['calls'][name] / count:5.1f} NVML calls a GPU")
        mean = {name: statistics.mean(values) for name, values in found["figures"].items()}
        each = mean[PART] / count
        print(verdict(f"{count}: CPU of a tick a GPU and second / 0.30 ms", each / 0.3, 1.0) + f"   {each:.3f} ms")
        print(verdict(f"{count}: CPU a GPU / nvitop's on the real H100", each / NVITOP_H100_MS, 0.03))
        print(f"  (nvitop as_snapshot here, where it does not make its dear calls: {mean[OURS] / mean[NVITOP]:.3f})")
        print(verdict(f"{count}: CPU / plain pynvml", mean[OURS] / mean[RAW], 0.12))
        print(verdict(f"{count}: bytes per GPU and tick with all figures / 48", size / 48, 1.0) + f"   {size:.1f} B")


def main() -> None:
    """Print the table."""
    with_prices()
    for count in (8, 64):
        found, size = measure(count, ROUNDS)
        print(f"One sample of {count} GPUs (CPU of the thread; a fake driver whose calls are nearly free)")
        for name, values in found["figures"].items():
            print(line(name, values, "ms") + f"  {found['calls'][name] / count:5.1f} NVML calls a GPU")
        middle = {name: statistics.median(values) for name, values in found["figures"].items()}
        mean_ours = statistics.mean(found["figures"][OURS])
        mean_raw = statistics.mean(found["figures"][RAW])
        print(verdict(f"{count} GPUs: CPU / nvitop as_snapshot", middle[OURS] / middle[NVITOP], 0.05))
        print(verdict("  only the readings of each tick", middle[EACH] / middle[NVITOP], 0.05))
        print(verdict(f"{count} GPUs: CPU / plain pynvml", middle[OURS] / middle[RAW], 0.7))
        print(f"  (means: {mean_ours / mean_raw:.3f} of plain pynvml)")
        print(verdict(f"{count} GPUs: NVML calls / nvitop", found["calls"][OURS] / found["calls"][NVITOP], 0.25))
        print(verdict(f"{count} GPUs: PCIe calls", found["pcie"][OURS] + found["pcie"][WHOLE], 0))
        print(verdict(f"{count} GPUs: bytes on disk per GPU and tick / 48", size / 48, 1.0) + f"   {size:.1f} B")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        json.dump(probe(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])), sys.stdout)
    else:
        main()
