"""Figures of PyTorch's allocator, from the hook in a job's Python to the summary.

A module `torch` of the test's own stands for one with CUDA: only what the hook uses of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent.supervise import hook_table, job_hooks
from jupyter_amltrain.agent.telemetry import torch_hook
from jupyter_amltrain.agent.telemetry.torch_memory import TorchMemory
from tests.fakes import driver as fake
from tests.fakes.driver import SwitchableDriver

from .conftest import Agent, until

MIB = 1 << 20
#: As torch 2.13 has it: calls are kept until CUDA is initialized, and statistics are nested mappings.
TORCH = """
import types
version = types.SimpleNamespace(cuda={cuda!r}, hip=None)
class _Cuda(types.ModuleType):
    calls, ready, sizes = [], False, (0, 0)
    def _lazy_call(self, call, **how):
        call() if self.ready else self.calls.append(call)
    def init(self):
        for call in self.calls: call()
        self.ready = True
    def is_initialized(self): return self.ready
    def device_count(self): return 1
    def get_device_properties(self, at): return types.SimpleNamespace(uuid={uuid!r})
    def memory_stats_as_nested_dict(self, at):
        stat = lambda size: {{"all": {{"current": size, "peak": size, "allocated": size, "freed": 0}}}}
        return {{"allocated_bytes": stat(self.sizes[0]), "reserved_bytes": stat(self.sizes[1]), "num_ooms": 0}}
cuda = _Cuda("torch.cuda")
"""


def write_torch(folder: Path, cuda: str | None = "12.8", uuid: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "torch.py").write_text(TORCH.format(cuda=cuda, uuid=uuid))
    return folder


def python(folder: Path, code: str, *paths: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code in a Python with the hook; its figures lie in ``folder/telemetry``."""
    (folder / "telemetry").mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), **env}
    job_hooks.add(environ, str(folder), str(folder), gpus=True)
    return subprocess.run(
        [sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE, text=True, timeout=60, cwd=folder
    )


def figures(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in (folder / "telemetry").glob("torch-*.json")]


ALLOCATE = f"import torch, time; torch.cuda.init(); torch.cuda.sizes = ({300 * MIB}, {400 * MIB})\n"


def test_torch_memory_after_sudden_end_is_kept(tmp_path: Path) -> None:
    code = ALLOCATE + ("import glob, os\nwhile not glob.glob('telemetry/torch-*.json'): time.sleep(0.01)\nos._exit(7)")
    done = python(tmp_path / "run", code, write_torch(tmp_path / "lib"))
    assert done.returncode == 7
    (found,) = figures(tmp_path / "run")
    assert found["devices"][0]["allocated_peak"] == 300 * MIB and found["devices"][0]["reserved"] == 400 * MIB


def test_torch_memory_of_short_program_is_written_at_end(tmp_path: Path) -> None:
    done = python(tmp_path / "run", ALLOCATE + "raise SystemExit(3)", write_torch(tmp_path / "lib"))
    assert done.returncode == 3 and len(figures(tmp_path / "run")) == 1


THREADS = "import threading; print(sorted(t.name for t in threading.enumerate()))"


@pytest.mark.parametrize(
    ("cuda", "code"),
    [(None, ALLOCATE), ("12.8", "import torch\n"), ("12.8", "import json\n")],
    ids=["cpu-only", "cuda-not-initialized", "no-torch"],
)
def test_torch_memory_without_cuda_is_not_recorded(tmp_path: Path, cuda: str | None, code: str) -> None:
    done = python(tmp_path / "run", code + THREADS, write_torch(tmp_path / "lib", cuda))
    assert done.stdout.strip() == "['MainThread']" and not figures(tmp_path / "run")


def test_torch_hook_imports_nothing_before_torch(tmp_path: Path) -> None:
    code = "import sys; print(sorted(n for n in sys.modules if n in ('torch', 'threading', 'json', 'typing')))"
    without = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert python(tmp_path / "run", code).stdout == without


def test_torch_hook_keeps_other_sitecustomize(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import builtins; builtins.of_other = __file__")
    code = (
        "import sys; print(of_other); print(sys.modules['sitecustomize'].__file__)\n"
        "print([path for path in sys.path if '/hook-' in path])"
    )
    lines = python(tmp_path / "run", code, other).stdout.split()
    assert lines == [str(other / "sitecustomize.py")] * 2 + ["[]"]


def test_torch_hook_with_odd_torch_is_harmless(tmp_path: Path) -> None:
    lib = tmp_path / "lib"
    lib.mkdir()
    for text in ("", "version = None", "class version: cuda = '12'", "raise ImportError('broken build')"):
        (lib / "torch.py").write_text(text)
        done = python(tmp_path / "run", "try: import torch\nexcept ImportError as e: print(e)\nprint('on')", lib)
        assert done.stdout.splitlines() == (["broken build"] if "raise" in text else []) + ["on"]


def test_torch_hook_can_be_disabled(tmp_path: Path) -> None:
    off = {hook.variable: "0" for hook in hook_table.HOOKS if hook.variable}
    env = {**off, "PYTHONPATH": "/x"}
    job_hooks.add(env, str(tmp_path), str(tmp_path), gpus=True)
    assert env["PYTHONPATH"] == "/x" and not list(tmp_path.iterdir())


def test_torch_memory_of_processes_is_combined(tmp_path: Path) -> None:
    folder = tmp_path / "telemetry"
    folder.mkdir()
    gpus = [{"index": 2, "uuid": "GPU-aa-1"}, {"index": 5, "uuid": "GPU-bb-2"}]

    def put(pid: int, visible: str | None, allocated: int, peak: int, device: int = 0, uuid: str = "") -> None:
        row = {"device": device, "uuid": uuid, "allocated": allocated * MIB, "reserved": 2 * allocated * MIB}
        row.update(allocated_peak=peak * MIB, reserved_peak=2 * peak * MIB)
        (folder / f"torch-{pid}.json").write_text(json.dumps({"devices": [row], "visible": visible}))

    put(1, "GPU-aa-1,GPU-bb-2", 100, 150)
    put(2, "GPU-aa-1,GPU-bb-2", 100, 150, device=1)
    put(3, "5", 200, 210)
    put(4, None, 10, 20, uuid="aa-1")
    put(5, "GPU-zz", 1000, 1000)
    (folder / "torch-6.json").write_text('{"devices": [{"device": "x"}, 7]}')
    (folder / "torch-7.json").write_text("[")
    (folder / "torch-8.json").write_text('{"devices": 5, "visible": 7}')
    put(9, "GPU-aa-1", 1 << 40, 1 << 40)
    torch = TorchMemory(str(tmp_path), gpus)
    torch.read({1, 2, 3, 4, 5})
    assert torch.figures(0) == {"torch_allocated_peak": 150, "torch_reserved_peak": 300}
    assert torch.figures(1) == {"torch_allocated_peak": 300, "torch_reserved_peak": 600}
    assert torch.values[0]["torch_allocated"] == 110
    torch.read(set(), final=True)  # they have ended: peaks stay
    assert torch.values[1]["torch_allocated"] == 0 and torch.values[1]["torch_reserved_peak"] == 600
    assert torch.figures(1)["torch_allocated_peak"] == 300


@pytest.mark.thorough
def test_summary_has_allocator_and_driver_memory(agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMLTRAIN_SAMPLE_PERIOD", "0.1")
    driver: SwitchableDriver = fake.needed(tmp_path).use(monkeypatch)
    lib = write_torch(tmp_path / "lib", uuid=driver.uuid(0).partition("-")[2])
    monkeypatch.setenv("PYTHONPATH", str(lib))
    done = tmp_path / "done"
    code = ALLOCATE + f"import os\nwhile not os.path.exists({str(done)!r}): time.sleep(0.01)\nos._exit(0)"
    run = agent.submit("", argv=[sys.executable, "-u", "-c", code], gpus=1)

    def has_figures() -> bool:
        return any(
            "torch_allocated" in change
            for line in agent.telemetry(run)
            if isinstance(line, dict)
            for _, change in line.get("gpu") or ()
        )

    until(has_figures, "figures in the telemetry")
    done.touch()
    assert agent.wait(run)["state"] == "completed"
    summary = json.loads((agent.run_folder(run) / "telemetry" / "summary-0.json").read_text())
    assert summary["gpus"][0]["torch_allocated_peak"] == 300 and summary["gpus"][0]["torch_reserved_peak"] == 400


def test_torch_hook_of_cpu_job_is_absent(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(torch_hook.FOLDER, "/of/an/outer/job")
    run = agent.submit(f"import os; print(os.environ.get({torch_hook.FOLDER!r}))")
    agent.wait(run)
    assert agent.log(run).split() == ["None"]


@pytest.mark.thorough
def test_torch_hook_stop_does_not_delay_exit(tmp_path: Path) -> None:
    begin = time.monotonic()
    code = ALLOCATE + "torch.cuda.memory_stats_as_nested_dict = lambda at: time.sleep(50)\ntime.sleep(1.5)"
    done = python(tmp_path / "run", code, write_torch(tmp_path / "lib"))
    assert done.returncode == 0 and time.monotonic() - begin < 45
