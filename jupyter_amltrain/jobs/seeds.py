"""Finds cells whose random numbers depend on a seed that another cell has set: a run does not have its generator."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from jupyter_amltrain.jobs import preflight

_SEEDS = frozenset(
    {"seed", "manual_seed", "manual_seed_all", "set_seed", "set_random_seed", "seed_everything", "set_global_seed"}
)
#: Functions that draw from a global generator, below ``random``, ``np.random`` or ``torch``.
_DRAWS = frozenset(
    {
        *("random", "rand", "randn", "randint", "random_sample", "randperm", "uniform", "normal", "standard_normal"),
        *("choice", "choices", "sample", "shuffle", "permutation", "binomial", "poisson", "exponential", "gauss"),
        *("multinomial", "bernoulli", "rand_like", "randn_like", "randint_like", "beta", "gamma"),
    }
)
_GENERATORS = frozenset({"random", "torch", "numpy", "np", "tf"})


def seed_note(tree: ast.Module, text: str, cells: Sequence[str]) -> str:
    """Return a sentence about the seed of another cell; empty if the cell needs none, or sets its own.

    Parameters
    ----------
    tree, text
        The cell.
    cells
        Texts of the cells that were run, by number.
    """
    if not any(word in text for word in _GENERATORS):
        return ""
    calls = [_path(node.func) for node in preflight.nodes_of(tree) if isinstance(node, ast.Call)]
    if any(path[-1:] and path[-1] in _SEEDS for path in calls):
        return ""
    if not any(len(path) > 1 and path[-1] in _DRAWS and _GENERATORS & {*path[:-1]} for path in calls):
        return ""
    for number in range(len(cells) - 1, -1, -1):
        if any(word in cells[number] for word in _SEEDS) and (text := _seed_of(cells[number])):
            where = f"cell {number}" if number else "a cell"
            return f"The seed of {where}, {text}, does not reach the run: set it in this cell to repeat its numbers."
    return ""


def _seed_of(cell: str) -> str:
    """Return the last call of a cell that sets a seed."""
    try:
        tree = preflight.parse(cell)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    for node in reversed(tree.body):
        for one in ast.walk(node):
            if isinstance(one, ast.Call) and _path(one.func)[-1:] and _path(one.func)[-1] in _SEEDS:
                return ast.unparse(one)[:60]
    return ""


def _path(node: ast.AST) -> list[str]:
    """Return the names in ``a.b.c``; nothing for other expressions."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return [node.id, *names] if isinstance(node, ast.Name) else []
