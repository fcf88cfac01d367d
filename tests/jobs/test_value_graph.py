"""Values that share objects travel as one graph; others keep their forms."""

from __future__ import annotations

import collections
import copy
import random
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
from jupyter_amltrain.jobs.values import bytes_of, store, write_all


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
        ({"head": ARRAY[:2], "tail": ARRAY[2:]}, [{"head", "tail"}]),
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
    assert node["needs"][:1] == ["pandas"]


def test_group_that_cannot_be_pickled_is_refused(tmp_path: Path) -> None:
    lock = Node(threading.Lock())
    with pytest.raises(CannotWrite):
        value_graph.write({"a": lock, "b": [lock]}, tmp_path)
    assert not list(tmp_path.iterdir())


def test_group_is_no_data_of_another_machine(tmp_path: Path) -> None:
    node = value_graph.write({"a": LIST, "b": LIST}, tmp_path)["a"]
    with pytest.raises(values.NeedsConsent):
        values.read(node, str(tmp_path))


@pytest.mark.thorough
def test_search_ends_in_large_values() -> None:
    """An array is one object; of many small ones the first are compared."""
    large = [Node(i) for i in range(400_000)]
    began = time.monotonic()
    assert grouped(a=large, b=copy.copy(ARRAY), c=list(range(2_000_000))) == []
    assert time.monotonic() - began < 60  # a second, on an idle machine


@pytest.mark.thorough
def test_module_and_optimizer_are_one_group() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    alone, data = torch.nn.Linear(2, 1), torch.zeros(3)
    groups = grouped(model=model, optimizer=optimizer, scheduler=scheduler, alone=alone, data=data)
    assert groups == [{"model", "optimizer", "scheduler"}]


#: What made values, what a cell does to them, and what it prints then.
IDENTITY = [
    ("a = [1]; b = a", "a.append(2)", "b, a is b"),
    ("a = [1]; b = {'x': a}", "b['x'].append(2)", "a"),
    ("a = {}; b = (a, a)", "a['k'] = 1", "b, b[0] is b[1]"),
    ("x = Box(1); f = Box(x)", "x.value = 3", "f.value.value"),
    ("a = [1]; a.append(a)", "a[1].append(2)", "len(a), a[1] is a"),
    (
        "root = Box(None); leaf = Box(root); root.value = leaf",
        "leaf.name = 'x'",
        "root.value.name, root.value.value is root",
    ),
    ("a = np.arange(6); b = a[2:4]", "a[3] = 99", "b"),
    ("a = np.arange(6).reshape(2, 3); b = a.T", "b[0, 0] = 99", "a, b"),
    ("a = np.arange(6); b = a[::2]; c = a[::-1]", "b[1] = 99", "a, c"),
    ("a = np.arange(4.0); b = [a, a]", "b[0][0] = 9", "b[1], a, b[0] is a"),
    ("a = np.asfortranarray(np.ones((2, 3))); b = a[:, 1]", "b[:] = 7", "a, a.flags.f_contiguous"),
    ("whole = np.arange(8); head, tail = whole[:4], whole[3:]; del whole", "head[3] = 99", "tail"),
    ("a = np.zeros(2, [('x', 'i4'), ('y', 'f8')]); x = a['x']", "x[0] = 5", "a"),
    ("frame = pd.DataFrame({'a': [1, 2]}); same = frame", "frame['b'] = 3", "same.shape, same is frame"),
    ("frame = pd.DataFrame({'a': [1, 2]}); column = frame['a']", "frame.loc[0, 'a'] = 9", "column.tolist()"),
    ("counts = collections.Counter('aab'); views = [counts.items()]; del views", "counts['a'] += 1", "counts"),
    ("d = collections.deque([1], 2); e = Box(d)", "d.append(2); d.append(3)", "e.value"),
    ("s = {1}; holder = Box(s)", "s.add(2)", "holder.value, holder.value is s"),
    ("b = bytearray(b'ab'); c = [b]", "b.append(99)", "c"),
    ("rng = np.random.default_rng(1); other = Box(rng)", "rng.random()", "other.value.random()"),
    ("r = random.Random(3); s = [r]", "r.random()", "s[0].random()"),
    ("it = iter([1, 2, 3]); same = it", "next(it)", "next(same)"),
]
TORCH = [
    ("w = torch.ones(2, requires_grad=True); (w * 3).sum().backward(); x = 1", "w.grad += 1", "w, w.grad, w.is_leaf"),
    ("m = torch.nn.Linear(2, 1); w = m.weight", "w.data.fill_(2.0)", "m.weight.sum().item(), m.weight is w"),
    ("t = torch.arange(6.0); v = t[2:4]", "t[3] = 99", "v, v.storage_offset()"),
    ("t = torch.arange(6.0).reshape(2, 3); v = t.T", "v[0, 0] = 99", "t, v.stride()"),
    ("m = torch.nn.Linear(2, 1); o = torch.optim.SGD(m.parameters(), 1.0); m(torch.ones(1, 2)).sum().backward()",
     "o.step()", "m.weight - 0"),
    ("a = torch.nn.Linear(2, 2); b = torch.nn.Linear(2, 2); b.weight = a.weight", "a.weight.data.zero_()", "b.weight"),
]  # fmt: skip


class Box:
    """Has a value that can be replaced."""

    def __init__(self, value: Any) -> None:
        self.value = value


@pytest.mark.parametrize(("made", "changed", "shown"), IDENTITY + TORCH)
def test_job_sees_the_same_sharing_as_the_kernel(made: str, changed: str, shown: str, tmp_path: Path) -> None:
    scope: dict[str, Any] = {"np": np, "pd": pd, "Box": Box, "collections": collections, "random": random}
    if "torch" in made:
        scope["torch"] = pytest.importorskip("torch")
    libraries = dict(scope)
    exec(made, scope)
    named = {name: value for name, value in scope.items() if name not in libraries and not name.startswith("__")}
    nodes = write_all(named, exact=True)
    job = {name: values.read(node, str(store()), allow_pickle=True, trusted=True) for name, node in nodes.items()}
    job |= libraries
    for names in (scope, job):
        exec(changed, names)
    assert repr(eval(shown, job)) == repr(eval(shown, scope))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMLTRAIN_HOME", str(tmp_path / "home"))


def test_part_of_a_large_array_travels_without_the_rest(tmp_path: Path) -> None:
    big = np.zeros(1_000_000)
    node = write_all({"part": Node(big[:10])}, exact=True)["part"]
    assert bytes_of(node) < 10_000


def test_gradient_and_device_of_a_tensor_are_kept(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(3.0, requires_grad=True)
    (tensor**2).sum().backward()
    node = write_all({"t": tensor}, exact=True)["t"]
    got = values.read(node, str(store()), allow_pickle=True, trusted=True)
    assert torch.equal(got.grad, tensor.grad) and got.requires_grad and got.device.type == "cpu"
    moved = values.tensor_view(np.zeros(8, "u1"), "float32", (2,), (1,), 0, "cuda", "Tensor", False, None)
    assert moved.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
