"""Sweeps: flags, checks, and the forms of az ml, REST and HyperDrive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from jupyter_amltrain.azure.sweep_body import sweep_problem, sweep_to_rest
from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.schema.search_space import Choice, LogUniform, RandInt, Uniform, parse_expression
from jupyter_amltrain.schema.sweep import (
    DEFAULT_TRIALS,
    Bandit,
    MedianStopping,
    Objective,
    Policy,
    Sweep,
    SweepLimits,
    TruncationSelection,
    check_sweep,
    default_trials,
    goal_text,
    parse_goal,
    parse_policy,
    policy_text,
    trial_count,
)
from jupyter_amltrain.schema.sweep_file import sweep_from_hdconfig, sweep_from_yaml, sweep_to_yaml


def sweep_of(space: dict[str, str], **fields: Any) -> Sweep:
    fields.setdefault("objective", Objective("accuracy", "maximize"))
    return Sweep(space={name: parse_expression(name, text) for name, text in space.items()}, **fields)


LR = {"lr": "loguniform(1e-4,1e-1)", "size": "choice(16,32)"}


# -- flags -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["maximize accuracy", "maximize:accuracy", " Maximize  accuracy ", "max accuracy"])
def test_goal_names_metric_and_direction(text: str) -> None:
    goal = parse_goal(text)
    assert goal == Objective("accuracy", "maximize") and goal.maximize
    assert parse_goal(goal_text(goal)) == goal


@pytest.mark.parametrize("metric", ["val/loss", "val loss", "loss:total", "val-top_1.5"])
def test_goal_keeps_the_name_of_the_metric(metric: str) -> None:
    goal = Objective(metric, "minimize")
    assert parse_goal(goal_text(goal)) == goal and not goal.maximize


@pytest.mark.parametrize(
    ("text", "code", "word"),
    [
        ("accuracy", "goal", "maximize accuracy"),
        ("", "goal", "maximize"),
        ("maximze accuracy", "goal", "Did you mean"),
        ("minimize", "metric", "minimize accuracy"),
        ("minimize:", "metric", "minimize accuracy"),
    ],
)
def test_invalid_goal_is_refused(text: str, code: str, word: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_goal(text)
    assert caught.value.code == f"sweep.{code}" and word in str(caught.value)


POLICY_TEXTS: list[tuple[str, Policy | None]] = [
    (
        "bandit(slack_factor=0.1,evaluation_interval=2,delay_evaluation=5)",
        Bandit(slack_factor=0.1, evaluation_interval=2, delay_evaluation=5),
    ),
    ("bandit(slack_amount=0.2)", Bandit(slack_amount=0.2)),
    ("median_stopping", MedianStopping()),
    ("median_stopping(delay_evaluation=5)", MedianStopping(delay_evaluation=5)),
    ("truncation_selection(20)", TruncationSelection(truncation_percentage=20)),
    (
        "truncation_selection(20,exclude_finished_jobs=true)",
        TruncationSelection(truncation_percentage=20, exclude_finished_jobs=True),
    ),
    ("none", None),
]


@pytest.mark.parametrize(("text", "policy"), POLICY_TEXTS)
def test_policy_and_its_text_have_the_same_meaning(text: str, policy: Policy | None) -> None:
    assert parse_policy(text) == policy and policy_text(policy) == text


def test_policy_may_be_typed_in_other_ways() -> None:
    assert parse_policy(" Bandit( 0.1 , delay_evaluation = 5 ) ") == Bandit(slack_factor=0.1, delay_evaluation=5)
    assert parse_policy("truncation-selection(20%)") == TruncationSelection(truncation_percentage=20)
    assert parse_policy("median_stopping()") == MedianStopping()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("bandit", "slack"),
        ("bandit()", "slack"),
        ("bandit(slack_factor=0.1,slack_amount=1)", "one of them"),
        ("bandit(-0.1)", "0 or more"),
        ("bandit(nan)", "slack_factor"),
        ("bandit(x)", "number"),
        ("bandit(0.1,5)", "needs a name"),
        ("bandit(0.1,slack_factor=5)", "twice"),
        ("bandit(slack=0.1)", "slack_factor"),
        ("bandit(0.1,evaluation_interval=0)", "1 or more"),
        ("bandit(0.1,delay_evaluation=-1)", "0 or more"),
        ("bandit(0.1,delay_evaluation=1.5)", "whole"),
        ("truncation_selection", "percentage"),
        ("truncation_selection(0)", "1 to 99"),
        ("truncation_selection(100)", "1 to 99"),
        ("truncation_selection(20,exclude_finished_jobs=3)", "true or false"),
        ("median_stopping(5)", "needs a name"),
        ("medianstopping", "median_stopping"),
        ("pbt", "Supported"),
        ("none(1)", "policy"),
        ("bandit(0.1", "policy"),
        ("", "Supported"),
    ],
)
def test_invalid_policy_is_refused(text: str, word: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_policy(text)
    assert caught.value.code == "sweep.policy" and word in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.thorough
@given(st.text(max_size=30))
def test_any_text_of_a_flag_is_read_or_refused(text: str) -> None:
    for parse in (parse_goal, parse_policy):
        try:
            parse(text)
        except SpecError as error:
            assert error.code.startswith("sweep.")


# -- checks ----------------------------------------------------------------------------------------------------------


def test_valid_sweep_passes() -> None:
    check_sweep(sweep_of(LR, policy=Bandit(slack_factor=0.1), seed=1), {"epochs": 3})


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"space": {}}, "space.empty"),
        ({"space": {"lr": Uniform(1, 0)}}, "space.range"),
        ({"space": {"lr": Choice(())}}, "space.empty"),
        ({"sampler": "grid"}, "space.grid"),
        ({"sampler": "tpe"}, "sweep.sampler"),
        ({"seed": -1}, "sweep.seed"),
        ({"objective": Objective("", "maximize")}, "sweep.metric"),
        ({"policy": Bandit()}, "sweep.policy"),
        ({"policy": TruncationSelection(truncation_percentage=0)}, "sweep.policy"),
        ({"limits": SweepLimits(max_trials=0)}, "sweep.max_trials"),
        ({"limits": SweepLimits(max_trials=1001)}, "sweep.max_trials"),
        ({"limits": SweepLimits(max_concurrent=0)}, "sweep.max_concurrent"),
        ({"limits": SweepLimits(max_concurrent=1001)}, "sweep.max_concurrent"),
        ({"limits": SweepLimits(max_duration_s=0)}, "sweep.max_duration_s"),
        ({"limits": SweepLimits(trial_timeout_s=float("nan"))}, "sweep.trial_timeout_s"),
        ({"sampler": "grid", "space": {"a": RandInt(1001)}}, "sweep.max_trials"),
    ],
)
def test_invalid_sweep_is_refused(fields: dict[str, Any], code: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_sweep(msgspec.structs.replace(sweep_of(LR), **fields), {})
    assert caught.value.code == code and caught.value.field


@pytest.mark.parametrize("name", ["lr", "opt", "momentum"])
def test_parameter_that_is_fixed_and_swept_is_refused(name: str) -> None:
    sweep = sweep_of({"lr": "uniform(0,1)", "opt": "choice({momentum: uniform(0,1)}, {})"})
    with pytest.raises(SpecError, match=name) as caught:
        check_sweep(sweep, {name: 1})
    assert caught.value.code == "sweep.fixed"


def test_grid_with_a_limit_may_have_more_points_than_trials() -> None:
    check_sweep(sweep_of({"a": "randint(5000)"}, sampler="grid", limits=SweepLimits(max_trials=100)), {})


def test_number_of_trials_without_a_limit_is_the_default_or_the_whole_grid() -> None:
    assert default_trials("grid") is None and default_trials("random") == DEFAULT_TRIALS
    assert trial_count(sweep_of(LR)) == DEFAULT_TRIALS
    assert trial_count(sweep_of(LR, limits=SweepLimits(max_trials=7))) == 7
    assert trial_count(sweep_of({"a": "randint(50)"}, sampler="grid")) == 50
    assert trial_count(sweep_of({"a": "randint(3)"})) == 3


@pytest.mark.parametrize(
    ("space", "fields", "word"),
    [
        ({"lr": "loguniform(1e-4,1)"}, {"sampler": "bayesian"}, "loguniform"),
        ({"o": "choice({n: normal(0,1)})"}, {"sampler": "bayesian"}, "normal"),
        ({"lr": "uniform(0,1)"}, {"sampler": "bayesian", "policy": MedianStopping()}, "early termination"),
        ({"a": "choice(1,null)"}, {}, "null"),
        ({"a": "choice([1,2])"}, {}, "list"),
        (
            {"a": "randint(2)"},
            {"policy": TruncationSelection(truncation_percentage=20, exclude_finished_jobs=True)},
            "exclude_finished_jobs",
        ),
    ],
)
def test_sweep_problem_says_what_azure_refuses(space: dict[str, str], fields: dict[str, Any], word: str) -> None:
    sweep = sweep_of(space, **fields)
    check_sweep(sweep, {})
    assert word in sweep_problem(sweep)


@pytest.mark.parametrize(
    ("space", "sampler"),
    [
        ({"a": "choice(1,2)", "b": "uniform(0,1)", "c": "quniform(0,10,2)"}, "bayesian"),
        ({"a": "randint(3)", "b": "quniform(0,1,0.5)"}, "grid"),
        (LR, "sobol"),
    ],
)
def test_sweep_problem_is_empty_for_what_azure_supports(space: dict[str, str], sampler: Any) -> None:
    assert sweep_problem(sweep_of(space, sampler=sampler)) == ""


# -- az ml YAML ------------------------------------------------------------------------------------------------------

#: "hello-sweep.yml" of Azure/azureml-examples, with policy and sobol.
HELLO = """
type: sweep
trial: {command: "echo ${{search_space.B}}", environment: "azureml:env@latest"}
sampling_algorithm: {type: random, rule: sobol, seed: 123}
search_space:
  B: {type: choice, values: [hello, world, hello_world]}
  C: {type: uniform, min_value: 0.1, max_value: 1.0}
objective: {goal: minimize, primary_metric: random_metric}
early_termination: {type: bandit, slack_factor: 0.1, evaluation_interval: 1, delay_evaluation: 5}
limits: {max_total_trials: 4, max_concurrent_trials: 2, timeout: 3600, trial_timeout: 600}
"""


def test_yaml_is_read_and_written() -> None:
    sweep = sweep_from_yaml(yaml.safe_load(HELLO))
    assert sweep == Sweep(
        space={"B": Choice(("hello", "world", "hello_world")), "C": Uniform(0.1, 1.0)},
        sampler="sobol",
        seed=123,
        objective=Objective("random_metric", "minimize"),
        policy=Bandit(slack_factor=0.1, delay_evaluation=5),
        limits=SweepLimits(max_trials=4, max_concurrent=2, max_duration_s=3600, trial_timeout_s=600),
    )
    written = sweep_to_yaml(sweep)
    assert sweep_from_yaml(written) == sweep
    assert set(written) == {"sampling_algorithm", "search_space", "objective", "early_termination", "limits"}
    assert msgspec.json.decode(msgspec.json.encode(sweep), type=Sweep) == sweep


@pytest.mark.parametrize("sampler", ["random", "sobol", "bayesian"])
@pytest.mark.parametrize(
    "policy", [None, MedianStopping(delay_evaluation=3), TruncationSelection(truncation_percentage=9)]
)
def test_yaml_keeps_every_sampler_and_policy(sampler: Any, policy: Policy | None) -> None:
    limits = SweepLimits(max_trials=20, max_concurrent=4)
    seed = None if sampler == "bayesian" else 5  # Azure's has no seed
    sweep = sweep_of(LR, sampler=sampler, seed=seed, policy=policy, limits=limits)
    assert sweep_from_yaml(sweep_to_yaml(sweep)) == sweep


def test_grid_is_written_as_choices_that_azure_supports() -> None:
    sweep = sweep_of({"a": "randint(3)", "o": "choice({m: 1, q: quniform(0,1,0.5)})"}, sampler="grid")
    written = sweep_to_yaml(sweep)
    assert written["search_space"]["a"] == {"type": "choice", "values": [0, 1, 2]}
    assert written["search_space"]["o"]["values"][0]["q"] == {"type": "choice", "values": [0.0, 0.5, 1.0]}
    assert written["sampling_algorithm"] == "grid" and written["limits"]["max_total_trials"] == 9


def test_yaml_without_limits_has_azures_defaults() -> None:
    doc = yaml.safe_load(HELLO)
    doc["limits"] = None
    assert sweep_from_yaml(doc).limits == SweepLimits(max_trials=1000, max_concurrent=1000)
    doc["limits"] = {"max_total_trials": 8}
    assert sweep_from_yaml(doc).limits.max_concurrent == 8


def test_logbase_is_the_base_of_exponents() -> None:
    doc = yaml.safe_load(HELLO)
    doc["sampling_algorithm"] = {"type": "random", "logbase": 10}
    doc["search_space"] = {"lr": {"type": "loguniform", "min_value": -3, "max_value": -1}}
    e = sweep_from_yaml(doc).space["lr"]
    assert isinstance(e, LogUniform) and (e.low, e.high) == pytest.approx((1e-3, 0.1))


def test_slack_of_zero_is_a_placeholder_only_beside_another() -> None:
    doc = yaml.safe_load(HELLO)
    doc["early_termination"] = {"type": "bandit", "slack_factor": 0, "slack_amount": 0.2, "evaluation_interval": 0}
    assert sweep_from_yaml(doc).policy == Bandit(slack_amount=0.2)
    doc["early_termination"] = {"type": "bandit", "slack_factor": 0}
    assert sweep_from_yaml(doc).policy == Bandit(slack_factor=0)


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("search_space", None, "search_space"),
        ("search_space", [1], "search_space"),
        ("search_space", {"x": {"type": "nothing"}}, "search_space.x"),
        ("sampling_algorithm", "tpe", "sampling_algorithm"),
        ("sampling_algorithm", {"type": "random", "rule": "halton"}, "rule"),
        ("sampling_algorithm", {"type": "random", "seed": "x"}, "seed"),
        ("sampling_algorithm", {"type": "random", "logbase": "x"}, "logbase"),
        ("objective", None, "objective"),
        ("objective", {"goal": "maximize"}, "metric"),
        ("objective", {"goal": "best", "primary_metric": "m"}, "goal"),
        ("early_termination", {"type": "hyperband"}, "early_termination"),
        ("early_termination", {"type": "bandit"}, "slack"),
        ("early_termination", {"type": "bandit", "slack_factor": 0, "slack_amount": 0}, "slack"),
        ("early_termination", {"type": "bandit", "slack_factor": "x"}, "slack_factor"),
        ("early_termination", {"type": "truncation_selection"}, "percentage"),
        ("limits", {"max_total_trials": "many"}, "max_total_trials"),
        ("limits", 3, "limits"),
    ],
)
def test_invalid_yaml_names_its_key(key: str, value: Any, word: str) -> None:
    with pytest.raises(SpecError, match=word) as caught:
        sweep_from_yaml({**yaml.safe_load(HELLO), key: value})
    assert caught.value.code


# -- REST ------------------------------------------------------------------------------------------------------------


def test_rest_has_the_properties_of_a_sweep_job() -> None:
    assert sweep_to_rest(sweep_from_yaml(yaml.safe_load(HELLO))) == {
        "searchSpace": {"B": ["choice", [["hello", "world", "hello_world"]]], "C": ["uniform", [0.1, 1.0]]},
        "samplingAlgorithm": {"samplingAlgorithmType": "Random", "rule": "Sobol", "seed": 123},
        "objective": {"goal": "Minimize", "primaryMetric": "random_metric"},
        "earlyTermination": {
            "policyType": "Bandit",
            "slackFactor": 0.1,
            "evaluationInterval": 1,
            "delayEvaluation": 5,
        },
        "limits": {
            "jobLimitsType": "Sweep",
            "maxTotalTrials": 4,
            "maxConcurrentTrials": 2,
            "timeout": "PT1H",
            "trialTimeout": "PT10M",
        },
    }


def test_rest_names_policies_and_samplers_as_the_service() -> None:
    sweep = sweep_of({"a": "randint(2)"}, sampler="grid", policy=TruncationSelection(truncation_percentage=20))
    rest = sweep_to_rest(sweep)
    assert rest["earlyTermination"]["policyType"] == "TruncationSelection"
    assert rest["earlyTermination"]["truncationPercentage"] == 20
    assert rest["samplingAlgorithm"] == {"samplingAlgorithmType": "Grid"}
    assert rest["searchSpace"] == {"a": ["choice", [[0, 1]]]}
    policy = sweep_to_rest(msgspec.structs.replace(sweep, policy=MedianStopping()))["earlyTermination"]
    assert policy == {"policyType": "MedianStopping", "evaluationInterval": 1, "delayEvaluation": 0}


@pytest.mark.thorough
def test_yaml_and_rest_equal_those_of_the_sdk(tmp_path: Path) -> None:
    from azure.ai.ml import load_job

    doc = yaml.safe_load(HELLO)
    sweep = sweep_from_yaml(doc)
    path = tmp_path / "job.yml"
    path.write_text(yaml.safe_dump({**doc, **sweep_to_yaml(sweep)}))
    job: Any = load_job(path)
    rest = sweep_to_rest(sweep)
    assert {name: e._to_rest_object() for name, e in job.search_space.items()} == rest["searchSpace"]
    assert dict(job.sampling_algorithm._to_rest_object()) | {"rule": "Sobol"} == rest["samplingAlgorithm"]
    policy = dict(job.early_termination._to_rest_object())
    assert {key: value for key, value in policy.items() if value} == rest["earlyTermination"]
    limits = dict(job.limits._to_rest_object())
    assert {key: limits[key] for key in rest["limits"]} == rest["limits"]


# -- HyperDrive ------------------------------------------------------------------------------------------------------

#: The example of "Create a HyperDrive configuration file" of Azure's v1 pages.
HDCONFIG = """
sampling:
    type: random
    parameter_space:
    - name: --penalty
      expression: choice
      values: [0.5, 1, 1.5]
    - name: --learning-rate
      expression: loguniform
      values: [-6, -1]
policy:
    type: BanditPolicy
    evaluation_interval: 1
    slack_factor: 0.2
primary_metric_name: Accuracy
primary_metric_goal: Maximize
max_total_runs: 8
max_concurrent_runs: 2
max_duration_minutes: 100
"""


def test_hyperdrive_configuration_is_read() -> None:
    sweep = sweep_from_hdconfig(yaml.safe_load(HDCONFIG))
    check_sweep(sweep, {})
    rate = sweep.space.pop("learning_rate")
    assert isinstance(rate, LogUniform) and (rate.low, rate.high) == pytest.approx((0.002479, 0.3679), rel=1e-3)
    assert sweep == Sweep(
        space={"penalty": Choice((0.5, 1, 1.5))},
        objective=Objective("Accuracy", "maximize"),
        policy=Bandit(slack_factor=0.2),
        limits=SweepLimits(max_trials=8, max_concurrent=2, max_duration_s=6000),
    )


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({"type": "MedianStoppingPolicy", "delay_evaluation": 5}, MedianStopping(delay_evaluation=5)),
        (
            {"type": "TruncationSelectionPolicy", "truncation_percentage": 20},
            TruncationSelection(truncation_percentage=20),
        ),
        ({"type": "NoTerminationPolicy"}, None),
        (None, None),
    ],
)
def test_policies_of_hyperdrive_are_read(policy: Any, expected: Policy | None) -> None:
    assert sweep_from_hdconfig({**yaml.safe_load(HDCONFIG), "policy": policy}).policy == expected


def test_parameter_space_of_hyperdrive_may_be_a_mapping() -> None:
    doc = yaml.safe_load(HDCONFIG)
    doc["sampling"] = {"type": "Grid", "parameter_space": {"--a": ["choice", [[1, 2]]], "b": ["choice", [3, 4]]}}
    sweep = sweep_from_hdconfig(doc)
    assert sweep.sampler == "grid" and sweep.space == {"a": Choice((1, 2)), "b": Choice((3, 4))}


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("sampling", None, "sampling"),
        ("sampling", {"type": "random"}, "parameter_space"),
        ("sampling", {"type": "random", "parameter_space": [{"expression": "choice"}]}, "name"),
        ("sampling", {"type": "random", "parameter_space": [{"name": "a", "expression": "x"}]}, "unknown"),
        ("primary_metric_goal", "up", "goal"),
        ("primary_metric_name", None, "metric"),
        ("max_total_runs", "x", "max_total"),
        ("max_duration_minutes", "x", "max_duration_minutes"),
        ("policy", {"type": "Hyperband"}, "policy"),
    ],
)
def test_invalid_hyperdrive_configuration_names_its_key(key: str, value: Any, word: str) -> None:
    with pytest.raises(SpecError, match=word):
        sweep_from_hdconfig({**yaml.safe_load(HDCONFIG), key: value})
