"""Paths that the text of a script computes from where it is, such as ``Path(__file__).parent / "data"``."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

_Function = Callable[..., str]

#: Functions of paths, by the last two parts of their names, that need nothing but their arguments.
_FUNCTIONS: dict[str, _Function] = {
    "Path": os.path.join,
    "pathlib.Path": os.path.join,
    "PurePath": os.path.join,
    "str": str,
    "os.fspath": str,
    "os.path.join": os.path.join,
    "path.join": os.path.join,
    "join": os.path.join,
    "os.path.dirname": os.path.dirname,
    "path.dirname": os.path.dirname,
    "dirname": os.path.dirname,
    "os.path.abspath": os.path.normpath,
    "path.abspath": os.path.normpath,
    "abspath": os.path.normpath,
    "os.path.realpath": os.path.normpath,
    "realpath": os.path.normpath,
    "os.path.normpath": os.path.normpath,
    "os.path.expanduser": os.path.expanduser,
}
_CONSTANTS = {"os.pardir": os.pardir, "os.curdir": os.curdir, "os.sep": os.sep, "os.path.sep": os.sep}
#: Methods of ``pathlib.Path`` with the same meaning for the path of this script, and those that add parts.
_SAME = frozenset({"resolve", "absolute", "expanduser", "as_posix", "__str__", "__fspath__"})
_ADDING = frozenset({"joinpath"})
_MAX_PARENTS = 20


class NamedPath(NamedTuple):
    """An absolute path that a script computes, and the line where it does."""

    path: str
    line: int


class ScriptPaths(NamedTuple):
    """What a script says about places.

    Attributes
    ----------
    search
        Absolute folders that it adds to ``sys.path``.
    named
        Absolute paths that it computes from ``__file__``.
    """

    search: tuple[str, ...]
    named: tuple[NamedPath, ...]


def paths_of(tree: ast.AST, file: str, folder: str) -> ScriptPaths:
    """Return the places that a script computes from its own one. Runs no code and does not touch the disk.

    Parameters
    ----------
    file
        Absolute path of the script; empty for a cell, which has no ``__file__``.
    folder
        Its working folder.
    """
    known = _Places(file, folder)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            known.assign(node.targets[0].id, node.value)
    search = [place for node in ast.walk(tree) if isinstance(node, ast.Call) for place in known.search_folders(node)]
    named = [NamedPath(known.absolute(path), line) for path, line in known.computed(tree)]
    if file:
        named += [NamedPath(path, line) for path, line in _hydra_files(tree, os.path.dirname(file))]
    return ScriptPaths(tuple(dict.fromkeys(search)), tuple(dict.fromkeys(named)))


def _hydra_files(tree: ast.AST, folder: str) -> Iterator[tuple[str, int]]:
    """Yield the folder and the file of ``hydra.main(config_path="conf", config_name="config")``, and of its kin."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not _dotted(node.func).startswith(("hydra.", "initialize")):
            continue
        words = {one.arg: one.value.value for one in node.keywords if isinstance(one.value, ast.Constant)}
        place = os.path.normpath(os.path.join(folder, str(words.get("config_path") or "")))
        if place != folder:
            yield place, node.lineno
        if isinstance(name := words.get("config_name"), str):
            yield os.path.join(place, name if name.endswith((".yaml", ".yml")) else f"{name}.yaml"), node.lineno


class _Places:
    """Values of expressions of paths in one script."""

    def __init__(self, file: str, folder: str) -> None:
        self._file, self._folder = file, folder
        self._names: dict[str, str] = {}
        self._from_file: set[str] = set()

    def absolute(self, path: str) -> str:
        return os.path.normpath(os.path.join(self._folder, path))

    def assign(self, name: str, value: ast.expr) -> None:
        path = self.value(value)
        if path is not None and name not in self._names:
            self._names[name] = path
            if self._is_from_file(value):
                self._from_file.add(name)

    def search_folders(self, call: ast.Call) -> Iterator[str]:
        """Yield the folders of ``sys.path.append(...)``, ``insert(0, ...)``, ``extend([...])``."""
        if _dotted(call.func) not in ("sys.path.append", "sys.path.insert", "sys.path.extend", "site.addsitedir"):
            return
        for argument in call.args[-1:]:
            parts = argument.elts if isinstance(argument, ast.List | ast.Tuple) else [argument]
            for part in parts:
                path = self.value(part)
                if path is not None:
                    yield self.absolute(path)

    def computed(self, tree: ast.AST) -> Iterator[tuple[str, int]]:
        """Yield the largest expressions that are paths below the place of the script, with their lines."""
        for node in ast.iter_child_nodes(tree):
            if isinstance(node, ast.expr) and not isinstance(node, ast.Name) and self._is_from_file(node):
                path = self.value(node)
                if path is not None:
                    yield path, node.lineno
                    continue
            yield from self.computed(node)

    def _is_from_file(self, node: ast.AST) -> bool:
        return any(
            isinstance(one, ast.Name) and (one.id == "__file__" or one.id in self._from_file) for one in ast.walk(node)
        )

    def value(self, node: ast.expr) -> str | None:
        """Return the path of an expression; ``None`` if it is none that is known without running the script."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        if isinstance(node, ast.Name):
            return (self._file or None) if node.id == "__file__" else self._names.get(node.id)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Add):
            left, right = self.value(node.left), self.value(node.right)
            if left is None or right is None:
                return None
            return os.path.join(left, right) if isinstance(node.op, ast.Div) else left + right
        if isinstance(node, ast.Attribute):
            if (constant := _CONSTANTS.get(_dotted(node))) is not None:
                return constant
            base = self.value(node.value)
            return os.path.dirname(base) if base is not None and node.attr == "parent" else None
        if isinstance(node, ast.Subscript):
            return self._parents(node)
        if isinstance(node, ast.JoinedStr):
            parts = [self.value(one.value if isinstance(one, ast.FormattedValue) else one) for one in node.values]
            return "".join(part for part in parts if part is not None) if None not in parts else None
        return self._call(node) if isinstance(node, ast.Call) else None

    def _parents(self, node: ast.Subscript) -> str | None:
        """Return the value of ``path.parents[2]``."""
        count = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if not isinstance(node.value, ast.Attribute) or node.value.attr != "parents" or not isinstance(count, int):
            return None
        path = self.value(node.value.value)
        for _ in range(count + 1 if path is not None and 0 <= count < _MAX_PARENTS else 0):
            path = os.path.dirname(path or "")
        return path

    def _call(self, node: ast.Call) -> str | None:
        name = _dotted(node.func)
        if name in ("os.getcwd", "Path.cwd", "pathlib.Path.cwd"):
            return self._folder
        parts: list[str] = []
        if isinstance(node.func, ast.Attribute) and name not in _FUNCTIONS:
            base = self.value(node.func.value)
            if base is None or node.func.attr not in _SAME | _ADDING:
                return None
            parts, name = [base], "os.path.join" if node.func.attr in _ADDING else "os.path.normpath"
            if node.func.attr in _SAME:
                return self.absolute(base) if node.func.attr in ("resolve", "absolute") else base
        values = [self.value(one) for one in node.args]
        if name not in _FUNCTIONS or node.keywords or None in values or not (parts or values):
            return None
        try:
            path = _FUNCTIONS[name](*parts, *values)
        except TypeError:  # another number of arguments
            return None
        return self.absolute(path) if name.endswith(("abspath", "realpath")) else path


def _dotted(node: ast.expr) -> str:
    """Return the name of a function, such as ``os.path.join``; empty for another expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
