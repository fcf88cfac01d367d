"""Bodies are judged by the published contract of their api-version, and recorded bodies are taken."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from azureml_emulator import images, schema
from jupyter_amltrain.azure import environments
from tools import azure_contract, azure_sdk

SWEEP = {
    "jobType": "Sweep",
    "trial": {"command": "echo", "environmentId": "azureml:e:1"},
    "searchSpace": {"x": ["choice", [[1, 2]]]},
    "objective": {"goal": "minimize", "primaryMetric": "loss"},
    "samplingAlgorithm": {"samplingAlgorithmType": "Random"},
}


def judged(resource: str, properties: dict[str, Any], version: str = "2024-01-01-preview", **more: Any) -> list[str]:
    return schema.problems(f"workspaces_{resource}", {"properties": properties}, version, **more)


@pytest.mark.parametrize(
    "more",
    [
        {"earlyTermination": {"policyType": "Bandit", "slackFactor": 0.1, "evaluationInterval": 1}},
        {"resources": {"instanceType": "Standard_DS2_v2", "instanceCount": 1}},
        {"queueSettings": {"jobTier": "Standard", "priority": 1}},
    ],
)
def test_sweep_valid_is_accepted(more: dict[str, Any]) -> None:
    assert judged("jobs", {**SWEEP, **more}) == []


@pytest.mark.parametrize("version", schema.versions())
def test_queue_priority_of_sdk_is_accepted(version: str) -> None:
    job = {"jobType": "Command", "command": "echo", "environmentId": "azureml:e:1"}
    assert judged("jobs", {**job, "queueSettings": {"jobTier": "Standard", "priority": 1}}, version) == []


def test_model_with_nested_flavors_is_accepted() -> None:
    flavors = {"python_function": {"data": {"env": {"conda": "conda.yaml"}, "loader_module": "x", "n": 1, "f": None}}}
    assert judged("models", {"modelUri": "azureml://jobs/a/outputs/b", "flavors": flavors}, "2023-08-01-preview") == []


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ({"objective": {"goal": "sideways", "primaryMetric": "x"}}, "properties.objective.goal"),
        ({"limits": {"jobLimitsType": "Sweep", "maxTotalTrials": 1.5}}, "properties.limits.maxTotalTrials"),
        ({"limits": {"jobLimitsType": "Sweep", "timeout": "an hour"}}, "properties.limits.timeout"),
        ({"trial": {"command": "echo"}}, "properties.trial.environmentId"),
        ({"jobType": "Dance"}, "properties.jobType"),
        ({"resources": {"instance_count": 1}}, "properties.resources.instance_count"),
    ],
)
def test_sweep_invalid_error_names_field(more: dict[str, Any], where: str) -> None:
    (line,) = judged("jobs", {**SWEEP, **more})
    assert line.startswith(f"{where}:")


def test_unknown_field_when_not_strict_is_accepted() -> None:
    assert judged("jobs", {**SWEEP, "shade": "red"}, strict=False) == []


def test_api_version_selects_known_fields() -> None:
    known = {**SWEEP, "resources": {"instanceCount": 1}}
    assert judged("jobs", known, "2023-04-01-preview") and not judged("jobs", known, "2024-01-01-preview")
    # Of a version without a contract the one before it holds, of an older one the oldest.
    assert not judged("jobs", known, "2024-04-01") and judged("jobs", known, "2020-01-01")


KEYS = st.sampled_from(["jobType", "properties", "inputs", "limits", "trial", "outputs", "tags"]) | st.text()
PLAIN = st.none() | st.booleans() | st.integers() | st.text()


@pytest.mark.thorough
@given(st.recursive(PLAIN, lambda one: st.lists(one) | st.dictionaries(KEYS, one)))
def test_any_json_is_judged_without_exception(body: Any) -> None:
    for version in schema.versions():
        assert isinstance(schema.problems("workspaces_jobs", body, version), list)


@pytest.mark.thorough
@pytest.mark.skipif(not azure_sdk.place().is_dir(), reason=f"azure-ai-ml {azure_sdk.VERSION} is not in build/")
@pytest.mark.parametrize("version", azure_contract.VERSIONS)
def test_contract_equals_generated_client(version: str) -> None:
    assert (azure_contract.FOLDER / f"{version}.json").read_text(encoding="utf-8") == azure_contract.text(version)


def test_chosen_environments_are_known_to_emulator() -> None:
    assert {f"AzureML-{name}" for name in environments.CURATED} <= set(images.CURATED)
