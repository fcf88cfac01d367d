"""Find the local modules that a script imports, without running code."""

from __future__ import annotations

import ast
import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from jupyter_amltrain.agent.protocol import read_regular
from jupyter_amltrain.errors import SubmitError
from jupyter_amltrain.jobs import preflight

_SKIPPED = frozenset({"__pycache__", ".git", ".venv", "node_modules", ".ipynb_checkpoints"})


def local_modules(text: bytes, root: Path) -> dict[str, Path]:
    """Return the files below `root` that `text` imports, directly or indirectly.

    A package is included with all its ``.py`` files, because packages also import their
    parts without ``import`` statements; of a folder without ``__init__.py`` (a namespace
    package) only the imported modules are included.

    Parameters
    ----------
    text
        Source of a script in `root`.

    Returns
    -------
    dict
        Path inside `root` (posix) to path.
    """
    return _Search(root).run(text)


def imported_names(text: bytes, root: Path) -> set[str]:
    """Return the top-level modules that `text` and the modules below `root` that it imports name."""
    texts = [text, *(path.read_bytes() for path in local_modules(text, root).values() if path.suffix == ".py")]
    return {name.partition(".")[0] for one in texts for level, name in _imports(one) if not level}


class _Search:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.found: dict[str, Path] = {}
        self.pending: list[tuple[str, str]] = []  # (relative path, its package, dotted)
        try:
            # This listing is enough to skip nearly all imports, which are not local.
            names = os.listdir(root)
            self.top = {n[:-3] if n.endswith(".py") else n for n in names if n.endswith(".py") or "." not in n}
        except OSError:
            self.top = set()

    def run(self, text: bytes) -> dict[str, Path]:
        # A text without the name of a local module need not be parsed.
        # (Names that are not ASCII may be written in more than one way.)
        if any(not name.isascii() or name.encode() in text for name in self.top):
            self.follow(_imports(text), "")
        while self.pending:
            name, package = self.pending.pop()
            path = self.found[name]
            try:
                status = path.stat()
                names = _imports_of_file(str(path), status.st_mtime_ns, status.st_size)
            except OSError as error:
                raise SubmitError(
                    f"Cannot read the module {path}: {error.strerror or error}.",
                    hint="Make the file readable, or remove the import.",
                ) from error
            self.follow(names, package)
        return self.found

    def follow(self, names: tuple[tuple[int, str], ...], package: str) -> None:
        for level, name in names:
            if level:
                parts = package.split(".") if package else []
                if level - 1 > len(parts):
                    continue  # above the top folder: the import fails in the run, too
                base = parts[: len(parts) - (level - 1)]
                name = ".".join([*base, *([name] if name else [])])
            if name:
                self.take(name.split("."))

    def take(self, parts: list[str]) -> None:
        if parts[0] not in self.top or parts[0] in sys.builtin_module_names:
            return
        folder, package = "", ""
        for i, part in enumerate(parts):
            location = f"{folder}{part}"
            if (self.root / location / "__init__.py").is_file():
                # Parent folders may be namespaces; everything below belongs to this package.
                self.take_package(location, ".".join(parts[: i + 1]))
                return
            if (self.root / f"{location}.py").is_file():
                self.add(f"{location}.py", package)
                return
            if not (self.root / location).is_dir() or (i == 0 and _installed(part, self.root)):
                return
            folder, package = location + "/", ".".join(parts[: i + 1])

    def take_package(self, folder: str, package: str) -> None:
        if f"{folder}/__init__.py" in self.found:
            return
        for name, inside in _python_files(self.root / folder, folder, package):
            self.add(name, inside)

    def add(self, name: str, package: str) -> None:
        if name not in self.found:
            self.found[name] = self.root / name
            self.pending.append((name, package))


def _python_files(path: Path, name: str, package: str) -> Iterator[tuple[str, str]]:
    try:
        with os.scandir(path) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
    except OSError as error:
        raise SubmitError(
            f"Cannot read the package folder {path}: {error.strerror or error}.",
            hint="Make the folder readable, or remove the import.",
        ) from error
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if entry.name not in _SKIPPED:
                inside = f"{package}.{entry.name}"
                yield from _python_files(Path(entry.path), f"{name}/{entry.name}", inside)
        elif entry.name.endswith((".py", ".pyi", ".so")) and os.path.isfile(entry.path):
            yield f"{name}/{entry.name}", package


def _installed(name: str, root: Path) -> bool:
    """Whether an installed module of this name takes precedence over a plain folder in `root`."""
    from importlib.machinery import PathFinder

    elsewhere = [p for p in sys.path if os.path.abspath(p or ".") != str(root)]
    try:
        spec = PathFinder.find_spec(name, elsewhere)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.loader is not None


@functools.lru_cache(maxsize=4096)
def _imports_of_file(path: str, mtime_ns: int, size: int) -> tuple[tuple[int, str], ...]:
    # mtime and size are part of the cache key, so that an edited module is read again.
    if not path.endswith(".py"):
        return ()
    return _imports(read_regular(path))


def _imports(text: bytes) -> tuple[tuple[int, str], ...]:
    """``(level, dotted name)`` of every import; of ``from a import b`` both a and a.b."""
    try:
        tree = preflight.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return ()  # the file may be for another Python version; the run itself reports errors
    found: dict[tuple[int, str], None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update({(0, alias.name): None for alias in node.names})
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if base:
                found[node.level, base] = None
            for alias in node.names:
                if alias.name != "*":
                    found[node.level, f"{base}.{alias.name}" if base else alias.name] = None
    return tuple(found)
