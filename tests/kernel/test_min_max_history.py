"""A history is small, and right about every extreme and every mean."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_amltrain.kernel.min_max_history import MinMaxHistory


def _check(history: MinMaxHistory, t: np.ndarray, rows: np.ndarray) -> None:
    """Every bucket says least, mean and most of exactly its ticks."""
    starts = np.searchsorted(t, history.t[: history.count])
    ends = [*starts[1:], len(t)]
    assert starts[0] == 0 and history.filled == len(t) - starts[-1]
    for k, (a, b) in enumerate(zip(starts, ends, strict=True)):
        piece = rows[a:b]
        for column in range(rows.shape[1]):
            known = piece[:, column][~np.isnan(piece[:, column])]
            low, mean, high = history.values[:, column, k]
            if not len(known):
                assert math.isnan(low) and math.isnan(mean) and math.isnan(high)
            else:
                assert low == known.min() and high == known.max()
                assert mean == pytest.approx(known.mean(), rel=1e-4, abs=1e-4)


@given(st.integers(1, 400), st.integers(1, 3), st.integers(0, 10**6), st.lists(st.integers(1, 50), max_size=30))
@settings(max_examples=60, deadline=None)
def test_history_bucket_equals_min_mean_max_of_samples(ticks: int, columns: int, seed: int, cuts: list[int]) -> None:
    random = np.random.default_rng(seed)
    t = np.arange(ticks) + random.random() * 0.5
    rows = random.random((ticks, columns)).astype(np.float32) * 100
    rows[random.random((ticks, columns)) < 0.2] = np.nan
    history = MinMaxHistory(columns, buckets=16)
    at = 0
    for cut in [*cuts, ticks]:  # in pieces of any size, as the file is read
        history.add(t[at : at + cut], rows[at : at + cut])
        at = min(ticks, at + cut)
    assert history.count <= 16
    _check(history, t, rows)


def test_history_of_day_keeps_one_sample_spike() -> None:
    rows = np.full((86_400, 1), 3.0, np.float32)
    rows[51_234] = 97.0
    history = MinMaxHistory(1)
    history.add(np.arange(86_400.0), rows)
    assert np.nanmax(history.values[2]) == 97.0 and np.nanmin(history.values[0]) == 3.0
    assert 512 < history.count <= 1024 and history.width == 128


def test_history_takes_blocks_and_samples() -> None:
    history = MinMaxHistory(2, buckets=8)
    for minute in range(20):
        low, mean, high = (np.array([value, np.nan], np.float32) for value in (minute, minute + 1, minute + 2))
        history.add_block(minute * 60.0, 60, low, mean, high)
    history.add(np.arange(1200.0, 1230.0), np.full((30, 2), 50.0, np.float32))
    values = history.values[:, :, : history.count]
    assert values[0, 0, 0] == 0 and values[2, 0].max() == 50
    assert np.nanmin(values[0, 1]) == 50  # of the second column nothing was known before
    assert history.count <= 8 and list(history.t[: history.count]) == sorted(history.t[: history.count])


def test_history_with_missing_values_emits_no_warning() -> None:
    """Filters are the whole process's: touched on the loop, a cell's warnings come again or never."""
    history = MinMaxHistory(2)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        before = warnings.filters
        for tick in range(5):
            warnings.warn("once a place", UserWarning, stacklevel=1)
            history.add(np.array([float(tick)] * 3), np.array([[1, np.nan]] * 3, np.float32))
        assert warnings.filters is before
    assert [str(one.message) for one in shown] == ["once a place"]
    assert np.isnan(history.values[1, 1, : history.count]).all()
