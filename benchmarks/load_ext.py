"""CPU and memory of ``%load_ext``, and of it with the first ``%aml_compute``, against jupysql's."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile

from benchmarks.timing import interleaved, line, verdict

_PROBE = """
import json, os, resource, sys, time
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
def rss():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
before, memory, modules = time.process_time(), rss(), len(sys.modules)
{code}
after = time.process_time()
print("FIGURES" + json.dumps([(after - before) * 1000, (rss() - memory) / 2**20, len(sys.modules) - modules]))
"""

CASES = {
    "jupysql %load_ext sql": "shell.run_line_magic('load_ext', 'sql')",
    "%load_ext jupyter_amltrain": "shell.run_line_magic('load_ext', 'jupyter_amltrain')",
    "%load_ext + first %aml_compute": (
        "shell.run_line_magic('load_ext', 'jupyter_amltrain'); shell.run_line_magic('aml_compute', '')"
    ),
    "%load_ext + %aml_compute test": (
        "shell.run_line_magic('load_ext', 'jupyter_amltrain'); shell.run_line_magic('aml_compute', 'test')"
    ),
}


def _measure(code: str, environ: dict[str, str]) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-c", _PROBE.format(code=code)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
    )
    for text in done.stdout.splitlines():
        if text.startswith("FIGURES"):
            return list(json.loads(text[len("FIGURES") :]))
    raise RuntimeError(f"no figures: {done.stdout}{done.stderr}")


def main(rounds: int = 15) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {
            **os.environ,
            "AMLTRAIN_HOME": f"{folder}/home",
            "AMLTRAIN_QUEUE": f"{folder}/queue",
            "AMLTRAIN_DISPATCHER_IDLE": "5",
            "IPYTHONDIR": f"{folder}/ipython",
        }
        memory: dict[str, list[float]] = {name: [] for name in CASES}
        modules: dict[str, float] = {}

        def contender(name: str) -> float:
            cpu, rss, count = _measure(CASES[name], environ)
            memory[name].append(rss)
            modules[name] = count
            return cpu

        for name in CASES:  # byte code is compiled before anybody is timed
            _measure(CASES[name], environ)
        figures = interleaved({name: (lambda n=name: contender(n)) for name in CASES}, rounds)
    print("Loading the extension (CPU of the kernel's process, fresh process each)")
    for name, values in figures.items():
        print(line(name, values, "ms"))
        print(f"  {'':<34} {statistics.median(memory[name]):10.1f} MiB  {modules[name]:.0f} modules")
    base = statistics.median(figures["jupysql %load_ext sql"])
    for name, goal in list(zip(list(CASES)[1:3], (0.05, 0.3), strict=True)):
        print(verdict(f"{name} / jupysql, CPU", statistics.median(figures[name]) / base, goal))


if __name__ == "__main__":
    main()
