from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from jupyter_amltrain.automl.job.columns import CATEGORY, DATE, NUMBER, TEXT, TableColumns, kind_of

ROWS = 200


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    words = rng.choice(["good", "bad", "ugly"], (ROWS, 6))
    return pd.DataFrame(
        {
            "number": np.where(rng.random(ROWS) < 0.2, np.nan, rng.normal(size=ROWS)),
            "written": [f"{value:.2f}" for value in rng.normal(size=ROWS)],
            "truth": rng.random(ROWS) < 0.5,
            "few": rng.choice(["a", "b", None], ROWS),
            "many": rng.choice([f"m{i}" for i in range(50)], ROWS),
            "day": pd.date_range("2024-01-01", periods=ROWS),
            "month": pd.period_range("2020-01", periods=ROWS, freq="M"),
            "day_text": [f"2024-{1 + i % 12:02}-{1 + i % 28:02}" for i in range(ROWS)],
            "text": [f"the {' '.join(row)} thing number {i}" for i, row in enumerate(words)],
            "same": 1,
            "nothing": np.nan,
            "name": [f"id-{i}" for i in range(ROWS)],
        }
    )


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("number", NUMBER), ("written", NUMBER), ("truth", NUMBER), ("few", CATEGORY), ("many", CATEGORY),
        ("day", DATE), ("month", DATE), ("day_text", DATE), ("text", TEXT), ("same", ""), ("nothing", ""), ("name", ""),
    ],
)  # fmt: skip
def test_kind_of_column_follows_from_its_values(frame: pd.DataFrame, column: str, kind: str) -> None:
    assert kind_of(frame[column]) == kind


@pytest.mark.parametrize("classes", [2, 50])
def test_table_becomes_finite_numbers(frame: pd.DataFrame, classes: int) -> None:
    columns = TableColumns("classification")
    numbers = columns.fit_transform(frame, np.arange(ROWS) % classes)
    assert numbers.shape == (ROWS, len(columns.names)) and np.isfinite(numbers).all()
    assert set(columns.ignored) == {"same", "nothing", "name"}


def test_other_rows_may_have_new_values_and_lack_columns(frame: pd.DataFrame) -> None:
    columns = TableColumns("regression")
    columns.fit_transform(frame, np.arange(ROWS, dtype=float))
    other = frame.head(3).drop(columns=["number", "text"]).assign(few="new", many="new", day=None, written="?")
    assert np.isfinite(columns.transform(other)).all()


def test_plain_leaves_texts_out(frame: pd.DataFrame) -> None:
    columns = TableColumns("regression", plain=True)
    columns.fit_transform(frame, np.arange(ROWS, dtype=float))
    assert "text" in columns.ignored and "few" in columns.kinds
