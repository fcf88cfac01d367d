"""Sweeps on this machine: trials, their ends, and a driver that dies at any moment."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from jupyter_amltrain.commands.registry import Context, run
from jupyter_amltrain.commands.registry import run as run_a_command
from jupyter_amltrain.errors import CommandError, RunFailed, RunLost, SpecError, UnknownRun
from jupyter_amltrain.schema.child_run import MAX_CURVE_POINTS
from jupyter_amltrain.sweeps.sweep_event import ASK, REPORT, TELL, Event

from ..helpers import DEADLINE, api_of, until
from ..ipykernel.harness import kernel
from ..tiers import thorough

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

#: Trials log through the endpoint of the agent, without the seconds that MLflow needs to import.
LOG = """
import json, os, time, urllib.request
def log(key, value, step):
    body = {"run_id": RUN, "key": key, "value": value, "timestamp": int(time.time() * 1000), "step": step}
    request = urllib.request.Request(os.environ["MLFLOW_TRACKING_URI"] + "/api/2.0/mlflow/runs/log-metric",
        data=json.dumps(body).encode(), headers={"Content-Type": "application/json",
        "Authorization": "Bearer " + os.environ["MLFLOW_TRACKING_TOKEN"]})
    urllib.request.urlopen(request).close()
def create():
    request = urllib.request.Request(os.environ["MLFLOW_TRACKING_URI"] + "/api/2.0/mlflow/runs/create",
        data=json.dumps({"experiment_id": "0", "start_time": 0}).encode(), headers={"Content-Type": "application/json",
        "Authorization": "Bearer " + os.environ["MLFLOW_TRACKING_TOKEN"]})
    return json.load(urllib.request.urlopen(request))["run"]["info"]["run_id"]
RUN = create()
"""
QUADRATIC = LOG + "log('loss', (x - 2) ** 2, 0)\n"
SPACE = {"x": "uniform(0, 5)"}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Four CPU slots, whatever the machine has."""
    more = {"AMLTRAIN_CPU_SLOTS": "4", "AMLTRAIN_RESTART_PAUSE": "0"}
    with api_of(tmp_path_factory.mktemp("sweeps"), **more) as module:
        yield module


def journal(run: Any) -> list[Event]:
    path = Path(run.run.folder) / "sweep.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [msgspec.json.decode(line, type=Event) for line in lines]


def check_whole(api: Any, run: Any, trials: int) -> None:
    """No trial is lost and none is doubled: each proposal has one run and one end."""
    events = journal(run)
    proposed = {event.trial: event.run_id for event in events if event.op == ASK}
    ended = [event.trial for event in events if event.op == TELL]
    assert sorted(proposed) == list(range(trials)) and sorted(ended) == list(range(trials))
    children = run.children()
    assert [child.number for child in children] == list(range(trials))
    assert {child.id for child in children} == set(proposed.values())
    own = [one for one in api.runs("local") if one.spec.parent == run.handle]
    assert sorted(one.run_id for one in own) == sorted(proposed.values())


def driver_of(run: Any) -> psutil.Process:
    """The driver's process."""

    def find() -> psutil.Process | None:
        for process in psutil.process_iter():
            try:
                is_own = process.environ().get("AMLTRAIN_RUN", "").startswith(f"{run.run_id}:")
                if is_own and any("aml_sweep_driver" in word for word in process.cmdline()):
                    return process
            except (psutil.Error, OSError):
                continue
        return None

    return until(find, "the driver")


UNUSED = LOG + "def train(lr=0.01):\n    log('loss', lr, 0)\ntrain()\n"


@pytest.mark.thorough
def test_sweep_over_parameter_that_nothing_reads_is_refused(api: Any) -> None:
    before, words = (
        len(api.runs()),
        ["--param", "lr=choice(1,2)", "--goal", "minimize loss", "--gpus", "0", "--dry-run"],
    )
    with pytest.raises(SpecError) as caught:
        api.sweep(UNUSED, goal="minimize loss", params={"lr": "choice(1, 2)"}, sampler="grid", gpus=0)
    assert caught.value.code == "sweep.unused" and "lr" in str(caught.value) and len(api.runs()) == before
    with pytest.raises(SpecError) as caught:
        run("sweep", words, Context("%%aml_sweep", cell=UNUSED))
    assert caught.value.code == "sweep.unused"
    assert json.loads(run("sweep", [*words, "--allow-unused"], Context("%%aml_sweep", cell=UNUSED)).text)


#: The loss is that of step 2; the points before it look better, and come last in some manners.
MANNERS = """
points = [(-5.0, 0), (-4.0, 1), ((x - 2) ** 2 + OFFSET[manner], 2)]
if manner == "resent":  # as log_model of MLflow 3 does
    points += points[:2]
if manner == "out of order":
    points.reverse()
if manner == "diverged":
    points.append((math.nan, 3))
now = int(time.time() * 1000)
for value, step in points:
    log("loss", value, step, now + step)
"""
OFFSET = {"plain": 0.3, "resent": 0.2, "out of order": 0.1, "diverged": 0.0}


@pytest.mark.thorough
def test_sweep_picks_best_trial_in_each_manner_of_logging(api: Any) -> None:
    log = LOG.replace("value, step):", "value, step, at):").replace("int(time.time() * 1000)", "at")
    code = f"import math\nOFFSET = {OFFSET!r}\n{log}{MANNERS}"
    space = {"x": "choice(0, 2)", "manner": f"choice({', '.join(map(json.dumps, OFFSET))})"}
    run = api.sweep(code, goal="minimize loss", params=space, sampler="grid", name="manners", gpus=0)
    run.wait(DEADLINE)
    values = {(child.params["x"], child.params["manner"]): child.value for child in run.children()}
    assert values == {
        (x, manner): None if manner == "diverged" else pytest.approx((x - 2) ** 2 + offset)
        for x in (0, 2)
        for manner, offset in OFFSET.items()
    }
    (best,) = (child for child in run.children() if child.best)
    assert best.params == {"x": 2, "manner": "out of order"}


def test_random_sweep_runs_every_trial_and_finds_best(api: Any) -> None:
    run = api.sweep(QUADRATIC, goal="minimize loss", params=SPACE, seed=1, max_trials=6, name="quad", gpus=0)
    run.wait(DEADLINE)
    check_whole(api, run, 6)
    children = run.children()
    assert all(child.state == "completed" and child.value == (child.params["x"] - 2) ** 2 for child in children)
    (best,) = (child for child in children if child.best)
    assert best.value == min(child.value for child in children)
    board = run.record().sweep
    assert board.number[board.best] == best.number and board.params["x"][best.number] is not None
    trial = api.attach(best.handle)
    assert trial.parent.handle == run.handle and trial.params["x"] == best.params["x"]
    assert api.attach("last").handle == run.handle
    assert api.attach("best").handle == api.attach(f"best {run.run_id}").handle == best.handle
    lines = run_a_command("runs", ["best"], Context("amltrain runs")).text.splitlines()
    assert lines[0].startswith("x ") and lines[1].endswith(f"runs again {best.handle}")
    with pytest.raises(UnknownRun, match="not a sweep"):
        api.attach(f"best {best.handle}")


@pytest.mark.thorough
def test_same_seed_proposes_same_trials(api: Any) -> None:
    runs = [
        api.sweep(QUADRATIC, goal="minimize loss", params=SPACE, sampler=sampler, seed=7, max_trials=3, gpus=0)
        for sampler in ("random", "random", "sobol")
    ]
    values = [[child.params for child in run.wait(DEADLINE).children()] for run in runs]
    assert values[0] == values[1] != values[2]


@pytest.mark.thorough
def test_grid_tries_every_point_once_and_fixed_parameters_stay(api: Any) -> None:
    params = {"x": "choice(1, 2)", "name": "choice(a, b)", "scale": 3}
    code = LOG + "log('score', x * scale + len(name), 0)\n"
    run = api.sweep(code, goal="maximize score", params=params, sampler="grid", gpus=0).wait(DEADLINE)
    points = [(child.params["x"], child.params["name"]) for child in run.children()]
    assert sorted(points) == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]
    assert {child.value for child in run.children()} == {4.0, 7.0}


@pytest.mark.thorough
def test_null_is_a_value_and_parameter_of_other_option_is_absent(api: Any) -> None:
    params = {"model": "choice({kind: sgd, momentum: choice(null, 0.9)}, {kind: adam})"}
    code = LOG + "print(kind, globals().get('momentum'))\nlog('score', 1, 0)\n"
    run = api.sweep(code, goal="maximize score", params=params, sampler="grid", gpus=0).wait(DEADLINE)
    assert [child.params for child in run.children()] == [
        {"kind": "sgd", "momentum": None}, {"kind": "sgd", "momentum": 0.9}, {"kind": "adam"},
    ]  # fmt: skip
    null, number, absent = run.children().to_frame()["params.momentum"]
    assert null is None and number == 0.9 and math.isnan(absent)
    board = run.record().sweep
    assert board.params["momentum"] == (None, 0.9, None) and board.nulls == {"momentum": (0,)}


@pytest.mark.thorough
def test_value_of_out_is_metric_and_best_one_is_returned(api: Any) -> None:
    run = api.sweep(
        "loss = (x - 2) ** 2", goal="minimize loss", params=SPACE, seed=3, max_trials=3, out=["loss"], gpus=0
    )
    run.wait(DEADLINE)
    assert run.result("loss") == min(child.value for child in run.children())


@pytest.mark.thorough
def test_one_cpu_slot_does_not_deadlock(tmp_path: Path) -> None:
    with api_of(tmp_path, AMLTRAIN_CPU_SLOTS="1") as api:
        run = api.sweep(QUADRATIC, goal="minimize loss", params=SPACE, seed=1, max_trials=3, gpus=0).wait(DEADLINE)
        check_whole(api, run, 3)
        assert run.run.spec.trial_slots == {"local": 1}


@pytest.mark.thorough
def test_bandit_stops_trial_that_falls_behind(api: Any) -> None:
    code = LOG + "for step in range(4 if x > 50 else 2000):\n    log('score', x, step)\n    time.sleep(0.05)\n"
    run = api.sweep(
        code, goal="maximize score", params={"x": "choice(1, 100)"}, sampler="grid", max_concurrent=2,
        policy="bandit(slack_factor=0.1)", gpus=0,
    )  # fmt: skip
    run.wait(DEADLINE)
    slow, fast = sorted(run.children(), key=lambda child: child.params["x"])
    assert slow.early and slow.state == "canceled" and slow.detail
    assert fast.best and not fast.early and fast.state == "completed"


@pytest.mark.thorough
def test_failed_trial_does_not_end_sweep(api: Any) -> None:
    code = LOG + "assert x != 2\nlog('loss', x, 0)\n"
    run = api.sweep(code, goal="minimize loss", params={"x": "choice(1, 2, 3)"}, sampler="grid", gpus=0).wait(DEADLINE)
    assert [child.state for child in run.children()] == ["completed", "failed", "completed"]
    assert "AssertionError" in run.children()[1].detail


@pytest.mark.thorough
def test_sweep_whose_first_trials_fail_stops_with_first_error(api: Any) -> None:
    run = api.sweep("raise ValueError('broken', x)", goal="minimize loss", params=SPACE, max_trials=12, gpus=0)
    with pytest.raises(RunFailed, match="broken"):
        run.wait(DEADLINE)
    assert 5 <= len(run.children()) < 12 and run.run.status.attempt == 1


@pytest.mark.thorough
def test_sweep_whose_target_never_has_its_gpus_fails(api: Any) -> None:
    run = api.sweep(QUADRATIC, goal="minimize loss", params=SPACE, gpus=99)
    with pytest.raises(RunFailed, match="99 GPUs"):
        run.wait(DEADLINE)


@pytest.mark.thorough
def test_sweep_whose_metric_is_not_logged_stops_and_names_what_is(api: Any) -> None:
    code = LOG + "log('val_loss', x, 0)\n"
    run = api.sweep(code, goal="minimize loss", params=SPACE, max_trials=12, max_concurrent=1, gpus=0)
    with pytest.raises(RunFailed, match="val_loss"):
        run.wait(DEADLINE)
    assert len(run.children()) == 1


@pytest.mark.thorough
def test_not_finite_metric_is_never_best(api: Any) -> None:
    code = "loss = float('nan') if x == 1 else float('inf') if x == 2 else 5.0"
    run = api.sweep(
        code, goal="minimize loss", params={"x": "choice(1, 2, 3)"}, sampler="grid", out=["loss"], gpus=0
    ).wait(DEADLINE)
    (best,) = (child for child in run.children() if child.best)
    assert best.params["x"] == 3


@pytest.mark.thorough
def test_cancel_while_driver_starts_again_cancels_its_trials(api: Any) -> None:
    run = api.sweep(
        LOG + "time.sleep(600 + x)", goal="minimize loss", params=SPACE, max_trials=8, max_concurrent=2, gpus=0
    )
    until(lambda: sum(child.state == "running" for child in run.children()) == 2, "two trials")
    trials = [api.attach(child.handle) for child in run.children()]
    driver_of(run).kill()
    run.cancel()
    until(lambda: all(trial.state == "canceled" for trial in trials), "the end of the trials")
    until(lambda: run.state == "canceled", "the end of the sweep")


def test_cancel_of_sweep_cancels_its_trials(api: Any) -> None:
    run = api.sweep(
        LOG + "time.sleep(600 + x)", goal="minimize loss", params=SPACE, max_trials=8, max_concurrent=2, gpus=0
    )
    until(lambda: sum(child.state == "running" for child in run.children()) == 2, "two trials")
    trials = [api.attach(child.handle) for child in run.children()]
    run.cancel()
    until(lambda: run.state == "canceled", "the end of the sweep")
    until(lambda: all(trial.state == "canceled" for trial in trials), "the end of the trials")


@pytest.mark.thorough
def test_time_limit_of_sweep_ends_its_trials(api: Any) -> None:
    code = LOG + "log('loss', x, 0)\ntime.sleep(600 if x > 1 else 0)\n"
    run = api.sweep(
        code, goal="minimize loss", params={"x": "choice(1, 2)"}, sampler="grid", max_duration=6, gpus=0
    ).wait(DEADLINE)
    assert [child.state for child in run.children()] == ["completed", "canceled"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "point", ["after_ask", *thorough("before_tell", "before_ask", "before_sent", "after_sent", "after_tell")]
)
def test_driver_killed_at_failpoint_loses_and_doubles_no_trial(tmp_path: Path, point: str) -> None:
    (tmp_path / "once").mkdir()
    failpoint = {"AMLTRAIN_FAILPOINT": f"sweep_{point}", "AMLTRAIN_FAILPOINT_ONCE": str(tmp_path / "once")}
    with api_of(tmp_path, AMLTRAIN_CPU_SLOTS="4", AMLTRAIN_RESTART_PAUSE="0", **failpoint) as api:
        run = api.sweep(QUADRATIC, goal="minimize loss", params=SPACE, seed=1, max_trials=5, max_concurrent=2, gpus=0)
        run.wait(DEADLINE)
        assert run.run.status.attempt == 2
        check_whole(api, run, 5)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "seed", [0, *thorough(1, 2), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 20))]
)
def test_driver_killed_at_any_moment_finds_same_best_trial(api: Any, seed: int) -> None:
    chance = random.Random(seed)
    sampler = chance.choice(["random", "sobol", "grid", "bayesian"])
    space = {"x": "choice(0, 1, 2, 3, 4, 5, 6, 7)"} if sampler == "grid" else SPACE
    concurrent = 1 if sampler == "bayesian" else 4
    values = {
        "goal": "minimize loss", "params": space, "sampler": sampler, "seed": seed, "max_trials": 8,
        "max_concurrent": concurrent, "gpus": 0,
    }  # fmt: skip
    undisturbed = api.sweep(QUADRATIC, **values)
    undisturbed.wait(DEADLINE)
    run = api.sweep(QUADRATIC + "time.sleep(0.3)\n", **values)
    for _ in range(2):
        time.sleep(chance.uniform(0, 3))
        if run.run.status.state.terminal:
            break
        driver_of(run).send_signal(signal.SIGKILL)
    run.wait(DEADLINE)
    check_whole(api, run, 8)
    expected, found = ({child.number: child.params for child in one.children()} for one in (undisturbed, run))
    assert found == expected
    assert [c.number for c in run.children() if c.best] == [c.number for c in undisturbed.children() if c.best]


def end_driver_as_by_reboot(api: Any, run: Any) -> None:
    """Kill the processes of the agent and of the driver, and change the boot in their files."""
    state = Path(run.run.folder) / "state.json"
    found = json.loads(state.read_text())
    processes = [psutil.Process(found[name]["pid"]) for name in ("guardian", "supervisor", "rank")]

    async def dispatcher() -> int:
        return int((await api.controller().backend("local")._transport.call("info", {}))["pid"])

    processes.insert(0, psutil.Process(api.controller().loop.call(dispatcher(), DEADLINE)))
    for process in processes:
        process.kill()
        until(lambda one=process: not one.is_running() or one.status() == psutil.STATUS_ZOMBIE, "its end")
    for file in (state, *Path(os.environ["AMLTRAIN_QUEUE"]).glob("slots/*.json")):
        content = json.loads(file.read_text())
        if file == state or content.get("run") == run.run_id:
            file.write_text(json.dumps({**content, "boot": "an earlier boot"}))


@pytest.mark.thorough
def test_driver_with_secrets_after_reboot_is_lost_and_names_line_that_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    code = f"""{LOG}
while x > 1 and not os.path.exists({str(go)!r}):
    time.sleep(0.05)
assert os.environ["TOKEN"] == "hidden"
log('loss', x, 0)
"""
    with api_of(tmp_path, AMLTRAIN_CPU_SLOTS="4", AMLTRAIN_RESTART_PAUSE="0") as api:
        lost = api.sweep(
            code, goal="minimize loss", params={"x": "choice(1, 2)"}, sampler="grid", gpus=0,
            secrets={"TOKEN": "hidden"},
        )  # fmt: skip
        until(lambda: [child.state for child in lost.children()] == ["completed", "running"], "the second trial")
        end_driver_as_by_reboot(api, lost)
        until(lambda: api.attach(lost.handle).state == "lost", "the end of the sweep")
        with pytest.raises(RunLost) as error:
            lost.wait(DEADLINE)
        message = str(error.value)
        assert "secrets" in message and f"--continue {lost.handle}" in message and "\n" not in message
        assert "hidden" not in message and "Traceback" not in message
        go.touch()
        monkeypatch.setenv("TOKEN", "hidden")
        line = message[message.index("--continue") :].split()
        run_again = run("sweep", line, Context(prog="%aml_sweep")).value.wait(DEADLINE)
        assert {child.state for child in run_again.children()} == {"completed"}
        assert [child.params["x"] for child in run_again.children()] == [1, 2]


@pytest.mark.thorough
def test_values_of_trials_are_known_after_death_of_driver_without_policy(api: Any, tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = f"""{LOG}
for step in range(60):
    log('loss', x * 100 - step, step)
while x == 2 and not os.path.exists({str(go)!r}):
    time.sleep(0.05)
log('loss', x, 60)
"""
    run = api.sweep(code, goal="minimize loss", params={"x": "choice(1, 2)"}, sampler="grid", gpus=0)
    until(lambda: [child.ended is None for child in run.children()] == [False, True], "the end of the first trial")
    until(lambda: run.children()[1].value == 141, "the values of the second trial")
    driver_of(run).kill()
    until(lambda: run.run.status.attempt == 2 and driver_of(run), "the second driver")
    go.touch()
    run.wait(DEADLINE)
    check_whole(api, run, 2)
    assert not [event for event in journal(run) if event.op == REPORT]
    for child in run.children():
        assert child.value == child.params["x"] == child.values[-1] and child.steps[-1] == 60
        assert 2 < len(child.steps) <= MAX_CURVE_POINTS and child.steps[0] == 0


@pytest.mark.thorough
def test_sweep_continues_without_kernel(api: Any) -> None:
    run = api.sweep(QUADRATIC, goal="minimize loss", params=SPACE, seed=1, max_trials=6, max_concurrent=2, gpus=0)
    handle = run.handle
    api.close()  # as a kernel that ends
    again = api.attach(handle)
    again.wait(DEADLINE)
    check_whole(api, again, 6)


@pytest.mark.thorough
def test_sweep_of_killed_kernel_finds_same_best_trial(api: Any, tmp_path: Path) -> None:
    values = {"goal": "minimize loss", "params": SPACE, "seed": 5, "max_trials": 6, "max_concurrent": 3, "gpus": 0}
    undisturbed = api.sweep(QUADRATIC, **values).wait(DEADLINE)
    go = tmp_path / "go"
    line = (
        "%%aml_sweep --param x=uniform(0,5) --goal 'minimize loss' --seed 5 --max-trials 6 --max-concurrent 3 --gpus 0"
    )
    cell = f"{LOG}\nwhile not os.path.exists({str(go)!r}):\n    time.sleep(0.05)\nlog('loss', (x - 2) ** 2, 0)\n"
    environ = {**os.environ, "IPYTHONDIR": str(tmp_path / "ipython"), "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime")}
    with kernel(environ, tmp_path) as live:
        live.run("%load_ext jupyter_amltrain")
        live.run(f"{line} --as sweep\n{cell}")
        run = api.attach(live.run("print(sweep.handle, end='')").stdout)
        until(lambda: [child.state for child in run.children()] == ["running"] * 3, "three trials")
        process = psutil.Process(live.pid)
        live.kill()
        process.wait(DEADLINE)
    go.touch()
    run.wait(DEADLINE)
    check_whole(api, run, 6)
    expected, found = ([(c.number, c.params, c.value, c.best) for c in one.children()] for one in (undisturbed, run))
    assert found == expected
    assert {child.state for child in run.children()} == {"completed"} and run.run.status.attempt == 1


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"params": {"x": "unifrom(0, 1)"}}, ""),
        ({"params": {"x": "uniform(1, 0)"}}, ""),
        ({"params": {"x": "uniform(1)"}}, ""),
        ({"params": {"x": "uniform(0, 1)"}, "sampler": "grid"}, ""),
        ({"params": {"x": "loguniform(-6, -1)"}}, ""),
        ({"params": {"lambda": "uniform(0, 1)"}}, ""),
        ({"params": {"x": 1}}, ""),
        ({"params": SPACE, "policy": "bandit"}, ""),
        ({"params": SPACE, "policy": "bandits(slack_factor=1)"}, ""),
        ({"params": SPACE, "max_concurrent": 0}, ""),
        ({"params": SPACE, "max_concurrent": 5, "target": "local,local"}, ""),
        ({"params": SPACE, "sampler": "tpe"}, ""),
        ({"params": SPACE, "goal": "loss"}, ""),
    ],
)
def test_invalid_sweep_is_refused_before_anything_runs(api: Any, values: dict[str, Any], code: str) -> None:
    before = os.listdir(Path(os.environ["AMLTRAIN_HOME"]) / "runs")
    with pytest.raises((SpecError, CommandError)) as error:
        api.sweep(QUADRATIC, **{"goal": "minimize loss", "gpus": 0, **values})
    assert error.value.code and "\n" not in str(error.value)
    assert os.listdir(Path(os.environ["AMLTRAIN_HOME"]) / "runs") == before


@pytest.mark.thorough
def test_continued_sweep_learns_from_trials_and_keeps_them(api: Any) -> None:
    first = api.sweep(QUADRATIC, goal="minimize loss", params={"x": "choice(1, 2, 5)"}, sampler="grid", gpus=0)
    first.wait(DEADLINE)
    line = f"--continue {first.handle} --param x=choice(2,3,4)"
    context = Context(prog="%aml_sweep")
    again = run("sweep", line.split(), context).value.wait(DEADLINE)
    children = again.children()
    assert [child.params["x"] for child in children] == [1, 2, 5, 3, 4]  # 2 is not tried again
    assert [child.number for child in children] == [0, 1, 2, 3, 4]
    assert [child.params["x"] for child in children if child.best] == [2]
    assert api.attach("best").handle == children[1].handle
    line = f"--continue {first.handle} --param x=uniform(1,3) --sampler bayesian --max-trials 1"
    assert len(run("sweep", line.split(), context).value.wait(DEADLINE).children()) == 4
    with pytest.raises(CommandError, match="not a sweep"):
        run("sweep", ["--continue", children[1].handle], context)


@pytest.mark.thorough
def test_continued_sweep_without_code_takes_flags_of_its_line(api: Any) -> None:
    code = f"{LOG}\nlog('loss', (x - 2) ** 2, 0)\n"
    first = api.sweep(code, goal="minimize loss", params=SPACE, max_trials=1, tags={"a": "1"}, gpus=0).wait(DEADLINE)
    line = f"--continue {first.handle} --max-trials 1 --name more --tag b=2 --timeout 50 --gpus 0"
    again = run("sweep", line.split(), Context(prog="%aml_sweep")).value.wait(DEADLINE)
    trial = again.run.spec.trial
    assert again.run.spec.name == "more" and (trial.timeout, trial.tags) == (50, {"a": "1", "b": "2"})
    with pytest.raises(CommandError) as refused:
        run("sweep", f"--continue {first.handle} --pip rich".split(), Context(prog="%aml_sweep"))
    assert (refused.value.code, refused.value.field) == ("sweep.continue", "environment.pip")


@pytest.mark.thorough
def test_continued_sweep_that_still_runs_has_other_numbers_and_names(api: Any, tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = f"{LOG}\nwhile not os.path.exists({str(go)!r}):\n    time.sleep(0.05)\nlog('loss', (x - 2) ** 2, 0)\n"
    first = api.sweep(
        code, goal="minimize loss", params=SPACE, seed=1, max_trials=4, max_concurrent=2, name="search", gpus=0
    )
    context = Context(prog="%aml_sweep")
    until(first.children, "trials")
    second = run("sweep", ["--continue", first.handle, "--max-trials", "2"], context).value
    until(second.children, "trials of the second sweep")
    third = run("sweep", ["--continue", second.handle, "--max-trials", "1"], context).value
    until(third.children, "the trial of the third sweep")
    go.touch()
    numbers = [
        [(child.number, child.name) for child in one.wait(DEADLINE).children()] for one in (first, second, third)
    ]
    assert numbers == [[(number, f"search-{number}") for number in own] for own in (range(4), (4, 5), (6,))]
    last = run("sweep", ["--continue", third.handle, "--max-trials", "1"], context).value.wait(DEADLINE)
    assert [child.number for child in last.children()] == [6, 7]
