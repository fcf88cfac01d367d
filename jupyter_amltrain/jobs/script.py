"""Convert cell text and parameters to the training script, line for line.

Line 1 of the script replaces the magic's line and contains the parameters, so a line
number in a traceback is the line number in the cell. What the cell takes from the notebook
is read on the empty line behind the cell's first imports, if there is one, else on line 1:
so imports come first, and a waiting Python (``docs/agent.md``) can have done them. A few lines
appended at the end collect the values of ``--out`` and display the value of the last line, as
a notebook does.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import keyword
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from jupyter_amltrain.agent.notebook_runtime import INSTALL
from jupyter_amltrain.agent.supervise import out_values
from jupyter_amltrain.errors import CommandError, PreflightError
from jupyter_amltrain.jobs import (
    bindings,
    kept_names,
    notebook_names,
    notebook_source,
    notebook_syntax,
    preflight,
)
from jupyter_amltrain.jobs.edits import Edit, edit_of, edited
from jupyter_amltrain.jobs.kept_names import Keep
from jupyter_amltrain.jobs.notebook_cells import defined
from jupyter_amltrain.schema import inputs, searched_values
from jupyter_amltrain.schema.job import EVERY
from jupyter_amltrain.schema.search_space import Expression, expression_text
from jupyter_amltrain.text import shorten

#: Largest JSON text of one ``--out`` value, in bytes.
OUT_LIMIT = 1_000_000

_COOKIE = re.compile(r"[ \t\f]*#.*?coding[:=]")

# Runs only at the normal end of the script. `sys.exit()` before the last line skips it,
# and the value counts as not set: to catch that would need an atexit hook on line 1,
# before the user's code, or a wrapper around it.
_EPILOGUE = """
# ---- added by amltrain: the values of --out ----
{function}
_amltrain_out({names}, {limit}, __import__("builtins"), {known})
"""

# After the values are written: a `repr` that raises loses none of them.
_DISPLAY = """
# ---- added by amltrain: displays the value of the last line ----
try:
    __import__("amltrain_pretty").show(_)
except ImportError:  # started by other means
    __import__("sys").displayhook(_)
"""


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """A training script as it will run.

    Attributes
    ----------
    text
        The whole text, ``\\n`` line ends.
    line_offset
        Script line minus cell line.
    sha256
        Digest of the user's text, which does not depend on the parameters.
    notes
        Notes for the user on parameters and outputs, one sentence each.
    packages
        Requirements that the cell installs, which the run's environment gets.
    """

    text: str
    line_offset: int = 0
    sha256: str
    notes: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


def from_cell(
    cell: str,
    *,
    magic_line: str = "%%aml_submit",
    params: Mapping[str, Any] | None = None,
    out: Sequence[str] = (),
    first_line: int = 2,
    before: Sequence[str] = (),
    known: Collection[str] = (),
    helpers: str = "",
    namespace: Mapping[str, Any] | None = None,
    check_names: bool = False,
    is_alone: bool = False,
    keep: Keep = Keep.NOTHING,
) -> Script:
    """Make the script of a cell.

    Parameters
    ----------
    cell
        The cell without the magic's line.
    magic_line
        The magic's line; its first word is named in messages and on line 1.
    params
        JSON values, assigned on line 1; the value of an expression of a search space is read from its environment
        variable. A literal assignment that would override one is replaced by its value, with a comment.
    out
        Names of variables whose value is returned.
    first_line
        Number that messages give to the first line of `cell`: 2 below the line of a magic. Without a
        magic's line it is 1.
    before
        Statements that define `known`: values and functions of the notebook.
    known
        Names that are defined before the first line of the cell.
    helpers
        Text of the functions among them, which may read parameters.
    namespace
        The variables of the notebook, which errors about undefined names tell apart; ``None`` if they are not known.
    check_names
        Whether to check that the cell defines the names that it uses.
    is_alone
        Whether the cell is checked without its notebook, from which it may take other names.
    keep
        Whether and how the run keeps what the cell binds.

    Raises
    ------
    CommandError
        The cell is empty, or a name is not a variable name.
    PreflightError
        The text would certainly fail, override a parameter, or never assign a name of `out`. The line is the
        cell's (the magic's own is 1).
    """
    magic = (magic_line.split() or ["%%aml_submit"])[0]
    cell = cell.replace("\r\n", "\n").replace("\r", "\n")
    if not cell.strip():
        raise CommandError(
            f"{magic}: the cell is empty.",
            hint=f"Write Python below the line, or submit a file: %{magic.lstrip('%')} train.py",
            code="submit.empty_cell",
        )
    # Plain text has no magic above it: its first line is line 1.
    first_line, where = (first_line, "Cell line") if magic_line else (1, "Line")
    digest = hashlib.sha256(cell.encode(errors="surrogatepass")).hexdigest()
    source = notebook_syntax.translated(cell, first_line=first_line, where=where)
    cell = source.text
    tree = preflight.check(cell, first_line=first_line, where=where)
    if check_names:
        names_of_line = {*known, *source.defines, *(params or {})}
        missing = notebook_names.undefined_names(tree, cell, names_of_line, skip_unused=True)
        notebook_names.check_names(missing, namespace, above=first_line - 1, where=where)
    given = [f"{_variable('--param', k)} = {_source_of(k, v)}" for k, v in (params or {}).items()]
    assignments, late = _placed(tree, cell, source.before, before, given, helpers)
    edits = _last_value(tree, cell)
    display = _DISPLAY if edits else ""
    edits += late
    notes: list[str] = [*source.notes]
    if assignments:
        if (doc := ast.get_docstring(tree, clean=False)) is not None:
            assignments.insert(0, f"__doc__ = {doc!r}")
        futures, moved = _futures(tree, first_line, where)
        try:
            changes, more = _Parameters(tree, cell, first_line, where, helpers).checked(params or {}, out)
        except RecursionError:
            changes, more = [], ["--param: the cell is nested too deeply to check its assignments."]
        notes += more
        edits += [*moved, *changes]
        first = "; ".join([*futures, *assignments])
    else:
        first = f"# {magic}"
        # Line 2 may declare an encoding; the script is UTF-8, and a declaration on line 1 takes precedence.
        if _COOKIE.match(cell):
            first += " -*- coding: utf-8 -*-"
    names = [_variable("--out", name) for name in out if name != EVERY]
    shared = notebook_names.defined_names(helpers)
    end = ""
    if names:
        taken = notebook_names.undefined_names(tree, cell) if is_alone else ()
        notes += _unassigned(tree, cell, names, {*known, *(params or {}), *(one.name for one in taken)})
        function = inspect.getsource(out_values._amltrain_out)
        end = _EPILOGUE.format(
            function=function, names=json_names(names), limit=OUT_LIMIT, known=json_names(sorted(shared))
        )
    end += kept_names.epilogue(tree, keep, names, known, shared)
    body = edited(cell, edits)
    body = body if body.endswith("\n") else body + "\n"
    return Script(
        text=f"{first}\n{body}{source.after}{end}{display}",
        line_offset=0,
        sha256=digest,
        notes=tuple(notes),
        packages=source.packages,
    )


def _placed(
    tree: ast.Module, cell: str, runtime: Sequence[str], before: Sequence[str], params: Sequence[str], helpers: str
) -> tuple[list[str], list[Edit]]:
    """Return the statements for line 1, and those for the empty line behind the first imports as an edit.

    Parameters
    ----------
    runtime
        Statements that prepare what a notebook has: ``display``, an event loop.
    before, params, helpers
        Statements that read what the cell takes from the notebook; its parameters; the text of its functions.
    """
    imports = notebook_source.first_imports(helpers)
    first = [*(one for one in runtime if one == INSTALL), *imports]
    late = [*(one for one in runtime if one != INSTALL), *before]
    line = _free_line(tree, cell, "\n".join([*before, *params, helpers]), imports) if late else 0
    if not line:
        return [*first, *late, *params], []
    return first, [Edit(line, 0, line, len(cell.split("\n")[line - 1].encode()), "; ".join([*late, *params]))]


def _free_line(tree: ast.Module, cell: str, given: str, imports: Sequence[str]) -> int:
    """Return the number of the empty line behind the first imports of a cell; 0 if there is none.

    Those imports must not bind a name that `given` defines, except to the same, because they would come before it.
    """
    last, names = 0, set[str]()
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom) and node.names[0].name != "*":
            last = node.end_lineno or 0
            if ast.unparse(node) in imports:
                continue
        elif not _is_constant(node):
            break
        names.update(defined(node))
    lines = cell.split("\n")
    is_free = 0 < last < len(lines) and not lines[last].strip()
    # `import a; x = """` may go on there.
    is_free = is_free and not any(node.lineno <= last + 1 <= (node.end_lineno or 0) for node in tree.body)
    return last + 1 if is_free and not names & notebook_names.defined_names(given) else 0


def _is_constant(node: ast.stmt) -> bool:
    """Whether a statement assigns a constant, or is one: it reads nothing."""
    if isinstance(node, ast.Assign) and all(isinstance(one, ast.Name) for one in node.targets):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def literal(value: Any) -> str:
    """A JSON value as Python source, on one line; references to data become expressions.

    Raises
    ------
    CommandError
        The value is not a JSON value.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    if isinstance(value, str):
        return inputs.expression_of(value)
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(literal, value)) + "]"
    raise CommandError(
        f"--param: {type(value).__name__} is not a JSON value.",
        hint="Pass a number, text, true/false/null, a list or a mapping.",
    )


def _source_of(name: str, value: Any) -> str:
    """Return the Python source of a parameter's value."""
    return searched_values.code_of(name, value) if isinstance(value, Expression) else literal(value)


def json_names(names: Sequence[str]) -> str:
    """Names as a Python list."""
    return "[" + ", ".join(map(repr, names)) + "]"


def _variable(flag: str, name: str) -> str:
    field = "params" if flag == "--param" else "out"
    if name.startswith("__"):
        raise CommandError(
            f"{flag} {name}: names starting with '__' are reserved.", hint="Choose another name.", field=field
        )
    if not name.isidentifier() or keyword.iskeyword(name):
        raise CommandError(
            f"{flag} {name!r} is not a variable name.",
            hint=f"Try: {flag} {_slug(name)}=..." if flag == "--param" else f"Try: {flag} {_slug(name)}",
            field=field,
        )
    return name


def _slug(name: str) -> str:
    slug = re.sub(r"\W+", "_", name).strip("_") or "value"
    return f"{slug}_" if keyword.iskeyword(slug) else f"v{slug}" if slug[0].isdigit() else slug


def _unassigned(tree: ast.Module, cell: str, out: Sequence[str], known: Collection[str]) -> list[str]:
    """Notes on names of ``--out`` that may never be assigned.

    Raises
    ------
    PreflightError
        One certainly is not.
    """
    try:
        names = bindings.names_of(tree, cell)
    except RecursionError:
        return []
    notes = []
    for name in out:
        if name in names.assigned or name in known:
            continue
        if not names.opaque:
            near = names.near(name, names.assigned | set(known))
            raise PreflightError(
                f"--out {name}: nothing in the cell assigns {name}.",
                hint=near or f"Assign it at the top level of the cell, or leave out --out {name}.",
                code="preflight.out_not_assigned",
                field="out",
            )
        notes.append(f"--out {name}: no line of the cell assigns {name} explicitly.")
    return notes


def _last_value(tree: ast.Module, cell: str) -> list[Edit]:
    """Edit that assigns the value of a last expression to ``_``; none after ``;`` or ``print()``."""
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr) or isinstance(last.value, ast.Await):
        return []
    value = last.value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "print":
        return []
    assert last.end_lineno is not None and last.end_col_offset is not None
    if cell.split("\n")[last.end_lineno - 1].encode()[last.end_col_offset :].lstrip()[:1] == b";":
        return []
    return [Edit(last.lineno, last.col_offset, last.lineno, last.col_offset, "_ = ")]


def _futures(tree: ast.Module, first_line: int, where: str) -> tuple[list[str], list[Edit]]:
    """``from __future__`` imports for line 1, and edits that replace them with ``pass``."""
    names: list[str] = []
    edits: list[Edit] = []
    for node in tree.body:
        if not isinstance(node, ast.ImportFrom) or node.module != "__future__":
            continue
        if any(alias.asname for alias in node.names):
            raise PreflightError(
                f"{where} {node.lineno + first_line - 1}: 'from __future__ import ... as' cannot move to line 1.",
                hint="Remove the 'as'.",
                code="preflight.future_as",
                details={"line": node.lineno + first_line - 1},
            )
        names += [alias.name for alias in node.names if alias.name not in names]
        lines = (node.end_lineno or node.lineno) - node.lineno
        edits.append(edit_of(node, "pass" if not lines else "pass" + "\n" * (lines - 1) + "\npass"))
    return [f"from __future__ import {', '.join(names)}"] if names else [], edits


class _Parameters:
    """Checks that a cell uses the values of ``--param``.

    Parameters
    ----------
    first_line, where
        As :func:`preflight.check` takes them.
    helpers
        Text of functions that travel with the cell, which read its variables, too.
    """

    def __init__(self, tree: ast.Module, cell: str, first_line: int, where: str, helpers: str) -> None:
        self._tree, self._cell, self._where, self._helpers = tree, cell, where, helpers
        self._above = first_line - 1

    def checked(self, params: Mapping[str, Any], out: Sequence[str]) -> tuple[list[Edit], list[str]]:
        """Return edits that replace literals which would override parameters, and notes.

        Names in `out` count as read.
        """
        names = bindings.names_of(self._tree, self._cell)
        unread = bindings.unread(names, params, {*out, *read_elsewhere(self._helpers)})
        edits: dict[ast.AST, Edit] = {}
        notes: list[str] = []
        for name, value in params.items():
            found = bindings.overrides_of(self._tree, name)
            if found.other is not None:
                raise PreflightError(
                    f"--param {name}: {self._place(found.other)} assigns {name} before anything reads it,"
                    " so the value would not be used.",
                    hint=f"Delete that line, or leave out --param {name}.",
                    code="preflight.param_overridden",
                    field="params",
                    details={"line": getattr(found.other, "lineno", 1) + self._above},
                )
            for node in found.literals:
                edits[node] = self._replacement(node, name, value)
            if found.literals:
                lines = self._lines(found.literals)
                last = found.literals[-1]
                was = shorten(ast.get_source_segment(self._cell, last.value or last) or "", 40)
                notes.append(f"--param {name}: {lines} runs as {name} = {_shown(value)} instead of {was}.")
            if found.possible:
                notes.append(
                    f"--param {name}: {self._lines(found.possible)} may assign {name} before anything reads it;"
                    " then the value is not used."
                )
            if name in unread:
                near = names.near(name, (names.read | names.assigned) - set(params))
                notes.append(f"--param {name}: nothing in the cell reads {name}.{' ' + near if near else ''}")
        return list(edits.values()), notes

    def _place(self, node: ast.AST) -> str:
        lineno = getattr(node, "lineno", 1)
        line = self._cell.split("\n")[lineno - 1].strip()
        return f"{self._where} {lineno + self._above}, {shorten(line, 60)!r},"

    def _lines(self, nodes: Sequence[ast.AST]) -> str:
        numbers = sorted({getattr(node, "lineno", 1) + self._above for node in nodes})
        word = "line" if len(numbers) == 1 else "lines"
        return f"{word} {', '.join(map(str, numbers[:-1]))}{' and ' if numbers[:-1] else ''}{numbers[-1]}"

    def _replacement(self, node: ast.Assign | ast.AnnAssign, name: str, value: Any) -> Edit:
        """``lr = 0.3  # --param, was 0.1``, on as many lines as the statement had."""
        assert node.value is not None and node.end_lineno is not None and node.end_col_offset is not None
        target = name
        if isinstance(node, ast.AnnAssign):
            target = f"{name}: {ast.unparse(node.annotation)}"
        was = shorten(ast.get_source_segment(self._cell, node.value) or "", 40)
        comment = f"  # --param, was {was}"
        if more := node.end_lineno - node.lineno:
            return edit_of(node, f"{target} = ({_source_of(name, value)}{comment}" + "\n" * more + ")")
        rest = self._cell.split("\n")[node.end_lineno - 1].encode()[node.end_col_offset :].strip()
        # Code after a semicolon would become part of the comment.
        return edit_of(node, f"{target} = {_source_of(name, value)}{'' if rest and rest[:1] != b'#' else comment}")


def read_elsewhere(helpers: str) -> frozenset[str]:
    """Return the names that the functions of ``--with`` read."""
    return bindings.names_of(preflight.parse(helpers), helpers).read if helpers else frozenset()


def unread_params(cell: str, params: Iterable[str], *, helpers: str = "", out: Sequence[str] = ()) -> list[str]:
    """Return the parameters that neither a cell nor its functions read, as far as the text tells."""
    names = bindings.names_of(preflight.parse(cell), cell)
    return bindings.unread(names, params, {*out, *read_elsewhere(helpers)})


def _shown(value: Any) -> str:
    """Return a value as the user wrote it."""
    if isinstance(value, Expression):
        return shorten(expression_text(value), 40)
    return shorten(repr(value) if any(inputs.references(value)) else literal(value), 40)
