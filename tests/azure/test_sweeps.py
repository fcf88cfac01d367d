"""Sweeps that the emulated Azure runs, beside the same sweeps on this machine."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.commands.resubmit import repeated_spec
from jupyter_amltrain.errors import AmlTrainError, CommandError, SpecError
from jupyter_amltrain.schema import az_yaml, az_yaml_job
from tests.azure import yaml_files
from tests.azure.conftest import Azure
from tests.azure.connected_api import lab, log
from tests.azure.official_examples import SOURCE
from tests.helpers import DEADLINE, until

CELL = """\
import json
loss = (x - 2) ** 2 + len(name) / 10 + (0.5 if flag else 0)
print(json.dumps([x, type(x).__name__, name, flag, scale]))
"""
HDCONFIG = """\
sampling:
  type: grid
  parameter_space:
    - {name: --lr, expression: choice, values: [[0.1, 0.2]]}
    - {name: --size, expression: choice, values: [[16, 32]]}
policy: {type: MedianStopping, evaluation_interval: 1}
primary_metric_name: score
primary_metric_goal: MAXIMIZE
max_total_runs: 4
max_concurrent_runs: 3
"""
GRID = {"x": "choice(1, 2)", "name": "choice(a, bcd)", "flag": "choice(true, false)", "scale": 3}


@pytest.fixture(scope="module")
def api(azure: Azure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with lab(azure, tmp_path_factory.mktemp("sweeps"), AMLTRAIN_CPU_SLOTS="4") as module:
        yield module


def command(line: str, cell: str | None = None) -> Any:
    """What ``%aml_sweep LINE`` gives: the run, or its text."""
    from jupyter_amltrain.commands import magic_line, registry

    context = registry.Context(prog="%%aml_sweep" if cell else "%aml_sweep", cell=cell)
    context = dataclasses.replace(context, submitted=lambda run, submission: registry.Result("", run))
    found = registry.run("sweep", magic_line.split(line), context)
    return found.data if found.data is not None else found.text


def point(child: Any) -> tuple[Any, ...]:
    return tuple(sorted((name, type(value).__name__, value) for name, value in child.params.items()))


@pytest.mark.thorough
def test_same_cell_with_grid_tries_same_points_here_and_in_azure(api: Any) -> None:
    runs = [
        api.sweep(CELL, goal="minimize loss", params=GRID, sampler="grid", out=["loss"], target=target, gpus=gpus)
        for target, gpus in (("local", 0), ("cpu", None))
    ]
    here, there = (run.wait(DEADLINE) for run in runs)
    assert sorted(map(point, here.children())) == sorted(map(point, there.children()))
    assert {point(one): one.value for one in here.children()} == {point(one): one.value for one in there.children()}
    best = [next(one for one in run.children() if one.best) for run in (here, there)]
    assert best[0].params == best[1].params == {"x": 2, "name": "a", "flag": False}
    assert there.params == {"scale": 3} and [one.number for one in there.children()] == list(range(8))
    assert here.result("loss") == there.result("loss") == best[0].value
    board = there.record().sweep
    assert board.number[board.best] == best[1].number and board.params["name"][best[1].number] == "a"
    trial = there.children()[0]
    printed = json.loads(there.logs(step=trial.id).splitlines()[0])
    assert printed == [trial.params["x"], "int", trial.params["name"], trial.params["flag"], 3]
    attached = api.attach(trial.handle)
    assert attached.state == "completed" and attached.spec.sweep is None
    assert json.loads(log(attached).splitlines()[0])[0] == trial.params["x"]


@pytest.mark.thorough
def test_sweep_of_service_runs_again_with_other_fixed_value(api: Any) -> None:
    first = api.sweep(CELL, goal="minimize loss", params={**GRID, "flag": False, "x": 1}, sampler="grid", target="cpu")
    first.wait(DEADLINE)
    again = api.submit_spec(repeated_spec(first, {"scale": 4}), target="cpu").wait(DEADLINE)
    assert [child.params for child in again.children()] == [child.params for child in first.children()]
    assert [json.loads(again.logs(step=child.id).splitlines()[0])[4] for child in again.children()] == [4, 4]
    with pytest.raises(CommandError) as error:
        repeated_spec(first, {}, target="local")
    assert error.value.code == "again.sweep"


CURVE = """\
import mlflow, time
for step in range(200):
    mlflow.log_metric("score", x, step=step)
    time.sleep(0.1 if x < 50 else 0)
    if x > 50 and step > 5:
        break
"""


@pytest.mark.thorough
def test_policy_of_service_stops_trial_and_curves_are_read(api: Any) -> None:
    run = api.sweep(
        CURVE, goal="maximize score", params={"x": "choice(1, 100)"}, sampler="grid", max_concurrent=2,
        policy="bandit(slack_factor=0.1)", target="free",
    )  # fmt: skip
    run.wait(DEADLINE)
    slow, fast = run.children()
    assert (slow.early, slow.state, fast.early, fast.state) == (True, "canceled", False, "completed")
    assert slow.detail and fast.best and fast.steps[-1] == 6 and set(fast.values) == {100.0}
    assert run.record().sweep.policy == "bandit(slack_factor=0.1)"


@pytest.mark.thorough
def test_script_gets_searched_values_as_arguments(api: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv[1:])\n")
    params = {"n": "quniform(8, 64, 8)", "rate": "loguniform(1e-4, 1e-1)", "flag": "choice(true)", "scale": 3}
    run = api.sweep(
        tmp_path / "train.py", goal="minimize loss", params=params, sampler="sobol", seed=1, max_trials=1, target="cpu"
    ).wait(DEADLINE)
    (trial,) = run.children()
    words = [f"--scale {3}", f"--n {trial.params['n']}", f"--rate {trial.params['rate']}", "--flag true"]
    assert run.logs(step=trial.id).splitlines()[0] == str(" ".join(words).split())
    assert type(trial.params["n"]) is int and trial.params["n"] % 8 == 0


def test_cancel_of_sweep_ends_its_trials(api: Any) -> None:
    run = api.sweep(
        "import time; time.sleep(600 + x)", goal="minimize loss", params={"x": "uniform(0, 1)"}, max_trials=4,
        max_concurrent=2, policy="median_stopping", target="cpu",
    )  # fmt: skip
    until(lambda: any(child.state == "running" for child in run.children()), "a trial")
    run.cancel()
    until(lambda: run.state == "canceled", "the end")
    assert {child.state for child in run.children()} == {"canceled"} and not any(c.early for c in run.children())


@pytest.mark.parametrize(
    ("params", "more"),
    [
        ({"x": "lognormal(0, 1)"}, {"sampler": "bayesian"}),
        ({"x": "uniform(0, 1)"}, {"sampler": "bayesian", "policy": "median_stopping"}),
        ({"x": "choice({a: 1}, {b: 2})"}, {}),
        ({"x": "choice(null, 1)"}, {}),
        ({"x": "choice('$HOME', b)"}, {}),
        ({"x": "choice(1, '1')"}, {}),
        ({"x": "uniform(0, 1)"}, {"seed": 2**31}),
        ({"x": "uniform(0, 1)"}, {"services": ["jupyterlab"]}),
    ],
)
def test_sweep_that_service_cannot_run_is_refused_in_one_line(
    api: Any, params: dict[str, str], more: dict[str, Any]
) -> None:
    with pytest.raises(SpecError) as error:
        api.sweep("print(x)", goal="minimize loss", params=params, target="cpu", **more)
    assert "\n" not in str(error.value)


def test_sweep_on_deleted_compute_is_refused(api: Any, azure: Azure) -> None:
    from tests.azure.connected_api import carry_out

    carry_out("create short --kind amlcompute --size Standard_DS2_v2")
    azure.control("/gone", below="/computes/short")
    try:
        with pytest.raises(AmlTrainError, match="short"):
            api.sweep("print(x)", goal="minimize loss", params={"x": "uniform(0, 1)"}, target="short")
    finally:
        carry_out("delete short")


@pytest.mark.thorough
def test_official_sweep_file_runs_here_and_in_azure(api: Any, tmp_path: Path) -> None:
    shutil.copytree(SOURCE, tmp_path / "examples")
    file = tmp_path / "examples" / "cli" / "jobs" / "basics" / "hello-sweep.yml"
    here = api.sweep(file, target="local", params={"A": 0.25})
    there = command(f"{file} --target cpu --param A=0.25")
    for run in (here, there):
        run.wait(DEADLINE)
        board = run.record().sweep
        assert run.state == "completed" and set(board.params) == {"B", "C"} and board.best is not None, run.logs()
        assert [set(child.params) for child in run.children()] == [{"B", "C"}] * 4
    assert api.attach(here.children()[0].handle).params["A"] == 0.25


@pytest.mark.thorough
def test_saved_sweep_is_read_back_as_the_same(api: Any, tmp_path: Path) -> None:
    line = "--param x=choice(1,2) --param rate=loguniform(1e-4,1e-1) --param scale=3 --seed 1 --max-trials 2"
    line += " --goal 'minimize loss' --policy 'bandit(slack_factor=99)' --out loss"
    cell = "loss = x + rate\nimport mlflow\nmlflow.log_metric('loss', loss)\nprint(type(x).__name__, rate, scale)\n"
    text = command(f"{line} --save {tmp_path}/sweep.yml --target local", cell)
    assert "%aml_sweep" in text
    spec = az_yaml_job.spec_of(az_yaml.load(tmp_path / "sweep.yml"))
    run = command(f"{tmp_path}/sweep.yml --target local")
    assert run.spec.sweep == spec.sweep
    run.wait(DEADLINE)
    assert [child.state for child in run.children()] == ["completed"] * 2, run.logs()
    trial = run.children()[0]
    assert log(api.attach(trial.handle)).splitlines()[-1] == f"int {trial.params['rate']} 3"
    there = command(f"{tmp_path}/sweep.yml --target cpu").wait(DEADLINE)
    assert [child.state for child in there.children()] == ["completed"] * 2
    assert there.run.spec.sweep == spec.sweep


def test_configuration_file_of_v1_is_changed_by_the_line(api: Any, tmp_path: Path) -> None:
    (tmp_path / "hd.yml").write_text(HDCONFIG)
    line = f"--config {tmp_path}/hd.yml --param size=16 --max-trials 2 --policy none --target cpu --dry-run"
    body = json.loads(command(line, "print(lr, size)"))["properties"]
    assert body["searchSpace"] == {"lr": ["choice", [[0.1, 0.2]]]} and "earlyTermination" not in body
    assert body["limits"]["maxTotalTrials"] == 2 and body["limits"]["maxConcurrentTrials"] == 2
    assert body["objective"] == {"goal": "Maximize", "primaryMetric": "score"}


@pytest.mark.parametrize(
    "line", ["{}/sweep.yml --goal 'minimize loss'", "{}/hello.yml", "{}/sweep.yml --param x=uniform(0,1)"]
)
def test_line_that_contradicts_a_file_is_refused(api: Any, tmp_path: Path, line: str) -> None:
    yaml_files.write(tmp_path, "sweep", "hello")
    with pytest.raises(AmlTrainError) as error:
        command(line.format(tmp_path))
    assert error.value.code in ("submit.flag_of_file", "sweep.type") and "\n" not in str(error.value)
