"""Cells whose random numbers depend on a seed of another cell."""

from __future__ import annotations

import ast

import pytest

from jupyter_amltrain.jobs.seeds import seed_note

CELLS = ("", "import numpy as np", "np.random.seed(42)\nx = 1", "torch.manual_seed(1)", "print('seed')")


@pytest.mark.parametrize(
    "cell", ["x = np.random.rand(3)", "random.shuffle(x)", "def f():\n    return torch.randn(2)\nf()"]
)
def test_draw_names_the_seed_of_the_last_cell(cell: str) -> None:
    note = seed_note(ast.parse(cell), cell, CELLS)
    assert "cell 3" in note and "torch.manual_seed(1)" in note


@pytest.mark.parametrize(
    "cell",
    [
        "x = 1",
        "np.random.seed(1)\nx = np.random.rand(3)",
        "rng = np.random.default_rng(1)\nx = rng.normal()",
        "frame.sample(3)",
        "torch.zeros(3)",
    ],
)
def test_cell_without_draws_or_with_its_own_seed_needs_no_note(cell: str) -> None:
    assert not seed_note(ast.parse(cell), cell, CELLS)


def test_notebook_without_a_seed_needs_no_note() -> None:
    assert not seed_note(ast.parse(text := "np.random.rand(3)"), text, ("", "import numpy as np", "%broken seed"))
