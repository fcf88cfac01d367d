"""The graph of a file that a service runs."""

from __future__ import annotations

import pytest

from jupyter_amltrain.pipelines.graph_part import file_steps

FILE = """
type: pipeline
jobs:
  use:
    type: sweep
    inputs:
      text: ${{parent.jobs.make.outputs.file}}
      more: {type: uri_folder, path: '${{parent.jobs.other.outputs.rows}}'}
      word: ${{parent.inputs.word}}
  make:
    component: azureml:make:1
    compute: azureml:gpu
  other:
    command: echo
"""


def test_steps_of_any_type_follow_those_that_they_need() -> None:
    found = file_steps(FILE, "cpu")
    assert [step.name for step in found][-1] == "use" and set(found[-1].needs) == {"make", "other"}
    assert {step.name: step.target for step in found} == {"use": "cpu", "make": "gpu", "other": "cpu"}


@pytest.mark.parametrize("text", ["type: pipeline\n", "type: [", FILE.replace("jobs.make", "jobs.gone"), "jobs: [1]\n"])
def test_file_without_an_order_has_no_graph(text: str) -> None:
    assert file_steps(text, "cpu") == ()
