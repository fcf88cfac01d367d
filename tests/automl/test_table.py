from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from jupyter_amltrain.automl.job import table
from jupyter_amltrain.automl.job.errors import UnusableData

ROWS = 60


@pytest.mark.parametrize(
    ("values", "task"),
    [
        (["yes", "no"], "classification"),
        ([True, False], "classification"),
        ([0, 1], "classification"),
        ([1.0, 2.0, None], "classification"),
        (list(range(ROWS)), "regression"),
        ([0.25, 0.5], "regression"),
    ],
)
def test_task_follows_from_the_values_of_the_target(values: list[Any], task: str) -> None:
    assert table.guess_task(pd.Series(values * (ROWS // len(values)))) == task


@pytest.mark.parametrize(
    ("target", "task", "word"),
    [
        ("same", "classification", "nothing to predict"),
        ("name", "classification", "too many"),
        ("word", "regression", "--task classification"),
        ("empty", "regression", "0 rows"),
    ],
)
def test_target_that_nothing_predicts_is_refused(target: str, task: str, word: str) -> None:
    frame = pd.DataFrame(
        {"x": range(ROWS), "same": 1, "name": [f"n{i}" for i in range(ROWS)], "word": "a", "empty": np.nan}
    )
    with pytest.raises(UnusableData, match=word):
        table.checked(frame, target, task)


def test_unknown_column_names_the_nearest() -> None:
    with pytest.raises(UnusableData, match="price"):
        table.check_columns(["price", "size"], "prize")


def test_few_rows_are_refused() -> None:
    with pytest.raises(UnusableData, match="3 rows"):
        table.checked(pd.DataFrame({"x": [1, 2, 3], "y": ["a", "b", "a"]}), "y", "classification")


def test_names_of_columns_are_texts() -> None:
    several = pd.MultiIndex.from_tuples([("a", "x"), ("a", "y")])
    assert list(table.read(pd.DataFrame([[1, 2]], columns=several))) == ["('a', 'x')", "('a', 'y')"]
    assert list(table.read(np.ones((2, 2)))) == ["0", "1"]


@pytest.mark.parametrize("name", ["day", None])
def test_time_of_the_index_becomes_a_column_of_a_forecast_only(name: str | None) -> None:
    frame = pd.DataFrame(
        {"x": 1, "y": range(ROWS)}, index=pd.period_range("2024-01", periods=ROWS, freq="M", name=name)
    )
    rows, task = table.usable(frame, {"target": "y", "time": name or "index"})
    assert task == "forecasting" and list(rows) == [name or "index", "x", "y"]
    assert list(table.usable(frame, {"target": "y"})[0]) == ["x", "y"]


def test_target_of_lists_is_one_line() -> None:
    with pytest.raises(UnusableData, match="list"):
        table.checked(pd.DataFrame({"x": range(ROWS), "y": [[1]] * ROWS}), "y", "classification")


def test_rows_without_a_target_are_left_out() -> None:
    frame = pd.DataFrame({"x": range(ROWS), "y": ["a", None, "b"] * (ROWS // 3)})
    rows, values = table.checked(frame, "y", "classification")
    assert len(rows) == len(values) == 2 * ROWS // 3 and "y" not in rows


@pytest.mark.thorough
def test_split_holds_out_each_class_and_is_the_same_for_a_seed() -> None:
    rows = pd.DataFrame({"x": range(ROWS)})
    target = pd.Series(["common"] * (ROWS - 7) + ["rare"] * 6 + ["once"])
    first, again = (table.split(rows, target, "classification", 0.2, 3) for _ in range(2))
    assert first.test.equals(again.test) and {"common", "rare"} <= set(first.test_target)
    assert not set(first.train.index) & set(first.test.index)


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz", "t.jsonl"])
def test_file_is_read_by_its_suffix(tmp_path: Path, name: str) -> None:
    frame = pd.DataFrame({"x": [1, 2], "y": ["a", "b"]})
    if name.endswith("jsonl"):
        frame.to_json(tmp_path / name, orient="records", lines=True)
    else:
        frame.to_csv(tmp_path / name, index=False, sep="\t" if "tsv" in name else ",")
    assert table.read(tmp_path / name).equals(frame)


def test_files_of_a_folder_are_one_table(tmp_path: Path) -> None:
    for part in range(2):
        pd.DataFrame({"x": [part]}).to_csv(tmp_path / f"{part}.csv", index=False)
    assert list(table.read(tmp_path)["x"]) == [0, 1]
    assert list(table.read(tmp_path, {"files": ["1.csv"]})["x"]) == [1]


def test_file_that_is_no_table_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_text("no")
    with pytest.raises(UnusableData, match="cannot be read"):
        table.read(tmp_path / "t.parquet")
    with pytest.raises(UnusableData, match="no table"):
        table.read(3)
