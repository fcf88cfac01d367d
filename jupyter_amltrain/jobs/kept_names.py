"""Names whose values a cell's run keeps (:mod:`jupyter_amltrain.agent.kept_values`), from the text of the cell."""

from __future__ import annotations

import ast
import enum
import re
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

#: Marks a script that keeps values.
MODULE = "amltrain_kept"
#: Most names that one cell keeps.
_MAX_NAMES = 200
#: Statements with their own variables, and statements whose names the text of the run has.
_APART = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


#: The line of a script that keeps values.
_LINE = re.compile(rf"__import__\('{MODULE}'\)\.keep\(.*, (?P<exact>True|False)\)$", re.MULTILINE)
_EPILOGUE = """
# ---- added by amltrain: keeps what the cell binds, for run.result() ----
try:
    __import__({module!r}).keep({bound}, {used}, {known}, {exact})
except ImportError:  # started by other means
    pass
"""


class Keep(enum.Enum):
    """How a run keeps what its cell binds."""

    NOTHING = enum.auto()
    FORMS = enum.auto()  #: in forms that are read without running code, where there is one
    EXACT = enum.auto()  #: as it is: the reader is on the same machine


def keep_for(is_local: bool) -> Keep:
    """Return how a run on this machine, or on another one, keeps values."""
    return Keep.EXACT if is_local else Keep.FORMS


def keep_of(script: str) -> Keep:
    """Return how the run of a script keeps values."""
    found = _LINE.search(script)
    return Keep.NOTHING if found is None else Keep.EXACT if found["exact"] == "True" else Keep.FORMS


def keeps(script: str, name: str) -> bool:
    """Whether the run of a script may keep the value of a variable."""
    found = _LINE.search(script)
    return found is not None and repr(name) in found[0]


def epilogue(tree: ast.Module, keep: Keep, out: Collection[str], known: Collection[str], shared: Iterable[str]) -> str:
    """Return the lines of a script that keep what its cell binds.

    Parameters
    ----------
    out
        Names of ``--out``, which are written anyway.
    known
        Names that the cell gets from the notebook.
    shared
        Names of functions and classes that the notebook has, too.
    """
    if keep is Keep.NOTHING:
        return ""
    bound, used = ([one for one in part if one not in out] for part in kept_names(tree, known))
    if not (bound or used):
        return ""
    exact = keep is Keep.EXACT
    return _EPILOGUE.format(module=MODULE, bound=bound, used=used, known=sorted(shared), exact=exact)


class KeptNames(NamedTuple):
    """Variables of a cell, those of later lines first.

    Attributes
    ----------
    bound
        It binds them at its top level, or assigns to a part: ``model = ...``, ``df["a"] = ...``.
    used
        It does not bind them, but calls their methods or gives them to functions: ``model.fit(X)``.
    """

    bound: tuple[str, ...] = ()
    used: tuple[str, ...] = ()


def kept_names(tree: ast.Module, known: Collection[str] = ()) -> KeptNames:
    """Return what a cell binds, and what it may change of `known`, which it gets from the notebook."""
    bound: dict[str, int] = {}
    used: dict[str, int] = {}
    for node in _at_top(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound[node.id] = max(line, bound.get(node.id, 0))
        elif isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store):
            if name := _root(node):
                bound[name] = max(line, bound.get(name, 0))
        elif isinstance(node, ast.Call):
            parts = [node.func, *node.args, *(one.value for one in node.keywords)]
            for name in filter(None, map(_root, parts)):
                used[name] = max(line, used.get(name, 0))
    own = {*bound}
    return KeptNames(_newest(bound), _newest({name: line for name, line in used.items() if name in {*known} - own}))


def _newest(lines: dict[str, int]) -> tuple[str, ...]:
    names = [name for name in lines if not name.startswith("_")]
    return tuple(sorted(names, key=lambda name: -lines[name])[:_MAX_NAMES])


def _at_top(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a module that belong to its top level, in the order of the text."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _APART):
            continue
        if isinstance(child, _COMPREHENSIONS):  # its targets are its own, and what it calls is not
            yield from (one for one in _at_top(child) if isinstance(one, ast.Call))
            continue
        yield child
        yield from _at_top(child)


def _root(node: ast.AST) -> str:
    """Return the variable in ``name.part[0].other``; empty if it begins otherwise."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
