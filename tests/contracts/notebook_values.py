"""Values and functions of a notebook in a job and back, the same on every target."""

from __future__ import annotations

import collections
import datetime
import decimal
import importlib.util
import sys
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
    "by_number": {0: 0.5, (1, 2): [1.5]},
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


def send(line: str, cell: str, namespace: dict[str, Any], history: tuple[str, ...] = HISTORY) -> Any:
    """The run of ``%%aml_submit LINE`` in a notebook with these variables and cells."""
    notebook = command.Notebook(namespace, lambda: history)
    return command.send(command.parse_submit(magic_line.split(line), cell, prog="%%aml_submit", notebook=notebook))


def check_round_trip(target: str, deadline: float, *, is_own: bool = False) -> None:
    """Send every value, take it back, and compare.

    Parameters
    ----------
    is_own
        The target is this machine, whose pickles are one's own.
    """
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.linear_model import Ridge

    model = Ridge(0.5).fit([[1.0], [2.0]], [1.0, 2.0])
    forest = RandomForestRegressor(3)
    namespace: dict[str, Any] = {"__name__": "__main__", **VALUES, "model": model, "own": collections.deque("ab")}
    namespace |= {"forest": forest, "first": (shared := [np.arange(20_000.0)]), "second": {"inner": shared}}
    if has_torch := importlib.util.find_spec("torch") is not None:
        import torch

        namespace |= {"tensor": torch.arange(3.0), "state": torch.nn.Linear(2, 1).state_dict()}
    names = [name for name in namespace if name != "__name__"]
    for cell in HISTORY:
        exec(cell, namespace)
    sent = " ".join(f"--in {name}" for name in names)
    back = " ".join(f"--out {name}" for name in (*names, "found", "figure", "shares"))
    line = f"--target {target} --gpus 0 {sent} --with scaled {back} --allow-pickle"
    text = (
        "from matplotlib.figure import Figure\nfigure = Figure()\nfigure.subplots().plot([1, 2])\n"
        "forest.fit([[0.0], [1.0]], [0.0, 1.0])\n"
        "shares = second['inner'] is first\n"
        "found = scaled(number) + float(model.predict([[1.0]])[0] > 0)"
    )
    run = send(line, text, namespace).wait(deadline)
    assert run.result("found") == 10.0 and run.result("shares")
    for name, value in VALUES.items():
        assert same(run.result(name), value), name
    assert run.result("model").coef_ == model.coef_ and run.result("figure").data.startswith(b"\x89PNG")
    assert run.result("forest").predict([[1.0]]).shape == (1,)
    if is_own:
        assert run.result("own") == namespace["own"]
    else:
        with pytest.raises(ResultMissing) as caught:
            run.result("own")
        assert caught.value.code == "result.pickle" and "own" in repr(run.result("own", lazy=True))
    assert run.result("own", allow_pickle=True) == namespace["own"]
    if has_torch:
        assert run.result("tensor").equal(namespace["tensor"])
        state = run.result("state")
        assert all(state[name].equal(value) for name, value in namespace["state"].items())


#: Cells of a notebook that were run, and one that is submitted as it stands.
CELLS = (
    "import math\nimport numpy as np\nfrom collections import Counter as Count",
    "SCALE = 3\ndef scaled(x):\n    return math.floor(x * SCALE)",
    "class Net:\n    def __init__(self, w): self.weights = w\n    def total(self): return self.weights.sum()",
)
CELL = r"""
%matplotlib inline
!echo shell {scaled(2)}
weights[0] = 10
%env AML_A=1
print("net", float(net.total()), view[0], frame.shape, Count("aa")["a"])
import asyncio
got = await asyncio.sleep(0, scaled(1.5))
display([got, "x"])
lines = !printf 'a\nb\n'
answer = [got, len(lines), _exit_code, __import__("os").environ["AML_A"]]
answer
"""


def check_cell_as_it_stands(target: str, deadline: float) -> None:
    """Submit a cell that takes imports, functions, classes and values that share memory, and has notebook syntax."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    for cell in CELLS:
        exec(cell, scope)
    weights = np.arange(4.0)
    scope |= {"weights": weights, "view": weights[:2], "frame": FRAME, "unused": 1, "net": scope["Net"](weights)}
    main = sys.modules["__main__"]
    before = dict(vars(main))
    vars(main).update({name: scope[name] for name in ("Net", "scaled")})  # as in a kernel
    try:
        run = send(f"--target {target} --gpus 0 --out answer", CELL, scope, ("", *CELLS))
    finally:
        for name in set(vars(main)) - set(before):
            delattr(main, name)
    run.wait(deadline)
    log = run.logs()
    assert "shell 6" in log and "net 16.0 10.0" in log and "[4, 'x']" in log and "[4, 2, 0, '1']" in log
    assert run.result("answer") == [4, 2, 0, "1"]
    taken = run.record().taken.line
    assert all(name in taken for name in ("Count", "scaled", "weights", "view")) and "unused" not in taken


#: A cell whose values are not named by ``--out``.
KEEPS = """
import collections, threading
import numpy as np
def double(x): return 2 * x
steps = [1, 2]
history = {"steps": steps, "own": (1, {2: 3})}
array = np.arange(6.0)
frame["new"] = double(frame["number"])
counts.update("ab")
bag = collections.deque("ab")
lock = threading.Lock()
token = "hf_" + "a1B2c3D4e5F6g7H8i9J0k1L2"
for step in steps:
    total = step
"""


def check_kept_values(target: str, deadline: float, *, is_own: bool = False) -> None:
    """Take values back that no ``--out`` named.

    Parameters
    ----------
    is_own
        The target is this machine, whose pickles are one's own.
    """
    scope: dict[str, Any] = {"__name__": "__main__", "frame": FRAME[["number"]].copy(), "counts": collections.Counter()}
    run = send(f"--target {target} --gpus 0 --out total", KEEPS, scope, ("",)).wait(deadline)
    assert run.result("history") == {"steps": [1, 2], "own": (1, {2: 3})} and run.result("total") == 2
    assert same(run.result("array"), np.arange(6.0))
    assert same(run.result("frame"), FRAME[["number"]].assign(new=2 * FRAME["number"]))
    assert run.result("counts", allow_pickle=True) == {"a": 1, "b": 1}
    if not is_own:
        with pytest.raises(ResultMissing) as caught:
            run.result("bag")
        assert caught.value.code == "result.pickle" and "bag" in repr(run.result("bag", lazy=True))
    assert run.result("bag", allow_pickle=True) == collections.deque("ab")
    for name in ("lock", "token", "double", "np", "nothing"):
        assert name not in run.results
        with pytest.raises(ResultMissing):
            run.result(name)
    assert [*run.results][0] == "total" and {"step", "bag", "frame", "array", "history", "steps"} <= {*run.results}
    assert not [file.path for file in run.files() if file.path.startswith("outputs/_")]
