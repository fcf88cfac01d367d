"""Sweeps: the driver's time per trial against Optuna with a subprocess per trial; memory and page of 1,000 trials.

``python -m benchmarks.sweeps [driver|memory|board]``.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from benchmarks.timing import interleaved, line, verdict
from tests.conftest import end_all

TRIALS, CONCURRENT, ROUNDS = 12, 2, 3
#: A trial of both: starts Python, works a second, and returns its value.
WORK = "import time\ntime.sleep(1)\nloss = (x - 2) ** 2\n"
_PEER = "import sys\nx = float(sys.argv[1])\n" + WORK + "print(loss)\n"


def _optuna() -> float:
    """Seconds per trial of Optuna's own loop."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))

    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 5)
        argv = [sys.executable, "-c", _PEER, str(x)]
        return float(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)

    began = time.monotonic()
    study.optimize(objective, n_trials=TRIALS, n_jobs=CONCURRENT)
    return (time.monotonic() - began) / TRIALS


def _driver() -> float:
    """Seconds per trial from the first proposal to the last end, by the journal of the driver."""
    from jupyter_amltrain import api
    from jupyter_amltrain.sweeps.journal import ASK, TELL, Event

    values = {"max_trials": TRIALS, "max_concurrent": CONCURRENT, "seed": 1, "out": ["loss"], "gpus": 0}
    run = api.sweep(WORK, goal="minimize loss", params={"x": "uniform(0, 5)"}, **values).wait(600)
    lines = (Path(run.run.folder) / "sweep.jsonl").read_bytes().splitlines()
    events = [msgspec.json.decode(one, type=Event) for one in lines]
    times = [event.time for event in events if event.op in (ASK, TELL)]
    return (max(times) - min(times)) / TRIALS


def driver() -> None:
    """Print the time per trial of both, in turn."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"AMLTRAIN_HOME": f"{folder}/home", "AMLTRAIN_QUEUE": f"{folder}/queue"}
        os.environ["AMLTRAIN_CPU_SLOTS"] = str(CONCURRENT)
        os.chdir(folder)
        try:
            figures = interleaved({"driver": _driver, "Optuna, subprocesses": _optuna}, ROUNDS)
        finally:
            from jupyter_amltrain import api

            api.close()
            end_all(Path(folder) / "home")
        os.chdir("/")
    print(f"Seconds per trial of 1 s: {TRIALS} trials, {CONCURRENT} at a time")
    for name, values in figures.items():
        print(line(name, values, "s"))
    ours, peer = (sorted(values)[len(values) // 2] for values in figures.values())
    print(verdict("driver / Optuna with a subprocess per trial", ours / peer, 1.2))


def memory() -> None:
    """Print what 1,000 trials cost a kernel that shows them."""
    from jupyter_amltrain.kernel.run_record import record_of
    from jupyter_amltrain.kernel.store import Entry
    from tests.output.sweep_records import children_of_many, sweep_run

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    data = msgspec.json.encode(children_of_many(1000))
    entry = Entry(sweep_run())
    entry.streams.children = msgspec.json.decode(data, type=type(entry.streams.children))
    began = time.perf_counter()
    record = msgspec.json.encode(record_of(entry))
    spent = time.perf_counter() - began
    used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print("A kernel with a board of 1,000 trials")
    print(f"  memory {used:.1f} MiB (goal <= 30), record {len(record) / 1024:.0f} KiB in {1000 * spent:.0f} ms")


if __name__ == "__main__":
    chosen = sys.argv[1:] or ["driver", "memory"]
    for name in chosen:
        {"driver": driver, "memory": memory}[name]()
