"""The value of a metric: highest step, then time, then arrival; repeated points count once."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from jupyter_amltrain.agent.mlflow.latest import LatestPoint, rank, same

POINTS = st.tuples(st.integers(-1, 2), st.integers(0, 2), st.sampled_from([0.0, 1.0, math.nan, math.inf]))


def value_of(points: list[tuple[int, int, float]]) -> float:
    latest = LatestPoint(*points[0])
    for point in points[1:]:
        latest.offer(*point)
    return latest.value


@given(st.lists(POINTS, min_size=1, max_size=12))
def test_value_is_newest_distinct_point_of_last_step_and_time(points: list[tuple[int, int, float]]) -> None:
    distinct: list[tuple[int, int, float]] = []
    for point in points:
        if not any(point[:2] == old[:2] and same(point[2], old[2]) for old in distinct):
            distinct.append(point)
    last = max(point[:2] for point in points)
    expected = [point[2] for point in distinct if point[:2] == last][-1]
    assert same(value_of(points), expected)


def test_points_sent_again_do_not_change_value() -> None:
    points = [(step, 10 * step, 1.0 / (1 + step)) for step in range(5)]
    assert value_of([*points, *points]) == value_of([*points, points[0]]) == 0.2


def test_value_that_became_nan_is_nan() -> None:
    assert math.isnan(value_of([(0, 0, 1.0), (1, 0, math.nan), (0, 5, 0.5)]))


def test_nan_is_ranked_last_in_both_directions() -> None:
    values = [2.0, math.nan, 1.0]
    assert sorted(values, key=rank)[:2] == [1.0, 2.0]
    assert sorted(values, key=lambda value: rank(value, True))[:2] == [2.0, 1.0]
