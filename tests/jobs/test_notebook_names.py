"""Names that a cell uses and does not define."""

from __future__ import annotations

import math
import os.path
from typing import Any

import pytest

from jupyter_amltrain.errors import PreflightError
from jupyter_amltrain.jobs import preflight
from jupyter_amltrain.jobs.notebook_names import check_names, undefined_names


def missing(text: str, *known: str) -> list[tuple[str, int]]:
    return [tuple(one) for one in undefined_names(preflight.parse(text), text, known)]


@pytest.mark.parametrize(
    "text",
    [
        "x = 1\nprint(x, __name__, __file__)",
        "import os.path as p, json\nfrom math import pi as tau\nprint(p, json, tau)",
        "def f(a, *b, c=1, **d):\n    return a, b, c, d, f\nf(1)",
        "class A:\n    x = 1\n    y = x + 1\n    def m(self):\n        return __class__, self.y\nA()",
        "for i in range(3):\n    pass\nprint(i)",
        "with open('x') as file:\n    print(file)",
        "try:\n    pass\nexcept OSError as error:\n    print(error)",
        "try:\n    unicode\nexcept NameError:\n    unicode = str\nprint(unicode)",
        "try:\n    spark\nexcept NameError:\n    pass",
        "print([i for i in range(3)], {k: v for k, v in {}.items()}, (n := 1), n)",
        "def f():\n    global total\n    total = 1\nf()\nprint(total)",
        "def f():\n    n = 0\n    def g():\n        nonlocal n\n        n += 1\n    return g",
        "match [1]:\n    case [first, *rest] if first:\n        print(first, rest)",
        "lambda x: x + 1",
        "exec('y = 1')\nprint(y)",
        "from math import *\nprint(pi)",
        "del_me = 1\ndel del_me",
        "from __future__ import annotations\ndef f(x: Frame) -> Frame: ...",
        "total: int = 0\ntotal += 1",
        "(a, [b, *c]) = 1, [2, 3]\nprint(a, b, c)",
        "async def f():\n    async for i in g():\n        yield i\nasync def g():\n    yield 1",
        "import a.b\nprint(a.b)",
    ],
)
def test_defined_names_are_found(text: str) -> None:
    assert missing(text) == []


@pytest.mark.parametrize("name", ["exit", "quit"])
def test_builtin_that_ipython_hides_is_no_missing_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delattr(f"builtins.{name}")
    assert missing(f"if True:\n    {name}()") == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("print(df)", [("df", 1)]),
        ("\n\nmodel.fit(X, y)", [("X", 3), ("model", 3), ("y", 3)]),
        ("def train():\n    return clean(df)\ntrain()", [("clean", 2), ("df", 2)]),
        ("class Net(Base):\n    pass", [("Base", 1)]),
        ("total += 1", [("total", 1)]),
        ("x = [row for row in rows]", [("rows", 1)]),
        ("print(f'{name!r:>{width}}')", [("name", 1), ("width", 1)]),
        ("@jit\ndef f(x: Frame = default): ...", [("jit", 1), ("Frame", 2), ("default", 2)]),
        ("try:\n    a\nexcept ValueError:\n    b", [("a", 2), ("b", 4)]),
        ("display(1)", [("display", 1)]),
        ("größe + 1", [("größe", 1)]),
    ],
)
def test_undefined_names_are_named_with_their_line(text: str, found: Any) -> None:
    assert missing(text) == found


def test_known_names_count_as_defined() -> None:
    assert missing("print(df, lr, x)", "df", "lr") == [("x", 1)]


def _here() -> None: ...


_here.__module__ = "__main__"


@pytest.mark.parametrize(
    ("text", "namespace", "code", "hint"),
    [
        ("df", {"df": 1}, "preflight.notebook_name", "--in df"),
        ("clean", {"clean": _here}, "preflight.notebook_name", "--with clean"),
        ("m", {"m": math}, "preflight.notebook_name", "import math as m"),
        ("join", {"join": os.path.join}, "preflight.notebook_name", "from posixpath import join"),
        ("display", {}, "preflight.notebook_name", "print"),
        ("model", {"modle": 1}, "preflight.undefined_name", "Did you mean modle?"),
        ("model", None, "preflight.undefined_name", "Define it"),
    ],
)
def test_error_says_how_the_name_gets_there(text: str, namespace: Any, code: str, hint: str) -> None:
    found = undefined_names(preflight.parse(text), text)
    with pytest.raises(PreflightError) as caught:
        check_names(found, namespace, above=1, where="Cell line")
    assert caught.value.code == code and hint in caught.value.hint and "line 2" in caught.value.message
    assert "\n" not in str(caught.value)


def test_several_names_are_in_one_error() -> None:
    text = "clean(df, np)"
    found = undefined_names(preflight.parse(text), text)
    with pytest.raises(PreflightError) as caught:
        check_names(found, {"clean": _here, "df": 1, "np": math}, above=1, where="Cell line")
    assert "--with clean --in df" in caught.value.hint and "import math as np" in caught.value.hint
    assert caught.value.details["names"] == ["clean", "df", "np"]


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("def f():\n    return absent", []),
        ("class Net:\n    def forward(self):\n        return absent", []),
        ("def f():\n    return absent\nf()", ["absent"]),
        ("def f(x=absent): pass", ["absent"]),
        ("class Net(absent): pass", ["absent"]),
        ("@register\ndef f():\n    return absent", ["register", "absent"]),
        ("def f():\n    return absent\ng = f", ["absent"]),
    ],
)
def test_name_in_a_function_that_the_cell_does_not_use_may_come_later(cell: str, expected: list[str]) -> None:
    assert [one.name for one in undefined_names(preflight.parse(cell), cell, skip_unused=True)] == expected
