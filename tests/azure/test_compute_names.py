from __future__ import annotations

import re

import pytest

from jupyter_amltrain.azure.job_body import job_name
from jupyter_amltrain.azure.targets import compute_name_error, suggested_name


@pytest.mark.parametrize("name", ["abc", "gpu-cluster", "A1b", "a" * 24, "gpu-1"])
def test_compute_name_valid_is_accepted(name: str) -> None:
    assert compute_name_error(name) == ""


@pytest.mark.parametrize("name", ["", "ab", "1ab", "gpu_cluster", "gpu-", "a" * 25, "gpu.1", "-gpu", "grün", "a b"])
def test_compute_name_invalid_error_has_rule_and_suggestion(name: str) -> None:
    message = compute_name_error(name)
    assert "3 to 24 letters" in message and "\n" not in message
    for instance in (False, True):
        assert compute_name_error(suggested_name(name), instance=instance) == ""


def test_instance_name_with_hyphen_digits_end_is_refused() -> None:
    assert compute_name_error("gpu-1", instance=True).endswith(" gpu1.")
    assert compute_name_error("gpu-a1", instance=True) == ""


@pytest.mark.parametrize("name", ["x", "9", "a-1-2", "x" * 23 + "-9", "--1--", "a--b", "gpu cluster 2026-11-21"])
def test_suggested_compute_name_is_valid(name: str) -> None:
    assert compute_name_error(suggested_name(name), instance=True) == ""


@pytest.mark.parametrize(
    ("run_id", "name"), [("digits-k3f9", "digits-k3f9"), ("a b/c", "a-b-c"), ("_x", "x"), ("", "run")]
)
def test_job_name_is_valid(run_id: str, name: str) -> None:
    assert job_name(run_id) == name and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,254}", job_name(run_id * 200))
