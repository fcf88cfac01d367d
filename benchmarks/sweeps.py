"""Sweeps: the driver's time per trial against Optuna with a subprocess per trial; memory and page of 1,000 trials.

``python -m benchmarks.sweeps [driver|fit|memory|board]``; `fit` has short trials, whose imports take longer than they,
one and two at a time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from benchmarks.timing import interleaved, line, verdict
from jupyter_amltrain.agent.protocol import WARM
from tests.conftest import end_all

TRIALS, CONCURRENT, ROUNDS = 12, 2, 3
#: A trial of both: starts Python, works a second, and returns its value.
WORK = "import time\ntime.sleep(1)\nloss = (x - 2) ** 2\n"
#: A trial that fits a small model: its imports take most of its time.
FIT_TRIALS = 40
FIT = """from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

data, target = load_digits(return_X_y=True)
model = LogisticRegression(C=x + 0.01, max_iter=20).fit(data[:500], target[:500])
loss = 1 - model.score(data[500:], target[500:])
"""


def _optuna(work: str, trials: int, concurrent: int) -> float:
    """Seconds per trial of Optuna's own loop."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))

    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 5)
        code = f"import sys\nx = float(sys.argv[1])\n{work}print(loss)\n"
        argv = [sys.executable, "-W", "ignore", "-c", code, str(x)]
        return float(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)

    began = time.monotonic()
    study.optimize(objective, n_trials=trials, n_jobs=concurrent)
    return (time.monotonic() - began) / trials


def _driver(work: str, trials: int, concurrent: int) -> float:
    """Seconds per trial from the first proposal to the last end, by the journal of the driver."""
    from jupyter_amltrain import api
    from jupyter_amltrain.sweeps.sweep_event import ASK, TELL, Event

    values = {"max_trials": trials, "max_concurrent": concurrent, "seed": 1, "out": ["loss"], "gpus": 0}
    run = api.sweep(work, goal="minimize loss", params={"x": "uniform(0, 5)"}, **values).wait(600)
    lines = (Path(run.run.folder) / "sweep.jsonl").read_bytes().splitlines()
    events = [msgspec.json.decode(one, type=Event) for one in lines]
    times = [event.time for event in events if event.op in (ASK, TELL)]
    return (max(times) - min(times)) / trials


def driver() -> None:
    """Print the time per trial of both, in turn, for trials that take a second."""
    _compare(WORK, TRIALS, 1.2)


def fit() -> None:
    """Print the time per trial of both, in turn, for trials that fit a small model."""
    os.environ[WARM] = "300"  # set, so that a busy machine has one, too
    for concurrent in (1, 2):
        _compare(FIT, FIT_TRIALS, 0.5, concurrent)


def _compare(work: str, trials: int, goal: float, concurrent: int = CONCURRENT) -> None:
    contenders = {
        "driver": lambda: _driver(work, trials, concurrent),
        "Optuna, subprocesses": lambda: _optuna(work, trials, concurrent),
    }
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"AMLTRAIN_HOME": f"{folder}/home", "AMLTRAIN_QUEUE": f"{folder}/queue"}
        os.environ["AMLTRAIN_CPU_SLOTS"] = str(CONCURRENT)
        os.chdir(folder)
        try:
            figures = interleaved(contenders, ROUNDS)
        finally:
            from jupyter_amltrain import api

            api.close()
            end_all(Path(folder) / "home")
        os.chdir("/")
    print(f"Seconds per trial: {trials} trials, {concurrent} at a time")
    for name, values in figures.items():
        print(line(name, values, "s"))
    ours, peer = (sorted(values)[len(values) // 2] for values in figures.values())
    print(verdict("driver / Optuna with a subprocess per trial", ours / peer, goal))


def memory() -> None:
    """Print what 1,000 trials cost a kernel that shows them."""
    import tracemalloc

    from jupyter_amltrain.kernel.run_record import record_of
    from jupyter_amltrain.kernel.store import Entry
    from jupyter_amltrain.schema.child_run import ChildRun, ChildRuns
    from jupyter_amltrain.schema.job import JobSpec
    from jupyter_amltrain.schema.run import Run, RunHandle, RunState, RunStatus
    from jupyter_amltrain.schema.search_space import Choice, LogUniform
    from jupyter_amltrain.schema.sweep import Objective, Sweep, SweepLimits

    trials = tuple(
        ChildRun(
            id=f"digits-{i}-abcde", name=f"digits-{i}", kind="trial", state="completed", metric="accuracy",
            value=0.5 + i / 2000, created=1e9 + i, started=1e9 + i, ended=1e9 + i + 60, number=i,
            params={"lr": 10 ** -(i % 5) * 0.123, "layers": i % 4, "optimizer": "adam"},
            handle=f"local/digits-{i}-abcde", steps=tuple(range(40)), values=tuple(0.5 + k / 100 for k in range(40)),
        )
        for i in range(1000)
    )  # fmt: skip
    data = msgspec.json.encode(ChildRuns(runs=trials))
    del trials
    space = {"lr": LogUniform(1e-4, 1.0), "layers": Choice((0, 1, 2, 3)), "optimizer": Choice(("adam", "sgd"))}
    sweep = Sweep(space=space, objective=Objective("accuracy", "maximize"), limits=SweepLimits(max_trials=1000), seed=1)
    spec = JobSpec(name="digits", sweep=sweep, trial=JobSpec(name="digits"))
    run = Run(handle=RunHandle("local/digits"), spec=spec, status=RunStatus(state=RunState.RUNNING), created=1e9)
    record_of(Entry(run))  # what is imported once
    tracemalloc.start()
    entry = Entry(run)
    entry.streams.children = msgspec.json.decode(data, type=ChildRuns)
    began = time.perf_counter()
    record = msgspec.json.encode(record_of(entry))
    spent = time.perf_counter() - began
    used, most = (size / 2**20 for size in tracemalloc.get_traced_memory())
    print("A kernel that shows a sweep of 1,000 trials")
    print(
        f"  memory {used:.1f} MiB more (goal <= 30); record {len(record) / 1024:.0f} KiB, made in {1000 * spent:.0f} ms"
    )


def board() -> None:
    """Print the page's main thread while a board of 1,000 trials is updated once a second, and its first paint."""
    from playwright.sync_api import sync_playwright

    from jupyter_amltrain.schema.record import RECORD_MIME
    from tests.output.sweep_records import board as board_of
    from tests.output.sweep_records import sweep_record
    from tests.ui.conftest import FLAGS
    from tests.ui.lab import MS, LabServer, code_cell, load_page
    from tools import chromium, frontend

    frontend.ensure_bundle()
    records = [msgspec.to_builtins(sweep_record(board_of(1000, max_concurrent=k))) for k in range(4, 8)]
    insert = """([mime, record]) => {
        const began = performance.now(), outputs = jupyterapp.shell.currentWidget.content.model.cells.get(0).outputs;
        const output = { output_type: 'display_data', metadata: {}, data: { [mime]: record, 'text/plain': 'a run' } };
        outputs.length ? outputs.set(0, output) : outputs.add(output);
        return new Promise(done => {
            const look = () => document.querySelector('tbody tr[data-trial]')
                ? requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)))
                : requestAnimationFrame(look);
            look();
        });
    }"""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        server = LabServer(Path(folder) / "lab")
        browser = driver.chromium.launch(executable_path=chromium.find(), args=FLAGS)
        page = browser.new_page(viewport={"width": 1300, "height": 1500})
        page.set_default_timeout(MS)
        try:
            load_page(page, server, server.write("board.ipynb", [code_cell("# board")], kernel=None), kernel=False)
            devtools = page.context.new_cdp_session(page)
            devtools.send("Performance.enable", {"timeDomain": "threadTicks"})

            def cpu() -> float:
                found = {m["name"]: m["value"] for m in devtools.send("Performance.getMetrics")["metrics"]}
                return float(found["TaskDuration"])

            paint = page.evaluate(insert, [RECORD_MIME, records[0]])
            page.wait_for_timeout(2000)
            shares = []
            for _ in range(4):
                began, used = time.monotonic(), cpu()
                for k in range(5):
                    page.evaluate(insert, [RECORD_MIME, records[k % len(records)]])
                    page.wait_for_timeout(1000)
                shares.append(100 * (cpu() - used) / (time.monotonic() - began))
        finally:
            browser.close()
            server.close()
            end_all(server.folder / "state")
    print("A board of 1,000 trials in the page")
    print(f"  first paint after {paint / 1000:.2f} s (goal <= 1)")
    print(line("main thread, an update each second", shares, "%") + "   goal <= 25 %")


if __name__ == "__main__":
    for name in sys.argv[1:] or ("driver", "fit", "memory", "board"):
        {"driver": driver, "fit": fit, "memory": memory, "board": board}[name]()
