"""Programs with values in and out, run as plain Python and as a run: the same values, shared in the same way."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import types
from typing import Any

import numpy as np
import pandas as pd
import pytest
from IPython.core.interactiveshell import InteractiveShell

from ..agent.test_values import same

#: Cell of the notebook, cell of the job, and the values that it returns; what the first one defines is sent.
PROGRAMS = {
    "containers": ("a = (1, {2: [3.5]})\nb = {'t': a, 'e': ()}", "a = (*a, b)\nc = {(1, 2): {4}, None: a}", "a b c"),
    "numbers": ("n = 2**80\nx = float('inf')", "n += 1\ny = [x, float('nan'), -0.0, 1e-300, complex(1, -1)]", "n y"),
    "texts": ("s = 'größe\\n\\x00'\nb = b'\\xff'", "s, b = s * 2, bytearray(b + b'x')\nt = [s, (b,)]", "s b t"),
    "list twice": ("x = [1]\ny = {'x': x}\nz = x", "x.append(2)\ny['n'] = len(z)", "x y z"),
    "array in list": ("import numpy as np\nX = np.arange(6.0)\nv = [X]", "X[0] = 7\nw = X[:2].copy()", "X v w"),
    "arrays": (
        "import numpy as np\nm = np.arange(6, dtype='>i2').reshape(2, 3)\nf = np.asfortranarray(np.eye(3))\n"
        "t = np.array(['2026-01-01'], dtype='datetime64[D]')\nr = np.zeros(2, dtype=[('a', 'i4'), ('b', 'U3')])",
        "m = m.T\nr['b'] = 'xyz'\nu = [np.float32(0.1)]\nmask = np.ma.masked_less([1, 2, 3], 2)",
        "m f t r u mask",
    ),
    "random state": (
        "import numpy as np\nimport random\nrng = np.random.default_rng(0)\nold = np.random.RandomState(1)\n"
        "own = random.Random(3)",
        "x = rng.random(3).tolist() + old.rand(2).tolist() + [own.random()]",
        "x rng old own",
    ),
    "frames": (
        "import pandas as pd\ndf = pd.DataFrame({'k': pd.Categorical(['a', 'b']), 't': pd.to_datetime(['2026', None],"
        " utc=True), 'n': pd.array([1, None], dtype='Int64')}, index=pd.Index([5, 7], name='id'))\n"
        "s = df['n'].rename('count')",
        "wide = df.set_index('k', append=True)\nmeans = df.groupby('k', observed=True).n.sum()\ns = s + 1",
        "df wide means s",
    ),
    "index": (
        "import pandas as pd\ni = pd.MultiIndex.from_product([[1, 2], ['a']], names=['x', None])\n"
        "p = pd.Period('2026-01')",
        "d = pd.date_range('2026-01-01', periods=3, freq='D')\ni = i[::-1]\np += 1",
        "i p d",
    ),
    "own objects": (
        "class Part:\n    def __init__(self, n): self.n = n\n    def __eq__(self, other): return self.n == other.n\n"
        "class Whole:\n    def __init__(self, *parts): self.parts = parts\np, q = Part(1), Part(2)\nw = Whole(p, q, p)",
        "p.n = 40\ntotal = sum(part.n for part in w.parts)\nw.of = w",
        "p q w total",
    ),
    "dataclasses and enums": (
        "import dataclasses\nimport enum\nclass Kind(enum.Enum):\n    A = 1\n    B = 2\n"
        "@dataclasses.dataclass\nclass Config:\n    lr: float\n    kind: Kind = Kind.A\n    more: dict = "
        "dataclasses.field(default_factory=dict)\nc = Config(0.1)",
        "c.kind, c.more['of'] = Kind.B, c.kind\nd = dataclasses.replace(c, lr=0.2)",
        "c d",
    ),
    "collections": (
        "import collections\nfrom fractions import Fraction\nP = collections.namedtuple('P', 'x y')\n"
        "counts = collections.Counter('aab')\ngroups = collections.defaultdict(list, a=[1])\n"
        "point = P(1, Fraction(1, 3))\nplain = P(1, 2)",
        "counts['c'] += 1\ngroups['b'].append(2)\npoint = point._replace(x=[point.y])\nq = collections.deque([1], 5)",
        "counts groups point plain q",
    ),
    "functions": (
        "import functools\nimport operator\ndef scaled(x, by=2): return x * by\n"
        "half = functools.partial(scaled, by=0.5)\nget = operator.itemgetter(1)",
        "values = [half(4), get('ab')]",
        "values",
    ),
    "estimators": (
        "from sklearn.linear_model import Ridge\nfrom sklearn.pipeline import make_pipeline\n"
        "from sklearn.preprocessing import StandardScaler\nscaler = StandardScaler()\n"
        "pipe = make_pipeline(scaler, Ridge())",
        "pipe.fit([[0.0], [1.0], [3.0]], [0.0, 1.0, 3.0])\nseen = scaler.mean_.tolist()",
        "scaler pipe seen",
    ),
}


def equal(one: Any, other: Any) -> bool:
    """Whether two values are the same in type and content."""
    if type(one).__qualname__ != type(other).__qualname__:
        return False
    if isinstance(one, np.random.Generator):
        return equal(one.bit_generator.state, other.bit_generator.state)
    if isinstance(one, np.random.RandomState):
        return equal(one.get_state(), other.get_state())
    if hasattr(one, "getstate"):
        return bool(one.getstate() == other.getstate())
    if isinstance(one, np.ma.MaskedArray):
        return equal(one.mask, other.mask) and equal(one.filled(0), other.filled(0))
    if isinstance(one, pd.Series):
        return one.equals(other) and one.name == other.name and equal(one.index, other.index)
    if isinstance(one, pd.DataFrame):
        return one.equals(other) and list(one.dtypes) == list(other.dtypes) and equal(one.index, other.index)
    if isinstance(one, pd.Index):
        return one.equals(other) and list(one.names) == list(other.names)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict):
        return len(one) == len(other) and all(equal(*pair) for pair in zip(one.items(), other.items(), strict=True))
    if dataclasses.is_dataclass(one) or (type(one).__module__ == "__main__" and hasattr(one, "__dict__")):
        return all(name == "of" or equal(value, vars(other)[name]) for name, value in vars(one).items())
    if hasattr(one, "get_params"):
        return equal(fitted(one), fitted(other))
    return same(one, other)


def fitted(estimator: Any) -> dict[str, Any]:
    steps = getattr(estimator, "steps", None)
    if steps:
        return {name: fitted(step) for name, step in steps}
    return {name: value for name, value in vars(estimator).items() if not name.startswith("_")}


def shared(values: dict[str, Any]) -> list[tuple[str, str]]:
    """Names of one object, and names that are an item or attribute of another; constants may be one or many."""
    constants = (int, float, str, bytes, tuple, frozenset, type(None), range, complex)
    reached = [
        (name, path, one)
        for name, value in values.items()
        for path, one in [("", value), *parts(value)]
        if not isinstance(one, constants)
    ]
    return sorted(
        (f"{name}{path}", f"{other}{place}")
        for (name, path, one), (other, place, two) in itertools.combinations(reached, 2)
        if one is two
    )


def parts(value: Any) -> list[tuple[str, Any]]:
    """Items and attributes of a value, one level deep."""
    if isinstance(value, dict):
        return [(f"[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"[{at}]", item) for at, item in enumerate(value)]
    if type(value).__module__ != "__main__":
        return []
    inner = vars(value).items()
    tuples = [(name, item) for name, item in inner if isinstance(item, tuple)]
    items = [(f".{name}[{at}]", one) for name, item in tuples for at, one in enumerate(item)]
    return [*((f".{name}", one) for name, one in inner), *items]


@pytest.mark.thorough
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_returns_what_plain_python_gives(name: str, ip: InteractiveShell) -> None:
    first, job, returned = PROGRAMS[name]
    out = returned.split()
    before = set(ip.user_ns)
    ip.run_cell(first, store_history=True).raise_error()
    defined = {key: ip.user_ns[key] for key in ip.user_ns.keys() - before if not key.startswith("_")}
    imports = [line for line in first.split("\n") if line.startswith(("import ", "from "))]
    imported = {key for line in imports for key in line.replace(",", " ").split()}
    own = {key: value for key, value in defined.items() if key not in imported}
    code = {key for key, value in own.items() if isinstance(value, (type, types.FunctionType))}
    sent = [key for key in own if key not in code]
    plain = {**defined, **copy.deepcopy({key: defined[key] for key in sent}), "__name__": "__main__"}
    exec(job, plain)
    line = " ".join(
        [*(f"--with {key}" for key in sorted(code)), *(f"--in {key}" for key in sent), *(f"--out {key}" for key in out)]
    )
    job_cell = "\n".join([f"%%aml_submit {line} --wait", *imports, job])
    ip.run_cell(job_cell, store_history=True).raise_error()
    got, wanted = ({key: space[key] for key in out} for space in (ip.user_ns, plain))
    differing = {key: (got[key], wanted[key]) for key in out if not equal(got[key], wanted[key])}
    assert not differing
    assert shared(got) == shared(wanted)
