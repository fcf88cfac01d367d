"""Values and functions of a notebook in a job and back, the same on every target."""

from __future__ import annotations

import collections
import datetime
import decimal
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pyarrow
import pytest
import scipy.sparse

from jupyter_amltrain.commands import magic_line
from jupyter_amltrain.commands import submit as command
from jupyter_amltrain.errors import ResultMissing

from ..agent.test_values import FRAME, same

HISTORY = ("import math\nSCALE = 3", "def scaled(x):\n    return math.floor(x * SCALE)")

#: Value by name, of every form.
VALUES: dict[str, Any] = {
    "number": 3,
    "text": "größe",
    "größe": [1.5, None],
    "pair": (1, {"a": None}),
    "days": {2, 3},
    "when": datetime.datetime(2026, 11, 23, 10, 5, tzinfo=datetime.timezone.utc),
    "price": decimal.Decimal("1.10"),
    "data": b"\0\xff",
    "blob": bytes(100_000),
    "place": Path("data") / "x.csv",
    "array": np.arange(6, dtype="float32").reshape(2, 3),
    "frame": FRAME,
    "series": FRAME["number"],
    "polar": polars.DataFrame({"a": [1, None], "b": ["x", "ü"]}),
    "polars_series": polars.Series("a", [1, 2]),
    "table": pyarrow.table({"a": [1, 2]}),
    "sparse": scipy.sparse.csr_matrix([[0, 1], [2, 0]]),
    "parts": {"X": np.ones((3, 2)), "y": (np.zeros(3), ["labels"])},
}
#: Types that JSON has not: such a value of ``--out`` comes back as JSON.
AS_JSON = {"pair": [1, {"a": None}], "place": str(VALUES["place"])}


def send(line: str, cell: str, namespace: dict[str, Any], history: tuple[str, ...] = HISTORY) -> Any:
    """The run of ``%%aml_submit LINE`` in a notebook with these variables and cells."""
    notebook = command.Notebook(namespace, lambda: history)
    return command.send(command.parse_submit(magic_line.split(line), cell, prog="%%aml_submit", notebook=notebook))


def check_round_trip(target: str, deadline: float) -> None:
    """Send every value, take it back, and compare."""
    from sklearn.linear_model import Ridge

    model = Ridge(0.5).fit([[1.0], [2.0]], [1.0, 2.0])
    namespace: dict[str, Any] = {"__name__": "__main__", **VALUES, "model": model, "own": collections.deque("ab")}
    if has_torch := importlib.util.find_spec("torch") is not None:
        import torch

        namespace |= {"tensor": torch.arange(3.0), "state": torch.nn.Linear(2, 1).state_dict()}
    names = [name for name in namespace if name != "__name__"]
    for cell in HISTORY:
        exec(cell, namespace)
    sent = " ".join(f"--in {name}" for name in names)
    back = " ".join(f"--out {name}" for name in (*names, "found", "figure"))
    line = f"--target {target} --gpus 0 {sent} --with scaled {back} --allow-pickle"
    text = (
        "from matplotlib.figure import Figure\nfigure = Figure()\nfigure.subplots().plot([1, 2])\n"
        "found = scaled(number) + float(model.predict([[1.0]])[0] > 0)"
    )
    run = send(line, text, namespace).wait(deadline)
    assert run.result("found") == 10.0
    for name, value in VALUES.items():
        assert same(run.result(name), AS_JSON.get(name, value)), name
    assert run.result("model").coef_ == model.coef_ and run.result("figure").data.startswith(b"\x89PNG")
    with pytest.raises(ResultMissing):
        run.result("own")
    assert run.result("own", allow_pickle=True) == namespace["own"]
    if has_torch:
        assert run.result("tensor").equal(namespace["tensor"])
        state = run.result("state")
        assert all(state[name].equal(value) for name, value in namespace["state"].items())
