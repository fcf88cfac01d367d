"""Names whose values a cell's run keeps, from its text."""

from __future__ import annotations

import ast

import pytest

from jupyter_amltrain.jobs import kept_names, script
from jupyter_amltrain.jobs.kept_names import Keep


@pytest.mark.parametrize(
    ("cell", "bound", "used"),
    [
        ("a = 1\nb, (c, *d) = x", "b c d a", ""),
        ("a = 1\nb = 2\na = 3", "a b", ""),
        ("df['a'] = 1\nnet.layer.w[0] += 1\nn += 1", "n net df", ""),
        ("for i in x:\n    if i:\n        last = i\nwith f() as g: pass", "g last i", ""),
        ("def f():\n    inner = 1\nclass C:\n    inner = 2\ng = lambda: (y := 1)", "g", ""),
        ("[z for z in x]\nif (n := 3): pass", "n", ""),
        ("import os\nfrom a import b\n_private = 1", "", ""),
        ("net.fit(X)\ntrain(net, loader, optimizer=opt)\nother.fit()", "", "net opt X"),
        ("[net.step(one) for one in X]", "", "net"),
        ("net = net.fit(X)", "net", "X"),
    ],
)
def test_cell_names_what_it_binds_and_may_change(cell: str, bound: str, used: str) -> None:
    found = kept_names.kept_names(ast.parse(cell), {"net", "X", "opt"})
    assert (sorted(found.bound), sorted(found.used)) == (sorted(bound.split()), sorted(used.split()))


def test_names_of_later_lines_come_first() -> None:
    assert kept_names.kept_names(ast.parse("a = 1\nb = 2\nc = 3\na = 4")).bound == ("a", "c", "b")


@pytest.mark.parametrize("keep", [*Keep])
def test_script_tells_how_it_keeps_values(keep: Keep) -> None:
    made = script.from_cell("a = 1\nb = 2", keep=keep, out=["b"])
    assert kept_names.keep_of(made.text) is keep
    assert ("keep(['a']," in made.text) is (keep is not Keep.NOTHING)


def test_script_without_variables_keeps_nothing() -> None:
    assert script.from_cell("print(1)", keep=Keep.EXACT).text == script.from_cell("print(1)").text
