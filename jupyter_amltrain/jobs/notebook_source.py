"""Source of functions, classes and named cells of a notebook, with what they use: ``--with NAME``."""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import sys
import types
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from jupyter_amltrain.errors import AmlTrainError, SubmitError
from jupyter_amltrain.jobs import notebook_names, notebook_syntax, preflight
from jupyter_amltrain.jobs.notebook_cells import Cells, Definition, defined, statement_at

#: Module that has the source, beside the script.
MODULE = "_amltrain_with"
#: Statement of the first line that runs it. Its classes are in ``__main__``, as in the notebook: what they save can be
#: loaded there, and by any program that defines them. The lines of tracebacks stay those of the module's file.
RUN = f"exec(__import__('importlib.util').util.find_spec({MODULE!r}).loader.get_code({MODULE!r}))"
_MISSING = object()


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
    cells = Cells(history)
    found = Sources(cells, namespace, sent)
    given: dict[str, None] = {}
    for name in names:
        if name in cells.named:
            given.update(dict.fromkeys(found.add_named(name)))
            continue
        found.require_code(name)
        given[name] = None
    return Module(found.text() + "\n", tuple(given))


class Sources:
    """Collects the source of functions and classes until every name that they use is defined.

    Parameters
    ----------
    sent
        Names of values that travel with the job.
    takes_values
        Whether values that functions use travel, too, in :attr:`values`; else each is an error.
    """

    def __init__(
        self, cells: Cells, namespace: Mapping[str, Any], sent: Collection[str] = (), *, takes_values: bool = False
    ) -> None:
        self._cells, self._namespace, self._sent = cells, namespace, {*sent}
        self._takes_values = takes_values
        self._statements: dict[str, tuple[tuple[int, int], str]] = {}  #: key -> place in the notebook, and text
        self.values: dict[str, tuple[str, ...]] = {}  #: value -> the names that led to it
        self.imports: dict[str, str] = {}
        self.code: dict[str, int] = {}  #: function or class -> its cell

    def add(self, name: str, users: tuple[str, ...]) -> None:
        """Take the definition of a name, and of what it uses; `users` are the names that led here."""
        if name in self.imports or name in self.code or name in self.values or name in self._sent:
            return
        value = self._namespace.get(name, _MISSING)
        if value is not _MISSING and (text := self._import_of(name, value)):
            self.imports[name] = text
            self._statements[f"import {name}"] = (-1, 0), text
            return
        definition = self._definition_of(name, value)
        if definition is None:
            self._add_value(name, users)
            return
        self.code[name] = definition.cell
        self._add_statement(name, definition, users)
        if isinstance(value, type):
            self._add_changes(name, value, definition, users)

    def require_code(self, name: str) -> None:
        """Take a function or class, and what it uses; raises for a value."""
        if name in self._namespace and not callable(self._namespace[name]):
            raise _is_value(name, ())
        self.add(name, ())
        if name in self.values:
            raise _no_source(name, ())

    def add_if_source(self, name: str) -> None:
        """Take a class or function that a value refers to, if its source is known."""
        if self._definition_of(name, self._namespace.get(name, _MISSING)) is not None:
            self.add(name, ())

    def _definition_of(self, name: str, value: Any) -> Definition | None:
        """Return the statement that makes a name again; ``None`` for what travels as a value."""
        if isinstance(value, types.FunctionType) and value.__module__ == "__main__":
            own = self._cells.source_of(value, name) if value.__name__ in (name, "<lambda>") else None
            if own is not None:
                return own if not self._takes_values or _is_function(own.node) else None
        definition = self._cells.definition_of(name)
        if definition is None or definition.is_import:
            return None
        if isinstance(definition.node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            is_made_by_it = value is _MISSING or not self._takes_values or _is_made_by(value, definition.node)
            return definition if is_made_by_it else None
        if self._takes_values and not notebook_names.is_code(value):
            return None
        return definition if self._is_setting(definition.node) else None

    def _add_statement(self, key: str, definition: Definition, users: tuple[str, ...]) -> None:
        source = notebook_syntax.translated(definition.text, where=f"{key}: line")
        self._statements[key] = (definition.cell, definition.line), source.text
        try:
            tree = preflight.parse(source.text)
        except SyntaxError:
            return
        if self._takes_values:
            used = notebook_names.taken_names(tree, source.text, self._namespace, also=source.reads)
        else:
            used = notebook_names.undefined_names(tree, source.text, {*defined(definition.node), *source.defines})
        for other in used:
            if not hasattr(builtins, other.name) or self._takes_values:
                self.add(other.name, (*users, key))
        if self._takes_values:
            self.add_submodules(tree)

    def add_submodules(self, tree: ast.Module) -> None:
        """Import the modules that a script reaches as attributes, and that something else has imported here."""
        imported = _imported_modules(tree)
        for node in preflight.nodes_of(tree):
            if not isinstance(node, ast.Attribute):
                continue
            parts: list[str] = []
            inner: ast.expr = node
            while isinstance(inner, ast.Attribute):
                parts.insert(0, inner.attr)
                inner = inner.value
            if not isinstance(inner, ast.Name):
                continue
            module = imported.get(inner.id) or self._namespace.get(inner.id)
            for part in parts:
                if not isinstance(module, types.ModuleType):
                    break
                path = f"{module.__name__}.{part}"
                module = getattr(module, part, None)
                if isinstance(module, types.ModuleType) and sys.modules.get(path) is module:
                    self._statements[f"import {path}"] = (-1, 1), f"__import__({path!r})"

    def add_settings(self, names: Collection[str], packages: Collection[str] = ()) -> None:
        """Take the calls that set options of imported libraries, such as ``np.set_printoptions(precision=3)``.

        Parameters
        ----------
        names
            What the script itself imports.
        packages
            Top-level packages of the values that it takes.
        """
        for setting in self._cells.settings():
            root = next((node.id for node in ast.walk(setting.node) if isinstance(node, ast.Name)), "")
            package = str(getattr(self._namespace.get(root), "__name__", "")).partition(".")[0]
            if root in names or root in self.imports or package in packages:
                self.add(root, ())
                self._statements[f"setting {setting.cell} {setting.line}"] = (setting.cell, setting.line), setting.text

    def _add_changes(self, name: str, kind: type, definition: Definition, users: tuple[str, ...]) -> None:
        """Take what other statements have put into a class since: ``Net.forward = ...``, ``@add_to(Net)``."""
        last = definition.line + definition.text.count("\n")
        for attribute, value in list(vars(kind).items()):
            function = inspect.unwrap(getattr(value, "__func__", None) or getattr(value, "fget", None) or value)
            if not isinstance(function, types.FunctionType) or function.__module__ != "__main__":
                continue
            code = function.__code__
            cell = "".join(linecache.getlines(code.co_filename))
            number = self._cells.number_of(cell) if cell else -1
            if not cell or (number == definition.cell and definition.line <= code.co_firstlineno <= last):
                continue
            change = statement_at(cell, code.co_firstlineno)
            if change is None:
                continue
            change = change._replace(cell=number)
            self._add_statement(f"{name}.{attribute}", change, (*users, name))
            if isinstance(change.node, ast.FunctionDef) and not change.node.decorator_list:
                put = self._cells.assignment_of(name, attribute)  # a decorator puts it there itself
                text = put.text if put else f"{name}.{attribute} = {function.__name__}"
                place = (put.cell, put.line) if put else (change.cell, change.line + 1)
                self._statements[f"{name}.{attribute} = "] = place, text

    def add_named(self, name: str) -> list[str]:
        """Take the cell below ``%%aml_cell NAME``; return the names that it defines."""
        return self.add_cell(self._cells.named[name], name)

    def add_cell(self, number: int, name: str = "") -> list[str]:
        """Take a whole cell at its place in the notebook, with what it uses; return the names that it defines."""
        where = f"--with {name}: cell line" if name else f"--replay {number}: cell line"
        source = notebook_syntax.translated(self._cells.texts[number].rstrip("\n"), first_line=2, where=where)
        text = source.text
        tree = preflight.check(text, first_line=2, where=where)
        given = sorted(notebook_names.defined_names(text))
        key = name or f"cell {number}"
        if self._takes_values:
            used = notebook_names.taken_names(tree, text, self._namespace, also=source.reads)
            self._sent |= {*given}
            used = [one for one in used if one.name not in given]
        else:
            used = notebook_names.undefined_names(tree, text, source.defines)
        for other in used:
            self.add(other.name, (key,))
        self._statements[f"cell {number}"] = (number, 0), text
        return given

    def is_value(self, name: str) -> bool:
        """Whether a name travels as a value, by itself."""
        value = self._namespace.get(name, _MISSING)
        return not self._import_of(name, value) and self._definition_of(name, value) is None

    def _import_of(self, name: str, value: Any) -> str | None:
        """Return the statement that imports a name: the notebook's own, else of the shortest public module."""
        own = self._cells.import_of(name, value)
        if own is not None or (not self._takes_values and self._cells.definition_of(name) is not None):
            return own
        if isinstance(value, types.ModuleType) and value.__name__ != "__main__":
            return f"import {value.__name__}{'' if value.__name__ == name else f' as {name}'}"
        return notebook_names.imported_from(name, value)

    def _is_setting(self, node: ast.stmt) -> bool:
        """Whether a statement is an assignment that can run again.

        That is a literal, a lambda, a name of an imported module (``torch.float32``), or a call of one with literals.
        """
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            return False
        value = node.value
        if isinstance(value, ast.Lambda):
            return True
        if isinstance(value, ast.Call):
            parts = [*value.args, *(keyword.value for keyword in value.keywords)]
            return self._is_imported(value.func) and all(map(preflight.is_literal, parts))
        return self._is_imported(value) if isinstance(value, ast.Attribute) else preflight.is_literal(value)

    def _is_imported(self, node: ast.expr) -> bool:
        while isinstance(node, ast.Attribute):
            node = node.value
        definition = self._cells.definition_of(node.id) if isinstance(node, ast.Name) else None
        return definition is not None and definition.is_import

    def text(self) -> str:
        """Return the statements in the order of the notebook, each once."""
        ordered = sorted(dict.fromkeys(self._statements.values()), key=lambda item: item[0])
        return "\n\n".join(text for _, text in ordered)

    def _add_value(self, name: str, users: tuple[str, ...]) -> None:
        if self._takes_values and name in self._namespace:
            self.values[name] = users
            return
        where = f"{users[-1]} uses {name}, which " if users else f"{name} "
        if name not in self._namespace and self._cells.definition_of(name) is None:
            raise _error(users[0] if users else name, f"{where}is not defined in the notebook.", "Define it first.")
        if not notebook_names.is_code(self._namespace.get(name)):
            raise _is_value(name, users)
        raise _no_source(name, users)


def first_imports(text: str) -> list[str]:
    """Return the imports of a module before its first statement that does more than define names."""
    found = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(ast.unparse(node))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            if node.value is None or not preflight.is_literal(node.value):
                break
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            break
    return found


def _no_source(name: str, users: tuple[str, ...]) -> AmlTrainError:
    where = f"{users[-1]} uses {name}, which " if users else f"{name} "
    return _error(
        users[0] if users else name,
        f"{where}comes from no cell of this notebook that was run, so its source is not known.",
        "Run the cell that defines it, or write it in a module: import it in the cell.",
    )


def _imported_modules(tree: ast.Module) -> dict[str, types.ModuleType]:
    """Return the modules that a script imports itself, as far as they are loaded here."""
    found = {}
    for node in preflight.nodes_of(tree):
        if isinstance(node, ast.Import):
            names = {alias.asname or alias.name.partition(".")[0]: alias for alias in node.names}
            found.update({name: alias.name if alias.asname else name for name, alias in names.items()})
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return {name: sys.modules[path] for name, path in found.items() if path in sys.modules}


def _is_function(node: ast.stmt) -> bool:
    """Whether a statement defines a function, and does not get it from a call."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return isinstance(node.value, ast.Lambda)
    return True


def _is_made_by(value: Any, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Whether a definition has made a value: itself, or through its decorators."""
    if notebook_names.is_code(value) and value.__qualname__ == node.name:
        return True
    return bool(node.decorator_list) and callable(value) and not isinstance(node, ast.ClassDef)


def _is_value(name: str, users: tuple[str, ...]) -> AmlTrainError:
    if not users:
        return _error(name, f"{name} is a value, not a function or class.", f"Send the value: --in {name}")
    return _error(users[0], f"{users[-1]} uses the value {name}.", f"Send it as well: --in {name}")


def _error(name: str, reason: str, hint: str) -> AmlTrainError:
    return SubmitError(reason, hint=hint, code="submit.source", field="modules").about(f"--with {name}")
