from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from jupyter_amltrain.automl.file import job_of_file
from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.schema import az_yaml, az_yaml_job
from jupyter_amltrain.schema.job import JobSpec

ROOT = Path(__file__).parents[1]

EXAMPLE = ROOT / "data/azureml-examples/cli/jobs/basics/hello-automl/hello-automl-job-basic.yml"


def spec_of(folder: Path, **changes: Any) -> JobSpec:
    """The job of a file with these keys; one that is ``None`` is left out."""
    (folder / "table.csv").write_text("x,y\n" + "1,2\n" * 20)
    doc: dict[str, Any] = {
        "type": "automl", "task": "regression", "target_column_name": "y", "training_data": {"path": "table.csv"},
        **changes,
    }  # fmt: skip
    (folder / "job.yml").write_text(yaml.safe_dump({key: value for key, value in doc.items() if value is not None}))
    return az_yaml_job.spec_of(az_yaml.load(folder / "job.yml"))


def made(spec: JobSpec) -> JobSpec:
    found = job_of_file(spec)
    assert found is not None and not found.job_type and "aml_automl/__init__" in found.modules
    return found


def mltable(folder: Path, **doc: Any) -> dict[str, str]:
    (folder / "data").mkdir()
    (folder / "data" / "rows.csv").write_text("x;y\n1;2\n")
    (folder / "data" / "MLTable").write_text(yaml.safe_dump(doc))
    return {"path": "data", "type": "mltable"}


def test_file_becomes_a_search_with_its_limits(tmp_path: Path) -> None:
    limits = {"timeout_minutes": 3, "max_trials": 7, "trial_timeout_minutes": 1, "enable_early_termination": False}
    training = {"allowed_training_algorithms": ["LightGBM", "random_forest"], "enable_model_explainability": True}
    spec = spec_of(tmp_path, limits=limits, training=training, primary_metric="r2_score", featurization={"mode": "off"})
    job = made(spec)
    for part in ("'max_minutes': 3.0", "'max_trials': 7", "'trial_seconds': 60.0", "['lgbm', 'rf']", "'explain': True"):
        assert part.replace("[", "(").replace("]", ")") in job.cell.replace("[", "(").replace("]", ")")
    assert job.own_trials is not None and job.own_trials.objective.metric == "r2"
    assert job.inputs["data"].path == str(tmp_path / "table.csv") and "'plain': True" in job.cell


def test_limits_of_the_service_apply_where_a_file_has_none(tmp_path: Path) -> None:
    job = made(spec_of(tmp_path))
    assert "'max_minutes': 360.0" in job.cell and "'max_trials': 1000" in job.cell


def test_forecast_has_its_column_of_time(tmp_path: Path) -> None:
    forecasting = {"time_column_name": "x", "forecast_horizon": 4, "country_or_region_for_holidays": "DE"}
    job = made(spec_of(tmp_path, task="forecasting", forecasting=forecasting))
    assert "'time': 'x'" in job.cell and "'horizon': 4" in job.cell
    assert any("country_or_region_for_holidays" in note for note in job.notes)


def test_mltable_names_files_and_delimiter(tmp_path: Path) -> None:
    reading = {"read_delimited": {"delimiter": ";", "encoding": "utf8", "header": "all_files_same_headers"}}
    data = mltable(tmp_path, paths=[{"file": "./rows.csv"}], transformations=[reading])
    job = made(spec_of(tmp_path, training_data=data))
    assert "'delimiter': ';'" in job.cell and "./rows.csv" in job.cell
    assert job.inputs["data"].path == str(tmp_path / "data") and job.inputs["data"].upload


def test_mltable_at_a_web_address_is_that_file(tmp_path: Path) -> None:
    data = mltable(tmp_path, paths=[{"file": "https://example.com/rows.csv"}])
    job = made(spec_of(tmp_path, training_data=data))
    assert job.inputs["data"].path == "https://example.com/rows.csv"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task": "image_classification"}, ["task", "only the service"]),
        ({"task": "text_ner"}, ["task", "only the service"]),
        ({"task": None}, ["task", "missing"]),
        ({"target_column_name": None}, ["target_column_name"]),
        ({"training_data": None}, ["training_data"]),
        ({"training_data": {"path": "azureml:bank:1"}}, ["training_data.path", "workspace"]),
        ({"training_data": {"path": "absent.csv"}}, ["training_data.path", "absent.csv"]),
        ({"primary_metric": "spearman_correlation"}, ["primary_metric", "r2_score"]),
        ({"primary_metric": "accuracy"}, ["accuracy"]),
        ({"weight_column_name": "w"}, ["weight_column_name"]),
        ({"limits": {"max_trials": "many"}}, ["limits.max_trials"]),
        ({"training": {"allowed_training_algorithms": ["tabnet_classifier"]}}, ["allowed_training_algorithms"]),
        ({"task": "forecasting"}, ["time_column_name"]),
        ({"featurization": {"mode": "some"}}, ["featurization.mode"]),
    ],
)
def test_what_only_the_service_can_do_is_one_line(tmp_path: Path, changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        job_of_file(spec_of(tmp_path, **changes))
    text = str(caught.value)
    assert "job.yml" in text and "\n" not in text and all(word in text for word in words)


@pytest.mark.parametrize(
    ("doc", "word"),
    [
        ({"paths": [{"file": "../other.csv"}]}, "outside"),
        ({"paths": [{"file": "./absent.csv"}]}, "absent.csv"),
        ({"paths": []}, "no file"),
        ({"paths": [{"file": "./rows.csv"}], "transformations": [{"take": 5}]}, "take"),
    ],
)
def test_mltable_that_cannot_be_read_here_is_one_line(tmp_path: Path, doc: dict[str, Any], word: str) -> None:
    with pytest.raises(SpecError, match=word):
        job_of_file(spec_of(tmp_path, training_data=mltable(tmp_path, **doc)))


def test_official_example_needs_its_data_only() -> None:
    with pytest.raises(SpecError, match="bank_marketing_train_data.csv"):
        job_of_file(az_yaml_job.spec_of(az_yaml.load(EXAMPLE)))
