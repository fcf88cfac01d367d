"""Source of functions and classes of the notebook."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jupyter_amltrain.errors import PreflightError, SubmitError
from jupyter_amltrain.jobs.notebook_source import module_of


def of_cells(names: list[str], cells: list[str], **more: Any) -> dict[str, Any]:
    """The names of the module, after the cells were run."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells:
        exec(cell, namespace)
    text = module_of(names, cells, namespace=namespace, **more).text
    module: dict[str, Any] = {"__name__": "made"}
    exec(text, module)
    return module


def test_function_comes_with_all_that_it_uses() -> None:
    cells = [
        "import math\nimport json as j\nfrom collections import Counter\nSCALE = 2\nUNUSED = 3",
        "def half(x):\n    return x / SCALE\n\nclass Base:\n    pass",
        "class Child(Base):\n    def count(self, text): return Counter(text)\n\n@staticmethod\n"
        "def clean(x):\n    return j.dumps([math.floor(half(x)), Child().count('aa')['a']])",
    ]
    module = of_cells(["clean"], cells)
    assert json.loads(module["clean"](5)) == [2, 2] and "UNUSED" not in module


def test_last_definition_counts() -> None:
    cells = ["def f(): return 1", "broken = (", "def f(): return 2"]
    assert of_cells(["f"], [cells[0], cells[2]])["f"]() == 2


@pytest.mark.parametrize(
    "setting",
    ["K = 3", "K = [1, {'a': 2}]", "K = math.sqrt(9)", "K = math.pi", "K: int = 3", "K = lambda: 3", "A = K = 3"],
)
def test_setting_travels_as_source(setting: str) -> None:
    module = of_cells(["f"], ["import math", setting, "def f(): return K"])
    assert module["f"]() is not None


def test_value_that_is_sent_is_not_made_again() -> None:
    text = module_of(["f"], ["df = load()", "def f(): return df"], namespace={"df": 1}, sent=["df"]).text
    assert text == "def f(): return df\n"


def test_recursive_functions_end() -> None:
    module = of_cells(["a"], ["def a(n): return b(n - 1) if n else 0\ndef b(n): return a(n)"])
    assert module["a"](3) == 0


@pytest.mark.parametrize(
    ("cells", "name", "hint"),
    [
        (["df = load()", "def f(): return df"], "f", "--in df"),
        (["x = 1"], "missing", "Define"),
        (["table = load()"], "table", "--in table"),
    ],
)
def test_what_cannot_travel_is_one_line(cells: list[str], name: str, hint: str) -> None:
    with pytest.raises(SubmitError) as caught:
        module_of([name], cells, namespace={"df": 1, "table": 2})
    assert hint in caught.value.hint and caught.value.code == "submit.source" and "\n" not in str(caught.value)


def test_function_of_unknown_source_is_named() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("def f(): ...", namespace)
    with pytest.raises(SubmitError) as caught:
        module_of(["f"], [], namespace=namespace)
    assert "--with f" in str(caught.value)


def parsed(magic: str, line: str, body: str) -> str:
    """A cell below a cell magic, as IPython's history of parsed inputs has it."""
    return f"get_ipython().run_cell_magic({magic!r}, {line!r}, {body!r})\n"


def test_named_cell_is_included_whole_with_what_it_uses() -> None:
    cells = [
        "def half(x): return x / 2",
        parsed("aml_cell", "setup", "import math\nRATE = 0"),
        parsed("aml_cell", "setup", "import math\nRATE, K = half(math.pi), 1\nfor i in range(3): K += i\n"),
    ]
    module = module_of(["setup"], cells, namespace={})
    assert module.names == ("K", "RATE", "i", "math") and "def half" in module.text
    values: dict[str, Any] = {}
    exec(module.text, values)
    assert (values["K"], round(values["RATE"], 2)) == (4, 1.57)


def test_named_cell_stands_at_its_place_in_the_notebook() -> None:
    cells = [parsed("aml_cell", "setup", "SEED = 7"), "SEED = 8", "def g(): return SEED"]
    values: dict[str, Any] = {}
    exec(module_of(["g", "setup"], cells, namespace={}).text, values)
    assert values["g"]() == 8


@pytest.mark.parametrize("magic", ["aml_cell", "time", "capture"])
def test_function_of_a_cell_below_a_magic_is_found(magic: str) -> None:
    assert "return 5" in module_of(["f"], [parsed(magic, "x", "def f(): return 5")], namespace={}).text


def test_named_cell_with_a_magic_is_refused_with_its_line() -> None:
    with pytest.raises(PreflightError) as caught:
        module_of(["setup"], [parsed("aml_cell", "setup", "import math\n%debug")], namespace={})
    assert caught.value.details["line"] == 3 and "--with setup" in str(caught.value)
