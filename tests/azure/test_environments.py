"""Notes on a job's environment before a machine is paid for, on the emulated Azure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from jupyter_amltrain.errors import EnvironmentFailed
from tests.azure.conftest import Azure
from tests.azure.connected_api import carry_out, lab, plan, submit
from tests.helpers import DEADLINE

TORCH = "import torch, sklearn\n"


@pytest.fixture(scope="module")
def api(azure: Azure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with lab(azure, tmp_path_factory.mktemp("environments")) as module:
        yield module


def made(azure: Azure) -> tuple[str, dict[str, Any]]:
    """The environment that was made last: as ``--env`` takes it, and what was sent."""
    sent = [w for w in azure.control("/wire") if w["method"] == "PUT" and "/environments/" in w["path"]][-1]
    body = sent["body"] if isinstance(sent["body"], dict) else json.loads(sent["body"])
    name, _, version = sent["path"].partition("?")[0].partition("/environments/")[2].partition("/versions/")
    return f"azureml:{name}:{version}", body["properties"]


def planned(line: str, cell: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(plan(line, cell))
    return found


@pytest.mark.thorough
def test_dry_run_notes_missing_packages(api: Any) -> None:
    found = planned("--target cpu --env AzureML-acpt-pytorch-2.8-cuda12.6", TORCH)
    (note,) = found["notes"]
    parts = ("imports sklearn", "AzureML-acpt-pytorch-2.8-cuda12.6 lacks scikit-learn", "--env kernel")
    assert all(part in note for part in parts)
    assert "notes" not in planned("--target cpu --env AzureML-sklearn-1.5", "import sklearn, mlflow")
    assert f"# {note}\n" in plan("--target cpu --env AzureML-acpt-pytorch-2.8-cuda12.6 --yaml", TORCH)
    assert "scikit-learn==" in plan("--target local --env kernel --yaml", "import sklearn")


@pytest.mark.thorough
def test_submit_notes_missing_packages(api: Any, azure: Azure) -> None:
    for curated in (False, True):
        azure.control("/switch", curated_conda=curated)
        run = submit("--target cpu --env AzureML-sklearn-1.5", "print(1)\nif 0: pass\nimport torch\n").accepted(
            DEADLINE
        )
        (note,) = run.record().notes
        assert "AzureML-sklearn-1.5 lacks torch" in note and f"note: {note}" in repr_of(run)
        run.cancel()
    azure.control("/switch", curated_conda=False)


def repr_of(run: Any) -> str:
    return str(run._repr_mimebundle_()["text/plain"])


def test_dry_run_has_price_of_run(api: Any) -> None:
    line = "--target free --instance-type Standard_NC6s_v3 --nodes 2"
    assert "2 x 3.06 = 6.12 USD per hour" in planned(line, "print(1)")["price"]
    assert "2 x 0.61 = 1.22 USD per hour" in planned(f"{line} --tier spot", "print(1)")["price"]
    assert "price" not in planned("--target free", "print(1)")  # Azure publishes none


def test_target_environment_is_used(api: Any) -> None:
    carry_out("create own --kind serverless --size Standard_DS2_v2 --env AzureML-lightgbm-3.3@latest")
    assert planned("--target own", "import torch")["environment"] == {"name": "AzureML-lightgbm-3.3@latest"}
    body = planned("--target own --env AzureML-sklearn-1.5", "print(1)")
    assert body["environment"] == {"name": "AzureML-sklearn-1.5@latest"} and "notes" not in body


@pytest.mark.thorough
def test_default_gpu_environment_follows_imports(api: Any) -> None:
    carry_out("create gpus --kind serverless --size Standard_NC6s_v3")
    assert planned("--target gpus", "import torch")["environment"]["name"].startswith("AzureML-acpt-pytorch-2.8")
    assert planned("--target gpus", "import sklearn")["environment"]["name"] == "AzureML-sklearn-1.5@latest"
    digits = "import mlflow\nfrom sklearn.svm import SVC\nif False:\n    mlflow.sklearn.log_model(SVC(), name='m')\n"
    made = planned("--target gpus", digits)
    assert made["environment"]["image"].startswith("mcr.microsoft.com/azureml/openmpi5.0-cuda") and made["notes"]
    text = plan("--target gpus --yaml", digits)
    assert "mlflow==" in text and "python=3." in text


@pytest.mark.thorough
def test_derived_environment_keeps_packages(api: Any, azure: Azure) -> None:
    submit("--target cpu --env AzureML-sklearn-1.5 --derive-env", "print(1)").accepted(DEADLINE).cancel()
    name, sent = made(azure)
    words = ("scikit-learn~=1.5.0", "skops<1", "azureml-mlflow>=1.62.0.post6")
    assert all(word in sent["condaFile"] for word in words)
    # What the service tells of it is what is judged, before and at the submit.
    (note,) = planned(f"--target cpu --env {name}", TORCH)["notes"]
    assert "CliV2AnonymousEnvironment lacks torch" in note
    run = submit(f"--target cpu --env {name}", "print(1)\nimport torch").accepted(DEADLINE)
    assert len(run.record().notes) == 1
    run.cancel()


@pytest.mark.thorough
def test_image_environment_has_no_note(api: Any, azure: Azure) -> None:
    assert "notes" not in planned("--target cpu --env mcr.microsoft.com/azureml/openmpi5.0-ubuntu24.04:latest", TORCH)
    submit("--target cpu --env mcr.microsoft.com/azureml/openmpi5.0-ubuntu24.04:latest", "print(1)").accepted(
        DEADLINE
    ).cancel()
    name, sent = made(azure)
    assert not sent.get("condaFile")
    with pytest.raises(EnvironmentFailed, match="packages are unknown"):
        submit(f"--target cpu --env {name} --derive-env", "print(1)").accepted(DEADLINE)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "hint"), [("kernle", "--env kernel?"), ("mine", "--env conda.yml")])
def test_unknown_environment_error_suggests_similar(api: Any, name: str, hint: str) -> None:
    with pytest.raises(EnvironmentFailed) as caught:
        submit(f"--target cpu --env {name}", "print(1)").accepted(DEADLINE)
    assert f"no environment '{name}' in lab" in str(caught.value) and hint in str(caught.value)


@pytest.mark.thorough
@pytest.mark.parametrize("listed", ["no", "null", "yes"])
def test_default_environment_is_independent_of_listing(api: Any, azure: Azure, listed: str) -> None:
    azure.control("/switch", curated_listed=listed)
    try:
        run = submit("--target cpu", f"print({listed!r})").accepted(DEADLINE)
        sent = [w for w in azure.control("/wire") if w["method"] == "PUT" and w["path"].endswith(run.run.run_id)][-1]
        body = sent["body"] if isinstance(sent["body"], dict) else json.loads(sent["body"])
        environment = body["properties"]["environmentId"]
        label = environment == "azureml:AzureML-sklearn-1.5@latest"
        assert label is (listed != "yes") and "AzureML-sklearn-1.5" in environment
        run.cancel()
    finally:
        azure.control("/switch", curated_listed="no")


@pytest.mark.thorough
def test_unknown_registry_environment_error_names_it(api: Any) -> None:
    name = "azureml://registries/azureml/environments/nosuch/labels/latest"
    with pytest.raises(EnvironmentFailed) as caught:
        submit(f"--target cpu --env {name}", "print(1)").accepted(DEADLINE)
    assert name in str(caught.value) and "registry 'azureml'" in str(caught.value)
