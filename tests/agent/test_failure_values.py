"""What is shown of the variables in failing lines: public kinds of failures, one after the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest

from jupyter_amltrain.agent.failures.failure_hook import MAX_BYTES
from tests.failed_lines import failed

#: Kind of failure -> script, and what its failing lines name with a part of what is shown.
PLAIN = {
    "index of a list": ("rows = [1, 2, 3]\ni = 7\nrows[i]", {"rows": "list of 3: [1, 2, 3]", "i": "7"}),
    "key of a dict": ("cfg = {'lr': 0.1}\ncfg['learning_rate']", {"cfg": "dict of 1: {'lr': 0.1}"}),
    "key with a space": ("row = {'price ': 1}\nrow['price']", {"row": "{'price ': 1}"}),
    "attribute of None": ("model = None\nmodel.fit()", {"model": "None"}),
    "text and number": ("step = 3\nname = 'run'\nlabel = name + step", {"step": "3", "name": "'run'"}),
    "missing argument": (
        "def fit(x, y): pass\nx = [0]\nfit(x)",
        {"x": "list of 1: [0]"},
    ),
    "division by zero": ("total, n = 5.0, 0\nmean = total / n", {"total": "5.0", "n": "0"}),
    "not a number": ("cell = '12,5'\nfloat(cell)", {"cell": "'12,5'"}),
    "unpacking": ("row = (1, 2, 3)\na, b = row", {"row": "tuple of 3: (1, 2, 3)"}),
    "assertion": ("loss = float('nan')\nassert loss == loss, 'loss is NaN'", {"loss": "nan"}),
    "missing file": ("path = '/nowhere/data.csv'\nopen(path)", {"path": "'/nowhere/data.csv'"}),
    "file of pathlib": (
        "from pathlib import Path\npath = Path('/nowhere') / 'x.csv'\npath.read_text()",
        {"path": "PosixPath: /nowhere/x.csv"},
    ),
    "JSON": ("import json\ntext = '{\"a\": }'\njson.loads(text)", {"text": "'{\"a\": }'"}),
    "encoding": ("data = b'\\xff\\xfe'\ndata.decode('utf-8')", {"data": r"b'\xff\xfe'"}),
    "date": (
        "import datetime\nday = '2024-13-01'\ndatetime.date.fromisoformat(day)",
        {"day": "'2024-13-01'"},
    ),
    "iterator is empty": ("batches = iter([])\nnext(batches)", {"batches": "list_iterator"}),
    "not iterable": ("count = 5\nfor i in count: pass", {"count": "5"}),
    "not callable": ("metrics = {'acc': 1}\nmetrics('acc')", {"metrics": "{'acc': 1}"}),
    "recursion": ("def f(n):\n    return f(n + 1)\nf(0)", {"n": ""}),
    "huge number": ("n = 10 ** 5000\nstr(n)", {"n": "16610 bits"}),
    "overflow": ("import math\nx = 1000.0\nmath.exp(x)", {"x": "1000.0"}),
    "keyboard": ("step = 12\ndef f(step):\n    raise KeyboardInterrupt(step)\nf(step)", {"step": "12"}),
    "memory": ("n = 1 << 62\nroom = bytearray(n)", {"n": "4611686018427387904"}),
    "attribute of an object": (
        "class Config:\n    def __init__(self): self.lr = 0.1\nconfig = Config()\nconfig.rate * 2",
        {"config": "Config: lr 0.1"},
    ),
    "attribute in a chain": (
        "class A: pass\nnet = A(); net.head = A(); net.head.size = 3\n[0][net.head.size]",
        {"net.head.size": "3"},
    ),
    "entry of a list in a dict": ("data = {'x': [1, 2]}\ndata['x'][5]", {"data['x']": "list of 2: [1, 2]"}),
    "slots": (
        "class P:\n    __slots__ = ('x',)\np = P(); p.x = 3\n[][p.x]",
        {"p.x": "3"},
    ),
    "dataclass": (
        "import dataclasses\n@dataclasses.dataclass\nclass B:\n    size: int = 4\nb = B()\nb.size / 0",
        {"b.size": "4"},
    ),
    "named tuple": (
        "from collections import namedtuple\nPoint = namedtuple('Point', 'x y')\np = Point(1, 2)\np.z",
        {"p": "Point of 2: (x=1, y=2)"},
    ),
    "enumeration": (
        "import enum\nclass Mode(enum.Enum):\n    FAST = 1\nmode = Mode.FAST\nmode + 1",
        {"mode": "Mode: FAST"},
    ),
    "pickle of a lambda": (
        "import pickle\nf = {'key': lambda x: x}\npickle.dumps(f)",
        {"f": "dict of 1: {'key': function(<lambda>)}"},
    ),
    "raise from": (
        "def load(path):\n    try:\n        open(path)\n    except OSError as e:\n"
        "        raise RuntimeError('no data') from e\nload('/nowhere/a')",
        {"path": "'/nowhere/a'"},
    ),
    "while handling": (
        "d = {'a': 1}\ntry:\n    d['b']\nexcept KeyError:\n    n = 0\n    1 / n",
        {"d": "{'a': 1}", "n": "0"},
    ),
    "comprehension": ("rows = ['1', 'x']\n[int(one) for one in rows]", {"one": "'x'"}),
    "lambda": ("double = lambda v: v * None\nlist(map(double, [4]))", {"v": "4"}),
    "generator": ("def g(n):\n    yield 1 / n\nsum(g(0))", {"n": "0"}),
    "asyncio": (
        "import asyncio\nasync def step(i):\n    return [0][i]\nasyncio.run(step(4))",
        {"i": "4"},
    ),
    "several lines": (
        "def f(*a): return sum(a)\nfirst, second = 1, 'b'\nf(\n    first,\n    second,\n)",
        {"first": "1", "second": "'b'"},
    ),
}  # fmt: skip

NUMPY = "import numpy as np\n"
ARRAYS = {
    "shapes of a product": (
        "x = np.zeros((32, 784)); w = np.ones((512, 10))\nx @ w",
        {"x": "ndarray 32×784 float64, all 0", "w": "ndarray 512×10 float64, all 1"},
    ),
    "broadcast": (
        "a = np.arange(12.0).reshape(3, 4); b = np.arange(3)\na + b",
        {"a": "ndarray 3×4 float64, 0 to 11", "b": "ndarray 3 int64: [0, 1, 2]"},
    ),
    "index of an array": ("a = np.arange(100)\ni = 100\na[i]", {"a": "ndarray 100 int64, 0 to 99", "i": "100"}),
    "reshape": ("a = np.zeros(10, 'f4')\na.reshape(3, 4)", {"a": "ndarray 10 float32, all 0"}),
    "dtype": ("a = np.array(['a', 'b'])\nnp.sqrt(a)", {"a": "ndarray 2 <U1"}),
    "objects": ("a = np.array([1, None], dtype=object)\nnp.sum(a)", {"a": "ndarray 2 object"}),
    "NaN": (
        "x = np.ones((50, 3)); x[0, 0] = np.nan\nif np.isnan(x).any(): raise ValueError('Input contains NaN')",
        {"x": "ndarray 50×3 float64, all 1, 1 NaN"},
    ),
    "infinite": ("x = np.array([1.0] * 9 + [np.inf])\nraise ValueError(x)", {"x": "ndarray 10 float64, 1 to inf"}),
    "truth of an array": ("mask = np.array([True, False])\nif mask: pass", {"mask": "ndarray 2 bool: [True, False]"}),
    "singular": ("a = np.zeros((2, 2))\nnp.linalg.inv(a)", {"a": "ndarray 2×2 float64: [[0.0, 0.0], [0.0, 0.0]]"}),
    "scalar": ("lr = np.float32(0.5)\nlr.decay", {"lr": "numpy.float32: 0.5"}),
    "not contiguous": ("a = np.zeros((9, 9)).T[::2]\na.view('i1').x", {"a": "ndarray 5×9 float64, all 0"}),
    "empty": ("a = np.zeros((0, 3))\na.max()", {"a": "ndarray 0×3 float64"}),
    "length of features": (
        "X = [np.zeros(4), np.zeros(5)]\nnp.stack(X)",
        {"X": "list of 2: [ndarray 4 float64, ndarray 5 float64]"},
    ),
}  # fmt: skip

PANDAS = "import numpy as np, pandas as pd\n"
FRAMES = {
    "column of a frame": (
        "df = pd.DataFrame({'prize': [1.0, None], 'name': ['a', 'b']})\ndf['price']",
        {"df": "DataFrame 2×2: columns: prize float64 (1 NaN), name"},
    ),
    "many columns": (
        "df = pd.DataFrame(np.zeros((3, 500)))\ndf['x']",
        {"df": "DataFrame 3×500: columns: 0 float64, 1 float64"},
    ),
    "label of a series": (
        "s = pd.Series([1.0, 2.0], index=['a', 'b'], name='w')\ns['c']",
        {"s": "Series 2 float64: [1.0, 2.0]"},
    ),
    "merge": (
        "a = pd.DataFrame({'id': [1]}); b = pd.DataFrame({'key': [1]})\na.merge(b, on='id')",
        {"a": "columns: id int64", "b": "columns: key int64"},
    ),
    "to numbers": ("s = pd.Series(['1', 'x'])\ns.astype(float)", {"s": "Series 2 "}),
    "position": ("df = pd.DataFrame({'a': [1, 2]})\nk = 5\ndf.iloc[k]", {"df": "DataFrame 2×1", "k": "5"}),
    "assign lengths": (
        "df = pd.DataFrame({'a': [1, 2]})\ncol = [1, 2, 3]\ndf['b'] = col",
        {"df": "DataFrame 2×1", "col": "list of 3"},
    ),
}  # fmt: skip

POLARS = "import polars as pl\n"
POLARS_FRAMES = {
    "column of a Polars frame": (
        "df = pl.DataFrame({'prize': [1.0, None]})\ndf['price']",
        {"df": "DataFrame 2×1: columns: prize Float64"},
    ),
    "type of a Polars series": (
        "s = pl.Series('n', ['1', 'x', None])\ns.cast(pl.Int64)",
        {"s": "Series 3 String: named n, 1 null"},
    ),
}  # fmt: skip


def cases() -> list[Any]:
    groups = (("", PLAIN), (NUMPY, ARRAYS), (PANDAS, FRAMES), (POLARS, POLARS_FRAMES))
    return [
        pytest.param(head + code, shown, id=name) for head, group in groups for name, (code, shown) in group.items()
    ]


@pytest.mark.parametrize(("code", "shown"), cases())
def test_failing_line_shows_its_variables(code: str, shown: dict[str, str]) -> None:
    found = failed(code)
    named = found.named()
    assert {name: text for name, text in shown.items() if text not in named.get(name, "(absent)")} == {}, named
    assert len(json.dumps(found.content)) < MAX_BYTES and found.seconds < 2


def test_expression_that_raised_comes_first_in_its_line() -> None:
    found = failed("def f(x, y): return y[x]\na, b, i = {'k': 1}, [1], 3\nprint(a['k'], b[i])")
    assert [value["name"] for value in found.frames[0]["values"]][:2] == ["b", "i"]


def test_library_frame_keeps_only_numbers() -> None:
    pytest.importorskip("pandas")
    found = failed(PANDAS + "a = np.zeros((3, 2)); name = 'secret text'\npd.DataFrame(a, columns=['x'])")
    library = [frame for frame in found.frames if frame["library"]]
    assert len(library) == 1 and all("dtype" in v or v["type"] == "int" for v in library[0]["values"])


def test_group_shows_its_first_exception_and_chain_both() -> None:
    found = failed("n = 0\ntry:\n    1 / n\nexcept Exception as e:\n    raise ExceptionGroup('all', [e])")
    assert [(one["type"], one["relation"]) for one in found.content["errors"]] == [
        ("ExceptionGroup", ""), ("ZeroDivisionError", "first")
    ]  # fmt: skip


def test_recursion_shows_a_line_once_and_counts_the_others() -> None:
    found = failed("def f(n):\n    return f(n + 1)\nf(0)")
    (error,) = found.content["errors"]
    assert len(error["frames"]) == 2 and error["hidden"] > 500


def test_frame_of_many_names_shows_the_newest() -> None:
    code = "for i in range(100_000): globals()[f'v{i}'] = i\n1 / 0"
    found = failed(code)
    values = found.frames[0]["values"]
    assert 0 < len(values) <= 24 and values[0]["name"] == "v99999" and found.frames[0]["more"] > 100
    assert found.seconds < 1


@pytest.mark.parametrize(
    "code",
    [
        "class A:\n    def f(self, n):\n        return 1 / n\nA().f(0)",
        "if True:\n    def f(\n        n,\n    ):\n        return 1 / n\n    f(0)",
        "def f(n):\n    text = '''\nnot indented\n'''\n    return text + n\nf(0)",
        "import functools\n@functools.wraps(len)\ndef f(n): return 1 / n\nf(0)",
        "def f(n):\n# a comment\n    if n: pass\n    elif 1 / n: pass\nf(0)",
        "def f(n):\n    try:\n        pass\n    finally:\n        with open('/nowhere' + n): pass\nf(0)",
        "def f(n):\n    match 1 / n:\n        case 1: pass\nf(0)",
        "f = lambda n: 1 / n\nf(0)",
        "def f(n):\n    n += 'a'\nf(0)",
        "def f(n):\n    assert n == 1, f'{n:x}'\nf(0)",
        "async def f(n):\n    async for i in n: pass\nf(0).send(None)",
    ],
)
def test_each_statement_shows_its_names(code: str) -> None:
    assert failed(code).named()["n"] == "0"


def test_array_of_a_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "array.bin"
    file.write_bytes(bytes(8 * 8192))
    code = (
        NUMPY
        + f"m = np.memmap({str(file)!r}, dtype='f8', mode='r+')\na = np.asarray(m)[10:]\nopen({str(file)!r}, 'w')\n"
    )
    found = failed(code + "[m, a, 1 / 0]").shown()
    assert found["m"] == "memmap 8192 float64" and found["a"] == "ndarray 8182 float64"


def test_value_that_cannot_be_read_does_not_hide_the_others() -> None:
    deep: Any = 0
    for _ in range(100_000):
        deep = (deep,)
    found = failed("def f(a, deep, b):\n    return [a, deep, b, 1 / 0]\nf(1, {deep: 2}, 3)", deep=deep).shown()
    assert found["a"] == "1" and found["b"] == "3" and found["deep"].startswith("dict")


def test_range_leaves_nan_out_also_where_nan_raise() -> None:
    code = "x = np.full(1_000_000, 2.0); x[::7] = np.nan; x[-1] = -3; y = np.full(99, np.nan)\nnp.seterr(all='raise')\n"
    with numpy.errstate():  # as it was
        shown = failed(NUMPY + code + "[x, y, 1 / 0]").shown()
    assert shown["x"] == "ndarray 1000000 float64, -3 to 2, 142857 NaN" and shown["y"] == "ndarray 99 float64, 99 NaN"
