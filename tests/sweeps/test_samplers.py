"""Proposals: distributions, determinism, replay, exhaustion of finite spaces, importances."""

from __future__ import annotations

import logging
import math
import time
import warnings
from typing import Any

import pytest

from jupyter_amltrain.jobs.sweep import new_seed
from jupyter_amltrain.schema.search_space import grid_point, grid_size, parse_expression, positions, value_key
from jupyter_amltrain.schema.sweep import SAMPLERS, Objective, Sampler, Sweep, SweepLimits
from jupyter_amltrain.sweeps.samplers import MIN_IMPORTANCE_TRIALS, Proposer, importances, study_of


def sweep_of(sampler: Sampler, /, seed: int = 7, concurrent: int = 1, **space: str) -> Sweep:
    return Sweep(
        space={name: parse_expression(name, text) for name, text in space.items()},
        objective=Objective("loss", "minimize"),
        sampler=sampler,
        seed=seed,
        limits=SweepLimits(max_concurrent=concurrent),
    )


MIXED = {
    "lr": "loguniform(1e-4,1e-1)",
    "size": "choice(16,32,64)",
    "opt": "choice({model: sgd, momentum: uniform(0.1,1)}, {model: adam})",
    "shift": "normal(0,1)",
}
FINITE = {"a": "randint(3)", "b": "choice(x,y)", "opt": "choice({m: 1, c: choice(1,2)}, {m: 2})"}
FLAT = {"lr": "loguniform(1e-4,1e-1)", "size": "choice(16,32,64)", "units": "quniform(8,128,8)"}


def loss(values: dict[str, Any]) -> float:
    return (math.log10(values["lr"]) + 2.5) ** 2 + values["size"] / 64


def run(proposer: Proposer, trials: int, concurrent: int = 1) -> list[dict[str, Any]]:
    """Ask `concurrent` trials ahead; every fifth one has no result."""
    proposals: list[dict[str, Any]] = []
    waiting: list[int] = []
    while len(proposals) < trials and (proposal := proposer.ask()) is not None:
        number, values = proposal
        proposals.append(values)
        waiting.append(number)
        if len(waiting) >= concurrent:
            finished = waiting.pop(0)
            score = loss(proposals[finished]) if "lr" in proposals[finished] else float(finished % 4)
            proposer.tell(finished, None if finished % 5 == 4 else score)
    return proposals


@pytest.mark.thorough
@pytest.mark.parametrize("space", [MIXED, FINITE], ids=["mixed", "finite"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_replayed_calls_give_the_same_proposals(sampler: Sampler, space: dict[str, str]) -> None:
    if sampler == "grid":
        space = FINITE
    sweep = sweep_of(sampler, concurrent=4, **space)
    first, second = (run(Proposer(sweep), 30, concurrent=4) for _ in range(2))
    assert first == second
    assert all(positions(sweep.space, values) is not None for values in first)


@pytest.mark.parametrize("sampler", ["random", "sobol", "grid"])
def test_proposals_without_results_equal_those_with_results(sampler: Sampler) -> None:
    sweep = sweep_of(sampler, **(FINITE if sampler == "grid" else MIXED))
    silent = Proposer(sweep)
    assert [proposal[1] for _ in range(18) if (proposal := silent.ask())] == run(Proposer(sweep), 18)


def test_bayesian_proposals_depend_on_results() -> None:
    sweep = sweep_of("bayesian", **FLAT)
    silent = Proposer(sweep)
    assert [proposal[1] for _ in range(20) if (proposal := silent.ask())] != run(Proposer(sweep), 20)


@pytest.mark.parametrize("sampler", ["random", "sobol", "bayesian"])
def test_other_seed_gives_other_proposals(sampler: Sampler) -> None:
    assert run(Proposer(sweep_of(sampler, seed=1, **MIXED)), 5) != run(Proposer(sweep_of(sampler, seed=2, **MIXED)), 5)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_finite_space_has_each_point_once_and_then_none(sampler: Sampler) -> None:
    sweep = sweep_of(sampler, **FINITE)
    proposer = Proposer(sweep)
    proposals = run(proposer, 1000)
    assert len(proposals) == grid_size(sweep.space) == 18
    assert {value_key(sorted(values.items())) for values in proposals} == {
        value_key(sorted(grid_point(sweep.space, index).items())) for index in range(18)
    }
    assert proposer.ask() is None and proposer.ask() is None


@pytest.mark.parametrize("sampler", ["random", "sobol", "bayesian"])
def test_points_of_low_probability_are_proposed_at_the_end(sampler: Sampler) -> None:
    # Half of the multiples have a probability below 1 %.
    proposals = run(Proposer(sweep_of(sampler, q="qloguniform(1e-3,100,10)")), 100)
    assert sorted(values["q"] for values in proposals) == list(range(0, 101, 10))


def test_grid_varies_the_last_parameter_fastest() -> None:
    proposals = run(Proposer(sweep_of("grid", a="choice(1,2)", b="choice(x,y)")), 9)
    assert proposals == [{"a": a, "b": b} for a in (1, 2) for b in ("x", "y")]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_huge_finite_space_is_not_enumerated(sampler: Sampler) -> None:
    sweep = sweep_of(sampler, **{f"p{i}": "randint(1000000)" for i in range(6)})
    start = time.monotonic()
    proposals = run(Proposer(sweep), 20)
    assert len({value_key(values) for values in proposals}) == 20 and time.monotonic() - start < 20


def test_options_with_equal_values_are_proposed_once() -> None:
    for sampler in SAMPLERS:
        proposals = run(Proposer(sweep_of(sampler, x="choice({a: 1}, {a: choice(1,2)})")), 9)
        assert sorted(values["a"] for values in proposals) == [1, 2]


def test_sobol_covers_the_space_evenly() -> None:
    proposals = run(Proposer(sweep_of("sobol", x="uniform(0,1)", y="choice(a,b,c,d)")), 64)
    assert sorted(int(values["x"] * 64) for values in proposals) == list(range(64))
    assert {sum(values["y"] == y for values in proposals) for y in "abcd"} == {16}


def test_random_has_the_distribution_of_the_expression() -> None:
    proposals = run(Proposer(sweep_of("random", lr="loguniform(1e-4,1e-2)", size="randint(4)")), 1000)
    assert 420 < sum(values["lr"] < 1e-3 for values in proposals) < 580
    assert all(190 < sum(values["size"] == size for values in proposals) < 310 for size in range(4))


def test_bayesian_is_better_than_random() -> None:
    def best(sampler: Sampler) -> float:
        scores = []
        for seed in range(3):
            proposer = Proposer(sweep_of(sampler, seed=seed, x="uniform(-5,5)", y="loguniform(1e-4,1)"))
            for _ in range(40):
                proposal = proposer.ask()
                assert proposal is not None
                number, values = proposal
                score = values["x"] ** 2 + (math.log10(values["y"]) + 2) ** 2
                scores.append(score if number else math.inf)
                proposer.tell(number, score)
        return sorted(scores)[10]

    assert best("bayesian") < best("random")


def test_results_that_are_not_finite_are_accepted() -> None:
    proposer = Proposer(sweep_of("bayesian", x="uniform(0,1)"))
    for value in [math.nan, math.inf, -math.inf, None, 1.0] * 4:
        proposal = proposer.ask()
        assert proposal is not None
        proposer.tell(proposal[0], value)
    assert proposer.ask() is not None


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_result_of_unknown_or_finished_trial_is_refused(sampler: Sampler) -> None:
    proposer = Proposer(sweep_of(sampler, a="choice(1,2)"))
    with pytest.raises(ValueError, match="0"):
        proposer.tell(0, 1.0)
    proposer.ask()
    proposer.tell(0, 1.0)
    with pytest.raises(ValueError, match="0"):
        proposer.tell(0, 1.0)


def test_sweep_without_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="seed"):
        Proposer(Sweep(space={"a": parse_expression("a", "uniform(0,1)")}, objective=Objective("m", "maximize")))
    assert new_seed() != new_seed() and 0 <= new_seed() < 2**31


def test_optuna_logs_and_warns_nothing(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    import optuna

    before = optuna.logging.get_verbosity()
    with caplog.at_level(logging.DEBUG), warnings.catch_warnings():
        warnings.simplefilter("error")
        for sampler in SAMPLERS:
            run(Proposer(sweep_of(sampler, concurrent=2, **(FINITE if sampler == "grid" else MIXED))), 15)
    assert capfd.readouterr() == ("", "") and optuna.logging.get_verbosity() == before


# -- importances -----------------------------------------------------------------------------------------------------


def trials_of(sweep: Sweep, count: int) -> list[tuple[dict[str, Any], float]]:
    return [(values, loss(values)) for values in run(Proposer(sweep), count)]


def test_importances_rank_the_parameter_that_matters_first() -> None:
    sweep = sweep_of("random", **MIXED)
    result = importances(sweep, trials_of(sweep, 200))
    assert next(iter(result)) == "lr" and result["lr"] > 0.5
    assert sum(result.values()) == pytest.approx(1)


def test_importances_of_few_or_equal_trials_are_empty() -> None:
    sweep = sweep_of("random", **MIXED)
    trials = trials_of(sweep, MIN_IMPORTANCE_TRIALS)
    assert importances(sweep, trials[1:]) == {} and importances(sweep, []) == {}
    assert importances(sweep, [(values, 1.0) for values, _ in trials]) == {}
    assert importances(sweep, [(values, math.nan) for values, _ in trials]) == {}
    assert importances(sweep, trials) != {}


@pytest.mark.thorough
def test_importances_of_a_thousand_trials_take_less_than_a_second() -> None:
    sweep = sweep_of("random", **MIXED)
    trials = trials_of(sweep, 1000)
    importances(sweep, trials[:MIN_IMPORTANCE_TRIALS])  # imports Optuna
    start = time.process_time()
    importances(sweep, trials)
    assert time.process_time() - start < 3  # 0.6 s; the test's machine is shared


ALL = {
    "c": 'choice(1,"x",true,null,[1,2])',
    "r": "randint(5)",
    "u": "uniform(0,1)",
    "qu": "quniform(0,1,0.1)",
    "lu": "loguniform(0.1,10)",
    "qlu": "qloguniform(1,100,1)",
    "n": "normal(0,1)",
    "qn": "qnormal(10,3,1)",
    "ln": "lognormal(0,1)",
    "qln": "qlognormal(3,1,1)",
    "group": "choice({kind: 1, depth: uniform(0,1)}, {kind: b, depth: loguniform(1,2)}, {})",
}


def test_study_has_the_values_of_all_expressions() -> None:
    sweep = sweep_of("random", **ALL)
    trials = [(values, values["u"]) for values in run(Proposer(sweep), 60)]
    study = study_of(sweep, [*trials, ({"other": 1}, 1.0), (trials[0][0], math.inf)])
    assert len(study.trials) == 60 and study.direction.name == "MINIMIZE"
    for trial, (values, value) in zip(study.trials, trials, strict=True):
        expected = {name: "[1,2]" if part == [1, 2] else part for name, part in values.items()}
        assert trial.params == expected and trial.value == value
    assert study.best_params["u"] == min(values["u"] for values, _ in trials)
    assert importances(sweep, trials)["u"] > 0.2
