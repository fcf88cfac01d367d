"""Finds modules of the notebook's folder whose file was edited since the kernel imported them."""

from __future__ import annotations

import ast
import os
import sys
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from jupyter_amltrain.jobs import preflight


def note_on_edited(modules: Iterable[str], folder: str) -> str:
    """Return a sentence about modules that the run has in another version than the kernel; empty if there are none.

    Parameters
    ----------
    modules
        Full names; those that are not loaded or not in `folder` are left out.
    """
    edited = [name for name in dict.fromkeys(modules) if _is_edited(sys.modules.get(name), folder)]
    if not edited:
        return ""
    were, their = ("was", "its") if len(edited) == 1 else ("were", "their")
    names = ", ".join(edited)
    return f"{names} {were} edited after the import: the run has {their} present text, this kernel the old one."


def _is_edited(module: types.ModuleType | None, folder: str) -> bool:
    path = getattr(module, "__file__", None) or ""
    inside = os.path.abspath(path).startswith(folder.rstrip(os.sep) + os.sep)
    if module is None or not inside or not path.endswith(".py") or "site-packages" in path:
        return False
    try:
        text = Path(path).read_text(encoding="utf-8")
        tree = preflight.parse(text)
        new = [_content(code) for code in _codes(compile(text, path, "exec"))]
    except (OSError, SyntaxError, ValueError, RecursionError):
        return False
    if any(_content(function.__code__) not in new for function in _functions(module)):
        return True
    return any(getattr(module, name, value) != value for name, value in _constants(tree))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield one
            yield from _codes(one)


def _content(code: types.CodeType) -> Any:
    """Return what a function does, without its place in the file."""
    constants = [one for one in code.co_consts if not isinstance(one, types.CodeType)]
    names = (code.co_name, code.co_names, code.co_varnames, code.co_argcount)
    return names, code.co_code, constants, [_content(one) for one in _codes(code)]


def _functions(module: types.ModuleType) -> Iterator[types.FunctionType]:
    """Yield the functions and methods that a module defines."""
    for value in list(vars(module).values()):
        inner = vars(value).values() if isinstance(value, type) else [value]
        for one in inner:
            if isinstance(one, types.FunctionType) and one.__code__.co_filename == module.__file__:
                yield one


def _constants(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Yield the names that a module binds once, to a number or text."""
    stored = [one.id for one in ast.walk(tree) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)]
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name) and stored.count(target.id) == 1:
                yield target.id, node.value.value
