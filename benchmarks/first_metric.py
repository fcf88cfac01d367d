"""First metric after a submit, with and without a waiting interpreter, against ``python script.py``.

``python -m benchmarks.first_metric [ROUNDS]``. Runs inside one real ipykernel, rounds interleaved; wall time, because
that is what somebody waits for. Between two rounds the machine is idle for some seconds, as while a cell is edited.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from typing import Any

from benchmarks.kernels import running_kernel
from benchmarks.timing import line, verdict

#: What the scripts import before they log a metric.
IMPORTS = {
    "mlflow": "import mlflow",
    "scikit-learn": "import mlflow\nfrom sklearn.linear_model import LogisticRegression",
}
#: Seconds between two rounds.
PAUSE_S = 2.0

_SETUP = """
import os, subprocess, sys, tempfile, threading, time
from IPython import get_ipython
ip = get_ipython()
ip.run_line_magic("load_ext", "jupyter_amltrain")
folder = tempfile.mkdtemp()

def popen(imports):
    path = folder + "/script.py"
    with open(path, "w") as f:
        f.write(imports + "\\nmlflow.log_metric('loss', 0.5)\\nprint('logged')\\n")
    environ = {**os.environ, "MLFLOW_TRACKING_URI": "file:" + folder + "/runs", "MLFLOW_ALLOW_FILE_STORE": "true"}
    begin = time.perf_counter()
    with subprocess.Popen([sys.executable, "-u", path], stdout=subprocess.PIPE, env=environ) as p:
        while b"logged" not in (text := p.stdout.readline()):
            assert text
        end = time.perf_counter()
    return (end - begin) * 1000

def ready():
    # Until an interpreter has imported: an idle machine needs two seconds, while somebody edits the cell.
    from jupyter_amltrain.agent.processes import process_table
    home, times = os.environ["AMLTRAIN_HOME"].encode(), []
    while len(times) < 20 or len(set(times[-20:])) > 1:
        times.append(-len(times))
        for pid, row in process_table().items():
            try:
                held = open("/proc/%d/environ" % pid, "rb").read()
            except OSError:
                continue
            if b"AMLTRAIN_WAITING=" in held and home in held and row.state == "S":
                times[-1] = row.own_time
        time.sleep(0.05)

def ours(imports, warm):
    seen, end = threading.Event(), []
    def paint(record, picture):
        if not end and "loss" in record.metrics:
            end.append(time.perf_counter()); seen.set()
    os.environ["AMLTRAIN_WARM"] = "300" if warm else "0"  # set, so that a busy machine has one, too
    begin = time.perf_counter()
    ip.run_cell_magic("aml_submit", "--name bench --as bench_run", imports + "\\nmlflow.log_metric('loss', 0.5)\\n")
    bench_run = ip.user_ns["bench_run"]
    watching = bench_run.watch(paint)
    assert seen.wait(60)
    bench_run.wait(60)
    path = os.path.join(str(bench_run.run.folder), "log", "agent.txt")
    note = open(path).read() if os.path.exists(path) else ""
    return (end[0] - begin) * 1000, note
"""

_ROUNDS = """
import json
imports, rounds, pause = %r
figures = {"python": [], "cold": [], "warm": []}
ours(imports, False), popen(imports)
for n in range(rounds):
    time.sleep(pause)
    figures["python"].append(popen(imports))
    figures["cold"].append(ours(imports, False)[0])
    ours(imports, True)  # the interpreter follows a run that allows it
    ready()
    took, note = ours(imports, True)
    assert "warm start" in note, note
    figures["warm"].append(took)
print("FIGURES" + json.dumps(figures))
"""


def main(rounds: int = 7) -> None:
    """Print the table."""
    for name, imports in IMPORTS.items():
        with tempfile.TemporaryDirectory() as folder:
            environ = {
                # Users' shells let Python keep what it has compiled.
                **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
                "AMLTRAIN_HOME": f"{folder}/home",
                "AMLTRAIN_QUEUE": f"{folder}/queue",
                "AMLTRAIN_DISPATCHER_IDLE": "120",
                "IPYTHONDIR": f"{folder}/ipython",
            }
            with running_kernel(environ, folder) as kernel:
                kernel.run(_SETUP)
                text = kernel.run(_ROUNDS % ((imports, rounds, PAUSE_S),), timeout=900)
        found: dict[str, Any] = json.loads(text.partition("FIGURES")[2])
        print(f"Submit to the first metric, with {name} (wall, one real ipykernel)")
        labels = {"python": "python script.py", "cold": "%%aml_submit, cold", "warm": "%%aml_submit, warm"}
        for key, label in labels.items():
            print(line(label, found[key], "ms"))
        bare = statistics.median(found["python"])
        print(verdict("cold / python script.py", statistics.median(found["cold"]) / bare, 1.1))
        print(verdict("warm / python script.py", statistics.median(found["warm"]) / bare, 0.15))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
