"""Records of ``--out`` as a run has written them, or damaged."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from jupyter_amltrain.agent import values
from jupyter_amltrain.backends.run_files import output_of
from jupyter_amltrain.schema.run_file import OutValue


def given(**record: Any) -> OutValue:
    found = output_of("x", json.dumps({"amltrain": 1, "name": "x", **record}).encode(), "local/run")
    assert isinstance(found, OutValue)
    return found


@pytest.mark.parametrize("value", [(1, 2), {0: [(1,)]}, {"a": {(1, 2): None}}, [float("nan"), (b"x",)]])
def test_value_that_json_changes_is_kept(value: Any) -> None:
    found = given(value="as JSON", node=values.inline(value))
    assert found.saved is not None and repr(values.read(found.saved.node, "")) == repr(value)


@pytest.mark.parametrize(
    "node",
    [
        None,
        7,
        {},
        {"as": "pickle", "file": "x.pickle"},
        {"as": "tuple", "items": [{"as": "array", "file": "x.npy"}]},
        {"as": "tuple", "items": 3},
        {"as": "complex", "value": []},
        {"as": "unknown", "value": 1},
    ],
)
def test_node_that_is_no_whole_value_leaves_the_json(node: Any) -> None:
    found = given(value=[1, 2], node=node)
    assert (found.value, found.saved, found.graph) == ([1, 2], None, "")


def test_deep_node_leaves_the_json() -> None:
    node: Any = {"as": "json", "value": 1}
    for _ in range(150):
        node = {"as": "tuple", "items": [node]}
    assert given(value=[1], node=node).saved is None


@pytest.mark.parametrize("graph", ["../x.graph", "a b.graph", 3, ["a.graph"], "/etc/passwd"])
def test_graph_outside_the_outputs_is_not_taken(graph: Any) -> None:
    assert given(value=1, graph=graph).graph == ""


def test_saved_value_has_no_json() -> None:
    found = given(error="no JSON", file="x.npy", type="numpy.ndarray", shape=[2], graph="x.graph")
    assert found.value is msgspec.UNSET and found.saved is not None and found.graph == "x.graph"
