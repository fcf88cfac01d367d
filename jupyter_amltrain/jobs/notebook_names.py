"""Names that a cell uses and does not define: each would end the run with a ``NameError``."""

from __future__ import annotations

import ast
import builtins
import re
import symtable
import sys
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jupyter_amltrain.errors import PreflightError
from jupyter_amltrain.jobs import bindings, preflight

#: Names that every module has.
_MODULE_NAMES = frozenset(
    ["__annotations__", "__builtins__", "__cached__", "__conditional_annotations__", "__debug__", "__doc__", "__file__"]
    + ["__loader__", "__name__", "__package__", "__spec__", "WindowsError"]
)
#: Builtins of a script that IPython hides in a notebook, where they mean the kernel.
_SCRIPT_ONLY = frozenset({"exit", "quit"})
#: Functions that IPython adds to a notebook, and what a script writes instead.
_NOTEBOOK_ONLY = {
    "display": "print(...)",
    "get_ipython": "the Python of what it runs",
    "In": "the text itself",
    "Out": "the value itself",
}
#: An assignment such as ``total += 1``; it may be part of a text or a comment as well.
_CHANGE = re.compile(r"(\w+)\s*(?:[-+*/%@&|^]|\*\*|//|<<|>>)=")
_WORD = re.compile(r"[^\W\d]\w*")
_MISSING = object()
#: Longest text that is an expression.
_MAX_EXPRESSION = 400
#: Names that are listed in one message.
_MAX_LISTED = 6


class Undefined(NamedTuple):
    """A name that nothing defines, and the first line that reads it (1 is the first line of the text)."""

    name: str
    line: int


def undefined_names(
    tree: ast.Module, text: str, known: Collection[str] = (), *, skip_unused: bool = False
) -> list[Undefined]:
    """Return the names that a script reads and nothing defines, in the order of their lines.

    A name that is read only below ``try:`` with a handler for ``NameError`` is left out, and so is every name of a
    script whose names its text does not show (``exec``, ``import *``).

    Parameters
    ----------
    tree, text
        A script that compiles.
    known
        Names that are defined before the first line.
    skip_unused
        Whether to leave out what is read only in functions that the script does not use.
    """
    if bindings.may_be_opaque(text) and any(map(bindings.is_opaque, preflight.nodes_of(tree))):
        return []
    defined, read = _module_names(text)
    changed = {match[1] for match in _CHANGE.finditer(text)} & defined
    if changed:  # for a symbol table `total += 1` is an assignment: alone, it reads a name that does not exist
        only_changed = {name for name in changed - _stored(tree) if not _is_bound_otherwise(tree, name)}
        defined, read = defined - only_changed, read | only_changed
    everywhere = set(dir(builtins)) - _NOTEBOOK_ONLY.keys() | _SCRIPT_ONLY  # IPython adds its own to the builtins
    missing = read - defined - set(known) - _MODULE_NAMES - everywhere
    if not missing:
        return []
    lines: dict[str, int] = {}
    unused = _unused_bodies(tree) if skip_unused else []
    for name, line in _reads(tree):
        if name in missing and not any(line in body for body in unused):
            lines[name] = min(line, lines.get(name, line))
    return sorted((Undefined(name, line) for name, line in lines.items()), key=lambda found: (found.line, found.name))


def _unused_bodies(tree: ast.Module) -> list[range]:
    """Return the lines of functions, also of methods, that a script defines and does not use: a notebook runs it."""
    used = {
        node.id for node in preflight.nodes_of(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    used |= {name for text in bindings.code_texts(tree) for name in _WORD.findall(text)}
    found: list[range] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name not in used:
            inner = node.body if isinstance(node, ast.ClassDef) else [node]
            for one in inner:
                if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and not node.decorator_list:
                    head = [one, *one.args.defaults, *filter(None, (*one.args.kw_defaults, one.returns))]
                    if one.body[0].lineno > max(part.lineno for part in head):
                        found.append(range(one.body[0].lineno, (one.end_lineno or one.lineno) + 1))
    return found


def taken_names(
    tree: ast.Module, text: str, namespace: Mapping[str, Any], known: Collection[str] = (), also: Collection[str] = ()
) -> list[Undefined]:
    """Return the variables of the notebook that a script reads before it assigns them, in the order of their lines.

    Parameters
    ----------
    known
        Names that are defined before the first line.
    also
        Further names that the script reads.
    """
    defined, read = _module_names(text)
    read |= {*also}
    if "del" in text:
        read |= {
            one.id for one in preflight.nodes_of(tree) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Del)
        }
    read |= {match[1] for match in _CHANGE.finditer(text)} & defined
    # `df.query("x > @lr")` and `eval("x + 1")` read variables, too.
    read |= {word for one in bindings.code_texts(tree) for word in _WORD.findall(one)}
    taken = {name for name in read if name in namespace and name not in known and name not in _MODULE_NAMES}
    taken = {name for name in taken if not _is_of_ipython(name, namespace[name])}
    taken = {name for name in taken if name not in defined or bindings.is_read_first(tree, name)}
    lines: dict[str, int] = {}
    for node in preflight.nodes_of(tree):
        if isinstance(node, ast.Name) and node.id in taken:
            lines[node.id] = min(node.lineno, lines.get(node.id, node.lineno))
    return sorted((Undefined(name, lines.get(name, 1)) for name in taken), key=lambda one: (one.line, one.name))


def names_in_texts(tree: ast.Module) -> set[str]:
    """Return the names in the texts of a script that are expressions: ``show("df.head()")``."""
    found: set[str] = set()
    for node in preflight.nodes_of(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) <= _MAX_EXPRESSION:
            try:
                inner = preflight.parse(node.value.strip())
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue
            found |= {one.id for one in ast.walk(inner) if isinstance(one, ast.Name)}
    return found


def _is_of_ipython(name: str, value: Any) -> bool:
    """Whether a variable is one that IPython adds to every notebook, or a builtin."""
    if name in ("In", "Out", *_SCRIPT_ONLY) or value is getattr(builtins, name, _MISSING):
        return True
    return hasattr(builtins, name) and str(getattr(value, "__globals__", {}).get("__name__", "")).startswith("IPython.")


def defined_names(text: str) -> set[str]:
    """Return the names that a script defines at its top level, or declares global; `text` compiles."""
    return _module_names(text)[0]


def _module_names(text: str) -> tuple[set[str], set[str]]:
    """Return the names that a module defines, and those that it looks up there."""
    defined: set[str] = set()
    read: set[str] = set()

    has_declarations = "global" in text

    def collect(table: symtable.SymbolTable, *, top: bool) -> None:
        if isinstance(table, symtable.Function) and not has_declarations:  # makes no object for each name
            read.update(table.get_globals())
            for child in table.get_children():
                collect(child, top=False)
            return
        for symbol in table.get_symbols():
            name = symbol.get_name()
            if (symbol.is_assigned() or symbol.is_imported()) and (top or symbol.is_declared_global()):
                defined.add(name)
            if symbol.is_referenced() and (top or symbol.is_global()):
                read.add(name)
        for child in table.get_children():
            collect(child, top=False)

    collect(preflight.table(text), top=True)
    return defined, read


def _stored(tree: ast.Module) -> set[str]:
    """Return the names that statements such as ``name = ...`` bind, but not ``name += ...``."""
    stored: set[str] = set()
    passed: set[int] = set()  # targets of ``+=`` and of comprehensions, whose nodes come after these
    for node in ast.walk(tree):
        if isinstance(node, ast.AugAssign):
            passed.add(id(node.target))
        elif isinstance(node, ast.comprehension):
            passed.update(map(id, ast.walk(node.target)))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in passed:
            stored.add(node.id)
    return stored


def _is_bound_otherwise(tree: ast.Module, name: str) -> bool:
    """Whether something else than ``name = ...`` binds a name: a parameter, an import, a function, a pattern."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.arg == name:
            return True
        if isinstance(node, ast.alias) and (node.asname or node.name.partition(".")[0]) == name:
            return True
        if isinstance(node, ast.AugAssign):
            continue
        if name in (getattr(node, "name", None), getattr(node, "rest", None)):  # functions, handlers, captures
            return True
    return False


def _reads(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield each name that is read, with its line, unless a handler expects that the name does not exist."""
    annotations_are_texts = any(
        isinstance(node, ast.ImportFrom)
        and node.module == "__future__"
        and any(alias.name == "annotations" for alias in node.names)
        for node in tree.body
    )

    def walk(node: ast.AST, *, guarded: bool) -> Iterator[tuple[str, int]]:
        if isinstance(node, ast.Name):
            if not guarded:
                yield node.id, node.lineno
            return
        for field, value in ast.iter_fields(node):
            if annotations_are_texts and field in ("annotation", "returns"):
                continue
            inside = guarded or (field == "body" and isinstance(node, ast.Try) and _expects_name_error(node))
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from walk(child, guarded=inside)

    yield from walk(tree, guarded=False)


def _expects_name_error(node: ast.Try) -> bool:
    for handler in node.handlers:
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        for kind in kinds:
            if kind is None or (isinstance(kind, ast.Name) and kind.id in ("NameError", "Exception", "BaseException")):
                return True
    return False


def check_names(found: Sequence[Undefined], namespace: Mapping[str, Any] | None, *, above: int, where: str) -> None:
    """Raise an error for names that nothing defines, with the flags that send them.

    Parameters
    ----------
    namespace
        The variables of the notebook; ``None`` if they are not known.
    above
        Lines above the first line of the cell, in messages.
    where
        ``Cell line``, for messages.

    Raises
    ------
    PreflightError
        The message names the lines, and for variables of the notebook ``--in`` and ``--with``.
    """
    if not found:
        return
    namespace = namespace or {}
    here = [one for one in found if one.name in namespace or one.name in _NOTEBOOK_ONLY]
    listed = (here or list(found))[:_MAX_LISTED]
    names = ", ".join(one.name for one in listed)
    line = listed[0].line + above
    if not here:
        near = _near(listed[0].name, namespace)
        raise PreflightError(
            f"{where} {line} uses {listed[0].name}, which nothing defines.",
            hint=near or "Define it in the cell, or import it there.",
            code="preflight.undefined_name",
            details={"names": [one.name for one in found], "line": line},
        )
    are = "are" if len(listed) > 1 else "is"
    raise PreflightError(
        f"{where} {line} uses {names}, which {are} defined in the notebook only.",
        hint=_advice([one.name for one in listed], namespace),
        code="preflight.notebook_name",
        details={"names": [one.name for one in here], "line": line},
    )


def _advice(names: Sequence[str], namespace: Mapping[str, Any]) -> str:
    """Return what to type so that a job gets these names."""
    flags, imports, texts = [], [], []
    for name in names:
        value = namespace.get(name)
        if name in _NOTEBOOK_ONLY:
            texts.append(f"Write {_NOTEBOOK_ONLY[name]} instead of {name}")
        elif isinstance(value, types.ModuleType):
            imports.append(f"import {value.__name__}{'' if value.__name__ == name else f' as {name}'}")
        elif (origin := imported_from(name, value)) is not None:
            imports.append(origin)
        else:
            flags.append(f"--{'with' if is_code(value) else 'in'} {name}")
    if imports:
        texts.append(f"Add to the cell: {'; '.join(imports)}")
    if flags:
        texts.append(f"Add to its first line: {' '.join(flags)}")
    return ". ".join(texts)


def is_code(value: Any) -> bool:
    """Whether a value is a function or class of the notebook, whose source can be sent."""
    return isinstance(value, type | types.FunctionType) and value.__module__ == "__main__"


def imported_from(name: str, value: Any) -> str | None:
    """Return the import of a function, class or ufunc from the shortest public module that has it; else ``None``."""
    module, own = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not isinstance(own, str) or not own.isidentifier() or module == "__main__":
        return None
    if not callable(value) or getattr(value, "__qualname__", own) != own or isinstance(value, types.MethodType):
        return None
    parts = str(module or type(value).__module__).split(".")
    for length in range(1, len(parts) + 1):
        path = ".".join(parts[:length])
        is_public = not any(part.startswith("_") for part in parts[:length])
        if is_public and getattr(sys.modules.get(path), own, None) is value:
            return f"from {path} import {own}{'' if own == name else f' as {name}'}"
    return None


def _near(name: str, namespace: Mapping[str, Any]) -> str:
    import difflib

    known = [other for other in namespace if not other.startswith("_")]
    matches = difflib.get_close_matches(name, known, 2, 0.7)
    return f"Did you mean {' or '.join(matches)}?" if matches else ""
