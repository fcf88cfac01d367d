"""Pins of MLflow that cannot log are named, and the same environment is made with pins that can."""

from __future__ import annotations

import json

import pytest

from jupyter_amltrain.azure.mlflow_pins import WORKING_PINS, check_pins, pip_pins, with_working_pins
from jupyter_amltrain.errors import EnvironmentFailed

CONDA = """\
name: project
channels: [conda-forge]
dependencies:
  - python=3.10
  - conda-forge::mlflow=2.9.2=py310_0
  - numpy>=1.26
  - pip:
      - azureml-mlflow==1.57.0  # the service's
      - torch==2.4.0
"""


@pytest.mark.parametrize(
    "pins",
    [
        ["mlflow-skinny<=3.15", "azureml-mlflow>=1.62.0.post6"],
        ["mlflow==3.17.2"],  # through the agent; no service's package is needed
        ["mlflow-skinny"],
        ["azureml-mlflow"],
        ["mlflow==3.17.2", "azureml-mlflow==1.60.0"],
        ["MLflow == 2.9.2", "azureml_mlflow"],
        ["mlflow>=2.10,<3", "azureml-mlflow==1.60.0.post1"],
        ["mlflow @ git+https://github.com/mlflow/mlflow"],
        ["mlflow~=2.20"],
        ["mlflow==2.9.*"],
        ["mlflow>=2.4.0,<2.5"],
        ["azureml-mlflow==1.57.0", "mlflow==2.9.2"],  # not in the table: not judged
    ],
)
def test_mlflow_pins_compatible_can_log(pins: list[str]) -> None:
    assert check_pins([*pins, "numpy==1.26"], "e").logs is True and not check_pins(pins).reason


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        (["numpy"], "Environment e has no MLflow"),
        ([], "has no MLflow"),
        (["mlflow==3.17.2", "azureml-mlflow==1.61.0"], "needs mlflow-skinny<=3.5.0"),
        (["mlflow>=3", "azureml-mlflow==1.60.0.post1"], "needs mlflow-skinny<3.0.0"),
        (["mlflow==2.9.2", "mlflow-skinny>=3"], "(mlflow==2.9.2 and mlflow-skinny>=3)"),
        (["mlflow<2"], "MLflow before 2.0.0 cannot log"),
    ],
)
def test_mlflow_pins_incompatible_are_named(pins: list[str], message: str) -> None:
    verdict = check_pins(pins, "e")
    assert verdict.logs is False and message in verdict.reason and "--derive-env" in verdict.reason
    assert "\n" not in verdict.reason


def test_mlflow_pins_direct_models_depend_on_version() -> None:
    assert check_pins(["mlflow==2.9.2", "azureml-mlflow"]).models is True
    assert check_pins(["mlflow==3.5.0", "azureml-mlflow"]).models is False
    assert check_pins(["mlflow==2.9.2"]).models is False  # without the service's package there is no way to it


def test_mlflow_pins_unknown_are_not_judged() -> None:
    assert check_pins(None, "e") == (None, None, "")


def test_conda_pins_are_read_from_yaml_and_json() -> None:
    pins = ["python==3.10.*", "mlflow==2.9.2.*", "numpy>=1.26", "azureml-mlflow==1.57.0", "torch==2.4.0"]
    assert pip_pins(CONDA) == pins
    pip = {"pip": ["azureml-mlflow==1.57.0", "torch==2.4.0"]}
    answered = json.dumps({"dependencies": ["python=3.10", "mlflow=2.9.2", "numpy>=1.26", pip]}, indent=2)
    assert pip_pins(answered) == pins and check_pins(pins).logs


def test_derived_conda_file_can_log_and_keeps_packages() -> None:
    made = with_working_pins(CONDA)
    assert pip_pins(made) == ["python==3.10.*", "numpy>=1.26", "pip", "torch==2.4.0", *WORKING_PINS]
    assert check_pins(pip_pins(made)).logs and with_working_pins(made) == made
    assert made.startswith("name: project\n")
    assert pip_pins(with_working_pins("dependencies: [python=3.11, pip=24]"))[1] == "pip==24.*"


@pytest.mark.parametrize("text", ["", "[]", "a: [", "dependencies: 3", "name: x"])
def test_invalid_conda_file_is_refused(text: str) -> None:
    for read in (pip_pins, with_working_pins):
        with pytest.raises(EnvironmentFailed, match="conda file"):
            read(text)
