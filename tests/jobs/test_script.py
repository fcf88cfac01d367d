from __future__ import annotations

import ast
import importlib.util
import json
import math
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_amltrain.errors import CommandError, PreflightError
from jupyter_amltrain.jobs import script


def cell(text: str) -> str:
    return textwrap.dedent(text).lstrip("\n")


def run_script(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "script.py"
    path.write_text(text, encoding="utf-8")
    return subprocess.run(
        [sys.executable, str(path)],
        env={"AML_OUTPUT_DIR": str(folder / "outputs"), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def outputs(folder: Path) -> dict[str, Any]:
    return {p.stem: json.loads(p.read_text()) for p in (folder / "outputs").glob("*.json")}


# -- line 1 ---------------------------------------------------------------------------


def test_params_are_in_line_one() -> None:
    made = script.from_cell("print(lr)\n", params={"lr": 0.1, "layers": [64, 32]})
    assert made.text == "lr = 0.1; layers = [64, 32]\nprint(lr)\n"
    assert made.line_offset == 0


def test_values_of_notebook_are_read_behind_first_imports_of_cell() -> None:
    text = "import json\nfrom math import (\n    pi)\n\nprint(json, x, f, lr, pi)\n"
    more = {"before": ["x = 1", "f = 2"], "helpers": "import os\nimport json\nos.getcwd()\nimport re", "known": "xf"}
    made = script.from_cell(text, params={"lr": 0.1}, **more)
    lines = made.text.splitlines()
    assert lines[0] == "import os; import json" and lines[4] == "x = 1; f = 2; lr = 0.1"
    assert len(lines) == 6 and [lines[n] for n in (1, 2, 3, 5)] == [text.splitlines()[n] for n in (0, 1, 2, 4)]


@pytest.mark.parametrize(
    "text",
    [
        "import json\nprint(json, x)",  # no empty line
        "print(x)\nimport json\n\nprint(json)",
        "from json import x\n\nprint(x)",  # the cell's own
        "x = 1\nimport json\n\nprint(json, x)",
        "from math import *\n\nprint(x)",
    ],
)
def test_values_of_notebook_are_read_in_line_one_where_imports_cannot_come_first(text: str) -> None:
    assert script.from_cell(text, before=["x = 1"], known="x").text == f"x = 1\n{text}\n"


def test_line_one_without_params_is_comment() -> None:
    assert script.from_cell("x = 1").text == "# %%aml_submit\nx = 1\n"


def test_future_imports_move_to_line_one(tmp_path: Path) -> None:
    text = cell(
        '''
        """Doc — with ünïcode."""; from __future__ import annotations; from __future__ import print_function
        from __future__ import (
            division,
            generator_stop)
        import sys
        def f(x: Undefined) -> None: ...
        print(__doc__, lr)
        raise ValueError("here")
        '''
    )
    made = script.from_cell(text, params={"lr": 1})
    first = made.text.splitlines()[0]
    assert first.startswith("from __future__ import annotations, ") and first.endswith("; lr = 1")
    assert len(made.text.splitlines()) == len(text.splitlines()) + 1
    done = run_script(made.text, tmp_path)
    assert "Doc — with ünïcode. 1" in done.stdout
    assert "line 9, in <module>" in done.stderr  # 8th line of the body, the magic's is the 1st


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_line_endings_keep_line_numbers(newline: str) -> None:
    made = script.from_cell(newline.join(["a = 1", "", "b = 2"]))
    assert made.text.splitlines()[1:] == ["a = 1", "", "b = 2"]


def test_encoding_cookie_is_ignored(tmp_path: Path) -> None:
    made = script.from_cell("# -*- coding: latin-1 -*-\nprint('ü' == chr(252))")
    assert run_script(made.text, tmp_path).stdout == "True\n"


def test_cell_digest_ignores_params_and_outputs() -> None:
    one = script.from_cell("x = lr", params={"lr": 1}, out=["x"])
    two = script.from_cell("x = lr", params={"lr": 2})
    assert one.sha256 == two.sha256 != script.from_cell("x = lr ").sha256


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@pytest.mark.thorough
@given(json_values)
def test_json_param_round_trip_is_equal(value: Any) -> None:
    namespace: dict[str, Any] = {}
    source = script.literal(value)
    assert "\n" not in source
    exec(source and f"v = {source}", namespace)
    assert repr(namespace["v"]) == repr(value)


@pytest.mark.parametrize("name", ["learning-rate", "class", "1st", ""])
def test_a_parameter_has_a_variable_name(name: str) -> None:
    with pytest.raises(CommandError, match=r"--param \w+=") as caught:
        script.from_cell("x = 1", params={name: 1})
    hinted = caught.value.hint.split()[-1].partition("=")[0]
    script.from_cell("x = 1", params={hinted: 1})


# -- out ------------------------------------------------------------------------------


def test_outputs_are_saved_as_json(tmp_path: Path) -> None:
    text = cell(
        """
        import numpy as np, pathlib
        open = type = len = json = 3  # a script may use up the names of builtins
        acc = np.float32(0.5); n = np.int64(7); zero = np.array(2.5); path = pathlib.Path("a/b")
        nested = {"loss": [np.float64(1.5), float("nan")]}
        big = "x" * 2_000_000; model = object(); many = np.zeros(3); tup = {(1, 2): 3}
        loop = []; loop.append(loop)
        """
    )
    names = ["acc", "n", "zero", "path", "nested", "big", "model", "many", "tup", "loop", "absent"]
    done = run_script(script.from_cell(text + "globals()", out=names).text, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    got = {name: value for name, value in outputs(tmp_path).items() if name in names}
    assert set(got) == set(names) and all(value["amltrain"] == 1 for value in got.values())
    assert [got[x]["value"] for x in ("acc", "n", "zero", "path")] == [0.5, 7, 2.5, "a/b"]
    assert got["nested"]["value"]["loss"][0] == 1.5
    assert math.isnan(got["nested"]["value"]["loss"][1])
    assert got["big"]["error"].startswith("2000") and got["big"]["file"] == "big.value.json"
    assert "object" in got["model"]["error"] and got["model"]["file"] == "model.pickle"
    assert "an ndarray" in got["many"]["error"] and got["many"]["file"] == "many.npy"
    assert "keys must be" in got["tup"]["error"] and got["tup"]["file"] == "tup.pickle"
    assert "list" in got["loop"]["error"] and got["loop"]["file"] == "loop.pickle"
    assert got["absent"] == {"amltrain": 1, "name": "absent", "error": "never set"}
    assert not list((tmp_path / "outputs").glob("*.part*"))


@pytest.mark.thorough
def test_outputs_not_json_are_saved_as_files(tmp_path: Path) -> None:
    text = cell(
        """
        import numpy as np, pandas as pd
        from sklearn.linear_model import LogisticRegression
        report = pd.DataFrame({"a": [1, 2], "b": ["x", None]})
        mixed = pd.DataFrame({"a": [1, {2}], 3: [4, 5]})
        loss = pd.Series([1.5, 2.5])
        coefs = np.arange(6.0).reshape(2, 3)
        objects = np.array([{1}, None])
        day = np.datetime64("2026-01-02")
        model = LogisticRegression().fit([[0], [1]], [0, 1])
        nothing = lambda: 1
        class Odd:
            def __reduce__(self): raise RuntimeError
            def __repr__(self): raise RuntimeError
        odd = Odd()
        """
    )
    names = ["report", "mixed", "loss", "coefs", "objects", "day", "model", "nothing", "odd"]
    done = run_script(script.from_cell(text, out=names).text, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    folder = tmp_path / "outputs"
    got = {name: json.loads((folder / f"{name}.json").read_text()) for name in names}
    files = {name: record.get("file") for name, record in got.items()}
    table = ".parquet" if importlib.util.find_spec("pyarrow") else ".csv"
    function = ".pickle" if importlib.util.find_spec("cloudpickle") else ".txt"
    kept = ".skops" if importlib.util.find_spec("skops") else ".joblib"
    assert files == {
        "report": f"report{table}", "mixed": "mixed.csv", "loss": f"loss{table}", "coefs": "coefs.npy",
        "objects": "objects.pickle", "day": "day.npy", "model": f"model{kept}", "nothing": f"nothing{function}",
        "odd": None,
    }  # fmt: skip
    assert all((folder / file).stat().st_size for file in files.values() if file)
    assert np.load(folder / "coefs.npy").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert "could not be saved" in got["odd"]["error"]
    if kept == ".joblib":
        assert joblib.load(folder / "model.joblib").predict([[1]]).tolist() == [1]
    if table == ".parquet":
        assert pd.read_parquet(folder / "report.parquet")["a"].tolist() == [1, 2]
    assert {path.name for path in folder.iterdir()} == {f"{name}.json" for name in names} | set(files.values()) - {None}


def test_epilogue_imports_no_new_library(tmp_path: Path) -> None:
    text = "x = {1, 2}; y = 'x' * 2_000_000; z = 1"
    made = script.from_cell(text, out=["x", "y", "z"]).text + "import sys; print(*sys.modules)\n"
    loaded = run_script(made, tmp_path).stdout.split()
    assert not {"pandas", "numpy", "polars", "torch", "sklearn", "joblib"} & set(loaded)


OLDEST = sorted(Path.home().glob(".pyenv/versions/3.8.*/bin/python"))[-1:] or [shutil.which("python3.8")]


@pytest.mark.skipif(not OLDEST[0], reason="Python 3.8 is not on this machine")
def test_epilogue_runs_on_python_3_8(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(script.from_cell("x = 1; y = {3}; z = print", out=["x", "y", "z"]).text)
    environ = {"AML_OUTPUT_DIR": str(tmp_path / "outputs")}
    done = subprocess.run([str(OLDEST[0]), "s.py"], env=environ, cwd=tmp_path, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert {p.name for p in (tmp_path / "outputs").iterdir()} == {"x.json", "y.json", "y.pickle", "z.json", "z.pickle"}


@pytest.mark.parametrize(
    ("text", "out", "near"),
    [
        ("accuracy = 1", "acuracy", "Did you mean accuracy?"),
        ("def f():\n    acc = 1\nf()", "acc", "at the top level"),
        ("x = [acc for acc in (1, 2)]\nclass C: acc = 1", "acc", "at the top level"),
        ("print(acc)", "acc", "at the top level"),
        ("x.acc = 1; y['acc'] = 2", "acc", "at the top level"),
    ],
)
def test_unassigned_out_is_refused(text: str, out: str, near: str) -> None:
    with pytest.raises(PreflightError, match=f"--out {out}: ") as caught:
        script.from_cell(text, out=[out])
    assert near in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "for acc in x: pass", "with f() as acc: pass", "import acc", "from x import y as acc", "import acc.sub",
        "def acc(): pass", "class acc: pass", "print(acc := 1)", "a, *acc = x", "[acc] = x", "acc: int = 1", "acc += 1",
        "try: pass\nexcept E as acc: pass", "match x:\n    case [acc]: pass", "match x:\n    case {**acc}: pass",
        "def f():\n    global acc\n    acc = 1", "if x:\n    acc = 1", "[y for y in x if (acc := y)]",
    ],
)  # fmt: skip
def test_assigned_out_is_accepted(text: str) -> None:
    assert script.from_cell(text, out=["acc"]).notes == ()
    assert script.from_cell("pass", params={"acc": 1}, out=["acc"]).notes == ()


@pytest.mark.parametrize(
    "text", ["from x import *", "exec('acc = 1')", "globals()['acc'] = 1", "setattr(sys.modules['__main__'], 'acc', 1)"]
)
def test_possibly_assigned_out_adds_note(text: str) -> None:
    (note,) = script.from_cell(text, out=["acc"]).notes
    assert "--out acc" in note


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1 + 1", "2\n"),
        ("x = 3; x  # the answer", "3\n"),
        ("(\n    'a',\n    2,\n)", "('a', 2)\n"),
        ("import pandas as pd\npd.DataFrame({'column': [7]})", "   column\n0       7\n"),
        ("x = 3\nx;", ""),
        ("None", ""),
        ("print('once')", "once\n"),
        ("[].append(1)", ""),
        ('"""only a docstring"""', "'only a docstring'\n"),
        ("x = 1", ""),
        ("if True:\n    5", ""),
    ],
)
@pytest.mark.parametrize("params", [{}, {"lr": 0.1}])
def test_last_expression_is_displayed(tmp_path: Path, text: str, shown: str, params: dict[str, float]) -> None:
    made = script.from_cell(text, params=params)
    done = run_script(made.text, tmp_path)
    assert (done.stdout, done.stderr) == (shown, "")


def test_failing_last_expression_names_its_line(tmp_path: Path) -> None:
    done = run_script(script.from_cell("def train():\n    return 1 / 0\n\ntrain()").text, tmp_path)
    assert "line 5, in <module>" in done.stderr and "displayhook" not in done.stderr


def test_failing_repr_of_last_expression_keeps_outputs(tmp_path: Path) -> None:
    text = "class Odd:\n    def __repr__(self):\n        raise ValueError\nx = 5\nOdd()"
    done = run_script(script.from_cell(text, out=["x"]).text, tmp_path)
    assert done.returncode and outputs(tmp_path)["x"] == {"amltrain": 1, "name": "x", "value": 5}


def test_epilogue_after_any_last_line_runs(tmp_path: Path) -> None:
    for last in ("x = 1 # end", "if True:\n    x = 1", "x = 1;"):
        assert run_script(script.from_cell(last, out=["x"]).text, tmp_path).returncode == 0
        assert outputs(tmp_path)["x"]["value"] == 1


def test_epilogue_after_exception_saves_nothing(tmp_path: Path) -> None:
    made = script.from_cell("x = 1\nraise SystemExit(3)", out=["x"])
    assert run_script(made.text, tmp_path).returncode == 3
    assert not (tmp_path / "outputs").exists()


def test_epilogue_parses_as_python_3_8() -> None:
    ast.parse(script.from_cell("x = 1", out=["x"]).text, feature_version=(3, 8))


# -- what is refused -----------------------------------------------------------------


@pytest.mark.parametrize("text", ["", " \n\t\n"])
def test_empty_cell_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match=r"%aml_submit train\.py"):
        script.from_cell(text)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x = 1\n%debug\n", 3),
        ("if x:\n    %prun f()\n", 3),
        ("%%capture\nls()", 2),
        ("\n%%sql\nselect 1", 3),
        ("lines = %history\n", 2),
        ("!pip install -r requirements.txt", 2),
        ("print?\n", 2),
        ("?print\n", 2),
        ("x = '''\n%no\n'''\nnp.zeros??\n", 5),
        ("f(1,\n  2)\n%run other.ipynb\n", 4),
    ],
)
def test_ipython_syntax_is_refused_with_line(text: str, line: int) -> None:
    with pytest.raises(PreflightError) as caught:
        script.from_cell(text)
    message = str(caught.value)
    assert message.startswith(f"Cell line {line}, ") and "\n" not in message and caught.value.hint


def test_cell_of_comments_ends_at_once() -> None:
    exec(script.from_cell("# only a comment\n").text, {})


@pytest.mark.parametrize(
    "text",
    [
        "x = (5\n%y\n)",
        "x = 5 \\\n%y",
        "a != b",
        "(a\n!= b)",
        "s = '''\n%matplotlib inline\n!ls\nwhat?\n'''",
        "x = 1\n# why?\n# !ls\n# %time",
        "print(f'{x!r}')",
        "x %= 3",
        "'%d' % 3",
    ],
)
def test_plain_python_is_not_taken_for_ipython(text: str) -> None:
    script.from_cell(text)


@pytest.mark.thorough
@settings(max_examples=100)
@given(
    st.lists(
        st.sampled_from(
            ["x % y", "x %= y", "(x\n%y)", "x != y", "'''\n%a\n!b\nc?\n'''", "f'{x!r}'", "# %a ?", "x = [\n  y\n  %z]"]
        ),
        min_size=1,
    )
)
def test_generated_python_is_not_taken_for_magic(statements: list[str]) -> None:
    source = "\n".join(statements)
    script.from_cell(source + "\nx = 1")
    with pytest.raises(PreflightError, match=f"Cell line {source.count(chr(10)) + 3}, '%magic'"):
        script.from_cell(source + "\n%magic")
    with pytest.raises(PreflightError) as caught:
        script.from_cell(source + "\nx = = 1")
    assert "IPython" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\nprint(x\n", r"Cell line 3, 'print\(x': '\(' was never closed"),
        ("x = = 1", r"Cell line 2, 'x = = 1': invalid syntax at '= 1'"),
        ("def f():\npass", r"Cell line 3, 'pass': expected an indented block"),
        ("return 3", r"Cell line 2, 'return 3': 'return' outside a function"),
        ("break", r"Cell line 2, 'break': 'break' outside loop"),
        ("x = 1\nn = input('n? ')", r"Cell line 3, .*: input\(\) reads from the keyboard.*--param"),
        ("import getpass as g\ng.getpass()", r"Cell line 3, .*getpass.* --secret"),
        ("from getpass import getpass as ask\nask()", r"Cell line 3, .*--secret"),
        ("x = '\0'", r"null|Cell line 2"),
        ("x = '\ud800'", r"Cell line 2, .*surrogate"),
    ],
)
def test_invalid_script_is_refused_with_line(text: str, message: str) -> None:
    with pytest.raises(PreflightError, match=message) as caught:
        script.from_cell(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "def input(x): return 1\ninput(2)",
        "input = iter\ninput([])",
        "s = 'input()'",
        "def f(getpass): getpass()",
        "model.input(); getpass()",
        "async def f():\n    await g()",
        "x = lambda: (yield)",
    ],
)
def test_valid_lookalike_script_is_accepted(text: str) -> None:
    script.from_cell(text)


# -- files ---------------------------------------------------------------------------
