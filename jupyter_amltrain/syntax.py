"""Parsing a person's code without a word about it: what Python warns of is the job's to say, with its own line.

``warnings.catch_warnings`` puts back the whole process' filters at its end, and so takes
away those that another thread has set meanwhile. Ours is one filter more, for our file name alone.
"""

from __future__ import annotations

import ast
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import symtable

#: What stands in warnings where the file's name would.
_FILE = "<amltrain: code of a job>"
_PATTERN = rf"{_FILE}\Z"


def parse(text: str | bytes) -> ast.Module:
    """The syntax tree of `text`; raises what :func:`ast.parse` raises."""
    _quiet()
    return ast.parse(text, _FILE)


def literal(text: str) -> Any:
    """The value of a literal; raises what :func:`ast.literal_eval` raises."""
    _quiet()
    return ast.literal_eval(ast.parse(text.lstrip(" \t"), _FILE, "eval"))


def check(tree: ast.Module) -> None:
    """Raise ``SyntaxError`` for what the grammar lets through: ``break`` outside a loop and the like."""
    _quiet()
    compile(tree, _FILE, "exec", dont_inherit=True)


def table(text: str) -> symtable.SymbolTable:
    """The symbol table of a module's text; raises ``SyntaxError`` as compiling it would."""
    import symtable  # not at %load_ext

    _quiet()
    return symtable.symtable(text, _FILE, "exec")


def _quiet() -> None:
    # The newest filter counts, so it has to be the first. Every change has Python repeat warnings that it has
    # shown once, so nothing is done where it is.
    first = warnings.filters[0] if warnings.filters else None
    if getattr(first and first[3], "pattern", "") != _PATTERN:
        warnings.filterwarnings("ignore", module=_PATTERN)
