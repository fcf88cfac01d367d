"""Pipelines on this machine: order, values and files, reuse, failures, and a driver that dies at any moment."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from jupyter_amltrain.errors import CommandError, RunFailed
from jupyter_amltrain.output.run_html import run_html
from jupyter_amltrain.output.text_view import record_text
from jupyter_amltrain.pipelines.functions import step

from ..helpers import DEADLINE, api_of, until
from ..ipykernel.harness import kernel
from ..tiers import thorough
from .shapes import check_whole, diamond, driver_of, journal, ran

NAMES = ("prep", "left", "right", "join")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Four CPU slots, whatever the machine has."""
    more = {"AMLTRAIN_CPU_SLOTS": "4", "AMLTRAIN_RESTART_PAUSE": "0"}
    with api_of(tmp_path_factory.mktemp("pipelines"), **more) as module:
        yield module


@pytest.mark.thorough
def test_diamond_runs_once_and_then_only_what_has_changed(api: Any) -> None:
    first = api.pipeline(*diamond()).wait(DEADLINE)
    check_whole(api, first, NAMES)
    assert first.result("width") == 2 and ran(first) == set(NAMES)
    children = {child.name: child for child in first.children()}
    assert [child.state for child in children.values()] == ["completed"] * 4
    assert api.attach(children["join"].handle).parent.handle == first.handle
    starts = {event.step: event.time for event in journal(first) if event.op == "start"}
    assert starts["prep"] < min(starts["left"], starts["right"]) and max(starts.values()) == starts["join"]

    same = api.pipeline(*diamond()).wait(DEADLINE)
    check_whole(api, same, NAMES)
    assert ran(same) == set() and same.result("width") == 2
    assert {child.name: child.handle for child in same.children()} == {n: c.handle for n, c in children.items()}
    assert all(child.reused for child in same.children())

    changed = api.pipeline(*diamond(right="max(data) + 1")).wait(DEADLINE)
    check_whole(api, changed, NAMES)
    assert ran(changed) == {"right", "join"} and changed.result("width") == 3

    equal = api.pipeline(*diamond(right="1 + max(data)")).wait(DEADLINE)  # other code, the same value
    assert ran(equal) == {"right"} and equal.result("width") == 3


@pytest.mark.thorough
def test_steps_run_again_where_asked(api: Any) -> None:
    api.pipeline(*diamond()).wait(DEADLINE)
    assert ran(api.pipeline(*diamond(), first="left").wait(DEADLINE)) == {"left", "join"}
    only = api.pipeline(*diamond(), only="left").wait(DEADLINE)
    assert ran(only) == {"left"}
    assert {child.name: child.state for child in only.children()}["join"] == "skipped"
    assert ran(api.pipeline(*diamond(), reuse=False).wait(DEADLINE)) == set(NAMES)
    with pytest.raises(RunFailed, match="no result to use"):
        api.pipeline(*diamond(right="max(data) * 77"), only="join").wait(DEADLINE)


def test_diamond_runs_in_order_and_its_record_has_the_graph(api: Any) -> None:
    run = api.pipeline(*diamond()).wait(DEADLINE)
    check_whole(api, run, NAMES)
    assert run.result("width") == 2
    record = run.record()
    assert {node.title for node in record.graph.nodes} == set(NAMES) and len(record.graph.edges) == 4
    assert not record.children and "4 steps" in record_text(record)
    assert "<svg" in run_html(record, None)


VALUES = """
import numpy as np
table = np.arange(6).reshape(2, 3)
pair = (1, {"a": {2, 3}})
shared = [1]
other = [shared, shared]
class Model:
    def __init__(self):
        self.weights = np.ones(3)
    def predict(self, x):
        return x @ self.weights
model = Model()
"""
CHECK = """
import numpy as np
assert type(table) is np.ndarray and table.shape == (2, 3)
assert pair == (1, {"a": {2, 3}})
assert other[0] is shared and other[1] is shared
total = float(model.predict(table).sum())
"""


@pytest.mark.thorough
def test_values_arrive_as_they_are(api: Any) -> None:
    names = ["table", "pair", "shared", "other", "model"]
    run = api.pipeline(
        step("make", VALUES, out=names, gpus=0), step("take", CHECK, needs=names, out=["total"], gpus=0)
    ).wait(DEADLINE)  # fmt: skip
    assert run.result("total") == 15


@pytest.mark.thorough
def test_value_that_cannot_travel_fails_its_step(api: Any) -> None:
    make = step("make", "import threading\nlock = threading.Lock()", out=["lock"], gpus=0)
    with pytest.raises(RunFailed, match="make"):
        api.pipeline(make, step("take", "print(lock)", needs=["lock"], gpus=0)).wait(DEADLINE)


@pytest.mark.thorough
def test_folder_travels_and_its_content_decides_what_runs_again(api: Any) -> None:
    def steps(text: str, more: str = "") -> list[Any]:
        code = f"import os, pathlib\npathlib.Path(os.environ['AML_OUTPUT_PARTS'], 'a.txt').write_text({text!r})\n{more}"
        read = "import os\nword = open(os.path.join(parts, 'a.txt')).read()\n"
        read += "assert parts == os.environ['AML_INPUT_PARTS']\n"
        return [step("make", code, outputs=["parts"], gpus=0),
                step("take", read, needs=["parts"], out=["word"], gpus=0)]  # fmt: skip

    assert api.pipeline(*steps("one")).wait(DEADLINE).result("word") == "one"
    same = api.pipeline(*steps("one", "print('other code')")).wait(DEADLINE)
    assert ran(same) == {"make"} and same.result("word") == "one"
    assert api.pipeline(*steps("two")).wait(DEADLINE).result("word") == "two"


@pytest.mark.thorough
def test_file_takes_a_folder_as_argument(api: Any) -> None:
    Path("report.py").write_text(
        "import argparse, os\np = argparse.ArgumentParser()\np.add_argument('--table')\na = p.parse_args()\n"
        "print('read', open(os.path.join(a.table, 'a.txt')).read())\n"
    )
    make = step("make", "import os\nopen(os.environ['AML_OUTPUT_TABLE'] + '/a.txt', 'w').write('text')",
                outputs=["table"], gpus=0)  # fmt: skip
    report = step("report", "report.py", needs=["table"], params={"table": "${{inputs.table}}"}, gpus=0)
    run = api.pipeline(make, report).wait(DEADLINE)
    (child,) = (child for child in run.children() if child.name == "report")
    assert "read text" in api.attach(child.handle).logs()


@pytest.mark.thorough
def test_each_file_of_a_pattern_gets_a_run_and_results_are_gathered(api: Any) -> None:
    folder = Path("rows")
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.csv").write_text("x" * (number + 1))
    count = step("count", "size = len(open(part).read())", map="rows/*.csv", out=["size"], gpus=0)
    total = step("total", "total = sum(size)", needs=["size"], out=["total"], gpus=0)
    assert api.pipeline(count, total).wait(DEADLINE).result("total") == 6
    (folder / "1.csv").write_text("xxxxx")
    run = api.pipeline(count, total).wait(DEADLINE)
    assert run.result("total") == 9 and ran(run) == {"count:1", "total"}


@pytest.mark.thorough
def test_failed_step_keeps_what_was_done(api: Any) -> None:
    bad = [*diamond(right="max(data) / 0"), step("last", "print(1)", after=["left"], gpus=0)]
    run = api.pipeline(*bad)
    with pytest.raises(RunFailed, match="right"):
        run.wait(DEADLINE)
    states = {child.name: child.state for child in run.children()}
    assert states["prep"] == "completed" and states["right"] == "failed" and states["join"] == "skipped"
    fixed = api.pipeline(*diamond(right="max(data) / 1")).wait(DEADLINE)
    assert "prep" not in ran(fixed) and "right" in ran(fixed)


@pytest.mark.thorough
def test_other_steps_go_on_where_asked(api: Any) -> None:
    steps = [
        step("bad", "1 / 0", gpus=0),
        step("good", "import time; time.sleep(2); a = 1", out=["a"], gpus=0),
        step("after", "b = a", needs=["a"], out=["b"], gpus=0),
        step("never", "print(1)", after=["bad"], gpus=0),
    ]
    run = api.pipeline(*steps, keep_going=True)
    with pytest.raises(RunFailed, match="bad"):
        run.wait(DEADLINE)
    states = {child.name: child.state for child in run.children()}
    assert states == {"bad": "failed", "good": "completed", "after": "completed", "never": "skipped"}


def test_unsound_pipeline_submits_nothing(api: Any) -> None:
    before = len(api.runs())
    with pytest.raises(CommandError):
        api.pipeline(step("a", "x = y", needs=["y"], out=["x"]), step("b", "y = x", needs=["x"], out=["y"]))
    with pytest.raises(CommandError, match="nowhere"):
        api.pipeline(step("a", "x = 1", target="nowhere"))
    with pytest.raises(CommandError, match="Step 'b'"):
        api.pipeline(step("a", "x = 1"), step("b", "x = 1", inputs={"d": "no/such/file"}))
    assert len(api.runs()) == before


@pytest.mark.thorough
def test_cancel_of_pipeline_cancels_its_steps(api: Any) -> None:
    run = api.pipeline(*diamond(pause=600), name="canceled")
    until(lambda: any(child.state == "running" for child in run.children()), "a step")
    run.cancel()
    until(lambda: run.run.status.state.terminal, "the end")
    assert run.state == "canceled"
    until(lambda: [one.run.status.state.value for one in api.runs() if one.spec.parent == run.handle] == ["canceled"])
    assert [child.state for child in run.children()].count("skipped") == 3


POINTS = ("after_start",)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "point",
    [*POINTS, *thorough("before_start", "before_end", "before_sent", "after_sent", "after_end", "before_finish")],
)
def test_driver_killed_at_failpoint_loses_and_doubles_no_step(tmp_path: Path, point: str) -> None:
    (tmp_path / "once").mkdir()
    failpoint = {"AMLTRAIN_FAILPOINT": f"pipeline_{point}", "AMLTRAIN_FAILPOINT_ONCE": str(tmp_path / "once")}
    with api_of(tmp_path, AMLTRAIN_CPU_SLOTS="4", AMLTRAIN_RESTART_PAUSE="0", **failpoint) as api:
        run = api.pipeline(*diamond()).wait(DEADLINE)
        assert run.run.status.attempt == 2 and run.result("width") == 2
        check_whole(api, run, NAMES)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_driver_killed_at_any_moment_ends_with_same_result(api: Any, seed: int) -> None:
    chance = random.Random(seed)
    run = api.pipeline(*diamond(pause=0.4), reuse=False)
    for _ in range(2):
        time.sleep(chance.uniform(0, 3))
        if run.run.status.state.terminal:
            break
        driver_of(run).send_signal(signal.SIGKILL)
    run.wait(DEADLINE)
    check_whole(api, run, NAMES)
    assert run.result("width") == 2


@pytest.mark.thorough
def test_pipeline_of_killed_kernel_goes_on(api: Any, tmp_path: Path) -> None:
    go = tmp_path / "go"
    environ = {**os.environ, "IPYTHONDIR": str(tmp_path / "ipython"), "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime")}
    with kernel(environ, tmp_path) as live:
        live.run("%load_ext jupyter_amltrain")
        live.run("%%aml_step first --out a --gpus 0\na = 20")
        wait = f"import os, time\nwhile not os.path.exists({str(go)!r}):\n    time.sleep(0.05)\n"
        live.run(f"%%aml_step second --in a --out b --gpus 0\n{wait}b = a + 1")
        live.run("%%aml_step third --in b --out c --gpus 0\nc = b * 2")
        live.run("%aml_pipeline submit first second third --as pipe")
        run = api.attach(live.run("print(pipe.handle, end='')").stdout)
        until(lambda: {child.name: child.state for child in run.children()}.get("second") == "running", "a step")
        process = psutil.Process(live.pid)
        live.kill()
        process.wait(DEADLINE)
    go.touch()
    run.wait(DEADLINE)
    check_whole(api, run, ("first", "second", "third"))
    assert run.result("c") == 42 and run.run.status.attempt == 1


@pytest.mark.thorough
def test_several_processes_are_a_step(api: Any) -> None:
    count = (
        "import os, pathlib\nrank = os.environ['RANK']\nassert os.environ['WORLD_SIZE'] == '2'\n"
        "pathlib.Path(os.environ['AML_OUTPUT_PARTS'], rank + '.txt').write_text(str(len(rows) + int(rank)))\n"
        "total = sum(rows)\n"
    )
    read = "import pathlib\nwords = sorted(path.read_text() for path in pathlib.Path(parts).glob('*.txt'))\n"
    steps = [
        step("make", "rows = [1, 2, 3]", out=["rows"], gpus=0),
        step("spread", count, needs=["rows"], out=["total"], outputs=["parts"], processes=2, gpus=0),
        step("gather", read, needs=["parts", "total"], out=["words"], gpus=0),
    ]
    run = api.pipeline(*steps).wait(DEADLINE)
    check_whole(api, run, ("make", "spread", "gather"))
    assert run.result("words") == ["3", "4"]
    (spread,) = (child for child in run.children() if child.name == "spread")
    assert api.attach(spread.handle).spec.distribution.processes == 2
    assert ran(api.pipeline(*steps).wait(DEADLINE)) == set()


@pytest.mark.thorough
def test_search_is_a_step_whose_best_trial_gives_its_outputs(api: Any) -> None:
    steps = [
        step("make", "wanted = 2", out=["wanted"], gpus=0),
        step("tune", "loss = (x - wanted) ** 2\nmodel = {'x': {x}}", needs=["wanted"], params={"x": "choice(0, 2, 5)"},
             goal="minimize loss", search={"sampler": "grid"}, out=["loss", "model"], gpus=0),
        step("use", "found = max(model['x'])", needs=["model"], out=["found"], gpus=0),
    ]  # fmt: skip
    run = api.pipeline(*steps).wait(DEADLINE)
    check_whole(api, run, ("make", "tune", "use"))
    assert run.result("found") == 2
    (tune,) = (child for child in run.children() if child.name == "tune")
    assert len(api.attach(tune.handle).children()) == 3
    assert ran(api.pipeline(*steps).wait(DEADLINE)) == set()
