"""YAML that expands without end, or nests without end, is one sentence within a second."""

from __future__ import annotations

import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from jupyter_amltrain.errors import AmlTrainError, EnvironmentFailed, SpecError
from jupyter_amltrain.schema import az_yaml
from jupyter_amltrain.schema.az_yaml import MAX_NODES, exceeded_limit

LAUGHS = "a0: &a0 [lol]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
MERGED = "a0: &a0 {x: 1}\n" + "".join(
    f"a{i}: &a{i} {{{', '.join(f'k{j}: *a{i - 1}' for j in range(9))}}}\n" for i in range(1, 12)
)
TEXTS = {
    "laughs": LAUGHS,
    "merged": MERGED,
    "brackets": "a: " + "[" * 20_000,
    "closed brackets": "a: " + "[" * 20_000 + "]" * 20_000,
    "braces": "{a: " * 20_000,
    "blocks": "- " * 20_000,
    "many": "a: [" + "1, " * 300_000 + "1]",
    "itself": "a: &a [*a, *a]\n" + "b: *a\n" * 20_000,
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", TEXTS)
def test_yaml_bomb_in_job_is_refused_within_one_second(name: str) -> None:
    begin = time.process_time()  # what it costs, whatever else runs here
    with pytest.raises(SpecError) as caught:
        az_yaml.parse(f"command: python train.py\n{TEXTS[name]}\n")
    assert time.process_time() - begin < 1.0
    assert "\n" not in str(caught.value)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["laughs", "brackets", "many"])
def test_yaml_bomb_in_conda_file_is_refused(name: str) -> None:
    from jupyter_amltrain.azure import mlflow_pins
    from jupyter_amltrain.azure.service import images

    text = f"dependencies: [python]\n{TEXTS[name]}\n"
    for read in (mlflow_pins._read, lambda text: images._conda(text, "conda.yml")):
        with pytest.raises(EnvironmentFailed) as caught:
            read(text)
        assert isinstance(caught.value, AmlTrainError) and "\n" not in str(caught.value)


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=40,
)


@pytest.mark.thorough
@given(_values)
def test_yaml_of_normal_size_is_accepted(value: object) -> None:
    shared = {"base": value, "again": [value, value]}  # written with an alias
    text = yaml.safe_dump(shared)
    assert exceeded_limit(text, yaml) == "" and yaml.safe_load(text) == shared


def test_yaml_limit_counts_expanded_nodes() -> None:
    ten = "a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9]\n"
    assert exceeded_limit(ten + "b: [" + "*a, " * (MAX_NODES // 10 - 20) + "]\n", yaml) == ""
    assert "expands" in exceeded_limit(ten + "b: [" + "*a, " * (MAX_NODES // 10 + 20) + "]\n", yaml)
