"""Second submit in a kernel to the first output line, against bare ``Popen`` and submitit.

Runs inside one real ipykernel, rounds interleaved; wall time, because that is what
somebody waits for.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from typing import Any

from benchmarks.kernels import running_kernel
from benchmarks.timing import line, verdict

_SETUP = """
import json, os, subprocess, sys, tempfile, threading, time
import submitit
from IPython import get_ipython
ip = get_ipython()
ip.run_line_magic("load_ext", "jupyter_amltrain")
import jupyter_amltrain
folder = tempfile.mkdtemp()
with open(folder + "/script.py", "w") as f:
    f.write("print('first line')\\n")

def popen():
    begin = time.perf_counter()
    with subprocess.Popen([sys.executable, "-u", folder + "/script.py"], stdout=subprocess.PIPE) as p:
        p.stdout.readline()
        return (time.perf_counter() - begin) * 1000

def ours():
    seen, end = threading.Event(), []
    def paint(record, picture):
        if not end and "first line" in record.log.tail:
            end.append(time.perf_counter()); seen.set()
    begin = time.perf_counter()
    ip.run_cell_magic("aml_submit", "--name bench --as bench_run", "print('first line')")
    bench_run = ip.user_ns["bench_run"]
    watching = bench_run.watch(paint)
    assert seen.wait(60)
    bench_run.wait(60)
    return (end[0] - begin) * 1000

def first():
    begin = time.perf_counter()
    out = ours()
    return out

def submitit_run():
    executor = submitit.LocalExecutor(folder=folder + "/submitit")
    executor.update_parameters(timeout_min=1)
    begin = time.perf_counter()
    job = executor.submit(print, "first line")
    path = job.paths.stdout
    while True:
        if path.exists() and b"first line" in path.read_bytes():
            end = time.perf_counter(); break
        time.sleep(0.001)
    job.wait()
    return (end - begin) * 1000
"""

_ROUNDS = """
figures = {"first": [ours()], "popen": [], "ours": [], "submitit": []}
popen()
for n in range(%d):
    for name, fn in (("popen", popen), ("ours", ours)) if n %% 2 else (("ours", ours), ("popen", popen)):
        figures[name].append(fn())
    if n %% 3 == 0:
        figures["submitit"].append(submitit_run())
print("FIGURES" + json.dumps(figures))
"""


def main(rounds: int = 21) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {
            # Users' shells let Python keep what it has compiled.
            **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
            "AMLTRAIN_HOME": f"{folder}/home",
            "AMLTRAIN_QUEUE": f"{folder}/queue",
            "AMLTRAIN_DISPATCHER_IDLE": "20",
            "IPYTHONDIR": f"{folder}/ipython",
        }
        with running_kernel(environ, folder) as kernel:
            kernel.run(_SETUP)
            text = kernel.run(_ROUNDS % rounds, timeout=600)
    found: dict[str, Any] = json.loads(text.partition("FIGURES")[2])
    print("Second submit in a kernel to the first output line (wall, one real ipykernel)")
    for name in ("popen", "ours", "submitit", "first"):
        label = {"ours": "%%aml_submit", "first": "%%aml_submit, the kernel's first"}.get(name, name)
        print(line(label, found[name], "ms"))
    ours = statistics.median(found["ours"])
    print(verdict("%%aml_submit / bare Popen, wall", ours / statistics.median(found["popen"]), 1.5, 3))
    print(verdict("%%aml_submit / submitit, wall", ours / statistics.median(found["submitit"]), 0.10, 0.25))


if __name__ == "__main__":
    main()
