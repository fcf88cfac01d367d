"""A Slurm cluster of two nodes on this machine, from its login node.

The call of a submit against bare ``sbatch`` and against submitit, the age of log lines, and calls of squeue with 200
runs. ``python -m benchmarks.slurm submit|lines|calls`` measures one of them.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.timing import interleaved, line, verdict
from tests.conftest import end_all
from tools import slurm_cluster
from tools.slurm_cluster import Cluster

ROUNDS, RUNS, WATCHED_S = 15, 200, 60.0
_SCRIPT = "#!/bin/bash\n#SBATCH --hold --output=/dev/null\nexec python3 -c 'print(1)'\n"
_LINES = """
import time
for i in range(60):
    print("STAMP", repr(time.time()), "END", flush=True)
    time.sleep(0.23)
"""
#: Stands before squeue on the PATH, and counts its calls.
_COUNTER = '#!/bin/sh\necho >> "{log}"\nexec {squeue} "$@"\n'


@contextmanager
def kernel() -> Iterator[tuple[Any, Cluster, Path]]:
    """``jupyter_amltrain.api`` with the target ``cluster``, and a folder."""
    with tempfile.TemporaryDirectory(prefix="amltrain-slurm-") as name:
        folder = Path(name)
        cluster = Cluster(folder / "cluster")
        counter = folder / "bin"
        counter.mkdir()
        text = _COUNTER.format(log=folder / "calls", squeue=slurm_cluster.find("squeue"))
        (counter / "squeue").write_text(text)
        (counter / "squeue").chmod(0o755)
        os.environ.update(cluster.environ, AMLTRAIN_HOME=f"{folder}/home", AMLTRAIN_QUEUE=f"{folder}/queue")
        os.environ["PATH"] = f"{counter}{os.pathsep}{os.environ['PATH']}"
        (folder / "work").mkdir()
        os.chdir(folder / "work")
        from jupyter_amltrain import api

        try:
            api.act("attach", "cluster", kind="slurm", values={"partition": "main"})
            while next(row for row in api.compute_rows(60) if row.name == "cluster").state != "ready":
                time.sleep(0.1)
            yield api, cluster, folder
        finally:
            api.close()
            cluster.cancel_all()
            cluster.stop()
            end_all(folder / "home")
            os.chdir("/")


def submits(api: Any, folder: Path) -> None:
    """Print how long the call of a submit takes."""
    import submitit

    script = folder / "job.sh"
    script.write_text(_SCRIPT)
    executor = submitit.SlurmExecutor(folder=str(folder / "submitit"))
    executor.update_parameters(time=5, additional_parameters={"hold": True})

    def sbatch() -> float:
        begin = time.perf_counter()
        subprocess.run(["sbatch", "--parsable", str(script)], check=True, capture_output=True)
        return (time.perf_counter() - begin) * 1000

    def ours() -> float:
        begin = time.perf_counter()
        api.submit("print(1)", target="cluster", name="bench", options=["--hold"])
        return (time.perf_counter() - begin) * 1000

    def other() -> float:
        begin = time.perf_counter()
        executor.submit(print, 1)
        return (time.perf_counter() - begin) * 1000

    ours(), sbatch(), other()
    found = interleaved({"sbatch": sbatch, "ours": ours, "submitit": other}, ROUNDS)
    print("Call of a submit to a Slurm cluster on this machine (wall)")
    for name, label in (("sbatch", "bare sbatch"), ("ours", "submit()"), ("submitit", "submitit")):
        print(line(label, found[name], "ms"))
    median = statistics.median(found["ours"])
    print(verdict("submit() / bare sbatch", median / statistics.median(found["sbatch"]), 1.5, 5))
    print(verdict("submit() / submitit", median / statistics.median(found["submitit"]), 0.5, 1))


def lines(api: Any) -> None:
    """Print how old lines of a log are when they are seen."""
    ages: list[float] = []
    seen = 0

    def look(record: Any, picture: Any) -> None:
        nonlocal seen
        stamps = [text for text in record.log.tail.splitlines() if text.startswith("STAMP") and text.endswith("END")]
        for text in stamps[seen:] if len(stamps) > seen else ():
            ages.append((time.time() - float(text.split()[1])) * 1000)
        seen = max(seen, len(stamps))

    run = api.submit(_LINES, target="cluster", name="lines")
    watching = run.watch(look)
    run.wait(120)
    del watching
    print(line("age of a log line when it is seen", ages, "ms"))
    print(verdict("age of a log line, median", statistics.median(ages) / 1000, 1.2, 2.5))


def calls(api: Any, folder: Path) -> None:
    """Print the calls of squeue in a minute with many runs that wait."""
    runs = [api.submit("print(1)", target="cluster", name=f"many-{n}", options=["--hold"]) for n in range(RUNS)]
    time.sleep(3.0)
    log = folder / "calls"
    before = log.stat().st_size
    time.sleep(WATCHED_S)
    count = (log.stat().st_size - before) * 60 / WATCHED_S
    print(verdict(f"calls of squeue a minute, {len(runs)} runs", count, 30, 60))


def main(names: list[str]) -> None:
    """Print all measurements, or those called `names`."""
    if reason := slurm_cluster.missing_reason():
        print(f"Slurm: not measured: {reason}")
        return
    with kernel() as (api, _, folder):
        for name, measure in (("submit", submits), ("lines", lambda a, f: lines(a)), ("calls", calls)):
            if not names or name in names:
                measure(api, folder)


if __name__ == "__main__":
    main(sys.argv[1:])
