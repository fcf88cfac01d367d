"""Reduction to minimum, mean and maximum: plain, one by one, and NumPy's history say the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_amltrain.agent.telemetry.reduce import Reducer, highest, reduce
from jupyter_amltrain.kernel.min_max_history import MinMaxHistory

VALUES = st.lists(st.none() | st.integers(0, 1000), min_size=1, max_size=64)


def test_reduce_of_unknown_values_is_unknown() -> None:
    assert reduce([None, None]) == reduce([]) == (None, None, None)
    assert Reducer().mean() is None and Reducer().high is None
    assert highest([None]) is None and highest([None, 0]) == 0


def test_reducer_without_weight_has_no_mean() -> None:
    one = Reducer()
    one.add(3, 0)
    assert one.mean() is None and one.high == 3


def test_reducer_goes_on_from_its_state() -> None:
    one = Reducer()
    one.add_all([1, None, 5], [1.0, 1.0, 3.0])
    other = Reducer(*one.state())  # type: ignore[arg-type]
    other.add(0, 4)
    assert other.state() == [16.0, 8.0, 5] and other.mean(1) == 2.0


@given(VALUES, VALUES)
def test_reduce_and_merge_and_history_agree(first: list[int | None], second: list[int | None]) -> None:
    whole = reduce([*first, *second])
    one, other = Reducer(), Reducer()
    one.add_all(first)
    for value in second:
        other.add(value)
    both = one.merge(other)
    assert both.high == whole.high
    assert both.mean() == (None if whole.mean is None else pytest.approx(whole.mean))
    history = MinMaxHistory(1, 2)
    rows = np.array([[np.nan if value is None else value] for value in [*first, *second]], np.float32)
    history.add(np.arange(len(rows), dtype=float), rows)
    found = history.values[:, 0, : history.count]
    if whole.low is None:
        assert np.isnan(found).all()
    else:
        assert (np.nanmin(found[0]), np.nanmax(found[2])) == (whole.low, whole.high)
        total = np.nansum(found[1] * history._weights[0, : history.count])
        assert total / history._weights.sum() == pytest.approx(whole.mean, rel=1e-4)
