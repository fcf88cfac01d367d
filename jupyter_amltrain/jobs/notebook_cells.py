"""The cells of a notebook that were run, and the statements in them that define names."""

from __future__ import annotations

import ast
import functools
import linecache
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any, NamedTuple

from jupyter_amltrain.jobs import preflight

#: Magics whose cell defines names of the notebook, as the history has them.
_TRANSPARENT = frozenset({"aml_cell", "time", "timeit", "capture"})
#: Statements whose inner ones run in the scope of the notebook.
_BLOCKS = (ast.If, ast.Try, ast.With, ast.For, ast.While)
_MISSING = object()
#: Functions that set options of a library, when their arguments are literals, and tables of options.
_SETTERS = frozenset(
    {
        *(
            "set_printoptions",
            "set_option",
            "set_default_dtype",
            "set_theme",
            "set_style",
            "set_context",
            "set_palette",
        ),
        *(
            "filterwarnings",
            "simplefilter",
            "set_config",
            "set_verbosity",
            "set_verbosity_error",
            "disable_progress_bar",
        ),
        *("set_float32_matmul_precision", "use", "rc", "set_loglevel", "seterr", "register_matplotlib_converters"),
    }
)
_OPTIONS = frozenset({"options", "rcParams", "config"})
_SETTING_WORDS = (*_SETTERS, *_OPTIONS)


class Definition(NamedTuple):
    """A statement of a cell that defines a name.

    Attributes
    ----------
    cell
        Number of the cell in the history; -1 for one that is not there.
    line
        First line in the cell.
    """

    cell: int
    line: int
    text: str
    node: ast.stmt

    @property
    def is_import(self) -> bool:
        """Whether it imports the name."""
        return isinstance(self.node, ast.Import | ast.ImportFrom)


class Cells:
    """The cells of a notebook in the order in which they were run.

    Parameters
    ----------
    history
        Their texts as IPython's history of parsed inputs has them.
    """

    def __init__(self, history: Sequence[str]) -> None:
        self.texts: list[str] = []
        self.named: dict[str, int] = {}  #: number of the last cell of each name (``%%aml_cell NAME``)
        self._known: dict[str, Definition | None] = {}
        for number, cell in enumerate(history):
            magic, line, body = _cell_magic(cell)
            if magic == "aml_cell" and body.strip():
                self.named[line.strip().rstrip(";")] = number
            self.texts.append(body if magic in _TRANSPARENT else cell)

    def definition_of(self, name: str) -> Definition | None:
        """Return the last statement that defines a name."""
        if name not in self._known:
            self._known[name] = self._last_definition(name)
        return self._known[name]

    def _last_definition(self, name: str) -> Definition | None:
        for number in range(len(self.texts) - 1, -1, -1):
            text = self.texts[number]
            if name in _words(text) and (found := definitions(text).get(name)) is not None:
                return found._replace(cell=number)
        return None

    def source_of(self, function: FunctionType, name: str) -> Definition | None:
        """Return the statement that made a function, by the lines that IPython keeps of each cell."""
        code = function.__code__
        cell = "".join(linecache.getlines(code.co_filename))
        found = definitions(cell).get(name) if cell else None
        if found is None or not found.line <= code.co_firstlineno <= found.line + found.text.count("\n"):
            return None
        return found._replace(cell=self.number_of(cell))

    def assignment_of(self, name: str, attribute: str) -> Definition | None:
        """Return the last statement ``name.attribute = ...``."""
        for number in range(len(self.texts) - 1, -1, -1):
            text = self.texts[number]
            if f"{name}.{attribute}" not in text:
                continue
            for node in reversed(_statements(text)):
                if isinstance(node, ast.Assign) and any(_is_attribute(one, name, attribute) for one in node.targets):
                    return _definition(text, node)._replace(cell=number)
        return None

    def makers_of(self, names: Sequence[str], is_value: Callable[[str], bool]) -> list[int]:
        """Return the numbers of the cells that made or changed values, and what those needed.

        Parameters
        ----------
        is_value
            Whether a name travels as a value; imports and functions need no cell.
        """
        numbers: set[int] = set()
        waiting, seen = [*names], set[str]()
        while waiting:
            name = waiting.pop()
            if name in seen or not is_value(name):
                continue
            seen.add(name)
            for number, text in enumerate(self.texts):
                if name in text and number not in numbers and name in _changed(text):
                    numbers.add(number)
                    waiting += _read(text)
        return sorted(numbers)

    def settings(self) -> Iterator[Definition]:
        """Yield the statements that set options of libraries, in the order of the cells."""
        for number, text in enumerate(self.texts):
            if any(word in text for word in _SETTING_WORDS):
                for node in _statements(text):
                    if _is_setting(node):
                        yield _definition(text, node)._replace(cell=number, text=ast.unparse(node))

    def number_of(self, cell: str) -> int:
        """Return the number of the last cell with this text; -1 if there is none."""
        for number in range(len(self.texts) - 1, -1, -1):
            if self.texts[number].strip() == cell.strip():
                return number
        return -1

    def import_of(self, name: str, value: Any) -> str | None:
        """Return the statement by which the notebook imported `value` as `name`."""
        definition = self.definition_of(name)
        if definition is not None and definition.is_import:
            text = _import_text(definition.node, name, value)
            return "; ".join(dict.fromkeys([*self._submodules(name), text])) if text else None
        if definition is None and (module := self._star_module(name, value)):
            return f"from {module} import {name}"
        return None

    def _submodules(self, name: str) -> Iterator[str]:
        """Yield ``import name.part`` of each submodule that the notebook imports: each is an attribute of `name`."""
        for text in self.texts:
            if f"{name}." in text and "import" in text:
                for node in _statements(text):
                    for alias in node.names if isinstance(node, ast.Import) else ():
                        if alias.asname is None and alias.name.startswith(f"{name}.") and alias.name in sys.modules:
                            yield f"import {alias.name}"

    def _star_module(self, name: str, value: Any) -> str:
        """Return the module from which ``from module import *`` took a name; empty if there is none."""
        for text in reversed(self.texts):
            for node in _statements(text) if "*" in text and "import" in text else ():
                if not isinstance(node, ast.ImportFrom) or all(one.name != "*" for one in node.names):
                    continue
                if node.module and getattr(sys.modules.get(node.module), name, _MISSING) is value:
                    return node.module
        return ""


@functools.lru_cache(maxsize=4096)
def _words(cell: str) -> frozenset[str]:
    """Return the words of a cell."""
    return frozenset(re.findall(r"\w+", cell))


@functools.lru_cache(maxsize=4096)
def _changed(cell: str) -> frozenset[str]:
    """Return the names that a cell binds, or whose object it changes: ``x[0] = 1``, ``x.fit(y)``."""
    found: set[str] = set()
    for node in _statements(cell):
        found.update(defined(node))
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            targets = [node.value.func, *node.value.args]
        for target in targets:
            while isinstance(target, ast.Attribute | ast.Subscript | ast.Call):
                target = target.func if isinstance(target, ast.Call) else target.value
            if isinstance(target, ast.Name):
                found.add(target.id)
    return frozenset(found)


@functools.lru_cache(maxsize=4096)
def _read(cell: str) -> frozenset[str]:
    """Return the names that a cell reads."""
    nodes = (node for one in _statements(cell) for node in ast.walk(one))
    return frozenset(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))


def _is_setting(node: ast.stmt) -> bool:
    """Whether a statement only sets options of a library."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        call = node.value
        parts = [*call.args, *(keyword.value for keyword in call.keywords)]
        is_setter = isinstance(call.func, ast.Attribute) and call.func.attr in _SETTERS and _root(call.func) is not None
        return is_setter and all(map(_is_literal, parts))
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and _is_literal(node.value):
        target = node.targets[0]
        names = {one.attr for one in ast.walk(target) if isinstance(one, ast.Attribute)}
        return bool(names & _OPTIONS) and _root(target) is not None
    return False


def _root(node: ast.expr) -> str | None:
    """Return the name at the start of ``name.part[0].part``; ``None`` for another expression."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return isinstance(node, ast.Attribute) and _root(node) is not None  # torch.float64
    return True


def _is_attribute(node: ast.expr, name: str, attribute: str) -> bool:
    is_of_name = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name
    return is_of_name and node.attr == attribute  # type: ignore[attr-defined]


def statement_at(cell: str, line: int) -> Definition | None:
    """Return the statement in the scope of a notebook that has a line."""
    found = [node for node in _statements(cell) if _first_line(node) <= line <= (node.end_lineno or 0)]
    return _definition(cell, found[-1]) if found else None


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(one.lineno for one in decorators)])


def _definition(cell: str, node: ast.stmt) -> Definition:
    first = _first_line(node)
    return Definition(-1, first, textwrap.dedent("\n".join(cell.split("\n")[first - 1 : node.end_lineno])), node)


def _import_text(node: ast.stmt, name: str, value: Any) -> str:
    """Return the part of an import that binds `name`; empty if it means something else by now."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if (alias.asname or alias.name.partition(".")[0]) != name:
                continue
            module = alias.name if alias.asname else name
            if sys.modules.get(module) is value:
                return f"import {alias.name}" + (f" as {name}" if alias.asname and alias.asname != alias.name else "")
    elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
        for alias in node.names:
            if (alias.asname or alias.name) != name:
                continue
            found = getattr(sys.modules.get(node.module), alias.name, _MISSING)
            # A module that was loaded again has another object of the same name.
            is_same = found is value or sys.modules.get(f"{node.module}.{alias.name}") is value
            if is_same or (found is not _MISSING and getattr(value, "__module__", None) == node.module):
                return f"from {node.module} import {alias.name}" + (f" as {name}" if name != alias.name else "")
    return ""


def _cell_magic(cell: str) -> tuple[str, str, str]:
    """Return name, line and body of a cell that is a call of a cell magic; empty texts for other cells."""
    if not cell.lstrip().startswith("get_ipython().run_cell_magic("):
        return "", "", ""
    try:
        (statement,) = preflight.parse(cell).body
        words = [ast.literal_eval(part) for part in statement.value.args]  # type: ignore[attr-defined]
        magic, line, body = map(str, words)
    except (SyntaxError, ValueError, TypeError, AttributeError, RecursionError, MemoryError):
        return "", "", ""
    return magic, line, body


@functools.lru_cache(maxsize=4096)
def _statements(cell: str) -> tuple[ast.stmt, ...]:
    """Return the statements that run in the scope of the notebook; nothing for a text that is not Python."""
    try:
        return tuple(_flat(preflight.parse(cell).body))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # it did not run, or is not Python
        return ()


def _flat(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for node in statements:
        yield node
        if isinstance(node, _BLOCKS):
            for field in ("body", "handlers", "orelse", "finalbody"):
                for inner in getattr(node, field, ()):
                    yield from _flat(inner.body if isinstance(inner, ast.ExceptHandler) else [inner])


@functools.lru_cache(maxsize=4096)
def definitions(cell: str) -> dict[str, Definition]:
    """Return the last definition of each name in the scope of a notebook."""
    return {name: _definition(cell, node) for node in _statements(cell) for name in defined(node)}


def defined(node: ast.stmt) -> list[str]:
    """Return the names that a statement itself binds."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names if alias.name != "*"]
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.For | ast.AsyncFor):
        targets = [node.target]
    elif isinstance(node, ast.With | ast.AsyncWith):
        targets = [item.optional_vars for item in node.items if item.optional_vars is not None]
    return [
        part.id
        for target in targets
        for part in ast.walk(target)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    ]
