"""What a cell takes from the notebook: imports, functions and classes by their source, and values."""

from __future__ import annotations

import ast
import io
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from jupyter_amltrain.agent import secret_values, shared_objects
from jupyter_amltrain.agent.values import description, files_of, memory_of
from jupyter_amltrain.errors import CommandError, PreflightError
from jupyter_amltrain.jobs import notebook_names, notebook_source, notebook_syntax, preflight, values
from jupyter_amltrain.jobs.edited_modules import note_on_edited
from jupyter_amltrain.jobs.notebook_cells import Cells, defined
from jupyter_amltrain.jobs.seeds import seed_note
from jupyter_amltrain.schema.taken import Taken
from jupyter_amltrain.text import bytes_text

#: Largest value that is taken without being named on the line, in bytes: to this machine, and to another one.
LIMIT_BYTES, REMOTE_LIMIT_BYTES = 1 << 30, 100 << 20
#: Calls that draw by Matplotlib without naming it.
_DRAWS = re.compile(r"\.(?:plot|hist|boxplot|scatter|bar|barh|box|kde)\(|\.plot\.|\bsns\.")
#: Names that the line lists, and characters of a value that are shown.
_MAX_LISTED, _MAX_VALUE = 10, 40
#: Packages whose objects belong to the page or to the kernel.
_OF_KERNEL = ("ipywidgets", "IPython", "ipykernel", "jupyter_amltrain", "traitlets", "bqplot")


class Notebook(NamedTuple):
    """What a submit can take from the notebook.

    Attributes
    ----------
    namespace
        Its variables.
    history
        Returns the cells that were run, oldest first.
    """

    namespace: Mapping[str, Any]
    history: Callable[[], Sequence[str]] = tuple


class Closure(NamedTuple):
    """What a job takes from the notebook.

    Attributes
    ----------
    values
        Nodes of values (:mod:`jupyter_amltrain.agent.values`) by name.
    modules
        Text of the module with imports, functions and classes.
    statements
        Statements of line 1 that define all of it.
    names
        The names that they define.
    notes
        Sentences for the user.
    taken
        What was taken without being named on the line.
    """

    values: dict[str, Any] = {}
    modules: dict[str, str] = {}
    statements: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    taken: Taken = Taken()


def named(notebook: Notebook, sent: Sequence[str], code: Sequence[str], *, allow_pickle: bool = False) -> Closure:
    """Return the values `sent` and the source of `code` (``--in``, ``--with``), and nothing else."""
    if not (sent or code):
        return Closure()
    modules: dict[str, str] = {}
    names, text = [*sent], ""
    if code:
        module = notebook_source.module_of(code, notebook.history(), namespace=notebook.namespace, sent=sent)
        modules[notebook_source.MODULE] = text = module.text
        names += module.names
    known = notebook_names.defined_names(text)
    nodes = values.pack(sent, notebook.namespace, allow_pickle=allow_pickle, known=known)
    statements = values.statements(nodes, notebook_source.RUN if code else "")
    return Closure(nodes, modules, tuple(statements), tuple(names), tuple(values.notes(nodes)))


def closure_of(
    cell: str,
    notebook: Notebook,
    *,
    sent: Sequence[str] = (),
    code: Sequence[str] = (),
    replay: Sequence[str] = (),
    known: Collection[str] = (),
    is_local: bool = True,
    above: int = 1,
    where: str = "Cell line",
) -> Closure:
    """Return all that a cell needs of the notebook.

    Parameters
    ----------
    sent, code
        Names of ``--in`` and ``--with``: they are taken in any case, with less restriction.
    replay
        Numbers of cells that run before the script, in place of values that they make; ``all`` for every value.
    known
        Names that are defined before the first line of the cell: parameters.
    is_local
        Whether the job runs in this interpreter.
    above, where
        Number of lines above the cell, and text before the number of a line, in messages.

    Raises
    ------
    PreflightError
        The cell needs a value that cannot travel, or must not.
    CommandError
        A cell of `replay` was not run in this notebook.
    """
    source = notebook_syntax.translated(cell, first_line=above + 1, where=where)
    cell = source.text
    try:
        tree = preflight.parse(cell)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the check of the cell has the message
        return named(notebook, sent, code)
    if outputs := _outputs_read(tree, notebook.namespace):
        notebook = Notebook({**notebook.namespace, "Out": outputs}, notebook.history)
    taken = notebook_names.taken_names(tree, cell, notebook.namespace, {*known, *sent}, source.reads)
    imports = any(isinstance(node, ast.Import | ast.ImportFrom) for node in tree.body)
    if not (taken or sent or code or replay or outputs or imports):
        return Closure()
    needs = _Needs(tree, cell, notebook, sent, is_local, above, where)
    needs.replay(replay, [one.name for one in taken])
    for name in code:
        needs.add_code(name)
    for one in taken:
        needs.add(one.name, one.line)
    if outputs:
        needs.add("Out", 1)
    return needs.closure()


def _outputs_read(tree: ast.Module, namespace: Mapping[str, Any]) -> dict[int, Any]:
    """Return the outputs of cells that a script reads as ``Out[3]``."""
    outputs = namespace.get("Out")
    if not isinstance(outputs, dict):
        return {}
    numbers = [
        node.slice.value
        for node in preflight.nodes_of(tree)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Out"
        if isinstance(node.slice, ast.Constant)
    ]
    return {number: outputs[number] for number in numbers if isinstance(number, int) and number in outputs}


class _Needs:
    """Collects what a cell needs until nothing more is missing."""

    def __init__(
        self,
        tree: ast.Module,
        cell: str,
        notebook: Notebook,
        sent: Sequence[str],
        is_local: bool,
        above: int,
        where: str,
    ) -> None:
        self._tree, self._cell, self._namespace = tree, cell, notebook.namespace
        self._cells = Cells(notebook.history())
        self._sent = tuple(sent)
        self._sources = notebook_source.Sources(self._cells, notebook.namespace, sent, takes_values=True)
        self._lines: dict[str, int] = {}
        self._given: list[str] = []  #: names of ``--with``
        self._is_local, self._above, self._where = is_local, above, where
        self._limit = LIMIT_BYTES if is_local else REMOTE_LIMIT_BYTES

    def replay(self, cells: Sequence[str], names: Sequence[str]) -> None:
        """Let cells run before the script: those with these numbers, or all that made the values of `names`."""
        numbers = self._cells.makers_of(names, self._sources.is_value) if "all" in cells else []
        for word in cells:
            if word != "all":
                numbers.append(self._number(word))
        for number in sorted(set(numbers)):
            self._given += self._sources.add_cell(number)

    def _number(self, word: str) -> int:
        number = int(word)
        if not 0 < number < len(self._cells.texts) or not self._cells.texts[number].strip():
            raise CommandError(
                f"--replay {word}: no cell with this number was run.",
                hint="Its number is in brackets beside the cell: [5]",
                code="closure.replay",
                field="replay",
            )
        return number

    def add(self, name: str, line: int) -> None:
        """Take what the cell reads at a line."""
        self._lines[name] = line
        self._sources.add(name, ())

    def add_code(self, name: str) -> None:
        """Take what ``--with`` names."""
        if name in self._cells.named:
            self._given += self._sources.add_named(name)
        else:
            self._sources.require_code(name)
            self._given.append(name)

    def closure(self) -> Closure:
        """Return all of it, with the classes that the values need."""
        if "eval(" in self._sources.text():  # a function of the notebook evaluates texts of the cell
            for name in notebook_names.names_in_texts(self._tree):
                if name in self._namespace and name not in self._sent:
                    self._sources.add(name, ())
        self._sources.add_submodules(self._tree)
        own = values.checked(self._sent, self._namespace)
        taken: dict[str, Any] = {}
        seen: set[str] = set()
        packages: set[str] = set()
        while new := [name for name in (*self._sent, *self._sources.values) if name not in seen]:
            seen.update(new)
            walk = shared_objects.Walk()
            for name in new:
                value = self._namespace[name]
                if not self._may_travel(name, value):
                    continue
                if name not in self._sent:
                    taken[name] = value
                walk.add(name, value)
            packages.update(*walk.packages.values())
            for name, one in walk.own.items():  # by value, each would be another class than that of the cell
                if self._namespace.get(name) is one:
                    self._sources.add_if_source(name)
        imported = [node for node in preflight.nodes_of(self._tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        packages |= {"matplotlib"} if _DRAWS.search(self._cell) else set()
        self._sources.add_settings([name for node in imported for name in defined(node)], packages)
        text = self._sources.text()
        text += "\n" if text else ""
        known = notebook_names.defined_names(text)
        nodes = self._written({**own, **taken}, known)
        for name in taken:
            if (size := values.bytes_of(nodes.get(name, {}))) > self._limit * 1.01:  # a file has a header, too
                raise self._refusal(name, self._too_large(size), f"Send it: --in {name}", "values.size")
        statements = values.statements(nodes, notebook_source.RUN if text else "")
        names = dict.fromkeys([*nodes, *self._sources.imports, *self._sources.code, *self._given])
        notes = values.notes({name: nodes[name] for name in own})
        notes += filter(None, (seed_note(self._tree, self._cell, self._cells.texts), self._edited(imported)))
        modules = {notebook_source.MODULE: text} if text else {}
        shown = self._shown({name: nodes[name] for name in taken if name in nodes})
        return Closure(nodes, modules, tuple(statements), tuple(names), tuple(notes), shown)

    def _edited(self, imported: Sequence[ast.Import | ast.ImportFrom]) -> str:
        """Return a note on modules of this folder that the run has in another version than the kernel."""
        found = [getattr(node, "module", None) or alias.name for node in imported for alias in node.names]
        for name in self._sources.imports:
            value = self._namespace.get(name)
            found.append(str(getattr(value, "__module__", None) or getattr(value, "__name__", "")))
        return note_on_edited(found, os.getcwd())

    def _written(self, sent: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
        try:
            return values.write_all(sent, known=known, exact=True, is_local=self._is_local)
        except values.Interrupted as error:
            raise self._refusal(error.name, f"which {error}", self._repeat(error.name), "closure.value") from None
        except values.CannotSend as error:
            failed = error
        fine: dict[str, Any] = {}
        for name, value in sent.items():
            try:
                values.write_all({name: value}, known=known, exact=True, is_local=self._is_local)
            except values.CannotSend as error:
                if self._is_assigned(name):
                    continue
                hint = self._repeat(name)
                if isinstance(error.__cause__, OSError):
                    hint = "Free some space, or set AMLTRAIN_HOME."
                raise self._refusal(
                    name, f"which cannot travel: it {error}", hint, "closure.value"
                ) from error.__cause__
            fine[name] = value
        if len(fine) == len(sent):  # each alone is fine
            raise self._refusal(failed.name, f"which {failed}", "Name fewer of them in one cell.", "closure.value")
        return self._written(fine, known)

    def _may_travel(self, name: str, value: Any) -> bool:
        """Whether a value is taken; raises for one that the cell needs and that must not be taken."""
        reason, hint, code = "", "", "closure.value"
        if issubclass(type(value), io.IOBase) and not issubclass(type(value), io.StringIO | io.BytesIO):
            reason = "an open file, which cannot travel"
        elif name in self._sent:
            return True
        elif type(value).__module__.partition(".")[0] in _OF_KERNEL and type(value).__name__ != "SList":
            reason = "which belongs to this notebook"
        elif (size := memory_of(value)) > self._limit:
            reason, hint, code = self._too_large(size), f"Send it: --in {name}", "values.size"
        elif secret := secret_values.secret_in(name, value):
            reason, code = f"which {secret}; it would be stored with the run", "spec.secret"
            hint = f"Write --secret {name}, and in the code: os.environ[{name!r}]"
        if not reason:
            return True
        if self._is_assigned(name) and name not in self._sent:
            return False
        raise self._refusal(name, reason, hint or self._repeat(name), code)

    def _is_assigned(self, name: str) -> bool:
        """Whether the cell itself assigns a name, and may not need the notebook's."""
        return name in notebook_names.defined_names(self._cell)

    def _too_large(self, size: int) -> str:
        return f"which has {bytes_text(size)}; more than {bytes_text(self._limit)} is sent only when it is named"

    def _repeat(self, name: str) -> str:
        definition = self._cells.definition_of(name)
        if definition is None or definition.cell < 1:
            return "Make it in the cell."
        return f"Make it in the cell, or run the cell that made it before: --replay {definition.cell}"

    def _refusal(self, name: str, reason: str, hint: str, code: str) -> PreflightError:
        users = self._sources.values.get(name, ())
        line = self._lines.get(users[0] if users else name, 0)
        kind = type(self._namespace.get(name)).__qualname__
        user = f"{self._where} {line + self._above}" if not users else users[-1]
        return PreflightError(
            f"{user} uses {name} ({kind}), {reason}.",
            hint=hint,
            code=code,
            details={"names": [name], "line": line + self._above},
        )

    def _shown(self, nodes: Mapping[str, Any]) -> Taken:
        """Return what was taken, as people read it."""
        items = [f"{name}: {text}" for name, text in self._sources.imports.items() if name in self._lines]
        for name, cell in self._sources.code.items():
            if name not in self._given:
                kind = "class" if isinstance(self._namespace.get(name), type) else "function"
                items.append(f"{name}: {kind}{f' of cell {cell}' if cell > 0 else ''}")
        sizes: dict[str, int] = {}
        for name, node in nodes.items():
            own = {file["file"]: int(file["bytes"]) for file in files_of(node)}
            sizes |= own
            items.append(f"{name}: {_described(node)}{f', {bytes_text(sum(own.values()))}' if own else ''}")
        if not items:
            return Taken()
        names = [item.partition(":")[0] for item in items]
        more = len(names) - _MAX_LISTED
        listed = ", ".join(names[:_MAX_LISTED]) + (f" and {more} more" if more > 0 else "")
        size = f" ({bytes_text(sum(sizes.values()))})" if sizes else ""
        return Taken(line=f"Takes {listed} from the notebook{size}.", items=tuple(items))


def _described(node: Any) -> str:
    """Return a small value itself, and of others the type and size."""
    if node["as"] == "json" and not isinstance(node["value"], list | dict):
        text = repr(node["value"])
        return text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 1]}…"
    return description(node)
