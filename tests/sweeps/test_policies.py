"""Decisions of the early-termination policies against numbers worked by hand from Azure's pages.

TUNE is https://learn.microsoft.com/azure/machine-learning/how-to-tune-hyperparameters#early-termination, BANDIT, MEDIAN
and TRUNCATION are the classes of azureml.train.hyperdrive at https://learn.microsoft.com/python/api/azureml-train-core.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_amltrain.schema.sweep import Goal, Policy, TruncationSelection, parse_policy
from jupyter_amltrain.sweeps.policies import EarlyStopping

NAN, INF = math.nan, math.inf


def decision(policy: Policy | None, goal: Goal, others: Sequence[Sequence[float]], own: Sequence[float]) -> bool:
    """Whether the last report of `own` stops its trial, after `others` ran to their ends."""
    stopping = EarlyStopping(policy, goal)
    for trial, values in enumerate(others):
        for value in values:
            stopping.observe(trial, value)
        stopping.finish(trial)
    reasons = [stopping.observe(99, value) for value in own]
    assert not any(reasons[:-1]), "stopped before the last report"
    return reasons[-1] is not None


# Policy, goal, other trials, this trial, whether it is stopped, source.
TABLE: list[tuple[str, Goal, list[list[float]], list[float], bool, str]] = [
    # TUNE: "best performing job at interval 10 ... 0.8 ... slack_factor of 0.2, any training jobs whose best metric at
    # interval 10 is less than 0.66 (0.8/(1+slack_factor)) will be terminated."
    ("bandit(0.2,evaluation_interval=10)", "maximize", [[0.8] * 10], [0.66] * 10, True, "TUNE 0.66 < 0.6667"),
    ("bandit(0.2,evaluation_interval=10)", "maximize", [[0.8] * 10], [0.67] * 10, False, "TUNE"),
    ("bandit(0.2,evaluation_interval=10)", "maximize", [[0.8] * 10], [0.7] + [0.1] * 9, False, "TUNE best"),
    ("bandit(0.2)", "maximize", [[0.6, 0.9]], [0.51], False, "TUNE: interval 1 compares with 0.6"),
    ("bandit(0.2)", "maximize", [[0.6, 0.9]], [0.49], True, "TUNE: 0.6 / 1.2 = 0.5"),
    ("bandit(0.2)", "maximize", [[0.6, 0.9]], [0.51, 0.74], True, "TUNE: 0.9 / 1.2 = 0.75"),
    ("bandit(0.2)", "maximize", [[0.6, 0.9]], [0.51, 0.76], False, "TUNE"),
    ("bandit(0.2)", "maximize", [[0.9]], [0.8, 0.2, 0.2], False, "TUNE: best metric, other ended at 1"),
    # TUNE: "starting at evaluation interval 5 ... less than (1/(1+0.1) or 91%".
    ("bandit(0.1,delay_evaluation=5)", "maximize", [[1.0] * 6], [0.1] * 4, False, "TUNE delay 5"),
    ("bandit(0.1,delay_evaluation=5)", "maximize", [[1.0] * 6], [0.90] * 5, True, "TUNE 0.909"),
    ("bandit(0.1,delay_evaluation=5)", "maximize", [[1.0] * 6], [0.92] * 5, False, "TUNE 0.909"),
    # BANDIT: "applies every multiple of evaluation_interval that is greater than or equal to delay_evaluation".
    ("bandit(0.1,evaluation_interval=2,delay_evaluation=5)", "maximize", [[1.0]], [0.1] * 5, False, "BANDIT"),
    ("bandit(0.1,evaluation_interval=2,delay_evaluation=5)", "maximize", [[1.0]], [0.1] * 6, True, "BANDIT"),
    # The same slack for minimize: value > best * (1 + slack_factor).
    ("bandit(0.2)", "minimize", [[1.0]], [1.21], True, "TUNE, minimize"),
    ("bandit(0.2)", "minimize", [[1.0]], [1.19], False, "TUNE, minimize"),
    ("bandit(0.2)", "maximize", [[-1.0]], [-1.19], False, "negative values: within the slack"),
    ("bandit(0.2)", "maximize", [[-1.0]], [-1.21], True, "negative values"),
    ("bandit(0.2)", "minimize", [[-0.8]], [-0.66], True, "negative values"),
    ("bandit(0.2)", "minimize", [[-0.8]], [-0.67], False, "negative values"),
    ("bandit(slack_amount=0.1)", "maximize", [[0.8]], [0.69], True, "TUNE: slack as an absolute amount"),
    ("bandit(slack_amount=0.1)", "maximize", [[0.8]], [0.71], False, "TUNE"),
    ("bandit(slack_amount=0.1)", "minimize", [[0.8]], [0.91], True, "TUNE"),
    ("bandit(slack_amount=0.1)", "minimize", [[0.8]], [0.89], False, "TUNE"),
    ("bandit(slack_amount=0)", "maximize", [[0.8]], [0.8], False, "equal to the best"),
    ("bandit(0.2)", "maximize", [], [0.1], False, "the best trial itself"),
    ("bandit(0.2)", "maximize", [[0.8]], [NAN], True, "NaN is the worst value"),
    ("bandit(0.2)", "minimize", [[0.8]], [NAN], True, "NaN is the worst value"),
    ("bandit(0.2)", "maximize", [[NAN]], [NAN], False, "both the worst"),
    ("bandit(0.2)", "maximize", [[0.8, NAN]], [0.7, NAN], False, "NaN does not improve"),
    ("bandit(0.2)", "maximize", [[INF]], [5.0], True, "infinite best"),
    ("bandit(0.2)", "minimize", [[1.0]], [INF], True, "infinite loss"),
    # MEDIAN: "canceled at interval N if its best primary metric reported up to interval N is worse than the median of
    # the running averages for intervals 1:N across all runs."
    # Averages over 1:5: 0.3, 0.5, 0.7 and its own 0.46; median (0.46 + 0.5) / 2 = 0.48.
    ("median_stopping(delay_evaluation=5)", "maximize", [[0.3] * 5, [0.5] * 5, [0.7] * 5], [0.46] * 5, True, "MEDIAN"),
    ("median_stopping(delay_evaluation=5)", "maximize", [[0.3] * 5, [0.5] * 5, [0.7] * 5], [0.5] + [0.1] * 4, False,
     "MEDIAN best"),
    ("median_stopping(delay_evaluation=5)", "maximize", [[0.3] * 5, [0.5] * 5, [0.7] * 5], [0.1] * 4, False,
     "MEDIAN delay"),
    # Only intervals 1:2 of the others count: averages 0.2 and 0.4 and its own 0.3; median 0.3.
    ("median_stopping(evaluation_interval=2)", "maximize", [[0.2, 0.2, 9.0], [0.4, 0.4, 9.0]], [0.3, 0.3], False,
     "MEDIAN 1:N"),
    ("median_stopping(evaluation_interval=2)", "maximize", [[0.4, 0.4, 9.0], [0.4, 0.4]], [0.3, 0.3], True,
     "MEDIAN 1:N"),
    ("median_stopping", "minimize", [[1.0], [2.0]], [1.9], False, "MEDIAN: median of 1, 2, 1.9 is its own"),
    ("median_stopping", "minimize", [[1.0], [1.0]], [1.1], True, "MEDIAN, minimize"),
    ("median_stopping", "maximize", [], [0.0], False, "MEDIAN: its own average is not better than its best"),
    ("median_stopping", "maximize", [[0.5], [0.5]], [NAN], True, "NaN is the worst value"),
    ("median_stopping", "maximize", [[NAN], [NAN]], [0.1], False, "others are worst"),
    ("median_stopping", "maximize", [[INF], [INF]], [0.1], True, "infinite averages"),
    ("median_stopping", "maximize", [[INF]], [-INF], False, "a median between both infinities is the worse one"),
    # TUNE: "terminates at interval 5 if its performance at interval 5 is in the lowest 20% of performance of all jobs
    # at interval 5": the lowest one of five.
    ("truncation_selection(20,delay_evaluation=5)", "maximize", [[0.5] * 5] * 4, [0.4] * 5, True, "TUNE"),
    ("truncation_selection(20,delay_evaluation=5)", "maximize", [[0.5] * 5] * 3, [0.4] * 5, False,
     "TUNE 1 of 4 is 25 %"),
    ("truncation_selection(20,delay_evaluation=5)", "maximize", [[0.5] * 5] * 3 + [[0.3] * 5], [0.4] * 5, False,
     "TUNE second of 5"),
    ("truncation_selection(40)", "maximize", [[0.5]] * 3 + [[0.3]], [0.4], True, "TUNE two of 5"),
    ("truncation_selection(20,delay_evaluation=5)", "maximize", [[0.5] * 5] * 4, [0.4] * 4, False, "TUNE delay"),
    ("truncation_selection(20)", "minimize", [[0.5]] * 4, [0.6], True, "TUNE, minimize"),
    ("truncation_selection(20)", "maximize", [[0.4]] * 4, [0.4], False, "ties"),
    ("truncation_selection(50)", "maximize", [[0.4], [0.5], [0.5]], [0.4], True, "ties within the 50 %"),
    # TRUNCATION: "its performance is only compared with the performance of other runs up to interval N even if they
    # reported metrics for intervals greater than N."
    ("truncation_selection(20)", "maximize", [[0.3, 0.9]] * 4, [0.4], False, "TRUNCATION"),
    ("truncation_selection(20)", "maximize", [[0.5]] * 4, [NAN], True, "NaN is the worst value"),
    # TUNE: exclude_finished_jobs "specifies whether to exclude finished jobs when applying the policy".
    ("truncation_selection(20,exclude_finished_jobs=true)", "maximize", [[0.5]] * 4, [0.4], False, "TUNE"),
    ("none", "maximize", [[1.0]], [0.0], False, "TUNE: no termination policy"),
]  # fmt: skip


@pytest.mark.parametrize(("policy", "goal", "others", "own", "stopped", "source"), TABLE)
def test_decision_equals_number_of_azures_page(
    policy: str, goal: Goal, others: list[list[float]], own: list[float], stopped: bool, source: str
) -> None:
    assert decision(parse_policy(policy), goal, others, own) is stopped, source


def test_running_trials_with_fewer_reports_do_not_count_in_truncation() -> None:
    stopping = EarlyStopping(TruncationSelection(truncation_percentage=20, delay_evaluation=2), "maximize")
    for trial in range(4):
        stopping.observe(trial, 0.9)
    assert [stopping.observe(9, 0.1), stopping.observe(9, 0.1)] == [None, None]
    for trial in [0, 1, 2, 3] * 2:
        assert stopping.observe(trial, 0.9) is None
    assert stopping.observe(9, 0.1)


def test_stopped_trial_returns_its_reason_again_and_adds_no_reports() -> None:
    stopping = EarlyStopping(parse_policy("bandit(0.2)"), "maximize")
    stopping.observe(0, 0.8)
    reason = stopping.observe(1, 0.5)
    assert reason is not None and "0.6667" in reason and "below" in reason
    assert stopping.observe(1, 100.0) == reason
    assert stopping.observe(0, 0.8) is None
    stopping.finish(1)
    assert stopping.observe(1, 0.0) == reason


def test_reports_after_the_end_do_not_count() -> None:
    stopping = EarlyStopping(parse_policy("bandit(0.2)"), "maximize")
    stopping.observe(0, 0.8)
    stopping.finish(0)
    assert stopping.observe(0, 100.0) is None and stopping.observe(1, 0.7) is None


def test_reason_of_minimize_shows_values_with_their_sign() -> None:
    stopping = EarlyStopping(parse_policy("bandit(slack_amount=0.1)"), "minimize")
    stopping.observe(0, 1.0)
    reason = stopping.observe(1, 2.0)
    assert reason is not None and "above 1.1" in reason and "-" not in reason


POLICIES = ["bandit(0.1)", "bandit(slack_amount=0.2)", "median_stopping", "truncation_selection(30)"]
VALUES = st.floats(allow_nan=True, allow_infinity=True)


@given(st.sampled_from(POLICIES), st.lists(st.tuples(st.integers(0, 5), VALUES), max_size=40))
def test_minimize_decides_as_maximize_of_the_negative(text: str, reports: list[tuple[int, float]]) -> None:
    up, down = EarlyStopping(parse_policy(text), "maximize"), EarlyStopping(parse_policy(text), "minimize")
    for trial, value in reports:
        assert (up.observe(trial, value) is None) == (down.observe(trial, -value) is None)


@given(st.sampled_from(POLICIES), st.lists(st.tuples(st.integers(0, 5), VALUES), max_size=40))
def test_best_trial_is_never_stopped(text: str, reports: list[tuple[int, float]]) -> None:
    stopping = EarlyStopping(parse_policy(text), "maximize")
    for trial, value in [*reports, (99, INF)]:
        last = stopping.observe(trial, value)
    assert last is None


def test_replay_gives_the_same_decisions() -> None:
    rng = random.Random(1)
    events = [(rng.randrange(8), rng.random()) for _ in range(300)]

    def decide() -> list[str | None]:
        stopping = EarlyStopping(parse_policy("median_stopping(delay_evaluation=3)"), "maximize")
        return [stopping.observe(trial, value) for trial, value in events]

    assert decide() == decide() and any(decide())


@pytest.mark.parametrize("text", ["median_stopping", "bandit(slack_amount=0.5)"])
def test_reports_of_many_trials_are_compared_with_all_of_them(text: str) -> None:
    rng = random.Random(1)
    stopping = EarlyStopping(parse_policy(text), "maximize")
    first, stopped = [], []
    for trial in range(300):
        first.append(rng.random())
        limit = statistics.median(first) if text == "median_stopping" else max(first) - 0.5
        stopped.append((stopping.observe(trial, first[-1]) is not None) == (first[-1] < limit))
    assert all(stopped)


@pytest.mark.thorough
@pytest.mark.parametrize("text", POLICIES)
def test_reports_of_a_thousand_trials_take_seconds(text: str) -> None:
    rng = random.Random(1)
    stopping = EarlyStopping(parse_policy(text), "maximize")
    start = time.process_time()
    for _ in range(40):
        for trial in range(1000):
            stopping.observe(trial, rng.random())
    assert time.process_time() - start < 4  # 0.4 s; the test's machine is shared
