from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from jupyter_amltrain.commands.registry import Context, run
from jupyter_amltrain.errors import CommandError
from tests.helpers import api_of

FRAME = pd.DataFrame({"x": range(40), "y": ["a", "b"] * 20, "same": 1})
DAILY = pd.DataFrame({"sold": range(60)}, index=pd.date_range("2024-01-01", periods=60, name="day"))


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with api_of(tmp_path_factory.mktemp("automl")) as module:
        yield module


def plan(*words: str, **namespace: Any) -> dict[str, Any]:
    """The request of a line in a notebook with these variables."""
    context = Context(prog="%aml_automl", namespace={"df": FRAME, **namespace}, history=tuple)
    found: dict[str, Any] = run("automl", [*words, "--dry-run"], context).data
    return found


def test_line_becomes_a_cell_with_the_table_and_the_goal(api: Any) -> None:
    text = json.dumps(plan("--data", "df", "--target-column", "y", "--max-trials", "5", "--register", "mine"))
    for part in ("aml_automl.run(df", "'register': 'mine'", "'task': 'classification'", "'metric': 'accuracy'"):
        assert part in text
    assert "'max_minutes'" not in text


def test_dry_run_prints_the_search_without_the_sources_of_its_package(api: Any) -> None:
    words = [
        "--data",
        "df",
        "--target-column",
        "y",
        "--max-minutes",
        "2",
        "--learners",
        "lgbm,rf",
        "--register",
        "mine",
    ]
    result = run("automl", [*words, "--dry-run"], Context(prog="%aml_automl", namespace={"df": FRAME}, history=tuple))
    for part in (
        "classification of y",
        "accuracy",
        "40 rows",
        "20 %",
        "lgbm, rf",
        "2 min",
        "mine",
        "local",
        "Note: The task",
    ):
        assert part in result.text
    assert len(result.text) < 1500 and "aml_automl/main" in result.data["spec"]["modules"]
    assert len(json.dumps(result.data)) < 20_000


def test_time_is_the_limit_if_nothing_is_said(api: Any) -> None:
    text = json.dumps(plan("--data", "df", "--target-column", "y"))
    assert "'max_minutes': 10.0" in text and "The task is classification" in text


def test_file_is_an_input_of_the_job(api: Any, tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "t.csv", index=False)
    path = str(tmp_path / "t.csv")
    text = json.dumps(plan("--data", path, "--target-column", "x", "--test-data", path))
    assert "AML_INPUT_DATA" in text and "AML_INPUT_TEST" in text and "'task': 'regression'" in text


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (["--target-column", "y"], "--data"),
        (["--data", "df"], "--target-column"),
        (["--data", "df", "--target-column", "yy"], "y"),
        (["--data", "dff", "--target-column", "y"], "df"),
        (["--data", "number", "--target-column", "y"], "no table"),
        (["--data", "df", "--target-column", "same"], "nothing to predict"),
        (["--data", "small", "--target-column", "y"], "3 rows"),
        (["--data", "df", "--target-column", "y", "--task", "clasification"], "classification"),
        (["--data", "df", "--target-column", "y", "--metric", "rmse"], "accuracy"),
        (["--data", "df", "--target-column", "y", "--max-trials", "0"], "max-trials"),
        (["--data", "df", "--target-column", "y", "--max-minutes", "0"], "max-minutes"),
        (["--data", "df", "--target-column", "y", "--engine", "autogluon"], "autogluon"),
        (["--data", "df", "--target-column", "y", "--engine", "other"], "FLAML"),
        (["--data", "df", "--target-column", "y", "--max-minutes", "-5"], "max-minutes"),
        (["--data", "df", "--target-column", "y", "--max-minutes", "long"], "minutes"),
        (["--data", "df", "--target-column", "y", "--test-share", "much"], "test-share"),
        (["--data", "df", "--target-column", "y", "--series", "x"], "series"),
        (["--data", "df", "--target-column", "y", "--horizon", "3"], "horizon"),
        (["--data", "df", "--target-column", "y", "--register", "a/b"], "register"),
        (["--data", "df", "--target-column", "y", "--drop", "y"], "drop"),
        (["--data", "df", "--target-column", "y", "--drop", "x,same"], "no column besides"),
        (["--data", "df", "--target-column", "y", "--test-data", "small"], "test data has 3 rows"),
        (["--data", "df", "--target-column", "x", "--task", "forecasting"], "--time-column"),
        (["--data", "df", "--target-column", "x", "--time-column", "y"], "no dates"),
        (["--data", "daily", "--target-column", "sold", "--time-column", "day", "--horizon", "50"], "--horizon"),
        (["--data", "bunch", "--target-column", "y"], "no table"),
        (["--data", "df", "--target-column", "y", "--learners", "lgmb"], "lgbm"),
        (["--data", "df", "--target-column", "y", "--test-data", "absent.csv"], "test-data"),
    ],
)
def test_line_that_gives_no_model_is_one_line(api: Any, words: list[str], word: str) -> None:
    with pytest.raises(CommandError) as caught:
        plan(*words, number=3, small=FRAME.head(3), daily=DAILY, bunch={"data": [1, 2], "y": [1], "names": [1, 2, 3]})
    assert word in str(caught.value) and "\n" not in str(caught.value)


def test_time_of_the_index_is_a_column_of_a_forecast(api: Any) -> None:
    for words in (["--task", "forecasting"], ["--time-column", "day"]):
        assert "'task': 'forecasting'" in json.dumps(
            plan("--data", "daily", "--target-column", "sold", *words, daily=DAILY)
        )


def test_target_with_any_name_gives_a_valid_name_of_the_run(api: Any) -> None:
    found = plan("--data", "df", "--target-column", "gain (yes/no)", df=FRAME.rename(columns={"y": "gain (yes/no)"}))
    assert found["spec"]["name"] == "automl-gain-yes-no"


def test_rows_elsewhere_need_a_task(api: Any) -> None:
    words = ["--data", "https://example.com/t.csv", "--target-column", "y"]
    with pytest.raises(CommandError, match="--task"):
        plan(*words)
    assert "AML_INPUT_DATA" in json.dumps(plan(*words, "--task", "regression"))


def test_function_takes_the_words_of_the_line(api: Any) -> None:
    with pytest.raises(CommandError, match="nothing to predict"):
        api.automl(FRAME, "same")
    with pytest.raises(CommandError, match="autogluon"):
        api.automl(FRAME, "y", engine="autogluon")
