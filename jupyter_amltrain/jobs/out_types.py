"""Types that values of ``--out`` will have, as far as the text of a job tells: which of them return as pickles."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping

from jupyter_amltrain.agent import values
from jupyter_amltrain.jobs import preflight
from jupyter_amltrain.schema.job import JobSpec


def consent_notes(spec: JobSpec, target: str) -> tuple[str, ...]:
    """Return a note for each value that another machine will return as a pickle, which is not read by itself.

    Parameters
    ----------
    target
        Name of the machine.
    """
    if spec.allow_pickle:
        return ()
    return tuple(
        f"--out {name}: from {target!r} a {kind} returns as a pickle, which can run any code when it is read. With"
        f" --allow-pickle it becomes the variable {name}; without, {name} is a handle: {name}.load(allow_pickle=True)."
        for name, kind in pickled(spec).items()
    )


def pickled(spec: JobSpec) -> dict[str, str]:
    """Return the values of ``--out`` that have no form but a pickle, with the names of their types."""
    if not (spec.cell and spec.out):
        return {}
    try:
        cell, helpers = preflight.parse(spec.cell), [preflight.parse(text) for text in spec.modules.values()]
    except (SyntaxError, ValueError, RecursionError):
        return {}
    sent, more = _definitions(helpers)
    in_cell, imported = _definitions([cell])
    own = in_cell | {name for name in sent if not _returns_by_weights("__main__", name)}
    found: dict[str, str] = {}
    for name in spec.out:
        made = _last_value(cell, name)
        if made is None:
            node = spec.values.get(name, {})
            module, _, kind_name = str(node.get("type", "")).rpartition(".")
            is_known = module != "__main__" or kind_name in sent
            if node.get("as") in values.PICKLES and not (is_known and _returns_by_weights(module, kind_name)):
                found[name] = kind_name
        elif isinstance(made, ast.Call):
            called = ast.unparse(made.func)
            if called in own:
                found[name] = called
            elif (kind := _class(called, {**more, **imported})) is not None and values.has_only_pickle(kind):
                found[name] = kind.__name__
    return found


def _returns_by_weights(module: str, name: str) -> bool:
    """Whether a class is one of PyTorch's modules that this process has, and so needs no pickle on the way back."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and values.is_module_class(kind)


def _definitions(trees: list[ast.Module]) -> tuple[set[str], dict[str, str]]:
    """Return the classes that the texts define, and the full names of what they import."""
    classes: set[str] = set()
    imported: dict[str, str] = {}
    for node in (one for tree in trees for one in tree.body):
        if isinstance(node, ast.ClassDef):
            classes.add(node.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                imported[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return classes, imported


def _last_value(tree: ast.Module, name: str) -> ast.expr | None:
    """Return what the last assignment at the top level gives a variable."""
    last = None
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                last = node.value
    return last


def _class(called: str, imported: Mapping[str, str]) -> type | None:
    """Return the class that an expression names, if its module is loaded here: nothing is imported for it."""
    first, *rest = called.split(".")
    if first not in imported:
        return None
    parts = [*imported[first].split("."), *rest]
    for length in range(len(parts) - 1, 0, -1):
        module = sys.modules.get(".".join(parts[:length]))
        if module is None:
            continue
        found: object = module
        for part in parts[length:]:
            found = getattr(found, part, None)
        return found if isinstance(found, type) else None
    return None
