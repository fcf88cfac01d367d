"""Sweep files of az ml as jobs of trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.jobs import snapshot, sweep
from jupyter_amltrain.schema import az_yaml, az_yaml_job
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunState, RunStatus, make_handle

FILE = """\
type: sweep
experiment_name: exp
trial:
  code: src
  command: python train.py --lr ${{search_space.lr}} --epochs ${{inputs.epochs}} --opt ${{ search_space.opt }}
  environment: azureml:AzureML-sklearn-1.5@latest
inputs:
  epochs: 3
sampling_algorithm: grid
search_space:
  lr:
    type: choice
    values: [0.1, 0.2]
  opt:
    type: choice
    values: [sgd, adam]
objective:
  goal: minimize
  primary_metric: loss
limits:
  max_total_trials: 4
  trial_timeout: 600
"""
COMPONENT = """\
type: command
command: python train.py --lr ${{inputs.lr}} --epochs ${{inputs.epochs}} --rate ${{inputs.rate}} --opt ${{inputs.opt}}
code: src
environment: azureml:AzureML-sklearn-1.5@latest
inputs:
  lr: {type: number}
  opt: {type: string}
  epochs: {type: integer}
  rate: {type: number, default: 0.5}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("print(1)\n")
    (tmp_path / "sweep.yml").write_text(FILE)
    return tmp_path


def spec_of(folder: Path, **params: Any) -> JobSpec:
    spec = az_yaml_job.spec_of(az_yaml.load(folder / "sweep.yml"))
    return msgspec.structs.replace(spec, params=params)


def trial_of(folder: Path, **params: Any) -> JobSpec:
    """The job of the trial with the given values."""
    job, search = sweep.of_file(spec_of(folder))
    sweep.check_trial(job, search)
    driver = sweep.driver_of(job, search, "local")
    return sweep.trial_of(driver, "local/s-1", 2, params, str(folder / "src"))


def filled(spec: JobSpec) -> str:
    return az_yaml_job.fill_bindings(spec.command, {f"inputs.{k}": str(v.value) for k, v in spec.inputs.items()})


def test_trial_of_file_has_its_values_in_the_command(folder: Path) -> None:
    trial = trial_of(folder, lr=0.2, opt="adam")
    assert filled(trial) == "python train.py --lr 0.2 --epochs 3 --opt adam"
    assert (trial.timeout, trial.experiment, trial.name) == (600, "exp", "sweep-2")
    assert trial.env["AZUREML_SWEEP_opt"] == "adam" and trial.params == {"lr": 0.2, "opt": "adam"}
    assert trial.source == str(folder / "src")


def test_trial_does_not_need_the_code_folder_of_the_file(folder: Path) -> None:
    job, search = sweep.of_file(spec_of(folder))
    driver = sweep.driver_of(job, search, "local")
    names = snapshot.of_script(driver).files
    assert "trial/train.py" in names
    (folder / "src").rename(folder / "moved")
    assert sweep.trial_of(driver, "local/s-1", 0, {"lr": 0.1, "opt": "sgd"}, str(folder / "moved")).params["lr"] == 0.1


def test_input_of_file_is_set_by_parameter(folder: Path) -> None:
    job, _ = sweep.of_file(spec_of(folder, epochs=7))
    assert job.inputs["epochs"].value == 7 and job.params == {"epochs": 7}
    with pytest.raises(SpecError, match="no such input"):
        sweep.of_file(spec_of(folder, nothing=1))


def test_component_file_is_the_trial(folder: Path) -> None:
    (folder / "part.yml").write_text(COMPONENT)
    text = FILE.splitlines()
    (folder / "sweep.yml").write_text("\n".join(["type: sweep", "trial: ./part.yml", *text[6:]]))
    trial = trial_of(folder, lr=0.1, opt="sgd")
    assert filled(trial) == "python train.py --lr 0.1 --epochs 3 --rate 0.5 --opt sgd"


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("search_space.lr}}", "search_space.nothing}}", "line 5"),
        ("  epochs: 3", "  epochs: 3\n  lr: 1", "line 12"),
        ("[sgd, adam]", "[sgd, null]", "line 14"),
        ("trial:\n", "trial: azureml:part:1\nrest:\n", "line 3"),
    ],
)
def test_file_that_only_a_service_can_run_is_refused_with_its_line(
    folder: Path, old: str, new: str, where: str
) -> None:
    assert old in FILE
    (folder / "sweep.yml").write_text(FILE.replace(old, new))
    with pytest.raises(SpecError, match=where) as error:
        sweep.of_file(spec_of(folder))
    assert "\n" not in str(error.value)


def test_sweep_that_is_not_submitted_yet_is_not_continued() -> None:
    search, _ = sweep.search_of({"x": "uniform(0, 1)"}, goal="minimize loss", seed=1)
    driver = sweep.driver_of(JobSpec(name="search", script="pass"), search, "local", {"local": 4, "box": None})
    assert driver.trial_slots == {"local": 4}
    status = RunStatus(state=RunState.PREPARING)
    run = Run(handle=make_handle("local", "search-1"), spec=driver, status=status, created=0.0)
    with pytest.raises(SpecError) as error:
        sweep.continued(run, None, search)
    assert error.value.code == "sweep.continue"
    again = sweep.continued(msgspec.structs.replace(run, folder="/runs/search-1"), None, search)
    assert again.continues == run.handle and again.code_dir.startswith("/runs/search-1/")
