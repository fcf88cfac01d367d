"""GPUs of a node: a fake libnvidia-ml (tests/fakes/nvml) with a curve that the monitor's answers repeat."""

from __future__ import annotations

import math
import time
from pathlib import Path

from azureml_emulator import sizes
from tests.fakes import nvml

MEMORY = 16 << 10
#: MiB that the driver itself has.
_IDLE_MEMORY = 3
#: Names of environments without a library that computes on GPUs.
_WITHOUT = ("sklearn",)
_STEP = 2.0
_LASTS = 1800.0


def utilization(gpu: int, seconds: float) -> int:
    """Per cent, of a GPU some seconds after its job began: up within five seconds, then slow waves."""
    up = min(1.0, seconds / 5)
    return max(0, min(100, round(up * (80 - 7 * (gpu % 4) + 12 * math.sin(seconds / 20 + gpu)))))


def memory(gpu: int, seconds: float) -> int:
    """MiB used."""
    return round(min(1.0, 0.1 + seconds / 10) * MEMORY * (0.7 - 0.05 * (gpu % 4)))


def can_use(environment: str) -> bool:
    """Whether a job in an environment of this id can use a GPU."""
    return not any(name in environment.lower() for name in _WITHOUT)


def environ(count: int, folder: Path, size: str, *, idle: bool = False) -> dict[str, str]:
    """What makes NVML show so many GPUs to the processes of a node; empty without GPUs or without a C compiler.

    Their name says of which size of machine they are, and that they are none.

    Parameters
    ----------
    idle
        They show no load: the job cannot use them.
    """
    if not count:
        return {}
    try:
        library = nvml.build()
    except RuntimeError:
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    curves = folder / "gpus.txt"
    lines = [f"epoch {time.time():.3f}"]
    for gpu in range(count):
        for step in range(int(_LASTS / _STEP)):
            at = step * _STEP
            load, used = (0, _IDLE_MEMORY) if idle else (utilization(gpu, at), memory(gpu, at))
            lines.append(f"{gpu} {at:g} {load} {used} {40 + 2 * load} {35 + load // 3} {1000 + 4 * load}")
    curves.write_text("\n".join(lines) + "\n")
    return {
        "LD_LIBRARY_PATH": str(library),
        "AMLTRAIN_FAKE_NVML_GPUS": str(count),
        "AMLTRAIN_FAKE_NVML_NAME": f"Fake GPU of {(sizes.find(size) or {}).get('name', size)}",
        "AMLTRAIN_FAKE_NVML_MEMORY": str(MEMORY),
        "AMLTRAIN_FAKE_NVML_CURVES": str(curves),
    }
