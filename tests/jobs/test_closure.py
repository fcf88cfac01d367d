"""What a cell takes from the notebook, without a run: names, their kind, and what is refused."""

from __future__ import annotations

import functools
import io
import math
import os
import sqlite3
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jupyter_amltrain.errors import AmlTrainError, PreflightError
from jupyter_amltrain.jobs import closure
from jupyter_amltrain.jobs.notebook_source import MODULE

Take = Callable[..., closure.Closure]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InteractiveShell:
    monkeypatch.setenv("AMLTRAIN_HOME", str(tmp_path))
    shell = InteractiveShell()
    # What is pickled looks for classes in the module that runs; a kernel's is its own.
    monkeypatch.setitem(__import__("sys").modules, "__main__", shell.user_module)
    return shell


@pytest.fixture
def take(shell: InteractiveShell) -> Take:
    """Run cells, and return what a further one takes."""

    def run(cell: str, *cells: str, **more: Any) -> closure.Closure:
        for one in cells:
            shell.run_cell(one, store_history=True).raise_error()
        history = list(shell.history_manager.input_hist_parsed)
        return closure.closure_of(cell, closure.Notebook(shell.user_ns, lambda: history), **more)

    return run


def text_of(taken: closure.Closure) -> str:
    return taken.modules.get(MODULE, "")


@pytest.mark.parametrize(
    ("imported", "used", "expected"),
    [
        ("import numpy as np", "np.ones(3)", "import numpy as np"),
        ("import os.path", "os.path.join('a')", "import os.path"),
        ("import xml.dom\nimport xml.sax", "xml.dom", "import xml.sax"),
        ("from math import pi, floor as down", "down(pi)", "from math import floor as down"),
        ("import json, re", "re.compile('a')", "import re"),
        ("try:\n    import no_js as js\nexcept Exception:\n    import json as js", "js.dumps(1)", "import json as js"),
        ("from math import *", "cos(1)", "from math import cos"),
        ("if True:\n    from collections import Counter", "Counter('a')", "from collections import Counter"),
        ("import sklearn.svm\nM = sklearn.svm.SVC", "M()", "from sklearn.svm import SVC as M"),
    ],
)  # fmt: skip
def test_import_is_that_of_the_notebook(take: Take, imported: str, used: str, expected: str) -> None:
    taken = take(used, imported)
    assert expected in text_of(taken) and not taken.values
    namespace: dict[str, Any] = {}
    exec(text_of(taken), namespace)
    exec(used, namespace)


def test_function_comes_with_its_imports_functions_and_values(take: Take) -> None:
    taken = take(
        "scale(3)",
        "import math\nK = 2\ntable = [1]\ndef half(x): return x / K",
        "def scale(x):\n    table.append(x)\n    return math.floor(half(x))",
        "K = 4",
    )
    assert set(taken.values) == {"K", "table"} and taken.values["K"]["value"] == 4
    assert "def half" in text_of(taken) and "import math" in text_of(taken) and "K = " not in text_of(taken)
    assert "scale" in taken.taken.line and "K: 4" in taken.taken.items and not taken.notes


@pytest.mark.parametrize(
    ("cell", "names"),
    [
        ("df = df + 1", {"df"}),
        ("total += 1", {"total"}),
        ("df = 3\nprint(df)", set()),
        ("if df:\n    total = 1\nprint(total)", {"df", "total"}),
        ("for df in range(3): print(df)", set()),
        ("def f(df): return df\nf(1)", set()),
        ("def f(): return df\nf()", {"df"}),
        ("def f(): return df\ndf = 1\nf()", set()),
        ("[df for df in range(3)]", set()),
        ("try:\n    df\nexcept NameError:\n    df = 1", {"df"}),
        ("print(f'{df:>{total}}')", {"df", "total"}),
        ("frame.query('x > @df')", {"frame", "df"}),
        ("eval('df + total')", {"df", "total"}),
        ("from math import *\nprint(df)", {"df"}),
        ("import math as df\ndf.pi", set()),
        ("class A:\n    x = df\n    total = 1", {"df"}),
        ("lambda df=total: df", {"total"}),
        ("del df", {"df"}),
        ("!echo $df {total}", {"df", "total"}),
        ("%time df", {"df"}),
        ("%timeit df + total", {"df", "total"}),
        ("%%time\nx = df", {"df"}),
        ("x = !ls {df}", {"df"}),
        ("'a name in a text: total'", set()),
    ],
)
def test_names_are_those_that_the_cell_reads_first(take: Take, cell: str, names: set[str]) -> None:
    assert set(take(cell, "df, total, frame, unused = 1, 2, [3], 4").values) == names


def test_shadowed_builtin_and_ipythons_own_names(take: Take) -> None:
    assert set(take("print(sum, open, exit, In)", "sum = 5").values) == {"sum"}


def test_class_that_was_changed_later_has_its_changes(take: Take) -> None:
    taken = take(
        "Net().go() + Net().more + Net().late()",
        "def add_to(kind):\n    def put(f): setattr(kind, f.__name__, f)\n    return put",
        "class Net:\n    def go(self): return 1",
        "@add_to(Net)\ndef late(self): return 2",
        "Net.more = property(lambda self: 3)",
    )
    namespace: dict[str, Any] = {}
    exec(text_of(taken), namespace)
    assert namespace["Net"]().go() + namespace["Net"]().late() + namespace["Net"]().more == 6


def test_class_of_an_instance_comes_by_source(take: Take) -> None:
    taken = take("net.go()", "BASE = 7\nclass Net:\n    def go(self): return BASE\nnet = Net()")
    assert "class Net" in text_of(taken) and set(taken.values) == {"net", "BASE"}
    assert "value_of('net')" in taken.statements[-1]  # behind the class


def test_instance_of_a_class_that_was_defined_again_keeps_its_class(take: Take) -> None:
    taken = take(
        "net.go()", "class Net:\n    def go(self): return 1\nnet = Net()", "class Net:\n    def go(self): return 2"
    )
    assert "class Net" not in text_of(taken) and set(taken.values) == {"net"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "made",
    [
        "f = (lambda n: lambda x: x + n)(3)",
        "import functools\nf = functools.partial(max, 4)",
        "exec('def f(x): return x')",
        "def outer():\n    def f(x): return x\n    return f\nf = outer()",
        "import operator\nf = operator.itemgetter(0)",
    ],
)
def test_function_without_source_travels_by_value(take: Take, made: str) -> None:
    assert set(take("f([1])", made).values) == {"f"}


@pytest.mark.parametrize(
    "made",
    [
        "import functools\n@functools.lru_cache\ndef f(x): return x",
        "def twice(g):\n    def inner(x): return g(g(x))\n    return inner\n@twice\ndef f(x): return x",
        "f = lambda x: x",
        "from collections import namedtuple\nf = namedtuple('f', 'x')",
    ],
)
def test_decorated_function_travels_by_source(take: Take, made: str) -> None:
    taken = take("f([1])", made)
    assert not taken.values and made.split("\n")[-1] in text_of(taken)


def test_last_of_two_definitions_counts(take: Take) -> None:
    taken = take("f()", "def f(): return 1", "def f(): return 2")
    assert "return 2" in text_of(taken) and "return 1" not in text_of(taken)


def test_definition_of_a_cell_that_failed_before_it_does_not_count(shell: InteractiveShell, take: Take) -> None:
    shell.run_cell("def f(): return 1", store_history=True)
    shell.run_cell("1 / 0\ndef f(): return 2", store_history=True)
    assert "return 1" in text_of(take("f()"))


@pytest.mark.parametrize(
    "make",
    [
        lambda: open(os.devnull),  # noqa: SIM115
        lambda: (i for i in range(3)),
        lambda: threading.Lock(),
        lambda: threading.Thread(),
        lambda: sqlite3.connect(":memory:"),
        lambda: __import__("socket").socket(),
        lambda: {"deep": [threading.Lock()]},
        lambda: _Fails(),
        lambda: _Exits(),
        lambda: _Waits(),
        lambda: __import__("ipywidgets").IntSlider(),
        lambda: iter(open(os.devnull)),  # noqa: SIM115
        lambda: __import__("concurrent.futures").futures.ThreadPoolExecutor(),
    ],
)  # fmt: skip
def test_value_that_cannot_travel_is_named(shell: InteractiveShell, take: Take, make: Callable[[], Any]) -> None:
    shell.user_ns["thing"] = make()
    with pytest.raises(PreflightError) as caught:
        take("print(1)\nprint(thing)")
    error = caught.value
    assert error.code == "closure.value" and "thing" in str(error) and error.details["line"] == 3
    assert error.hint and "\n" not in str(error)
    assert not take("thing = 3\nprint(thing)").values


class _Fails:
    def __reduce__(self) -> Any:
        raise ValueError("two\nlines")


class _Exits:
    def __reduce__(self) -> Any:
        raise SystemExit


class _Waits:
    """Its pickling does not end until the user interrupts the cell."""

    def __reduce__(self) -> Any:
        raise KeyboardInterrupt


def test_value_inside_a_function_is_named_with_the_function(shell: InteractiveShell, take: Take) -> None:
    with pytest.raises(PreflightError, match="f uses lock"):
        take("f()", "import threading\nlock = threading.Lock()\ndef f(): return lock")


KEY = "hf_" + "a1B2" * 9


@pytest.mark.parametrize(
    "value",
    [
        KEY,
        KEY.encode(),
        [1, KEY],
        {"a": {"b": (KEY,)}},
        {"api_key": "abcdef0123456789"},
        {"password": "hunter2!"},
        {"db": {"connection_string": "Server=a;Password=b;"}},
        "https://user:pw@host/path",
        "-----BEGIN RSA PRIVATE KEY-----\nabc",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc",
        f"Bearer {KEY}",
        {"headers": {"Authorization": f"Bearer {KEY}"}},
        types.SimpleNamespace(client_secret="s3cr3t-value"),
        types.SimpleNamespace(inner=types.SimpleNamespace(token=KEY)),
        functools.partial(print, api_key="abcdef0123456789"),
        functools.partial(print, KEY),
        os.environ,
        {"PATH": "/bin", "HOME": "/root", "GITHUB_TOKEN": "abcdef0123456789ab"},
        {KEY: 1},
        {1, KEY},
        frozenset({KEY}),
        ("a", ["b", {"c": KEY}]),
        "AKIAIOSFODNN7EXAMPLE",
        "DefaultEndpointsProtocol=https;AccountKey=abc",
        "https://x.blob.core.windows.net/c?sv=1&sig=abc",
        "xoxb-123456-abcdef",
        "ghp_" + "a1B2c3D4e5" * 4,
        bytearray(KEY.encode()),
        types.SimpleNamespace(headers={"x-api-key": "abcdef0123456789"}),
        {"aws": {"aws_secret_access_key": "abcdefgh12345678"}},
    ],
    ids=range(30),
)
def test_secret_in_a_disguise_is_never_taken(shell: InteractiveShell, take: Take, value: Any) -> None:
    shell.user_ns["thing"] = value
    with pytest.raises(AmlTrainError) as caught:
        take("print(thing)")
    assert caught.value.code == "spec.secret" and KEY not in str(caught.value)


def test_session_with_authorization_is_never_taken(shell: InteractiveShell, take: Take) -> None:
    session = pytest.importorskip("requests").Session()
    session.headers["Authorization"] = "Basic abc"
    shell.user_ns["session"] = session
    with pytest.raises(AmlTrainError, match="credentials"):
        take("session.get('x')")


def test_ordinary_texts_are_no_secrets(take: Take) -> None:
    cells = "tokens = ['a', 'b']\nkey = 'accuracy'\nurl = 'https://a.org/b'\nstate = {'tokenizer': 'bert', 'n_keys': 3}"
    assert len(take("print(tokens, key, url, state)", cells).values) == 4


def test_huge_value_is_taken_only_when_it_is_named(shell: InteractiveShell, take: Take) -> None:
    class Huge:
        nbytes = 3 << 30

    shell.user_ns["huge"] = Huge()
    with pytest.raises(PreflightError) as caught:
        take("print(huge)")
    assert caught.value.code == "values.size" and "--in huge" in caught.value.hint
    assert not take("huge = 1\nprint(huge)").values


def test_recursive_structure_travels(take: Take) -> None:
    assert set(take("print(a)", "a = [1]; a.append(a)").values) == {"a"}


def test_values_in_memory_that_are_streams_travel(shell: InteractiveShell, take: Take) -> None:
    shell.user_ns.update(text=io.StringIO("a"), data=io.BytesIO(b"b"), n=math.nan)
    assert set(take("text.read(), data.read(), n").values) == {"text", "data", "n"}


def test_named_value_and_function_go_with_what_the_cell_needs(take: Take) -> None:
    taken = take("print(f(x))", "x, y = 1, 2\ndef f(a): return a + y", sent=["x"], code=["f"])
    assert set(taken.values) == {"x", "y"} and "def f" in text_of(taken)


def test_text_with_an_error_takes_nothing(take: Take) -> None:
    assert take("print(x", "x = 1") == closure.Closure()


def test_outputs_of_cells_are_taken_by_their_numbers(shell: InteractiveShell, take: Take) -> None:
    shell.user_ns["Out"].update({3: [1], 4: "x"})
    taken = take("print(Out[3], _)", "4 + 5")
    assert set(taken.values) == {"Out", "_"} and "4" not in str(taken.values["Out"]["items"][0][0])


def test_replayed_cell_runs_before_the_script_with_what_it_uses(take: Take) -> None:
    cells = ("import threading", "n = 3\ndef limit(): return n", "locks = [threading.Lock() for _ in range(limit())]")
    with pytest.raises(PreflightError) as caught:
        take("print(len(locks))", *cells)
    assert "--replay 3" in caught.value.hint
    taken = take("print(len(locks))", replay=["3"])
    assert set(taken.values) == {"n"} and "locks" in taken.names
    namespace: dict[str, Any] = {"n": 3}
    exec(text_of(taken), namespace)
    assert len(namespace["locks"]) == 3


def test_replay_of_all_needs_no_values(take: Take) -> None:
    cells = (
        "import math",
        "unused = 1",
        "n = 3\nitems = [n]",
        "items.append(math.floor(4.5))",
        "n = 9",
        "items[0] += 1",
    )
    taken = take("print(items)", *cells, replay=["all"])
    namespace: dict[str, Any] = {}
    exec(text_of(taken), namespace)
    assert not taken.values and namespace["items"] == [4, 4] and "unused" not in text_of(taken)


def test_replay_of_a_cell_that_was_not_run_is_refused(take: Take) -> None:
    with pytest.raises(AmlTrainError) as caught:
        take("print(x)", "x = 1", replay=["9"])
    assert caught.value.code == "closure.replay"


def test_options_of_libraries_go_with_their_imports(take: Take) -> None:
    cells = (
        "import numpy as np\nnp.set_printoptions(precision=2)\nnp.random.seed(3)\nnp.set_printoptions(linewidth=n)",
    )
    text = text_of(take("np.ones(3)", "n = 70", *cells))
    assert "set_printoptions(precision=2)" in text and "seed" not in text and "linewidth" not in text
    assert "set_printoptions" in text_of(take("import numpy as np\nnp.ones(3)"))
    assert "set_printoptions" not in text_of(take("import json\njson.dumps(1)"))
    assert "set_printoptions" in text_of(
        take("array", *cells, "array = np.ones(3)")
    )  # a value of the library, which the cell does not name


def test_options_of_matplotlib_go_with_what_draws(take: Take) -> None:
    cells = (
        "import matplotlib.pyplot as plt\nplt.rc('figure', figsize=(3, 2))",
        "import pandas as pd\ndf = pd.Series([1])",
    )
    assert "figsize" in text_of(take("df.plot()", *cells))
    assert "figsize" not in text_of(take("df.mean()", *cells))


def test_module_that_something_else_imported_is_imported(take: Take) -> None:
    text = text_of(take("x = xml.dom.minidom.Node", "import xml.dom.minidom\nimport xml"))
    assert "xml.dom.minidom" in text
    own = text_of(take("from xml import etree\netree.ElementTree.Element('a')", "import xml.etree.ElementTree"))
    assert "xml.etree.ElementTree" in own


def test_value_that_the_disk_refuses_says_so(take: Take, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("jupyter_amltrain.agent.values.write", full)
    with pytest.raises(PreflightError) as caught:
        take("print(x)", "x = 1")
    assert "space" in caught.value.hint


def test_object_whose_attributes_raise_is_named(shell: InteractiveShell, take: Take, tmp_path: Path) -> None:
    """An archive of NumPy raises for ``__class__``, and holds an open file."""
    np = pytest.importorskip("numpy")
    np.savez(tmp_path / "a.npz", x=[1])
    with np.load(tmp_path / "a.npz") as archive:
        shell.user_ns["archive"] = archive
        with pytest.raises(PreflightError) as caught:
            take("archive.keys()")
    assert caught.value.code == "closure.value" and "archive" in str(caught.value)
