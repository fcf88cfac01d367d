"""Values of which a job's text tells that they return as pickles."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from jupyter_amltrain.jobs.out_types import consent_notes, pickled
from jupyter_amltrain.schema.job import JobSpec

NET = "class Net:\n    pass\n"


def spec_of(cell: str, **more: Any) -> JobSpec:
    return JobSpec(name="x", script="pass", cell=cell, out=("x",), **more)


@pytest.mark.parametrize(
    ("cell", "kind"),
    [
        (NET + "x = Net()", "Net"),
        ("import collections\nx = collections.deque([1])", "deque"),
        ("from collections import deque as d\nx = 1\nx = d()", "deque"),
        ("from sklearn.linear_model import Ridge\nx = Ridge()", ""),
        ("import pandas as pd\nx = pd.DataFrame()", ""),
        ("import numpy as np\nx = np.zeros(3)", ""),
        ("import datetime\nx = datetime.timedelta(1)", ""),
        ("x = Net()", ""),  # defined nowhere: not known
        ("import not_loaded_here\nx = not_loaded_here.Model()", ""),
        ("x = [1]", ""),
        ("x = train()", ""),
        ("def f():\n    x = Net()\n" + NET, ""),
    ],
)
def test_class_that_only_pickle_returns_is_found(cell: str, kind: str) -> None:
    import sklearn.linear_model  # noqa: F401 - as in the notebook

    assert pickled(spec_of(cell)) == ({"x": kind} if kind else {})


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_module_of_pytorch_is_a_pickle_unless_its_class_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    text = "import torch\nfrom torch import nn\n"
    sent = {"_amltrain_with": text + "class Net(nn.Module):\n    pass\n"}
    node = {"as": "pickle", "type": "__main__.Net", "file": "x"}
    assert pickled(spec_of(text + "x = nn.Sequential(nn.Linear(1, 1))")) == {}
    assert pickled(spec_of(text + "x = torch.Tensor(3)")) == {}
    assert pickled(spec_of("x = Net()", modules=sent)) == {"x": "Net"}
    monkeypatch.setattr("__main__.Net", type("Net", (torch.nn.Module,), {}), raising=False)
    assert pickled(spec_of("x = Net()", modules=sent)) == {}
    assert pickled(spec_of("x.train()", modules=sent, values={"x": node})) == {}
    assert pickled(spec_of("x.train()", values={"x": node})) == {"x": "Net"}  # the job has a copy of the class
    assert pickled(spec_of(sent["_amltrain_with"] + "x = Net()")) == {"x": "Net"}


def test_value_that_was_sent_as_pickle_returns_as_one() -> None:
    node = {"as": "graph", "type": "__main__.Net", "file": "x"}
    assert pickled(spec_of("x.fit()", values={"x": node})) == {"x": "Net"}
    assert pickled(spec_of("x = 1", values={"x": node})) == {}


def test_class_of_the_notebook_is_a_pickle() -> None:
    assert pickled(spec_of("x = Net()", modules={"_amltrain_with": NET})) == {"x": "Net"}


def test_note_names_value_type_and_target() -> None:
    (note,) = consent_notes(spec_of(NET + "x = Net()"), "gpubox")
    assert all(word in note for word in ("--out x", "gpubox", "Net", "--allow-pickle"))
    assert consent_notes(spec_of(NET + "x = Net()", allow_pickle=True), "gpubox") == ()
