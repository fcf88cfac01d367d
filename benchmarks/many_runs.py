"""200 short runs at once: all end, in order, none lost; an empty cell's latency meanwhile.

And a state root of 10,000 past runs against one of ten: the first `%aml_runs` of a kernel, what the kernel
holds after it, and the panel's first answer. ``python -m benchmarks.many_runs past`` measures only that.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.kernels import running_kernel
from benchmarks.timing import line, p95
from tests.past_runs import GOLDEN

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

FEW, MANY, ROUNDS = 10, 10_000, 3
#: Goals for :data:`MANY` runs: seconds, MB more than with :data:`FEW`, seconds.
LIST_S, MORE_MB, PANEL_S = 0.5, 60.0, 0.3

_LIST = """
import psutil, time
%load_ext jupyter_amltrain
begin = time.perf_counter()
%aml_runs
print("FIGURES", time.perf_counter() - begin, psutil.Process().memory_info().rss / 1e6)
"""

_PANEL = """
%load_ext jupyter_amltrain
import threading, time
from jupyter_amltrain.kernel import session
from jupyter_amltrain.frontend import clients, events, protocol
controller, came = session.controller(), threading.Event()
rows = []
def send(comm, event, buffers):
    if isinstance(event, protocol.StateSnapshot):
        rows.append((len(event.runs), event.more))
        came.set()
async def ask():
    global pages
    pages = events.EventPublisher(controller, lambda: False, send)
    await pages.subscribe(clients.Subscribe(comm="bench"))
begin = time.perf_counter()
controller.loop.call(ask(), 60)
assert came.wait(60)
print("FIGURES", time.perf_counter() - begin, sum(rows[0]))
"""


def main(n: int = 200) -> None:
    """Print the tables."""
    if sys.argv[1:] != ["past"]:
        at_once(n)
    past()


def past() -> None:
    """Print what a state root of many past runs costs."""
    listed: dict[int, list[float]] = {FEW: [], MANY: []}
    held: dict[int, list[float]] = {FEW: [], MANY: []}
    panel: dict[int, list[float]] = {FEW: [], MANY: []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for count in (FEW, MANY):
            write_past(folder / f"home-{count}", count)
        for number in range(ROUNDS + 1):  # the first makes the index, as the kernel before did
            for count in (FEW, MANY):
                for code, figures in ((_LIST, listed), (_PANEL, panel)):
                    environ = {
                        **os.environ,
                        "AMLTRAIN_HOME": f"{folder}/home-{count}",
                        "AMLTRAIN_QUEUE": f"{folder}/queue",
                        "IPYTHONDIR": f"{folder}/ipython",
                    }
                    with running_kernel(environ, name) as kernel:
                        seconds, other = map(float, kernel.run(code).partition("FIGURES")[2].split())
                    if not number:
                        if code is _LIST:
                            print(f"  without an index, {count:>6} runs: first %aml_runs {seconds:.2f} s")
                        continue
                    assert code is _LIST or other == count, f"{other:g} of {count} runs"
                    figures[count].append(seconds)
                    if code is _LIST:
                        held[count].append(other)
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{MANY} past runs against {FEW}, each in a fresh kernel, {ROUNDS} rounds")
    for what, figures, unit in (
        ("first %aml_runs", listed, "s"),
        ("kernel after it", held, "MB"),
        ("panel's first answer", panel, "s"),
    ):
        for count in (FEW, MANY):
            print(line(f"{what}, {count} runs", figures[count], unit))
        ratio = statistics.median(figures[MANY]) / statistics.median(figures[FEW])
        print(f"  {what}: {ratio:.2f} times that of {FEW} runs")
    more = statistics.median(held[MANY]) - statistics.median(held[FEW])
    for what, value, goal, unit in (
        ("first %aml_runs", statistics.median(listed[MANY]), LIST_S, "s"),
        ("kernel holds more", more, MORE_MB, "MB"),
        ("panel's first answer", statistics.median(panel[MANY]), PANEL_S, "s"),
    ):
        print(f"  {what:<24} {value:7.2f} {unit:<2}  goal <= {goal:g} {unit}  {'met' if value <= goal else 'MISSED'}")


def write_past(home: Path, count: int) -> None:
    """Write `count` ended runs with the files that a list reads."""
    job = json.loads((GOLDEN / "golden-22222" / "job.json").read_text())
    state = json.loads((GOLDEN / "golden-22222" / "state.json").read_text())
    for number in range(count):
        run_id = f"past-{number:05d}"
        folder = home / "runs" / run_id
        folder.mkdir(parents=True, mode=0o700)
        job.update(run=run_id, submitted=1.7e9 + 60 * number)
        (folder / "job.json").write_text(json.dumps(job))
        (folder / "state.json").write_text(json.dumps({**state, "run": run_id}))
        (folder / "tracking.json").write_text('{"schema":1,"state":"imported"}')


def at_once(n: int) -> None:
    """Print what many runs at once cost."""
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
