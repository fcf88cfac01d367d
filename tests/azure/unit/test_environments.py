"""Which environment a job gets, and its notes before a machine is paid for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_amltrain.azure import environments, mlflow_pins
from jupyter_amltrain.azure.environments import environment_body
from jupyter_amltrain.jobs.snapshot import Snapshot
from jupyter_amltrain.schema.environment import Environment, check_environment
from jupyter_amltrain.schema.job import JobSpec

NOTEBOOK = Path(__file__).resolve().parents[3] / "notebooks" / "01_local_digits.ipynb"


def digits() -> str:
    """The cell of the first notebook, without its magic."""
    return next(text for text in _cells() if text.startswith("%%aml_submit")).partition("\n")[2]


def imports_of_digits() -> str:
    """The cell with its imports."""
    return next(text for text in _cells() if text.startswith("import"))


def _cells() -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text())["cells"]]


def job(text: str, **more: Any) -> JobSpec:
    return JobSpec(name="n", script=text, cell=text, **more)


def notes_of(spec: JobSpec, conda: str = "") -> tuple[str, ...]:
    return environments.notes(environments.imports_of(spec), spec.environment, environment_body(spec, 0), conda)


# ---- what is there


@pytest.mark.parametrize(
    ("reference", "known"),
    [
        ("AzureML-sklearn-1.5@latest", "sklearn-1.5"),
        ("azureml:AzureML-ACPT-pytorch-2.8-cuda12.6:4", "acpt-pytorch-2.8-cuda12.6"),
        ("azureml://registries/azureml/environments/sklearn-1.5/labels/latest", "sklearn-1.5"),
        ("/subscriptions/S/x/environments/AzureML-lightgbm-3.3/versions/2", "lightgbm-3.3"),
        ("sklearn-1.5@latest", None),  # the workspace's own: anything may be in it
        ("azureml://registries/mine/environments/sklearn-1.5/labels/latest", None),
        ("mine:3", None),
    ],
)
def test_curated_environment_spelling_is_recognized(reference: str, known: str | None) -> None:
    assert environments.find_curated(reference) == (environments.CURATED[known] if known else None)


@pytest.mark.parametrize("name", environments.CURATED)
def test_curated_environment_as_conda_file_has_same_packages(name: str) -> None:
    known = environments.CURATED[name]
    pins = mlflow_pins.pip_pins(environments.conda_of(known))
    assert pins[0].startswith("python==3.") and set(environments.curated_pins_of(known)) <= {*pins}
    assert mlflow_pins.check_pins(pins, name).logs is True


def test_curated_environments_lack_torch_or_sklearn() -> None:
    """If this fails, the default with GPUs has become simpler."""
    assert all(
        environments.lacking(["torch", "sklearn"], environments.curated_pins_of(known))
        for known in environments.CURATED.values()
    )


# ---- what a script needs


def test_required_modules_are_unconditional_imports() -> None:
    text = b"import os, numpy as np\nimport sklearn.svm\nfrom PIL import Image\nfrom . import near\nimport helpers\n"
    text += b"try:\n    import cupy\nexcept ImportError:\n    cupy = None\ndef later():\n    import pandas\n"
    assert environments.required_modules(text, ["helpers"]) == ["numpy", "sklearn", "PIL"]
    assert environments.required_modules(b"no python (") == []


def test_sklearn_model_log_requires_skops_by_default() -> None:
    log = "import mlflow\nmlflow.sklearn.log_model(model, name='m'{})\n"
    assert environments.required_modules(log.format("").encode()) == ["mlflow", "skops"]
    assert environments.required_modules(log.format(", serialization_format='cloudpickle'").encode()) == ["mlflow"]


@pytest.mark.parametrize(
    ("modules", "pins", "lacking"),
    [
        (["sklearn", "numpy"], ["scikit-learn~=1.5.0"], []),
        (["mlflow", "yaml"], ["azureml-mlflow"], []),
        (["mlflow", "skops", "pandas", "sklearn"], ["mlflow==3.17.2"], []),
        (["torch", "torchvision"], ["torch>=2"], ["torchvision"]),
        (["cv2"], ["conda-forge::opencv=4.9"], []),
        (["something_new"], ["Something.New[extra]>=1"], []),
        (["sklearn"], ["sklearn"], ["sklearn"]),
    ],
)
def test_missing_packages_are_listed(modules: list[str], pins: list[str], lacking: list[str]) -> None:
    assert environments.lacking(modules, pins) == lacking


# ---- the default


@pytest.mark.parametrize(
    ("text", "gpus", "name"),
    [
        ("print(1)", False, "AzureML-sklearn-1.5@latest"),
        ("print(1)", True, "AzureML-acpt-pytorch-2.8-cuda12.6@latest"),
        ("import torch", False, "AzureML-acpt-pytorch-2.8-cuda12.6@latest"),
        ("import torch, mlflow, transformers", True, "AzureML-acpt-pytorch-2.8-cuda12.6@latest"),
        ("import sklearn, pandas, mlflow", True, "AzureML-sklearn-1.5@latest"),
        ("import lightgbm, sklearn", False, "AzureML-lightgbm-3.3@latest"),
        ("import tensorflow", True, "AzureML-tensorflow-2.16-cuda12@latest"),
    ],
)
def test_default_environment_has_imported_packages(text: str, gpus: bool, name: str) -> None:
    spec = environments.with_environment(job(text), "", gpus)
    assert spec.environment == Environment(name=name) and notes_of(spec) == ()


@pytest.mark.parametrize("gpus", [False, True])
def test_digits_cell_environment_has_its_packages(gpus: bool) -> None:
    """MLflow of the newest images saves models by skops, which none of the images has."""
    taken = {"_amltrain_with": imports_of_digits()}
    spec = environments.with_environment(job(digits(), modules=taken), "", gpus)
    check_environment(spec.environment)
    names = {environments.package_name(pin) for pin in spec.environment.packages}
    assert spec.environment.kernel and {"mlflow", "scikit-learn", "numpy", "matplotlib"} <= names
    (note,) = notes_of(spec)
    assert "lacks skops" in note and "a few minutes" in note
    assert environments.with_environment(spec, "", gpus) == spec  # sent again


def test_unknown_import_uses_best_environment_with_note() -> None:
    spec = environments.with_environment(job("import torch, nobody_has_this\n"), "", True)
    assert spec.environment == Environment(name="AzureML-acpt-pytorch-2.8-cuda12.6@latest")
    (note,) = notes_of(spec)
    assert "nobody_has_this" in note and "AzureML-acpt-pytorch-2.8-cuda12.6 lacks nobody-has-this" in note


def test_environment_precedence_is_line_target_choice(tmp_path: Path) -> None:
    spec = job("import torch", environment=Environment(name="mine:3"))
    assert environments.with_environment(spec, "other:2", True) == spec
    assert environments.with_environment(job("import torch"), "other:2", True).environment == Environment(
        name="other:2"
    )
    configured = job("import torch", environment=Environment(name="all:1", chosen="%config"))
    assert environments.with_environment(configured, "", True) == configured
    assert environments.with_environment(configured, "other:2", True).environment == Environment(name="other:2")
    taken = environments.with_environment(job("import numpy"), "kernel", False).environment
    assert taken.kernel and not taken.chosen and taken.packages[0].startswith("numpy==")


# ---- notes


def test_conda_file_lacking_package_has_note(tmp_path: Path) -> None:
    file = tmp_path / "conda.yml"
    file.write_text("dependencies: [python=3.11, pip, {pip: [mlflow==3.17.2, azureml-mlflow==1.60.0.post1]}]")
    spec = job("import mlflow, torch\n", environment=Environment(conda=str(file)))
    pins, missing = notes_of(spec)
    assert pins.startswith("Environment conda.yml has") and "needs mlflow-skinny<3.0.0" in pins
    assert "conda.yml lacks torch" in missing
    file.write_text("dependencies: [python=3.11, numpy]")
    (nothing,) = notes_of(job("import mlflow, numpy", environment=Environment(conda=str(file))))
    assert "conda.yml has no MLflow" in nothing and "--derive-env" in nothing
    assert notes_of(job("import numpy", environment=Environment(conda=str(file)))) == ()
    file.write_text("{")
    assert notes_of(spec) == ()  # who makes the environment says it


def test_workspace_environment_is_judged_by_its_conda_file() -> None:
    spec = job("import mlflow", environment=Environment(name="mine:3"))
    assert environments.is_unknown(environment_body(spec, 0)) and notes_of(spec) == ()
    (line,) = notes_of(spec, json.dumps({"dependencies": ["python=3.8", {"pip": ["mlflow==1.30.1"]}]}))
    assert "mine has mlflow==1.30.1" in line and "2.0.0" in line


def test_image_environment_is_not_judged() -> None:
    for environment in (
        Environment(image="python:3.11"),
        Environment(build="/x"),
        Environment(derive=True, name="m:1"),
    ):
        assert notes_of(job("import torch", environment=environment)) == ()


def test_local_modules_are_not_required(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("x = 1")
    (tmp_path / "train.py").write_text("import mine, numpy\n")
    spec = JobSpec(name="n", script_name="train.py", notebook_dir=str(tmp_path))
    assert environments.imports_of(spec) == (("numpy",), "train.py")
    assert environments.imports_of(JobSpec(name="n", script_name="gone.py", notebook_dir=str(tmp_path))).modules == ()


def test_script_folder_modules_are_not_required(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("import helper, common\n")
    (tmp_path / "src" / "helper.py").write_text("import sklearn\n")
    (tmp_path / "common.py").write_text("import numpy\n")
    spec = JobSpec(name="n", script_name="src/train.py", source=str(tmp_path), notebook_dir=str(tmp_path))
    wanted = environments.imports_of(spec)
    assert sorted(wanted.modules) == ["numpy", "sklearn"] and wanted.what == "src/train.py with its modules"
    files: dict[str, str | bytes] = {
        path.relative_to(tmp_path).as_posix(): str(path) for path in tmp_path.rglob("*.py")
    }
    assert environments.imports_of(spec, Snapshot(files=files, digest="", bytes=0)) == wanted
    kernel = msgspec.structs.replace(spec, environment=Environment(kernel=True))
    pins = environments.with_environment(kernel, "", False).environment.packages
    assert [pin.partition("==")[0] for pin in pins] == ["numpy", "scikit-learn"]


def test_imports_of_local_modules_are_required(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "__init__.py").write_text("from .layers import Layer\nfrom . import __version__\n")
    (tmp_path / "net" / "layers.py").write_text("import torch\ntry:\n    import cupy\nexcept ImportError:\n    pass\n")
    (tmp_path / "net" / "unused.py").write_text("import tensorflow\n")
    (tmp_path / "shown.py").write_text("import net\ndef show():\n    import plotly\n")
    spec = job("import pandas\nfrom shown import show\n", notebook_dir=str(tmp_path))
    assert environments.imports_of(spec) == (("pandas", "torch"), "The cell with its modules")
    taken = job("from shown import show\n", notebook_dir=str(tmp_path))
    assert environments.with_environment(taken, "", False).environment.name.startswith("AzureML-acpt-pytorch")
    (line,) = notes_of(
        job("import net", notebook_dir=str(tmp_path), environment=Environment(name="AzureML-sklearn-1.5@latest"))
    )
    assert "imports torch" in line and "AzureML-sklearn-1.5 lacks torch" in line


def test_configured_environment_yields_to_flag(tmp_path: Path) -> None:
    from jupyter_amltrain.commands.registry import Defaults
    from jupyter_amltrain.commands.submit import parse_submit

    defaults = Defaults(environment="mine")
    taken = parse_submit([], "print(1)", defaults=defaults).spec.environment
    assert taken.name == "mine@latest" and taken.chosen
    assert parse_submit(["--env", "other"], "print(1)", defaults=defaults).spec.environment == Environment(
        name="other@latest"
    )


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("azureml:mine:3", "mine"),
        ("AzureML-sklearn-1.5@latest", "AzureML-sklearn-1.5"),
        ("azureml://registries/azureml/environments/sklearn-1.5/labels/latest", "sklearn-1.5"),
        ("azureml://registries/azureml/environments/x/versions/3", "x"),
    ],
)
def test_environment_label_is_readable(name: str, shown: str) -> None:
    assert environments.name_of({"name": name}) == shown
