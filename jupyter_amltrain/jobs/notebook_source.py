"""Source of functions, classes and named cells of a notebook, with what they use: ``--with NAME``."""

from __future__ import annotations

import ast
import builtins
import linecache
import types
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from jupyter_amltrain.errors import AmlTrainError, SubmitError
from jupyter_amltrain.jobs import notebook_names, preflight

#: Module that has the source, beside the script.
MODULE = "_amltrain_with"
#: Statement of the first line that runs it. Its classes are in ``__main__``, as in the notebook: what they save can be
#: loaded there, and by any program that defines them. The lines of tracebacks stay those of the module's file.
RUN = f"exec(__import__('importlib.util').util.find_spec({MODULE!r}).loader.get_code({MODULE!r}))"


class _Definition(NamedTuple):
    """A statement of a cell that defines a name."""

    cell: int
    line: int
    text: str
    node: ast.stmt


#: Magics whose cell defines names of the notebook, as the history has them.
_TRANSPARENT = frozenset({"aml_cell", "time", "capture"})


class Module(NamedTuple):
    """Text of the module, and the names that it gives to the script."""

    text: str
    names: tuple[str, ...]


def module_of(
    names: Sequence[str], history: Sequence[str], *, namespace: Mapping[str, Any], sent: Collection[str] = ()
) -> Module:
    """Return the module with the functions, classes and named cells `names`, and with what they use.

    Parameters
    ----------
    history
        The cells that were run, oldest first, as IPython's history of parsed inputs has them; the last
        definition of a name counts. A cell below ``%%aml_cell NAME`` has a name, and is included whole.
    namespace
        The variables of the notebook.
    sent
        Names whose values travel with the job (``--in``).

    Raises
    ------
    SubmitError
        The source of a name is not known, or it uses a value that does not travel.
    PreflightError
        A named cell is not plain Python.
    """
    cells, named = _expanded(history)
    found = _Closure(cells, namespace, sent)
    given: dict[str, None] = {}
    for name in names:
        if name not in named:
            found.add(name, ())
            given[name] = None
            continue
        text = cells[named[name]].rstrip("\n")
        tree = preflight.check(text, first_line=2, where=f"--with {name}: cell line")
        for other in notebook_names.undefined_names(tree, text):
            found.add(other.name, (name,))
        found.add_cell(named[name], text)
        given.update(dict.fromkeys(sorted(notebook_names.defined_names(text))))
    return Module(found.text() + "\n", tuple(given))


def _expanded(history: Sequence[str]) -> tuple[list[str], dict[str, int]]:
    """Return the cells without the magics above them, and the number of the last cell of each name."""
    cells: list[str] = []
    named: dict[str, int] = {}
    for number, cell in enumerate(history):
        magic, line, body = _cell_magic(cell)
        if magic == "aml_cell" and body.strip():
            named[line.strip().rstrip(";")] = number
        cells.append(body if magic in _TRANSPARENT else cell)
    return cells, named


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


def _definitions(cells: Sequence[str]) -> dict[str, _Definition]:
    """Return the last definition of each name at the top level of the cells."""
    found: dict[str, _Definition] = {}
    for number, cell in enumerate(cells):
        try:
            tree = preflight.parse(cell)
        except (SyntaxError, ValueError, RecursionError):  # it did not run, or is not Python
            continue
        lines = cell.split("\n")
        for node in tree.body:
            first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
            text = "\n".join(lines[first - 1 : node.end_lineno])
            for name in _defined(node):
                found[name] = _Definition(number, first, text, node)
    return found


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names if alias.name != "*"]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


class _Closure:
    """Collects definitions until every name that they use is defined."""

    def __init__(self, cells: Sequence[str], namespace: Mapping[str, Any], sent: Collection[str]) -> None:
        self._known = _definitions(cells)
        self._namespace, self._sent = namespace, frozenset(sent)
        self._taken: dict[str, tuple[tuple[int, int], str]] = {}

    def add(self, name: str, users: tuple[str, ...]) -> None:
        """Take the definition of a name, and of what it uses; `users` are the names that led here."""
        if name in self._taken or name in self._sent:  # values are assigned before
            return
        definition = self._known.get(name) or self._cell_of(name)
        if definition is None:
            text = self._import_of(name)
            if text is None:
                raise self._unknown(name, users)
            self._taken[name] = (-1, 0), text
            return
        node = definition.node
        is_assigned = isinstance(node, ast.Assign | ast.AnnAssign)
        if is_assigned and not (users or callable(self._namespace.get(name))):
            raise self._is_value(name, users)
        if isinstance(node, ast.Assign | ast.AnnAssign) and not self._is_setting(node):
            raise self._is_value(name, users)
        self._taken[name] = (definition.cell, definition.line), definition.text
        for other in self._used(definition):
            self.add(other, (*users, name))

    def add_cell(self, number: int, text: str) -> None:
        """Take a whole cell at its place in the notebook."""
        self._taken[f"cell {number}"] = (number, 0), text

    def _used(self, definition: _Definition) -> list[str]:
        if isinstance(definition.node, ast.Import | ast.ImportFrom):
            return []
        try:
            tree = preflight.parse(definition.text)
        except SyntaxError:
            return []
        own = _defined(definition.node)
        found = notebook_names.undefined_names(tree, definition.text, own)
        return [one.name for one in found if not hasattr(builtins, one.name)]

    def _cell_of(self, name: str) -> _Definition | None:
        """Return the definition of a function or class by the cell that made it; IPython keeps its lines."""
        value = self._namespace.get(name)
        if not notebook_names.is_code(value):
            return None
        functions = [value] if isinstance(value, types.FunctionType) else vars(value).values()
        for function in functions:
            code = getattr(function, "__code__", None)
            if code is not None and (cell := "".join(linecache.getlines(code.co_filename))):
                return _definitions([cell]).get(name)
        return None

    def _import_of(self, name: str) -> str | None:
        """Return an import of a name that no cell defines, such as one of ``from module import *``."""
        value = self._namespace.get(name)
        if isinstance(value, types.ModuleType):
            return f"import {value.__name__}{'' if value.__name__ == name else f' as {name}'}"
        return notebook_names.imported_from(name, value)

    def _is_setting(self, node: ast.Assign | ast.AnnAssign) -> bool:
        """Whether an assignment can run again.

        That is a literal, a lambda, a name of an imported module (``torch.float32``), or a call of one with literals.
        """
        value = node.value
        if value is None:
            return False
        if isinstance(value, ast.Lambda):
            return True
        if isinstance(value, ast.Call):
            parts = [*value.args, *(keyword.value for keyword in value.keywords)]
            return self._is_imported(value.func) and all(_is_literal(part) for part in parts)
        return self._is_imported(value) if isinstance(value, ast.Attribute) else _is_literal(value)

    def _is_imported(self, node: ast.expr) -> bool:
        while isinstance(node, ast.Attribute):
            node = node.value
        definition = self._known.get(node.id) if isinstance(node, ast.Name) else None
        return definition is not None and isinstance(definition.node, ast.Import | ast.ImportFrom)

    def text(self) -> str:
        """Return the statements in the order of the notebook, each once."""
        ordered = sorted(dict.fromkeys(self._taken.values()), key=lambda item: item[0])
        return "\n\n".join(text for _, text in ordered)

    def _unknown(self, name: str, users: tuple[str, ...]) -> AmlTrainError:
        where = f"{users[-1]} uses {name}, which " if users else f"{name} "
        if name not in self._namespace:
            return _error(users[0] if users else name, f"{where}is not defined in the notebook.", "Define it first.")
        if not notebook_names.is_code(self._namespace[name]):
            return self._is_value(name, users)
        return _error(
            users[0] if users else name,
            f"{where}comes from no cell of this notebook that was run, so its source is not known.",
            "Run the cell that defines it, or write it in a module: import it in the cell.",
        )

    def _is_value(self, name: str, users: tuple[str, ...]) -> AmlTrainError:
        if not users:
            return _error(name, f"{name} is a value, not a function or class.", f"Send the value: --in {name}")
        return _error(users[0], f"{users[-1]} uses the value {name}.", f"Send it as well: --in {name}")


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _error(name: str, reason: str, hint: str) -> AmlTrainError:
    return SubmitError(reason, hint=hint, code="submit.source", field="modules").about(f"--with {name}")
