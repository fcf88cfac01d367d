"""What NVML says of this machine's GPUs, asked in a short-lived child.

NVML is never initialized in a process that forks and lives on: a dispatcher that holds
the driver open would keep a GPU from being reset and would fork with its threads.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

LIBRARY = "libnvidia-ml.so.1"
#: Seconds that a probe may take; a broken driver answers never.
PATIENCE = 20.0


def attempt(call: Callable[..., Any], *args: Any) -> Any:
    """What a call gives; ``None`` where the board, driver or instance cannot (MIG, vGPU, old boards)."""
    try:
        return call(*args)
    except Exception:  # NVML's own errors, and what a binding without the function raises
        return None


def as_text(value: Any) -> Optional[str]:
    """NVML's text, which older bindings give as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def library() -> Tuple[Any, str]:
    """The module pynvml (``None`` without it or without a driver), and why it cannot be used."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return None, "no NVIDIA driver (%s is not here)" % LIBRARY
    try:
        import pynvml
    except ImportError:
        return None, "the agent was packed without pynvml: pip install nvidia-ml-py"
    return pynvml, ""


def read_gpus() -> Dict[str, Any]:
    """``{"gpus": [...], "note": str}`` of this machine, by initializing NVML here.

    Each GPU is ``{"index", "name", "uuid", "memory_total", "memory_used", "processes":
    [{"pid", "memory"}] | None, "driver", "cuda"}``; bytes and versions; ``None`` where the device cannot tell.
    """
    pynvml, why = library()
    if pynvml is None:
        return {"gpus": [], "note": why}
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except Exception as error:  # a broken driver may raise what ctypes raises, too
        return {"gpus": [], "note": "NVML does not work here: %s" % error}
    gpus: List[Dict[str, Any]] = []
    for index in range(count):
        device = attempt(pynvml.nvmlDeviceGetHandleByIndex, index)
        uuid = None if device is None else as_text(attempt(pynvml.nvmlDeviceGetUUID, device))
        if uuid is None:  # lost from the bus: nobody can be given it
            continue
        memory = attempt(pynvml.nvmlDeviceGetMemoryInfo, device)
        running = attempt(pynvml.nvmlDeviceGetComputeRunningProcesses, device)
        gpus.append(
            {
                "index": index,
                "name": as_text(attempt(pynvml.nvmlDeviceGetName, device)) or "GPU",
                "uuid": uuid,
                "memory_total": None if memory is None else int(memory.total),
                "memory_used": None if memory is None else int(memory.used),
                "processes": None
                if running is None
                else [{"pid": int(p.pid), "memory": p.usedGpuMemory} for p in running],
            }
        )
    from .driver_version import versions

    told = versions(pynvml)
    for gpu in gpus:
        gpu.update(told)
    attempt(pynvml.nvmlShutdown)
    return {"gpus": gpus, "note": "" if gpus else "the NVIDIA driver is here and knows no GPU"}


def start_probe() -> Tuple[int, int]:
    """Fork a child that runs :func:`read_gpus`; its pid and the pipe with the JSON answer."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        os.set_blocking(reader, False)
        return pid, reader
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        if writer != 3:
            os.dup2(writer, 3)
        os.closerange(4, 4096)
        answer = json.dumps(read_gpus()).encode()
        while answer:
            answer = answer[os.write(3, answer) :]
    finally:
        os._exit(0)


def parse_probe(data: bytes) -> Dict[str, Any]:
    """The answer of a probe; a child that died gives a note."""
    try:
        value = json.loads(data.decode())
    except ValueError:
        return {"gpus": [], "note": "NVML did not answer within %g s" % PATIENCE}
    return value if isinstance(value, dict) else {"gpus": [], "note": "NVML gave no answer"}


def preload() -> None:
    """Import pynvml here (its import touches no driver), so that later probes need not."""
    if "pynvml" not in sys.modules:
        try:
            import pynvml  # noqa: F401
        except ImportError:
            pass
