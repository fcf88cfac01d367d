"""Sweeps that the emulated Azure runs, beside the same sweeps on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.errors import AmlTrainError, SpecError
from tests.azure.conftest import Azure
from tests.azure.connected_api import lab, log
from tests.helpers import DEADLINE, until

CELL = """\
import json
loss = (x - 2) ** 2 + len(name) / 10 + (0.5 if flag else 0)
print(json.dumps([x, type(x).__name__, name, flag, scale]))
"""
GRID = {"x": "choice(1, 2)", "name": "choice(a, bcd)", "flag": "choice(true, false)", "scale": 3}


@pytest.fixture(scope="module")
def api(azure: Azure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with lab(azure, tmp_path_factory.mktemp("sweeps"), AMLTRAIN_CPU_SLOTS="4") as module:
        yield module


def point(child: Any) -> tuple[Any, ...]:
    return tuple(sorted((name, type(value).__name__, value) for name, value in child.params.items()))


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


CURVE = """\
import mlflow, time
for step in range(200):
    mlflow.log_metric("score", x, step=step)
    time.sleep(0.1 if x < 50 else 0)
    if x > 50 and step > 5:
        break
"""


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
        "import time; time.sleep(600)", goal="minimize loss", params={"x": "uniform(0, 1)"}, max_trials=4,
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
