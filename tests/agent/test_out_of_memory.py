"""CUDA's out-of-memory errors: messages as several versions of the frameworks have written them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_amltrain.agent.supervise.out_of_memory import CudaOom, last_oom, parse
from tests.fakes import driver as fake
from tests.fakes.driver import Process, SwitchableDriver

from .conftest import Agent
from .test_gpu_causes import Job, driver, job  # noqa: F401

MIB, GIB = 1 << 20, 1 << 30

# Texts from public issue reports; the name of the report follows each.
TORCH_1_0 = (  # pytorch#16417
    "RuntimeError: CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total capacity; "
    "8.57 MiB already allocated; 9.28 GiB free; 4.68 MiB cached)"
)
TORCH_1_8 = (  # MADDoG#11
    "RuntimeError: CUDA out of memory. Tried to allocate 2.87 GiB (GPU 0; 14.76 GiB total capacity; 8.77 GiB "
    "already allocated; 19.75 MiB free; 13.71 GiB reserved in total by PyTorch)"
)
TORCH_2_0 = (  # One-2-3-45#25
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.69 GiB (GPU 0; 14.56 GiB total capacity; "
    "649.97 MiB already allocated; 1.31 GiB free; 1.01 GiB reserved in total by PyTorch) If reserved memory is >> "
    "allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management "
    "and PYTORCH_CUDA_ALLOC_CONF"
)
TORCH_2_1_NO_PIDS = (  # MGFN#35: the driver lists no processes
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.70 GiB. GPU 0 has a total capacty of 6.00 "
    "GiB of which 0 bytes is free. Of the allocated memory 2.93 GiB is allocated by PyTorch, and 2.30 GiB is reserved "
    "by PyTorch but unallocated. If reserved but unallocated memory is large try setting max_split_size_mb to avoid "
    "fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
)
TORCH_2_1_CONTAINER = (  # GenerateU#10: the process does not find itself by its pid
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 496.00 MiB. GPU 0 has a total capacty of "
    "14.75 GiB of which 235.06 MiB is free. Process 20398 has 14.52 GiB memory in use. Of the allocated memory 14.06 "
    "GiB is allocated by PyTorch, and 330.42 MiB is reserved by PyTorch but unallocated. If reserved but unallocated "
    "memory is large try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management "
    "and PYTORCH_CUDA_ALLOC_CONF"
)
TORCH_2_1 = (  # pytorch#99699
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 138.00 MiB.\n"
    "GPU 0 has a total capacty of 15.90 GiB of which 8.44 MiB is free.\n"
    "Process 1246069 has 577.00 MiB memory in use. Including non-PyTorch memory,\n"
    "this process has 15.32 GiB memory in use. Of the allocated memory\n"
    "14.12 GiB is allocated by PyTorch, and 410.41 MiB is reserved\n"
    "by PyTorch but unallocated. If reserved but unallocated memory is large\n"
    "try setting max_split_size_mb to avoid fragmentation.  See documentation\n"
    " for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
)
TORCH_2_5 = (  # echomimic_v2#115
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.22 GiB. GPU 0 has a total capacity of 15.69 GiB "
    "of which 3.71 GiB is free. Including non-PyTorch memory, this process has 11.14 GiB memory in use. Of the "
    "allocated memory 10.14 GiB is allocated by PyTorch, and 771.43 MiB is reserved by PyTorch but unallocated. If "
    "reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation.  See documentation for Memory Management  "
    "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
TORCH_2_9_RANKS = (  # keys_values#92
    "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 572.00 MiB. GPU 0 has a total capacity of "
    "39.49 GiB of which 321.31 MiB is free. Process 3721648 has 414.00 MiB memory in use. Including non-PyTorch "
    "memory, this process has 37.46 GiB memory in use. Process 1374765 has 414.00 MiB memory in use. Process 1374763 "
    "has 414.00 MiB memory in use. Process 1374764 has 414.00 MiB memory in use. Of the allocated memory 36.04 GiB is "
    "allocated by PyTorch, and 321.37 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory "
    "is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for "
    "Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
ACCELERATOR = (  # Wan2GP#1083
    "torch.AcceleratorError: CUDA error: out of memory\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)
JAX = (  # alphafold#1023
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 7406166528 bytes."
)
JAX_0_7 = (
    "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 200.00GiB."  # our H100
)
CUPY = (  # cupy/cuda/memory.pyx
    "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 107,374,182,400 bytes (allocated so far: 512 bytes)."
)
TENSORFLOW = (  # tensorflow#52041
    "tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution error:\n\n"
    "OOM when allocating tensor with shape[256,64,224,224] and type float on "
    "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc\n\t [[{{node model/conv/Conv2D}}]]\n"
)
CHILD_FAILED = (  # LlamaFactory#6827
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
    "============================================================\n"
    "launcher.py FAILED\n"
)
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    x = model(batch)\n'


def figures(oom: CudaOom | None) -> tuple[object, ...]:
    """Sizes in GiB, rounded, in the order: tried, total, free, own, others."""
    assert oom is not None

    def gib(size: int | None) -> float | None:
        return None if size is None else round(size / GIB, 2)

    return gib(oom.tried), gib(oom.total), gib(oom.free), gib(oom.own), {p: gib(s) for p, s in oom.others.items()}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (TORCH_1_0, (0.01, 10.92, 9.28, 0.01, {})),
        (TORCH_1_8, (2.87, 14.76, 0.02, 13.71, {})),
        (TORCH_2_0, (1.69, 14.56, 1.31, 1.01, {})),
        (TORCH_2_1_NO_PIDS, (1.7, 6.0, 0.0, 5.23, {})),
        (TORCH_2_1_CONTAINER, (0.48, 14.75, 0.23, 14.52, {})),
        (TORCH_2_1, (0.13, 15.9, 0.01, 15.32, {1246069: 0.56})),
        (TORCH_2_5, (4.22, 15.69, 3.71, 11.14, {})),
        (TORCH_2_9_RANKS, (0.56, 39.49, 0.31, 37.46, dict.fromkeys((3721648, 1374765, 1374763, 1374764), 0.4))),
        (ACCELERATOR, (None, None, None, None, {})),
        (JAX, (6.9, None, None, None, {})),
        (JAX_0_7, (200.0, None, None, None, {})),
        (CUPY, (100.0, None, None, None, {})),
        (TENSORFLOW, (3.06, None, None, None, {})),
    ],
    ids=[
        "1.0",
        "1.8",
        "2.0",
        "2.1-no-pids",
        "2.1-container",
        "2.1",
        "2.5",
        "2.9-ranks",
        "accelerator",
        "jax",
        "jax-0.7",
        "cupy",
        "tensorflow",
    ],
)
def test_oom_message_of_torch_version_is_parsed(message: str, expected: tuple[object, ...]) -> None:
    assert figures(last_oom(f"step 1\n{TRACEBACK}{message}\n")) == expected
    # A launcher reports after it.
    assert figures(last_oom(f"{TRACEBACK}{message}\n\n{TRACEBACK}{CHILD_FAILED}")) == expected


def test_oom_impossible_size_is_dropped() -> None:
    """Under WSL2 the driver tells sizes of processes that are none."""
    message = TORCH_2_5.replace("this process has 11.14", "this process has 17179869184.00")
    oom = parse(message)
    assert oom.own is not None and oom.own < 12 * GIB


def test_oom_caught_error_is_not_cause() -> None:
    log = f"{TRACEBACK}{TORCH_2_5}\ntrying a smaller batch\n{TRACEBACK}ValueError: no such file\n"
    assert last_oom(log) is None
    assert last_oom("the paper on RuntimeError: CUDA out of memory is nice\n") is None
    assert last_oom("") is None


@given(st.text(max_size=400), st.integers(0, 1500))
def test_oom_damaged_message_is_parsed_without_error(noise: str, cut: int) -> None:
    for message in (TORCH_1_8, TORCH_2_9_RANKS, JAX):
        last_oom(TRACEBACK + message[:cut] + noise)
        parse(noise + message[cut:])


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process of somebody else, for the driver's list."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.mark.thorough
def test_oom_names_process_holding_memory(
    job: Job,  # noqa: F811
    driver: SwitchableDriver,  # noqa: F811
    stranger: subprocess.Popen[bytes],
) -> None:
    run = job.start(gpu_grace=60)
    driver.processes(0, [Process(stranger.pid, 577 * MIB)])
    job.ticked(run, 12)
    stranger.kill()  # it may be gone by the time somebody asks
    driver.processes(0, [])
    job.ticked(run, 12)
    text = f"{TRACEBACK}{TORCH_2_1}".replace("1246069", str(stranger.pid)).replace("577.00 MiB", "1.50 GiB")
    state = job.end(run, f"print({text!r}); sys.exit(1)")
    message = state["cause"]["text"]
    assert state["cause"]["kind"] == "cuda-oom" and "CUDA out of memory on GPU 0" in message
    for part in ("138.0 MiB", "8.4 MiB of 15.9 GiB", "15.3 GiB", f"pid {stranger.pid}", "1.5 GiB", "python"):
        assert part in message, (part, message)
    import pwd

    assert pwd.getpwuid(os.getuid()).pw_name in message
    assert "without other processes" in state["cause"]["action"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("message", "word"), [(TORCH_2_1_NO_PIDS, "expandable_segments"), (TORCH_2_5, "batch")], ids=["pieces", "full"]
)
def test_oom_action_follows_figures(job: Job, message: str, word: str) -> None:  # noqa: F811
    run = job.start()
    state = job.end(run, f"print({message!r}); sys.exit(1)")
    assert word in state["cause"]["action"] and "GPU 0" in state["cause"]["text"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("message", "requested", "word"),
    [(JAX_0_7, "200.0 GiB", "whole GPU"), (CUPY, "100.0 GiB", "whole GPU"), (TENSORFLOW, "3.1 GiB", "batch")],
    ids=["jax", "cupy", "tensorflow"],
)
def test_oom_without_figures_has_those_of_the_readings(
    job: Job,  # noqa: F811
    driver: SwitchableDriver,  # noqa: F811
    message: str,
    requested: str,
    word: str,
) -> None:
    run = job.start(gpu_grace=60)
    driver.set(0, memory=(80 * GIB, 0, 78 * GIB))
    job.ticked(run, 3)
    cause = job.end(run, f"print({message!r}); sys.exit(1)")["cause"]
    assert cause["kind"] == "cuda-oom" and word in cause["action"]
    for part in (f"{requested} more was requested", "2.0 GiB of 80.0 GiB was free", "this run held 78.0 GiB"):
        assert part in cause["text"], (part, cause["text"])


def test_oom_gpu_index_is_of_machine(agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process sees its only GPU as number 0."""
    monkeypatch.setenv("AMLTRAIN_SAMPLE_PERIOD", "0.1")
    machine = fake.needed(tmp_path, gpus=2).use(monkeypatch)
    machine.processes(0, [Process(1, GIB)])  # of the first process of the machine: GPU 0 is taken
    job = Job(agent, machine, tmp_path)  # noqa: F811
    state = job.end(job.start(), f"print({TORCH_2_5!r}); sys.exit(1)")
    assert "GPU 1" in state["cause"]["text"]


def test_completed_run_with_oom_in_log_has_no_cause(job: Job) -> None:  # noqa: F811
    state = job.end(job.start(), f"print({TORCH_2_5!r})")
    assert state["state"] == "completed" and "cause" not in state
