"""Checks that docstrings and maps name only what exists: ``python -m tools.docstrings``; part of ``make check``.

The parameters of a docstring are those of its function or class, its attributes are set in the class, and each
``:func:`` or ``:class:`` names something of this package or of a library that the module imports.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

ROOT = Path(__file__).resolve().parent.parent
PLACES = ("jupyter_amltrain", "tests/contracts", "tests/fakes", "tools", "benchmarks")

_REFERENCE = re.compile(r":(func|meth|class|data|attr|exc|mod):`~?([^`<]+)`")
_SECTION = re.compile(r"^(Parameters|Attributes|Returns|Yields|Raises|Examples|Notes|Receives|Warns)\n-{3,}$", re.M)
#: Modules of others that docstrings may name without an import.
_LIBRARIES = {
    "asyncio",
    "os",
    "subprocess",
    "argparse",
    "mlflow",
    "IPython",
    "ipykernel",
    "msgspec",
    "pathlib",
    "typing",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources() -> Iterator[Path]:
    """Files whose docstrings are checked."""
    for place in PLACES:
        yield from sorted((ROOT / place).rglob("*.py"))


def defined(tree: ast.AST) -> Iterator[str]:
    """Names that a module defines at any level: functions, classes, variables, attributes, imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).split(".")[0] for alias in node.names)


def modules() -> set[str]:
    """Names of the package's modules and folders, by their last part."""
    names: set[str] = set()
    for path in sources():
        names.update((path.stem, path.parent.name))
    return names


def sections(text: str) -> Iterator[tuple[str, str]]:
    """Title and body of each section of a docstring in numpy style."""
    found = list(_SECTION.finditer(text))
    for one, later in zip(found, [*found[1:], None], strict=False):
        yield one.group(1), text[one.end() : later.start() if later else len(text)]


def listed(body: str) -> list[str]:
    """Names that a section lists, one or several to a line."""
    names: list[str] = []
    for line in body.splitlines():
        if line and not line[0].isspace():
            names += [name.strip().lstrip("*") for name in line.split(":")[0].split(",")]
    return [name for name in names if name]


def parameters(node: Function) -> set[str]:
    """Names of a function's parameters."""
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return {argument.arg for argument in every if argument is not None}


def own_names(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> set[str]:
    """Names of a class and of its bases in this package: fields, attributes, methods, parameters of its start."""
    names = set(defined(node))
    names.update(
        child.target.id
        for child in ast.walk(node)
        if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name)
    )
    for child in node.body:
        if isinstance(child, ast.FunctionDef) and child.name in ("__init__", "__new__"):
            names.update(parameters(child))
    for base in node.bases:
        name = base.id if isinstance(base, ast.Name) else base.attr if isinstance(base, ast.Attribute) else ""
        if name in classes and classes[name] is not node:
            names |= own_names(classes[name], classes)
    return names


def problems(path: Path, tree: ast.Module, known: set[str], classes: dict[str, ast.ClassDef]) -> Iterator[str]:
    """Sentences about names in the docstrings of a module that do not exist."""
    here = path.relative_to(ROOT)
    imported = {
        name for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) for name in defined(node)
    }
    class_of = {child: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for child in node.body}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node)
        if not text:
            continue
        line = getattr(node, "lineno", 1)
        around = node if isinstance(node, ast.ClassDef) else class_of.get(cast(ast.stmt, node))
        for role, target in _REFERENCE.findall(text):
            parts = target.strip().lstrip(".").rstrip("()").split(".")
            names = known
            if role in ("meth", "attr") and len(parts) == 1 and around is not None:
                names = own_names(around, classes)
            if parts[0] not in _LIBRARIES | imported and parts[-1] not in names:
                yield f"{here}:{line}: no {target!r}"
        for title, body in sections(text):
            if title == "Parameters" and isinstance(node, Function):
                missing = [name for name in listed(body) if name not in parameters(node)]
            elif title in ("Parameters", "Attributes") and isinstance(node, ast.ClassDef):
                own = own_names(node, classes)
                missing = [name for name in listed(body) if name not in own]
            else:
                continue
            yield from (f"{here}:{line}: {title.lower()}: no {name!r}" for name in missing)


#: Pages that lead to files, and the folders from which they name them.
MAPS = ("docs/architecture.md", "docs/agent.md", "docs/plugins.md")
_FOLDERS = ("", "jupyter_amltrain", "jupyter_amltrain/agent", "labextension/src/sections")
_FILE = re.compile(r"`([\w./-]*\w\.(?:py|ts|css))`")


def missing_files() -> Iterator[str]:
    """Sentences about files that a map names and that do not exist."""
    for page in MAPS:
        for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1):
            for name in _FILE.findall(line):
                if "/" not in name:
                    found = any(ROOT.glob(f"jupyter_amltrain/**/{name}")) or any(
                        ROOT.glob(f"labextension/src/**/{name}")
                    )
                else:
                    found = any((ROOT / folder / name).exists() for folder in _FOLDERS)
                if not found:
                    yield f"{page}:{number}: no file {name!r}"


def main() -> int:
    """Print each name that does not exist; 1 if there is one."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sources()}
    known = set(dir(builtins)) | modules() | {name for tree in trees.values() for name in defined(tree)}
    classes = {node.name: node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    found = [text for path, tree in trees.items() for text in problems(path, tree, known, classes)]
    found += missing_files()
    print("\n".join(found))
    if found:
        print(f"{len(found)} names in docstrings and maps do not exist.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
