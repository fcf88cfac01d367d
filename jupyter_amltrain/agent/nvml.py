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

from . import driver_state, gpu_sentinels, mig
from .process_lists import ProcessLists, Row, by_pid

LIBRARY = "libnvidia-ml.so.1"
#: Seconds that a probe may take; a broken driver answers never.
PROBE_TIMEOUT_S = 20.0


def probe_timeout_s() -> float:
    """Seconds that a probe may take: ``$AMLTRAIN_NVML_TIMEOUT``, else 20."""
    try:
        return max(0.1, float(os.environ["AMLTRAIN_NVML_TIMEOUT"]))
    except (KeyError, ValueError):
        return PROBE_TIMEOUT_S


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
    """GPUs of this machine and the driver's state (see `driver_state.result`), by initializing NVML here.

    Each GPU is ``{"index", "name", "uuid", "memory_total", "memory_used", "processes":
    [{"pid", "memory"}] | None, "driver", "cuda"}``; bytes and versions; ``None`` where the device cannot tell.
    In place of a GPU that is split by MIG there are its instances, which also have ``mig`` (true), ``parent``,
    ``instance`` (numbers of the GPU and in it), ``parent_uuid``, ``gpu_instance``, ``compute_instance``.
    """
    pynvml, why = library()
    if pynvml is None:
        broken = "pynvml" in why and driver_state.has_hardware()
        return driver_state.result(
            driver_state.BROKEN if broken else driver_state.ABSENT, why, driver_state.NO_BINDING if broken else None
        )
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except Exception as error:  # a broken driver may raise what ctypes raises, too
        return driver_state.failed_init(error)
    gpus: List[Dict[str, Any]] = []
    notes: List[str] = []
    present: List[Dict[str, Any]] = []
    lost: List[Dict[str, Any]] = []
    lists = ProcessLists(lambda name: attempt(pynvml._nvmlGetFunctionPointer, name))
    for index in range(count):
        device, uuid, reason = _identified(pynvml, index)
        if reason or uuid is None:  # nobody can be given it
            name = None if device is None else as_text(attempt(pynvml.nvmlDeviceGetName, device))
            lost.append({"index": index, "name": name, "uuid": uuid, "reason": reason})
            continue
        name = as_text(attempt(pynvml.nvmlDeviceGetName, device)) or "GPU"
        present.append({"index": index, "name": name, "uuid": uuid})
        if not mig.is_split(pynvml, device):
            gpus.append(_facts(pynvml, device, index, uuid, lists.of(device)))
            continue
        # CUDA takes an instance of a split GPU, never the GPU itself.
        parts = mig.parts(pynvml, device, index, count)
        if not parts:
            notes.append(
                "GPU %d is in MIG mode and has no instance, so CUDA cannot use it. Create some with"
                " `nvidia-smi mig -cgi`, or switch MIG off" % index
            )
        for part in parts:
            own = as_text(attempt(pynvml.nvmlDeviceGetUUID, part.handle))
            if own is not None:
                ids = (part.gpu_instance, part.compute_instance)
                rows = lists.of(part.handle, *ids)
                if rows is None and part.gpu_instance is not None:
                    # The GPU lists the processes of all its instances; a row without ids may be of this one.
                    rows = lists.of(device, *ids)
                facts = _facts(pynvml, part.handle, part.number, own, rows)
                facts.update(mig=True, parent=index, instance=part.instance, parent_uuid=uuid)
                facts.update(gpu_instance=part.gpu_instance, compute_instance=part.compute_instance)
                gpus.append(facts)
    from .driver_version import versions

    told = versions(pynvml)
    for gpu in gpus:
        gpu.update(told)
    attempt(pynvml.nvmlShutdown)
    if not gpus and not notes and not lost:
        notes = ["the NVIDIA driver is here and knows no GPU"]
    return driver_state.result(driver_state.WORKS, "; ".join(notes), None, gpus, present, lost)


def _facts(pynvml: Any, device: Any, index: int, uuid: str, rows: Optional[List[Row]]) -> Dict[str, Any]:
    memory = attempt(pynvml.nvmlDeviceGetMemoryInfo, device)
    return {
        "index": index,
        "name": as_text(attempt(pynvml.nvmlDeviceGetName, device)) or "GPU",
        "uuid": uuid,
        "memory_total": None if memory is None else int(memory.total),
        "memory_used": None if memory is None else int(memory.used),
        "processes": None if rows is None else [{"pid": pid, "memory": size} for pid, size in by_pid(rows)],
    }


def _identified(pynvml: Any, index: int) -> Tuple[Any, Optional[str], str]:
    """Handle and UUID of a GPU, as far as the driver gives them, and why it cannot be used (empty: it can)."""
    device: Any = None
    uuid: Optional[str] = None
    try:
        device = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = as_text(pynvml.nvmlDeviceGetUUID(device))
    except Exception as error:
        return device, uuid, driver_state.lost_reason(driver_state.code_of(error), error)
    try:  # a driver may know the name of a GPU that is gone
        pynvml.nvmlDeviceGetMemoryInfo(device)
    except Exception as error:
        code = driver_state.code_of(error)
        if code in driver_state.LOST_CODES:
            return device, uuid, driver_state.lost_reason(code, error)
    return device, uuid, ""


def start_probe() -> Tuple[int, int]:
    """Fork a child that runs :func:`read_gpus`; its pid and the pipe with the JSON answer.

    Raises
    ------
    OSError
        No process or no pipe can be made now.
    """
    reader, writer = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        raise
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


def parse_probe(data: bytes, seconds: float = PROBE_TIMEOUT_S) -> Dict[str, Any]:
    """The answer of a probe; one that ended without is a driver that does not work.

    Parameters
    ----------
    seconds
        How long the probe took.
    """
    try:
        value = json.loads(data.decode())
    except ValueError:
        value = None
    if isinstance(value, dict):
        for gpu in value["gpus"]:
            gpu["memory_total"], gpu["memory_used"] = gpu_sentinels.memory(gpu["memory_total"], gpu["memory_used"])
        return value
    if seconds >= probe_timeout_s():
        note = "NVML did not answer within %g s" % probe_timeout_s()
        return driver_state.result(driver_state.BROKEN, note, driver_state.TOO_SLOW)
    return driver_state.result(driver_state.BROKEN, "NVML crashed", driver_state.NO_ANSWER)


def preload() -> None:
    """Import pynvml here (its import touches no driver), so that later probes need not."""
    if "pynvml" not in sys.modules:
        try:
            import pynvml  # noqa: F401
        except ImportError:
            pass
