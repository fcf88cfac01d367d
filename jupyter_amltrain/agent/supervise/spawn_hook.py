"""Hook in a job's Python that lets the children of a cell import its definitions without running its body.

``multiprocessing`` with *spawn* or *forkserver* runs the main script again in each child. A cell has no
``if __name__ == "__main__":``, so that each child would start the pool again. ``supervise/job_hooks.py`` puts this file
into a job's Python, where ``supervise/import_hook.py`` runs :func:`imported`.
"""

from __future__ import annotations

TYPE_CHECKING = False  # do not import the module typing into the user's program
if TYPE_CHECKING:
    import ast
    from typing import Any, List

#: Variable of a job that is a cell: the name of its script.
CELL = "AMLTRAIN_CELL"
#: Modules that a script names on the lines that read what its cell takes from the notebook.
_OF_NOTEBOOK = ("_amltrain_values", "_amltrain_with")


def imported(spawn: Any) -> None:
    """Replace how a child gets its main module, for scripts of cells."""
    run_again = spawn._fixup_main_from_path

    def of_cell(path: str) -> None:
        import os
        import sys

        if os.path.basename(path) != os.environ.get(CELL):
            run_again(path)
            return
        if getattr(sys.modules["__main__"], "__file__", None) == path:  # a forked process has it
            return
        with open(path, encoding="utf-8") as file:
            text = file.read()
        spawn.old_main_modules.append(sys.modules["__main__"])
        sys.modules["__main__"] = sys.modules["__mp_main__"] = _definitions(text, path)

    spawn._fixup_main_from_path = of_cell


def _definitions(text: str, path: str) -> Any:
    """Return a module with what the script of a cell defines."""
    import ast
    import types

    tree = ast.parse(text, path)
    own = {1, *(node.lineno for node in tree.body if _is_of_notebook(node))}
    tree.body = [node for node in tree.body if node.lineno in own or _is_definition(node)]
    module = types.ModuleType("__mp_main__")
    module.__file__ = path
    exec(compile(tree, path, "exec"), module.__dict__)
    return module


def _is_of_notebook(node: ast.stmt) -> bool:
    """Whether a statement reads what the cell takes from the notebook."""
    import ast

    return any(isinstance(one, ast.Constant) and one.value in _OF_NOTEBOOK for one in ast.walk(node))


def _is_definition(node: ast.stmt) -> bool:
    """Whether a statement only defines names: it calls nothing, and can run in each child."""
    import ast

    if isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return True
    if isinstance(node, ast.Try):
        inner: List[ast.stmt] = [*node.body, *node.orelse, *node.finalbody]
        inner += [one for handler in node.handlers for one in handler.body]
        return all(isinstance(one, ast.Pass) or _is_definition(one) for one in inner)
    if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
        calls = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.ListComp, ast.SetComp, ast.DictComp, ast.NamedExpr)
        outside = _outside_lambdas(node.value)
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return all(isinstance(one, ast.Name) for one in targets) and not any(isinstance(one, calls) for one in outside)
    return False


def _outside_lambdas(node: ast.expr) -> List[ast.AST]:
    import ast

    if isinstance(node, ast.Lambda):
        return []
    children = [_outside_lambdas(one) if isinstance(one, ast.expr) else [one] for one in ast.iter_child_nodes(node)]
    return [node, *(one for part in children for one in part)]
