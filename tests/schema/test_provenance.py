from __future__ import annotations

from typing import Any

import pytest

from jupyter_amltrain.schema.provenance import Provenance, differences, facts_of, provenance_of

JOB: dict[str, Any] = {
    "submitted": 12.5,
    "provenance": {
        "user": "ada",
        "host": "laptop",
        "interpreter": "/usr/bin/python3",
        "git": {"commit": "a" * 40, "branch": "main", "dirty": True},
        "inputs": {"data": {"path": "/d", "sha256": "b" * 64, "files": 1, "bytes": 3}},
    },
    "spec": {"source_sha256": "c" * 64},
    "snapshot": {"digest": "d" * 64},
}
AGENT: dict[str, Any] = {
    "python": {"version": "3.12.1", "executable": "/usr/bin/python3"},
    "packages": {"numpy": "2.0"},
    "machine": {"host": "box", "cpus": 8, "memory": 1 << 30},
}
HEADER: dict[str, Any] = {"host": "box", "gpus": [{"name": "NVIDIA L4"}, {"name": "NVIDIA L4"}], "driver": "580.1"}


def test_provenance_combines_files_of_submitter_agent_and_sampler() -> None:
    found = provenance_of(JOB, AGENT, HEADER)
    assert (found.user, found.submitted, found.python, found.packages) == ("ada", 12.5, "3.12.1", {"numpy": "2.0"})
    assert found.git is not None and found.git.dirty and found.inputs["data"].bytes == 3
    assert found.machine.gpus == ("NVIDIA L4", "NVIDIA L4") and found.machine.driver == "580.1"
    assert found.machine.cpus == 8 and found.snapshot_sha256 == "d" * 64


@pytest.mark.parametrize("wrong", [3, [], "x", {"git": 3}, {"user": []}, None])
def test_values_of_wrong_types_are_unknown(wrong: Any) -> None:
    job = {"provenance": wrong, "spec": wrong, "snapshot": wrong, "submitted": "now"}
    found = provenance_of(job, {"python": wrong, "packages": wrong, "machine": wrong}, {"gpus": wrong, "driver": 3})
    assert found.user == "" and found.submitted == 0 and found.python == "" and found.machine.gpus == ()


def test_differences_name_facts_of_several_runs() -> None:
    one = provenance_of(JOB, AGENT, HEADER)
    other = provenance_of(JOB, {**AGENT, "packages": {"numpy": "2.1", "scipy": "1"}}, {})
    found = {(each.group, each.name): each.values for each in differences([one, one, other])}
    assert found["packages", "numpy"] == ("2.0", "2.0", "2.1") and found["packages", "scipy"] == (None, None, "1")
    assert found["hardware", "GPUs"][2] is None and ("git", "commit") not in found


def test_run_without_packages_does_not_differ_in_each_of_them() -> None:
    one = provenance_of(JOB, AGENT, HEADER)
    assert not [each for each in differences([one, Provenance()]) if each.group in ("packages", "hardware", "python")]
    assert facts_of(Provenance())["git"] == {}
