"""References of arguments to a job's data: ``${{inputs.data}}``."""

from __future__ import annotations

import os
import re
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_amltrain.agent.azure import job
from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.schema import inputs as references
from jupyter_amltrain.schema.inputs import JobInput, JobOutput
from jupyter_amltrain.schema.job import JobSpec, validated

ENV = {"AML_INPUT_DATA": '/mnt/it\'s "data"\\1', "AML_OUTPUT_MODEL": "/out/model"}
PARTS = st.sampled_from(["${{inputs.data}}", "${{ outputs.model }}"]) | st.text(max_size=8).filter(
    lambda text: "$" not in text
)
TEXTS = st.lists(PARTS, max_size=6).map("".join)


@given(TEXTS)
def test_reference_expression_equals_argument_value(text: str) -> None:
    expected = references.with_paths(text, ENV)
    with mock.patch.dict(os.environ, ENV):
        assert eval(references.expression_of(text)) == expected
    assert "\n" not in references.expression_of(text)
    assert job.command([text], ENV) == [expected]


@pytest.mark.thorough
@given(st.recursive(TEXTS, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner), max_leaves=8))
def test_nested_reference_is_found_and_replaced(value: Any) -> None:
    found = list(references.references(value))
    assert len(found) == len(re.findall(r"\$\{\{", str(value)))
    assert not list(references.references(references.with_paths(value, ENV)))


def test_reference_expanded_by_ipython_is_restored() -> None:
    given_line = {"data_dir": "${inputs.data}/a", "both": ["${{inputs.data}}", "${HOME}"], "n": 3}
    assert references.restore_references(given_line) == {
        "data_dir": "${{inputs.data}}/a",
        "both": ["${{inputs.data}}", "${HOME}"],
        "n": 3,
    }


def test_literal_input_alone_keeps_type() -> None:
    inputs = {"rate": JobInput(type="literal", value=0.5), "data": JobInput(path="/data")}
    given_params = {"lr": "${{inputs.rate}}", "name": "r=${{inputs.rate}}", "dir": "${{inputs.data}}"}
    assert references.with_literals(given_params, inputs) == {"lr": 0.5, "name": "r=0.5", "dir": "${{inputs.data}}"}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"params": {"data_dir": "${{inputs.dta}}"}}, ("--param data_dir", "dta", "data", "--input dta=")),
        ({"params": {"deep": {"a": ["${{outputs.weights}}"]}}}, ("--param deep", "weights", "--output weights")),
        ({"args": ("--data=${{inputs.dta}}",)}, ("dta", "--input dta=")),
    ],
)
def test_reference_to_unknown_data_error_names_flag(fields: dict[str, Any], named: tuple[str, ...]) -> None:
    spec = JobSpec(
        name="x", script="pass", inputs={"data": JobInput(path="/d")}, outputs={"model": JobOutput()}, **fields
    )
    with pytest.raises(SpecError) as caught:
        validated(spec)
    assert all(word in str(caught.value) for word in named) and "\n" not in str(caught.value)


def test_reference_to_declared_data_is_accepted() -> None:
    spec = JobSpec(
        name="x",
        script="pass",
        inputs={"data": JobInput(path="/d")},
        outputs={"model": JobOutput()},
        params={"a": "${{inputs.data}}", "b": "${{outputs.model}}/m", "c": "${HOME}"},
    )
    assert validated(spec) is spec
