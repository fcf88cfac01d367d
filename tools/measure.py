"""Measures the structure of a checkout: ``python -m tools.measure [FOLDER] [--json] [--trips]``.

Sizes, circles, single importers and duplicate names come from the source alone. ``--trips`` runs two
trips in FOLDER's own environment (``.venv``) and counts the files of the package that they enter, in
every process: a cell until its process runs, and a cancel until the run has ended.
"""

from __future__ import annotations

import argparse
import ast
import collections
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import textwrap
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

PACKAGE = "jupyter_amltrain"
#: Files that a generator writes.
_GENERATED = {"_version.py", "protocol.ts", "gpuColumns.ts"}


def sources(root: Path, folder: str, *endings: str) -> list[Path]:
    """Hand-written files of a folder."""
    left_out = {"node_modules", "__pycache__", "lib"} | ({"labextension"} if folder == PACKAGE else set())
    return sorted(
        path
        for path in (root / folder).rglob("*")
        if path.suffix in endings
        and path.name not in _GENERATED
        and not left_out & set(path.relative_to(root / folder).parts)
    )


# ---- lines


def python_lines(path: Path) -> collections.Counter[str]:
    """Count the lines of a file by what stands on them: code, import, docstring, comment, blank."""
    text = path.read_text(encoding="utf-8")
    kinds = ["blank" if not line.strip() else "code" for line in text.splitlines()]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip():
            kinds[token.start[0] - 1] = "comment"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                _mark(kinds, first, "docstring")
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            _mark(kinds, node, "import")
    return collections.Counter(kinds)


def _mark(kinds: list[str], node: ast.stmt, kind: str) -> None:
    for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
        kinds[line - 1] = kind


# ---- imports


def modules_of(root: Path) -> dict[str, Path]:
    """Dotted names of the package's modules."""
    found = {}
    for path in sources(root, PACKAGE, ".py"):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(modules: dict[str, Path]) -> dict[str, set[str]]:
    """Which module imports which, wherever the statement stands, type checking included."""
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        graph[name] = {
            target
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            for target in _targets(node, package, modules)
            if target != name
        }
    return graph


def _targets(node: ast.AST, package: str, modules: dict[str, Path]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in modules)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            above = package.split(".")
            above = above[: len(above) - node.level + 1]
            base = ".".join([*above, base]) if base else ".".join(above)
        for alias in node.names:
            if f"{base}.{alias.name}" in modules:
                yield f"{base}.{alias.name}"
            elif base in modules:
                yield base


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other in a loop (strongly connected components, Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in graph.get(name, ()):
            if target not in index:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    sys.setrecursionlimit(10_000)
    for name in graph:
        if name not in index:
            visit(name)
    return sorted(found)


def depth(graph: dict[str, set[str]]) -> int:
    """Modules on the longest chain of imports, a circle counting as one."""
    group_of = {name: name for name in graph}
    for group in circles(graph):
        group_of.update(dict.fromkeys(group, group[0]))
    known: dict[str, int] = {}

    def floor(group: str) -> int:
        if group not in known:
            known[group] = 0
            below = {group_of[t] for name in graph if group_of[name] == group for t in graph[name]} - {group}
            known[group] = 1 + max((floor(one) for one in below), default=0)
        return known[group]

    return max(floor(group) for group in set(group_of.values()))


# ---- concepts

#: Functions and classes longer than this many lines are counted.
LONG_FUNCTION, LONG_CLASS = 50, 400


def double_names(root: Path) -> dict[str, list[str]]:
    """Public class names that several modules define: one word would mean two things."""
    found: dict[str, list[str]] = {}
    for path in sources(root, PACKAGE, ".py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(path.relative_to(root).as_posix())
    return {name: places for name, places in found.items() if len(places) > 1}


#: Files outside of the folders ``azure`` that may name Azure, and why.
MAY_NAME_AZURE = {
    "agent/__main__.py": "the agent travels as one file: the entry of its part",
    "agent/distributed/launchers.py": "the agent travels as one file: a helper of its part",
    "agent/secret_values.py": "modules whose objects are secrets",
    "jobs/environments.py": "a package that brings MLflow",
    "plugins.py": "the reference to the plug-in",
    "schema/asset_names.py": "the syntax of names, which users type",
    "schema/ssh_target.py": "fields of stored targets: the resource id of a virtual machine",
}
#: Where a name means something else: the address of a source, or a module of a folder ``azure`` in TypeScript.
_ELSEWHERE = re.compile(r"https?://\S+|from '[^']*/azure/\w+'")


def naming_azure(root: Path) -> list[str]:
    """Files outside of the folders ``azure`` that name it, other than where they mean something else."""
    found = []
    for folder, ending in ((PACKAGE, ".py"), ("labextension/src", ".ts")):
        for path in sources(root, folder, ending):
            name = path.relative_to(root / folder).as_posix()
            if "azure/" not in name and "azure" in _ELSEWHERE.sub("", path.read_text(encoding="utf-8")).lower():
                found.append(name)
    return found


def concepts(root: Path, python: list[Path]) -> dict[str, Any]:
    """How many classes there are, how many names mean two things, and what is too long or knows too much."""
    classes: list[ast.ClassDef] = []
    functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
    for path in python:
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                classes.append(node)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.append(node)
    backend = next(node for node in classes if node.name == "Backend")
    methods = [node for node in backend.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    flags = [
        node for node in backend.body if isinstance(node, ast.AnnAssign) and "bool" in ast.unparse(node.annotation)
    ]

    def longer(nodes: Sequence[ast.stmt], limit: int) -> int:
        return sum((node.end_lineno or node.lineno) - node.lineno + 1 > limit for node in nodes)

    return {
        "classes": len(classes),
        "class names with two meanings": len(double_names(root)),
        "methods of Backend": len(methods),
        "flags of Backend": len(flags),
        "files elsewhere that name Azure": len(naming_azure(root)),
        f"functions over {LONG_FUNCTION} lines": longer(functions, LONG_FUNCTION),
        f"classes over {LONG_CLASS} lines": longer(classes, LONG_CLASS),
    }


# ---- the report


def structure(root: Path) -> dict[str, Any]:
    """Figures of a checkout, from its source."""
    python = sources(root, PACKAGE, ".py")
    kinds = sum((python_lines(path) for path in python), collections.Counter())
    lengths = [len(path.read_text(encoding="utf-8").splitlines()) for path in python]
    modules = modules_of(root)
    graph = imports_of(modules)
    importers = collections.Counter(target for targets in graph.values() for target in targets)
    names = collections.Counter(path.name for path in python if not path.name.startswith("__"))
    typescript = sources(root, "labextension/src", ".ts", ".tsx")
    css = sources(root, "labextension", ".css")
    contract = (root / "pyproject.toml").read_text(encoding="utf-8").partition("layers = [")[2].partition("]")[0]
    return {
        "python files": len(python),
        "python lines": sum(lengths),
        **{f"  {kind}": kinds[kind] for kind in ("code", "import", "docstring", "comment", "blank")},
        "  import share of code, %": round(100 * kinds["import"] / (kinds["code"] + kinds["import"]), 1),
        "  median, longest file": f"{statistics.median(lengths):.0f}, {max(lengths)}",
        "modules at the package's root": len(list((root / PACKAGE).glob("*.py"))),
        "layers in the contract": len(re.findall(r'^  "', contract, re.MULTILINE)),
        "longest chain of imports": depth(graph),
        "circles": len(circles(graph)),
        "  modules in them": sum(map(len, circles(graph))),
        "modules with one importer": sum(count == 1 for count in importers.values()),
        "names used by several files": sum(count > 1 for count in names.values()),
        "  files with such a name": sum(count for count in names.values() if count > 1),
        **concepts(root, python),
        "typescript files": len(typescript),
        "typescript lines": sum(len(path.read_text(encoding="utf-8").splitlines()) for path in typescript),
        "css lines": sum(len(path.read_text(encoding="utf-8").splitlines()) for path in css),
        "test lines": sum(len(p.read_text(encoding="utf-8").splitlines()) for p in sources(root, "tests", ".py")),
    }


# ---- trips

# The part of the trip is one byte that all processes share.
_HOOK = """
import mmap, os, sys, threading
_folder, _root, _seen = os.environ["TRIP_TRACE"], os.environ["TRIP_ROOT"], set()
with open(os.path.join(_folder, "part"), "r+b") as file:
    part = mmap.mmap(file.fileno(), 1)
def _profile(frame, event, arg):
    code = frame.f_code
    key = (part[0], code.co_filename)
    if key in _seen or code.co_name == "<module>":
        return
    _seen.add(key)
    for mark in (_root, ".pyz"):
        if mark in code.co_filename:
            with open(os.path.join(_folder, "trip-%d" % key[0]), "a") as file:
                file.write(code.co_filename.rpartition(mark)[2].lstrip(os.sep).replace("agent/", "") + "\\n")
sys.setprofile(_profile)
threading.setprofile(_profile)
"""
_RUN = """
import sys, time
from jupyter_amltrain import api
part = sys.modules["sitecustomize"].part
api.submit("pass").wait(60)  # everything is loaded, and the dispatcher runs
part[0] = 1
run = api.submit("print('up'); import time; time.sleep(60)")
while "up" not in run.logs():
    time.sleep(0.05)
part[0] = 2
run.cancel()
while not run.record().done:
    time.sleep(0.05)
part[0] = 0
"""


def trips(root: Path) -> dict[str, int]:
    """Files of the package that two trips enter, in the kernel and in the agent's processes."""
    python = root / ".venv" / "bin" / "python"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(textwrap.dedent(_HOOK))
        (Path(folder) / "part").write_bytes(b"\0")
        environ = {
            **os.environ,
            "PYTHONPATH": folder,
            "TRIP_TRACE": folder,
            "TRIP_ROOT": str(root / PACKAGE),
            "AMLTRAIN_HOME": str(Path(folder) / "home"),
            "AMLTRAIN_QUEUE": str(Path(folder) / "queue"),
        }
        subprocess.run([str(python), "-c", _RUN], env=environ, check=True, cwd=folder)
        return {
            name: len(set((Path(folder) / f"trip-{number}").read_text().split()))
            for number, name in enumerate(("files entered, a cell to its process", "files entered, a cancel"), 1)
        }


def main() -> None:
    """Print the figures of a checkout."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--json", action="store_true", help="print JSON")
    text = "only name the circles of imports, and the class names with two meanings; 1 if there is one"
    parser.add_argument("--check", action="store_true", help=text)
    parser.add_argument("--trips", action="store_true", help="run the trips too")
    args = parser.parse_args()
    root = args.folder.resolve()
    if args.check:
        problems = [f"circle: {' '.join(group)}" for group in circles(imports_of(modules_of(root)))]
        problems += [f"names Azure: {name}" for name in naming_azure(root) if name not in MAY_NAME_AZURE]
        problems += [f"two classes {name}: {', '.join(places)}" for name, places in double_names(root).items()]
        print("\n".join(problems))
        sys.exit(bool(problems))
    figures = structure(root) | (trips(root) if args.trips else {})
    if args.json:
        print(json.dumps(figures, indent=1))
        return
    for name, value in figures.items():
        print(f"{name:42}{value:>12,}" if isinstance(value, int) else f"{name:42}{value:>12}")


if __name__ == "__main__":
    main()
