"""Memory of the tracking helpers of ten notebooks that have submitted: right after, and after the idle time."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.kernels import Kernel, running_kernel

#: Notebooks, and seconds without a request after which a helper leaves (the package's own number is 300).
NOTEBOOKS, IDLE_S = 10, 30.0
_MODULE = "jupyter_amltrain.tracking.worker"
#: Imports in the helper what a run's record needs, as a submit does.
_PING = """
from jupyter_amltrain.kernel.session import controller
c = controller()
async def warm():
    await c.imports.worker.request("warm", {})
c.loop.call(warm(), 300)
"""
_SUBMIT = """
from jupyter_amltrain import api
run = api.submit("import mlflow\\nfor i in range(3): mlflow.log_metric('loss', 1 / (i + 1), step=i)", gpus=0)
run.wait(300)
import time
while run.run.tracking == "pending":
    time.sleep(0.1)
print(run.run.tracking)
"""


def _helpers(kernels: list[Kernel]) -> list[psutil.Process]:
    found = []
    for kernel in kernels:
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(kernel.manager.provisioner.pid).children(recursive=True)
            found += [child for child in children if _MODULE in " ".join(child.cmdline())]
    return found


def _memory(processes: list[psutil.Process]) -> tuple[float, float]:
    """PSS and RSS of processes, MiB."""
    pss = rss = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            full = process.memory_full_info()
            pss, rss = pss + full.pss, rss + full.rss
    return pss / 2**20, rss / 2**20


def _print(what: str, processes: list[psutil.Process]) -> None:
    pss, rss = _memory(processes)
    print(f"{what:<34}{len(processes):>3} helpers {pss:>8.0f} MiB PSS {rss:>8.0f} MiB RSS", flush=True)


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        environ = {
            **os.environ,
            "AMLTRAIN_HOME": f"{folder}/home",
            "AMLTRAIN_QUEUE": f"{folder}/queue",
            "AMLTRAIN_DISPATCHER_IDLE": "5",
            "AMLTRAIN_HELPER_IDLE": f"{IDLE_S:g}",
            "IPYTHONDIR": f"{folder}/ipython",
        }
        kernels = []
        for number in range(NOTEBOOKS):
            work = Path(folder, f"work{number}")
            work.mkdir()
            kernels.append(stack.enter_context(running_kernel(environ, str(work))))
            state = kernels[-1].run(_SUBMIT, timeout=600).strip()
            if state != "imported":
                raise RuntimeError(f"the record of notebook {number}: {state}")
            if number == 0:
                _print("one notebook, right after its run", _helpers(kernels))
                first = kernels[0]
        for kernel in kernels:  # all helpers are needed again, at about the same time
            kernel.run(_PING)
        _print("ten notebooks, after their runs", _helpers(kernels))
        begin = time.monotonic()
        while _helpers(kernels) and time.monotonic() - begin < 10 * IDLE_S:
            time.sleep(1.0)
        _print(f"after {IDLE_S:g} idle seconds", _helpers(kernels))
        begin = time.monotonic()
        first.run(_SUBMIT, timeout=600)
        print(f"the next run, until MLflow has it: {time.monotonic() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    main()
