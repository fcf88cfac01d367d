"""Values and functions of a notebook in a job and back, the same on every target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from jupyter_amltrain.commands import magic_line
from jupyter_amltrain.commands import submit as command

from ..agent.test_values import FRAME, same

HISTORY = ("import math\nSCALE = 3", "def scaled(x):\n    return math.floor(x * SCALE)")

VALUES: dict[str, Any] = {
    "number": 3,
    "text": "größe",
    "pair": (1, {"a": None}),
    "days": {2, 3},
    "place": Path("data") / "x.csv",
    "array": np.arange(6, dtype="float32").reshape(2, 3),
    "frame": FRAME,
    "series": FRAME["number"],
    "data": {"X": np.ones((3, 2)), "y": (np.zeros(3), ["labels"])},
}


def send(line: str, cell: str, namespace: dict[str, Any], history: tuple[str, ...] = HISTORY) -> Any:
    """The run of ``%%aml_submit LINE`` in a notebook with these variables and cells."""
    notebook = command.Notebook(namespace, lambda: history)
    return command.send(command.parse_submit(magic_line.split(line), cell, prog="%%aml_submit", notebook=notebook))


def check_round_trip(target: str, deadline: float) -> None:
    """Send every value, take it back, and compare."""
    from sklearn.linear_model import Ridge

    model = Ridge(0.5).fit([[1.0], [2.0]], [1.0, 2.0])
    namespace: dict[str, Any] = {"__name__": "__main__", **VALUES, "model": model}
    for cell in HISTORY:
        exec(cell, namespace)
    sent = " ".join(f"--in {name}" for name in (*VALUES, "model"))
    back = " ".join(f"--out {name}" for name in (*VALUES, "model", "found"))
    line = f"--target {target} --gpus 0 {sent} --with scaled {back}"
    run = send(line, "found = scaled(number) + float(model.predict([[1.0]])[0] > 0)", namespace).wait(deadline)
    assert run.result("found") == 10.0
    for name, value in VALUES.items():
        if name in ("pair",):  # JSON has no tuple: a value of --out that is JSON comes back as JSON
            assert run.result(name) == [1, {"a": None}]
        elif name == "place":
            assert run.result(name) == str(value)
        else:
            assert same(run.result(name), value), name
    assert isinstance(run.result("frame"), pd.DataFrame) and run.result("model").coef_ == model.coef_
