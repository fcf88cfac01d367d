"""Values of the notebook as files, there and back."""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import importlib.util
import io
import itertools
import json
import math
import os
import pickle
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars
import pyarrow
import pytest
import scipy.sparse

from jupyter_amltrain.agent import values

FRAME = pd.DataFrame(
    {
        "number": [1.5, float("nan"), 3.0],
        "text": ["a", None, "ü"],
        "kind": pd.Categorical(["x", "y", "x"]),
        "at": pd.to_datetime(["2026-01-01", "2026-01-02", None], utc=True),
    },
    index=pd.Index([10, 20, 30], name="id"),
)


def there_and_back(value: Any, folder: Path, **how: Any) -> Any:
    node = json.loads(json.dumps(values.write(value, str(folder), **how)))
    return values.read(node, str(folder), trusted=True, **how)


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, pd.DataFrame | pd.Series):
        (pd.testing.assert_frame_equal if isinstance(one, pd.DataFrame) else pd.testing.assert_series_equal)(one, other)
        return True
    if isinstance(one, np.ndarray | np.generic):
        return one.dtype == other.dtype and one.shape == other.shape and np.array_equal(one, other)
    if isinstance(one, polars.DataFrame | polars.Series | pyarrow.Table):
        return bool(one.equals(other))
    if scipy.sparse.issparse(one):
        return (one != other).nnz == 0
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        10**40,
        0.1,
        float("nan"),
        float("-inf"),
        1 - 2j,
        "ünï\n",
        b"\0\xff",
        b"x" * 100_000,
        bytearray(b"ab"),
        [1, "a", None, [2.5]],
        {"lr": 0.1, "layers": [1, 2]},
        (1, (2, "x")),
        {1: "one", (2, 3): None},
        {1, 2},
        frozenset({"a"}),
        range(3, 9, 2),
        Path("/data/x.csv"),
        decimal.Decimal("1.10"),
        datetime.date(2026, 11, 23),
        datetime.datetime(2026, 11, 23, 10, 5, tzinfo=datetime.timezone.utc),
        datetime.timedelta(days=1, microseconds=5),
        np.arange(12.0).reshape(3, 4),
        np.array([], dtype="int8"),
        np.array([("a", 1)], dtype=[("name", "U4"), ("n", "i4")]),
        np.float32(0.5),
        np.array(["2026-01-01"], dtype="datetime64[D]"),
        FRAME,
        FRAME["number"],
        pd.Series([1, 2], name=None),
        {"X": np.ones((2, 2)), "y": (np.zeros(2), "labels"), "n": 3},
        [FRAME, FRAME],
        polars.DataFrame({"a": [1, None], "b": ["x", "ü"]}),
        polars.Series("a", [1.5, 2.5]),
        pyarrow.table({"a": [1, 2]}),
        scipy.sparse.csr_matrix([[0, 1], [2, 0]]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_value_comes_back_equal(value: Any, tmp_path: Path) -> None:
    assert same(value, there_and_back(value, tmp_path))


@pytest.mark.thorough
@pytest.mark.parametrize("installed", [True, False], ids=["safetensors", "torch"])
def test_tensors_come_back_equal_and_are_one_file(
    installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch", reason="no torch on this machine")
    find_spec = importlib.util.find_spec
    if installed and find_spec("safetensors") is None:
        pytest.skip("no safetensors on this machine")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: find_spec(name) if installed else None)
    weight = torch.arange(4.0).reshape(2, 2)
    value = {"tensor": weight.t(), "state": {"a": weight, "tied": weight}, "odd": {"step": torch.tensor(3), "n": 1}}
    for _ in range(2):
        back = there_and_back(value, tmp_path)
    assert back["tensor"].equal(value["tensor"]) and back["odd"]["step"] == 3 and back["odd"]["n"] == 1
    assert all(back["state"][name].equal(weight) for name in ("a", "tied"))
    assert len(os.listdir(tmp_path)) == 3 and not list(tmp_path.glob(".*"))


@pytest.mark.thorough
def test_tensor_that_cannot_be_saved_is_one_line(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="no torch on this machine")
    with pytest.raises(values.CannotWrite) as caught:
        values.write({"w": torch.ones(2).to_sparse()}, str(tmp_path))
    assert "\n" not in str(caught.value) and caught.value.advice and not os.listdir(tmp_path)


@pytest.mark.thorough
def test_estimator_comes_back_without_pickle(tmp_path: Path) -> None:
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), Ridge(0.5)).fit([[1.0], [2.0]], [1.0, 2.0])
    back = there_and_back(model, tmp_path)
    assert np.array_equal(back.predict([[3.0]]), model.predict([[3.0]])) and not list(tmp_path.glob("*.pickle"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "value", ["ü" * (2 << 20), {"rows": [[1.5] * 1000] * 1000}, [b"x" * 60_000, {1: "y" * 900}] * 50]
)
def test_large_part_is_a_file(value: Any, tmp_path: Path) -> None:
    node = values.write(value, str(tmp_path))
    assert len(json.dumps(node)) < 2 * values.MAX_INLINE_BYTES and list(values.files_of(node))
    assert same(values.read(node, str(tmp_path), trusted=True), value)


def test_equal_values_are_one_file(tmp_path: Path) -> None:
    first, second = (values.write(np.arange(5), str(tmp_path)) for _ in range(2))
    assert first == second and len(os.listdir(tmp_path)) == 1


class Own:
    """A value without a form."""


CYCLE: list[Any] = [1]
CYCLE.append((CYCLE, {3}))


@pytest.mark.parametrize(
    ("value", "word", "advice"),
    [
        (Own(), "Own", "parts"),
        ([1, Own()], "[1]", "parts"),
        ({"net": Own()}, "net", "parts"),
        (lambda x: x, "function", "--with"),
        (Own, "class", "--with Own"),
        (math, "module", "Import"),
        (np.array([Own()], dtype=object), "object", "list"),
        (np.ma.masked_array([1.0, 2.0], [True, False]), "masked", "x.mask"),
        ({"m": np.rec.array([(1, 2.0)], dtype=[("a", int), ("b", float)])}, "recarray", "asarray"),
        ((i for i in range(3)), "once", "list"),
        (io.StringIO(), "once", "list"),
        (CYCLE, "itself", "refers back"),
        (itertools.count(), "once", "list"),
        ([(i,) for i in range(20_000)], "parts", "array"),
    ],
)
def test_value_without_form_says_what_would_work(value: Any, word: str, advice: str, tmp_path: Path) -> None:
    with pytest.raises(values.CannotWrite) as caught:
        values.write(value, str(tmp_path))
    assert word in str(caught.value) and advice in caught.value.advice and "\n" not in str(caught.value)


def test_frame_with_mixed_column_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(values.CannotWrite) as caught:
        values.write(pd.DataFrame({"x": [1, "a", Own()]}), str(tmp_path))
    assert "\n" not in str(caught.value) and os.listdir(tmp_path) == []


def test_pickle_is_written_and_read_only_with_consent(tmp_path: Path) -> None:
    value = collections.Counter("aab")
    node = values.write({"n": value}, str(tmp_path), allow_pickle=True)
    with pytest.raises(values.NeedsConsent):
        values.read(node, str(tmp_path))
    assert values.read(node, str(tmp_path), allow_pickle=True) == {"n": value}


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("evil",)


@pytest.mark.parametrize("kind", ["pickle", "joblib", "array", "torch"])
def test_malicious_pickle_is_not_read(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the node says that the file is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(Exception, match=r"\w"):  # of the library that reads it
        values.read({"as": kind, "file": "file"}, str(tmp_path))
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("name", ["../secret.npy", "/etc/passwd", "a/b.npy"])
def test_file_outside_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        values.read({"as": "array", "file": name}, str(tmp_path))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (FRAME, "DataFrame 3 x 4"),
        (np.ones((2, 2)), "ndarray 2 x 2"),
        ((1, 2), "tuple of 2"),
        (3, "int"),
        ([1, 2], "list of 2"),
    ],
)
def test_description_names_type_and_shape(value: Any, text: str, tmp_path: Path) -> None:
    assert values.description(values.write(value, str(tmp_path))) == text


@pytest.mark.thorough
def test_types_of_scikit_learn_are_data_and_others_are_not(tmp_path: Path) -> None:
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.preprocessing import FunctionTransformer

    forest = RandomForestRegressor(3).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0])
    node = values.write(forest, str(tmp_path))
    assert list(values.read(node, str(tmp_path)).predict([[2.0]])) == list(forest.predict([[2.0]]))
    for function in (os.system, importlib.import_module):
        node = values.write(FunctionTransformer(function), str(tmp_path))
        with pytest.raises(values.NeedsConsent):
            values.read(node, str(tmp_path))


def _boosters() -> Iterator[Any]:
    features, labels = np.arange(40.0).reshape(-1, 2), np.arange(20) > 9
    if importlib.util.find_spec("lightgbm"):
        import lightgbm

        options = {"objective": "binary", "verbose": -1, "num_threads": 1, "min_data_in_leaf": 1}
        yield lightgbm.train(options, lightgbm.Dataset(features, labels), 3), features
        yield lightgbm.LGBMClassifier(n_estimators=3, n_jobs=1, verbose=-1).fit(features, labels), features
    if importlib.util.find_spec("xgboost"):
        import xgboost

        matrix = xgboost.DMatrix(features, labels.astype(int))
        yield xgboost.train({"nthread": 1}, matrix, 3), matrix
        yield xgboost.XGBClassifier(n_estimators=3, n_jobs=1).fit(features, labels.astype(int)), features


@pytest.mark.thorough
def test_boosters_come_back_without_pickle(tmp_path: Path) -> None:
    for model, features in _boosters():
        node = values.write(model, str(tmp_path))
        back = values.read(node, str(tmp_path))
        assert type(back) is type(model) and np.array_equal(back.predict(features), model.predict(features))


KERAS = """
import sys
import types
import keras, numpy
from jupyter_amltrain.agent import values

model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
x = numpy.ones((1, 3))
back = values.read(values.write(model, sys.argv[1]), sys.argv[1])
assert numpy.array_equal(back.predict(x, verbose=0), model.predict(x, verbose=0))
own = keras.Sequential([keras.layers.Input((3,)), keras.layers.Lambda(lambda x: 2 * x)])
node = values.write(own, sys.argv[1])
assert values.read(node, sys.argv[1], allow_pickle=True).predict(x, verbose=0)[0][0] == 2
try:
    values.read(node, sys.argv[1])
except values.NeedsConsent:
    print("asks")
"""


@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="Keras is not installed")
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_keras_model_comes_back_and_its_code_needs_consent(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KERAS, str(tmp_path)]
    env = {**os.environ, "KERAS_BACKEND": "torch"}
    assert "asks" in subprocess.check_output(command, text=True, env=env, timeout=240)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sklearn.tree._tree.Tree", True),
        ("xgboost.core.Booster", True),
        ("collections.OrderedDict", True),
        ("lightgbm.basic.ctypes.CDLL", False),
        ("numpy.random.mtrand.RandomState", True),
        ("sklearn.utils.os.system", False),  # only imported there
        ("numpy.load", False),
        ("sklearn_other.Model", False),
        ("os.system", False),
        ("sklearn.nothing.Model", False),
    ],
)
def test_only_classes_of_the_packages_are_data(name: str, expected: bool) -> None:
    assert values._is_data_type(name) is expected


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
class TestModulesOfPyTorch:
    """They are read by class and weights; what could run code needs consent."""

    def test_module_of_known_classes_is_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch

        class Net(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
                self.encoder = torch.nn.TransformerEncoderLayer(4, 2)
                self.register_buffer("count", torch.ones(1), persistent=False)

        monkeypatch.setattr(f"{__name__}.Net", Net, raising=False)
        Net.__qualname__ = "Net"
        net = Net()
        torch.save(net, tmp_path / "net.pt")
        back = values.read_file(str(tmp_path / "net.pt"), {"as": "torch"})
        assert type(back) is Net and back.count == 1
        assert all(torch.equal(a, b) for a, b in zip(net.parameters(), back.parameters(), strict=True))

    def test_module_with_hook_or_own_restore_needs_consent(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import torch

        class Own(torch.nn.Module):
            def __setstate__(self, state: Any) -> None:
                raise AssertionError("it ran")

        monkeypatch.setattr(f"{__name__}.Own", Own, raising=False)
        Own.__qualname__ = "Own"
        hooked = torch.nn.Linear(1, 1)
        hooked.register_forward_hook(os.path.join)
        other = torch.nn.Linear(1, 1)
        other.extra = fractions.Fraction(1)  # type: ignore[assignment]
        for module in (Own(), hooked, other):
            torch.save(module, tmp_path / "net.pt")
            with pytest.raises(values.NeedsConsent):
                values.read_file(str(tmp_path / "net.pt"), {"as": "torch"})


@pytest.mark.thorough
def test_tensors_of_a_gpu_are_pickled_as_those_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    parts = types.SimpleNamespace(model=model, optimizer=optimizer, loss=model(torch.ones(1, 2)).sum().detach())
    there = (model.weight, model.bias, parts.loss)  # this machine may have no GPU
    monkeypatch.setattr(values, "_is_elsewhere", lambda tensor: any(tensor is one for one in there))
    node = values.write(parts, str(tmp_path), allow_pickle=True)
    back = values.read(node, str(tmp_path), allow_pickle=True)
    assert back.model.weight is back.optimizer.param_groups[0]["params"][0]
    assert isinstance(back.model.weight, torch.nn.Parameter) and back.model.weight.requires_grad
    assert back.loss.equal(parts.loss) and not back.loss.requires_grad
