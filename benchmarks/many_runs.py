"""200 short runs at once: all end, in order, none lost; an empty cell's latency meanwhile."""

from __future__ import annotations

import json
import os
import statistics
import tempfile

from benchmarks.kernels import running_kernel
from benchmarks.timing import line, p95

_SUBMIT = """
import json, time
%load_ext jupyter_amltrain
import jupyter_amltrain as aml
begin = time.perf_counter()
many = [aml.submit("print('hello')", name="many") for _ in range({n})]
print("SUBMITTED", round(time.perf_counter() - begin, 2))
"""

_WAIT = """
for run in many:
    run.wait(600)
starts = [next(p.start for p in run.run.status.phases if p.name == "running") for run in many]
late = sum(1 for a, b in zip(starts, starts[1:]) if b < a - 0.001)
print("FIGURES" + json.dumps([len(many), sum(r.state == "completed" for r in many),
      late, time.perf_counter() - begin, sum("hello" in r.logs() for r in many)]))
"""


def main(n: int = 200) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {
            **os.environ,
            "AMLTRAIN_HOME": f"{folder}/home",
            "AMLTRAIN_QUEUE": f"{folder}/queue",
            "AMLTRAIN_DISPATCHER_IDLE": "20",
            "IPYTHONDIR": f"{folder}/ipython",
        }
        with running_kernel(environ, folder) as kernel:
            before = [kernel.latency() for _ in range(60)]
            submitted = kernel.run(_SUBMIT.format(n=n), timeout=300)
            during: list[float] = [kernel.latency() for _ in range(60)]
            text = kernel.run(_WAIT, timeout=900)
    runs, completed, late, seconds, logs = json.loads(text.partition("FIGURES")[2])
    print(f"{n} short runs at once")
    print(f"  {submitted.strip().splitlines()[-1]} s in the kernel until all were handed over")
    print(f"  {completed} of {runs} completed, {logs} logs whole, {late} started out of order, {seconds:.1f} s in all")
    print(line("empty cell before", before, "ms") + f"  p95 {p95(before):.2f}")
    print(line("empty cell during", during, "ms") + f"  p95 {p95(during):.2f}")
    print(f"  during / before, medians: {statistics.median(during) / statistics.median(before):.2f}")


if __name__ == "__main__":
    main()
