"""Values that share objects travel as one graph; others keep their forms."""

from __future__ import annotations

import copy
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from jupyter_amltrain.agent import shared_objects, values
from jupyter_amltrain.agent.values import CannotWrite
from jupyter_amltrain.jobs import value_graph


class Node:
    """An object that holds others."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts


def grouped(**named: Any) -> list[set[str]]:
    return [set(group) for group in shared_objects.groups(named)]


def sent(folder: Path, **named: Any) -> dict[str, Any]:
    """The values as a job reads them."""
    nodes = value_graph.write(named, folder)
    return {name: values.read(node, str(folder), allow_pickle=True, trusted=True) for name, node in nodes.items()}


LIST, ARRAY, FRAME = [1, 2], np.arange(5.0), pd.DataFrame({"a": [1, 2], "b": [3, 4]})


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ({"a": LIST, "b": LIST}, [{"a", "b"}]),
        ({"a": LIST, "b": {"inner": (LIST,)}}, [{"a", "b"}]),
        ({"a": Node(LIST), "b": Node(LIST)}, [{"a", "b"}]),
        ({"x": (x := Node()), "y": (y := Node()), "f": Node(x, y)}, [{"x", "y", "f"}]),
        ({"a": ARRAY, "b": [ARRAY]}, [{"a", "b"}]),
        ({"a": FRAME, "b": FRAME}, [{"a", "b"}]),
        ({"a": [ARRAY, ARRAY]}, [{"a"}]),
        ({"a": LIST, "b": LIST, "c": ARRAY, "d": [ARRAY], "e": 1}, [{"a", "b"}, {"c", "d"}]),
        # nothing is shared
        ({"a": [1, 2], "b": [1, 2]}, []),
        ({"a": "text", "b": "text", "c": None, "d": None, "e": (1, 2)}, []),
        ({"X": FRAME[["a"]], "y": FRAME["b"], "all": FRAME}, []),
        ({"head": ARRAY[:2], "tail": ARRAY[2:]}, []),
        ({"a": Node(np.float64(1)), "b": Node(np.dtype("f8")), "c": Node(Node)}, []),
        ({"a": Node(LIST, LIST)}, []),  # one object with a form of its own
    ],
)
def test_values_that_share_objects_are_one_group(named: dict[str, Any], expected: list[set[str]]) -> None:
    assert grouped(**named) == expected


def test_group_keeps_identity(tmp_path: Path) -> None:
    x, y = Node(), Node()
    got = sent(tmp_path, x=x, y=y, f=Node(x, y), names=["x", x])
    assert got["f"].parts == (got["x"], got["y"]) and got["names"][1] is got["x"]


def test_large_arrays_are_files_by_content_that_can_be_changed(tmp_path: Path) -> None:
    big = np.arange(100_000.0)
    got = sent(tmp_path, a=big, b=[big])
    assert got["a"] is got["b"][0] and np.array_equal(got["a"], big)
    got["a"][0] = 5.0
    first = {path.name for path in tmp_path.glob("*.buffer")}
    assert len(first) == 1
    value_graph.write({"c": big, "d": [big, 1]}, tmp_path)
    assert {path.name for path in tmp_path.glob("*.buffer")} == first  # not written again


def test_group_says_what_reading_it_needs(tmp_path: Path) -> None:
    frame = FRAME.copy()
    node = value_graph.write({"a": frame, "b": [frame]}, tmp_path)["a"]
    assert node["needs"] == ["pandas"]


def test_group_that_cannot_be_pickled_is_refused(tmp_path: Path) -> None:
    lock = Node(threading.Lock())
    with pytest.raises(CannotWrite):
        value_graph.write({"a": lock, "b": [lock]}, tmp_path)
    assert not list(tmp_path.iterdir())


def test_group_is_no_data_of_another_machine(tmp_path: Path) -> None:
    node = value_graph.write({"a": LIST, "b": LIST}, tmp_path)["a"]
    with pytest.raises(values.NeedsConsent):
        values.read(node, str(tmp_path))


def test_search_ends_in_large_values() -> None:
    """An array is one object; of many small ones the first are compared."""
    large = [Node(i) for i in range(400_000)]
    began = time.monotonic()
    assert grouped(a=large, b=copy.copy(ARRAY), c=list(range(2_000_000))) == []
    assert time.monotonic() - began < 60  # a second, on an idle machine


def test_module_and_optimizer_are_one_group() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    alone, data = torch.nn.Linear(2, 1), torch.zeros(3)
    groups = grouped(model=model, optimizer=optimizer, scheduler=scheduler, alone=alone, data=data)
    assert groups == [{"model", "optimizer", "scheduler"}]
